"""Stores conversations and memories in an AgentCore memory.

The service has no conditional writes, and writes one event at a time. So a write is one event, if it fits, and version
checks hold within a process only: the state of a scope is cached, and each call first reads the events that other
processes have added.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from itertools import islice

from msgspec.structs import replace

from ...checks import copy_json
from ...errors import InvalidValueError, StoreError
from ...event_loop import ForkAware, notify_on_fork
from ...records import Record, StreamName
from ...store.diagnosis import diagnosed_by
from ...store.protocol import Capability, Scrubbed, Unreached
from ...store.query import CountUse, Derive, Expect, Op, Outcome, Put, Touch, Write, place_of
from ...store.registry import Backend, StoreURL, closed_on_error
from ...store.stream_state import Loaded, Needs, StreamChange, StreamState
from .. import aws
from ..calls import mark_errors
from ..keyvalue.engine import RecordRange, StreamRange, comes_after
from ..keyvalue.store import KeyValueStore
from .client import AT_ONCE, PAGE, MemoryClient, as_stream
from .codec import (
    ActorSession,
    SessionEvent,
    StoredEvent,
    decode_event,
    decode_memory,
    encode_event,
    encode_memory,
    size_of,
)
from .scope_state import EVENT_KINDS, RECORD_KINDS, ScopeState, StoredRow

COMMIT_AGE = 1.0
"""For how many seconds after a refresh writes are committed without looking for events of other processes."""
BELOW_AGE = 5.0
"""How many seconds old the cached state of a scope may be when all scopes below one are read."""
MOST_CACHED = 1000
"""Maximum number of cached scopes."""
FEW = 20
"""How many of the newest events are read first."""
OTHERS = "SQLite, PostgreSQL, Redis, DynamoDB and S3"
"""Back-ends that store everything."""

_MEMORY = re.compile(
    r"(?:arn:aws[a-z-]*:bedrock-agentcore:[a-z0-9-]+:[0-9]{12}:memory/)?[a-zA-Z][a-zA-Z0-9_-]{0,99}-[a-zA-Z0-9]{10}"
)


class AgentCoreStore(KeyValueStore):
    """Stores records in an AgentCore memory; refuses what it cannot store."""

    _engine: AgentCoreEngine

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name what the service may have made of the conversations."""
        what = "long-term records that strategies of the AgentCore memory have extracted, if it has some"
        finish_by = "delete them with DeleteMemoryRecord, in the namespaces of the strategies"
        return Scrubbed(unreached=[Unreached(what=what, until="until they are deleted", finish=finish_by)])

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Only those of the engine: writes are atomic within one process."""
        return self._engine.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        for op in write.ops:
            self._check(op)
        # Derived values are not stored: layers compute them again.
        ops = tuple(op for op in write.ops if not isinstance(op, Derive))
        if len(ops) == len(write.ops):
            return await super().write(write)
        outcomes = iter(await super().write(replace(write, ops=ops)) if ops else ())
        return [Outcome() if isinstance(op, Derive) else next(outcomes, Outcome()) for op in write.ops]

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
            raise InvalidValueError(f"{self._engine.url} {refused}; {OTHERS} do")
        if isinstance(op, Put) and kind in RECORD_KINDS:
            encode_memory(op.record)
        elif isinstance(op, Put):
            size_of(op.record)


class AgentCoreEngine(ForkAware):
    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})

    def __init__(self, client: MemoryClient) -> None:
        self.url: str = client.url
        self.client = client
        self.after_fork()
        notify_on_fork(self)

    def after_fork(self) -> None:
        """Reset in a child: locks belong to the parent's event loop."""
        self._scopes: OrderedDict[str, ScopeState] = OrderedDict()
        self._known: dict[ActorSession, str] = {}
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def commit_group(self, scope: str) -> str:
        return scope

    async def close(self) -> None:
        try:
            with suppress(StoreError):
                await asyncio.gather(*map(self._delete_obsolete, self._scopes.values()))
        finally:
            await self.client.close()

    # reading

    async def load(self, needs: Needs) -> Loaded:
        names = {*needs.streams, *needs.keys, *needs.whole}
        (path,) = {name[0] for name in names}
        async with self._scope(path, {name[1] for name in names}) as scope:
            return scope.load(needs)

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        path, kind = name
        if (newest := await self._newest(name, span)) is not None:
            return newest
        cached = self._scopes.get(path)
        state = None if cached is None else cached.streams.get(kind)
        known = state is not None and state.revision == span.revision
        async with self._scope(path, () if known else (kind,)) as scope:
            return copy(scope.streams.get(kind)), _within(scope.records(kind), span)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        path, kind = name
        async with self._scope(path, (kind,)) as scope:
            rows = scope.rows.get(kind, {})
            return copy(scope.streams.get(kind)), [_copied(rows[key].record) for key in keys if key in rows]

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        return None

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        found: list[StreamState] = []
        async for scope in self._states(reach):
            kinds = sorted(scope.streams, reverse=reach.reverse)
            found += [copy(scope.streams[kind]) for kind in kinds if reach.includes((scope.path, kind))]
            if len(found) >= reach.limit:
                break
        return found[: reach.limit]

    async def _newest(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]] | None:
        """Return the newest records of a stream that is not cached, without reading all of its events.

        None if that is not enough.
        """
        path, kind = name
        if not span.reverse or span.after is not None or span.seqs is not None or span.limit > PAGE:
            return None
        if kind not in EVENT_KINDS or path in self._scopes:
            return None
        scope, events, floor = ScopeState(path), list[StoredEvent](), 2**63
        async for page in self.client.events(scope.place, min(span.limit + FEW, PAGE)):
            read = [stored for item in page if (stored := decode_event(item, self.url)) is not None]
            events += read
            scope.replay(events)
            # What is not read yet is older than these events, so its records are not after their last seq.
            certain = [stored for stored in read if stored.time > read[-1].time]
            last_seqs = [state.last_seq for stored in certain for state in stored.event.streams if state.kind == kind]
            floor = min([floor, *last_seqs])
            found = _within([record for record in scope.records(kind) if record.seq > floor], span)
            if len(found) == span.limit:
                return scope.streams.get(kind), found
        return None

    # the state of scopes

    @asynccontextmanager
    async def _scope(self, path: str, kinds: Iterable[str], age: float = 0.0) -> AsyncIterator[ScopeState]:
        """Provide the state of a scope, refreshed for these kinds, and locked."""
        if path not in self._scopes:
            self._scopes[path] = ScopeState(path)
            while len(self._scopes) > MOST_CACHED and not next(iter(self._scopes.values())).lock.locked():
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(path)
        scope, asked = self._scopes[path], time.monotonic()
        async with scope.lock:
            if not EVENT_KINDS.isdisjoint(kinds) and scope.refreshed <= asked - age:
                await self._refresh(scope)
            if not RECORD_KINDS.isdisjoint(kinds):
                scope.take_memories([row for row in await self._memories(path) if row.record.scope.path == path])
            yield scope

    async def _states(self, reach: StreamRange) -> AsyncGenerator[ScopeState, None]:
        """Yield the states of the scopes of a range, ordered by path."""
        kinds = set(reach.kinds) or EVENT_KINDS | RECORD_KINDS
        if not reach.below:
            async with self._scope(reach.scope, kinds) as scope:
                yield scope
            return
        memories: dict[str, list[StoredRow]] = {}
        paths: list[str] = []
        if with_memories := not RECORD_KINDS.isdisjoint(kinds):
            memories = {path: [] for path, scope in self._scopes.items() if scope.recent and _below(path, reach.scope)}
            for row in await self._memories(reach.scope):
                memories.setdefault(row.record.scope.path, []).append(row)
        if not EVENT_KINDS.isdisjoint(kinds):
            paths = await self._paths(reach.scope, again=reach.after is not None)
        ordered = sorted({*memories, *paths}, reverse=reach.reverse)
        if reach.after is not None:
            start = reach.after[0]
            ordered = [path for path in ordered if path == start or comes_after(path, start, reverse=reach.reverse)]

        async def load(path: str) -> ScopeState:
            async with self._scope(path, kinds & EVENT_KINDS, BELOW_AGE) as scope:
                if with_memories:
                    scope.take_memories(memories.get(path, ()))
                return scope

        for at in range(0, len(ordered), AT_ONCE):
            for scope in await asyncio.gather(*map(load, ordered[at : at + AT_ONCE])):
                yield scope

    async def _paths(self, path: str, *, again: bool) -> list[str]:
        """Return the scopes with events, at and below one; `again` for a further page of a list."""
        listed, found = self._listed.get(path, (0.0, []))
        if again and time.monotonic() - listed < BELOW_AGE:
            return found

        async def path_of(place: ActorSession) -> str | None:
            if place not in self._known:
                async for page in self.client.events(place, 1):
                    for item in page:
                        if (stored := decode_event(item, self.url)) is not None:
                            self._known[place] = stored.event.scope
                    break
            return self._known.get(place)

        listed = time.monotonic()
        places = [place for place in await self.client.places() if place.may_be_below(path)]
        names = await asyncio.gather(*map(path_of, places))
        found = [name for name in names if name is not None and _below(name, path)]
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
                if (stored := known or decode_event(item, self.url)) is not None:
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

    async def _memories(self, path: str) -> list[StoredRow]:
        items = await self.client.records(path)
        return [StoredRow(*found) for item in items if (found := decode_memory(item, self.url)) is not None]

    # writing

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        kinds = {change.name[1] for change in changes}
        # Memories were loaded before; a further refresh would not find newer ones.
        async with self._scope(changes[0].name[0], kinds & EVENT_KINDS, COMMIT_AGE) as scope:
            if not all(map(scope.is_current, changes)):
                return False
            changed = [change for change in changes if not change.only_checks]
            events = list(scope.events_for([change for change in changed if change.name[1] in EVENT_KINDS]))
            for change in changed:
                if change.name[1] in RECORD_KINDS:
                    with mark_errors(unsure=True):
                        await self._store_memories(scope, change)
            await self._store_events(scope, events)
            return True

    async def _store_events(
        self, scope: ScopeState, events: list[tuple[SessionEvent, list[Record], list[Record]]]
    ) -> None:
        made: list[StoredEvent] = []
        try:
            for event, new, moved in events:
                id = await self.client.create_event(scope.place, encode_event(event, new, moved))
                made.append(StoredEvent(id, event, new, moved))
        except BaseException:
            scope.refreshed = 0.0  # the last one may have been made
            deletions = (self.client.delete_event(scope.place, stored.id) for stored in made)
            with suppress(StoreError):
                await asyncio.shield(asyncio.gather(*deletions))
            raise
        for stored in made:
            scope.obsolete.update(stored.event.replaces)
            scope.unlisted[stored.id] = (time.monotonic(), stored)
            scope.apply(stored, own=True)
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

        await asyncio.gather(*map(delete, list(scope.obsolete)))

    async def _store_memories(self, scope: ScopeState, change: StreamChange) -> None:
        ids = {key: row.id for key, row in scope.rows.get(change.name[1], {}).items()}
        updates = [(ids[record.key], encode_memory(record)) for record in change.replaced]
        missing = await self.client.update_records(updates)
        new = [*change.added, *(record for record in change.replaced if ids[record.key] in missing)]
        made = await self.client.create_records([encode_memory(record) for record in new])
        await self.client.delete_records([ids[state.key] for state in change.removed])
        ids |= {record.key: id for record, id in zip(new, made, strict=True)}
        scope.wrote_memories(
            change, [StoredRow(record, ids[record.key]) for record in (*change.added, *change.replaced)]
        )


