"""Reads what Codex and Gemini CLI record of a session: from JSON to messages; no I/O."""

from __future__ import annotations

import re
from typing import Any

from ..checks import MAX_SIZE, check_name
from ..errors import InvalidValueError, TooLargeError
from ..messages import Message, Role
from ..records import now, parse_time
from .json_stream import clean_text, decode_line

CODEX = {"source": "codex"}
GEMINI = {"source": "gemini-cli"}
"""Metadata of the messages."""
_CODEX_ROLES: dict[str, Role] = {
    "user_message": "user", "agent_message": "assistant",
    "UserMessage": "user", "AgentMessage": "assistant",  # since 2026 within a completed item
}  # fmt: skip
_GEMINI_ROLES: dict[str, Role] = {"user": "user", "gemini": "assistant"}
_ADDED = re.compile(r"<(hook_context|session_context)>.*?</\1>", re.DOTALL)
"""Context that Gemini CLI adds to a prompt."""


def read_codex_line(line: bytes, offset: int) -> Message | None:
    """Return the message that was typed or shown, with the line's offset in the file as its id; None if there is none.

    Raises TooLargeError if it is too large to be stored. Tool calls, reasoning, instructions and subagents are left
    out.
    """
    entry = decode_line(line)
    payload = entry.get("payload") if isinstance(entry, dict) and entry.get("type") == "event_msg" else None
    item = payload.get("item") if isinstance(payload, dict) and payload.get("type") == "item_completed" else payload
    if not isinstance(item, dict) or (role := _CODEX_ROLES.get(str(item.get("type")))) is None:
        return None
    content = item["message"] if "message" in item else _joined(item.get("content"), "\n")
    return _message(role, content, f"{offset:012d}", entry.get("timestamp"), CODEX)


def read_gemini_record(record: Any) -> Message | None:
    """Return the message that was typed or shown, with its own id; None if a record holds none.

    Raises TooLargeError if it is too large to be stored. Tool calls, thoughts, notices and the content of files are
    left out.
    """
    if not isinstance(record, dict) or (role := _GEMINI_ROLES.get(str(record.get("type")))) is None:
        return None
    shown = record.get("displayContent")
    content = record.get("content") if shown is None else shown
    text = _joined(content, "") if isinstance(content, list) else content
    text = text.get("text") if isinstance(text, dict) else text
    if role == "user" and isinstance(text, str):
        text = _ADDED.sub("", text).strip()
    return _message(role, text, record.get("id"), record.get("timestamp"), GEMINI)


def _joined(content: Any, between: str) -> Any:
    """Return the texts of a list of content blocks as one, None for anything else."""
    if not isinstance(content, list):
        return None
    texts = (block.get("text") if isinstance(block, dict) else block for block in content)
    return between.join(text for text in texts if isinstance(text, str))


def _message(role: Role, text: Any, id: Any, stamp: Any, metadata: dict[str, str]) -> Message | None:
    """Return a message, None if it has no text or is not valid; raises TooLargeError."""
    try:
        name = check_name(id, "id", 400)
        clean = clean_text(text)
        time = parse_time(stamp, "timestamp") if isinstance(stamp, str) else now()
    except InvalidValueError:
        return None
    if len(clean) > MAX_SIZE:
        raise TooLargeError(f"a message has {len(clean):,} characters, more than {MAX_SIZE:,}")
    return Message(role, clean, name, metadata=metadata, timestamp=time) if clean.strip() else None
