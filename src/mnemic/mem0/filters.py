"""Filters of mem0: conditions joined by AND, OR and NOT, and which scopes can hold what passes them.

A field is an entity id, a time, `categories`, `keywords` (the text), `memory_ids`, or else a name in the metadata. Its
test is a value, a list of values, "*" for any value, or an object of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from msgspec import Struct, field

from ..checks import shown
from ..errors import InvalidValueError
from ..records import Record, ScopePath
from ..store.matching import type_family
from ..store.query import MAX_CHOICES, Condition
from ..transfer.items import time_of
from ..transfer.mem0 import user_of, user_scope

DEEPEST = 16
"""How deep conditions can be nested."""
MOST_SCOPES = 50
"""With more users than this, all memories are looked through instead."""
OPERATORS = ("eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "contains", "icontains")
ENTITIES = ("user_id", "agent_id", "app_id", "run_id")
TIMES = {"created_at": "created", "timestamp": "created", "updated_at": "updated"}
TEXTS = ("keywords", "text", "memory", "data")
IDS = ("id", "memory_id", "memory_ids")
SINGLE = ("agent_id", "app_id", "run_id", "actor_id", "role")
"""Names in the metadata whose value is one text. Others may have a list, of which one value has to be equal."""

Test: TypeAlias = Callable[[Record], bool]


class Hints(Struct, frozen=True):
    """Known facts about every record that passes: its user, values of its metadata, and bounds of its creation."""

    users: frozenset[str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None


class Filters:
    """Conditions on the memories in and below one scope."""

    def __init__(self, base: ScopePath, *given: Any) -> None:
        """Join several objects of conditions by AND, those that are not None; raises InvalidValueError."""
        self._base = base
        self.reads_text: bool = False
        """Whether the text of a memory matters."""
        self.passes: Test
        self.hints: Hints
        self.passes, self.hints = self._all([self._parse(one, 0) for one in given if one is not None])

    @property
    def scopes(self) -> list[ScopePath]:
        """The scopes that, with those below them, have every memory that passes."""
        users = self.hints.users
        if users is None or len(users) > MOST_SCOPES:
            return [self._base]
        return [self._base / user_scope(user) for user in sorted(users)]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that a store can check, and that everything that passes meets."""
        found = [
            Condition(f"meta.{name}", "in", tuple(value))
            if isinstance(value, list)
            else Condition(f"meta.{name}", "eq", value)
            for name, value in self.hints.metadata.items()
        ]
        if self.hints.since is not None:
            found.append(Condition("created", "ge", self.hints.since))
        if self.hints.until is not None:
            found.append(Condition("created", "le", self.hints.until))
        return tuple(found)

    def _parse(self, given: Any, depth: int) -> tuple[Test, Hints]:
        if not isinstance(given, dict):
            raise InvalidValueError(f"filters must be an object: {shown(given)}")
        if depth > DEEPEST:
            raise InvalidValueError(f"filters are nested more than {DEEPEST} deep")
        parts = []
        for name, value in given.items():
            if name in ("AND", "OR", "NOT"):
                inner = value if isinstance(value, list) else [value]
                parsed = [self._parse(one, depth + 1) for one in inner]
                parts.append({"AND": self._all, "OR": _any, "NOT": _none}[name](parsed))
            elif name == "metadata" and isinstance(value, dict) and not _has_operators(value):
                parts += [self._leaf(f"metadata.{key}", one) for key, one in value.items()]
            else:
                parts.append(self._leaf(name, value))
        return self._all(parts)

    def _all(self, parts: Sequence[tuple[Test, Hints]]) -> tuple[Test, Hints]:
        tests = [test for test, _ in parts]
        users: frozenset[str] | None = None
        metadata: dict[str, Any] = {}
        since: datetime | None = None
        until: datetime | None = None
        for _, hints in parts:
            if hints.users is not None:
                users = hints.users if users is None else users & hints.users
            metadata = {**hints.metadata, **metadata}
            since = max(filter(None, (since, hints.since)), default=None)
            until = min(filter(None, (until, hints.until)), default=None)
        return (lambda record: all(test(record) for test in tests)), Hints(users, metadata, since, until)

    def _leaf(self, name: str, given: Any) -> tuple[Test, Hints]:
        """Return the test of one field."""
        if name in TEXTS:
            self.reads_text = True
        if isinstance(given, dict) and _has_operators(given):
            tests = list(given.items())
        elif isinstance(given, dict) and not name.startswith("metadata."):
            raise InvalidValueError(f"{name} has an unknown operator: {shown(given)}; use {', '.join(OPERATORS)}")
        elif given == "*":
            return (lambda record: self._value(record, name) is not None), Hints()
        elif name in TEXTS and isinstance(given, str):
            tests = [("icontains", given)]
        else:
            tests = [("in" if isinstance(given, list) else "eq", given)]
        return self._all([self._operator(name, operator, value) for operator, value in tests])

    def _operator(self, name: str, operator: str, given: Any) -> tuple[Test, Hints]:
        if operator in ("in", "nin") and not (isinstance(given, list) and len(given) <= MAX_CHOICES):
            raise InvalidValueError(f"{operator} of {name} takes an array of up to {MAX_CHOICES:,}: {shown(given)}")
        if operator == "in" and given == ["*"]:
            return self._leaf(name, "*")
        if name in TIMES or name == "expiration_date":
            given = [time_of(one, name) for one in given] if isinstance(given, list) else time_of(given, name)
        test = _TESTS[operator]
        hints = Hints()
        choices = given if operator == "in" else [given]
        if operator in ("eq", "in") and all(isinstance(one, str) for one in choices) and name == "user_id":
            hints = Hints(users=frozenset(choices))
        elif (
            operator in ("eq", "in")
            and name.removeprefix("metadata.") in SINGLE
            and all(isinstance(one, str) for one in choices)
        ):
            hints = Hints(metadata={name.removeprefix("metadata."): list(choices) if operator == "in" else given})
        elif TIMES.get(name) == "created" and isinstance(given, datetime):
            since = given if operator in ("gt", "gte") else None
            hints = Hints(since=since, until=given if operator in ("lt", "lte") else None)
        return (lambda record: test(self._value(record, name), given)), hints

    def _value(self, record: Record, name: str) -> Any:
        if name == "user_id":
            return user_of(record.scope, self._base)
        if name in TIMES:
            return getattr(record, TIMES[name])
        if name in TEXTS:
            return record.text
        if name in IDS:
            return record.key
        if name == "expiration_date":
            return record.expires
        return record.meta.get(name.removeprefix("metadata."))


