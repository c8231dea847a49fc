"""The remote write path: one round trip to lock and load, a plan without I/O, one to write.

`load` locks the heads of the streams in the order of their names, so that writers never deadlock. `Flush` turns
the planned changes into statements, the last of which is COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from ...store.loaded import Found, LoadedGround, Needs, New
from ...store.planning import Head, Name, Slot
from ..sql.schema import derived as derived_table
from ..sql.schema import labels as labels_table
from ..sql.schema import records as records_table
from ..sql.statements import Parameters, Prepared
from ..sql.writing import to_slot
from .links import Link
from .statements import PostgresStatements

MANY = 50
"""Number of new rows from which COPY is used instead of INSERT."""


class LostRaceError(Exception):
    """Another writer created a stream that a plan was about to create; internal."""


async def load(link: Link, sql: PostgresStatements, needs: Needs, begin: str | None = None) -> Found:
    """Load what is needed, in one round trip.

    With `begin`, it starts a transaction with these lock timeouts.
    """
    asked: list[tuple[Prepared, Parameters]] = []
    if begin is not None:
        asked += [(sql.begin, {}), (sql.patience, {"wait": begin})]
    heads, first = sorted(needs.heads), len(asked)
    if len(heads) == 1:
        asked.append((sql.lock_head, {"scope": heads[0][0], "kind": heads[0][1]}))
    elif heads:
        scopes, kinds = [name[0] for name in heads], [name[1] for name in heads]
        asked.append((sql.lock_heads, {"scopes": scopes, "kinds": kinds}))
    named = [(name, keys) for name, keys in needs.keys.items() if name not in needs.whole]
    for name, keys in named:
        asked.append((sql.slots_of, {"scope": name[0], "kind": name[1], "keys": list(keys)}))
    whole = list(needs.whole)
    asked += [(sql.all_slots_of, {"scope": scope, "kind": kind}) for scope, kind in whole]
    answers = iter((await link.each(asked))[first:])
    found = Found()
    if heads:
        found.heads = dict.fromkeys(heads)
        found.heads |= {(row[1], row[2]): Head(row) for row in next(answers)}
    for name, keys in named:
        found.slots[name] = dict.fromkeys(keys)
        found.slots[name] |= {row[0]: to_slot(row) for row in next(answers)}
    for name in whole:
        found.slots[name] = {row[0]: to_slot(row) for row in next(answers)}
    found.whole = set(whole)
    return found


class Flush:
    """The planned changes as statements."""

    def __init__(self, sql: PostgresStatements, ground: LoadedGround, found: Found) -> None:
        self.sql = sql
        self.ground = ground
        self.found = found
        self.dropped: set[Any] = {head.id for head in ground.dropped if not isinstance(head.id, New)}
        self.ids: dict[Name, int] = {}
        """Stream ids by name after the write."""
        self.removals: list[tuple[Prepared, Parameters]] = []
        self.changes: list[tuple[Prepared, Parameters]] = []
        self.new_records: list[dict[str, Any]] = []
        self.new_labels: list[dict[str, Any]] = []
        self.new_derived: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        """Return whether there is anything to write."""
        ground = self.ground
        return bool(ground.dirty or ground.dropped or ground.changes.names)

    async def claim(self, link: Link) -> None:
        """Drop and create streams; raises LostRaceError if another writer created one meanwhile."""
        heads = [head for head in self.ground.heads.values() if head is not None]
        new = sorted((head for head in heads if isinstance(head.id, New)), key=lambda head: (head.scope, head.kind))
        self.ids = {(head.scope, head.kind): head.id for head in heads if not isinstance(head.id, New)}
        # Drops first: a stream may be dropped and recreated in one write.
        gone = [(self.sql.remove_head, {"id": id}) for id in self.dropped]
        if new or gone:
            claims = [(self.sql.claim_head, head.row()) for head in new]
            rows = (await link.each([*gone, *claims]))[len(gone) :]
            if not all(rows):
                raise LostRaceError
            self.ids |= {(head.scope, head.kind): row[0][0] for head, row in zip(new, rows, strict=True)}

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
        for id in self.dropped:
            self._empty(id)
        self._gather_removals()
        for name in self.ids:
            put = self._last(name)
            self._gather_puts(name, put)
            self._gather_derived(name, put)
        for head in self.ground.heads_to_set():
            if not isinstance(head.id, New):
                self.changes.append((self.sql.set_head, head.row()))

    def _gather_removals(self) -> None:
        emptied = set(self.dropped)
        for name, slots in self.ground.changes.removed.items():
            head = self.found.heads[name]
            assert head is not None
            if head.id in self.dropped:
                continue
            if len(slots) == head.count:
                self._empty(head.id)
                emptied.add(head.id)
                continue
            values = {"stream_id": head.id, "seqs": list(slots)}
            self.removals += [(statement, values) for statement in self.sql.remove_seqs]
        for name, lost in self.ground.changes.lost_labels.items():
            head = self.found.heads[name]
            assert head is not None
            if head.id in emptied:
                continue
            flat = [(label, value, seq) for seq, labels in lost for label, value in labels.items()]
            columns = zip(("names", "values", "seqs"), map(list, zip(*flat, strict=True)), strict=True)
            self.removals.append((self.sql.remove_labels, {"stream_id": head.id, **dict(columns)}))

    def _empty(self, id: int) -> None:
        self.removals += [(statement, {"stream_id": id}) for statement in self.sql.empty]

    def _last(self, name: Name) -> dict[int, Slot]:
        """Return, by seq, the records to put that no later write of the same transaction removes."""
        head = self.ground.heads[name]
        assert head is not None
        now = self.ground.changes.slots.get(head.id, {})
        put = self.ground.changes.put.get(name, {})
        return {seq: slot for seq, slot in put.items() if (last := now.get(slot.key)) and last.seq == seq}

    def _gather_puts(self, name: Name, put: dict[int, Slot]) -> None:
        id, moment = self.ids[name], self.ground.moment
        for slot in put.values():
            row = slot.payload
            row["stream_id"], row["seq"], row["version"] = id, slot.seq, slot.version
            row["created"], row["updated"] = slot.created, moment
            if slot.stored:
                self.changes.append((self.sql.set, row))
            else:
                self.new_records.append(row)
            for label, value in slot.labels.items():
                self.new_labels.append({"stream_id": id, "name": label, "value": value, "seq": slot.seq})

    def _gather_derived(self, name: Name, put: dict[int, Slot]) -> None:
        id, ever_put = self.ids[name], self.ground.changes.put.get(name, {})
        for (seq, derived), (version, value) in self.ground.changes.derived.get(name, {}).items():
            if seq in ever_put and (seq not in put or version not in (0, put[seq].version)):
                continue
            row = {"stream_id": id, "seq": seq, "name": derived, "version": version, "value": value}
            if value is None:
                self.changes.append((self.sql.remove_one_derived, row))
            elif seq in put and not put[seq].stored:
                self.new_derived.append(row)
            else:
                self.changes.append((self.sql.keep_derived, row))
