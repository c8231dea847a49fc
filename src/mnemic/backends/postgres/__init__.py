"""`postgresql://user:password@host:port/database`: records in PostgreSQL."""

from .opening import BACKEND

__all__ = ["BACKEND"]
