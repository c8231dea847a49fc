"""Filters: the conditions of callers' arguments, and their semantics, the reference for every store's own."""

from __future__ import annotations

import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import DecodeError, ValidationError, json

from ..checks import check_name, check_names, check_number, check_time, shown
from ..errors import InvalidValueError
from ..messages import ROLES, Role
from ..records import ARCHIVED, MESSAGE, RECALLED, UNLISTED, Record, ScopePath, Stream
from .protocol import Page
from .query import Condition, Scalar, Scan

Item = TypeVar("Item", Record, Stream)

Position = tuple[str, str, int]
"""Sort position of a record: scope, kind, seq."""


def value_of(record: Record, field: str) -> Any:
    """Return the value of a condition's field in a record; None if it is missing."""
    group, dot, name = field.partition(".")
    if not dot:
        return getattr(record, field)
    values = getattr(record, group)
    return values.get(name) if isinstance(values, dict) else None


def type_family(value: Any) -> str:
    """Return the type family of a value; only values of one family are comparable."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "time" if isinstance(value, datetime) else "other"


def matches(record: Record, where: Iterable[Condition]) -> bool:
    """Return whether a record passes every condition."""
    return all(_passes(value_of(record, test.field), test) for test in where)


def is_included(record: Record, scan: Scan, now: datetime) -> bool:
    """Return whether a scan includes a record that is in its scope and of its kind."""
    if record.expires is not None and record.expires <= now:
        return False
    if scan.after_version is not None and record.version <= scan.after_version:
        return False
    return (scan.as_of is None or is_valid_at(record, scan.as_of)) and matches(record, scan.where)


def is_valid_at(record: Record, moment: datetime) -> bool:
    """Return whether a record was valid at a moment."""
    return (record.valid_from is None or record.valid_from <= moment) and (
        record.valid_to is None or moment < record.valid_to
    )


def in_reach(scope: ScopePath, kind: str, requested: ScopePath, kinds: tuple[str, ...], below: bool) -> bool:
    """Return whether the stream of `scope` and `kind` is within the requested scope and kinds."""
    return of_kinds(kind, kinds) and (requested.contains(scope) if below else requested == scope)


def of_kinds(kind: str, kinds: tuple[str, ...]) -> bool:
    """Return whether a kind is requested; without names, every kind is except the store's internal ones."""
    return kind in kinds if kinds else kind not in UNLISTED


def page_of(found: Sequence[Item], *, more: bool) -> Page[Item]:
    """Return a page of records or streams; if there are more, its cursor is the position of the last one."""
    if not more or not found:
        return Page(tuple(found))
    last = found[-1]
    return Page(tuple(found), to_cursor((last.scope.path, last.kind, last.seq if isinstance(last, Record) else 0)))


def to_cursor(position: Position) -> str:
    """Return a position as an opaque cursor."""
    return urlsafe_b64encode(json.encode(position)).decode()


def from_cursor(cursor: str) -> Position:
    """Return the position of a cursor; raises InvalidValueError for any other text."""
    try:
        return json.decode(urlsafe_b64decode(cursor), type=tuple[str, str, int])
    except (DecodeError, ValidationError, ValueError, TypeError):
        raise InvalidValueError(f"invalid cursor: {shown(cursor)}") from None


def _passes(value: Any, test: Condition) -> bool:
    if test.op == "in":
        assert isinstance(test.value, tuple)
        # First as Python compares, which is fast, and takes True for 1.
        return value in test.value and any(_equal(value, choice) for choice in test.value)
    if test.op == "eq":
        return _equal(value, test.value)
    if test.op == "ne":
        return not _equal(value, test.value)
    if type_family(value) != type_family(test.value) or type_family(value) not in ("number", "text", "time"):
        return False
    less, same = bool(value < test.value), bool(value == test.value)
    return {"lt": less, "le": less or same, "gt": not (less or same), "ge": not less}[test.op]


def _equal(value: Any, other: Scalar | tuple[Scalar, ...]) -> bool:
    return type_family(value) == type_family(other) and bool(value == other)


# ---------------------------------------------------------------- filters of callers


def check_kinds(kinds: Sequence[str] | str, known: tuple[str, ...] = RECALLED) -> tuple[str, ...]:
    """Return one kind or several as a tuple; raises InvalidValueError for an unknown one."""
    return check_names(kinds, "kind", known)


def recalled_kinds(kinds: Sequence[str] | str) -> tuple[str, ...]:
    """Return the kinds to search; "message" includes archived messages. Raises as `check_kinds` does."""
    chosen = check_kinds(kinds)
    return tuple(dict.fromkeys((*chosen, ARCHIVED))) if MESSAGE in chosen else chosen


def conditions(
    metadata: Mapping[str, Any] | None = None,
    *,
    roles: Sequence[Role] | Role | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    min_importance: float | None = None,
) -> tuple[Condition, ...]:
    """Return filters as conditions; a list in the metadata means any of its values.

    Raises InvalidValueError for an unknown role, or a value that cannot be compared.
    """
    found: list[Condition] = []
    if roles is not None:
        found.append(Condition("data.role", "in", check_names(roles, "role", ROLES)))
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidValueError(f"a metadata filter is an object, not {shown(metadata)}")
    for name, value in (metadata or {}).items():
        field = f"meta.{check_name(name, 'metadata filter')}"
        many = isinstance(value, list | tuple | set | frozenset)
        found.append(Condition(field, "in", tuple(value)) if many else Condition(field, "eq", value))
    if since is not None:
        found.append(Condition("created", "ge", check_time(since, "since")))
    if until is not None:
        found.append(Condition("created", "le", check_time(until, "until")))
    if min_importance is not None:
        found.append(Condition("importance", "ge", check_number(min_importance, "min_importance")))
    return tuple(found)


def prefixed(prefix: str) -> tuple[Condition, ...]:
    """Return conditions that at least the keys with this prefix pass."""
    if not prefix:
        return ()
    end = chr(min(ord(prefix[-1]) + 1, sys.maxunicode))
    found = (Condition("key", "ge", check_name(prefix, "prefix")),)
    return (*found, Condition("key", "lt", prefix[:-1] + end)) if end.isprintable() else found
