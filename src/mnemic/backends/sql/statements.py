"""SQL statements and scan conditions, as text: made once for each shape, run by the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct

from ...checks import to_microseconds
from ...records import UNLISTED
from ...store.codec import FIELDS
from ...store.matching import type_family
from ...store.query import Condition, Operator, Scalar, Scan
from .schema import STREAM_COLUMNS

Parameters = Mapping[str, Any]
Reach = Literal["here", "below", "everywhere"]
"""Range of streams: one scope, a scope and those below it, or all."""

JsonTest = Callable[[str, int, Operator, str, list[int]], str]
"""Makes a JSON test of the record `r` from a JSON column, a condition's number, its operator, a type family, and the
positions of the values of that family. The name within the JSON is the parameter `name_<number>`, a value is
`value_<number>_<position>`.
"""


class SqlDialect(Struct, frozen=True):
    """SQL specifics of one database."""

    mark: Literal["?", "$"]
    """How the driver marks parameters: each by ?, or numbered by $1, $2 and so on."""
    test_json: JsonTest
    json_value: Callable[[Scalar], Any]
    """Maps a value of a JSON condition to the parameter that `test_json` compares with; text is unchanged."""
    plans: bool = False
    """Whether the planner depends on values: a plan for some values of a JSON condition may be bad for others, and
    a known limit makes it sort a whole stream that it believes to be short.
    """


_SIGNS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
EQUAL = ("eq", "in")
NEVER = "0 = 1"
"""A condition that nothing passes."""

_COLUMN_FAMILY = {
    "key": "text", "importance": "number", "weight": "number", "pinned": "bool",
    "created": "time", "updated": "time", "valid_from": "time", "valid_to": "time",
}  # fmt: skip
_JSON_TYPES = {"number": ("integer", "real"), "text": ("text",), "bool": ("true", "false")}
_PARAMETER = re.compile(r"(?<![:\w\\]):([a-z]\w*)")


class Prepared:
    """A statement as its driver takes it, with its parameter order."""

    def __init__(self, sql: str, flavor: SqlDialect, *, keep_plan: bool = True) -> None:
        """Take a statement with parameters such as :name; a colon after a backslash is none.

        `keep_plan` allows the database to reuse a generic plan.
        """
        self.keep_plan = keep_plan
        found = _PARAMETER.findall(sql)
        names = found if flavor.mark == "?" else list(dict.fromkeys(found))
        marks = {name: f"${n}" for n, name in enumerate(names, 1)}
        text = _PARAMETER.sub(lambda one: "?" if flavor.mark == "?" else marks[one[1]], sql)
        self.text: str = text.replace("\\:", ":")
        self.arguments: Callable[[Parameters], Any] = (
            itemgetter(*names) if len(names) > 1 else lambda values: tuple(values[name] for name in names)
        )


_FIELDS = ", ".join(f"r.{name}" for name in FIELDS)
_LIVE = "({0}.expires IS NULL OR {0}.expires > :now)"
_LIVE_STREAM = (
    f"r.stream_id = (SELECT s.id FROM mnemic_streams s WHERE s.scope = :scope AND s.kind = :kind "
    f"AND {_LIVE.format('s')})"
)
_DERIVED = (
    "(SELECT d.value FROM mnemic_derived d WHERE d.stream_id = r.stream_id AND d.seq = r.seq "
    "AND d.name = :{} AND (d.version = r.version OR d.version = 0))"
)
"""The current derived value named by a parameter; NULL if there is none."""


class Statements:
    """All fixed statements of one database."""

    def __init__(self, flavor: SqlDialect) -> None:
        self.flavor = flavor
        self.expired_totals: Prepared = Prepared(
            "SELECT count(*), coalesce(sum(weight), 0), min(expires) FROM mnemic_records "
            "WHERE stream_id = :stream_id AND expires <= :now",
            flavor,
        )
        self.reach: Callable[[Reach, int, bool, bool], Prepared] = cache(self._reach)
        self.scan: Callable[[Shape], Prepared] = lru_cache(maxsize=512)(self._scan)
        self.find: Callable[[int], Prepared] = cache(self._find)

    def _find(self, count: int) -> Prepared:
        """Select `count` keys of one stream, if they have not expired."""
        where = _all([_LIVE_STREAM, _one_of("r.key", "key", count), _LIVE.format("r")])
        return Prepared(f"SELECT {_FIELDS} FROM mnemic_records r WHERE {where}", self.flavor)

    def _reach(self, where: Reach, kinds: int, reverse: bool, onward: bool) -> Prepared:
        """List streams in order, forward or backward, `onward` from an inclusive position."""
        tests = [_one_of("kind", "kind", kinds) if kinds else f"kind NOT IN {UNLISTED!r}"]
        past, order = ("<", "DESC") if reverse else (">", "ASC")
        if onward:
            tests.append(f"(scope {past} :at_scope OR scope = :at_scope AND kind {past}= :at_kind)")
        ranges: dict[Reach, list[list[str]]] = {
            "here": [["scope = :scope"]],
            # Two selections that are merged: of an OR, a database sorts all rows for each page.
            "below": [["scope = :scope"], ["scope >= :first", "scope < :beyond"]],
            "everywhere": [[f"scope {past}= :at_scope"] if onward else []],
        }
        columns = ", ".join(STREAM_COLUMNS)
        several = [f"SELECT id, {columns} FROM mnemic_streams WHERE {_all([*some, *tests])}" for some in ranges[where]]
        return Prepared(f"{' UNION ALL '.join(several)} ORDER BY scope {order}, kind {order} LIMIT :limit", self.flavor)

    def _scan(self, shape: Shape) -> Prepared:
        keep_plan = not (self.flavor.plans and needs_json(shape[-1]))
        return Prepared(scan_statement(shape, self.flavor), self.flavor, keep_plan=keep_plan)


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


def scan_values(scan: Scan, flavor: SqlDialect) -> dict[str, Any]:
    """Return the parameters of a scan's conditions."""
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


