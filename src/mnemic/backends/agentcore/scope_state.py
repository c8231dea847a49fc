"""The state of a scope as its events and memory records tell it, and the events that change it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

from msgspec.structs import replace

from ...checks import to_microseconds
from ...records import EMBEDDER_KIND, ENCRYPTION_KIND, MESSAGE, ONCE_KIND, Record, now
from ...store.stream_state import Loaded, Needs, RecordState, StreamChange, StreamState
from .codec import FORMAT, MOST_TURNS, ActorSession, SessionEvent, StoredEvent, size_of, turns_of

EVENT_KINDS = frozenset({MESSAGE, "archived", "summary", "title", "progress", "lease", ONCE_KIND})
"""Kinds stored in events, which expire as the memory is configured."""
RECORD_KINDS = frozenset({"memory", EMBEDDER_KIND, ENCRYPTION_KIND})
"""Kinds stored in memory records, which do not expire."""
SETTLING = 120.0
"""For how many seconds a memory record may be missing from, or still be in, the service's lists."""
UNLISTED = 10.0
"""For how many seconds a new event may be missing from the service's lists."""
LATELY = 20
"""For how many more events an event stays that only tells of removed records."""
PACKED = 1_000_000
"""Size from which a write is split into several events."""


class StoredRow(NamedTuple):
    """A record, and the id of its event or memory record."""

    record: Record
    id: str


