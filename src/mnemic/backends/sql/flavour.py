"""What differs between the databases that are spoken to in SQL, as far as statements are concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Dialect, Table
from sqlalchemy.sql.expression import FromClause

from ...store.query import Operator, Scalar

JsonTest = Callable[[FromClause, str, int, Operator, str, list[int]], ColumnElement[bool]]
"""From a table, a column of JSON, a condition's number, its operator, and the family and the places of those
of its values that are of one family, to the test. The name within the JSON is the parameter `name_<number>`,
a value is `value_<number>_<place>`."""


class Flavour(Struct, frozen=True):
    """One database's way with SQL."""

    dialect: Dialect
    insert: Callable[[Table], Any]
    """Begins an insert that may replace a row."""
    test_json: JsonTest
    json_value: Callable[[Scalar], Any]
    """From a value of a condition on JSON to the parameter that `test_json` compares with; text stays so."""
    plans: bool = False
    """Whether it plans by the values: a plan for some values of a condition on JSON may then be bad for
    others, and a limit that it knows makes it sort the whole of a stream that it takes for a short one."""
