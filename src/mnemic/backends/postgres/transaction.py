"""Runs planned writes in transactions: one round trip to lock and load, one to write; an append is one in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from msgspec import UNSET, Struct
from sqlalchemy import Table

from ...checks import from_microseconds
from ...records import StreamName
from ...store.query import Expect, Limit, Outcome, Put, Write
from ...store.stream_state import Needs, StreamChange
from ..sql.rows import LoadedRows, stream_values, to_record_state, to_row, to_stream
from ..sql.schema import derived, labels, records
from .client import Connection, Query
from .statements import PostgresStatements

COPY_FROM = 50
"""Number of new rows from which COPY is used instead of INSERT."""

Row = dict[str, Any]


class LostRaceError(Exception):
    """Another writer created a stream that a plan was about to create; internal."""


async def load(
    connection: Connection, sql: PostgresStatements, needs: Needs, first: Sequence[Query] = ()
) -> LoadedRows:
    """Run the queries of `first`, lock the streams, ordered by name so that writers do not deadlock, and load."""
    kinds: dict[str, list[str]] = {}
    for scope, kind in sorted(needs.streams):
        kinds.setdefault(scope, []).append(kind)
    by_key = {name: keys for name, keys in needs.keys.items() if name not in needs.whole}
    queries = [
        *first,
        *((sql.lock_streams, {"scope": scope, "kinds": of_scope}) for scope, of_scope in kinds.items()),
        *((sql.record_states, {"scope": name[0], "kind": name[1], "keys": list(by_key[name])}) for name in by_key),
        *((sql.all_record_states, {"scope": scope, "kind": kind}) for scope, kind in needs.whole),
    ]
    answers = iter((await connection.each(queries))[len(first) :])
    loaded = LoadedRows(streams=dict.fromkeys(needs.streams), whole=needs.whole)
    for _ in kinds:
        for row in next(answers):
            state = to_stream(row)
            loaded.streams[state.name], loaded.ids[state.name] = state, state.id
    for name, keys in by_key.items():
        loaded.records[name] = dict.fromkeys(keys)
        loaded.records[name] |= {row[0]: to_record_state(row) for row in next(answers)}
    for name in needs.whole:
        loaded.records[name] = {row[0]: to_record_state(row) for row in next(answers)}
    return loaded


async def apply(
    connection: Connection, sql: PostgresStatements, changes: Sequence[StreamChange], ids: dict[StreamName, int]
) -> None:
    """Write changes and commit; raises LostRaceError if another writer has created one of the streams."""
    removals: list[Query] = [(sql.remove_head, {"id": ids[change.name]}) for change in changes if change.dropped]
    new = {change.name: change.after for change in changes if change.after and (change.dropped or not change.before)}
    new_ids = dict(ids)
    if new:
        claims = [(sql.claim_stream, stream_values(state, 0)) for state in new.values()]
        answers = (await connection.each([*removals, *claims]))[len(removals) :]
        if not all(answers):
            raise LostRaceError
        new_ids |= {name: rows[0][0] for name, rows in zip(new, answers, strict=True)}
        removals = []
    updates: list[Query] = []
    inserts: dict[Table, list[Row]] = {records: [], labels: [], derived: []}
    for change in changes:
        if change.before is not None:
            removals += _removals(sql, change, ids[change.name])
        if change.after is None:
            continue
        id = new_ids[change.name]
        added = {record.seq for record in change.added}
        inserts[records] += [to_row(record, id) for record in change.added]
        updates += [(sql.set, to_row(record, id)) for record in change.replaced]
        for record in (*change.added, *change.replaced):
            inserts[labels] += [
                {"stream_id": id, "name": name, "value": value, "seq": record.seq}
                for name, value in record.labels.items()
            ]
        for item in change.derived:
            row = {"stream_id": id, **item._asdict()}
            if item.value is None:
                updates.append((sql.remove_one_derived, row))
            elif item.seq in added:
                inserts[derived].append(row)
            else:
                updates.append((sql.keep_derived, row))
        if change.after is not change.before and change.name not in new:
            updates.append((sql.set_head, stream_values(change.after, id)))
    if sum(map(len, inserts.values())) < COPY_FROM:
        statements = {records: sql.add, labels: sql.add_label, derived: sql.keep_derived}
        removals += [(statements[table], row) for table, rows in inserts.items() for row in rows]
    else:
        if removals:
            await connection.each(removals)
            removals = []
        for table, rows in inserts.items():
            columns = [column.name for column in table.columns]
            if rows:
                await connection.insert(table.name, columns, map(itemgetter(*columns), rows))
    connection.committing = True
    await connection.each([*removals, *updates, (sql.commit, {})])


def _removals(sql: PostgresStatements, change: StreamChange, id: int) -> Iterator[Query]:
    lost = dict(change.lost_labels)
    if change.cleared:
        spared = [record.seq for record in change.spared]
        yield from ((statement, {"stream_id": id, "spared": spared}) for statement in sql.clear)
    elif change.removed:
        seqs = [record.seq for record in change.removed]
        yield from ((statement, {"stream_id": id, "seqs": seqs}) for statement in sql.remove_seqs)
        lost |= {record.seq: record.labels for record in change.removed}
    flat = [(name, value, seq) for seq, of_record in lost.items() for name, value in of_record.items()]
    if flat:
        names, values, seqs = map(list, zip(*flat, strict=True))
        yield sql.remove_labels, {"stream_id": id, "names": names, "values": values, "seqs": seqs}


class Append(Struct, frozen=True):
    """The parts of a write that may be a plain append of one record."""

    put: Put
    expect: Expect | None
    limit: Limit | None

    @classmethod
    def of(cls, write: Write) -> Append | None:
        """Return the parts; None if the write is more than an append."""
        expect: Expect | None = None
        limit: Limit | None = None
        match write.ops:
            case (Put() as put,):
                pass
            case (Put() as put, Expect() as expect):
                pass
            case (Put() as put, Limit() as limit):
                pass
            case (Put() as put, Expect() as expect, Limit() as limit):
                pass
            case _:
                return None
        if write.id is not None or put.if_version:
            return None
        if any((op.scope, op.kind) != (put.record.scope, put.record.kind) for op in (expect, limit) if op is not None):
            return None
        if expect and (expect.settings is UNSET or expect.key is not None or expect.version is not None):
            return None
        return cls(put, expect, limit)

    @property
    def stream(self) -> StreamName:
        """The stream of the record."""
        return self.put.record.scope.path, self.put.record.kind

    async def run(self, connection: Connection, sql: PostgresStatements, moment: int) -> list[Outcome] | None:
        """Append in one round trip; return None, with nothing done, if the write turns out to be more."""
        record, expect, limit = self.put.record, self.expect, self.limit
        values = to_row(record, 0) | {
            "scope": record.scope.path,
            "kind": record.kind,
            "updated": moment,
            "label_names": list(record.labels),
            "label_values": list(record.labels.values()),
            "derived_names": list(record.derived),
            "derived_values": list(record.derived.values()),
            "expecting": expect is not None,
            "expected_settings": expect.settings if expect else None,
            "max_count": limit.max_count if limit else None,
            "max_weight": limit.max_weight if limit else None,
        }
        if record.created is None:
            values["created"] = moment
        connection.committing = True
        rows = await connection.all(sql.append(bool(record.labels), bool(record.derived)), values)
        connection.committing = False
        if not rows:
            return None
        seq, version, count, weight = rows[0]
        now = from_microseconds(moment)
        outcomes = [Outcome(seq, version, record.created or now, now, key=record.key)]
        if expect is not None:
            outcomes.append(Outcome(version=version))
        if limit is not None:
            outcomes.append(Outcome(count=count, weight=weight))
        return outcomes
