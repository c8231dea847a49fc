"""Messages as records, and records as messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..checks import MAX_SIZE, check_json, check_name, check_text, check_time
from ..errors import InvalidValueError, TooLargeError
from ..records import AgentCall, Message, Record, ScopePath, ToolCall
from ..tokens import DEFAULT_ENCODING, TokenCounter, count_message
from .kinds import ARCHIVED as ARCHIVED
from .kinds import MESSAGE as MESSAGE

SYSTEM_ID = "@system"
"""The id of the message that `set_system` writes; no other message may have it."""


def encode(
    message: Message, scope: ScopePath, tokens: TokenCounter, *, expires: datetime | None = None
) -> Record:
    """Return a message as a record; raises InvalidValueError or TooLargeError for what cannot be kept.

    Plain text stands in the record's text alone, so that it is not stored twice. The system role is
    also a label, since a prompt always needs those messages and must find them without a scan.
    """
    if not isinstance(message, Message):
        raise InvalidValueError(f"a session holds messages, not {type(message).__name__} values")
    if message.id == SYSTEM_ID and message.role != "system":
        raise InvalidValueError(f"the id {SYSTEM_ID!r} is kept for the system message")
    data: dict[str, Any] = {"role": message.role}
    size = 0

    def kept(value: Any, field: str) -> Any:
        nonlocal size
        copy, characters = check_json(value, field)
        size += characters
        return copy

    if tokens.name != DEFAULT_ENCODING:
        data["encoding"] = tokens.name
    if isinstance(message.content, str):
        size = len(message.content)
    elif (content := kept(message.content, "content")) is not None:
        data["content"] = content
    if message.name is not None:
        data["name"] = message.name
    if message.tool_calls:
        calls = [[call.id, call.name, call.arguments, call.type, call.call_id] for call in message.tool_calls]
        data["tool_calls"] = kept(calls, "tool_calls")
    if message.agent_calls:
        requests = [[call.agent_name, call.request] for call in message.agent_calls]
        data["agent_calls"] = kept(requests, "agent_calls")
    if message.structured_data is not None:
        data["structured_data"] = kept(message.structured_data, "structured_data")
    if message.images:
        data["images"] = kept(message.images, "images")
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    # Counting the tokens of what is too large to be stored would take far longer than to refuse it.
    if size > MAX_SIZE:
        raise TooLargeError(f"message {message.id!r} holds {size:,} characters, more than {MAX_SIZE:,}")
    try:
        weight = count_message(message, tokens)
    except UnicodeEncodeError:
        # A counter refuses lone surrogates in words of its own.
        check_text(message.content, "content")
        raise
    text = message.text
    if message.content is None and text is not None:
        data["content"] = None
    system = message.role == "system"
    return Record(
        scope=scope,
        kind=MESSAGE,
        key=check_name(message.id, "message id"),
        text=text,
        data=data,
        meta=message.metadata,
        labels={"role": "system"} if system else {},
        weight=weight,
        pinned=system,
        created=check_time(message.timestamp, "timestamp"),
        expires=expires,
    )


def decode(record: Record) -> Message:
    """Return the message that a record was made from."""
    data: Any = record.data
    assert record.created is not None, "a stored record has the time of its creation"
    if len(data) == 1:
        # Nearly every message is a role and a text, and is made three times as fast by position.
        return Message(
            data["role"], record.text, record.key, None, [], [], None, [], None, record.meta, record.created
        )
    return Message(
        role=data["role"],
        content=data.get("content", record.text),
        id=record.key,
        name=data.get("name"),
        tool_calls=[ToolCall(*call) for call in data.get("tool_calls", ())],
        agent_calls=[AgentCall(*call) for call in data.get("agent_calls", ())],
        structured_data=data.get("structured_data"),
        images=data.get("images", []),
        tool_call_id=data.get("tool_call_id"),
        metadata=record.meta,
        timestamp=record.created,
    )


def tokens_of(record: Record, tokens: TokenCounter) -> int:
    """Return what a message costs; counted again only if another encoding counted it before."""
    data: Any = record.data
    if data.get("encoding", DEFAULT_ENCODING) == tokens.name:
        return record.weight
    return count_message(decode(record), tokens)
