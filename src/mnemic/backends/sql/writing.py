"""The write path: turns the changes of a plan into few statements in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import json

from ...checks import shown
from ...errors import UnreadableStoreError
from ...records import Record
from ...store.planning import Ground, Head, Name, Plan, Slot
from ...store.query import Outcome, Write
from .reading import KEYS_AT_ONCE
from .rows import to_row
from .sqlite import Connection
from .statements import Statements

_labels = json.Decoder(dict[str, str]).decode


class SqlTransaction(Ground):
    """A started transaction, with the heads of the streams that it has touched."""

    def __init__(self, connection: Connection, sql: Statements, moment: int) -> None:
        super().__init__(moment)
        self.connection = connection
        self.sql = sql

    def payload(self, record: Record) -> dict[str, Any]:
        """Return the row of a record."""
        return to_row(record)

    def save(self) -> None:
        """Set the savepoint for `restore`."""
        self.connection.raw.execute("SAVEPOINT one_write")
        self.mark()

    def restore(self, error: Exception) -> Exception:
        """Roll back to the savepoint and return the mapped error; raise it if all was rolled back."""
        if not self.connection.raw.in_transaction:
            raise error
        self.connection.raw.execute("ROLLBACK TO one_write")
        self.rewind()
        return self.connection.file.explain(error)

    def finish(self) -> None:
        """Write the changed heads."""
        heads = (self.heads[name] for name in self.dirty)
        self.connection.many(self.sql.set_head, [head.row() for head in heads if head is not None])

    def read_head(self, name: Name) -> Head | None:
        """Return the stored head of a stream."""
        row = self.connection.one(self.sql.head, {"scope": name[0], "kind": name[1]})
        return Head(row) if row is not None else None

    def add_head(self, head: Head) -> None:
        """Insert the stream's row, which assigns its id."""
        head.id = self.connection.run(self.sql.add_head, head.row())

    def drop_head(self, head: Head) -> None:
        """Delete the stream's row."""
        self.connection.run(self.sql.remove_head, {"id": head.id})


class SqlPlan(Plan):
    """One write within a transaction."""

    def __init__(self, tx: SqlTransaction) -> None:
        super().__init__(tx)
        self.tx = tx

    def write(self, write: Write, rows: Sequence[dict[str, Any] | None]) -> list[Outcome]:
        """Run the operations; `rows` has the row of each Put. Raises ConflictError or LimitError."""
        outcomes = self.run(write, rows)
        self._flush()
        return outcomes

    def read_slot(self, head: Head, key: str) -> Slot | None:
        """Return the stored slot of a key."""
        row = self.tx.connection.one(self.tx.sql.slot, {"stream_id": head.id, "key": key})
        return to_slot(row) if row is not None else None

    def read_slots(self, head: Head, keys: list[str]) -> Iterable[Slot]:
        """Return the stored slots of several keys of a stream."""
        for start in range(0, len(keys), KEYS_AT_ONCE):
            chunk = keys[start : start + KEYS_AT_ONCE]
            # Padding with the last key limits the number of distinct statements to two.
            padded = chunk + chunk[-1:] * (KEYS_AT_ONCE - len(chunk) if len(keys) > KEYS_AT_ONCE else 0)
            values = {"stream_id": head.id, **{f"key_{n}": key for n, key in enumerate(padded)}}
            yield from map(to_slot, self.tx.connection.all(self.tx.sql.slots(len(padded)), values))

    def wipe(self, head: Head, keep: tuple[str, ...], *, expired_only: bool) -> None:
        """Remove all records of a stream except `keep`, or only expired ones; update its totals."""
        connection, sql = self.tx.connection, self.tx.sql
        self._flush()
        for at in [at for at in self.slots if at[0] == head.id]:
            del self.slots[at]
        values: dict[str, Any] = {"stream_id": head.id, "now": self.tx.moment}
        if expired_only:
            connection.run(sql.remove_expired, values)
        else:
            connection.run(sql.purge(len(keep)), values | {f"key_{n}": key for n, key in enumerate(keep)})
        connection.run(sql.remove_lost_labels, values)
        connection.run(sql.remove_lost_derived, values)
        head.count, head.weight, head.soonest = connection.one(sql.totals, values)

    def _flush(self) -> None:
        """Write the changed slots to the tables."""
        connection, sql, moment = self.tx.connection, self.tx.sql, self.tx.moment
        changed = self.changed()
        for id, slot in changed:
            slot.payload |= {
                "stream_id": id,
                "seq": slot.seq,
                "version": slot.version,
                "created": slot.created,
                "updated": moment,
            }
        if self.removed:
            removed = [{"stream_id": head.id, "seq": slot.seq} for head, slot in self.removed]
            connection.many(sql.remove, removed)
            connection.many(sql.remove_derived, removed)
        if self.lost_labels:
            connection.many(
                sql.remove_label,
                [
                    {"stream_id": head.id, "name": name, "value": value, "seq": seq}
                    for head, seq, labels in self.lost_labels
                    for name, value in labels.items()
                ],
            )
        connection.many(sql.set, [slot.payload for _, slot in changed if slot.stored])
        connection.many(sql.add, [slot.payload for _, slot in changed if not slot.stored])
        connection.many(
            sql.add_label,
            [
                {"stream_id": id, "name": name, "value": value, "seq": slot.seq}
                for id, slot in changed
                for name, value in slot.labels.items()
            ],
        )
        self._flush_derived(changed)
        self.removed.clear()
        self.lost_labels.clear()
        for _, slot in changed:
            slot.stored, slot.payload = True, None

    def _flush_derived(self, changed: list[tuple[Any, Slot]]) -> None:
        connection, sql = self.tx.connection, self.tx.sql
        kept = [
            _derived(id, slot.seq, name, slot.version, value)
            for id, slot in changed
            for name, value in slot.derived.items()
        ]
        for (id, seq, name), (version, value) in self.derived.items():
            values = _derived(id, seq, name, version, value)
            if value is None:
                connection.run(sql.remove_one_derived, values)
            else:
                kept.append(values)
        connection.many(sql.keep_derived, kept)
        self.derived.clear()


def to_slot(row: Sequence[Any]) -> Slot:
    """Return a slot from the columns of `SLOT`."""
    key, seq, version, created, weight, labels, expires = row
    try:
        held = _labels(labels) if labels else {}
    except ValueError as error:
        raise UnreadableStoreError(f"the labels of the record {shown(key)} are damaged ({error})") from error
    return Slot(key, seq, version, created, weight, held, expires)


def _derived(id: int, seq: int, name: str, version: int, value: bytes | None) -> dict[str, Any]:
    return {"stream_id": id, "seq": seq, "name": name, "version": version, "value": value}
