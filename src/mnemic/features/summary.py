"""The running summary of evicted messages, by a model or extractive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from ..checks import check_text
from ..driving import call
from ..records import Message, Record, ScopePath
from ..store.query import Put
from .extractive import SO_FAR, extractive
from .kinds import SUMMARY as SUMMARY
from .quoting import quoted

SUMMARY_ID = "@summary"
"""Id of the summary message in a prompt."""
SUMMARY_KEY = "running"
"""Key of a session's running summary."""


class Summarize(Struct, frozen=True):
    """Summarize with `model`, a function, sync or async, from messages to text.

    It receives the summary so far, as a system message, and the evicted messages. Without a model, key sentences
    are extracted.
    """

    model: Callable[[list[Message]], Awaitable[str] | str] = extractive


def summary_message(text: str) -> Message:
    """Return a summary as a quoted user message, since it has users' words."""
    return Message("user", quoted([f"Summary of the earlier conversation: {text}"]), SUMMARY_ID)


async def summary_record(
    summarize: Summarize, scope: ScopePath, old: Record | None, leaving: list[Record], messages: list[Message]
) -> Put:
    """Return the write of the new running summary, with the range of messages that it covers.

    It conflicts with concurrent summaries. Raises InvalidValueError if the model returns no text.
    """
    before: dict[str, Any] = old.data if old is not None and isinstance(old.data, dict) else {}
    given = [Message("system", f"{SO_FAR}{old.text}")] if old is not None else []
    text = check_text(await call(summarize.model, given + messages), "summary")
    seqs = [record.seq for record in leaving]
    data = {
        "first_seq": before.get("first_seq", min(seqs)),
        "last_seq": max(seqs),
        "messages": before.get("messages", 0) + len(leaving),
    }
    record = Record(scope=scope, kind=SUMMARY, key=SUMMARY_KEY, text=text, data=data)
    return Put(record, if_version=old.version if old is not None else 0)