def _below(path: str, above: str) -> bool:
    return not above or f"{path}/".startswith(f"{above}/")


def _within(records: list[Record], span: RecordRange) -> list[Record]:
    """Return copies of the records of a range, given all by seq."""
    if span.seqs is not None:
        by_seq = {record.seq: record for record in records}
        return [_copied(by_seq[seq]) for seq in span.seqs if seq in by_seq]
    ordered = reversed(records) if span.reverse else records
    return list(map(_copied, islice((record for record in ordered if span.includes(record.seq)), span.limit)))


def _copied(record: Record) -> Record:
    data, meta = copy_json(record.data), copy_json(record.meta)
    return replace(record, data=data, meta=meta, labels=dict(record.labels), derived={})


async def open_store(url: StoreURL) -> AgentCoreStore:
    """Open the memory of a URL; raises a Mnemic error."""
    memory = memory_id(url)
    client = MemoryClient(await aws.Requests.open("bedrock-agentcore", url, before_send=as_stream), memory)
    async with closed_on_error(client):
        await client.check()
    return AgentCoreStore(AgentCoreEngine(client))


def memory_id(url: StoreURL) -> str:
    """Return the id of the memory in a URL; raises InvalidValueError."""
    url.take(**aws.OPTIONS)
    memory = (url.split.netloc + url.split.path).rstrip("/")
    if not _MEMORY.fullmatch(memory):
        raise InvalidValueError(
            f"{url} names no memory: its id is a name, '-' and ten letters or digits, as in "
            "agentcore://support-a1B2c3D4e5?region=eu-central-1"
        )
    return memory


BACKEND = Backend(open=open_store, diagnose=diagnosed_by(__package__))
