"""Stores conversations and memories in an AgentCore memory.

The service has no conditional writes, and writes one event at a time. So a write is one event, if it fits, and version
checks hold within a process only: the state of a scope is cached, each call first reads the events that other
processes have added, and a lock per scope orders the writes of this process.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from msgspec.structs import replace

from ...checks import copy_json, to_microseconds
from ...errors import ClosedError, InvalidValueError, StoreError
from ...event_loop import notify_on_fork
from ...records import Record, Ref, Stream, now
from ...store.matching import from_cursor, of_kinds, seen, to_cursor
from ...store.planning import needs_of, plan_writes
from ...store.protocol import Capability, Page
from ...store.query import CountUse, Derive, Expect, Op, Outcome, Put, Scan, StreamScan, Touch, Write, place_of
from ...store.retry import write_once
from ...store.stream_state import Loaded, NeedsMoreError, StreamChange
from .client import AT_ONCE, PAGE, MemoryClient, gathered
from .codec import Event, Place, StoredEvent, decode_event, decode_memory, encode_event, encode_memory
from .scope_state import EVENT_KINDS, RECORD_KINDS, Row, ScopeState, expired, state_of

APPEND_AGE = 1.0
"""For how many seconds new records are added without looking for events of other processes."""
BELOW_AGE = 5.0
"""How many seconds old the cached state of a scope may be when all scopes below one are read."""
MOST_CACHED = 1000
"""Maximum number of cached scopes."""
FEW = 20
"""How many of the newest events are read first."""
OTHERS = "SQLite, PostgreSQL, Redis, DynamoDB and S3"
"""Back-ends that store everything."""


class AgentCoreStore:
    """Stores records in an AgentCore memory."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})

    def __init__(self, client: MemoryClient, clock: Callable[[], datetime] = now) -> None:
        self.client = client
        self.clock: Callable[[], datetime] = clock
        self._closed = False
        self.after_fork()
        notify_on_fork(self)

    def before_fork(self) -> None:
        """Do nothing: cached scopes can be duplicated."""

    def after_fork(self) -> None:
        """Reset in a child: locks belong to the parent's event loop."""
        self._scopes: OrderedDict[str, ScopeState] = OrderedDict()
        self._known: dict[Place, str] = {}
        self._listed: dict[str, tuple[float, list[str]]] = {}

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                with suppress(StoreError):
                    await gathered(self._delete_obsolete, list(self._scopes.values()))
            finally:
                await self.client.close()

    # reading

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        self._check_open()
        moment = self._moment()
        found: dict[Ref, Record] = {}

        async def read_scope(path: str) -> None:
            wanted = [ref for ref in refs if ref.scope.path == path]
            async with self._scope(path, {ref.kind for ref in wanted}) as scope:
                for ref in wanted:
                    row, state = scope.rows.get(ref.kind, {}).get(ref.key), scope.streams.get(ref.kind)
                    if row is not None and state is not None and not state.ended(moment):
                        found[ref] = row.record

        await gathered(read_scope, list(dict.fromkeys(ref.scope.path for ref in refs)))
        return [_copied(found[ref]) if ref in found and not expired(found[ref], moment) else None for ref in refs]

    async def scan(self, scan: Scan) -> Page[Record]:
        self._check_open()
        if (newest := await self._newest(scan)) is not None:
            return newest
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        moment = self.clock()
        found: list[Record] = []
        skip = scan.skip
        first = start[0] if start is not None else None
        scopes = self._states(scan.scope.path, scan.kinds, below=scan.below, start=first, reverse=scan.reverse)
        async for scope in scopes:
            for kind in sorted(scope.streams, reverse=scan.reverse):
                if not of_kinds(kind, scan.kinds):
                    continue
                records = scope.live(kind, to_microseconds(moment))
                for record in reversed(records) if scan.reverse else records:
                    at = (scope.path, kind, record.seq)
                    if start is not None and (at >= start if scan.reverse else at <= start):
                        continue
                    if not seen(record, scan, moment):
                        continue
                    if skip:
                        skip -= 1
                    elif len(found) == scan.limit:
                        return Page(tuple(found), _cursor(found))
                    else:
                        found.append(_copied(record, bodies=scan.bodies))
        return Page(tuple(found))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        self._check_open()
        start = from_cursor(scan.cursor)[:2] if scan.cursor is not None else None
        moment = self._moment()
        found: list[Stream] = []
        first = start[0] if start is not None else None
        async for scope in self._states(scan.scope.path, scan.kinds, below=scan.below, start=first):
            for kind, state in sorted(scope.streams.items()):
                if not of_kinds(kind, scan.kinds) or (start is not None and (scope.path, kind) <= start):
                    continue
                live = scope.live(kind, moment)
                if not live and not scan.empty:
                    continue
                if len(found) == scan.limit:
                    last = found[-1] if found else None
                    return Page(tuple(found), to_cursor((last.scope.path, last.kind, 0)) if last else None)
                found.append(state.stream(len(live), sum(record.weight for record in live)))
        return Page(tuple(found))

    async def _newest(self, scan: Scan) -> Page[Record] | None:
        """Return the newest records of a stream that is not cached, without reading all of its events.

        None if that is not enough for the scan.
        """
        wanted = scan.skip + scan.limit
        short = scan.reverse and scan.limit and wanted < PAGE and not scan.below and scan.cursor is None
        if not short or len(scan.kinds) != 1 or scan.kinds[0] not in EVENT_KINDS or scan.scope.path in self._scopes:
            return None
        moment, kind = self.clock(), scan.kinds[0]
        scope, events, floor = ScopeState(scan.scope.path), list[StoredEvent](), 2**63
        async for page in self.client.events(scope.place, min(wanted + FEW, PAGE)):
            read = [stored for item in page if (stored := decode_event(item, self.client.url)) is not None]
            events += read
            scope.replay(events)
            # What is not read yet is older than these events, so its records are not after their last seq.
            certain = [stored for stored in read if stored.time > read[-1].time]
            last_seqs = [state.last_seq for stored in certain for state in stored.event.streams if state.kind == kind]
            floor = min([floor, *last_seqs])
            live = reversed(scope.live(kind, to_microseconds(moment)))
            found = [record for record in live if record.seq > floor and seen(record, scan, moment)]
            if len(found) > wanted:
                taken = [_copied(record, bodies=scan.bodies) for record in found[scan.skip : wanted]]
                return Page(tuple(taken), _cursor(taken))
        return None

    # the state of scopes

    @asynccontextmanager
    async def _scope(self, path: str, kinds: Iterable[str], age: float = 0.0) -> AsyncIterator[ScopeState]:
        """Provide the state of a scope, refreshed for these kinds (or all), and locked."""
        if path not in self._scopes:
            self._scopes[path] = ScopeState(path)
            while len(self._scopes) > MOST_CACHED and not next(iter(self._scopes.values())).lock.locked():
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(path)
        scope, asked = self._scopes[path], time.monotonic()
        async with scope.lock:
            if _any_of(kinds, EVENT_KINDS) and scope.refreshed <= asked - age:
                await self._refresh(scope)
            if _any_of(kinds, RECORD_KINDS):
                scope.take_memories([one for one in await self._memories(path) if one[1].scope.path == path])
            yield scope

    async def _states(
        self, path: str, kinds: tuple[str, ...], *, below: bool, start: str | None, reverse: bool = False
    ) -> AsyncGenerator[ScopeState, None]:
        """Yield the states of a scope and, with `below`, of those below it, ordered by path, from `start` on."""
        if not below:
            async with self._scope(path, kinds) as scope:
                yield scope
            return
        memories: dict[str, list[tuple[str, Record]]] = {}
        if _any_of(kinds, RECORD_KINDS):
            memories = {scope.path: [] for scope in self._scopes.values() if scope.recent and _below(scope.path, path)}
            for id, record in await self._memories(path):
                memories.setdefault(record.scope.path, []).append((id, record))
        paths = {*memories, *(await self._paths(path, again=start is not None) if _any_of(kinds, EVENT_KINDS) else ())}
        ordered = sorted(paths, reverse=reverse)
        if start is not None:
            ordered = [name for name in ordered if (name <= start if reverse else name >= start)]

        async def load(name: str) -> ScopeState:
            needed = EVENT_KINDS if _any_of(kinds, EVENT_KINDS) else ("",)
            async with self._scope(name, needed, BELOW_AGE) as scope:
                if _any_of(kinds, RECORD_KINDS):
                    scope.take_memories(memories.get(name, ()))
                return scope

        for at in range(0, len(ordered), AT_ONCE):
            for scope in await gathered(load, ordered[at : at + AT_ONCE]):
                yield scope

    async def _paths(self, path: str, *, again: bool) -> list[str]:
        """Return the scopes with events, at and below one; `again` for a further page of a list."""
        listed, found = self._listed.get(path, (0.0, []))
        if again and time.monotonic() - listed < BELOW_AGE:
            return found

        async def path_of(place: Place) -> str | None:
            if place not in self._known:
                async for page in self.client.events(place, 1):
                    for item in page:
                        if (stored := decode_event(item, self.client.url)) is not None:
                            self._known[place] = stored.event.scope
                    break
            return self._known.get(place)

        listed = time.monotonic()
        places = [place for place in await self.client.places() if place.may_be_below(path)]
        found = [name for name in await gathered(path_of, places) if name is not None and _below(name, path)]
        self._listed = {path: (listed, found)}
        return found

    async def _refresh(self, scope: ScopeState) -> None:
        """Read the events since the last refresh or, if one of them replaces an unknown event, all."""
        begun = time.monotonic()
        found: list[StoredEvent] = []
        first = min(FEW + len(scope.unlisted), PAGE) if scope.newest else PAGE
        async for page in self.client.events(scope.place, first):
            for item in page:
                known = scope.events.get(item["eventId"])
                if (stored := known or decode_event(item, self.client.url)) is not None:
                    found.append(stored)
            new = [stored for stored in found if stored.id not in scope.events and stored.id not in scope.obsolete]
            caught_up = any(stored.time < scope.newest for stored in found)
            if caught_up and all(id in scope.events for stored in new for id in stored.event.replaces):
                for stored in sorted(new, key=lambda stored: stored.order):
                    scope.apply(stored)
                break
        else:
            scope.replay(stored for stored in found if stored.event.scope == scope.path)
        scope.listed(found)
        scope.refreshed = begun

    async def _memories(self, path: str) -> list[tuple[str, Record]]:
        """Return the memory records at and below a scope, with their ids."""
        items = await self.client.records(path)
        return [found for item in items if (found := decode_memory(item, self.client.url)) is not None]

    # writing

    async def write(self, write: Write) -> list[Outcome]:
        self._check_open()
        for op in write.ops:
            self._check(op)
        return await write_once(self, write, self._write)

    def _check(self, op: Op) -> None:
        """Raise InvalidValueError or TooLargeError for what AgentCore cannot store."""
        _, kind, _ = place_of(op)
        refused = None
        if kind not in EVENT_KINDS | RECORD_KINDS and not isinstance(op, Derive | CountUse):
            refused = f"stores conversations and memories, not records of the kind {kind!r}"
        elif kind in RECORD_KINDS and isinstance(op, Touch) and (op.ttl or op.settings):
            refused = f"stores no settings and no time to live for records of the kind {kind!r}"
        elif kind in RECORD_KINDS and isinstance(op, Expect) and op.key is None and op.version is not None:
            refused = f"cannot compare the version of all records of the kind {kind!r}"
        if refused is not None:
            raise InvalidValueError(f"{self.client.url} {refused}; {OTHERS} do")
        if isinstance(op, Put) and kind in RECORD_KINDS:
            encode_memory(op.record)

    async def _write(self, write: Write) -> list[Outcome]:
        # Derived values are not stored: layers compute them again.
        ops = tuple(op for op in write.ops if not isinstance(op, Derive))
        outcomes = iter(await self._apply(replace(write, ops=ops)) if ops else ())
        return [Outcome() if isinstance(op, Derive) else next(outcomes) for op in write.ops]

    async def _apply(self, write: Write) -> list[Outcome]:
        needs, loaded = needs_of([write]), Loaded()
        appends = all(isinstance(op, Put) and op.if_version == 0 for op in write.ops if isinstance(op, Put | Touch))
        path = place_of(write.ops[0])[0].path
        kinds = {kind for _, kind in needs.streams}
        async with self._scope(path, kinds, APPEND_AGE if appends else 0.0) as scope:
            moment = self._moment()
            while True:
                scope.load(needs, loaded, moment)
                try:
                    plan = plan_writes(loaded, [write], moment)
                    break
                except NeedsMoreError as error:
                    needs = error.needs
            (result,) = plan.results
            if isinstance(result, Exception):
                raise result
            for change in plan.changes:
                if change.cleared:
                    change.expand([state_of(row.record) for row in scope.rows.get(change.name[1], {}).values()])
            events = list(scope.events_for([one for one in plan.changes if one.name[1] in EVENT_KINDS]))
            await self._store_memories(scope, [one for one in plan.changes if one.name[1] in RECORD_KINDS])
            await self._store_events(scope, events)
            return result

    async def _store_events(self, scope: ScopeState, events: list[tuple[Event, list[Record], list[Record]]]) -> None:
        made: list[StoredEvent] = []
        try:
            for event, new, moved in events:
                id = await self.client.create_event(scope.place, encode_event(event, new, moved))
                made.append(StoredEvent(id, event, new, moved))
        except BaseException:
            with suppress(StoreError):
                await asyncio.shield(gathered(lambda one: self.client.delete_event(scope.place, one.id), made))
            raise
        for stored in made:
            scope.obsolete.update(stored.event.replaces)
            scope.unlisted[stored.id] = (time.monotonic(), stored)
            scope.apply(stored)
        if not scope.streams.keys() & EVENT_KINDS:  # nothing is left
            scope.obsolete.update(scope.events)
            scope.clear()
            scope.unlisted.clear()
        with suppress(StoreError):
            await self._delete_obsolete(scope)

    async def _delete_obsolete(self, scope: ScopeState) -> None:
        async def delete(id: str) -> None:
            await self.client.delete_event(scope.place, id)
            scope.obsolete.discard(id)

        await gathered(delete, list(scope.obsolete))

    async def _store_memories(self, scope: ScopeState, changes: list[StreamChange]) -> None:
        for change in changes:
            ids = {key: row.id for key, row in scope.rows.get(change.name[1], {}).items()}
            updates = [(ids[record.key], encode_memory(record)) for record in change.replaced]
            missing = await self.client.update_records(updates)
            new = [*change.added, *(record for record in change.replaced if ids[record.key] in missing)]
            made = await self.client.create_records([encode_memory(record) for record in new])
            await self.client.delete_records([ids[state.key] for state in change.removed])
            ids |= {record.key: id for record, id in zip(new, made, strict=True)}
            rows = [Row(record, ids[record.key]) for record in (*change.added, *change.replaced)]
            scope.wrote_memories(change, rows)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.client.url} is closed")

    def _moment(self) -> int:
        return to_microseconds(self.clock())


def _any_of(asked: Iterable[str], kinds: frozenset[str]) -> bool:
    """Return whether these kinds are asked for; no kind asks for all."""
    return not (names := set(asked)) or bool(names & kinds)


def _below(path: str, above: str) -> bool:
    return not above or f"{path}/".startswith(f"{above}/")


def _cursor(records: list[Record]) -> str | None:
    return to_cursor((records[-1].scope.path, records[-1].kind, records[-1].seq)) if records else None


def _copied(record: Record, *, bodies: bool = True) -> Record:
    return replace(
        record,
        text=record.text if bodies else None,
        data=copy_json(record.data) if bodies else None,
        meta=copy_json(record.meta),
        labels=dict(record.labels),
        derived={},
    )
