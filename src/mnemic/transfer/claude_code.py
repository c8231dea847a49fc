"""Reads transcripts of Claude Code: from JSON lines to messages; no I/O."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..checks import MAX_SIZE, check_name, check_segment
from ..errors import InvalidValueError, MnemicError
from ..formats import from_anthropic
from ..messages import Message
from ..records import now, parse_time
from .json_stream import clean_json, clean_text, decode_line

TOO_LARGE = "too large"
NOT_A_MESSAGE = "not a message"
SOURCE = {"source": "claude-code"}
"""Metadata of every message from a transcript."""
OWN_TOOLS = re.compile(r"mcp__(?:\w*_)?mnemic__")
"""How Claude Code names the tools of our own MCP server: what they said is stored already."""

_MARKERS = (
    "<bash-", "<command-", "<cross-session-message", "<local-command-", "<system-reminder>", "<task-notification",
    "<user-prompt-submit-hook>", "[Request interrupted by user", "Caveat: The messages below were generated",
)  # fmt: skip
"""How texts begin that Claude Code writes in the user's name."""
_NOTES = ("system-reminder", "ide_opened_file", "ide_selection", "ide_diagnostics")
"""Tags of notes to the model that Claude Code and editors add to a prompt."""


class TranscriptLine(NamedTuple):
    """Content of a line of a transcript: messages of a session, or why there are none."""

    session: str = ""
    messages: tuple[Message, ...] = ()
    skipped: str = ""


class TranscriptReader:
    """Turns the lines of one transcript into messages, each with the line's uuid as its id.

    Left out are subagents, summaries of compactions, commands and their output, whatever else Claude Code itself
    adds, the model's thinking, and calls of our own memory tools with their results. With `text_only` tool calls
    and tool results are left out too, and images only named.
    """

    def __init__(self, *, text_only: bool = True) -> None:
        self.text_only = text_only
        self.own_calls: set[str] = set()
        """Ids of calls of our own tools that have no result yet."""
        self._time: datetime | None = None

    def read(self, line: bytes) -> TranscriptLine:
        """Return the messages of a line; its content never raises an error."""
        entry = decode_line(line)
        if not isinstance(entry, dict):
            return TranscriptLine(skipped="not a JSON object")
        if (skipped := _reason(entry)) is not None:
            return TranscriptLine(skipped=skipped)
        try:
            session = check_segment(entry.get("sessionId"), "sessionId")
            uuid = check_name(entry.get("uuid"), "uuid", 400)
            self._time = self._said(entry.get("timestamp"))
            role, content = _spoken(entry)
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if not isinstance(blocks, list) or role not in ("user", "assistant"):
                raise InvalidValueError("message")
            kept = [clean for block in blocks if (clean := self._kept(block, role)) is not None]
            found = from_anthropic([{"role": role, "content": kept}]) if kept else []
        except (MnemicError, RecursionError):
            return TranscriptLine(skipped="not a valid message")
        if any(len(message.text or "") > MAX_SIZE for message in found):
            return TranscriptLine(skipped=TOO_LARGE)
        messages = tuple(
            replace(
                message,
                id=f"{uuid}:{place}" if place else uuid,
                timestamp=self._time,
                metadata=message.metadata | SOURCE,
            )
            for place, message in enumerate(found)
        )
        return TranscriptLine(session, messages, "" if messages else "nothing to store")

    def _said(self, stamp: Any) -> datetime:
        """Return the time of a line; one without a time has that of the line before."""
        return parse_time(stamp, "timestamp") if isinstance(stamp, str) else self._time or now()

    def _kept(self, block: Any, role: str) -> dict[str, Any] | None:
        """Return a content block as it is stored, None if it is left out."""
        if not isinstance(block, dict):
            raise InvalidValueError("content block")
        kind = block.get("type")
        if kind == "text":
            text = clean_text(block.get("text"))
            if role == "user":
                text = _without_notes(text)
                if text.lstrip().startswith(_MARKERS):
                    return None
            return {"type": "text", "text": text} if text.strip() else None
        if kind == "tool_use" and OWN_TOOLS.match(str(block.get("name"))):
            self.own_calls.add(str(block.get("id")))
            return None
        if kind == "tool_result" and (answered := str(block.get("tool_use_id"))) in self.own_calls:
            self.own_calls.discard(answered)
            return None
        if kind == "image" and self.text_only:
            return {"type": "text", "text": "[image]"}
        return None if self.text_only or kind not in ("tool_use", "tool_result", "image") else clean_json(block)


def _reason(entry: dict[str, Any]) -> str | None:
    """Return why a line holds no message of the conversation; None if it does."""
    kind, attached, message = entry.get("type"), entry.get("attachment"), entry.get("message")
    queued = kind == "attachment" and isinstance(attached, dict) and attached.get("type") == "queued_command"
    if not queued and (kind not in ("user", "assistant") or not isinstance(message, dict)):
        return NOT_A_MESSAGE
    if entry.get("isSidechain"):
        return "said to or by a subagent"
    if entry.get("isCompactSummary") or entry.get("isVisibleInTranscriptOnly"):
        return "a summary of the conversation"
    model = message.get("model") if isinstance(message, dict) else None
    own = entry.get("isMeta") or entry.get("isApiErrorMessage") or model == "<synthetic>"
    return "written by Claude Code" if own else None


def _spoken(entry: dict[str, Any]) -> tuple[Any, Any]:
    """Return the role and content of a line; a prompt given while the agent works is an attachment."""
    if entry["type"] == "attachment":
        attached = entry["attachment"]
        return "user", attached.get("prompt") if attached.get("commandMode") in (None, "prompt") else []
    return entry["message"].get("role"), entry["message"].get("content")


def _without_notes(text: str) -> str:
    """Return a text without the notes to the model between the tags of `_NOTES`."""
    for tag in _NOTES:
        begin, end = f"<{tag}>", f"</{tag}>"
        kept, at = [], 0
        while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
            kept.append(text[at:start])
            at = stop + len(end)
        text = "".join([*kept, text[at:]])
    return text
