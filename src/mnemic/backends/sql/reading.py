"""Reads of SQL stores, written once: `async`, over connections that block or do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ...checks import to_microseconds
from ...records import Record, Ref, ScopePath, Stream, known_scope, now
from ...store.codec import from_columns, from_rows
from ...store.matching import Position, from_cursor, page_of
from ...store.protocol import Capability, Page
from ...store.query import Scan, StreamScan
from .schema import StreamRow, to_stream
from .statements import Parameters, Prepared, Reach, Statements, scan_values, shape_of

Result = TypeVar("Result")

KEYS_AT_ONCE = 200
"""How many keys one statement looks up."""
STREAMS_AT_ONCE = 500
"""How many streams one statement lists."""


class ReadConnection(Protocol):
    """Connection interface for reads."""

    ahead: bool
    """Whether batching queries saves time, even if not all results are needed."""

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]: ...

    async def each(self, queries: Sequence[tuple[Prepared, Parameters]]) -> list[list[Any]]: ...


Work = Callable[[ReadConnection], Coroutine[Any, Any, Result]]


class SqlReads(ABC):
    capabilities: frozenset[Capability] = frozenset(
        {Capability.DURABLE, Capability.SHARED, Capability.ATOMIC, Capability.RECORDS}
    )

    def __init__(self, statements: Statements) -> None:
        self._sql = statements
        self.clock: Callable[[], datetime] = now

    @abstractmethod
    async def _read(self, work: Work[Result]) -> Result:
        """Run `work` with a borrowed connection."""

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        if not refs:
            return []
        wanted_keys: dict[tuple[ScopePath, str], dict[str, None]] = {}
        for ref in refs:
            wanted_keys.setdefault((ref.scope, ref.kind), {})[ref.key] = None
        found = await self._read(lambda connection: self._find(connection, wanted_keys))
        return [found.get(ref) for ref in refs]

    async def scan(self, scan: Scan) -> Page[Record]:
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        return await self._read(lambda connection: self._scan(connection, scan, start))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        return await self._read(lambda connection: self._streams(connection, scan, start))

    def _moment(self) -> int:
        return to_microseconds(self.clock())

    async def _find(
        self, connection: ReadConnection, wanted_keys: dict[tuple[ScopePath, str], dict[str, None]]
    ) -> dict[Ref, Record]:
        values: dict[str, Any] = {"now": self._moment()}
        found: dict[Ref, Record] = {}
        for (scope, kind), wanted in wanted_keys.items():
            values["scope"], values["kind"] = scope.path, kind
            keys = list(wanted)
            for start in range(0, len(keys), KEYS_AT_ONCE):
                chunk = keys[start : start + KEYS_AT_ONCE]
                values |= {f"key_{n}": key for n, key in enumerate(chunk)}
                for row in await connection.all(self._sql.find(len(chunk)), values):
                    record = from_columns(scope, kind, row)
                    found[record.ref] = record
        return found

    async def _scan(self, connection: ReadConnection, scan: Scan, start: Position | None) -> Page[Record]:
        """Read one stream by its name, or several by their ids, in order."""
        values = scan_values(scan, self._sql.flavor)
        values["now"] = self._moment()
        kind = scan.kinds[0] if len(scan.kinds) == 1 and not scan.below else None
        if kind is None or (start is not None and start[:2] != (scan.scope.path, kind)):
            return await self._scan_many(connection, scan, start, values)
        values["scope"], values["kind"], values["skip"] = scan.scope.path, kind, scan.skip
        values["limit"] = scan.limit + 1
        values["at_seq"] = start[2] if start else None
        shape = shape_of(scan, by_id=False, inside=start is not None)
        rows = await connection.all(self._sql.scan(shape), values)
        found = from_rows(scan.scope, kind, rows[: scan.limit], scan.derived)
        return page_of(found, more=len(rows) > scan.limit)

    async def _scan_many(
        self, connection: ReadConnection, scan: Scan, start: Position | None, values: dict[str, Any]
    ) -> Page[Record]:
        """Read streams in order until the page is full."""
        found: list[Record] = []
        wanted = scan.limit + scan.skip
        at, past, more = start[:2] if start else None, False, False
        ahead = 1
        while not more:
            streams, at_end = await self._reach(connection, scan, at, past)
            waiting = [stream for stream in streams if not stream.ended(values["now"])]
            place = 0
            while place < len(waiting) and not more:
                room = wanted - len(found)
                chunk = waiting[place : place + 1]
                if connection.ahead:
                    chunk = _reaching(waiting[place:], ahead * room)
                    ahead = min(2 * ahead, STREAMS_AT_ONCE)
                place += len(chunk)
                queries = [self._part(scan, stream, start, room, values) for stream in chunk]
                answers = await connection.each(queries)
                for stream, rows in zip(chunk, answers, strict=True):
                    room = wanted - len(found)
                    scope, kind = known_scope(stream.scope), stream.kind
                    found.extend(from_rows(scope, kind, rows[:room], scan.derived))
                    if more := len(rows) > room:
                        break
            if at_end:
                break
            at, past = (streams[-1].scope, streams[-1].kind), True
        del found[: scan.skip]
        return page_of(found, more=more)

    def _part(
        self, scan: Scan, stream: StreamRow, start: Position | None, room: int, values: dict[str, Any]
    ) -> tuple[Prepared, Parameters]:
        """Return the query for the next `room` records of one stream, and one more."""
        after = start[2] if start and start[:2] == (stream.scope, stream.kind) else None
        shape = shape_of(scan, by_id=True, inside=after is not None)
        values = values.copy()
        values["stream_id"], values["skip"], values["limit"], values["at_seq"] = stream.id, 0, room + 1, after
        return self._sql.scan(shape), values

    async def _streams(self, connection: ReadConnection, scan: StreamScan, start: Position | None) -> Page[Stream]:
        moment = self._moment()
        found: list[Stream] = []
        at, past = start[:2] if start else None, start is not None
        while True:
            streams, at_end = await self._reach(connection, scan, at, past)
            for stream, count, weight in await self._totals(connection, streams, moment):
                if not count and not scan.empty:
                    continue
                if len(found) == scan.limit:
                    return page_of(found, more=True)
                found.append(stream.stream(count, weight))
            if at_end:
                return Page(tuple(found))
            at, past = (streams[-1].scope, streams[-1].kind), True

    async def _totals(
        self, connection: ReadConnection, streams: list[StreamRow], moment: int
    ) -> list[tuple[StreamRow, int, int]]:
        """Return streams with their unexpired totals."""
        late = {
            stream.id
            for stream in streams
            if stream.soonest is not None and stream.soonest <= moment and not stream.ended(moment)
        }
        queries = [(self._sql.expired_totals, {"stream_id": id, "now": moment}) for id in late]
        gone = dict(zip(late, await connection.each(queries), strict=True)) if queries else {}
        totals = []
        for stream in streams:
            count, weight = (0, 0) if stream.ended(moment) else (stream.count, stream.weight)
            if stream.id in gone:
                lost_count, lost_weight, _ = gone[stream.id][0]
                count, weight = count - lost_count, weight - lost_weight
            totals.append((stream, count, weight))
        return totals

    async def _reach(
        self, connection: ReadConnection, scan: Scan | StreamScan, at: tuple[str, str] | None, past: bool
    ) -> tuple[list[StreamRow], bool]:
        """Return the next streams in a range, in order, and whether these are the last.

        They start with `at`, or after it if `past` is true.
        """
        reverse = isinstance(scan, Scan) and scan.reverse
        path = scan.scope.path
        where: Reach = "here" if not scan.below else "below" if path else "everywhere"
        first, beyond = f"{path}/", f"{path}0"
        values: dict[str, Any] = {f"kind_{n}": kind for n, kind in enumerate(scan.kinds)}
        if at is not None:
            values["at_scope"], values["at_kind"] = at
            # So that the index is entered at the position, within the range even if the position is not.
            if reverse:
                beyond = min(beyond, f"{at[0]}\x01")
            else:
                first = max(first, at[0])
        values |= {"scope": path, "first": first, "beyond": beyond}
        values["limit"] = STREAMS_AT_ONCE
        statement = self._sql.reach(where, len(scan.kinds), reverse, at is not None)
        rows = await connection.all(statement, values)
        streams = [to_stream(row) for row in rows]
        if past and streams and (streams[0].scope, streams[0].kind) == at:
            del streams[0]
        return streams, len(rows) < STREAMS_AT_ONCE


def _reaching(streams: list[StreamRow], records: int) -> list[StreamRow]:
    """Return the first streams that together have more than this many records, at least one."""
    total = 0
    for n, stream in enumerate(streams, 1):
        total += stream.count
        if total > records:
            return streams[:n]
    return streams
