"""Scan conditions as SQL, with the semantics of `store.matching`, and how databases differ in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Dialect, Table, and_, bindparam, exists, false, func, literal_column, or_
from sqlalchemy.sql.expression import FromClause

from ...checks import to_microseconds
from ...store.matching import family
from ...store.query import Condition, Operator, Scalar

JsonTest = Callable[[FromClause, str, int, Operator, str, list[int]], ColumnElement[bool]]
"""Makes a JSON test from a table, a JSON column, a condition's number, its operator, a type family, and the
positions of the values of that family. The name within the JSON is the parameter `name_<number>`, a value is
`value_<number>_<position>`.
"""


class Flavor(Struct, frozen=True):
    """SQL specifics of one database."""

    dialect: Dialect
    insert: Callable[[Table], Any]
    """Starts an insert that may replace a row."""
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


def families(condition: Condition) -> tuple[str, ...]:
    """Return the type family of each value of a condition."""
    return tuple(family(value) for value in _choices(condition))


def values_of(n: int, condition: Condition, flavor: Flavor) -> dict[str, Any]:
    """Return the parameters of the condition with this number."""
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
    """Return the condition with this number as SQL."""
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
