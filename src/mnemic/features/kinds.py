"""The kinds of records that features and agents write, and the ones that callers may name."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import EMBEDDER_KIND
from .filters import names

MESSAGE = "message"
"""A message in the log of a session."""
ARCHIVED = "archived"
"""A message that was moved out of the log to keep it within its limits."""
SUMMARY = "summary"
"""The running summary of a session."""
TITLE = "title"
"""The title of a session."""
MEMORY = "memory"
"""A remembered text."""
NOTE = "note"
"""A note of the catalogue."""
FACT = "fact"
"""A fact of the graph."""
PRUNED = "pruned"
"""A remembered text that was pruned but kept: it has no text, so recall does not find it."""
JOURNAL = "journal"
"""What an agent did."""
PROGRESS = "progress"
"""How far a session was learned from."""
LEASE = "lease"
"""The right of one writer to make room in a session."""
GUARD = "fact-guard"
"""The record on which writers of a single-valued predicate notice one another."""

OF_SESSIONS = (MESSAGE, ARCHIVED, SUMMARY, TITLE, PROGRESS, LEASE)
"""The kinds of what lies in a session's own scope."""
RECALLED = (MESSAGE, ARCHIVED, SUMMARY, TITLE, MEMORY, NOTE, FACT)
"""The kinds that have a text or a title, which recall searches."""
AUDITED = (*RECALLED, PRUNED, JOURNAL, PROGRESS, LEASE, GUARD, EMBEDDER_KIND)
"""The kinds whose changes an audit trail tells of."""


def check_kinds(kinds: Sequence[str] | str, known: tuple[str, ...] = RECALLED) -> tuple[str, ...]:
    """Return one kind or several as a tuple; raises InvalidValueError for an unknown one."""
    return names(kinds, "kind", known)


def recalled_kinds(kinds: Sequence[str] | str) -> tuple[str, ...]:
    """Return the kinds to search; archived messages are messages all the same. Raises as `check_kinds` does."""
    chosen = check_kinds(kinds)
    return tuple(dict.fromkeys((*chosen, ARCHIVED))) if MESSAGE in chosen else chosen
