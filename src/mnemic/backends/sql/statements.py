"""The statements: built once with SQLAlchemy Core, compiled once per dialect, run by the driver itself.

Building and compiling a statement costs more than SQLite needs to run it, so it is not done per call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.sql.expression import Executable, FromClause

from ...checks import to_microseconds
from ...store.matching import family
from ...store.query import Condition, Scan
from .rows import COLUMNS
from .schema import derived, labels, records, streams, writes

Parameters = Mapping[str, Any]
Reach = Literal["here", "below", "everywhere"]
"""Which streams: those of one scope, those of it and of the scopes below it, or all."""


class Prepared:
    """A statement compiled for one dialect, and how its parameters are ordered."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.text = str(compiled)
        names = tuple(compiled.positiontup)
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        self.arguments: Callable[[Parameters], Any]
        if constants or len(names) < 2:
            self.arguments = lambda given: tuple(
                given[name] if name in given else constants[name] for name in names
            )
        else:
            self.arguments = itemgetter(*names)


def same(column: ColumnElement[Any], name: str | None = None) -> ColumnElement[bool]:
    """Return a test of a column against the parameter of its name."""
    return column == bindparam(name or column.key)


class Statements:
    """Every statement that does not depend on what is asked, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

        def prepared(statement: Executable) -> Prepared:
            return Prepared(statement, dialect)

        stream = and_(same(streams.c.scope), same(streams.c.kind))
        place = and_(same(records.c.stream_id), same(records.c.seq))
        of_stream = same(records.c.stream_id)
        past = records.c.expires <= bindparam("now")
        totals = select(
            func.count(), func.coalesce(func.sum(records.c.weight), 0), func.min(records.c.expires)
        )
        self.head = prepared(select(streams).where(stream))
        self.add_head = prepared(insert(streams).values(_parameters(streams, but=("id",))))
        self.set_head = prepared(
            update(streams)
            .where(streams.c.id == bindparam("id"))
            .values(_parameters(streams, but=("id", "scope", "kind", "created")))
        )
        self.remove_head = prepared(delete(streams).where(streams.c.id == bindparam("id")))
        self.slot = prepared(
            select(*(records.c[name] for name in SLOT)).where(of_stream, same(records.c.key))
        )
        self.add = prepared(insert(records).values(_parameters(records)))
        self.set = prepared(
            update(records).where(place).values(_parameters(records, but=("stream_id", "seq", "key")))
        )
        self.remove = prepared(delete(records).where(place))
        self.add_label = prepared(insert(labels).values(_parameters(labels)))
        self.remove_label = prepared(delete(labels).where(and_(*(same(c) for c in labels.columns))))
        self.remove_lost_labels = prepared(
            delete(labels).where(
                same(labels.c.stream_id),
                ~exists().where(records.c.stream_id == labels.c.stream_id, records.c.seq == labels.c.seq),
            )
        )
        self.keep_derived = prepared(_replacing(derived))
        self.remove_derived = prepared(delete(derived).where(same(derived.c.stream_id), same(derived.c.seq)))
        self.remove_one_derived = prepared(
            delete(derived).where(same(derived.c.stream_id), same(derived.c.seq), same(derived.c.name))
        )
        self.remove_lost_derived = prepared(
            delete(derived).where(
                same(derived.c.stream_id),
                ~exists().where(records.c.stream_id == derived.c.stream_id, records.c.seq == derived.c.seq),
            )
        )
        self.totals = prepared(totals.where(of_stream))
        self.expired_totals = prepared(totals.where(of_stream, past))
        self.remove_expired = prepared(delete(records).where(of_stream, past))
        self.written = prepared(select(writes.c.outcomes).where(same(writes.c.id)))
        self.note_write = prepared(insert(writes).values(_parameters(writes)))
        self.forget_writes = prepared(delete(writes).where(writes.c.done < bindparam("before")))

        self.reach = cache(self._reach)
        self.scan = lru_cache(maxsize=512)(self._scan)
        self.slots = cache(self._slots)
        self.find = cache(self._find)
        self.purge = cache(self._purge)

    def _slots(self, count: int) -> Prepared:
        """Find what the write path needs to know of `count` keys of one stream."""
        columns = (records.c[name] for name in SLOT)
        return Prepared(
            select(*columns).where(same(records.c.stream_id), _one_of(records.c.key, count)), self.dialect
        )

    def _find(self, count: int) -> Prepared:
        """Read `count` keys of one stream, if they have not expired."""
        return Prepared(
            select(records).where(_live_stream(), _one_of(records.c.key, count), _live(records)),
            self.dialect,
        )

    def _purge(self, keep: int) -> Prepared:
        """Empty a stream, but for `keep` keys."""
        return Prepared(
            delete(records).where(same(records.c.stream_id), ~_one_of(records.c.key, keep)), self.dialect
        )

    def _reach(self, where: Reach, kinds: int, reverse: bool, onward: bool) -> Prepared:
        """List streams in order, forwards or backwards, `onward` from a position that is included."""
        scope, kind = streams.c.scope, streams.c.kind
        query = select(streams)
        if where == "here":
            query = query.where(same(scope))
        elif where == "below":
            query = query.where(
                or_(same(scope), and_(scope >= bindparam("first"), scope < bindparam("beyond")))
            )
        if kinds:
            query = query.where(_one_of(kind, kinds))
        if onward:
            at_scope: Any = bindparam("at_scope")
            at_kind: Any = bindparam("at_kind")
            past = scope < at_scope if reverse else scope > at_scope
            here = kind <= at_kind if reverse else kind >= at_kind
            query = query.where(or_(past, and_(scope == at_scope, here)))
        order = (column.desc() if reverse else column.asc() for column in (scope, kind))
        return Prepared(query.order_by(*order).limit(bindparam("limit")), self.dialect)

    def _scan(self, shape: Shape) -> Prepared:
        return Prepared(scan_statement(shape), self.dialect)


SLOT = ("key", "seq", "version", "created", "weight", "labels")
"""What the write path needs to know of a record that is there."""

Shape = tuple[Any, ...]
"""What decides a scan's text: all of it but the values."""


