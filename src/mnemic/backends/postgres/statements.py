"""PostgreSQL-specific statements: bulk operations, and an append in one round trip."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    LargeBinary,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
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
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.sql.expression import Executable, FromClause

from ..sql.schema import VERSION_TABLE, derived, labels, records, streams
from ..sql.statements import SLOT, Prepared, Statements, same
from .flavor import FLAVOR

_HEAD = tuple(c.name for c in streams.columns)


def _array(name: str, type: Any) -> ColumnElement[Any]:
    return bindparam(name, type_=ARRAY(type))


def _one_of(where: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return where == any_(_array(name, where.type))


def _rows(table: FromClause, *names: str) -> Select[Any]:
    """Return rows built from arrays, which are named by the plurals of their columns."""
    arrays = (_array(f"{name}s", table.c[name].type) for name in names)
    given = func.unnest(*arrays).table_valued(*names).render_derived()
    return select(*(given.c[name] for name in names))


class AppendShape(NamedTuple):
    """Everything that determines the SQL text of an append."""

    labeled: bool
    deriving: bool
    touched: bool
    """Whether the stream's time to live and settings are set with it."""
    expecting: bool
    """Whether the stream must have certain settings."""
    counted: bool
    """Whether the stream has a limit on its number of records."""
    weighed: bool
    """Whether the stream has a limit on its weight."""


class PostgresStatements(Statements):
    """All statements, for PostgreSQL."""

    def __init__(self) -> None:
        super().__init__(FLAVOR)

        def prepared(statement: Executable) -> Prepared:
            return Prepared(statement, self.dialect)

        stream = and_(same(streams.c.scope), same(streams.c.kind))
        named = select(streams.c.id).where(stream).scalar_subquery()
        slot = select(*(records.c[name] for name in SLOT))
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
        self.patience: Prepared = prepared(
            text(
                "SELECT set_config('lock_timeout', CAST(:wait AS text), true), "
                "set_config('idle_in_transaction_session_timeout', CAST(:wait AS text), true)"
            )
        )
        self.commit: Prepared = prepared(text("COMMIT"))
        self.lock_head: Prepared = prepared(select(streams).where(stream).with_for_update())
        wanted = tuple_(streams.c.scope, streams.c.kind)
        self.lock_heads: Prepared = prepared(
            select(streams)
            .where(wanted.in_(_rows(streams, "scope", "kind")))
            .order_by(streams.c.scope, streams.c.kind)
            .with_for_update()
        )
        self.slots_of: Prepared = prepared(slot.where(records.c.stream_id == named, _one_of(records.c.key, "keys")))
        self.all_slots_of: Prepared = prepared(slot.where(records.c.stream_id == named))
        self.claim_head: Prepared = prepared(
            insert_or(streams)
            .values({name: bindparam(name) for name in _HEAD if name != "id"})
            .on_conflict_do_nothing()
            .returning(streams.c.id)
        )
        self.remove_seqs: list[Prepared] = [
            prepared(delete(table).where(same(table.c.stream_id), _one_of(table.c.seq, "seqs")))
            for table in (records, derived)
        ]
        self.empty: list[Prepared] = [
            prepared(delete(table).where(same(table.c.stream_id))) for table in (records, labels, derived)
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
        self.append: Callable[[AppendShape], Prepared] = cache(self._append)

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

    def _append(self, shape: AppendShape) -> Prepared:
        """Append a record with a new key to an existing stream within its limits and without expired records.

        If any of this does not hold, nothing happens and no row is returned. The row has the record's seq and
        version, and the stream's totals.
        """
        moment, expires = bindparam("moment", type_=BigInteger), bindparam("expires", type_=BigInteger)
        weight = bindparam("weight", type_=BigInteger)
        here = streams.c
        ttl = bindparam("ttl", type_=BigInteger) if shape.touched else here.ttl
        # Never earlier than before, unless the time to live has changed: a slow clock does not shorten it.
        ends: ColumnElement[Any] = func.greatest(here.expires, moment + ttl)
        if shape.touched:
            ends = case((here.ttl.is_not_distinct_from(ttl), ends), else_=moment + ttl)
        one: ColumnElement[int] = literal_column("1")
        # Not EXISTS, which PostgreSQL turns into a join that reads all of a small table.
        taken = select(records.c.seq).where(records.c.stream_id == here.id, same(records.c.key))
        changed = update(streams).where(
            same(here.scope),
            same(here.kind),
            or_(here.expires.is_(None), here.expires > moment),
            or_(here.soonest.is_(None), here.soonest > moment),
            taken.scalar_subquery().is_(None),
        )
        if shape.expecting:
            expected = bindparam("expected_settings", type_=Text)
            changed = changed.where(here.settings.is_not_distinct_from(expected))
        if shape.counted:
            changed = changed.where(here.count < bindparam("max_count", type_=BigInteger))
        if shape.weighed:
            changed = changed.where(here.weight + weight <= bindparam("max_weight", type_=BigInteger))
        head = (
            changed.values(
                last_seq=here.last_seq + one,
                version=here.version + one,
                count=here.count + one,
                weight=here.weight + weight,
                updated=moment,
                ttl=ttl,
                settings=bindparam("settings", type_=Text) if shape.touched else here.settings,
                expires=ends,
                soonest=func.least(here.soonest, expires),
            )
            .returning(here.id, here.last_seq, here.version, here.count, here.weight)
            .cte("head")
        )
        given: dict[str, Any] = {c.name: cast(bindparam(c.name), c.type) for c in records.columns}
        given |= {"stream_id": head.c.id, "seq": head.c.last_seq, "version": head.c.version}
        added = insert(records).from_select(list(given), select(*given.values()))
        query = select(head.c.last_seq, head.c.version, head.c.count, head.c.weight).add_cte(added.cte("added"))
        if shape.labeled:
            names, values = _array("label_names", Text), _array("label_values", Text)
            given_labels = func.unnest(names, values).table_valued("name", "value").render_derived()
            rows = select(head.c.id, given_labels.c.name, given_labels.c.value, head.c.last_seq)
            query = query.add_cte(
                insert(labels).from_select(["stream_id", "name", "value", "seq"], rows).cte("labeled")
            )
        if shape.deriving:
            names, values = _array("derived_names", Text), _array("derived_values", LargeBinary)
            given_values = func.unnest(names, values).table_valued("name", "value").render_derived()
            kept = select(head.c.id, head.c.last_seq, given_values.c.name, head.c.version, given_values.c.value)
            query = query.add_cte(
                insert(derived).from_select(["stream_id", "seq", "name", "version", "value"], kept).cte("deriving")
            )
        return Prepared(query, self.dialect)
