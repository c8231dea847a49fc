"""SQLite specifics: connections, pragmas, transactions, and error mapping."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ...errors import (
    ClosedError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    UnreadableStoreError,
)
from ...event_loop import running_calls
from ...store.registry import StoreURL
from ..sql.migrate import REPAIR, MigrationTarget, migrate
from ..sql.schema import COLUMNS, HEAD, VERSION_TABLE
from ..sql.statements import Parameters, Prepared, SqlDialect, each_of_json

Result = TypeVar("Result")

_creating = threading.Lock()
"""Held while a file is created: closing it would release the locks of a connection opened meanwhile."""

SMALLEST = 512
"""Size of the smallest SQLite database, one page."""

BUSY_SECONDS = 30.0
"""How long a writer waits for another process before it gives up."""

# A deferred BEGIN that becomes a write fails at once if another process wrote meanwhile.
BEGIN = "BEGIN IMMEDIATE"

_TABLES = ", ".join(f"'{name}'" for name in (*COLUMNS, VERSION_TABLE))
ENGINE = MigrationTarget("sqlite://", f"SELECT name FROM sqlite_master WHERE name IN ({_TABLES})", (BEGIN,))
FLAVOR = SqlDialect("?", each_of_json, lambda value: value)


DRIVER_ERRORS = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)
"""Exceptions of the driver, including those for files too damaged to diagnose."""


_ANOTHER_SCHEMA = ("no such table", "no such column", "table mnemic_")
"""How the driver begins to say that the tables are not those of this version."""
NOT_UTF8 = "Could not decode to UTF-8"
"""How the driver begins to say that a text is damaged."""


_numbers = count()


class SqliteConnection:
    """One connection to the file; used by one thread at a time. As a connection for reads it never waits."""

    ahead = False

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.number: int = next(_numbers)
        self.commits: int = 0
        """How many transactions were begun with it."""

    def change_marker(self) -> tuple[int, tuple[int, int]]:
        """Return the connection's number, and a value that changes with each commit, by whichever connection."""
        # SQLite's number changes with the commits of other connections only.
        return self.number, (self.raw.execute("PRAGMA data_version").fetchone()[0], self.commits)

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        try:
            return self.run(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if NOT_UTF8 not in str(error):
                raise
        # Once more, with such text as bytes, so that the error can name the record.
        self.raw.text_factory = _text_or_bytes
        try:
            return self.run(statement, parameters).fetchall()
        finally:
            self.raw.text_factory = str

    async def each(self, queries: Sequence[tuple[Prepared, Parameters]]) -> list[list[Any]]:
        return [await self.all(one, values) for one, values in queries]

    def run(self, statement: Prepared, parameters: Parameters) -> sqlite3.Cursor:
        return self.raw.execute(statement.text, statement.arguments(parameters))


class SqliteFile:
    """The database file: a pool of connections, and error mapping."""

    def __init__(self, url: StoreURL) -> None:
        """Raise InvalidValueError for a URL without a file, or with a bad option."""
        self.url: str = str(url)
        options = url.take(synchronous=_synchronous, busy_timeout=_seconds)
        self.synchronous: object = options.get("synchronous", "FULL")
        self.busy_seconds: Any = options.get("busy_timeout", BUSY_SECONDS)
        name = unquote(url.split.path[1:])
        if url.split.netloc or name in ("", ":memory:"):
            raise InvalidValueError(
                f"{url} names no file: use sqlite:///relative.db or sqlite:////absolute.db, "
                "and memory:// for temporary data"
            )
        # Absolute, because the working directory may change before the next connection.
        self.path: Path = Path(name).absolute()
        self._name = str(self.path)
        self._idle: deque[SqliteConnection] = deque()
        self._closed = False
        self._identity: tuple[int, int] | None = None
        """Device and inode of the opened file."""

    def exists(self) -> bool:
        """Return whether there is a database at the path; an empty file does not count."""
        try:
            return os.stat(self.path).st_size > 0  # noqa: PTH116
        except (OSError, ValueError):
            return False

    def migrate(self, target: str = HEAD) -> None:
        """Migrate the database, created if it does not exist, to a revision."""
        self.use(lambda connection: migrate(connection.raw, self.url, ENGINE, target))

    def use(self, work: Callable[[SqliteConnection], Result]) -> Result:
        """Run `work` with a borrowed connection; maps driver errors.

        Raises StoreError if the file was deleted or replaced before or during `work`: what was written is in a
        file that nobody will open again.
        """
        # A child with a connection in the middle of a transaction could never write.
        with running_calls:
            if self._closed:
                raise ClosedError(f"{self.url} is closed")
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                result = work(connection)
                self._check_identity()
                return result
            except DRIVER_ERRORS as error:
                self._check_identity()
                raise self.explain(error) from error
            finally:
                if connection.raw.in_transaction:
                    self._roll_back(connection)
                self._idle.append(connection)
                if self._closed:
                    self.let_go()

    def close(self) -> None:
        """Close idle connections; the others are closed when they are returned."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        while self._idle:
            self._idle.pop().raw.close()

    def explain(self, error: Exception) -> Exception:
        """Return the Mnemic error for a driver error; any other error unchanged."""
        if isinstance(error, UnicodeDecodeError):
            return UnreadableStoreError(f"{self.url}: {_DAMAGED} ({error})")
        if not isinstance(error, DRIVER_ERRORS):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, hint = _ERRORS.get(code, (StoreError, "SQLite failed"))
        if NOT_UTF8 in str(error):
            kind, hint = UnreadableStoreError, "a record is damaged"
        elif str(error).startswith(_ANOTHER_SCHEMA):
            kind, hint = (
                UnreadableStoreError,
                f"a newer version of Mnemic, or someone else, has changed the tables; {REPAIR}",
            )
        return kind(f"{self.url}: {hint} ({error})")

    def scrub(self) -> None:
        """Checkpoint and truncate the write-ahead log, so that it keeps no deleted data.

        Raises StoreBusyError if others use the file for longer than the busy timeout.
        """

        def work(connection: SqliteConnection) -> None:
            busy, _, _ = connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreBusyError(
                    f"{self.url}: deleted data stays readable in {self.path.name}-wal, since another process or "
                    "thread uses the database"
                )

        self.use(work)

    def _connect(self) -> SqliteConnection:
        self._make_file()
        try:
            raw = sqlite3.connect(
                # Never created here: a deleted file must not be replaced by an empty one.
                f"file:{quote(str(self.path))}?mode=rw",
                uri=True,
                timeout=self.busy_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
        except DRIVER_ERRORS as error:
            raise self.explain(error) from error
        try:
            self._begin_wal(raw)
            raw.execute(f"PRAGMA synchronous = {self.synchronous}")
            # Deleted data must not remain in free pages.
            raw.execute("PRAGMA secure_delete = ON")
        except DRIVER_ERRORS as error:
            raw.close()
            raise self.explain(error) from error
        return SqliteConnection(raw)

    def _begin_wal(self, raw: sqlite3.Connection) -> None:
        """Enable WAL mode; SQLite itself does not wait if another process does this on a new file."""
        until = time.monotonic() + self.busy_seconds
        while True:
            try:
                raw.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(0.005)

    def _make_file(self) -> None:
        """Create the file, readable by its owner only, if it does not exist; record its identity.

        Raises a StoreError if there can be no database at this path. An existing file is not opened: closing it
        again would release the locks of every other connection of this process.
        """
        if self._identity is not None:
            self._check_identity()
            return
        if not os.path.isdir(self.path.parent):  # noqa: PTH112 - which, unlike Path, never raises
            raise InvalidValueError(f"{self.url}: the folder {self.path.parent} does not exist")
        try:
            with _creating:
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                found = os.stat(self.path)  # noqa: PTH116
        except (OSError, ValueError) as error:
            raise StorePermissionError(f"{self.url}: the file cannot be opened ({error})") from None
        if not stat.S_ISREG(found.st_mode):
            what = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
            raise StorePermissionError(f"{self.url}: the file cannot be opened: it is {what}")
        # SQLite treats a file of a few bytes as empty, and would overwrite it.
        if 0 < found.st_size < SMALLEST:
            raise UnreadableStoreError(f"{self.url}: the file is not an SQLite database")
        self._identity = found.st_dev, found.st_ino

    def _check_identity(self) -> None:
        try:
            found = os.stat(self._name)  # noqa: PTH116 - which takes a third of the time that Path.stat takes
        except OSError:
            raise StoreError(f"{self.url}: the file was deleted while it was open; open it again") from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(f"{self.url}: the file was replaced by another while it was open; open it again")

    def _roll_back(self, connection: SqliteConnection) -> None:
        try:
            connection.raw.execute("ROLLBACK")
        except sqlite3.Error:
            # The engine has rolled back by itself; there is nothing to undo.
            return


_DAMAGED = "the database is damaged; restore a backup, or save what can be read with mnemic doctor --salvage"

_ERRORS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_NOTADB: (UnreadableStoreError, "the file is not an SQLite database"),
    sqlite3.SQLITE_CORRUPT: (UnreadableStoreError, _DAMAGED),
    sqlite3.SQLITE_CANTOPEN: (StorePermissionError, "the file cannot be opened"),
    sqlite3.SQLITE_READONLY: (StorePermissionError, "the file, or its folder, is read-only"),
    sqlite3.SQLITE_PERM: (StorePermissionError, "access is denied"),
    sqlite3.SQLITE_AUTH: (StorePermissionError, "access is denied"),
    sqlite3.SQLITE_FULL: (StoreFullError, "the disk is full"),
    sqlite3.SQLITE_IOERR: (StoreError, "the disk could not be read or written"),
    sqlite3.SQLITE_BUSY: (StoreBusyError, "another process holds the database"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "another connection holds the database"),
}


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _synchronous(text: str) -> str:
    return {"full": "FULL", "normal": "NORMAL"}[text.lower()]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise ValueError(text)
    return seconds
