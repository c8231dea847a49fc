"""Converts user filters to store conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..checks import check_choice, check_name, check_number, check_time, shown
from ..errors import InvalidValueError
from ..records import ROLES, Role
from ..store.query import Condition


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
        found.append(Condition("data.role", "in", names(roles, "role", ROLES)))
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


def names(given: Sequence[str] | str, field: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return one name or several as a tuple.

    Raises InvalidValueError for anything else, and for a name that is not in `known`, if given.
    """
    if isinstance(given, str):
        given = (given,)
    elif not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(n, str) for n in given):
        raise InvalidValueError(f"{field} are names, or a list of them, not {shown(given)}")
    return tuple(check_choice(name, field, known) if known else name for name in given)
