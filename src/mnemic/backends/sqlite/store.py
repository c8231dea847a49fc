"""The SQLite store: concurrent writes share a transaction, in which they are loaded, planned and applied."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, json

from ...checks import to_microseconds
from ...errors import ClosedError, StoreBusyError, StoreError, UnreadableStoreError
from ...event_loop import ForkAware, notify_on_fork, off_loop, running_loop, step
from ...records import Record, Ref
from ...store.codec import FIELDS, from_columns, to_columns
from ...store.diagnosis import diagnosed_by, salvaged_by
from ...store.planning import Plan, needs_of, plan_writes
from ...store.protocol import Scrubbed, Unreached
from ...store.query import Outcome, Write
from ...store.registry import Backend, StoreURL
from ...store.retry import write_once
from ...store.stream_state import Needs, NeedsMoreError, StreamChange, StreamState
from ...telemetry.calls import watch
from ..sql.reading import KEYS_AT_ONCE, SqlReads, Work
from ..sql.schema import RECORD_STATE_COLUMNS, STREAM_COLUMNS, LoadedRows, to_record_state
from ..sql.statements import Prepared, Statements
from ..write_queue import MOST_OPS, MOST_WRITES, Result, settle
from .client import BEGIN, FLAVOR, SqliteConnection, SqliteFile

if TYPE_CHECKING:
    from asyncio import Future

Found = TypeVar("Found")

READERS = 4
"""Number of threads that read for callers on an event loop."""


def _marks(count: int) -> str:
    return ", ".join("?" * count)


_stream_columns: Callable[[StreamState], tuple[Any, ...]] = attrgetter(*STREAM_COLUMNS)
_changing_columns: Callable[[StreamState], tuple[Any, ...]] = attrgetter(*STREAM_COLUMNS[2:])
_STATE = ", ".join(RECORD_STATE_COLUMNS)
_FIND_STREAM = f"SELECT id, {', '.join(STREAM_COLUMNS)} FROM mnemic_streams WHERE scope = ? AND kind = ?"
_ADD_STREAM = f"INSERT INTO mnemic_streams ({', '.join(STREAM_COLUMNS)}) VALUES ({_marks(len(STREAM_COLUMNS))})"
_SET_STREAM = f"UPDATE mnemic_streams SET {' = ?, '.join(STREAM_COLUMNS[2:])} = ? WHERE id = ?"
_ALL_RECORDS = f"SELECT {_STATE} FROM mnemic_records WHERE stream_id = ?"
_ADD_RECORD = f"INSERT INTO mnemic_records ({', '.join(FIELDS)}, stream_id) VALUES ({_marks(len(FIELDS) + 1)})"
_SET_RECORD = f"UPDATE mnemic_records SET {' = ?, '.join(FIELDS)} = ? WHERE stream_id = ? AND seq = ?"
_REMOVE = [f"DELETE FROM {table} WHERE stream_id = ? AND seq = ?" for table in ("mnemic_records", "mnemic_derived")]
_CLEAR = [
    f"DELETE FROM {table} WHERE stream_id = ? AND seq NOT IN (SELECT value FROM json_each(?))"
    for table in ("mnemic_records", "mnemic_labels", "mnemic_derived")
]
_ADD_LABEL = "INSERT INTO mnemic_labels (stream_id, name, value, seq) VALUES (?, ?, ?, ?)"
_REMOVE_LABEL = "DELETE FROM mnemic_labels WHERE stream_id = ? AND name = ? AND value = ? AND seq = ?"
_PUT_DERIVED = "INSERT OR REPLACE INTO mnemic_derived (stream_id, seq, name, version, value) VALUES (?, ?, ?, ?, ?)"
_REMOVE_DERIVED = "DELETE FROM mnemic_derived WHERE stream_id = ? AND seq = ? AND name = ?"


@cache
def _find_records(count: int) -> str:
    return f"{_ALL_RECORDS} AND key IN ({_marks(count)})"


_statements = Statements(FLAVOR)
_FIND_ALL = Prepared(
    f"SELECT j.key, {', '.join(f'r.{name}' for name in FIELDS)} FROM json_each(:refs) j "
    "CROSS JOIN mnemic_streams s ON s.scope = json_extract(j.value, '$[0]') AND s.kind = json_extract(j.value, '$[1]') "
    "CROSS JOIN mnemic_records r ON r.stream_id = s.id AND r.key = json_extract(j.value, '$[2]') "
    "WHERE (s.expires IS NULL OR s.expires > :now) AND (r.expires IS NULL OR r.expires > :now)",
    FLAVOR,
)


class SqliteStore(SqlReads, ForkAware):
    """Stores records in a file; runs in the caller's thread, or in threads of its own on an event loop."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(_statements)
        self._file = file
        self._start()
        notify_on_fork(self)

    def _start(self) -> None:
        self._queue = CommitQueue(self._commit)
        self._readers = ThreadPoolExecutor(READERS, "mnemic-read")

    async def write(self, write: Write) -> list[Outcome]:
        if write.id is None:
            return await self._queue.write(write)
        return await write_once(self, write, self._queue.write)

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Truncate the write-ahead log, which has deleted data; the file itself is overwritten when it is deleted."""
        try:
            await self._run(self._file.scrub)
        except StoreBusyError as error:
            until = "until other processes and threads have finished with the database"
            left = Unreached(what=str(error), until=until, finish="mnemic erase --finish", finishable=True)
            return Scrubbed(unreached=[left])
        return Scrubbed()

    async def close(self) -> None:
        def work() -> None:
            self._queue.close()
            self._readers.shutdown()
            self._file.close()

        await off_loop(work)

    def before_fork(self) -> None:
        """Close the file: SQLite's locks do not survive a fork."""
        self._file.let_go()

    def after_fork(self) -> None:
        """Reset in a child, where other threads are gone and may have left locks held."""
        self._start()

    async def _read(self, work: Work[Found]) -> Found:
        def run() -> Found:
            return self._file.use(lambda connection: step(work(connection)))

        return await self._run(run)

    async def change_marker(self) -> tuple[int, object]:
        """Return the connection, and a value that changes there with each commit by whichever process."""
        return await self._run(lambda: self._file.use(SqliteConnection.change_marker))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Return the record of each ref; those of several streams are read in one statement, to save time."""
        wanted = [(ref.scope.path, ref.kind, ref.key) for ref in refs]
        if len({(path, kind) for path, kind, _ in wanted}) < 2:
            return await super().read(refs)
        values = {"refs": json.encode(wanted).decode(), "now": self._moment()}
        found: list[Record | None] = [None] * len(refs)
        for place, *row in await self._read(lambda connection: connection.all(_FIND_ALL, values)):
            found[place] = from_columns(refs[place].scope, refs[place].kind, row)
        return found

    async def _run(self, work: Callable[[], Found]) -> Found:
        if (loop := running_loop()) is None:
            return work()
        try:
            future = loop.run_in_executor(self._readers, work)
        except RuntimeError:
            raise ClosedError(f"{self._file.url} is closed") from None
        return await future

    def _commit(self, writes: list[Write]) -> list[Result]:
        """Run writes in one transaction; one that meets a damaged record does not fail the others."""
        try:
            return self._file.use(partial(self._transact, writes))
        except UnreadableStoreError as error:
            if len(writes) == 1:
                return [error]
        except StoreError as error:
            # If the disk failed, the log may be written and only its sync be missing: it is read after a crash.
            error.unsure = type(error) is StoreError
            raise
        return [result for write in writes for result in self._commit([write])]

    def _transact(self, writes: list[Write], connection: SqliteConnection) -> list[Result]:
        connection.commits += 1
        connection.raw.execute(BEGIN)
        loaded, needs = LoadedRows(), needs_of(writes)
        moment = to_microseconds(self.clock())
        plan: Plan | None = None
        while plan is None:
            self._load(connection, needs, loaded)
            try:
                plan = plan_writes(loaded, writes, moment)
            except NeedsMoreError as error:
                needs = error.needs
        for change in plan.changes:
            self._apply(connection, change, loaded.ids.get(change.name, 0))
        connection.raw.execute("COMMIT")
        return plan.results

    def _load(self, connection: SqliteConnection, needs: Needs, loaded: LoadedRows) -> None:
        execute = connection.raw.execute
        for name in needs.streams:
            row = execute(_FIND_STREAM, name).fetchone()
            if row is None:
                loaded.streams[name] = None
            else:
                loaded.ids[name], loaded.streams[name] = row[0], StreamState(*row[1:])
        for name, wanted in needs.keys.items():
            found = loaded.records.setdefault(name, {})
            keys = list(wanted)
            found.update(zip(keys, repeat(None), strict=False))
            for start in range(0, len(keys) if name in loaded.ids else 0, KEYS_AT_ONCE):
                chunk = keys[start : start + KEYS_AT_ONCE]
                for row in execute(_find_records(len(chunk)), (loaded.ids[name], *chunk)):
                    found[row[0]] = to_record_state(row)
        for name in needs.whole:
            rows = execute(_ALL_RECORDS, (loaded.ids[name],)).fetchall()
            loaded.records[name] = {row[0]: to_record_state(row) for row in rows}
            loaded.whole.add(name)

    def _apply(self, connection: SqliteConnection, change: StreamChange, id: int) -> None:
        raw = connection.raw
        if change.cleared:
            spared = json.encode([record.seq for record in change.spared])
            for statement in _CLEAR:
                raw.execute(statement, (id, spared.decode()))
        if change.dropped:
            raw.execute("DELETE FROM mnemic_streams WHERE id = ?", (id,))
        if change.after is not None and (change.before is None or change.dropped):
            id = raw.execute(_ADD_STREAM, _stream_columns(change.after)).lastrowid or 0
        elif change.after is not None and change.after is not change.before:
            raw.execute(_SET_STREAM, (*_changing_columns(change.after), id))
        if change.removed:
            removed = [(id, record.seq) for record in change.removed]
            for statement in _REMOVE:
                raw.executemany(statement, removed)
            _change_labels(raw, _REMOVE_LABEL, id, ((record.seq, record.labels) for record in change.removed))
        if change.lost_labels:
            _change_labels(raw, _REMOVE_LABEL, id, change.lost_labels.items())
        for record in change.replaced:
            raw.execute(_SET_RECORD, (*to_columns(record), id, record.seq))
        raw.executemany(_ADD_RECORD, [(*to_columns(record), id) for record in change.added])
        for record in (*change.replaced, *change.added):
            if record.labels:
                _change_labels(raw, _ADD_LABEL, id, ((record.seq, record.labels),))
        kept = [(id, one.seq, one.name, one.version, one.value) for one in change.derived if one.value is not None]
        if len(kept) < len(change.derived):
            gone = [(id, one.seq, one.name) for one in change.derived if one.value is None]
            raw.executemany(_REMOVE_DERIVED, gone)
        raw.executemany(_PUT_DERIVED, kept)


def _change_labels(
    raw: sqlite3.Connection, statement: str, id: int, labels: Iterable[tuple[int, dict[str, str]]]
) -> None:
    rows = [(id, name, value, seq) for seq, of_record in labels for name, value in of_record.items()]
    raw.executemany(statement, rows)


class PendingWrite(Struct, eq=False):
    write: Write
    future: Future[list[Outcome]] | None = None
    result: Result | None = None


class CommitQueue:
    """Groups concurrent writes into commits, one at a time.

    The thread that has the lock commits its own write and all that others have queued meanwhile. For callers on
    an event loop, that is a thread of the queue.
    """

    def __init__(self, commit: Callable[[list[Write]], Sequence[Result]]) -> None:
        """Take a function that commits writes and returns the result of each; if it raises, all have failed."""
        self._commit = commit
        self._lock = threading.Lock()
        self._queue: deque[PendingWrite] = deque()
        self._thread = ThreadPoolExecutor(1, "mnemic-write")
        self._scheduled = False
        watch(self)

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """Yield the number of writes that wait for a commit."""
        yield "write_queue_depth", "", len(self._queue)

    async def write(self, write: Write) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable. Raises ClosedError after `close`."""
        loop = running_loop()
        if loop is not None:
            future: Future[list[Outcome]] = loop.create_future()
            self._queue.append(PendingWrite(write, future))
            if not self._scheduled:
                self._scheduled = True
                try:
                    self._thread.submit(self._drain)
                except RuntimeError:
                    self._scheduled = False
                    raise ClosedError("the store is closed") from None
            return await future
        pending = PendingWrite(write)
        self._queue.append(pending)
        while (result := pending.result) is None:
            self._commit_next()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Wait for running writes, and stop the thread."""
        self._thread.shutdown()

    def _drain(self) -> None:
        # Before the queue is read: a write queued after that schedules another run.
        self._scheduled = False
        while self._queue:
            self._commit_next()

    def _commit_next(self) -> None:
        with self._lock:
            batch: list[PendingWrite] = []
            size = 0
            while self._queue and len(batch) < MOST_WRITES and size < MOST_OPS:
                batch.append(self._queue.popleft())
                size += len(batch[-1].write.ops)
            if not batch:
                return
            results: Sequence[Result] = ()
            try:
                results = self._commit([pending.write for pending in batch])
            except Exception as error:
                results = [error] * len(batch)
            finally:
                results = results or [StoreError("the write was interrupted", unsure=True)] * len(batch)
                for pending, result in zip(batch, results, strict=True):
                    pending.result = result
        for pending, result in zip(batch, results, strict=True):
            if (future := pending.future) is not None and not (loop := future.get_loop()).is_closed():
                loop.call_soon_threadsafe(settle, future, result)


async def open_sqlite(url: StoreURL) -> SqliteStore:
    """Open the file, created if it does not exist, and migrate it to the newest schema."""
    file = SqliteFile(url)
    try:
        await off_loop(file.migrate)
    except BaseException:
        file.close()
        raise
    return SqliteStore(file)


async def _exists(url: StoreURL) -> bool:
    return SqliteFile(url).exists()


async def _remove(url: StoreURL) -> None:
    path = SqliteFile(url).path
    for end in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


BACKEND = Backend(
    open=open_sqlite, inline=True, exists=_exists, remove=_remove,
    diagnose=diagnosed_by(__package__), salvage=salvaged_by(__package__),
)  # fmt: skip
