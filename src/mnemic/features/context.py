"""Builds a prompt: system message, summary, quoted recalled texts, and the newest turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from ..checks import check_count, check_number
from ..errors import AccessDeniedError, BudgetError, InvalidValueError, StorePermissionError
from ..messages import Message
from ..records import ARCHIVED, MESSAGE, SUMMARY, Record, Value
from ..store.protocol import Store
from ..tokens import ENVELOPE, TokenCounter, count_message
from .hits import Hit
from .memory_items import count_use
from .sessions import AsyncSession
from .summary import SUMMARY_ID, quoted
from .turns import is_from_user

HEADING = "What is remembered that may bear on this:"
"""Heading of the recalled texts."""
MEMORY_ID = "@memory"
"""Id of the message with the recalled texts."""
SHORTEST = 80
"""Minimum length of a text that is cut to fit, in characters."""


class Context(Value, frozen=True, kw_only=True):
    """A block for a prompt, as messages and as one text, both within the budget.

    Recalled texts and the summary are quoted in user messages, never in a system message. `tokens` is the cost of
    the messages, and `hits` are the recalled hits in it. If the best hit is too long, the text of its record is cut.
    """

    messages: list[Message]
    text: str
    tokens: int
    hits: list[Hit]

    def __str__(self) -> str:
        return self.text


async def build_context(
    store: Store,
    tokens: TokenCounter,
    session: AsyncSession | None,
    query: str | None,
    max_tokens: int,
    share: float,
    find: Callable[[str], Awaitable[list[Hit]]],
) -> Context:
    """Build a context for a query, by default the user's last message.

    `find` recalls. Raises BudgetError if the system message and the last turn do not fit.
    """
    check_count(max_tokens, "max_tokens", least=1)
    if not 0 <= check_number(share, "share") <= 1:
        raise InvalidValueError(f"share, the part of the budget for recall, must be from 0 to 1: {share}")
    recent = await _recent(session, max_tokens, round(max_tokens * (1 - share)))
    if query is None:
        users = [message for message in recent if is_from_user(message) and message.id != SUMMARY_ID]
        query = (users[-1].text if users else None) or ""
    hits = await find(query)
    budget = max_tokens
    while True:
        context = await _fitted(tokens, session, recent, hits, budget, max_tokens)
        over = tokens.count(context.text) - max_tokens
        if over <= 0:
            with suppress(AccessDeniedError, StorePermissionError):  # who may only read counts no uses
                await count_use(store, [hit.ref for hit in context.hits])
            return context
        # As one text it is longer than as messages, which is rare.
        budget -= over
        recent = await _recent(session, budget, round(budget * (1 - share)))


async def _recent(session: AsyncSession | None, most: int, wanted: int) -> list[Message]:
    """Return the newest messages that fit into `wanted` tokens, or else the minimum."""
    if session is None:
        return []
    if most < 1:
        raise BudgetError("the budget is too small for the system message and the last turn")
    for budget in range(max(wanted, 1), most, max(1, (most - wanted) // 8)):
        try:
            return await session.window(budget)
        except BudgetError:
            continue
    return await session.window(most)


async def _fitted(
    tokens: TokenCounter, session: AsyncSession | None, recent: list[Message], hits: list[Hit], budget: int, most: int
) -> Context:
    cost = sum(count_message(message, tokens) for message in recent)
    chosen = hits_that_fit(hits, recent, session, tokens, budget - cost)
    memory = [quoted_message(chosen)] if chosen else []
    if session is not None:
        # Tokens that recall leaves go to older messages; hits that they contain are dropped.
        left = budget - sum(count_message(message, tokens) for message in memory)
        recent = await session.window(max(left, cost, 1))
        chosen = hits_that_fit(chosen, recent, session, tokens, most)
        memory = [quoted_message(chosen)] if chosen else []
    ahead = (n for n, message in enumerate(recent) if message.role != "system" and message.id != SUMMARY_ID)
    first = next(ahead, len(recent))
    messages = recent[:first] + memory + recent[first:]
    text = "\n\n".join(_line_of(message) for message in messages)
    total = sum(count_message(message, tokens) for message in messages)
    return Context(messages=messages, text=text, tokens=total, hits=chosen)


def hits_that_fit(
    hits: list[Hit], recent: list[Message], session: AsyncSession | None, tokens: TokenCounter, room: int
) -> list[Hit]:
    """Return the best hits that fit and repeat nothing; if the very best is too long, it is cut.

    It then takes half of the room, or all of it if it is the only one.
    """
    present = {message.id for message in recent}
    shown_texts = {_plain(message.text) for message in recent}
    chosen: list[Hit] = []
    left = room - ENVELOPE - tokens.count(quoted([HEADING]))
    for hit in hits:
        record = hit.record
        text = _plain(record.text)
        here = session is not None and record.scope == session.scope
        shown = here and (record.kind == SUMMARY or (record.kind == MESSAGE and record.key in present))
        # A system message of another conversation is not a memory.
        orders = "role" in record.labels
        if shown or orders or not text or text in shown_texts:
            continue
        # A line end may cost a token.
        cost = tokens.count(_line(record)) + 1
        if cost > left and not chosen and (short := _cut(record, tokens, left if len(hits) == 1 else left // 2)):
            hit = replace(hit, record=short)
            cost = tokens.count(_line(short)) + 1
        if cost <= left:
            left -= cost
            shown_texts.add(text)
            chosen.append(hit)
    while chosen and count_message(quoted_message(chosen), tokens) > room:
        chosen.pop()
    return chosen


def lines_of(hits: list[Hit]) -> list[str]:
    """Return recalled texts as lines with a heading, oldest first."""
    ordered = sorted((hit.record for hit in hits), key=lambda r: (str(r.created), r.scope.path, r.seq))
    return [HEADING, *map(_line, ordered)]


def quoted_message(hits: list[Hit]) -> Message:
    """Return recalled texts as one quoted user message."""
    return Message("user", quoted(lines_of(hits)), MEMORY_ID)


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())


def _line(record: Record) -> str:
    text = _plain(record.text)
    day = "" if record.created is None else f"[{record.created:%Y-%m-%d}] "
    if record.kind in (MESSAGE, ARCHIVED) and isinstance(record.data, dict):
        text = f"{record.data.get('name') or record.data.get('role')}: {text}"
    return f"- {day}{text}"


def _cut(record: Record, tokens: TokenCounter, room: int) -> Record | None:
    """Return a record with as much of its text as fits, and its length; None if that is next to nothing."""
    text = _plain(record.text)
    size = min(len(text) - 1, 20 * room)
    while size >= SHORTEST:
        short = replace(record, text=f"{text[:size].rstrip()}… (cut, {len(text):,} characters)")
        cost = tokens.count(_line(short)) + 1
        if cost <= room:
            return short
        size = min(size * 9 // 10, size * room // cost)
    return None


def _line_of(message: Message) -> str:
    text = message.text or ""
    bare = message.role == "system" or message.id in (MEMORY_ID, SUMMARY_ID)
    return text if bare else f"{message.name or message.role}: {text}"
