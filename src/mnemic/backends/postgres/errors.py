"""Maps PostgreSQL errors by SQLSTATE."""

from __future__ import annotations

import re

import psycopg

from ...errors import (
    InvalidValueError,
    MnemicError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from ..sql.migrate import REPAIR

_CHANGED = "a newer version of Mnemic, or someone else, has changed the tables"

STATES: dict[str, tuple[type[MnemicError], str]] = {
    "08": (StoreUnavailableError, "the connection failed"),
    "22021": (StoreError, "the database's encoding cannot hold this text; it should be UTF8"),
    "22P05": (StoreError, "the database's encoding cannot hold this text; it should be UTF8"),
    "25006": (StorePermissionError, "the server, or the role, is read-only"),
    "25P03": (StoreBusyError, "the server aborted the transaction"),
    "28": (StorePermissionError, "the server rejects this user"),
    "3D000": (StorePermissionError, "there is no such database"),
    "3F000": (StoreError, "there is no such schema"),
    "40": (StoreBusyError, "concurrent writers won every attempt"),
    "42501": (StorePermissionError, "the role may not do this"),
    "42P01": (UnreadableStoreError, f"{_CHANGED}: a table is missing; {REPAIR}"),
    "42703": (UnreadableStoreError, f"{_CHANGED}: a column is missing; {REPAIR}"),
    "53": (StoreUnavailableError, "the server has no resources left"),
    "53300": (StoreBusyError, "the server has too many connections"),
    "53100": (StoreFullError, "the disk is full"),
    "53200": (StoreError, "the server is out of memory"),
    "54000": (TooLargeError, "a name is too long for PostgreSQL's index, which takes about 2,700 bytes"),
    "55P03": (StoreBusyError, "another transaction holds a lock for too long"),
    "57": (StoreUnavailableError, "the server is ending or starting"),
    "57014": (StoreBusyError, "the statement took longer than the statement timeout"),
    "58030": (StoreError, "the server could not read or write its disk"),
    "XX001": (UnreadableStoreError, "the database is damaged"),
    "XX002": (UnreadableStoreError, "the database is damaged"),
}
"""By SQLSTATE, or by class; anything else is a StoreError."""

_REFUSAL = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|not permitted to log in"
    r"|permission denied|(role|database) \"[^\"]*\" does not exist"
)
"""Server messages on a refused connection, for which libpq passes no SQLSTATE."""

_CROWDED = re.compile(r"too many (clients|connections)|remaining connection slots are reserved")

RETRYABLE = frozenset({"40001", "40P01", "23505"})
"""Nothing was written, and a retry may succeed: serialization failure, deadlock, unique violation."""


STALE = frozenset({"0A000", "25006", "26000"})
"""Nothing was done, and a new connection may succeed: the schema changed under a plan, the server became read-only
after a failover, or it lost a prepared statement.
"""


def explain(error: Exception, url: str) -> Exception:
    """Return the Mnemic error for a driver error; any other error unchanged."""
    if not isinstance(error, psycopg.Error | psycopg.Warning):
        return error
    kind, hint = meaning(error)
    ours = kind(f"{url}: {hint} ({_line(error)})")
    ours.unsure = getattr(error, "committing", False)  # else nothing was committed
    ours.__cause__ = error
    return ours


def meaning(error: Exception) -> tuple[type[MnemicError], str]:
    """Return the Mnemic error class for a driver error, and its description."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return STATES.get(state) or STATES.get(state[:2]) or (StoreError, "PostgreSQL failed")
    if isinstance(error, psycopg.OperationalError):
        if _REFUSAL.search(str(error)):
            return StorePermissionError, "the server rejects this user, or has no such database"
        if _CROWDED.search(str(error)):
            return STATES["53300"]
        if isinstance(error, psycopg.errors.ConnectionTimeout):
            return (StoreUnavailableError, "there was no answer to a new connection; this can safely be retried")
        return StoreUnavailableError, "the server cannot be reached"
    if isinstance(error, psycopg.DataError):
        return InvalidValueError, "PostgreSQL cannot hold this value"
    return StoreError, "PostgreSQL failed"


def state_of(error: BaseException) -> str:
    """Return an error's SQLSTATE; empty if it has none."""
    return getattr(error, "sqlstate", None) or ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
