"""Write planning for every back-end: computes what a write changes.

A `Ground` is the known state of the store, the heads of streams, while one or more writes are planned. A `Plan`
is one write: it checks versions, assigns seqs, applies limits, and collects what to put and remove. A back-end
implements how heads and slots are read and how the changes are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from ..checks import MICROSECOND, from_microseconds, to_microseconds
from ..records import ONCE_KIND, Record, Ref, ScopePath, Stream, known_scope
from .once import ONCE_MICROSECONDS, DoneBeforeError, note_of, note_ref
from .query import Delete, Derive, Expect, Limit, Outcome, Purge, Put, Touch, Write, place_of
from .rules import check_expected, check_limit, check_version, over_limit

__all__ = ["Ground", "Head", "Name", "Plan", "Slot"]

Name = tuple[str, str]
"""Scope path and kind of a stream."""


class Head:
    """Totals of a stream, as the planned writes leave them; times are in microseconds."""

    __slots__ = (
        "count", "created", "expires", "id", "kind", "last_seq", "scope", "settings", "soonest", "ttl",
        "updated", "version", "weight",
    )  # fmt: skip

    def __init__(self, row: Sequence[Any]) -> None:
        """Take the values in column order; `id` is defined by the back-end."""
        self.id: Any
        self.scope: str
        self.kind: str
        self.last_seq: int
        self.version: int
        self.count: int
        self.weight: int
        self.created: int
        self.updated: int
        self.ttl: int | None
        self.expires: int | None
        self.soonest: int | None
        self.settings: str | None
        (
            self.id, self.scope, self.kind, self.last_seq, self.version, self.count, self.weight,
            self.created, self.updated, self.ttl, self.expires, self.soonest, self.settings,
        ) = row  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return the values as a dict."""
        return dict(zip(Head.__slots__, _values(self), strict=True))

    def copy(self) -> Head:
        """Return an independent copy."""
        twin = Head.__new__(Head)
        for name in Head.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def ended(self, moment: int) -> bool:
        """Return whether the whole stream has expired."""
        return self.expires is not None and self.expires <= moment

    def stream(self, count: int, weight: int) -> Stream:
        """Return the stream with its unexpired count and weight."""
        return Stream(
            scope=known_scope(self.scope),
            kind=self.kind,
            count=count,
            weight=weight,
            last_seq=self.last_seq,
            version=self.version,
            created=from_microseconds(self.created),
            updated=from_microseconds(self.updated),
            expires=None if self.expires is None else from_microseconds(self.expires),
            ttl=None if self.ttl is None else self.ttl * MICROSECOND,
            settings=self.settings,
        )


_values = attrgetter(*Head.__slots__)


class Slot:
    """A stored record's state, as the plan leaves it."""

    __slots__ = (
        "created", "derived", "expires", "key", "labels", "payload", "seq", "stored", "version", "weight",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        seq: int,
        version: int,
        created: int,
        weight: int,
        labels: dict[str, str],
        expires: int | None = None,
    ) -> None:
        self.key: str = key
        self.seq: int = seq
        self.version: int = version
        self.created: int = created
        self.weight: int = weight
        self.labels: dict[str, str] = labels
        self.expires: int | None = expires
        self.stored: bool = True
        """Whether the back-end stores it already."""
        self.payload: Any = None
        """The back-end's encoding of the record to put; None if the record does not change."""
        self.derived: dict[str, bytes] = {}


