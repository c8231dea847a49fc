"""The memory part of an agent's prompt: newest turns, note keys, and recalled texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from ..checks import check_count, check_number
from ..errors import InvalidValueError
from ..event_loop import running_loop
from ..features.context import best_of, lines_of
from ..features.fading import count_use
from ..features.hits import Hit
from ..features.kinds import MEMORY, NOTE
from ..features.notes import NoteInfo, to_info
from ..features.sessions import AsyncSession
from ..features.summary import quoted
from ..messages import Message
from ..records import Ref, Value
from ..scope import AsyncScope
from ..store.query import Scan
from ..tokens import TokenCounter

INTERRUPTED = "No result: this call was interrupted, or is still under way. It may or may not have had its effect."
"""Placeholder for a missing tool result in a prompt."""
NOTES = "Your notes, by key (read_note shows what is in one):"
"""Heading of the list of notes."""
MAX_NOTES = 100
"""Maximum number of notes that are listed."""


class Budget(Value, frozen=True, kw_only=True):
    """How much memory an agent's prompt contains.

    `max_tokens` is the total: a `share` for notes and recalled texts, at most `recall` of them with a score of at
    least `min_score`, and the rest for the newest turns. A memory tool's result has at most `answer` tokens.
    """

    max_tokens: int = 4_000
    share: float = 0.3
    recall: int = 8
    min_score: float = 0.1
    notes: bool = True
    answer: int = 1_500

    def __post_init__(self) -> None:
        """Raise InvalidValueError for invalid numbers, or a share outside 0 to 1."""
        check_count(self.max_tokens, "max_tokens", least=1)
        check_count(self.recall, "recall")
        check_count(self.answer, "answer", least=100)
        if not 0 <= check_number(self.share, "share") <= 1:
            raise InvalidValueError(
                f"share, the part of the budget for notes and recall, must be from 0 to 1: {self.share}"
            )


class Shown(Struct, frozen=True):
    """Memory in a prompt: turns, and a text with the rest, or None."""

    turns: list[Message]
    block: str | None
    hits: list[Hit]


async def show(
    scope: AsyncScope,
    session: AsyncSession,
    query: str,
    budget: Budget,
    given: list[Message] | None = None,
    exclude: Sequence[Ref] = (),
) -> Shown:
    """Return the memory for a query; if turns are `given`, no others are included.

    Records in `exclude` are not recalled.
    """
    aside = int(budget.max_tokens * budget.share)

    async def window() -> list[Message]:
        if given is not None:
            return given
        # A single turn that is too long must not block the conversation.
        room = max(1, budget.max_tokens - aside)
        return await session.window(room, interrupted=INTERRUPTED, partial=True)

    async def notes() -> tuple[list[NoteInfo], int]:
        return await _newest_notes(scope) if budget.notes and aside else ([], 0)

    async def found() -> list[Hit]:
        wanted = budget.recall and aside and query.strip()
        return (
            await scope.recall(query, budget.recall, min_score=budget.min_score, uses=False, exclude=exclude)
            if wanted
            else []
        )

    if running_loop() is None:
        recent, (entries, count), hits = await window(), await notes(), await found()
    else:
        recent, (entries, count), hits = await asyncio.gather(window(), notes(), found())
    tokens = scope._tokens
    listed, cost = _listed(entries, count, tokens, aside // 2)
    picked = best_of(hits, recent, session, tokens, aside - cost) if hits else []
    if used := [hit.record.ref for hit in picked if hit.record.kind == MEMORY]:
        await count_use(scope._store, used)
    lines = [*listed, *(lines_of(picked) if picked else [])]
    return Shown([] if given is not None else recent, quoted(lines) if lines else None, picked)


async def _newest_notes(scope: AsyncScope) -> tuple[list[NoteInfo], int]:
    """Return the newest notes, without values, and the total number of notes."""
    scan = Scan(scope=scope.path, kinds=(NOTE,), reverse=True, limit=MAX_NOTES, bodies=False)
    page = await scope._store.scan(scan)
    count = len(page.items) if page.cursor is None else (await scope.notes.usage())[0]
    return [to_info(record) for record in page.items], count


def _listed(entries: list[NoteInfo], count: int, tokens: TokenCounter, room: int) -> tuple[list[str], int]:
    """Return the list of notes, most recently written first, and its token cost."""
    if not entries:
        return [], 0
    lines = [NOTES]
    left = room - tokens.count(quoted([NOTES])) - 8
    newest = sorted(entries, key=lambda entry: entry.updated, reverse=True)
    for entry in newest:
        said = f"- {entry.key}" + (f": {' '.join(entry.description.split())}" if entry.description else "")
        cost = tokens.count(said) + 1
        if cost > left:
            break
        left -= cost
        lines.append(said)
    if (more := count - len(lines) + 1) > 0:
        lines.append(f"- and {more:,} more: list_notes shows all")
    return lines, room - left