def shape_of(scan: Scan, *, by_id: bool, inside: bool) -> Shape:
    """Return the shape of a scan of one stream, by its id or its scope and kind, from a seq or the end."""
    return (
        by_id,
        scan.reverse,
        scan.bodies,
        inside,
        scan.after_version is not None,
        scan.as_of is not None,
        len(scan.derived),
        scan.lacking is not None,
        tuple((test.field, test.op, _families(test)) for test in scan.where),
    )


def scan_values(scan: Scan) -> dict[str, Any]:
    """Return the parameters of a scan's conditions."""
    values: dict[str, Any] = {f"derived_{n}": name for n, name in enumerate(scan.derived)}
    if scan.lacking is not None:
        values["lacking"] = scan.lacking
    if scan.after_version is not None:
        values["after_version"] = scan.after_version
    if scan.as_of is not None:
        values["as_of"] = to_microseconds(scan.as_of)
    for n, test in enumerate(scan.where):
        values[f"name_{n}"] = test.field.partition(".")[2]
        for m, value in enumerate(test.value if isinstance(test.value, tuple) else (test.value,)):
            values[f"value_{n}_{m}"] = to_microseconds(value) if isinstance(value, datetime) else value
    return values


def scan_statement(shape: Shape) -> Select[Any]:
    """Return the statement that reads one stream."""
    by_id, reverse, bodies, inside, after_version, as_of, brought, lacking, where = shape
    here = records.alias("r")
    columns: list[ColumnElement[Any]] = [
        here.c[name] if bodies or name not in ("text", "data") else null().label(name) for name in COLUMNS
    ]
    columns += [_derived(here, f"derived_{n}") for n in range(brought)]
    query = select(*columns)
    if lacking:
        query = query.where(_derived(here, "lacking").is_(None))
    query = query.where(same(here.c.stream_id) if by_id else _live_stream(here))
    query = query.where(_live(here))
    driver = next(
        (n for n, (field, op, kinds) in enumerate(where) if _drives(field, op, kinds)),
        None,
    )
    for n, (field, op, kinds) in enumerate(where):
        if n == driver:
            found = labels.alias(f"l{n}")
            query = query.join_from(
                found, here, and_(found.c.stream_id == here.c.stream_id, found.c.seq == here.c.seq)
            ).where(found.c.name == bindparam(f"name_{n}"), _one_of(found.c.value, len(kinds), f"value_{n}"))
        else:
            query = query.where(_test(here, n, field, op, kinds))
    if inside:
        query = query.where(here.c.seq < bindparam("at_seq") if reverse else here.c.seq > bindparam("at_seq"))
    if after_version:
        query = query.where(here.c.version > bindparam("after_version"))
    if as_of:
        query = query.where(
            or_(here.c.valid_from.is_(None), here.c.valid_from <= bindparam("as_of")),
            or_(here.c.valid_to.is_(None), here.c.valid_to > bindparam("as_of")),
        )
    order = here.c.seq.desc() if reverse else here.c.seq.asc()
    return query.order_by(order).limit(bindparam("limit")).offset(bindparam("skip"))


