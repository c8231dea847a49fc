"""SQL statements and scan conditions: built with SQLAlchemy Core, compiled once per dialect, run by the driver.

Building and compiling a statement costs more than running it in SQLite, so it is not done per call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Select,
    and_,
    bindparam,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.sql.expression import Executable, FromClause

from ...checks import to_microseconds
from ...records import ONCE_KIND
from ...store.codec import FIELDS
from ...store.matching import family
from ...store.query import Condition, Operator, Scalar, Scan
from .schema import derived, labels, records, streams

Parameters = Mapping[str, Any]
Reach = Literal["here", "below", "everywhere"]
"""Range of streams: one scope, a scope and those below it, or all."""


JsonTest = Callable[[FromClause, str, int, Operator, str, list[int]], ColumnElement[bool]]
"""Makes a JSON test from a table, a JSON column, a condition's number, its operator, a type family, and the
positions of the values of that family. The name within the JSON is the parameter `name_<number>`, a value is
`value_<number>_<position>`.
"""


class Flavor(Struct, frozen=True):
    """SQL specifics of one database."""

    dialect: Dialect
    test_json: JsonTest
    json_value: Callable[[Scalar], Any]
    """Maps a value of a JSON condition to the parameter that `test_json` compares with; text is unchanged."""
    plans: bool = False
    """Whether the planner depends on values: a plan for some values of a JSON condition may be bad for others, and
    a known limit makes it sort a whole stream that it believes to be short.
    """


Operators = dict[str, Callable[[Any, list[Any]], ColumnElement[bool]]]

OPERATORS: Operators = {
    "eq": lambda a, b: a == b[0],
    "in": lambda a, b: a.in_(b),
    "lt": lambda a, b: a < b[0],
    "le": lambda a, b: a <= b[0],
    "gt": lambda a, b: a > b[0],
    "ge": lambda a, b: a >= b[0],
}
"""Comparison operators as functions of a column and parameters."""
EQUAL = ("eq", "in")

_COLUMN_FAMILY = {
    "key": "text", "importance": "number", "weight": "number", "pinned": "bool",
    "created": "time", "updated": "time", "valid_from": "time", "valid_to": "time",
}  # fmt: skip
_JSON_TYPES = {"number": ("integer", "real"), "text": ("text",), "bool": ("true", "false")}


class Prepared:
    """A statement compiled for one dialect, with its parameter order."""

    def __init__(self, statement: Executable, dialect: Dialect, *, keep_plan: bool = True) -> None:
        """`keep_plan` allows the database to reuse a generic plan."""
        self.keep_plan = keep_plan
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.text: str = str(compiled)
        names = tuple(compiled.positiontup)
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        self.arguments: Callable[[Parameters], Any]
        if constants or len(names) < 2:
            self.arguments = lambda values: tuple(values[name] if name in values else constants[name] for name in names)
        else:
            self.arguments = itemgetter(*names)


def same(column: ColumnElement[Any], name: str | None = None) -> ColumnElement[bool]:
    return column == bindparam(name or column.key)


_FIELDS = [records.c[name] for name in FIELDS]


class Statements:
    def __init__(self, flavor: Flavor) -> None:
        self.flavor = flavor
        dialect = flavor.dialect
        self.dialect: Dialect = dialect
        totals = select(func.count(), func.coalesce(func.sum(records.c.weight), 0), func.min(records.c.expires))
        self.expired_totals: Prepared = Prepared(
            totals.where(same(records.c.stream_id), records.c.expires <= bindparam("now")), dialect
        )
        self.reach: Callable[[Reach, int, bool, bool], Prepared] = cache(self._reach)
        self.scan: Callable[[Shape], Prepared] = lru_cache(maxsize=512)(self._scan)
        self.find: Callable[[int], Prepared] = cache(self._find)

    def _find(self, count: int) -> Prepared:
        return Prepared(
            select(*_FIELDS).where(_live_stream(), _one_of(records.c.key, count), _live(records)), self.dialect
        )

    def _reach(self, where: Reach, kinds: int, reverse: bool, onward: bool) -> Prepared:
        """List streams in order, forward or backward, `onward` from an inclusive position."""
        scope, kind = streams.c.scope, streams.c.kind
        query = select(streams)
        if where == "here":
            query = query.where(same(scope))
        elif where == "below":
            query = query.where(or_(same(scope), and_(scope >= bindparam("first"), scope < bindparam("beyond"))))
        notes: ColumnElement[str] = literal_column(f"'{ONCE_KIND}'")
        query = query.where(_one_of(kind, kinds) if kinds else kind != notes)
        if onward:
            at_scope: Any = bindparam("at_scope")
            at_kind: Any = bindparam("at_kind")
            past = scope < at_scope if reverse else scope > at_scope
            here = kind <= at_kind if reverse else kind >= at_kind
            query = query.where(or_(past, and_(scope == at_scope, here)))
        order = (column.desc() if reverse else column.asc() for column in (scope, kind))
        return Prepared(query.order_by(*order).limit(bindparam("limit")), self.dialect)

    def _scan(self, shape: Shape) -> Prepared:
        statement = scan_statement(shape, self.flavor)
        return Prepared(statement, self.dialect, keep_plan=not (self.flavor.plans and filters(shape[-1])))


Shape = tuple[Any, ...]
"""Everything that determines a scan's SQL text, except values."""


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
        tuple((test.field, test.op, families(test)) for test in scan.where),
    )


