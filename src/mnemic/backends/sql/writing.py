"""The write path: the operations of many writes, turned into few statements within one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import json

from ...checks import MICROSECOND, from_microseconds
from ...records import Ref, Scope
from ...store.query import Delete, Derive, Expect, Limit, Outcome, Purge, Put, Touch, Write
from ...store.rules import check_expected, check_limit, check_version, over_limit
from .sqlite import Connection
from .statements import Statements

KEYS_AT_ONCE = 200
"""How many keys one statement looks up."""
REMEMBERED = 24 * 3600 * 1_000_000
"""How long the id of a write is remembered, in microseconds."""

Name = tuple[str, str]
"""A stream's scope and kind."""

_labels = json.Decoder(dict[str, str]).decode
_outcomes = json.Decoder(list[Outcome]).decode


class Head:
    """A stream's row, as this transaction will leave it."""

    __slots__ = (
        "count", "created", "expires", "id", "kind", "last_seq", "scope", "soonest", "ttl", "updated",
        "version", "weight",
    )  # fmt: skip

    def __init__(self, row: Sequence[Any]) -> None:
        (
            self.id, self.scope, self.kind, self.last_seq, self.version, self.count, self.weight,
            self.created, self.updated, self.ttl, self.expires, self.soonest,
        ) = row  # fmt: skip

    def row(self) -> dict[str, Any]:
        """Return the values of the streams table."""
        return {name: getattr(self, name) for name in Head.__slots__}

    def copy(self) -> Head:
        """Return another head that can change on its own."""
        twin = Head.__new__(Head)
        for name in Head.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


class Slot:
    """A record that is there, as this write will leave it."""

    __slots__ = ("created", "derived", "labels", "row", "seq", "stored", "version", "weight")

    def __init__(self, row: Sequence[Any]) -> None:
        _key, self.seq, self.version, self.created, self.weight, labels = row
        self.labels: dict[str, str] = _labels(labels) if labels else {}
        self.stored = True
        self.row: dict[str, Any] | None = None
        self.derived: dict[str, bytes] = {}


class SqlTransaction:
    """A transaction that has begun, and the heads of the streams that it has touched."""

    def __init__(self, connection: Connection, sql: Statements, moment: int) -> None:
        self.connection = connection
        self.sql = sql
        self.moment = moment
        self.now = from_microseconds(moment)
        self.heads: dict[Name, Head | None] = {}
        self.dirty: set[Name] = set()
        self._before: dict[Name, Head | None] | None = None

    def save(self) -> None:
        """Mark the point to which `restore` goes back."""
        self.connection.raw.execute("SAVEPOINT one_write")
        self._before = {}

    def restore(self, error: Exception) -> Exception:
        """Undo what came after the mark and return the error in our words; raise it if all is undone."""
        if not self.connection.raw.in_transaction:
            raise error
        self.connection.raw.execute("ROLLBACK TO one_write")
        self.heads.update(self._before or {})
        return self.connection.file.explain(error)

    def finish(self) -> None:
        """Write the heads that changed."""
        heads = (self.heads[name] for name in self.dirty)
        self.connection.many(self.sql.set_head, [head.row() for head in heads if head is not None])

    def enter(self, name: Name) -> int:
        """Begin to use a stream in a write: take out what has expired, and return how much that was."""
        if name in self.heads:
            head = self.heads[name]
        else:
            row = self.connection.one(self.sql.head, {"scope": name[0], "kind": name[1]})
            head = self.heads[name] = Head(row) if row is not None else None
        if self._before is not None:
            self._before[name] = head.copy() if head else None
        if head is None:
            return 0
        if head.expires is not None and head.expires <= self.moment:
            head.ttl = None
            self.touch(head)
            return self.purge(head, ())
        if head.soonest is not None and head.soonest <= self.moment:
            values = {"stream_id": head.id, "now": self.moment}
            self.connection.run(self.sql.remove_expired, values)
            return self._recount(head)
        return 0

    def make(self, name: Name) -> Head:
        """Return the stream's head, made if there is none."""
        head = self.heads[name]
        if head is None:
            head = Head((0, *name, 0, 0, 0, 0, self.moment, self.moment, None, None, None))
            head.id = self.connection.run(self.sql.add_head, head.row())
            self.heads[name] = head
        return head

    def touch(self, head: Head) -> None:
        """Note that something in the stream is written now."""
        head.updated = self.moment
        head.expires = None if head.ttl is None else self.moment + head.ttl
        self.dirty.add((head.scope, head.kind))

    def drop(self, head: Head) -> None:
        """Remove a stream itself, once it is empty."""
        self.connection.run(self.sql.remove_head, {"id": head.id})
        self.heads[head.scope, head.kind] = None

    def purge(self, head: Head, keep: tuple[str, ...]) -> int:
        """Remove all records of a stream but those of the keys in `keep`."""
        if not head.count:
            return 0
        values = {"stream_id": head.id, **{f"key_{n}": key for n, key in enumerate(keep)}}
        self.connection.run(self.sql.purge(len(keep)), values)
        return self._recount(head)

    def _recount(self, head: Head) -> int:
        values = {"stream_id": head.id}
        before = head.count
        self.connection.run(self.sql.remove_lost_labels, values)
        self.connection.run(self.sql.remove_lost_derived, values)
        head.count, head.weight, head.soonest = self.connection.one(self.sql.totals, values)
        removed: int = before - head.count
        head.version += removed
        if removed:
            self.touch(head)
        self.dirty.add((head.scope, head.kind))
        return removed


