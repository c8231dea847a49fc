"""PostgreSQL's SQL: JSON conditions, bulk operations, and an append in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from msgspec import json

from ...store.codec import FIELDS
from ...store.query import Operator, Scalar
from ..sql.schema import COLUMNS, DERIVED, LABELS, RECORD_STATE_COLUMNS, RECORDS, STREAM_COLUMNS, VERSION_TABLE
from ..sql.statements import EQUAL, Prepared, SqlDialect, Statements, compared

_encode = json.Encoder().encode


def _json_value(value: Scalar) -> Any:
    """Return a number or a boolean as JSON, since PostgreSQL would round a float; text is unchanged."""
    return _encode(value).decode() if isinstance(value, bool | int | float) else value


def _test_json(group: str, n: int, op: Operator, kind: str, places: list[int]) -> str:
    """Return a JSON test by value, which the metadata index can answer."""
    name = f"CAST(:name_{n} AS text)"
    object = f"CAST(r.{group} AS jsonb)"
    member = f"({object} -> {name})"
    if kind == "null":
        return f"coalesce(jsonb_typeof({member}), 'null') = 'null'"
    if kind == "text":
        values = [f"CAST(:value_{n}_{m} AS text)" for m in places]
        text = f'(({object} ->> {name}) COLLATE "C")'
        test = f"jsonb_typeof({member}) = 'string' AND {compared(text, op, values)}"
        values = [f"to_jsonb({value})" for value in values]
    else:
        values = [f"CAST(:value_{n}_{m} AS jsonb)" for m in places]
        # JSON compares numbers exactly; other types are only tested for equality.
        test = compared(member, op, values)
        if op not in EQUAL:
            test = f"jsonb_typeof({member}) = 'number' AND {test}"
    test = f"coalesce({test}, false)"
    if group == "meta" and op in EQUAL:
        found = " OR ".join(f"({object} @> jsonb_build_object({name}, {value}))" for value in values)
        test = f"r.meta IS NOT NULL AND ({found}) AND {test}"
    return test


FLAVOR = SqlDialect("$", _test_json, _json_value, plans=True)

_IS_LIVE = "({0}.expires IS NULL OR {0}.expires > :now)"
_RECORD_STATES = (
    f"SELECT {', '.join(RECORD_STATE_COLUMNS)} FROM mnemic_records "
    "WHERE stream_id = (SELECT id FROM mnemic_streams WHERE scope = :scope AND kind = :kind)"
)
_SQL_TYPES = {"KEY": "BIGINT", "NAME": "TEXT"}
_TYPES = {name: _SQL_TYPES.get(type, type.removesuffix(" NULL")) for name, type in COLUMNS[RECORDS].items()}


def prepared(sql: str, *, keep_plan: bool = True) -> Prepared:
    """Return a statement."""
    return Prepared(sql, FLAVOR, keep_plan=keep_plan)


def _assignments(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = :{name}" for name in columns)


def _insert(table: str, conflict: str = "") -> Prepared:
    names = COLUMNS[table]
    values = ", ".join(f":{name}" for name in names)
    return prepared(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) {conflict}")


class PostgresStatements(Statements):
    """All statements, for PostgreSQL."""

    def __init__(self) -> None:
        super().__init__(FLAVOR)
        self.revision: Prepared = prepared(f"SELECT version_num FROM {VERSION_TABLE}")
        self.vectors: Prepared = prepared(
            "SELECT n.nspname FROM pg_available_extensions a LEFT JOIN pg_extension e ON e.extname = a.name "
            "LEFT JOIN pg_namespace n ON n.oid = e.extnamespace WHERE a.name = 'vector'"
        )
        self.add_vectors: Prepared = prepared("CREATE EXTENSION IF NOT EXISTS vector")
        self.tables: Prepared = prepared(
            "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), pg_relation_filenode(c.oid) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() "
            "AND c.relkind = 'r' AND starts_with(c.relname, 'mnemic_') ORDER BY c.relname"
        )
        self.begin: Prepared = prepared("BEGIN")
        self.set_timeouts: Prepared = prepared(
            "SELECT set_config('lock_timeout', CAST(:wait AS text), true), "
            "set_config('idle_in_transaction_session_timeout', CAST(:wait AS text), true)"
        )
        self.commit: Prepared = prepared("COMMIT")
        self.lock_streams: Prepared = prepared(
            f"SELECT id, {', '.join(STREAM_COLUMNS)} FROM mnemic_streams "
            "WHERE scope = :scope AND kind = ANY(CAST(:kinds AS text[])) ORDER BY kind FOR UPDATE"
        )
        self.lock_names: Prepared = prepared(
            "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(CAST(:names AS text[])) AS u(name)"
        )
        self.any_stream: Prepared = prepared(
            "SELECT 1 FROM mnemic_streams WHERE (scope, kind) IN "
            "(SELECT * FROM unnest(CAST(:scopes AS text[]), CAST(:kinds AS text[]))) LIMIT 1"
        )
        self.record_states: Prepared = prepared(f"{_RECORD_STATES} AND key = ANY(CAST(:keys AS text[]))")
        self.all_record_states: Prepared = prepared(_RECORD_STATES)
        self.claim_stream: Prepared = prepared(
            f"INSERT INTO mnemic_streams ({', '.join(STREAM_COLUMNS)}) "
            f"VALUES ({', '.join(f':{name}' for name in STREAM_COLUMNS)}) ON CONFLICT DO NOTHING RETURNING id"
        )
        self.add: Prepared = _insert(RECORDS)
        self.add_label: Prepared = _insert(LABELS)
        self.put_derived: Prepared = _insert(
            DERIVED,
            "ON CONFLICT (stream_id, seq, name) DO UPDATE SET version = excluded.version, value = excluded.value",
        )
        self.set: Prepared = prepared(
            f"UPDATE mnemic_records SET {_assignments(FIELDS)} WHERE stream_id = :stream_id AND seq = :seq"
        )
        self.set_stream: Prepared = prepared(
            f"UPDATE mnemic_streams SET {_assignments(STREAM_COLUMNS[2:])} WHERE id = :id"
        )
        self.remove_stream: Prepared = prepared("DELETE FROM mnemic_streams WHERE id = :id")
        self.remove_derived: Prepared = prepared(
            "DELETE FROM mnemic_derived WHERE stream_id = :stream_id AND seq = :seq AND name = :name"
        )
        self.remove_seqs: list[Prepared] = [
            prepared(f"DELETE FROM {table} WHERE stream_id = :stream_id AND seq = ANY(CAST(:seqs AS bigint[]))")
            for table in (RECORDS, DERIVED)
        ]
        self.clear: list[Prepared] = [
            prepared(f"DELETE FROM {table} WHERE stream_id = :stream_id AND seq <> ALL(CAST(:spared AS bigint[]))")
            for table in (RECORDS, LABELS, DERIVED)
        ]
        self.remove_labels: Prepared = prepared(
            "DELETE FROM mnemic_labels WHERE stream_id = :stream_id AND (name, value, seq) IN (SELECT * FROM "
            "unnest(CAST(:names AS text[]), CAST(:values AS text[]), CAST(:seqs AS bigint[])))"
        )
        # The limit makes each key a separate lookup; as one join, whole streams might be read.
        self.find_all: Prepared = prepared(
            f"SELECT u.n, {', '.join(f'r.{name}' for name in FIELDS)} FROM "
            "unnest(CAST(:scopes AS text[]), CAST(:kinds AS text[]), CAST(:keys AS text[])) "
            "WITH ORDINALITY AS u(scope, kind, key, n) JOIN LATERAL (SELECT * FROM mnemic_records r WHERE "
            "r.stream_id = (SELECT id FROM mnemic_streams s WHERE s.scope = u.scope AND s.kind = u.kind "
            f"AND {_IS_LIVE.format('s')}) AND r.key = u.key AND {_IS_LIVE.format('r')} LIMIT 1) r ON true"
        )
        self.append: Callable[[bool, bool, bool], Prepared] = cache(_append)


def _append(with_labels: bool, with_derived: bool, with_other: bool) -> Prepared:
    """Append a record with a new key to an existing stream within its limits and without expired records.

    `with_other` expects the settings of another stream of the scope. If any of this does not hold, nothing happens
    and no row is returned. The row has the record's seq and version, and the stream's totals.
    """
    row = {name: f"CAST(:{name} AS {type})" for name, type in _TYPES.items()}
    now = row["updated"]
    row |= {"stream_id": "h.id", "seq": "h.last_seq", "version": "h.version"}
    label_pairs = "unnest(CAST(:label_names AS text[]), CAST(:label_values AS text[])) AS p(name, value)"
    derived_pairs = "unnest(CAST(:derived_names AS text[]), CAST(:derived_values AS bytea[])) AS p(name, value)"
    # The record is not looked for with EXISTS, which PostgreSQL turns into a join that reads all of a small table.
    # A stream never expires earlier than before: clocks may be slow.
    parts = [
        "head AS (UPDATE mnemic_streams s SET last_seq = s.last_seq + 1, version = s.version + 1, "
        f"count = s.count + 1, weight = s.weight + {row['weight']}, updated = {now}, "
        f"expires = greatest(s.expires, {now} + s.ttl), soonest = least(s.soonest, {row['expires']}) "
        f"WHERE s.scope = :scope AND s.kind = :kind AND (s.expires IS NULL OR s.expires > {now}) "
        f"AND (s.soonest IS NULL OR s.soonest > {now}) "
        "AND (SELECT seq FROM mnemic_records r WHERE r.stream_id = s.id AND r.key = :key) IS NULL "
        "AND (NOT :expecting OR s.settings IS NOT DISTINCT FROM CAST(:expected_settings AS text)) "
        "AND (CAST(:max_count AS bigint) IS NULL OR s.count < :max_count) "
        f"AND (CAST(:max_weight AS bigint) IS NULL OR s.weight + {row['weight']} <= :max_weight) "
        f"{'AND EXISTS (SELECT FROM other) ' if with_other else ''}"
        "RETURNING s.id, s.last_seq, s.version, s.count, s.weight)",
        f"added AS (INSERT INTO mnemic_records ({', '.join(row)}) SELECT {', '.join(row.values())} FROM head h)",
    ]
    if with_other:
        # It stays locked until the commit, so that its settings do not change meanwhile.
        parts.insert(
            0,
            "other AS MATERIALIZED (SELECT 1 FROM mnemic_streams o WHERE o.scope = :scope AND o.kind = :other_kind "
            f"AND o.settings = :other_settings AND (o.expires IS NULL OR o.expires > {now}) FOR SHARE)",
        )
    if with_labels:
        parts.append(
            "labeled AS (INSERT INTO mnemic_labels (stream_id, name, value, seq) "
            f"SELECT h.id, p.name, p.value, h.last_seq FROM head h, {label_pairs})"
        )
    if with_derived:
        parts.append(
            "with_derived AS (INSERT INTO mnemic_derived (stream_id, seq, name, version, value) "
            f"SELECT h.id, h.last_seq, p.name, h.version, p.value FROM head h, {derived_pairs})"
        )
    return prepared(f"WITH {', '.join(parts)} SELECT last_seq, version, count, weight FROM head")
