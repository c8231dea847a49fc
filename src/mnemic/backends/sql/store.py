"""The store over SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ...checks import to_microseconds
from ...driving import mind_forks, off_loop
from ...records import Hit, Record, Ref, Scope, Stream, known_scope, now
from ...store.matching import Position, from_cursor, to_cursor
from ...store.planning import Head
from ...store.protocol import Capability, Page
from ...store.query import Outcome, Put, Scan, Search, StreamScan, Write
from .commit import GroupCommit
from .rows import to_record, to_row
from .sqlite import BEGIN, Connection, SqliteFile
from .statements import Reach, Statements, scan_values, shape_of
from .threads import Threads
from .writing import KEYS_AT_ONCE, SqlPlan, SqlTransaction

Result = TypeVar("Result")

STREAMS_AT_ONCE = 500
"""How many streams a scan looks at before it gives its page back, full or not."""


class SqlStore:
    """Keeps records in a database."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})

    def __init__(
        self,
        file: SqliteFile,
        statements: Statements,
        threads: Threads,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._file = file
        self._sql = statements
        self._threads = threads
        self._clock = clock
        self._commits = GroupCommit(self._transact)
        mind_forks(self)

    async def write(self, write: Write) -> list[Outcome]:
        rows = [to_row(op.record) if isinstance(op, Put) else None for op in write.ops]
        return await self._threads.commit(self._commits, lambda tx: SqlPlan(tx).write(write, rows))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        if not refs:
            return []
        asked: dict[tuple[Scope, str], dict[str, None]] = {}
        for ref in refs:
            asked.setdefault((ref.scope, ref.kind), {})[ref.key] = None

        def work(connection: Connection) -> dict[Ref, Record]:
            found: dict[Ref, Record] = {}
            for (scope, kind), keys in asked.items():
                for record in self._find(connection, scope, kind, list(keys)):
                    found[record.ref] = record
            return found

        found = await self._read(work)
        return [found.get(ref) for ref in refs]

    async def scan(self, scan: Scan) -> Page[Record]:
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        return await self._read(lambda connection: self._scan(connection, scan, start))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        return await self._read(lambda connection: self._streams(connection, scan, start))

    async def search(self, search: Search) -> list[Hit]:
        raise NotImplementedError("SQLite has no search of its own here; the index layer has")

    async def close(self) -> None:
        def work() -> None:
            self._threads.close()
            self._file.close()

        await off_loop(work)

    def before_fork(self) -> None:
        """Let go of the file: SQLite's locks do not survive a child that holds the same connections."""
        self._file.let_go()

    def after_fork(self) -> None:
        """Begin anew in a child, whose threads are gone and whose locks may be held by them."""
        self._threads = Threads()
        self._commits = GroupCommit(self._transact)

    def _transact(self, work: Callable[[SqlTransaction], None]) -> None:
        """Do `work` in a transaction, which is durable when this returns and undone if it raises."""

        def body(connection: Connection) -> None:
            connection.raw.execute(BEGIN)
            tx = SqlTransaction(connection, self._sql, self._moment())
            work(tx)
            tx.finish()
            connection.raw.execute("COMMIT")

        self._file.use(body)

    async def _read(self, work: Callable[[Connection], Result]) -> Result:
        return await self._threads.read(lambda: self._file.use(work))

    def _moment(self) -> int:
        return to_microseconds(self._clock())

    def _find(self, connection: Connection, scope: Scope, kind: str, keys: list[str]) -> Iterator[Record]:
        values: dict[str, Any] = {"scope": scope.path, "kind": kind, "now": self._moment()}
        for start in range(0, len(keys), KEYS_AT_ONCE):
            chunk = keys[start : start + KEYS_AT_ONCE]
            values |= {f"key_{n}": key for n, key in enumerate(chunk)}
            for row in connection.all(self._sql.find(len(chunk)), values):
                yield to_record(scope, kind, row)

    def _scan(self, connection: Connection, scan: Scan, start: Position | None) -> Page[Record]:
        """Read one stream by its name, or several by their ids, one after another."""
        values = scan_values(scan)
        values["now"] = self._moment()
        found: list[Record] = []
        more = False
        if len(scan.kinds) == 1 and not scan.below:
            values |= {"scope": scan.scope.path, "kind": scan.kinds[0], "skip": scan.skip}
            after = start[2] if start else None
            more = self._fill(connection, found, scan, values, scan.scope, scan.kinds[0], after, scan.limit)
        else:
            values["skip"] = 0
            wanted = scan.limit + scan.skip
            for head in self._reach(connection, scan, start):
                if head.ended(values["now"]):
                    continue
                values["stream_id"] = head.id
                after = start[2] if start and start[:2] == (head.scope, head.kind) else None
                room = wanted - len(found)
                if self._fill(
                    connection, found, scan, values, known_scope(head.scope), head.kind, after, room
                ):
                    more = True
                    break
            del found[: scan.skip]
        return Page(tuple(found), to_cursor(_position(found[-1])) if more and found else None)

    def _fill(
        self,
        connection: Connection,
        found: list[Record],
        scan: Scan,
        values: dict[str, Any],
        scope: Scope,
        kind: str,
        after: int | None,
        room: int,
    ) -> bool:
        """Add the next `room` records of one stream to `found`; tell whether there are more."""
        values["limit"] = room + 1
        values["at_seq"] = after
        shape = shape_of(scan, by_id="stream_id" in values, inside=after is not None)
        rows = connection.all(self._sql.scan(shape), values)
        found.extend([to_record(scope, kind, row, scan.derived) for row in rows[:room]])
        return len(rows) > room

    def _streams(self, connection: Connection, scan: StreamScan, start: Position | None) -> Page[Stream]:
        moment = self._moment()
        found: list[Stream] = []
        for head in self._reach(connection, scan, start):
            if start is not None and (head.scope, head.kind) == start[:2]:
                continue
            count, weight = head.count, head.weight
            if head.ended(moment):
                count = weight = 0
            elif head.soonest is not None and head.soonest <= moment:
                values = {"stream_id": head.id, "now": moment}
                gone = connection.one(self._sql.expired_totals, values)
                count, weight = count - gone[0], weight - gone[1]
            if not count and not scan.empty:
                continue
            if len(found) == scan.limit:
                last = found[-1] if found else None
                return Page(tuple(found), to_cursor((last.scope.path, last.kind, 0)) if last else None)
            found.append(head.stream(count, weight))
        return Page(tuple(found))

    def _reach(
        self, connection: Connection, scan: Scan | StreamScan, start: Position | None
    ) -> Iterator[Head]:
        """Yield the heads of the streams that are asked for, in order, from that of `start` on."""
        reverse = isinstance(scan, Scan) and scan.reverse
        path = scan.scope.path
        where: Reach = "here" if not scan.below else "below" if path else "everywhere"
        values: dict[str, Any] = {"scope": path, "first": f"{path}/", "beyond": f"{path}0"}
        values |= {f"kind_{n}": kind for n, kind in enumerate(scan.kinds)}
        at = start[:2] if start else None
        seen_at = None
        while True:
            if at is not None:
                values |= {"at_scope": at[0], "at_kind": at[1]}
            values["limit"] = STREAMS_AT_ONCE
            statement = self._sql.reach(where, len(scan.kinds), reverse, at is not None)
            rows = connection.all(statement, values)
            for row in rows:
                head = Head(row)
                if (head.scope, head.kind) != seen_at:
                    yield head
            if len(rows) < STREAMS_AT_ONCE:
                return
            at = seen_at = (head.scope, head.kind)


def _position(record: Record) -> Position:
    return (record.scope.path, record.kind, record.seq)
