"""Redis and Valkey, single servers and clusters."""

from .opening import BACKEND

__all__ = ["BACKEND"]
