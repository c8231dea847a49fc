"""A store on a Mnemic server, over HTTP."""

from .opening import BACKEND

__all__ = ["BACKEND"]
