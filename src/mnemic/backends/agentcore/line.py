"""Cached state of one session: its events, folded into streams of records.

For each item, the last event that contains it counts. Events are immutable: a change creates a new event, deletes
the old one, and moves the rest of its content.
"""

from __future__ import annotations

import secrets
from asyncio import Lock
from bisect import bisect_left, insort
from collections.abc import Iterable
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from ..keyvalue.engine import Change
from ..keyvalue.kept import KeptHead
from .events import Body, Extra, Held
from .names import Place
from .things import Event, Item, Stream, Thing, Value

Key = TypeVar("Key")

GONE = 60
"""For how many seconds a deletion is announced to writers that may just have moved the record."""


class Line:
    """State of a session."""

    def __init__(self, place: Place, scope: str | None, *, branch: bool) -> None:
        self.place = place
        self.scope = scope
        self.branch = branch
        self.lock: Lock = Lock()
        self.users = 0
        self.loaded = False
        self.recent: dict[str, tuple[float, Body]] = {}
        """Events created here recently, and until when they may be missing from listings."""
        self.clear()

    def clear(self) -> None:
        """Reset to what was created here."""
        self.synced: float = 0.0
        self.seen: int = 0
        """Checksum of all events with valid content."""
        self.n: int = 0
        self.newest: Event | None = None
        self.events: dict[str, Event] = {}
        self.unsynced: set[str] = set()
        """Events created here since the last refresh."""
        self.others: set[str] = set()
        """Events of other applications, or of another branch."""
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, Event] = {}
        """Complete multi-event writes, and the events that say so."""
        self.twins: dict[str, Item] = {}
        self.displaced: dict[Item, None] = {}
        """Records whose position another has, because of concurrent writers."""
        self.gone: dict[tuple[str, str, int], Event] = {}
        """Deleted records, and the events that say so."""
        self.waste: dict[str, Event] = {}
        """Memory records to delete, and the events that say so."""
        self.waiting: set[str] = set()
        """Events of incomplete writes."""
        self.suspects: set[Event] = set()
        """Events that may have no valid content."""
        self.stained: set[Event] = set()
        """Events with some obsolete content."""
        self.doomed: set[str] = set()
        """Events without valid content that still exist."""
        self.doomed_twins: dict[str, int] = {}
        """Memory records to delete, and since when, in microseconds."""
        self.shared: bool = False
        """Whether the events are those of the main branch, seen from a branch without events."""
        self.root: str | None = None
        """Event at which that branch will start."""
        self.size: int = 0
        self.looked_over = 0
        """Last check for expiring events, in seconds since 1970."""

    # reading

    def head(self, kind: str) -> KeptHead | None:
        """Return the head of a stream."""
        return self.stream(kind).head

    def stream(self, kind: str) -> Stream:
        """Return a stream; empty if it does not exist."""
        return self.streams.get(kind) or Stream()

    def late(self) -> list[Item]:
        """Return the records with a new position that no event has yet."""
        return [item for item in self.displaced if self._is_late(item)]

    def _is_late(self, item: Item) -> bool:
        stream = self.stream(item.kind)
        placed = item.seq == item.written and stream.rows.get(item.seq) is item
        return stream.keys.get(item.key) is item and not placed

    def expects(self, changes: Iterable[Change]) -> bool:
        """Return whether the state is as the changes expect."""
        for change in changes:
            stream = self.stream(change.name[1])
            if (stream.head.revision if stream.head else None) != change.expected:
                return False
            if any(key in stream.keys for key in change.absent):
                return False
        return True

    def waits(self, group: str, besides: set[Event]) -> bool:
        """Return whether events other than these belong to a write that must stay marked as complete."""
        return any(event.group == group for event in self.events.values() if event not in besides)

    # folding

    def take_in(self, bodies: Iterable[tuple[str, Body]]) -> None:
        """Apply events in order; derived values after records, which may have moved."""
        known = list(bodies)
        for id, body in known:
            self._apply(id, body)
        for id, body in known:
            for extra in body.extra:
                self._derive(extra, self.events[id])

    def _apply(self, id: str, body: Body) -> None:
        event = self.events[id] = Event(id, body)
        self.scope = body.scope
        for kind in body.dropped:
            for item in list(self.stream(kind).keys.values()):
                self._remove(item)
            dropped = self.streams.pop(kind, None)
            if dropped is not None and dropped.event is not None:
                self.suspects.add(dropped.event)
            # Seqs start again, so statements about the old ones are void.
            for at in [at for at in self.gone if at[0] == kind]:
                self.suspects.add(self.gone.pop(at))
        for kind, floor in body.floors.items():
            stream = self.streams.setdefault(kind, Stream())
            stream.floor = max(stream.floor, floor)
            for item in [item for item in stream.keys.values() if item.born <= floor]:
                self._remove(item)
        for gone in body.gone:
            found = self.stream(gone.kind).keys.get(gone.key)
            if found is not None and found.born == gone.born:
                self._remove(found)
        for held in body.held:
            self._put(held, event)
        for head in body.heads:
            stream = self.streams.setdefault(head.kind, Stream())
            if stream.event is not None:
                self.suspects.add(stream.event)
            stream.head, stream.event = _newer(head, stream.head), event
        self._tell(self.gone, event.gone, event)
        self._tell(self.groups, body.groups, event)
        self._tell(self.waste, event.twins, event)
        self.n = max(self.n, body.n)
        older = event
        if self.newest is None or event.order > self.newest.order:
            older, self.newest = self.newest or event, event
        self.suspects.add(older)

    def _tell(self, told: dict[Key, Event], keys: Iterable[Key], event: Event) -> None:
        """Record that this event is now the source of a statement."""
        for key in keys:
            self.suspects.add(told.get(key, event))
            told[key] = event

    def forget_recent(self) -> None:
        """Treat events created here as gone if they are not listed now."""
        moment = monotonic()
        self.recent = {id: made for id, made in self.recent.items() if made[0] > moment and id in self.events}

    def settle(self, kinds: Iterable[str]) -> None:
        """Make the heads of streams agree with their records, after others have written."""
        late = self.late()
        for kind in kinds:
            stream = self.streams.get(kind)
            if stream is None:
                continue
            items = list(stream.keys.values())
            head = stream.head or _lost_head(str(self.scope), kind, items)
            version = max([head.version, *(item.version for item in items)])
            last = max([head.last_seq, *stream.seqs])
            moving = [item for item in late if item.kind == kind and item.seq == item.written]
            for item in sorted(moving, key=lambda item: item.event.order):
                last, version = last + 1, version + 1
                item.seq, item.version = last, version
                stream.rows[last] = item
                stream.seqs.append(last)
            stream.head = replace(
                head,
                count=len(items),
                weight=sum(item.weight for item in items),
                soonest=min((item.expires for item in items if item.expires is not None), default=None),
                last_seq=last,
                version=version,
                edited=version if moving else head.edited,
                # A plan on another state must not be applied to this one.
                revision=secrets.randbits(48) + 1,
            )

    def dead(self, moment: int) -> list[str]:
        """Return and forget the events without valid content."""
        found = []
        if self.newest is not None:
            self.suspects.add(self.newest)
        self.stained = {event for event in self.stained if event.live}
        for event in list(self.suspects):
            for at in [at for at, gone in event.gone.items() if gone.at <= moment // 1_000_000 - GONE]:
                _untell(self.gone, at, event)
            if self._needed(event):
                if event.live:
                    self.suspects.discard(event)
                continue
            self.suspects.discard(event)
            for group in event.groups:
                _untell(self.groups, group, event)
            del self.events[event.id]
            found.append(event.id)
        if self.newest is not None and self.newest.id not in self.events:
            self.newest = max(self.events.values(), key=lambda event: event.order, default=None)
            self.n = self.n if self.events else 0
        return found

    def leave_main(self, ids: list[str]) -> None:
        """Leave events to the main branch, once this branch has its own copy."""
        for id in ids:
            self.suspects.discard(self.events.pop(id))
        self.others.update(ids)
        self.shared, self.root = False, None

    def _needed(self, event: Event) -> bool:
        # The newest event shows that nothing changed; a branch without events shows the main one.
        last = event is self.newest and (bool(self.streams) or self.branch)
        return bool(
            last
            or event.live
            or any(self.gone.get(at) is event for at in event.gone)
            or any(self.waste.get(twin) is event for twin in event.twins)
            or any(stream.event is event for stream in self.streams.values())
            or any(self.groups.get(group) is event and self.waits(group, {event}) for group in event.groups)
        )

    def _put(self, held: Held, event: Event) -> None:
        stream = self.streams.setdefault(held.kind, Stream())
        item = stream.keys.get(held.kept.key)
        kept = held.kept
        gone = held.born <= stream.floor or (held.kind, kept.key, held.born) in self.gone
        if gone or (item is not None and (held.born, kept.version) < (item.born, item.version)):
            self.stained.add(event)
            return
        if item is not None and item.born != held.born:
            self._remove(item)
            item = None
        if item is None:
            item = stream.keys[kept.key] = Item(held, event)
        else:
            self._let_go(item)
            self.size -= len(item.raw)
            self._unplace(item)
            item.take(held, event)
        if item.twin is not None:
            self.twins[item.twin] = item
        self._hold(item)
        self.size += len(item.raw)
        there = stream.rows.get(item.seq)
        if there is None:
            stream.rows[item.seq] = item
            insort(stream.seqs, item.seq)
        elif there is not item:
            self.displaced[item] = None

    def _derive(self, extra: Extra, event: Event) -> None:
        item = self.stream(extra.kind).keys.get(extra.key)
        old = item.values.get(extra.name) if item is not None else None
        n = extra.n or event.order[0]
        if item is None or item.born != extra.born or (old is not None and old.n > n):
            self.stained.add(event)
            return
        if old is not None:
            del item.values[extra.name]
            self._let_go(old)
            self.size -= len(old.value)
        if extra.value is not None:
            value = item.values[extra.name] = Value(item, extra, event)
            self._hold(value)
            self.size += len(extra.value)

    def _remove(self, item: Item) -> None:
        del self.streams[item.kind].keys[item.key]
        self._unplace(item)
        self.size -= len(item.raw)
        for thing in item.things():
            self._let_go(thing)

    def _unplace(self, item: Item) -> None:
        stream = self.streams[item.kind]
        if stream.rows.get(item.seq) is item:
            del stream.rows[item.seq]
            stream.seqs.pop(bisect_left(stream.seqs, item.seq))

    def _hold(self, thing: Thing) -> None:
        if not thing.event.live:
            self.seen ^= thing.event.mark
        thing.event.live.add(thing)

    def _let_go(self, thing: Thing) -> None:
        thing.event.live.remove(thing)
        if not thing.event.live:
            self.seen ^= thing.event.mark
        self.suspects.add(thing.event)
        self.stained.add(thing.event)
        if isinstance(thing, Item) and thing.twin is not None:
            self.twins.pop(thing.twin, None)


def _untell(told: dict[Key, Event], key: Key, event: Event) -> None:
    if told.get(key) is event:
        del told[key]


def _newer(head: KeptHead, before: KeptHead | None) -> KeptHead:
    """Return a head that reuses no number given out by another."""
    if before is None or (head.last_seq >= before.last_seq and head.version >= before.version):
        return head
    last, version = max(head.last_seq, before.last_seq), max(head.version, before.version)
    return replace(head, last_seq=last, version=version)


def _lost_head(scope: str, kind: str, items: list[Item]) -> KeptHead:
    """Return a new head for a stream whose own was lost with an expired event."""
    created = min((item.created for item in items), default=0)
    updated = max((item.updated for item in items), default=0)
    return KeptHead(scope, kind, 0, 0, 0, 0, created, updated, None, None, None, 1)