def scan_statement(shape: Shape, flavor: SqlDialect) -> str:
    """Return the statement that reads one stream."""
    by_id, reverse, bodies, inside, after_version, as_of, brought, lacking, where = shape
    columns = [f"r.{name}" if bodies or name not in ("text", "data") else "NULL" for name in FIELDS]
    columns += [_DERIVED.format(f"derived_{n}") for n in range(brought)]
    source = "mnemic_records r"
    tests = [f"{_DERIVED.format('lacking')} IS NULL"] if lacking else []
    tests += ["r.stream_id = :stream_id" if by_id else _LIVE_STREAM, _LIVE.format("r")]
    driver = next((n for n, (field, op, kinds) in enumerate(where) if uses_label_index(field, op, kinds)), None)
    for n, (field, op, kinds) in enumerate(where):
        if n == driver:
            source = "mnemic_labels l JOIN mnemic_records r ON l.stream_id = r.stream_id AND l.seq = r.seq"
            tests += [f"l.name = :name_{n}", _one_of("l.value", f"value_{n}", len(kinds))]
        else:
            tests.append(test_of(n, field, op, kinds, flavor))
    if inside:
        tests.append(f"r.seq {'<' if reverse else '>'} :at_seq")
    if after_version:
        tests.append("r.version > :after_version")
    if as_of:
        tests.append("(r.valid_from IS NULL OR r.valid_from <= :as_of)")
        tests.append("(r.valid_to IS NULL OR r.valid_to > :as_of)")
    limit = "LIMIT :limit OFFSET :skip"
    if flavor.plans and not needs_json(where):
        # Hidden from the planner, so that it chooses a plan that returns rows at once.
        limit = "LIMIT (SELECT CAST(:limit AS bigint)) OFFSET (SELECT CAST(:skip AS bigint))"
    # By the label's, so that a planner does not go through the whole stream in order to save sorting.
    order = f"{'r' if driver is None else 'l'}.seq {'DESC' if reverse else 'ASC'}"
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {_all(tests)} ORDER BY {order} {limit}"


