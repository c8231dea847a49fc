"""PostgreSQL's SQL specifics: JSON is text in the table and values in a condition."""

from __future__ import annotations

from typing import Any

from msgspec import json
from sqlalchemy import ColumnElement, Text, and_, bindparam, cast, false, func, literal_column, or_
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.expression import FromClause

from ...store.query import Operator, Scalar
from ..sql.conditions import EQUAL, OPERATORS
from ..sql.flavor import Flavor

_encode = json.Encoder().encode


def json_value(value: Scalar) -> Any:
    """Return a number or a boolean as JSON, since PostgreSQL would round a float; text is unchanged."""
    return _encode(value).decode() if isinstance(value, bool | int | float) else value


def test_json(here: FromClause, group: str, n: int, op: Operator, kind: str, places: list[int]) -> ColumnElement[bool]:
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
    insert,
    test_json,
    json_value,
    plans=True,
)
