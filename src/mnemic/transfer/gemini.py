"""Reads the sessions that Gemini CLI records: from JSON to messages; no I/O."""

from __future__ import annotations

import re
from typing import Any

from ..checks import MAX_SIZE, check_name
from ..errors import InvalidValueError, TooLargeError
from ..messages import Message, Role
from ..records import now, parse_time
from .claude_code import clean_text

SOURCE = {"source": "gemini-cli"}
_ROLES: dict[str, Role] = {"user": "user", "gemini": "assistant"}
_ADDED = re.compile(r"<(hook_context|session_context)>.*?</\1>", re.DOTALL)
"""Context that Gemini CLI adds to a prompt."""


def read_record(record: Any) -> Message | None:
    """Return the message that was typed or shown, with its own id; None if a record holds none.

    Raises TooLargeError if it is too large to be stored. Tool calls, thoughts, notices and the content of files are
    left out.
    """
    if not isinstance(record, dict) or (role := _ROLES.get(str(record.get("type")))) is None:
        return None
    shown = record.get("displayContent")
    stamp = record.get("timestamp")
    try:
        id = check_name(record.get("id"), "id", 400)
        text = clean_text(_joined(record.get("content") if shown is None else shown))
        time = parse_time(stamp, "timestamp") if isinstance(stamp, str) else now()
    except InvalidValueError:
        return None
    text = _ADDED.sub("", text).strip() if role == "user" else text
    if len(text) > MAX_SIZE:
        raise TooLargeError(f"a message has {len(text):,} characters, more than {MAX_SIZE:,}")
    return Message(role, text, id, metadata=SOURCE, timestamp=time) if text.strip() else None


def _joined(content: Any) -> Any:
    """Return the texts of a list of parts as one; anything else as it is."""
    if not isinstance(content, list):
        return content.get("text") if isinstance(content, dict) else content
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))