class Ground(ABC):
    """Known state of the store's streams during planning."""

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.now: datetime = from_microseconds(moment)
        self.heads: dict[Name, Head | None] = {}
        self.dirty: set[Name] = set()
        self._before: dict[Name, Head | None] | None = None

    @abstractmethod
    def read_head(self, name: Name) -> Head | None:
        """Return the stored head of a stream."""

    @abstractmethod
    def add_head(self, head: Head) -> None:
        """Assign the `id` of a new stream."""

    @abstractmethod
    def drop_head(self, head: Head) -> None:
        """Remove an empty stream."""

    @abstractmethod
    def payload(self, record: Record) -> Any:
        """Return the back-end's encoding of a record to put."""

    def mark(self) -> None:
        """Set the savepoint for `rewind`."""
        self._before = {}

    def rewind(self) -> None:
        """Undo the planned changes since `mark`."""
        self.heads.update(self._before or {})

    def find(self, name: Name) -> Head | None:
        """Return a stream's head when a plan first uses it."""
        if name not in self.heads:
            self.heads[name] = self.read_head(name)
        head = self.heads[name]
        if self._before is not None:
            self._before[name] = head.copy() if head else None
        return head

    def make(self, name: Name) -> Head:
        """Return the stream's head; create it if it does not exist."""
        head = self.heads[name]
        if head is None:
            head = Head((0, *name, 0, 0, 0, 0, self.moment, self.moment, None, None, None, None))
            self.add_head(head)
            self.heads[name] = head
        return head

    def touch(self, head: Head) -> None:
        """Record that the stream is written now."""
        head.updated = self.moment
        # Never earlier than before: a slow clock does not shorten the time to live.
        head.expires = None if head.ttl is None else max(self.moment + head.ttl, head.expires or 0)
        self.dirty.add((head.scope, head.kind))

    def drop(self, head: Head) -> None:
        """Remove an empty stream itself."""
        self.drop_head(head)
        self.heads[head.scope, head.kind] = None


