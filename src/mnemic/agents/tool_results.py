"""Token limit of memory tool results: cuts long texts, and counts what is omitted."""

from __future__ import annotations

from typing import Any

from msgspec import json

from ..tokens import TokenCounter

NOTE_TOKENS = 40
"""Token cost of the note about omitted results."""
LEAST = 30
"""A result that would be cut to fewer tokens is omitted instead."""


def as_text(answer: Any) -> str:
    """Return a result as the model reads it."""
    return answer if isinstance(answer, str) else json.encode(answer).decode()


def capped(answer: Any, tokens: TokenCounter, most: int) -> Any:
    """Return a tool result within a token limit; of a list, the first items that fit."""
    if tokens.count(as_text(answer)) <= most:
        return answer
    if not isinstance(answer, list):
        return page(as_text(answer), 0, tokens, most)
    kept: list[Any] = []
    left = most - NOTE_TOKENS
    for item in answer:
        fitted = _fitted(item, tokens, left)
        if fitted is None:
            break
        kept.append(fitted)
        left -= tokens.count(as_text(fitted)) + 1
    if more := len(answer) - len(kept):
        kept.append(f"{more:,} more left out, since an answer has at most {most:,} tokens")
    return kept


def page(text: str, start: int, tokens: TokenCounter, most: int) -> str:
    """Return a page of a text from a character on, within a token limit, and say where the rest begins."""
    rest = text[start:]
    if tokens.count(rest) <= most:
        return rest
    shown = _cut(rest, tokens, max(most - NOTE_TOKENS, 1))
    end = start + len(shown)
    return f"{shown}\n[cut: characters {start:,} to {end:,} of {len(text):,}; the rest begins at start={end}]"


def _fitted(item: Any, tokens: TokenCounter, room: int) -> Any:
    """Return an item that fits, with its longest text cut if necessary; None if too little would be left."""
    cost = tokens.count(as_text(item)) + 1
    if cost <= room:
        return item
    if not isinstance(item, dict) or room < LEAST:
        return None
    name = max((n for n, value in item.items() if isinstance(value, str)), key=lambda n: len(item[n]), default=None)
    if name is None:
        return None
    left = room - tokens.count(as_text({**item, name: ""})) - 2
    while left >= LEAST // 2:
        fitted = {**item, name: _cut(item[name], tokens, left) + "…"}
        # Quotes and line ends are longer in JSON.
        if tokens.count(as_text(fitted)) + 1 <= room:
            return fitted
        left = left * 3 // 4
    return None


def _cut(text: str, tokens: TokenCounter, most: int) -> str:
    """Return the longest beginning of a text that fits."""
    length = min(len(text), 8 * most)
    while length and (count := tokens.count(text[:length])) > most:
        length = min(length - 1, length * most // count)
    return text[:length]