class WriteRun:
    """One write within a transaction: works out what changes, then changes it in few statements."""

    def __init__(self, tx: SqlTransaction) -> None:
        self.tx = tx
        self.entered: set[Name] = set()
        self.swept = 0
        self.slots: dict[tuple[int, str], Slot | None] = {}
        self.removed: list[dict[str, Any]] = []
        self.lost_labels: list[dict[str, Any]] = []
        self.derived: dict[tuple[int, int, str], dict[str, Any]] = {}

    def run(self, write: Write, rows: Sequence[dict[str, Any] | None]) -> list[Outcome]:
        """Do the operations; `rows` holds the row of each Put. Raises ConflictError or LimitError."""
        tx = self.tx
        if write.id is not None:
            done = tx.connection.one(tx.sql.written, {"id": write.id})
            if done is not None:
                return _outcomes(done[0])
        if len(write.ops) > 1:
            self._look_ahead(write)
        outcomes = [self._do(op, row) for op, row in zip(write.ops, rows, strict=True)]
        self._flush()
        if write.id is not None:
            tx.connection.run(tx.sql.forget_writes, {"before": tx.moment - REMEMBERED})
            encoded = json.encode(outcomes).decode()
            tx.connection.run(tx.sql.note_write, {"id": write.id, "done": tx.moment, "outcomes": encoded})
        return outcomes

    def _do(self, op: Any, row: dict[str, Any] | None) -> Outcome:
        if isinstance(op, Put):
            assert row is not None
            return self._put(op, row)
        if isinstance(op, Delete):
            return self._delete(op)
        if isinstance(op, Derive):
            return self._derive(op)
        head = self._head(op.scope, op.kind)
        if isinstance(op, Expect):
            version = head.version if head else 0
            if op.key is not None:
                slot = self._slot(head, op.key) if head else None
                version = slot.version if slot else 0
            check_expected(op, version)
            return Outcome(version=version)
        if isinstance(op, Touch):
            head = head or self.tx.make((op.scope.path, op.kind))
            head.ttl = None if op.ttl is None else op.ttl // MICROSECOND
            self.tx.touch(head)
            return Outcome()
        if head is None:
            return Outcome()
        if isinstance(op, Limit):
            removed = self._limit(op, head)
            return Outcome(removed=removed, count=head.count, weight=head.weight)
        return Outcome(count=self.swept + self._purge(op, head))

    def _head(self, scope: Scope, kind: str) -> Head | None:
        """Return the stream's head; the first time in this write, with what has expired taken out."""
        name = (scope.path, kind)
        self.swept = 0
        if name not in self.entered:
            self.entered.add(name)
            self.swept = self.tx.enter(name)
        return self.tx.heads[name]

    def _put(self, op: Put, row: dict[str, Any]) -> Outcome:
        head = self._head(op.record.scope, op.record.kind) or self.tx.make(
            (op.record.scope.path, op.record.kind)
        )
        slot = self._slot(head, op.record.key)
        check_version(op.record.ref, op.if_version, slot.version if slot else 0)
        moment = self.tx.moment
        head.version += 1
        if slot is None:
            head.last_seq += 1
            head.count += 1
            slot = Slot((op.record.key, head.last_seq, 0, moment, 0, None))
            slot.stored = False
            self.slots[head.id, op.record.key] = slot
        head.weight += op.record.weight - slot.weight
        if row["expires"] is not None and (head.soonest is None or row["expires"] < head.soonest):
            head.soonest = row["expires"]
        if slot.labels and slot.stored:
            self._lose_labels(head, slot)
        slot.version, slot.weight, slot.labels = head.version, op.record.weight, op.record.labels
        slot.derived = op.record.derived
        created = op.record.created
        if created is None:
            row["created"] = slot.created
            created = self.tx.now if slot.created == moment else from_microseconds(slot.created)
        else:
            slot.created = row["created"]
        row["stream_id"], row["seq"], row["version"], row["updated"] = head.id, slot.seq, slot.version, moment
        slot.row = row
        self.tx.touch(head)
        return Outcome(slot.seq, slot.version, created, self.tx.now)

    def _delete(self, op: Delete) -> Outcome:
        head = self._head(op.ref.scope, op.ref.kind)
        slot = self._slot(head, op.ref.key) if head else None
        check_version(op.ref, op.if_version, slot.version if slot else 0)
        if head is None or slot is None:
            return Outcome()
        self._remove(head, op.ref.key, slot)
        return Outcome(removed=(op.ref.key,))

    def _derive(self, op: Derive) -> Outcome:
        head = self._head(op.ref.scope, op.ref.kind)
        slot = self._slot(head, op.ref.key) if head else None
        if head is None or slot is None or (op.version is not None and op.version != slot.version):
            return Outcome()
        place = {"stream_id": head.id, "seq": slot.seq, "name": op.name}
        self.derived[head.id, slot.seq, op.name] = place | {"version": op.version or 0, "value": op.value}
        return Outcome(count=1)

    def _limit(self, op: Limit, head: Head) -> tuple[str, ...]:
        removed: list[str] = []
        if op.evict and over_limit(op, head.count, head.weight):
            surely = op.evict[: max(0, head.count - op.max_count)] if op.max_count is not None else ()
            if len(surely) > 1:
                self._find(head, (key for group in surely for key in group))
            for group in op.evict:
                if not over_limit(op, head.count, head.weight):
                    break
                for key in group:
                    if (slot := self._slot(head, key)) is not None:
                        self._remove(head, key, slot)
                        removed.append(key)
        check_limit(op, head.count, head.weight)
        return tuple(removed)

    def _purge(self, op: Purge, head: Head) -> int:
        if op.expired_only and not op.drop:
            return 0
        self._flush()
        for name in [name for name in self.slots if name[0] == head.id]:
            del self.slots[name]
        removed = self.tx.purge(head, () if op.drop else op.keep)
        if op.drop:
            self.tx.drop(head)
        return removed

    def _remove(self, head: Head, key: str, slot: Slot) -> None:
        if slot.stored:
            self.removed.append({"stream_id": head.id, "seq": slot.seq})
            self._lose_labels(head, slot)
        if self.derived:
            self.derived = {at: row for at, row in self.derived.items() if at[:2] != (head.id, slot.seq)}
        self.slots[head.id, key] = None
        head.version += 1
        head.count -= 1
        head.weight -= slot.weight
        self.tx.touch(head)

    def _lose_labels(self, head: Head, slot: Slot) -> None:
        for name, value in slot.labels.items():
            self.lost_labels.append({"stream_id": head.id, "name": name, "value": value, "seq": slot.seq})

    def _slot(self, head: Head, key: str) -> Slot | None:
        name = (head.id, key)
        if name not in self.slots:
            row = self.tx.connection.one(self.tx.sql.slot, {"stream_id": head.id, "key": key})
            self.slots[name] = Slot(row) if row is not None else None
        return self.slots[name]

    def _find(self, head: Head, keys: Iterable[str]) -> None:
        """Look many keys of one stream up at once."""
        wanted = [key for key in dict.fromkeys(keys) if (head.id, key) not in self.slots]
        if not head.count:
            self.slots.update(((head.id, key), None) for key in wanted)
            return
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            chunk = wanted[start : start + KEYS_AT_ONCE]
            # Padding with the last key keeps the number of different statements to two.
            padded = chunk + chunk[-1:] * (KEYS_AT_ONCE - len(chunk) if len(wanted) > KEYS_AT_ONCE else 0)
            values = {"stream_id": head.id, **{f"key_{n}": key for n, key in enumerate(padded)}}
            self.slots.update(((head.id, key), None) for key in chunk)
            for row in self.tx.connection.all(self.tx.sql.slots(len(padded)), values):
                self.slots[head.id, row[0]] = Slot(row)

    def _look_ahead(self, write: Write) -> None:
        """Look up what the operations will ask for, stream by stream."""
        asked: dict[tuple[Scope, str], list[str]] = {}
        for op in write.ops:
            ref: Ref | None = op.record.ref if isinstance(op, Put) else getattr(op, "ref", None)
            if ref is not None:
                asked.setdefault((ref.scope, ref.kind), []).append(ref.key)
        for (scope, kind), keys in asked.items():
            head = self._head(scope, kind) if len(keys) > 1 else None
            if head is not None:
                self._find(head, keys)

    def _flush(self) -> None:
        """Bring the tables to where the slots are."""
        connection, sql = self.tx.connection, self.tx.sql
        changed = [slot for slot in self.slots.values() if slot is not None and slot.row is not None]
        connection.many(sql.remove, self.removed)
        connection.many(sql.remove_label, self.lost_labels)
        connection.many(sql.remove_derived, self.removed)
        connection.many(sql.set, [slot.row for slot in changed if slot.stored and slot.row])
        connection.many(sql.add, [slot.row for slot in changed if not slot.stored and slot.row])
        connection.many(
            sql.add_label,
            [
                {"stream_id": slot.row["stream_id"], "name": name, "value": value, "seq": slot.seq}
                for slot in changed
                if slot.row
                for name, value in slot.labels.items()
            ],
        )
        self._flush_derived(changed)
        self.removed, self.lost_labels = [], []
        for slot in changed:
            slot.stored, slot.row = True, None

    def _flush_derived(self, changed: list[Slot]) -> None:
        connection, sql = self.tx.connection, self.tx.sql
        kept = [
            {
                "stream_id": slot.row["stream_id"],
                "seq": slot.seq,
                "name": name,
                "version": slot.version,
                "value": value,
            }
            for slot in changed
            if slot.row
            for name, value in slot.derived.items()
        ]
        for values in self.derived.values():
            if values["value"] is None:
                connection.run(sql.remove_one_derived, values)
            else:
                kept.append(values)
        connection.many(sql.keep_derived, kept)
        self.derived = {}
