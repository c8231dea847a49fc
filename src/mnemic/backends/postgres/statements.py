"""PostgreSQL's SQL: JSON conditions, bulk operations, and an append in one round trip."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import json
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    LargeBinary,
    Select,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.expression import Executable, FromClause

from ...store.query import Operator, Scalar
from ..sql.conditions import EQUAL, OPERATORS
from ..sql.flavor import Flavor
from ..sql.schema import VERSION_TABLE, derived, labels, records, streams
from ..sql.statements import SLOT, Prepared, Statements, same

_encode = json.Encoder().encode


def _json_value(value: Scalar) -> Any:
    """Return a number or a boolean as JSON, since PostgreSQL would round a float; text is unchanged."""
    return _encode(value).decode() if isinstance(value, bool | int | float) else value


def _test_json(here: FromClause, group: str, n: int, op: Operator, kind: str, places: list[int]) -> ColumnElement[bool]:
    """Return a JSON test by value, which the metadata index can answer."""
    object = cast(here.c[group], JSONB)
    name = bindparam(f"name_{n}", type_=Text)
    held: Any = object.op("->", return_type=JSONB())(name)
    type = func.jsonb_typeof(held)
    if kind == "null":
        return func.coalesce(type, literal_column("'null'")) == literal_column("'null'")
    values: list[Any]
    if kind == "text":
        values = [bindparam(f"value_{n}_{m}", type_=Text) for m in places]
        text = object.op("->>", return_type=Text())(name).collate("C")
        test = and_(type == literal_column("'string'"), OPERATORS[op](text, values))
        values = [func.to_jsonb(value) for value in values]
    else:
        values = [bindparam(f"value_{n}_{m}", type_=JSONB) for m in places]
        # JSON compares numbers exactly; other types are only tested for equality.
        test = OPERATORS[op](held, values)
        if op not in EQUAL:
            test = and_(type == literal_column("'number'"), test)
    test = func.coalesce(test, false())
    if group == "meta" and op in EQUAL:
        found = or_(*(object.op("@>")(func.jsonb_build_object(name, value)) for value in values))
        test = and_(here.c.meta.is_not(None), found, test)
    return test


FLAVOR = Flavor(
    PGDialect_psycopg(paramstyle="numeric_dollar"),  # type: ignore[no-untyped-call]
    insert_or,
    _test_json,
    _json_value,
    plans=True,
)


def _array(name: str, type: Any) -> ColumnElement[Any]:
    return bindparam(name, type_=ARRAY(type))


def _one_of(where: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return where == any_(_array(name, where.type))


def _rows(table: FromClause, *names: str) -> Select[Any]:
    """Return rows built from arrays, which are named by the plurals of their columns."""
    arrays = (_array(f"{name}s", table.c[name].type) for name in names)
    given = func.unnest(*arrays).table_valued(*names).render_derived()
    return select(*(given.c[name] for name in names))


class PostgresStatements(Statements):
    """All statements, for PostgreSQL."""

    def __init__(self) -> None:
        super().__init__(FLAVOR)

        def prepared(statement: Executable) -> Prepared:
            return Prepared(statement, self.dialect)

        stream = and_(same(streams.c.scope), same(streams.c.kind))
        states = select(*(records.c[name] for name in SLOT)).where(
            records.c.stream_id == select(streams.c.id).where(stream).scalar_subquery()
        )
        self.revision: Prepared = prepared(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
        self.vectors: Prepared = prepared(
            text(
                "SELECT n.nspname FROM pg_available_extensions a "
                "LEFT JOIN pg_extension e ON e.extname = a.name "
                "LEFT JOIN pg_namespace n ON n.oid = e.extnamespace WHERE a.name = 'vector'"
            )
        )
        self.add_vectors: Prepared = prepared(text("CREATE EXTENSION IF NOT EXISTS vector"))
        self.begin: Prepared = prepared(text("BEGIN"))
        self.set_timeouts: Prepared = prepared(
            text(
                "SELECT set_config('lock_timeout', CAST(:wait AS text), true), "
                "set_config('idle_in_transaction_session_timeout', CAST(:wait AS text), true)"
            )
        )
        self.commit: Prepared = prepared(text("COMMIT"))
        self.lock_streams: Prepared = prepared(
            select(streams)
            .where(same(streams.c.scope), _one_of(streams.c.kind, "kinds"))
            .order_by(streams.c.kind)
            .with_for_update()
        )
        self.record_states: Prepared = prepared(states.where(_one_of(records.c.key, "keys")))
        self.all_record_states: Prepared = prepared(states)
        self.claim_stream: Prepared = prepared(
            insert_or(streams)
            .values({column.name: bindparam(column.name) for column in streams.columns if column.name != "id"})
            .on_conflict_do_nothing()
            .returning(streams.c.id)
        )
        self.remove_seqs: list[Prepared] = [
            prepared(delete(table).where(same(table.c.stream_id), _one_of(table.c.seq, "seqs")))
            for table in (records, derived)
        ]
        self.clear: list[Prepared] = [
            prepared(delete(table).where(same(table.c.stream_id), table.c.seq != all_(_array("spared", BigInteger))))
            for table in (records, labels, derived)
        ]
        self.empty_but_seqs: list[Prepared] = [
            prepared(delete(table).where(same(table.c.stream_id), ~_one_of(table.c.seq, "seqs")))
            for table in (records, labels, derived)
        ]
        label = tuple_(labels.c.name, labels.c.value, labels.c.seq)
        self.remove_labels: Prepared = prepared(
            delete(labels).where(same(labels.c.stream_id), label.in_(_rows(labels, "name", "value", "seq")))
        )
        self.find_all: Prepared = prepared(self._find_all())
        self.append: Callable[[bool, bool], Prepared] = cache(self._append)

    def _find_all(self) -> Select[Any]:
        """Select keys of any streams at once; a row starts with the position of its key."""
        asked = func.unnest(_array("scopes", Text), _array("kinds", Text), _array("keys", Text))
        given = asked.table_valued("scope", "kind", "key", with_ordinality="n").render_derived()
        now = bindparam("now", type_=BigInteger)
        stream = select(streams.c.id).where(
            streams.c.scope == given.c.scope,
            streams.c.kind == given.c.kind,
            or_(streams.c.expires.is_(None), streams.c.expires > now),
        )
        # The limit makes each key a separate lookup; as one join, whole streams might be read.
        found = (
            select(records)
            .where(
                records.c.stream_id == stream.correlate(given).scalar_subquery(),
                records.c.key == given.c.key,
                or_(records.c.expires.is_(None), records.c.expires > now),
            )
            .limit(literal_column("1"))
            .lateral("found")
        )
        return select(given.c.n, *found.columns).select_from(given.join(found, true()))

    def _append(self, with_labels: bool, with_derived: bool) -> Prepared:
        """Append a record with a new key to an existing stream within its limits and without expired records.

        If any of this does not hold, nothing happens and no row is returned. The row has the record's seq and
        version, and the stream's totals.
        """
        here = streams.c

        def number(name: str) -> ColumnElement[Any]:
            return bindparam(name, type_=BigInteger)

        one: ColumnElement[int] = literal_column("1")
        touched, expecting = bindparam("touched", type_=Boolean), bindparam("expecting", type_=Boolean)
        now, ttl, weight = number("updated"), case((touched, number("ttl")), else_=here.ttl), number("weight")
        same_ttl = here.ttl.is_not_distinct_from(ttl)
        # Not EXISTS, which PostgreSQL turns into a join that reads all of a small table.
        taken = select(records.c.seq).where(records.c.stream_id == here.id, same(records.c.key)).scalar_subquery()
        head = (
            update(streams)
            .where(
                same(here.scope),
                same(here.kind),
                or_(here.expires.is_(None), here.expires > now),
                or_(here.soonest.is_(None), here.soonest > now),
                taken.is_(None),
                or_(~expecting, here.settings.is_not_distinct_from(bindparam("expected_settings", type_=Text))),
                or_(number("max_count").is_(None), here.count < number("max_count")),
                or_(number("max_weight").is_(None), here.weight + weight <= number("max_weight")),
            )
            .values(
                last_seq=here.last_seq + one,
                version=here.version + one,
                count=here.count + one,
                weight=here.weight + weight,
                updated=now,
                ttl=ttl,
                settings=case((touched, bindparam("settings", type_=Text)), else_=here.settings),
                # Never earlier than before, unless the time to live has changed: a slow clock does not shorten it.
                expires=case((same_ttl, func.greatest(here.expires, now + ttl)), else_=now + ttl),
                soonest=func.least(here.soonest, number("expires")),
            )
            .returning(here.id, here.last_seq, here.version, here.count, here.weight)
            .cte("head")
        )
        row: dict[str, Any] = {column.name: cast(bindparam(column.name), column.type) for column in records.columns}
        row |= {"stream_id": head.c.id, "seq": head.c.last_seq, "version": head.c.version}
        added = insert(records).from_select(list(row), select(*row.values()))
        query = select(head.c.last_seq, head.c.version, head.c.count, head.c.weight).add_cte(added.cte("added"))

        def pairs(group: str, type: Any) -> Any:
            arrays = _array(f"{group}_names", Text), _array(f"{group}_values", type)
            return func.unnest(*arrays).table_valued("name", "value").render_derived().c

        if with_labels:
            label = pairs("label", Text)
            of_label = select(head.c.id, label.name, label.value, head.c.last_seq)
            query = query.add_cte(insert(labels).from_select(list(labels.columns.keys()), of_label).cte("labeled"))
        if with_derived:
            item = pairs("derived", LargeBinary)
            of_item = select(head.c.id, head.c.last_seq, item.name, head.c.version, item.value)
            query = query.add_cte(insert(derived).from_select(list(derived.columns.keys()), of_item).cte("deriving"))
        return Prepared(query, self.dialect)