def families(condition: Condition) -> tuple[str, ...]:
    """Return the type family of each value of a condition."""
    return tuple(type_family(value) for value in _choices(condition))


def values_of(n: int, condition: Condition, flavor: SqlDialect) -> dict[str, Any]:
    """Return the parameters of the condition with this number."""
    _, dot, name = condition.field.partition(".")
    values: dict[str, Any] = {f"name_{n}": name}
    for m, value in enumerate(_choices(condition)):
        if isinstance(value, datetime):
            value = to_microseconds(value)
        values[f"value_{n}_{m}"] = flavor.json_value(value) if dot else value
    return values


def uses_label_index(field: str, op: Operator, kinds: tuple[str, ...]) -> bool:
    """Return whether the label index can answer a condition."""
    return field.startswith("labels.") and op in EQUAL and set(kinds) == {"text"}


def needs_json(where: Sequence[tuple[str, Operator, tuple[str, ...]]]) -> bool:
    """Return whether any condition of a scan, by field, operator and families, needs JSON."""
    driver = next((place for place, test in enumerate(where) if uses_label_index(*test)), None)
    return any("." in test[0] and place != driver for place, test in enumerate(where))


def test_of(n: int, field: str, op: Operator, kinds: tuple[str, ...], flavor: SqlDialect) -> str:
    """Return the condition with this number as SQL."""
    if op == "ne":
        return f"NOT {_compare(n, field, 'eq', kinds[0], [0], flavor)}"
    by_family: dict[str, list[int]] = {}
    for m, kind in enumerate(kinds):
        by_family.setdefault(kind, []).append(m)
    tests = [_compare(n, field, op, kind, places, flavor) for kind, places in by_family.items()]
    return f"({' OR '.join(tests) or NEVER})"


def _compare(n: int, field: str, op: Operator, kind: str, places: list[int], flavor: SqlDialect) -> str:
    """Return a comparison of a field with the values of one type family, in parentheses."""
    group, dot, _ = field.partition(".")
    if kind == "bool" and op not in EQUAL:
        return f"({NEVER})"
    if dot:
        comparable = kind in ("number", "text", "bool") or (kind == "null" and op in EQUAL)
        return f"({flavor.test_json(group, n, op, kind, places) if comparable else NEVER})"
    if kind == "null":
        return f"(r.{field} IS NULL)" if op in EQUAL else f"({NEVER})"
    if _COLUMN_FAMILY[field] != kind:
        return f"({NEVER})"
    return f"(r.{field} IS NOT NULL AND {compared(f'r.{field}', op, [f':value_{n}_{m}' for m in places])})"


def compared(value: str, op: Operator, others: Sequence[str]) -> str:
    """Return a comparison of an expression with others."""
    return f"{value} IN ({', '.join(others)})" if op == "in" else f"{value} {_SIGNS[op]} {others[0]}"


def each_of_json(group: str, n: int, op: Operator, kind: str, places: list[int]) -> str:
    """Return a JSON test for SQLite, with json_each."""
    entries = f"EXISTS (SELECT * FROM json_each(r.{group}) AS j WHERE j.key = :name_{n} AND "
    if kind == "null":
        return f"NOT {entries}j.type <> 'null')"
    types = ", ".join(f"'{name}'" for name in _JSON_TYPES[kind])
    return f"{entries}j.type IN ({types}) AND {compared('j.value', op, [f':value_{n}_{m}' for m in places])})"


def _all(tests: Iterable[str]) -> str:
    return " AND ".join(tests)


def _one_of(column: str, name: str, count: int) -> str:
    return f"{column} IN ({', '.join(f':{name}_{n}' for n in range(count))})" if count else NEVER


def _choices(condition: Condition) -> tuple[Scalar, ...]:
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)
