"""`postgresql://user:password@host:port/database`: records in PostgreSQL, for many processes and machines."""

from .opening import POSTGRESQL

__all__ = ["POSTGRESQL"]
