"""A store over a key-value engine: reads, with filters applied here, and optimistic writes.

A write is planned with loaded or cached states of streams, and committed only if they are still current; otherwise it
is planned again. A plain append to a known stream is therefore one round trip.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from ...checks import to_microseconds
from ...errors import ClosedError, ConflictError, StoreBusyError, UnreadableStoreError
from ...event_loop import ForkAware, notify_on_fork
from ...records import Record, Ref, ScopePath, Stream, StreamName, now
from ...store.matching import Position, from_cursor, in_reach, is_included, of_kinds, page_of
from ...store.planning import Plan, needs_of, plan_writes
from ...store.protocol import Capability, Destroying, Page, Scrubbed, Scrubbing
from ...store.query import Condition, Expect, Outcome, Put, Scan, StreamScan, Write
from ...store.retry import once_ref, retry_conflicts, write_once
from ...store.stream_state import Loaded, Needs, NeedsMoreError, StreamChange, StreamState
from ..calls import GRACE
from ..write_queue import WriteQueue, scope_of
from .engine import Engine, RecordRange, StreamRange

MOST_CACHED = 10_000
"""Maximum number of cached states of streams."""
MOST_RECORDS = 1000
"""How many records are read at once if a filter may exclude most of them."""
MOST_STREAMS = 500
"""How many streams are listed at once."""


class KeyValueStore(ForkAware):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock: Callable[[], datetime] = now
        self._queue = self._new_queue()
        self._closed = False
        notify_on_fork(self)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that the engine enables; its commits are conditional on revisions."""
        return self._engine.capabilities | {Capability.ATOMIC, Capability.RECORDS}

    async def write(self, write: Write) -> list[Outcome]:
        self._check_open()
        return await write_once(self, write, self._queue.write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        self._check_open()
        wanted: dict[StreamName, dict[str, None]] = {}
        for ref in refs:
            wanted.setdefault((ref.scope.path, ref.kind), {})[ref.key] = None
        found: dict[Ref, Record] = {}
        for name, keys in wanted.items():
            now = self.clock()
            state, records = await self._engine.find(name, list(keys))
            if state is None or not state.ended(to_microseconds(now)):
                found |= {record.ref: record for record in records if _lives(record, now)}
        return [found.get(ref) for ref in refs]

    async def scan(self, scan: Scan) -> Page[Record]:
        self._check_open()
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        found: list[Record] = []
        skip = scan.skip
        try:
            async for record in self._matches(scan, start):
                if skip:
                    skip -= 1
                elif len(found) == scan.limit:
                    return page_of(found, more=True)
                else:
                    found.append(record)
        except UnreadableStoreError:
            if len(found) < scan.limit or not found:
                raise
            return page_of(found, more=True)  # the damaged record comes after this page
        return Page(tuple(found))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        self._check_open()
        start = from_cursor(scan.cursor)[:2] if scan.cursor is not None else None
        now = self.clock()
        found: list[Stream] = []
        reach = StreamRange(scan.scope.path, scan.below, scan.kinds, False, start, min(scan.limit + 1, 1000))
        try:
            async for state in self._states(reach):
                count, weight = await self._totals(state, now)
                if not count and not scan.empty:
                    continue
                if len(found) == scan.limit:
                    return page_of(found, more=True)
                found.append(state.stream(count, weight))
        except UnreadableStoreError:
            if len(found) < scan.limit or not found:
                raise
            return page_of(found, more=True)  # the damaged state comes after this page
        return Page(tuple(found))

    async def _totals(self, state: StreamState, now: datetime) -> tuple[int, int]:
        """Return the count and weight of the records of a stream that have not expired."""
        moment = to_microseconds(now)
        if state.ended(moment):
            return 0, 0
        if state.soonest is None or state.soonest > moment:
            return state.count, state.weight
        count = weight = 0
        async for record in self._pages(state.name, RecordRange()):
            if _lives(record, now):
                count, weight = count + 1, weight + record.weight
        return count, weight

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        self._check_open()
        return await self._engine.scrub(finish=finish) if isinstance(self._engine, Scrubbing) else Scrubbed()

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        self._check_open()
        return await self._engine.destroy(scope) if isinstance(self._engine, Destroying) else Scrubbed()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._queue.close(GRACE)
            await self._engine.close()  # which cancels running calls
            await self._queue.close()

    def after_fork(self) -> None:
        """Reset in a child: running writes belong to the parent."""
        self._queue = self._new_queue()

    def _new_queue(self) -> WriteQueue:
        engine = self._engine
        return WriteQueue(Committer(engine, self._moment).commit, lambda write: engine.commit_group(scope_of(write)))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._engine.url} is closed")

    def _moment(self) -> int:
        return to_microseconds(self.clock())

    async def _matches(self, scan: Scan, start: Position | None) -> AsyncGenerator[Record, None]:
        """Yield all records of a scan, in order, from a position on."""
        path = scan.scope.path
        if len(scan.kinds) == 1 and not scan.below and (start is None or start[:2] == (path, scan.kinds[0])):
            async for record in self._in_stream(scan, (path, scan.kinds[0]), start[2] if start else None):
                yield record
            return
        # A cursor can name any stream, also one that this scan must not read.
        if start is not None and in_reach(ScopePath(start[0]), start[1], scan.scope, scan.kinds, scan.below):
            async for record in self._in_stream(scan, start[:2], start[2]):
                yield record
        # No more streams than records per page, since most streams have a match.
        limit = min(scan.limit + 1, MOST_STREAMS)
        reach = StreamRange(path, scan.below, scan.kinds, scan.reverse, start[:2] if start else None, limit)
        async for state in self._states(reach):
            if state.count:
                async for record in self._in_stream(scan, state.name, None, state):
                    yield record

    async def _in_stream(
        self, scan: Scan, name: StreamName, after: int | None, state: StreamState | None = None
    ) -> AsyncGenerator[Record, None]:
        """Yield the records of a scan in one stream, whose state may be known already."""
        now = self.clock()
        async for record in self._candidates(scan, name, after, state):
            if scan.lacking not in record.derived and is_included(record, scan, now):
                yield record if scan.bodies else replace(record, text=None, data=None)

    async def _candidates(
        self, scan: Scan, name: StreamName, after: int | None, state: StreamState | None
    ) -> AsyncGenerator[Record, None]:
        """Yield the records of a stream that a scan may return, in its order."""
        if scan.after_version and state is None:
            state = (await self._engine.load(Needs({name}))).streams[name]
            if state is None:
                return
        derived = (*scan.derived, *(() if scan.lacking is None else (scan.lacking,)))
        filtered = bool(scan.where or scan.after_version or scan.as_of or scan.lacking)
        span = RecordRange(
            scan.reverse,
            after,
            MOST_RECORDS if filtered else min(scan.skip + scan.limit + 1, MOST_RECORDS),
            derived=tuple(dict.fromkeys(derived)),
            revision=None if state is None else state.revision,
        )
        if scan.after_version and state is not None and state.edited <= scan.after_version:
            for record in await self._newest(name, scan.after_version, span):
                yield record
            return
        label = next((test for test in scan.where if _indexed(test)), None)
        if label is not None:
            values = label.value if isinstance(label.value, tuple) else (label.value,)
            texts = [str(value) for value in values]
            seqs = await self._engine.labeled(name, label.field.partition(".")[2], texts)
            if seqs is not None:
                wanted = [seq for seq in sorted(set(seqs), reverse=scan.reverse) if span.includes(seq)]
                for start in range(0, len(wanted), MOST_RECORDS):
                    some = tuple(wanted[start : start + MOST_RECORDS])
                    for record in await self._read(name, replace(span, seqs=some, limit=len(some))):
                        yield record
                return
        async for record in self._pages(name, span):
            yield record

    async def _newest(self, name: StreamName, version: int, span: RecordRange) -> list[Record]:
        """Return the records of a range that are newer than a version, if only appends happened since."""
        found: list[Record] = []
        async for record in self._pages(name, replace(span, reverse=True, after=None, limit=64)):
            if record.version <= version:
                break
            found.append(record)
        if not span.reverse:
            found.reverse()
        return [record for record in found if span.includes(record.seq)]

    async def _pages(self, name: StreamName, span: RecordRange) -> AsyncGenerator[Record, None]:
        """Yield the records of a range and all after them."""
        while True:
            try:
                records = await self._read(name, span)
            except UnreadableStoreError:
                if span.limit == 1:
                    raise
                span = replace(span, limit=span.limit // 2)  # those before the damaged one can be read
                continue
            for record in records:
                yield record
            if len(records) < span.limit:
                return
            span = replace(span, after=records[-1].seq, limit=MOST_RECORDS)

    async def _read(self, name: StreamName, span: RecordRange) -> list[Record]:
        """Read records; none of an expired stream."""
        state, records = await self._engine.rows(name, span)
        return [] if state is not None and state.ended(self._moment()) else records

    async def _states(self, reach: StreamRange) -> AsyncGenerator[StreamState, None]:
        while True:
            try:
                states = await self._engine.streams(reach)
            except UnreadableStoreError:
                if reach.limit == 1:
                    raise
                reach = replace(reach, limit=reach.limit // 2)  # those before the damaged one can be read
                continue
            for state in states:
                if of_kinds(state.kind, reach.kinds):
                    yield state
            if len(states) < reach.limit:
                return
            reach = replace(reach, after=states[-1].name, limit=MOST_STREAMS)


def _lives(record: Record, now: datetime) -> bool:
    return record.expires is None or record.expires > now


def _indexed(test: Condition) -> bool:
    """Return whether a label index can answer a condition."""
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    return (
        test.field.startswith("labels.")
        and test.op in ("eq", "in")
        and bool(values)
        and all(isinstance(value, str) for value in values)
    )


class Committer:
    """Plans and commits writes; caches the states of streams."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._cache: OrderedDict[StreamName, StreamState] = OrderedDict()

    async def commit(self, writes: Sequence[Write]) -> list[list[Outcome] | Exception]:
        """Commit writes together; return for each its outcomes, or the error that rejects it.

        Raises StoreBusyError if other writers were faster each time.
        """
        use_cache = True

        async def attempt() -> list[list[Outcome] | Exception]:
            nonlocal use_cache
            loaded = self._cached(writes) if use_cache else Loaded()
            cached, use_cache = bool(loaded.streams), False
            moment = self._clock()
            plan = await self._plan(loaded, writes, moment)
            if cached and any(isinstance(result, Exception) for result in plan.results):
                # It may have failed because of a wrong assumption, so it is checked again with loaded state.
                return await attempt()
            if plan.changes and not await self._engine.commit(plan.changes, moment):
                self._forget(plan.changes)
                raise ConflictError("another writer was faster")
            self._remember(plan.changes)
            return plan.results

        try:
            return await retry_conflicts(attempt, self._engine.url)
        except ConflictError as error:
            raise StoreBusyError(str(error)) from error

    async def _plan(self, loaded: Loaded, writes: Sequence[Write], moment: int) -> Plan:
        """Plan writes, and load what they need."""
        needs = needs_of(writes)
        while True:
            if missing := _missing(loaded, needs):
                _add(loaded, await self._engine.load(missing))
            try:
                plan = plan_writes(loaded, writes, moment)
            except NeedsMoreError as error:
                needs = error.needs
                continue
            cleared = {change.name for change in plan.changes if change.cleared}
            if cleared <= loaded.whole:
                for change in plan.changes:
                    change.expand(loaded.records.get(change.name, {}).values())
                return plan
            needs = Needs(whole=cleared)

    def _cached(self, writes: Sequence[Write]) -> Loaded:
        """Return cached states, with the assumption that records marked as new do not exist."""
        loaded = Loaded()
        for write in writes:
            new = [op.record.ref for op in write.ops if isinstance(op, Put) and op.if_version == 0]
            if (once := once_ref(write)) is not None:
                new.append(once)
            for op in write.ops:
                if isinstance(op, Expect) and op.key is None and (op.scope.path, op.kind) in self._cache:
                    loaded.streams[op.scope.path, op.kind] = self._cache[op.scope.path, op.kind]
            for ref in new:
                name = (ref.scope.path, ref.kind)
                if (state := self._cache.get(name)) is not None:
                    loaded.streams[name] = state
                    loaded.records.setdefault(name, {})[ref.key] = None
                    loaded.assumed.setdefault(name, set()).add(ref.key)
        return loaded

    def _remember(self, changes: Sequence[StreamChange]) -> None:
        for change in changes:
            self._cache.pop(change.name, None)
            if change.after is not None:
                self._cache[change.name] = change.after
        while len(self._cache) > MOST_CACHED:
            self._cache.popitem(last=False)

    def _forget(self, changes: Sequence[StreamChange]) -> None:
        for change in changes:
            self._cache.pop(change.name, None)


def _missing(loaded: Loaded, needs: Needs) -> Needs:
    """Return which of these needs are not loaded yet."""
    keys = {
        name: missing
        for name, wanted in needs.keys.items()
        if name not in loaded.whole and (missing := wanted - loaded.records.get(name, {}).keys())
    }
    # Records are compared by the state that was read before them, or with them.
    streams = {name for name in (*needs.streams, *keys, *needs.whole) if name not in loaded.streams}
    return Needs(streams, keys, needs.whole - loaded.whole)


def _add(loaded: Loaded, more: Loaded) -> None:
    """Add loaded states; an earlier state of a stream stays, since it is the one to compare with."""
    more.streams = {name: state for name, state in more.streams.items() if name not in loaded.streams}
    # A missing or empty stream has no records to load.
    more.whole |= {name for name, state in more.streams.items() if state is None or not state.count}
    for name, records in more.records.items():
        loaded.assumed.get(name, set()).difference_update(records)
    loaded.take(more)
