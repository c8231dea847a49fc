"""Plans for stores across a network: what a write needs is loaded first, then worked out without I/O.

What turns out to be missing (the records of a stream that has expired, the keys that a limit removes) is
raised as `UnknownError`; it is loaded too, and the write is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from msgspec import Struct, field

from ..errors import MnemicError
from ..records import Record
from .once import note_ref
from .planning import Ground, Head, Name, Plan, Slot
from .query import Limit, Outcome, Write, place_of

__all__ = [
    "MOST_OPS",
    "MOST_WRITES",
    "Changes",
    "Found",
    "LoadedGround",
    "LoadedPlan",
    "Needs",
    "New",
    "UnknownError",
]

MOST_WRITES = 500
"""The most writes that are planned together."""
MOST_OPS = 20_000
"""The most operations that are planned together."""


EVICTED_AT_ONCE = 32
"""How many of the records that a limit may remove are loaded with what is surely needed."""


class Needs(Struct):
    """What is asked of a store before a write is planned."""

    heads: set[Name] = field(default_factory=set)
    keys: dict[Name, set[str]] = field(default_factory=dict)
    """The keys, by stream, whose slots are wanted."""
    whole: set[Name] = field(default_factory=set)
    """The streams all of whose slots are wanted."""

    @classmethod
    def of(cls, writes: Iterable[Write]) -> Needs:
        """Return what writes ask for at first sight."""
        needs = cls()
        for write in writes:
            if (note := note_ref(write)) is not None:
                needs.slot((note.scope.path, note.kind), note.key)
            for op in write.ops:
                scope, kind, key = place_of(op)
                needs.slot((scope.path, kind), key)
                if isinstance(op, Limit):
                    for key in islice(chain.from_iterable(op.evict), EVICTED_AT_ONCE):
                        needs.slot((scope.path, kind), key)
        return needs

    def slot(self, name: Name, key: str | None) -> None:
        """Ask for the head of a stream, and what is stored under a key of it."""
        self.heads.add(name)
        if key is not None:
            self.keys.setdefault(name, set()).add(key)

    def add(self, more: Needs) -> None:
        """Ask for more."""
        self.heads |= more.heads
        self.whole |= more.whole
        for name, keys in more.keys.items():
            self.keys.setdefault(name, set()).update(keys)

    def __bool__(self) -> bool:
        """Tell whether anything is asked for."""
        return bool(self.heads or self.keys or self.whole)


class Found(Struct):
    """What a store has found; a head or a slot that was looked for and is not there is None."""

    heads: dict[Name, Head | None] = field(default_factory=dict)
    slots: dict[Name, dict[str, Slot | None]] = field(default_factory=dict)
    whole: set[Name] = field(default_factory=set)
    """The streams of which all slots were found."""

    def take(self, more: Found) -> None:
        """Add what was found since."""
        self.heads |= more.heads
        self.whole |= more.whole
        for name, slots in more.slots.items():
            self.slots.setdefault(name, {}).update(slots)


class UnknownError(MnemicError):
    """A plan needs to know more of the store; never seen outside."""

    def __init__(self, needs: Needs) -> None:
        super().__init__("a plan needs to know more")
        self.needs = needs


class New(Struct, frozen=True):
    """The id of a stream that is not stored yet; one that is dropped and made again is another."""

    name: Name
    number: int


class LoadedGround(Ground):
    """Streams as they were found."""

    def __init__(self, found: Found, moment: int, payload: Callable[[Record], Any]) -> None:
        super().__init__(moment)
        self.found = found
        self._payload = payload
        self.changes = Changes()
        self.dropped: list[Head] = []

    def read_head(self, name: Name) -> Head | None:
        """Return the head of a stream as it was found."""
        if name not in self.found.heads:
            raise UnknownError(Needs(heads={name}))
        head = self.found.heads[name]
        return None if head is None else head.copy()

    def add_head(self, head: Head) -> None:
        """Give it an id for as long as it is planned with."""
        head.id = New((head.scope, head.kind), len(self.dropped))

    def drop_head(self, head: Head) -> None:
        """Note that the stream goes."""
        self.dropped.append(head)

    def payload(self, record: Record) -> Any:
        """Return what the back-end makes of a record."""
        return self._payload(record)

    def attempt(self, write: Write, payloads: Sequence[Any]) -> list[Outcome] | Exception:
        """Plan one write after those before it; return what it does, or why it is not done."""
        self.mark()
        dirty, dropped = set(self.dirty), len(self.dropped)
        plan = LoadedPlan(self)
        try:
            outcomes = plan.run(write, payloads)
        except UnknownError:
            raise
        except Exception as error:
            self.rewind()
            self.dirty = dirty
            del self.dropped[dropped:]
            return error
        self.changes.take(plan)
        return outcomes

    def heads_to_set(self) -> list[Head]:
        """Return the heads that are new or have changed."""
        return [head for name in sorted(self.dirty) if (head := self.heads[name]) is not None]


class Changes:
    """What the plans on a ground leave to be written, by stream."""

    def __init__(self) -> None:
        self.slots: dict[Any, dict[str, Slot | None]] = {}
        """By the id of its head and its key, each slot as the plans so far leave it; None if it is gone."""
        self.put: dict[Name, dict[int, Slot]] = {}
        """By seq, the records to put."""
        self.removed: dict[Name, dict[int, Slot]] = {}
        """By seq, the stored records to remove; their derived values go with them."""
        self.lost_labels: dict[Name, list[tuple[int, dict[str, str]]]] = {}
        self.derived: dict[Name, dict[tuple[int, str], tuple[int, bytes | None]]] = {}
        """By seq and name, the derived values to keep, with the version they are of, or to remove if None."""

    def take(self, plan: LoadedPlan) -> None:
        """Add what a plan changes."""
        for head, seq, labels in plan.lost_labels:
            self.lost_labels.setdefault((head.scope, head.kind), []).append((seq, labels))
        for head, slot in plan.removed:
            name = (head.scope, head.kind)
            was_put = self.put.get(name, {}).pop(slot.seq, None)
            if was_put is None or was_put.stored:
                self.removed.setdefault(name, {})[slot.seq] = slot
            self._forget_derived(name, slot.seq)
        for (id, key), slot_now in plan.slots.items():
            name = plan.names[id]
            before = self.slots.get(id, {}).get(key)
            if slot_now is None and before is not None and not before.stored:
                # A plan before has added it, so there is nothing to remove and nothing to put.
                self.put.get(name, {}).pop(before.seq, None)
                self._forget_derived(name, before.seq)
            self.slots.setdefault(id, {})[key] = slot_now
            if slot_now is not None and slot_now.payload is not None:
                self.put.setdefault(name, {})[slot_now.seq] = slot_now
                for derived, value in slot_now.derived.items():
                    kept = self.derived.setdefault(name, {})
                    kept[slot_now.seq, derived] = (slot_now.version, value)
        for (id, seq, derived), kept_now in plan.derived.items():
            self.derived.setdefault(plan.names[id], {})[seq, derived] = kept_now

    def _forget_derived(self, name: Name, seq: int) -> None:
        if kept := self.derived.get(name):
            self.derived[name] = {at: value for at, value in kept.items() if at[0] != seq}

    @property
    def names(self) -> set[Name]:
        """The streams of which anything but the head changes."""
        return {*self.put, *self.removed, *self.lost_labels, *self.derived}


class LoadedPlan(Plan):
    """One write on streams and slots that were loaded."""

    ahead = EVICTED_AT_ONCE

    def __init__(self, ground: LoadedGround) -> None:
        super().__init__(ground)
        self.loaded = ground
        self.names: dict[Any, Name] = {}

    def read_slot(self, head: Head, key: str) -> Slot | None:
        """Return what was found under a key."""
        (slot,) = self._known(head, [key])
        return slot

    def read_slots(self, head: Head, keys: list[str]) -> Iterable[Slot]:
        """Return what was found under many keys."""
        return [slot for slot in self._known(head, keys) if slot is not None]

    def wipe(self, head: Head, keep: tuple[str, ...], *, expired_only: bool) -> None:
        """Remove all records of a stream but those to keep, or those that have expired; set its totals."""
        keys = {key for id, key in self.slots if id == head.id}
        keys.update(self.loaded.changes.slots.get(head.id, ()))
        if not isinstance(head.id, New):
            name = (head.scope, head.kind)
            if name not in self.loaded.found.whole:
                raise UnknownError(Needs(whole={name}))
            keys.update(self.loaded.found.slots.get(name, ()))
        kept, version = set(keep), head.version
        soonest: int | None = None
        count = weight = 0
        for slot in self._known(head, sorted(keys)):
            if slot is None:
                continue
            past = slot.expires is not None and slot.expires <= self.ground.moment
            if past if expired_only else slot.key not in kept:
                self.remove(head, slot)
                continue
            count += 1
            weight += slot.weight
            if slot.expires is not None and (soonest is None or slot.expires < soonest):
                soonest = slot.expires
        # What wipes counts what it removes by itself; what had expired a store may have removed before.
        head.version, head.soonest, head.count, head.weight = version, soonest, count, weight

    def _known(self, head: Head, keys: Sequence[str]) -> list[Slot | None]:
        name = (head.scope, head.kind)
        self.names[head.id] = name
        new = isinstance(head.id, New)
        changed = self.loaded.changes.slots.get(head.id, {})
        found = {} if new else self.loaded.found.slots.get(name, {})
        whole = new or name in self.loaded.found.whole
        slots: list[Slot | None] = []
        missing = set()
        for key in keys:
            if (head.id, key) in self.slots:
                slots.append(self.slots[head.id, key])
            elif key in changed:
                slots.append(_again(changed[key]))
            elif key in found:
                slots.append(_again(found[key]))
            elif whole:
                slots.append(None)
            else:
                missing.add(key)
        if missing:
            raise UnknownError(Needs(keys={name: missing}))
        return slots

    def _find(self, head: Head, keys: Iterable[str]) -> None:
        self.names[head.id] = (head.scope, head.kind)
        super()._find(head, keys)


def _again(slot: Slot | None) -> Slot | None:
    """Return a slot that another plan may change on its own."""
    if slot is None:
        return None
    twin = Slot(slot.key, slot.seq, slot.version, slot.created, slot.weight, slot.labels, slot.expires)
    twin.stored = slot.stored
    return twin
