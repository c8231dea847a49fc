"""`postgresql://user:password@host:port/database`: records in PostgreSQL."""

from .opening import POSTGRESQL

__all__ = ["POSTGRESQL"]
