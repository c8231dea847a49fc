"""Turns the changes of a session into events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from ..keyvalue.engine import Change
from ..keyvalue.kept import KeptHead
from .events import FORMAT, SPOKEN, Body, Content, Extra, Gone, Held, fill, pack
from .line import GONE, Line
from .things import Event, Item, Thing

DAY = 24 * 3600
Twins = Mapping[tuple[str, int], str | None]
"""Memory record ids by kind and seq."""


class Draft:
    """The events that a write creates in one session."""

    def __init__(self, line: Line, bodies: list[tuple[Body, bool]], twins: list[str]) -> None:
        self.line = line
        self.bodies = bodies
        """Each with whether all of its text was stored before."""
        self.twins = twins
        """Memory records to delete."""
        self.ids: list[str] = []
        """Ids of created events, in order; empty where one was not created."""
        self.sent = False
        """Whether the last one was sent."""


class Drafting:
    """Computes the content of new events."""

    def __init__(self, line: Line, twins: Twins, writer: str, renew: int) -> None:
        """Take the writer's name, and after how many seconds lasting records are rewritten."""
        self._line = line
        self._twins = twins
        self._writer = writer
        self._at = int(time.time())
        self._renew = self._at - renew if renew else 0
        self._dropped: list[str] = []
        self._floors: dict[str, int] = {}
        self._heads: dict[str, KeptHead] = {}
        self._gone: list[Content] = []
        self._new: list[Content] = []
        self._lost: set[Thing] = set()
        """Items that no longer count in their event."""
        self._groups: list[str] = []

    def draft(self, changes: list[Change]) -> Draft:
        """Return the events for these changes."""
        for change in changes:
            self._change(change)
        for item in self._line.late():
            self._replace(item)
        useless = self._useless()
        moved = self._moved()
        contents = [*useless, *self._gone, *self._new]
        parts = list(pack([*((one, False) for one in contents), *((one, True) for one in moved)]))
        line = self._line
        bodies = [
            Body(FORMAT, str(line.scope), line.n + 1 + at, self._writer, self._at, line.seen)
            for at in range(len(parts))
        ]
        for body, (part, _) in zip(bodies, parts, strict=True):
            fill(body, part)
        bodies[0].dropped, bodies[0].floors = self._dropped, self._floors
        bodies[-1].heads = [head for _, head in sorted(self._heads.items())]
        for kind in self._heads:
            if (floor := line.stream(kind).floor) and kind not in self._floors:
                bodies[-1].floors[kind] = floor
        bodies[-1].groups = self._groups
        if len(bodies) > 1:
            group = secrets.token_hex(8)
            self._groups.append(group)
            for body in bodies[:-1]:
                body.group = group
        said = [all_said for _, all_said in parts]
        return Draft(line, list(zip(bodies, said, strict=True)), [str(gone.twin) for gone in useless])

    def _change(self, change: Change) -> None:
        kind = change.name[1]
        stream = self._line.stream(kind)
        removed = set(stream.rows) if change.head is None else {seq for seq, _ in change.removed}
        whole = change.head is None or (bool(removed) and len(removed) == len(stream.rows))
        if change.head is None:
            self._dropped.append(kind)
        elif whole:
            self._floors[kind] = max(stream.rows[seq].born for seq in removed)
        if change.head is not None and not change.same:
            self._heads[kind] = change.head
        for seq in sorted(removed):
            item = stream.rows[seq]
            self._lost.update(item.things())
            if not whole:
                at = self._at if self._may_move(item) else 0
                self._gone.append(Gone(kind, item.key, item.born, None, at))
        keys = {kept.seq: kept.key for kept in change.put}
        for kept in change.put:
            held = Held(kind, kept, 0, self._twins.get((kind, kept.seq)))
            if kept.seq not in removed and kept.seq in stream.rows:
                before = stream.rows[kept.seq]
                self._lost.add(before)
                held.was = before.born if before.born != kept.seq else 0
            self._new.append(held)
        for seq, name, version, value in change.derived:
            there = None if seq in removed else stream.rows.get(seq)
            if there is not None and name in there.values:
                self._lost.add(there.values[name])
            if there is not None:
                self._new.append(Extra(kind, there.key, there.born, name, version, value))
            elif seq in keys:
                self._new.append(Extra(kind, keys[seq], seq, name, version, value))

    def _replace(self, item: Item) -> None:
        """Store a record at the position that it was given because another has its own."""
        if item not in self._lost:
            self._new.append(item.content())
            self._lost.add(item)
            head = self._line.head(item.kind)
            if head is not None:
                self._heads.setdefault(item.kind, head)

    def _may_move(self, item: Item) -> bool:
        """Return whether another writer may be moving a record, with the rest of its event or because it is new."""
        event = item.event
        return len(event.live) > 1 or item.kind not in SPOKEN or event.at > self._at - GONE

    def _useless(self) -> list[Gone]:
        """Return deletions of memory records without a record."""
        if self._line.branch:
            return []
        used = {one.twin for one in self._new if isinstance(one, Held)}
        items = [one for one in self._lost if isinstance(one, Item) and one.twin and one.twin not in used]
        # No record has the number 0: only the memory record is deleted.
        return [Gone(item.kind, item.key, 0, item.twin) for item in sorted(items, key=Item.order)]

    def _is_old(self, event: Event) -> bool:
        """Return whether an event has lasting data, and the service will expire it."""
        return event.at < self._renew and any(thing.order()[1] not in SPOKEN for thing in event.live)

    def _moved(self) -> list[Content]:
        """Return the other content of events with obsolete items, since those events are deleted."""
        line = self._line
        going: set[Event] = {thing.event for thing in self._lost}
        going.update(event for event in line.stained if event.live)
        if line.shared:
            going.update(line.events.values())
        elif self._renew and line.looked_over < self._at - DAY:
            line.looked_over = self._at
            going.update(event for event in line.events.values() if self._is_old(event))
        moved: list[Content] = []
        for event in sorted(going, key=lambda event: event.order):
            moved += [thing.content() for thing in sorted(event.live - self._lost, key=lambda one: one.order())]
            moved += [gone for twin, gone in event.twins.items() if line.waste.get(twin) is event]
            told = [gone for at, gone in event.gone.items() if line.gone.get(at) is event]
            moved += [gone for gone in told if gone.kind not in self._dropped]
            self._groups += [group for group in event.groups if line.waits(group, going)]
            for kind, stream in line.streams.items():
                if stream.event is event and stream.head is not None and kind not in self._dropped:
                    self._heads.setdefault(kind, stream.head)
        return moved