def scan_values(scan: Scan, flavor: Flavor) -> dict[str, Any]:
    values: dict[str, Any] = {f"derived_{n}": name for n, name in enumerate(scan.derived)}
    if scan.lacking is not None:
        values["lacking"] = scan.lacking
    if scan.after_version is not None:
        values["after_version"] = scan.after_version
    if scan.as_of is not None:
        values["as_of"] = to_microseconds(scan.as_of)
    for n, test in enumerate(scan.where):
        values |= values_of(n, test, flavor)
    return values


def scan_statement(shape: Shape, flavor: Flavor) -> Select[Any]:
    by_id, reverse, bodies, inside, after_version, as_of, brought, lacking, where = shape
    here = records.alias("r")
    columns: list[ColumnElement[Any]] = [
        here.c[name] if bodies or name not in ("text", "data") else null().label(name) for name in FIELDS
    ]
    columns += [_derived(here, f"derived_{n}") for n in range(brought)]
    query = select(*columns)
    if lacking:
        query = query.where(_derived(here, "lacking").is_(None))
    query = query.where(same(here.c.stream_id) if by_id else _live_stream(here))
    query = query.where(_live(here))
    driver = next((n for n, (field, op, kinds) in enumerate(where) if drives(field, op, kinds)), None)
    for n, (field, op, kinds) in enumerate(where):
        if n == driver:
            found = labels.alias(f"l{n}")
            query = query.join_from(
                found, here, and_(found.c.stream_id == here.c.stream_id, found.c.seq == here.c.seq)
            ).where(found.c.name == bindparam(f"name_{n}"), _one_of(found.c.value, len(kinds), f"value_{n}"))
        else:
            query = query.where(test_of(here, n, field, op, kinds, flavor))
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
    limit, skip = bindparam("limit", type_=BigInteger), bindparam("skip", type_=BigInteger)
    if flavor.plans and not filters(where):
        return query.order_by(order).limit(_hidden(limit)).offset(_hidden(skip))
    return query.order_by(order).limit(limit).offset(skip)


def _hidden(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a value hidden from the planner, so that it chooses a plan that returns rows at once."""
    return select(value).scalar_subquery()


def _derived(here: FromClause, parameter: str) -> ColumnElement[Any]:
    """Return the current derived value named by the parameter; NULL if there is none."""
    stored = derived.alias()
    return (
        select(stored.c.value)
        .where(
            stored.c.stream_id == here.c.stream_id,
            stored.c.seq == here.c.seq,
            stored.c.name == bindparam(parameter),
            or_(stored.c.version == here.c.version, stored.c.version == literal_column("0")),
        )
        .scalar_subquery()
    )


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


def families(condition: Condition) -> tuple[str, ...]:
    """Return the type family of each value of a condition."""
    return tuple(family(value) for value in _choices(condition))


def values_of(n: int, condition: Condition, flavor: Flavor) -> dict[str, Any]:
    _, dot, name = condition.field.partition(".")
    values: dict[str, Any] = {f"name_{n}": name}
    for m, value in enumerate(_choices(condition)):
        if isinstance(value, datetime):
            value = to_microseconds(value)
        values[f"value_{n}_{m}"] = flavor.json_value(value) if dot else value
    return values


def drives(field: str, op: Operator, kinds: tuple[str, ...]) -> bool:
    """Return whether the label index can answer a condition."""
    return field.startswith("labels.") and op in EQUAL and set(kinds) == {"text"}


def filters(where: Sequence[tuple[str, Operator, tuple[str, ...]]]) -> bool:
    """Return whether any condition of a scan, by field, operator and families, needs JSON."""
    driver = next((place for place, test in enumerate(where) if drives(*test)), None)
    return any("." in test[0] and place != driver for place, test in enumerate(where))


def test_of(
    here: FromClause, n: int, field: str, op: Operator, kinds: tuple[str, ...], flavor: Flavor
) -> ColumnElement[bool]:
    if op == "ne":
        return ~_compare(here, n, field, "eq", kinds[0], [0], flavor)
    by_family: dict[str, list[int]] = {}
    for m, kind in enumerate(kinds):
        by_family.setdefault(kind, []).append(m)
    tests = (_compare(here, n, field, op, kind, places, flavor) for kind, places in by_family.items())
    return or_(false(), *tests)


def _compare(
    here: FromClause, n: int, field: str, op: Operator, kind: str, places: list[int], flavor: Flavor
) -> ColumnElement[bool]:
    """Return a comparison of a field with the values of one type family."""
    group, dot, _ = field.partition(".")
    if kind == "bool" and op not in EQUAL:
        return false()
    if dot:
        comparable = kind in ("number", "text", "bool") or (kind == "null" and op in EQUAL)
        return flavor.test_json(here, group, n, op, kind, places) if comparable else false()
    column = here.c[field]
    if kind == "null":
        return column.is_(None) if op in EQUAL else false()
    if _COLUMN_FAMILY[field] != kind:
        return false()
    return and_(column.is_not(None), OPERATORS[op](column, [bindparam(f"value_{n}_{m}") for m in places]))


def each_of_json(
    here: FromClause, group: str, n: int, op: Operator, kind: str, places: list[int]
) -> ColumnElement[bool]:
    """Return a JSON test for SQLite, with json_each."""
    entries = func.json_each(here.c[group]).table_valued("key", "value", "type", name=f"j{n}_{places[0]}")
    named = exists().select_from(entries).where(entries.c.key == bindparam(f"name_{n}"))
    if kind == "null":
        return ~named.where(entries.c.type != "null")
    types = entries.c.type.in_([literal_column(f"'{name}'") for name in _JSON_TYPES[kind]])
    return named.where(types, OPERATORS[op](entries.c.value, [bindparam(f"value_{n}_{m}") for m in places]))


def _choices(condition: Condition) -> tuple[Scalar, ...]:
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)
