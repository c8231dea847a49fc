"""What is SQLite's own: connections, pragmas, transactions, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from ...errors import (
    ClosedError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    UnreadableStoreError,
)
from ...forking import under_way
from ...store.registry import StoreURL
from .conditions import each_of_json
from .flavour import Flavour
from .migrate import Engine
from .schema import VERSION_TABLE
from .statements import Parameters, Prepared

Result = TypeVar("Result")

MAGIC = b"SQLite format 3\0"
"""How every SQLite database begins."""

BUSY_SECONDS = 30.0
"""How long a writer waits for another process before it gives up."""

# A plain BEGIN that turns into a write fails at once if another process wrote meanwhile.
BEGIN = "BEGIN IMMEDIATE"

ENGINE = Engine(
    "sqlite://",
    f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'",  # noqa: S608
    (BEGIN,),
)
FLAVOUR = Flavour(SQLiteDialect_pysqlite(paramstyle="qmark"), insert, each_of_json, lambda value: value)


class Reads:
    """What reads ask of a connection to the file, which never makes them wait."""

    ahead = False

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        return self.raw.execute(statement.text, statement.arguments(parameters)).fetchall()

    async def each(self, asked: Sequence[tuple[Prepared, Parameters]]) -> list[list[Any]]:
        execute = self.raw.execute
        return [execute(one.text, one.arguments(values)).fetchall() for one, values in asked]


class Connection:
    """One connection to the file; used by one thread at a time."""

    def __init__(self, raw: sqlite3.Connection, file: SqliteFile) -> None:
        self.raw = raw
        self.file = file
        self.reads = Reads(raw)

    def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        """Run a statement and return its rows."""
        return self.raw.execute(statement.text, statement.arguments(parameters)).fetchall()

    def one(self, statement: Prepared, parameters: Parameters) -> Any:
        """Run a statement and return its first row, or None."""
        return self.raw.execute(statement.text, statement.arguments(parameters)).fetchone()

    def run(self, statement: Prepared, parameters: Parameters) -> int:
        """Run a statement and return the number of the row it added."""
        return self.raw.execute(statement.text, statement.arguments(parameters)).lastrowid or 0

    def many(self, statement: Prepared, rows: Sequence[Parameters]) -> None:
        """Run a statement once for each set of parameters."""
        if len(rows) == 1:
            self.run(statement, rows[0])
        elif rows:
            self.raw.executemany(statement.text, map(statement.arguments, rows))

    def count(self, statement: Prepared, parameters: Parameters) -> int:
        """Run a statement and return how many rows it changed."""
        return self.raw.execute(statement.text, statement.arguments(parameters)).rowcount


class SqliteFile:
    """The file: opens connections to it, lends them out, and says in our words what went wrong."""

    engine = ENGINE

    def __init__(self, url: StoreURL) -> None:
        """Raise InvalidValueError for a URL that names no file or has a bad option."""
        self.url = str(url)
        options = url.take(synchronous=_synchronous, busy_timeout=_seconds)
        self.synchronous = options.get("synchronous", "FULL")
        self.busy_seconds: Any = options.get("busy_timeout", BUSY_SECONDS)
        name = unquote(url.split.path[1:])
        if url.split.netloc or name in ("", ":memory:"):
            raise InvalidValueError(
                f"{url} names no file: use sqlite:///relative.db or sqlite:////absolute.db, "
                "and memory:// for what need not last"
            )
        # Made absolute once: the working folder may be another when the next connection is opened.
        self.path = Path(name).absolute()
        self._idle: deque[Connection] = deque()
        self._closed = False

    def use(self, work: Callable[[Connection], Result]) -> Result:
        """Return what `work` returns for a connection that is lent to it; driver errors leave it as ours."""
        # A child that has a connection in the middle of a transaction could never write.
        with under_way:
            return self._lend(work)

    def _lend(self, work: Callable[[Connection], Result]) -> Result:
        if self._closed:
            raise ClosedError(f"{self.url} is closed")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            return work(connection)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self.explain(error) from error
        finally:
            if connection.raw.in_transaction:
                self._roll_back(connection)
            self._idle.append(connection)
            if self._closed:
                self.let_go()

    def close(self) -> None:
        """Close all connections that are not lent; the others close when they come back."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        """Close the connections that are not lent."""
        while self._idle:
            self._idle.pop().raw.close()

    def explain(self, error: Exception) -> Exception:
        """Return a driver's error as one of ours, and any other as it is."""
        if not isinstance(error, sqlite3.Error | sqlite3.Warning):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, hint = _ERRORS.get(code, (StoreError, "SQLite failed"))
        return kind(f"{self.url}: {hint} ({error})")

    def _connect(self) -> Connection:
        self._check_file()
        try:
            raw = sqlite3.connect(
                self.path, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self.explain(error) from error
        try:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute(f"PRAGMA synchronous = {self.synchronous}")
            # What is forgotten must not be found in the free pages of the file.
            raw.execute("PRAGMA secure_delete = ON")
        except sqlite3.Error as error:
            raw.close()
            raise self.explain(error) from error
        return Connection(raw, self)

    def _check_file(self) -> None:
        """Raise one of our errors if there can be no file of ours at this path."""
        if not os.path.isdir(self.path.parent):  # noqa: PTH112 - which, unlike Path, never raises
            raise InvalidValueError(f"{self.url}: the folder {self.path.parent} does not exist")
        try:
            with self.path.open("rb") as file:
                start = file.read(len(MAGIC))
        except FileNotFoundError:
            return
        except IsADirectoryError:
            raise StorePermissionError(f"{self.url}: the file cannot be opened: it is a folder") from None
        except (OSError, ValueError) as error:
            raise StorePermissionError(f"{self.url}: the file cannot be opened ({error})") from None
        # SQLite itself takes a file of a few bytes for an empty one, and would write over it.
        if start and start != MAGIC:
            raise UnreadableStoreError(f"{self.url}: the file is not an SQLite database")

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.raw.execute("ROLLBACK")
        except sqlite3.Error:
            # The engine has rolled back by itself; there is nothing left to undo.
            return


_ERRORS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_NOTADB: (UnreadableStoreError, "the file is not an SQLite database"),
    sqlite3.SQLITE_CORRUPT: (UnreadableStoreError, "the database is damaged"),
    sqlite3.SQLITE_CANTOPEN: (StorePermissionError, "the file cannot be opened"),
    sqlite3.SQLITE_READONLY: (StorePermissionError, "the file, or its folder, is read-only"),
    sqlite3.SQLITE_PERM: (StorePermissionError, "access is denied"),
    sqlite3.SQLITE_AUTH: (StorePermissionError, "access is denied"),
    sqlite3.SQLITE_FULL: (StoreFullError, "the disk is full"),
    sqlite3.SQLITE_IOERR: (StoreError, "the disk could not be read or written"),
    sqlite3.SQLITE_BUSY: (StoreBusyError, "another process holds the database"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "another connection holds the database"),
}


def _synchronous(text: str) -> str:
    return {"full": "FULL", "normal": "NORMAL"}[text.lower()]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise ValueError(text)
    return seconds