class Plan(ABC):
    """One write: computes the changes, which the back-end then writes."""

    ahead = 1
    """How many eviction groups of a limit are looked up at once."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.entered: dict[Name, int] = {}
        """How many records of each stream that is used had expired, and were removed first."""
        self.swept: int = 0
        self.slots: dict[tuple[Any, str], Slot | None] = {}
        """Slots by head id and key; None where no record exists."""
        self.removed: list[tuple[Head, Slot]] = []
        """Stored records to remove."""
        self.lost_labels: list[tuple[Head, int, dict[str, str]]] = []
        """Labels that stored records lose, by head and seq."""
        self.derived: dict[tuple[Any, int, str], tuple[int, bytes | None]] = {}
        """Derived values with their version, by head id, seq and name; None removes one."""

    @abstractmethod
    def read_slot(self, head: Head, key: str) -> Slot | None:
        """Return the stored slot of a key."""

    @abstractmethod
    def read_slots(self, head: Head, keys: list[str]) -> Iterable[Slot]:
        """Return the stored slots of several keys of a stream."""

    @abstractmethod
    def wipe(self, head: Head, keep: tuple[str, ...], *, expired_only: bool) -> None:
        """Remove all records of a stream except `keep`, or only expired ones; update its totals."""

    def run(self, write: Write, payloads: Sequence[Any]) -> list[Outcome]:
        """Plan the operations; `payloads` has the back-end's encoding for each Put.

        Raises ConflictError, LimitError, or DoneBeforeError if the id of the write is recorded already.
        """
        note = note_ref(write)
        if note is not None:
            self._check_new(note)
        if len(write.ops) > 2 or (len(write.ops) == 2 and place_of(write.ops[1])[2] is not None):
            self._look_ahead(write)
        outcomes = [self._do(op, payload) for op, payload in zip(write.ops, payloads, strict=True)]
        if note is not None:
            self._note(note_of(write, outcomes, self.ground.now))
        return outcomes

    def changed(self) -> list[tuple[Any, Slot]]:
        """Return the slots to put, each with its head's id."""
        return [(at[0], slot) for at, slot in self.slots.items() if slot is not None and slot.payload is not None]

    def _do(self, op: Any, payload: Any) -> Outcome:
        if isinstance(op, Put):
            return self._put(op.record, op.if_version, payload)
        if isinstance(op, Delete):
            return self._delete(op)
        if isinstance(op, Derive):
            return self._derive(op)
        head = self._head(op.scope, op.kind)
        if isinstance(op, Expect):
            # As it was before this write: what has expired since is no change by another.
            version = head.version - self.entered[op.scope.path, op.kind] if head else 0
            if op.key is not None:
                slot = self._slot(head, op.key) if head else None
                version = slot.version if slot else 0
            check_expected(op, version, head.settings if head else None)
            return Outcome(version=version)
        if isinstance(op, Touch):
            head = head or self.ground.make((op.scope.path, op.kind))
            ttl = None if op.ttl is None else op.ttl // MICROSECOND
            if ttl != head.ttl:
                head.ttl, head.expires = ttl, None
            head.settings = op.settings
            self.ground.touch(head)
            return Outcome()
        if head is None:
            return Outcome()
        if isinstance(op, Limit):
            removed = self._limit(op, head)
            return Outcome(removed=removed, count=head.count, weight=head.weight)
        return Outcome(count=self.swept + self._purge(op, head))

    def _head(self, scope: ScopePath, kind: str) -> Head | None:
        """Return the stream's head; on first use in this write, expired records are removed first."""
        name = (scope.path, kind)
        self.swept = 0
        if name not in self.entered:
            self.entered[name] = self.swept = self._enter(name)
        return self.ground.heads[name]

    def _enter(self, name: Name) -> int:
        head = self.ground.find(name)
        if head is None:
            return 0
        moment = self.ground.moment
        if head.ended(moment):
            head.ttl = head.settings = None
            self.ground.touch(head)
            return self._wipe(head, ())
        if head.soonest is not None and head.soonest <= moment:
            swept = self._wipe(head, (), expired_only=True)
            if head.kind == ONCE_KIND:
                head.soonest = moment + ONCE_MICROSECONDS
            return swept
        return 0

    def _check_new(self, note: Ref) -> None:
        """Raise DoneBeforeError if the id is recorded and has not expired."""
        head = self._head(note.scope, note.kind)
        slot = self._slot(head, note.key) if head else None
        if slot is not None and (slot.expires is None or slot.expires > self.ground.moment):
            raise DoneBeforeError(f"{note.key!r} is noted")

    def _note(self, note: Record) -> None:
        """Put the id record of a write; all ids of a scope expire together once no new ones are added."""
        name = (note.scope.path, note.kind)
        before = self.ground.heads[name]
        soonest = before.soonest if before is not None else None
        self._put(note, None, self.ground.payload(note))
        head = self.ground.make(name)
        # Expired id records are collected once a day, not on every write.
        head.soonest = soonest or self.ground.moment + 2 * ONCE_MICROSECONDS
        head.ttl = 2 * ONCE_MICROSECONDS
        self.ground.touch(head)

    def _wipe(self, head: Head, keep: tuple[str, ...], *, expired_only: bool = False) -> int:
        """Remove many records at once; return how many."""
        if not head.count:
            return 0
        before = head.count
        self.wipe(head, keep, expired_only=expired_only)
        removed: int = before - head.count
        head.version += removed
        if removed:
            self.ground.touch(head)
        self.ground.dirty.add((head.scope, head.kind))
        return removed

    def _put(self, record: Record, if_version: int | None, payload: Any) -> Outcome:
        head = self._head(record.scope, record.kind) or self.ground.make((record.scope.path, record.kind))
        slot = self._slot(head, record.key)
        version = slot.version if slot else 0
        if if_version is not None and if_version != version:
            check_version(record.ref, if_version, version)
        moment = self.ground.moment
        head.version += 1
        if slot is None:
            head.last_seq += 1
            head.count += 1
            slot = Slot(record.key, head.last_seq, 0, moment, 0, {})
            slot.stored = False
            self.slots[head.id, record.key] = slot
        head.weight += record.weight - slot.weight
        slot.expires = None if record.expires is None else to_microseconds(record.expires)
        if slot.expires is not None and (head.soonest is None or slot.expires < head.soonest):
            head.soonest = slot.expires
        if slot.labels and slot.stored:
            self.lost_labels.append((head, slot.seq, slot.labels))
        slot.version, slot.weight, slot.labels = head.version, record.weight, record.labels
        slot.derived = record.derived
        created = record.created
        if created is None:
            created = self.ground.now if slot.created == moment else from_microseconds(slot.created)
        else:
            slot.created = to_microseconds(created)
        slot.payload = payload
        self.ground.touch(head)
        return Outcome(slot.seq, slot.version, created, self.ground.now, key=record.key)

    def _delete(self, op: Delete) -> Outcome:
        head = self._head(op.ref.scope, op.ref.kind)
        slot = self._slot(head, op.ref.key) if head else None
        check_version(op.ref, op.if_version, slot.version if slot else 0)
        if head is None or slot is None:
            return Outcome()
        self.remove(head, slot)
        return Outcome(removed=(op.ref.key,))

    def _derive(self, op: Derive) -> Outcome:
        head = self._head(op.ref.scope, op.ref.kind)
        slot = self._slot(head, op.ref.key) if head else None
        if head is None or slot is None or (op.version is not None and op.version != slot.version):
            return Outcome()
        self.derived[head.id, slot.seq, op.name] = (op.version or 0, op.value)
        return Outcome(count=1)

    def _limit(self, op: Limit, head: Head) -> tuple[str, ...]:
        removed: list[str] = []
        looked_up = 0
        for n, group in enumerate(op.evict):
            if not over_limit(op, head.count, head.weight):
                break
            if n == looked_up:
                surely = head.count - op.max_count if op.max_count is not None else 0
                looked_up += max(surely, self.ahead)
                self._find(head, (key for some in op.evict[n:looked_up] for key in some))
            for key in group:
                if (slot := self._slot(head, key)) is not None:
                    self.remove(head, slot)
                    removed.append(key)
        check_limit(op, head.count, head.weight)
        return tuple(removed)

    def _purge(self, op: Purge, head: Head) -> int:
        if op.expired_only and not op.drop:
            return 0
        removed = self._wipe(head, () if op.drop else op.keep)
        if op.drop:
            self.ground.drop(head)
            self.entered[head.scope, head.kind] = 0
        return removed

    def remove(self, head: Head, slot: Slot) -> None:
        """Remove a record."""
        if slot.stored:
            self.removed.append((head, slot))
            if slot.labels:
                self.lost_labels.append((head, slot.seq, slot.labels))
        if self.derived:
            self.derived = {at: value for at, value in self.derived.items() if at[:2] != (head.id, slot.seq)}
        self.slots[head.id, slot.key] = None
        head.version += 1
        head.count -= 1
        head.weight -= slot.weight
        self.ground.touch(head)

    def _slot(self, head: Head, key: str) -> Slot | None:
        name = (head.id, key)
        if name not in self.slots:
            self.slots[name] = self.read_slot(head, key)
        return self.slots[name]

    def _find(self, head: Head, keys: Iterable[str]) -> None:
        """Load several keys of one stream at once."""
        wanted = [key for key in dict.fromkeys(keys) if (head.id, key) not in self.slots]
        found = list(self.read_slots(head, wanted)) if head.count and wanted else []
        self.slots.update(((head.id, key), None) for key in wanted)
        self.slots.update(((head.id, slot.key), slot) for slot in found)

    def _look_ahead(self, write: Write) -> None:
        """Load what the operations will need, stream by stream."""
        asked: dict[Name, tuple[ScopePath, list[str]]] = {}
        for op in write.ops:
            scope, kind, key = place_of(op)
            if key is not None:
                asked.setdefault((scope.path, kind), (scope, []))[1].append(key)
        for (_, kind), (scope, keys) in asked.items():
            head = self._head(scope, kind) if len(keys) > 1 else None
            if head is not None:
                self._find(head, keys)
