"""The write path of SQLite: loads what a write needs and applies the planned changes, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...store.planning import Needs, NeedsMoreError, RecordState, StreamChange, StreamName, plan_writes
from ...store.query import Outcome, Write
from .reading import KEYS_AT_ONCE
from .rows import LoadedRows, stream_values, to_record_state, to_row, to_stream
from .sqlite import Connection
from .statements import Statements


class SqlTransaction:
    """A started transaction."""

    def __init__(self, connection: Connection, sql: Statements, moment: int) -> None:
        self.connection = connection
        self.sql = sql
        self.moment = moment

    def save(self) -> None:
        """Set the savepoint for `restore`."""
        self.connection.raw.execute("SAVEPOINT one_write")

    def restore(self, error: Exception) -> Exception:
        """Roll back to the savepoint and return the mapped error; raise it if all was rolled back."""
        if not self.connection.raw.in_transaction:
            raise error
        self.connection.raw.execute("ROLLBACK TO one_write")
        return self.connection.file.explain(error)

    def write(self, write: Write) -> list[Outcome]:
        """Run a write; raises ConflictError or LimitError."""
        loaded, needs = LoadedRows(), Needs.of((write,))
        while True:
            self._load(needs, loaded)
            try:
                plan = plan_writes(loaded, (write,), self.moment)
                break
            except NeedsMoreError as error:
                needs = error.needs
        (result,) = plan.results
        if isinstance(result, Exception):
            raise result
        for change in plan.changes:
            self._apply(change, loaded.ids.get(change.name, 0))
        return result

    def _load(self, needs: Needs, loaded: LoadedRows) -> None:
        for name in needs.streams:
            row = self.connection.one(self.sql.head, {"scope": name[0], "kind": name[1]})
            loaded.streams[name] = stream = None if row is None else to_stream(row)
            if stream is not None:
                loaded.ids[name] = stream.id
        for name, keys in needs.keys.items():
            records: dict[str, RecordState | None] = loaded.records.setdefault(name, {})
            records |= dict.fromkeys(keys)
            records |= {record.key: record for record in self._find(name, loaded, list(keys))}
        for name in needs.whole:
            rows = self.connection.all(self.sql.all_slots, {"stream_id": loaded.ids[name]})
            loaded.records[name] = {record.key: record for record in map(to_record_state, rows)}
            loaded.whole.add(name)

    def _find(self, name: StreamName, loaded: LoadedRows, keys: list[str]) -> Iterator[RecordState]:
        if (id := loaded.ids.get(name)) is None:
            return
        for start in range(0, len(keys), KEYS_AT_ONCE):
            chunk = keys[start : start + KEYS_AT_ONCE]
            # Padding with the last key limits the number of distinct statements.
            padded = chunk + chunk[-1:] * (KEYS_AT_ONCE - len(chunk) if len(keys) > KEYS_AT_ONCE else 0)
            values = {"stream_id": id, **{f"key_{n}": key for n, key in enumerate(padded)}}
            yield from map(to_record_state, self.connection.all(self.sql.slots(len(padded)), values))

    def _apply(self, change: StreamChange, id: int) -> None:
        connection, sql = self.connection, self.sql
        if change.cleared:
            keys = {f"key_{n}": record.key for n, record in enumerate(change.spared)}
            connection.run(sql.purge(len(keys)), {"stream_id": id, **keys})
            connection.run(sql.remove_lost_labels, {"stream_id": id})
            connection.run(sql.remove_lost_derived, {"stream_id": id})
        if change.dropped:
            connection.run(sql.remove_head, {"id": id})
        if change.after is not None and (change.before is None or change.dropped):
            id = connection.run(sql.add_head, stream_values(change.after, 0))
        elif change.after is not None and change.after is not change.before:
            connection.run(sql.set_head, stream_values(change.after, id))
        if change.removed:
            removed = [{"stream_id": id, "seq": record.seq} for record in change.removed]
            connection.many(sql.remove, removed)
            connection.many(sql.remove_derived, removed)
        lost = [*change.lost_labels.items(), *((record.seq, record.labels) for record in change.removed)]
        connection.many(sql.remove_label, [row for seq, labels in lost for row in _labels(id, seq, labels)])
        connection.many(sql.set, [to_row(record, id) for record in change.replaced])
        connection.many(sql.add, [to_row(record, id) for record in change.added])
        put = (*change.replaced, *change.added)
        connection.many(sql.add_label, [row for record in put for row in _labels(id, record.seq, record.labels)])
        for derived in change.derived:
            statement = sql.remove_one_derived if derived.value is None else sql.keep_derived
            connection.run(statement, {"stream_id": id, **derived._asdict()})


def _labels(id: int, seq: int, labels: dict[str, str]) -> list[dict[str, Any]]:
    return [{"stream_id": id, "name": name, "value": value, "seq": seq} for name, value in labels.items()]
