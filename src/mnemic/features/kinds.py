"""Kinds of records, and the kinds that callers may name."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import EMBEDDER_KIND
from .filters import names

MESSAGE = "message"
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
