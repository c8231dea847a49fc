"""Write plans for remote stores: load everything a write needs, then plan it without I/O.

If planning finds that more is needed (records of an expired stream, keys that a limit evicts), it raises
`UnknownError`. The caller loads that as well and plans again.
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

__all__ = ["MOST_OPS", "MOST_WRITES", "Changes", "Found", "LoadedGround", "LoadedPlan", "Needs", "New", "UnknownError"]

MOST_WRITES = 500
"""Maximum number of writes planned together."""
MOST_OPS = 20_000
"""Maximum number of operations planned together."""


EVICTED_AT_ONCE = 32
"""How many eviction candidates of a limit are loaded ahead."""


class Needs(Struct):
    """Data to load from a store before planning a write."""

    heads: set[Name] = field(default_factory=set)
    keys: dict[Name, set[str]] = field(default_factory=dict)
    """Keys to load, by stream."""
    whole: set[Name] = field(default_factory=set)
    """Streams to load completely."""

    @classmethod
    def of(cls, writes: Iterable[Write]) -> Needs:
        """Return the needs of these writes, as far as known in advance."""
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
        """Request the head of a stream, and the record under a key of it."""
        self.heads.add(name)
        if key is not None:
            self.keys.setdefault(name, set()).add(key)

    def add(self, more: Needs) -> None:
        """Request more."""
        self.heads |= more.heads
        self.whole |= more.whole
        for name, keys in more.keys.items():
            self.keys.setdefault(name, set()).update(keys)

    def __bool__(self) -> bool:
        """Return whether anything is requested."""
        return bool(self.heads or self.keys or self.whole)


class Found(Struct):
    """Loaded heads and slots; None for one that does not exist."""

    heads: dict[Name, Head | None] = field(default_factory=dict)
    slots: dict[Name, dict[str, Slot | None]] = field(default_factory=dict)
    whole: set[Name] = field(default_factory=set)
    """Streams that were loaded completely."""

    def take(self, more: Found) -> None:
        """Add more loaded data."""
        self.heads |= more.heads
        self.whole |= more.whole
        for name, slots in more.slots.items():
            self.slots.setdefault(name, {}).update(slots)


class UnknownError(MnemicError):
    """The plan needs data that is not loaded; internal."""

    def __init__(self, needs: Needs) -> None:
        super().__init__("a plan needs to know more")
        self.needs = needs


class New(Struct, frozen=True):
    """Temporary id of a stream that is not stored yet; a stream that is dropped and recreated gets another one."""

    name: Name
    number: int


class LoadedGround(Ground):
    """Planning state over loaded streams."""

    def __init__(self, found: Found, moment: int, payload: Callable[[Record], Any]) -> None:
        super().__init__(moment)
        self.found = found
        self._payload = payload
        self.changes: Changes = Changes()
        self.dropped: list[Head] = []

    def read_head(self, name: Name) -> Head | None:
        """Return the loaded head of a stream."""
        if name not in self.found.heads:
            raise UnknownError(Needs(heads={name}))
        head = self.found.heads[name]
        return None if head is None else head.copy()

    def add_head(self, head: Head) -> None:
        """Assign a temporary id."""
        head.id = New((head.scope, head.kind), len(self.dropped))

    def drop_head(self, head: Head) -> None:
        """Mark the stream as dropped."""
        self.dropped.append(head)

    def payload(self, record: Record) -> Any:
        """Return the back-end's encoding of a record."""
        return self._payload(record)

    def attempt(self, write: Write, payloads: Sequence[Any]) -> list[Outcome] | Exception:
        """Plan one write after the previous ones; return its outcomes, or the exception that rejects it."""
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
        """Return new and changed heads."""
        return [head for name in sorted(self.dirty) if (head := self.heads[name]) is not None]


class Changes:
    """Accumulated changes of all plans, by stream."""

    def __init__(self) -> None:
        self.slots: dict[Any, dict[str, Slot | None]] = {}
        """Slots by head id and key, as the plans so far leave them; None for a deleted one."""
        self.put: dict[Name, dict[int, Slot]] = {}
        """Records to put, by seq."""
        self.removed: dict[Name, dict[int, Slot]] = {}
        """Stored records to remove, with their derived values, by seq."""
        self.lost_labels: dict[Name, list[tuple[int, dict[str, str]]]] = {}
        self.derived: dict[Name, dict[tuple[int, str], tuple[int, bytes | None]]] = {}
        """Derived values to store with their version, or to remove if None, by seq and name."""

    def take(self, plan: LoadedPlan) -> None:
        """Add the changes of a plan."""
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
                # Added by an earlier plan, so there is nothing stored to remove.
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
        """Streams with changes other than in the head."""
        return {*self.put, *self.removed, *self.lost_labels, *self.derived}


class LoadedPlan(Plan):
    """One write over loaded streams and slots."""

    ahead = EVICTED_AT_ONCE

    def __init__(self, ground: LoadedGround) -> None:
        super().__init__(ground)
        self.loaded = ground
        self.names: dict[Any, Name] = {}

    def read_slot(self, head: Head, key: str) -> Slot | None:
        """Return the loaded slot of a key."""
        (slot,) = self._known(head, [key])
        return slot

    def read_slots(self, head: Head, keys: list[str]) -> Iterable[Slot]:
        """Return the loaded slots of several keys."""
        return [slot for slot in self._known(head, keys) if slot is not None]

    def wipe(self, head: Head, keep: tuple[str, ...], *, expired_only: bool) -> None:
        """Remove all records of a stream except `keep`, or only expired ones; update its totals."""
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
        # `wipe` counts its removals itself; the store may have removed expired records earlier.
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
    """Return a copy of a slot that another plan can change."""
    if slot is None:
        return None
    twin = Slot(slot.key, slot.seq, slot.version, slot.created, slot.weight, slot.labels, slot.expires)
    twin.stored = slot.stored
    return twin
