"""Redis and Valkey, alone or as a cluster."""

from .opening import BACKEND

__all__ = ["BACKEND"]
