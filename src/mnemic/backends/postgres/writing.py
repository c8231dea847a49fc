"""The remote write path: one round trip to lock and load, a plan without I/O, one to write.

`load` locks the heads of the streams in the order of their names, so that writers never deadlock. `Flush` turns
the planned changes into statements, the last of which is COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from ...store.planning import Needs, RecordState, StreamChange, StreamName
from ..sql.rows import LoadedRows, stream_values, to_record_state, to_row, to_stream
from ..sql.schema import derived as derived_table
from ..sql.schema import labels as labels_table
from ..sql.schema import records as records_table
from ..sql.statements import Parameters, Prepared
from .links import Link
from .statements import PostgresStatements

MANY = 50
"""Number of new rows from which COPY is used instead of INSERT."""


class LostRaceError(Exception):
    """Another writer created a stream that a plan was about to create; internal."""


async def load(link: Link, sql: PostgresStatements, needs: Needs, loaded: LoadedRows, begin: str | None = None) -> None:
    """Load what is needed into `loaded`, in one round trip.

    With `begin`, it starts a transaction with these lock timeouts.
    """
    asked: list[tuple[Prepared, Parameters]] = []
    if begin is not None:
        asked += [(sql.begin, {}), (sql.patience, {"wait": begin})]
    streams, first = sorted(needs.streams), len(asked)
    if len(streams) == 1:
        asked.append((sql.lock_head, {"scope": streams[0][0], "kind": streams[0][1]}))
    elif streams:
        scopes, kinds = [name[0] for name in streams], [name[1] for name in streams]
        asked.append((sql.lock_heads, {"scopes": scopes, "kinds": kinds}))
    named = [(name, keys) for name, keys in needs.keys.items() if name not in needs.whole]
    for name, keys in named:
        asked.append((sql.slots_of, {"scope": name[0], "kind": name[1], "keys": list(keys)}))
    whole = list(needs.whole)
    asked += [(sql.all_slots_of, {"scope": scope, "kind": kind}) for scope, kind in whole]
    answers = iter((await link.each(asked))[first:])
    if streams:
        found = [to_stream(row) for row in next(answers)]
        loaded.streams |= dict.fromkeys(streams)
        loaded.streams |= {stream.name: stream for stream in found}
        loaded.ids |= {stream.name: stream.id for stream in found}
    for name, keys in named:
        records: dict[str, RecordState | None] = loaded.records.setdefault(name, {})
        records |= dict.fromkeys(keys)
        records |= {row[0]: to_record_state(row) for row in next(answers)}
    for name in whole:
        loaded.records[name] = {row[0]: to_record_state(row) for row in next(answers)}
    loaded.whole |= needs.whole


class Flush:
    """The planned changes as statements."""

    def __init__(self, sql: PostgresStatements, changes: list[StreamChange], ids: dict[StreamName, int]) -> None:
        self.sql = sql
        self.planned = changes
        self.old_ids = ids
        """Stream ids by name before the write."""
        self.ids: dict[StreamName, int] = dict(ids)
        """Stream ids by name after the write."""
        self.removals: list[tuple[Prepared, Parameters]] = []
        self.changes: list[tuple[Prepared, Parameters]] = []
        self.new_records: list[dict[str, Any]] = []
        self.new_labels: list[dict[str, Any]] = []
        self.new_derived: list[dict[str, Any]] = []

    async def claim(self, link: Link) -> None:
        """Drop and create streams; raises LostRaceError if another writer created one meanwhile."""
        # Drops first: a stream may be dropped and recreated in one write.
        gone = [(self.sql.remove_head, {"id": self.old_ids[c.name]}) for c in self.planned if c.dropped]
        new = [c.after for c in self.planned if c.after is not None and (c.before is None or c.dropped)]
        if new or gone:
            claims = [(self.sql.claim_head, stream_values(state, 0)) for state in new]
            rows = (await link.each([*gone, *claims]))[len(gone) :]
            if not all(rows):
                raise LostRaceError
            self.ids |= {state.name: row[0][0] for state, row in zip(new, rows, strict=True)}

    async def write(self, link: Link, sending: Callable[[], object]) -> None:
        """Write everything, up to COMMIT; `sending` is called before that is sent."""
        if len(self.new_records) + len(self.new_labels) + len(self.new_derived) < MANY:
            sending()
            await link.each([*self.removals, *self._inserts(), *self.changes, (self.sql.commit, {})])
            return
        if self.removals:
            await link.each(self.removals)
        for table, rows in (
            (records_table, self.new_records),
            (labels_table, self.new_labels),
            (derived_table, self.new_derived),
        ):
            if rows:
                names = [column.name for column in table.columns]
                statement = f"COPY {table.name} ({', '.join(names)}) FROM STDIN"
                await link.copy(statement, map(itemgetter(*names), rows))
        sending()
        await link.each([*self.changes, (self.sql.commit, {})])

    def _inserts(self) -> Iterator[tuple[Prepared, Parameters]]:
        yield from ((self.sql.add, row) for row in self.new_records)
        yield from ((self.sql.add_label, row) for row in self.new_labels)
        yield from ((self.sql.keep_derived, row) for row in self.new_derived)

    def gather(self) -> None:
        """Turn the planned changes into rows and statements."""
        for change in self.planned:
            if change.before is not None:
                self._gather_removals(change)
            if change.after is not None:
                self._gather_puts(change)
                self._gather_derived(change)
                if change.before is not None and change.after is not change.before and not change.dropped:
                    self.changes.append((self.sql.set_head, stream_values(change.after, self.ids[change.name])))

    def _gather_removals(self, change: StreamChange) -> None:
        id, before = self.old_ids[change.name], change.before
        if change.cleared and change.spared:
            values = {"stream_id": id, "seqs": [record.seq for record in change.spared]}
            self.removals += [(statement, values) for statement in self.sql.empty_but_seqs]
        elif change.cleared or (before is not None and before.count and len(change.removed) == before.count):
            self.removals += [(statement, {"stream_id": id}) for statement in self.sql.empty]
        elif change.removed:
            values = {"stream_id": id, "seqs": [record.seq for record in change.removed]}
            self.removals += [(statement, values) for statement in self.sql.remove_seqs]
        lost = [*change.lost_labels.items(), *((record.seq, record.labels) for record in change.removed)]
        flat = [(label, value, seq) for seq, labels in lost for label, value in labels.items()]
        if flat:
            columns = zip(("names", "values", "seqs"), map(list, zip(*flat, strict=True)), strict=True)
            self.removals.append((self.sql.remove_labels, {"stream_id": id, **dict(columns)}))

    def _gather_puts(self, change: StreamChange) -> None:
        id = self.ids[change.name]
        self.changes += [(self.sql.set, to_row(record, id)) for record in change.replaced]
        self.new_records += [to_row(record, id) for record in change.added]
        for record in (*change.replaced, *change.added):
            for label, value in record.labels.items():
                self.new_labels.append({"stream_id": id, "name": label, "value": value, "seq": record.seq})

    def _gather_derived(self, change: StreamChange) -> None:
        id = self.ids[change.name]
        new = {record.seq for record in change.added}
        for derived in change.derived:
            row = {"stream_id": id, **derived._asdict()}
            if derived.value is None:
                self.changes.append((self.sql.remove_one_derived, row))
            elif derived.seq in new:
                self.new_derived.append(row)
            else:
                self.changes.append((self.sql.keep_derived, row))
