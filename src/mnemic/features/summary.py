"""A running summary of what left a session, by a model that the user brings, or by extracts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from math import log
from typing import Any

from msgspec import Struct

from ..checks import check_text
from ..driving import call
from ..records import Message, Record, Scope
from ..store.analysis import terms
from ..store.query import Put

SUMMARY = "summary"
"""The kind of a summary."""
SUMMARY_KEY = "running"
"""The key of a session's running summary."""
SO_FAR = "Summary so far: "
"""How the message begins that tells a model of the summary before."""


EXTRACTED = 12
"""How many sentences an extract has at most."""
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


def extract(messages: list[Message]) -> str:
    """Return the sentences that say most of what messages are about, in their order: no model is asked.

    A summary so far, which comes first as a system message, is taken apart and weighed with the rest.
    """
    said = [(message, part) for message in messages for part in _sentences(message)]
    held = [frozenset(terms(part)) for _, part in said]
    common = Counter(term for words in held for term in words)
    # What is spoken of again and again is what it is about; a long sentence has no advantage by its length.
    worth = [sum(1 + log(common[term]) for term in words) / (len(words) + 4) ** 0.7 for words in held]
    chosen: list[int] = []
    for n in sorted(range(len(said)), key=lambda n: -worth[n]):
        if len(chosen) == EXTRACTED:
            break
        if len(held[n]) > 2 and all(len(held[n] & held[m]) < 0.6 * len(held[n]) for m in chosen):
            chosen.append(n)
    lines = [_line(*said[n]) for n in sorted(chosen)]
    return "\n".join(lines) or "\n".join(_line(*one) for one in said[:EXTRACTED]) or "(nothing was said)"


def _sentences(message: Message) -> list[str]:
    text = (message.text or "").removeprefix(SO_FAR)
    return [part for one in _SENTENCE.split(text) if (part := one.strip())]


def _line(message: Message, part: str) -> str:
    known = message.role == "system" or part.startswith(("user:", "assistant:", "tool:"))
    return part if known else f"{message.name or message.role}: {part}"


class Summarise(Struct, frozen=True):
    """Summarise with `model`, a function, sync or async, from messages to text.

    It is given the summary so far, as a system message, and then the messages that leave. Without one, the
    sentences that say most are kept.
    """

    model: Callable[[list[Message]], Awaitable[str] | str] = extract


async def summary_record(
    summarise: Summarise, scope: Scope, old: Record | None, leaving: list[Record], messages: list[Message]
) -> Put:
    """Return the write of the new running summary, which says which messages it covers.

    It fails with a conflict if someone else has summarised meanwhile. Raises InvalidValueError if
    the model returns no text.
    """
    before: dict[str, Any] = old.data if old is not None and isinstance(old.data, dict) else {}
    given = [Message("system", f"{SO_FAR}{old.text}")] if old is not None else []
    text = check_text(await call(summarise.model, given + messages), "summary")
    seqs = [record.seq for record in leaving]
    data = {
        "first_seq": before.get("first_seq", min(seqs)),
        "last_seq": max(seqs),
        "messages": before.get("messages", 0) + len(leaving),
    }
    record = Record(scope=scope, kind=SUMMARY, key=SUMMARY_KEY, text=text, data=data)
    return Put(record, if_version=old.version if old is not None else 0)
