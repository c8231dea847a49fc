"""Reads rollouts, the transcripts of Codex: from JSON lines to messages; no I/O."""

from __future__ import annotations

from typing import Any

from ..checks import MAX_SIZE
from ..errors import InvalidValueError, TooLargeError
from ..messages import Message, Role
from ..records import now, parse_time
from .claude_code import clean_text, decode_line

SOURCE = {"source": "codex"}
_ROLES: dict[str, Role] = {
    "user_message": "user", "agent_message": "assistant",
    "UserMessage": "user", "AgentMessage": "assistant",  # since 2026 within a completed item
}  # fmt: skip


def read_rollout_line(line: bytes, offset: int) -> Message | None:
    """Return the message that was typed or shown, with the line's offset in the file as its id; None if there is none.

    Raises TooLargeError if it is too large to be stored. Tool calls, reasoning, instructions and subagents are left
    out.
    """
    entry = decode_line(line)
    payload = entry.get("payload") if isinstance(entry, dict) and entry.get("type") == "event_msg" else None
    item = payload.get("item") if isinstance(payload, dict) and payload.get("type") == "item_completed" else payload
    if not isinstance(item, dict) or (role := _ROLES.get(str(item.get("type")))) is None:
        return None
    stamp: Any = entry.get("timestamp")
    try:
        text = clean_text(item["message"] if "message" in item else _joined(item.get("content")))
        time = parse_time(stamp, "timestamp") if isinstance(stamp, str) else now()
    except InvalidValueError:
        return None
    if len(text) > MAX_SIZE:
        raise TooLargeError(f"a message has {len(text):,} characters, more than {MAX_SIZE:,}")
    if not text.strip():
        return None
    return Message(role, text, f"{offset:012d}", metadata=SOURCE, timestamp=time)


def _joined(content: Any) -> str | None:
    """Return the texts of a list of content blocks."""
    if not isinstance(content, list):
        return None
    texts = (block.get("text") for block in content if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