def _derived(here: FromClause, parameter: str) -> ColumnElement[Any]:
    """Return the derived value of the parameter's name that a record has now; NULL if it has none."""
    held = derived.alias()
    return (
        select(held.c.value)
        .where(
            held.c.stream_id == here.c.stream_id,
            held.c.seq == here.c.seq,
            held.c.name == bindparam(parameter),
            or_(held.c.version == here.c.version, held.c.version == literal_column("0")),
        )
        .scalar_subquery()
    )


def _replacing(table: Table) -> Executable:
    """Return an insert that takes the place of a row with the same primary key."""
    values = _parameters(table)
    statement = sqlite_insert(table).values(values)
    kept = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=kept)


def _families(test: Condition) -> tuple[str, ...]:
    return tuple(family(v) for v in (test.value if isinstance(test.value, tuple) else (test.value,)))


def _drives(field: str, op: str, families: tuple[str, ...]) -> bool:
    """Tell whether the label index can find the records of a condition."""
    return field.startswith("labels.") and op in ("eq", "in") and set(families) == {"text"}


def _test(here: FromClause, n: int, field: str, op: str, families: tuple[str, ...]) -> ColumnElement[bool]:
    """Return a condition as SQL, with the meaning that `store.matching` gives it."""
    if op == "ne":
        return ~_compare(here, n, field, "eq", families[0], [0])
    by_family: dict[str, list[int]] = {}
    for m, kind in enumerate(families):
        by_family.setdefault(kind, []).append(m)
    return or_(false(), *(_compare(here, n, field, op, kind, places) for kind, places in by_family.items()))


_OPERATORS: dict[str, Callable[[Any, list[Any]], ColumnElement[bool]]] = {
    "eq": lambda a, b: a == b[0],
    "in": lambda a, b: a.in_(b),
    "lt": lambda a, b: a < b[0],
    "le": lambda a, b: a <= b[0],
    "gt": lambda a, b: a > b[0],
    "ge": lambda a, b: a >= b[0],
}
_COLUMN_FAMILY = {
    "key": "text", "importance": "number", "weight": "number", "pinned": "bool",
    "created": "time", "updated": "time", "valid_from": "time", "valid_to": "time",
}  # fmt: skip
_JSON_TYPES = {"number": ("integer", "real"), "text": ("text",), "bool": ("true", "false")}


def _compare(
    here: FromClause, n: int, field: str, op: str, kind: str, places: list[int]
) -> ColumnElement[bool]:
    """Return a comparison of a field with those of a condition's values that are of one family."""
    values: list[Any] = [bindparam(f"value_{n}_{m}") for m in places]
    equal = op in ("eq", "in")
    group, dot, _ = field.partition(".")
    if not dot:
        column = here.c[field]
        if kind == "null":
            return column.is_(None) if equal else false()
        if _COLUMN_FAMILY[field] != kind or (kind == "bool" and not equal):
            return false()
        return and_(column.is_not(None), _OPERATORS[op](column, values))
    held = func.json_each(here.c[group]).table_valued("key", "value", "type", name=f"j{n}_{places[0]}")
    named = exists().select_from(held).where(held.c.key == bindparam(f"name_{n}"))
    if kind == "null":
        return ~named.where(held.c.type != "null") if equal else false()
    if kind not in _JSON_TYPES or (kind == "bool" and not equal):
        return false()
    types = held.c.type.in_([literal_column(f"'{name}'") for name in _JSON_TYPES[kind]])
    return named.where(types, _OPERATORS[op](held.c.value, values))


def _parameters(table: FromClause, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {c.name: bindparam(c.name) for c in table.columns if c.name not in but}


def _one_of(column: ColumnElement[Any], count: int, name: str | None = None) -> ColumnElement[bool]:
    if not count:
        return false()
    name = name or column.key
    return column.in_([bindparam(f"{name}_{n}") for n in range(count)])


def _live(table: FromClause) -> ColumnElement[bool]:
    return or_(table.c.expires.is_(None), table.c.expires > bindparam("now"))


def _live_stream(table: FromClause = records) -> ColumnElement[bool]:
    found = select(streams.c.id).where(same(streams.c.scope), same(streams.c.kind), _live(streams))
    return table.c.stream_id == found.scalar_subquery()
