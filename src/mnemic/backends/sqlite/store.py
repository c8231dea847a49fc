"""The SQLite store: a write is loaded, planned and applied in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from ...errors import ClosedError, UnreadableStoreError
from ...event_loop import mind_forks, off_loop, running_loop, step
from ...records import now
from ...store.once import write_once
from ...store.planning import Needs, NeedsMoreError, Plan, RecordState, StreamChange, plan_writes
from ...store.query import Outcome, Write
from ..sql.reading import KEYS_AT_ONCE, SqlReads, Work
from ..sql.rows import LoadedRows, stream_values, to_record_state, to_row, to_stream
from ..sql.statements import Statements
from ..write_queue import BlockingWriteQueue, Result
from .client import BEGIN, Connection, SqliteFile

Found = TypeVar("Found")

READERS = 4
"""Number of threads that read for callers on an event loop."""


class SqliteStore(SqlReads):
    """Stores records in a file; runs in the caller's thread, or in threads of its own on an event loop."""

    def __init__(self, file: SqliteFile, statements: Statements, clock: Callable[[], datetime] = now) -> None:
        super().__init__(statements, clock)
        self._file = file
        self._start()
        mind_forks(self)

    def _start(self) -> None:
        self._queue = BlockingWriteQueue(self._commit)
        self._readers = ThreadPoolExecutor(READERS, "mnemic-read")

    async def write(self, write: Write) -> list[Outcome]:
        if write.id is None:
            return await self._queue.write(write)
        return await write_once(self, write, self._queue.write)

    async def scrub(self) -> None:
        """Make deleted data in the write-ahead log unreadable; raises StoreBusyError."""
        await self._run(self._file.scrub)

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
            return self._file.use(lambda connection: self._transact(connection, writes))
        except UnreadableStoreError as error:
            if len(writes) == 1:
                return [error]
        return [result for write in writes for result in self._commit([write])]

    def _transact(self, connection: Connection, writes: list[Write]) -> list[Result]:
        connection.raw.execute(BEGIN)
        loaded, needs = LoadedRows(), Needs.of(writes)
        moment = self._moment()
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

    def _load(self, connection: Connection, needs: Needs, loaded: LoadedRows) -> None:
        for name in needs.streams:
            rows = connection.run(self._sql.head, {"scope": name[0], "kind": name[1]}).fetchall()
            loaded.streams[name] = None
            for row in rows:
                loaded.streams[name], loaded.ids[name] = to_stream(row), row[0]
        for name, wanted in needs.keys.items():
            found: dict[str, RecordState | None] = loaded.records.setdefault(name, {})
            found |= dict.fromkeys(wanted)
            keys = list(wanted) if name in loaded.ids else []
            for start in range(0, len(keys), KEYS_AT_ONCE):
                chunk = keys[start : start + KEYS_AT_ONCE]
                values = {"stream_id": loaded.ids[name]} | {f"key_{n}": key for n, key in enumerate(chunk)}
                for row in connection.run(self._sql.find_states(len(chunk)), values):
                    found[row[0]] = to_record_state(row)
        for name in needs.whole:
            rows = connection.run(self._sql.record_states, {"stream_id": loaded.ids[name]}).fetchall()
            loaded.records[name] = {row[0]: to_record_state(row) for row in rows}
            loaded.whole.add(name)

    def _apply(self, connection: Connection, change: StreamChange, id: int) -> None:
        sql, run, many = self._sql, connection.run, connection.many
        if change.cleared:
            keys = {f"key_{n}": record.key for n, record in enumerate(change.spared)}
            run(sql.purge(len(keys)), {"stream_id": id, **keys})
            run(sql.remove_lost_labels, {"stream_id": id})
            run(sql.remove_lost_derived, {"stream_id": id})
        if change.dropped:
            run(sql.remove_head, {"id": id})
        if change.after is not None and (change.before is None or change.dropped):
            id = run(sql.add_head, stream_values(change.after, 0)).lastrowid or 0
        elif change.after is not None and change.after is not change.before:
            run(sql.set_head, stream_values(change.after, id))
        if change.removed:
            removed = [{"stream_id": id, "seq": record.seq} for record in change.removed]
            many(sql.remove, removed)
            many(sql.remove_derived, removed)
        lost = [*change.lost_labels.items(), *((record.seq, record.labels) for record in change.removed)]
        many(sql.remove_label, [row for seq, labels in lost for row in _labels(id, seq, labels)])
        many(sql.set, [to_row(record, id) for record in change.replaced])
        many(sql.add, [to_row(record, id) for record in change.added])
        put = (*change.replaced, *change.added)
        many(sql.add_label, [row for record in put for row in _labels(id, record.seq, record.labels)])
        for derived in change.derived:
            statement = sql.remove_one_derived if derived.value is None else sql.keep_derived
            run(statement, {"stream_id": id, **derived._asdict()})


def _labels(id: int, seq: int, labels: dict[str, str]) -> list[dict[str, Any]]:
    return [{"stream_id": id, "name": name, "value": value, "seq": seq} for name, value in labels.items()]
