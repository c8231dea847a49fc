"""Reads what Claude Code, Codex and Gemini CLI record of a session: from JSON to messages; no I/O."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..checks import MAX_SIZE, check_name, check_segment
from ..errors import InvalidValueError, MnemicError, TooLargeError
from ..formats import from_anthropic
from ..messages import Message, Role
from ..records import now, parse_time
from .json_stream import clean_json, clean_text, decode_line

TOO_LARGE = "too large"
NOT_A_MESSAGE = "not a message"
SOURCE = {"source": "claude-code"}
"""Metadata of every message from a transcript."""
OWN_TOOLS = re.compile(r"mcp__(?:\w*_)?mnemic__")
"""How Claude Code names the tools of our own MCP server: what they said is stored already."""

MARKERS = (
    "<bash-", "<command-", "<cross-session-message", "<local-command-", "<system-reminder>", "<task-notification",
    "<user-prompt-submit-hook>", "[Request interrupted by user", "Caveat: The messages below were generated",
)  # fmt: skip
"""How texts begin that Claude Code writes in the user's name."""
_NOTES = ("system-reminder", "ide_opened_file", "ide_selection", "ide_diagnostics")
"""Tags of notes to the model that Claude Code and editors add to a prompt."""


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
        if (skipped := skip_reason(entry)) is not None:
            return TranscriptLine(skipped=skipped)
        try:
            session = check_segment(entry.get("sessionId"), "sessionId")
            uuid = check_name(entry.get("uuid"), "uuid", 400)
            self._time = self._said(entry.get("timestamp"))
            role, content = spoken(entry)
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
                if text.lstrip().startswith(MARKERS):
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


def skip_reason(entry: dict[str, Any]) -> str | None:
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


def spoken(entry: dict[str, Any]) -> tuple[Any, Any]:
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
