"""Differences between SQL databases in statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Dialect, Table
from sqlalchemy.sql.expression import FromClause

from ...store.query import Operator, Scalar

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
