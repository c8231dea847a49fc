"""The filters that people write, as conditions that stores answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..checks import check_name, check_number, check_time, shown
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
    """Return filters as conditions; a list among the metadata means any of its values.

    Raises InvalidValueError for an unknown role, or a value that cannot be compared.
    """
    found: list[Condition] = []
    if roles is not None:
        wanted = names(roles, "roles")
        for role in wanted:
            if role not in ROLES:
                raise InvalidValueError(f"role must be one of {', '.join(ROLES)}: {shown(role)}")
        found.append(Condition("data.role", "in", wanted))
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


def names(given: Sequence[str] | str, field: str) -> tuple[str, ...]:
    """Return names that were given as one or as several; raises InvalidValueError for anything else."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(n, str) for n in given):
        raise InvalidValueError(f"{field} are names, or a list of them, not {shown(given)}")
    return tuple(given)
