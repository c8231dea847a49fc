"""Kinds of records, and filters on records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..checks import check_choice, check_name, check_number, check_time, shown
from ..errors import InvalidValueError
from ..messages import ROLES, Role
from ..records import EMBEDDER_KIND, MESSAGE_KIND
from ..store.query import Condition

MESSAGE = MESSAGE_KIND
"""A message in a session."""
ARCHIVED = "archived"
"""A message moved to the session's archive by a limit."""
SUMMARY = "summary"
"""The running summary of a session."""
TITLE = "title"
"""The title of a session."""
MEMORY = "memory"
"""A memory."""
NOTE = "note"
"""A note."""
FACT = "fact"
"""A fact."""
PRUNED = "pruned"
"""An archived memory: it has no text, so recall does not find it."""
JOURNAL = "journal"
"""A journal entry of an agent's write."""
PROGRESS = "progress"
"""How far a learner has processed a session."""
LEASE = "lease"
"""A lease: the exclusive right of one writer to shrink a session."""
GUARD = "fact-guard"
"""A record through which concurrent writers of a single-valued predicate conflict."""

OF_SESSIONS = (MESSAGE, ARCHIVED, SUMMARY, TITLE, PROGRESS, LEASE)
"""Kinds in a session's own scope."""
RECALLED = (MESSAGE, ARCHIVED, SUMMARY, TITLE, MEMORY, NOTE, FACT)
"""Kinds with a text or a title, which recall searches."""
AUDITED = (*RECALLED, PRUNED, JOURNAL, PROGRESS, LEASE, GUARD, EMBEDDER_KIND)
"""Kinds whose changes are audited."""


def check_kinds(kinds: Sequence[str] | str, known: tuple[str, ...] = RECALLED) -> tuple[str, ...]:
    """Return one kind or several as a tuple; raises InvalidValueError for an unknown one."""
    return names(kinds, "kind", known)


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
