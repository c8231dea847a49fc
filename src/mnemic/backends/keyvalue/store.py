"""A store over a key-value engine: reads, with filters applied here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime

from ...checks import to_microseconds
from ...errors import ClosedError
from ...event_loop import mind_forks
from ...records import Record, Ref, ScopePath, Stream, known_scope, now
from ...store.matching import Position, from_cursor, of_kinds, seen, to_cursor
from ...store.once import write_once
from ...store.planning import StreamName
from ...store.protocol import Capability, Page
from ...store.query import Condition, Outcome, Scan, StreamScan, Write
from ..calls import GRACE
from .engine import Engine, Reach, Span
from .journal import Journals
from .kept import KeptHead, Row
from .writing import Writer

ROWS_AT_ONCE = 1000
"""How many records are read at once if a filter may exclude most of them."""
STREAMS_AT_ONCE = 500
"""How many streams are listed at once."""


class KeyValueStore:
    """Stores records in an engine."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime] = now) -> None:
        self._engine = engine
        self.clock: Callable[[], datetime] = clock
        self._journals = Journals(engine, self._moment)
        self._writer = Writer(engine, self._journals, self._moment)
        self._closed = False
        mind_forks(self)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that the engine enables; its commits are conditional on revisions."""
        return self._engine.capabilities | {Capability.ATOMIC, Capability.RECORDS}

    async def write(self, write: Write) -> list[Outcome]:
        return await write_once(self, write, self._write)

    async def _write(self, write: Write) -> list[Outcome]:
        self._check_open()
        return await self._writer.write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        self._check_open()
        asked: dict[tuple[ScopePath, str], dict[str, None]] = {}
        for ref in refs:
            asked.setdefault((ref.scope, ref.kind), {})[ref.key] = None
        found: dict[Ref, Record] = {}
        for (scope, kind), keys in asked.items():
            moment = self._moment()
            head, rows = await self._engine.find((scope.path, kind), list(keys))
            if await self._journals.helped(head):
                head, rows = await self._engine.find((scope.path, kind), list(keys))
            if head is not None and head.ended(moment):
                continue
            for row in rows:
                if row.kept.expires is None or row.kept.expires > moment:
                    record = row.kept.record(scope, kind, {})
                    found[record.ref] = record
        return [found.get(ref) for ref in refs]

    async def scan(self, scan: Scan) -> Page[Record]:
        self._check_open()
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        found: list[Record] = []
        skip = scan.skip
        async for record in self._walk(scan, start):
            if skip:
                skip -= 1
            elif len(found) == scan.limit:
                return Page(tuple(found), to_cursor(_position(found[-1])) if found else None)
            else:
                found.append(record)
        return Page(tuple(found))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        self._check_open()
        start = from_cursor(scan.cursor)[:2] if scan.cursor is not None else None
        moment = self._moment()
        found: list[Stream] = []
        reach = Reach(scan.scope.path, scan.below, scan.kinds, False, start, min(scan.limit + 1, 1000))
        async for head in self._reach(reach):
            count, weight = head.count, head.weight
            if head.ended(moment):
                count = weight = 0
            elif head.soonest is not None and head.soonest <= moment:
                count, weight = await self._left(head.name, moment)
            if not count and not scan.empty:
                continue
            if len(found) == scan.limit:
                last = found[-1] if found else None
                return Page(tuple(found), to_cursor((last.scope.path, last.kind, 0)) if last else None)
            found.append(head.state().stream(count, weight))
        return Page(tuple(found))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.close(GRACE)
            await self._engine.close()  # which cancels running calls
            await self._writer.close()

    def before_fork(self) -> None:
        """Do nothing: connections stay with the parent."""

    def after_fork(self) -> None:
        """Reset in a child: running writes belong to the parent."""
        self._writer = Writer(self._engine, self._journals, self._moment)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._engine.url} is closed")

    def _moment(self) -> int:
        return to_microseconds(self.clock())

    async def _walk(self, scan: Scan, start: Position | None) -> AsyncGenerator[Record, None]:
        """Yield all records of a scan, in order, from a position on."""
        path = scan.scope.path
        if len(scan.kinds) == 1 and not scan.below:
            after = start[2] if start else None
            async for record in self._stream(scan, scan.scope, scan.kinds[0], after, None):
                yield record
            return
        if start is not None:
            async for record in self._stream(scan, known_scope(start[0]), start[1], start[2], None):
                yield record
        # No more streams than records per page, since most streams have a match.
        limit = min(scan.limit + 1, STREAMS_AT_ONCE)
        reach = Reach(path, scan.below, scan.kinds, scan.reverse, start[:2] if start else None, limit)
        async for head in self._reach(reach):
            if head.count:
                async for record in self._stream(scan, known_scope(head.scope), head.kind, None, head):
                    yield record

    async def _stream(
        self, scan: Scan, scope: ScopePath, kind: str, after: int | None, head: KeptHead | None
    ) -> AsyncGenerator[Record, None]:
        """Yield the records of a scan in one stream, whose head may be known already."""
        name = (scope.path, kind)
        now = self.clock()
        names = scan.derived if scan.lacking is None else (*scan.derived, scan.lacking)
        async for row in self._rows(scan, name, after, head, tuple(dict.fromkeys(names))):
            if scan.lacking is not None and row.values((scan.lacking,)):
                continue
            record = row.kept.record(scope, kind, row.values(scan.derived))
            if seen(record, scan, now):
                yield record if scan.bodies else row.kept.record(scope, kind, record.derived, bodies=False)

    async def _rows(
        self, scan: Scan, name: StreamName, after: int | None, head: KeptHead | None, derived: tuple[str, ...]
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows of a stream that a scan may return, in its order."""
        if scan.after_version:
            head = head or (await self._head(name))
            if head is None:
                return
            if head.edited <= scan.after_version:
                for row in await self._newest(name, scan, after, derived, head.revision):
                    yield row
                return
        revision = None if head is None else head.revision
        label = next((test for test in scan.where if _indexed(test)), None)
        if label is not None:
            values = label.value if isinstance(label.value, tuple) else (label.value,)
            texts = [str(value) for value in values]
            seqs = await self._engine.labeled(name, label.field.partition(".")[2], texts)
            if seqs is not None:
                async for row in self._at(name, scan, after, seqs, derived, revision):
                    yield row
                return
        filtered = bool(scan.where or scan.after_version or scan.as_of or scan.lacking or scan.skip)
        limit = ROWS_AT_ONCE if filtered else min(scan.limit + 1, ROWS_AT_ONCE)
        while True:
            rows = await self._span(name, Span(scan.reverse, after, limit, None, derived, revision))
            for row in rows:
                yield row
            if len(rows) < limit:
                return
            after, limit = rows[-1].kept.seq, ROWS_AT_ONCE

    async def _newest(
        self, name: StreamName, scan: Scan, after: int | None, derived: tuple[str, ...], revision: int
    ) -> list[Row]:
        """Return records newer than the version of a scan, if only appends happened since."""
        assert scan.after_version is not None
        found: list[Row] = []
        before: int | None = None
        limit = 64
        while True:
            rows = await self._span(name, Span(True, before, limit, None, derived, revision))
            fresh = [row for row in rows if row.kept.version > scan.after_version]
            found += fresh
            if len(fresh) < len(rows) or len(rows) < limit:
                break
            before, limit = rows[-1].kept.seq, ROWS_AT_ONCE
        if not scan.reverse:
            found.reverse()
        return [row for row in found if _beyond(row.kept.seq, after, scan.reverse)]

    async def _at(
        self,
        name: StreamName,
        scan: Scan,
        after: int | None,
        seqs: list[int],
        derived: tuple[str, ...],
        revision: int | None,
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows of some seqs, in the order of a scan."""
        wanted = [seq for seq in sorted(set(seqs), reverse=scan.reverse) if _beyond(seq, after, scan.reverse)]
        for start in range(0, len(wanted), ROWS_AT_ONCE):
            some = tuple(wanted[start : start + ROWS_AT_ONCE])
            for row in await self._span(name, Span(scan.reverse, None, len(some), some, derived, revision)):
                yield row

    async def _span(self, name: StreamName, span: Span) -> list[Row]:
        """Read rows, including those of an interrupted write; none of an expired stream."""
        head, rows = await self._engine.rows(name, span)
        if await self._journals.helped(head):
            head, rows = await self._engine.rows(name, span)
        return [] if head is not None and head.ended(self._moment()) else rows

    async def _head(self, name: StreamName) -> KeptHead | None:
        (head,) = await self._journals.heads([name])
        return head

    async def _left(self, name: StreamName, moment: int) -> tuple[int, int]:
        """Count the unexpired records of a stream."""
        count = weight = 0
        after: int | None = None
        while True:
            rows = await self._span(name, Span(after=after, limit=ROWS_AT_ONCE))
            live = [r.kept for r in rows if r.kept.expires is None or r.kept.expires > moment]
            count += len(live)
            weight += sum(kept.weight for kept in live)
            if len(rows) < ROWS_AT_ONCE:
                return count, weight
            after = rows[-1].kept.seq

    async def _reach(self, reach: Reach) -> AsyncGenerator[KeptHead, None]:
        """Yield the heads in a range, in order."""
        while True:
            heads = await self._engine.heads(reach)
            for head in heads:
                fresh = await self._head(head.name) if await self._journals.helped(head) else head
                if fresh is not None and not fresh.blank and of_kinds(fresh.kind, reach.kinds):
                    yield fresh
            if len(heads) < reach.limit:
                return
            reach = Reach(reach.scope, reach.below, reach.kinds, reach.reverse, heads[-1].name, STREAMS_AT_ONCE)


def _position(record: Record) -> Position:
    return (record.scope.path, record.kind, record.seq)


def _beyond(seq: int, after: int | None, reverse: bool) -> bool:
    return after is None or (seq < after if reverse else seq > after)


def _indexed(test: Condition) -> bool:
    """Return whether a label index can answer a condition."""
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    return (
        test.field.startswith("labels.")
        and test.op in ("eq", "in")
        and bool(values)
        and all(isinstance(value, str) for value in values)
    )