def created_between(start: str | None, end: str | None) -> dict[str, Any] | None:
    """Return the filter of memories that were created from a day or time on, until the end of a day or a time."""
    found: dict[str, Any] = {}
    if start is not None:
        found["gte"] = start
    if end is not None and (until := time_of(end, "end_date")) is not None:
        whole_day = len(end) == len("2030-12-31")
        found["lt" if whole_day else "lte"] = (until + timedelta(days=whole_day)).isoformat()
    return {"created_at": found} if found else None


def _has_operators(given: Mapping[str, Any]) -> bool:
    return bool(given) and all(name in OPERATORS for name in given)


def _any(parts: Sequence[tuple[Test, Hints]]) -> tuple[Test, Hints]:
    tests = [test for test, _ in parts]
    users: frozenset[str] | None = frozenset()
    for _, hints in parts:
        users = None if users is None or hints.users is None else users | hints.users
    return (lambda record: any(test(record) for test in tests)), Hints(users)


def _none(parts: Sequence[tuple[Test, Hints]]) -> tuple[Test, Hints]:
    test, _ = _any(parts)
    return (lambda record: not test(record)), Hints()


def _equal(value: Any, given: Any) -> bool:
    if isinstance(value, list) and not isinstance(given, list):
        return any(_equal(one, given) for one in value)
    return type_family(value) == type_family(given) and bool(value == given)


def _in(value: Any, given: list[Any]) -> bool:
    return any(_equal(value, one) for one in given)


def _contains(value: Any, given: Any) -> bool:
    if isinstance(value, list):
        return any(_icontains(one, given) for one in value)
    return isinstance(value, str) and isinstance(given, str) and given in value


def _icontains(value: Any, given: Any) -> bool:
    if isinstance(value, list):
        return any(_icontains(one, given) for one in value)
    return isinstance(value, str) and isinstance(given, str) and given.casefold() in value.casefold()


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(value: Any, given: Any) -> bool:
        return type_family(value) == type_family(given) in ("number", "text", "time") and holds(value, given)

    return test


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": _equal,
    "ne": lambda value, given: not _equal(value, given),
    "in": _in,
    "nin": lambda value, given: not _in(value, given),
    "contains": _contains,
    "icontains": _icontains,
    "gt": _ordered(lambda value, given: value > given),
    "gte": _ordered(lambda value, given: value >= given),
    "lt": _ordered(lambda value, given: value < given),
    "lte": _ordered(lambda value, given: value <= given),
}