class ScopeState:
    def __init__(self, path: str) -> None:
        self.path = path
        self.place: ActorSession = ActorSession.of(path)
        self.lock: asyncio.Lock = asyncio.Lock()
        self.refreshed: float = 0.0
        self.streams: dict[str, StreamState] = {}
        self.rows: dict[str, dict[str, StoredRow]] = {}
        """Records by kind and key."""
        self.recent: dict[tuple[str, str], tuple[float, StoredRow | None]] = {}
        """Memory records that this process has just written, or deleted (None)."""
        self.obsolete: set[str] = set()
        """Events that can be deleted."""
        self.newest: int = 0
        """Time of the newest event that the last refresh found."""
        self.unlisted: dict[str, tuple[float, StoredEvent]] = {}
        """Events that this process has just written."""
        self.clear()

    def clear(self) -> None:
        self.events: dict[str, StoredEvent] = {}
        self.stained: set[str] = set()
        """Events with records that another event has removed."""
        self.removed: set[tuple[str, str | None, int]] = set()
        self.streams = {kind: state for kind, state in self.streams.items() if kind in RECORD_KINDS}
        self.rows = {kind: rows for kind, rows in self.rows.items() if kind in RECORD_KINDS}

    def replay(self, found: Iterable[StoredEvent]) -> None:
        """Take all events of the session."""
        self.clear()
        since = time.monotonic() - UNLISTED
        unlisted = {id: stored for id, (written, stored) in self.unlisted.items() if written > since}
        events = sorted((unlisted | {stored.id: stored for stored in found}).values(), key=lambda stored: stored.order)
        replaced = {id for stored in events for id in stored.event.replaces}
        self.obsolete = {stored.id for stored in events if stored.id in replaced}
        for stored in events:
            if stored.id not in replaced:
                self.apply(stored)

    def listed(self, found: list[StoredEvent]) -> None:
        """Note which events the service has listed."""
        self.newest = max((stored.time for stored in found), default=0)
        for stored in found:
            self.unlisted.pop(stored.id, None)

    def apply(self, stored: StoredEvent, *, own: bool = False) -> None:
        """Take a later event, the one that this process has just written or another."""
        event = stored.event
        known = {(record.kind, record.key) for record in stored.new if record.key in self.rows.get(record.kind, ())}
        for id in event.replaces:
            self.events.pop(id, None)
            self.stained.discard(id)
        floors = {kind: seq for kind, key, seq in event.removed if key is None}
        self.removed = {name for name in self.removed if name[0] not in floors} | set(event.removed)
        if event.replaces or event.removed:
            for kind in EVENT_KINDS & self.rows.keys():
                self.rows[kind] = {
                    key: row
                    for key, row in self.rows[kind].items()
                    if row.id in self.events
                    and row.record.seq > floors.get(kind, 0)
                    and (kind, key, row.record.seq) not in self.removed
                }
        for kind in event.dropped:
            self.streams.pop(kind, None)
        self.events[stored.id] = stored
        nothing = StreamState(self.path, "", 0, 0, 0, 0, 0, 0)
        before = {kind: copy(state) for kind, state in self.streams.items()}
        for state in event.streams:
            old = before.get(state.kind, nothing)
            if state.version >= old.version:
                # A plan that knows nothing of another process's event must not be committed.
                revision = state.revision if own else max(state.revision, old.revision) + 1
                last_seq, edited = max(state.last_seq, old.last_seq), max(state.edited, old.edited)
                self.streams[state.kind] = replace(state, last_seq=last_seq, edited=edited, revision=revision)
        for record in stored.new:
            old = before.get(record.kind, nothing)
            concurrent = record.seq <= old.last_seq or record.version <= old.version
            self._put(record, stored.id, last=concurrent and (record.kind, record.key) not in known)
        for record in stored.moved:
            self._put(record, stored.id, last=False)
        for kind in {record.kind for record in stored.new} | {state.kind for state in event.streams}:
            rows, total = self.rows.get(kind, {}), self.streams.get(kind)
            if total is not None and total.count != len(rows):
                total.count, total.weight = len(rows), sum(row.record.weight for row in rows.values())

    def _put(self, record: Record, id: str, *, last: bool) -> None:
        rows, state = self.rows.setdefault(record.kind, {}), self.streams.get(record.kind)
        found = rows.get(record.key)
        if (record.kind, record.key, record.seq) in self.removed or (found and found.record.version > record.version):
            self.stained.add(id)
        elif last and state is not None:
            # Another process wrote at the same time: its record comes last.
            state.last_seq, state.version, state.revision = state.last_seq + 1, state.version + 1, state.revision + 1
            rows[record.key] = StoredRow(replace(record, seq=state.last_seq, version=state.version), id)
        else:
            rows[record.key] = StoredRow(record, id)

    def records(self, kind: str) -> list[Record]:
        return sorted((row.record for row in self.rows.get(kind, {}).values()), key=lambda record: record.seq)

    def load(self, needs: Needs) -> Loaded:
        """Return the states that a plan needs; memory records are numbered by time, since lists of them lag behind."""
        loaded, moment = Loaded(whole=set(needs.whole)), to_microseconds(now())
        for name in needs.streams | needs.keys.keys() | needs.whole:
            path, kind = name
            state, rows = copy(self.streams.get(kind)), self.rows.get(kind, {})
            if kind in RECORD_KINDS:
                state = state or StreamState(path, kind, 0, 0, 0, 0, moment, moment)
                state.last_seq = max(state.last_seq, moment)
                state.version = state.edited = max(state.version, moment)
            loaded.streams[name] = state
            keys = rows if name in needs.whole else needs.keys.get(name, ())
            loaded.records[name] = {key: _state_of(rows[key].record) if key in rows else None for key in keys}
        return loaded

    def is_current(self, change: StreamChange) -> bool:
        """Return whether a change was planned with the current state, as far as this process knows."""
        kind = change.name[1]
        if kind in RECORD_KINDS:
            return not change.absent  # a cached state has no new number
        state = self.streams.get(kind)
        if (state and state.revision) != (change.before and change.before.revision):
            return False
        return self.rows.get(kind, {}).keys().isdisjoint(change.absent)

    def events_for(self, changes: Sequence[StreamChange]) -> Iterator[tuple[SessionEvent, list[Record], list[Record]]]:
        """Yield the events of a write, most often one, each with its new and moved records."""
        if not changes:
            return
        number = max((stored.event.n for stored in self.events.values()), default=0)
        event = SessionEvent(FORMAT, self.path, number + 1)
        new: list[Record] = []
        moved: list[Record] = []
        gone: set[tuple[str, str]] = set()
        replaced = set(self.stained)
        states = {kind: state for kind, state in self.streams.items() if kind in EVENT_KINDS}
        for change in changes:
            kind = change.name[1]
            for key in (*(state.key for state in change.removed), *(record.key for record in change.replaced)):
                gone.add((kind, key))
                replaced.add(self.rows[kind][key].id)
            if change.cleared and change.before is not None and not change.spared:
                event.removed.append((kind, None, change.before.last_seq))
            else:
                event.removed += [(kind, state.key, state.seq) for state in change.removed]
            if change.before is not None and (change.dropped or change.after is None):
                event.dropped.append(kind)
            states.pop(kind, None)
            if change.after is not None:
                states[kind] = change.after
            new += change.added
            moved += change.replaced
        rows = [row for kind in EVENT_KINDS for row in self.rows.get(kind, {}).values()] if replaced else []
        if replaced:
            # Old events that only tell of removals are replaced as well.
            alive = {row.id for row in rows}
            replaced |= {id for id, one in self.events.items() if id not in alive and one.event.n < number - LATELY}
        moved += [row.record for row in rows if row.id in replaced and (row.record.kind, row.record.key) not in gone]
        changed = {change.name[1] for change in changes}
        for some, others, last in _packed(new, moved):
            if last:
                event.streams = [state for kind, state in states.items() if replaced or kind in changed]
                event.replaces = sorted(replaced | self.obsolete)
            yield event, some, others
            event = SessionEvent(FORMAT, self.path, event.n + 1)

    def take_memories(self, found: Iterable[StoredRow]) -> None:
        """Take the memory records of the scope as the service lists them, and what this process has just written."""
        latest = {(row.record.kind, row.record.key): row for row in found}
        for name, (written, row) in list(self.recent.items()):
            if written < time.monotonic() - SETTLING:
                del self.recent[name]
            elif row is None:
                latest.pop(name, None)
            elif name not in latest or latest[name].record.version < row.record.version:
                latest[name] = row
        for kind in RECORD_KINDS:
            self.rows[kind] = {key: row for (of, key), row in latest.items() if of == kind}
            self.streams.pop(kind, None)
            if records := self.records(kind):
                times = [to_microseconds(record.updated or now()) for record in records]
                ends = [to_microseconds(record.expires) for record in records if record.expires is not None]
                weight, version = sum(record.weight for record in records), max(record.version for record in records)
                self.streams[kind] = StreamState(
                    self.path, kind, records[-1].seq, version, len(records), weight, min(times), max(times),
                    soonest=min(ends, default=None), edited=version,
                )  # fmt: skip

    def wrote_memories(self, change: StreamChange, rows: list[StoredRow]) -> None:
        """Remember what was just written, until the service lists it."""
        kind, written = change.name[1], time.monotonic()
        self.recent |= {(kind, state.key): (written, None) for state in change.removed}
        self.recent |= {(kind, row.record.key): (written, row) for row in rows}


def _packed(new: list[Record], moved: list[Record]) -> Iterator[tuple[list[Record], list[Record], bool]]:
    """Yield new and moved records in parts that each fit into an event, and whether it is the last."""
    part: tuple[list[Record], list[Record]] = ([], [])
    size = turns = 0
    for record, at in [*((record, 0) for record in new), *((record, 1) for record in moved)]:
        own_size, own_turns = size_of(record), 0 if at else len(turns_of(record))
        if size and (size + own_size > PACKED or turns + own_turns > MOST_TURNS):
            yield *part, False
            part, size, turns = ([], []), 0, 0
        part[at].append(record)
        size, turns = size + own_size, turns + own_turns
    yield *part, True


def _state_of(record: Record) -> RecordState:
    created = to_microseconds(record.created) if record.created is not None else 0
    expires = None if record.expires is None else to_microseconds(record.expires)
    return RecordState(record.key, record.seq, record.version, created, record.weight, record.labels, expires)
