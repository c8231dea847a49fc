"""Messages as records, and records as messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..checks import check_json, check_text
from ..records import AgentCall, Message, Record, Scope, ToolCall
from ..tokens import DEFAULT_ENCODING, TokenCounter, count_message

MESSAGE = "message"
"""The kind of a message in the log of a session."""
ARCHIVED = "archived"
"""The kind of a message that was moved out of the log to keep it within its limits."""
SYSTEM_KEY = "@system"
"""The key of the message that `set_system` writes."""


def encode(
    message: Message,
    scope: Scope,
    tokens: TokenCounter,
    *,
    expires: datetime | None = None,
    key: str | None = None,
) -> Record:
    """Return a message as a record; raises InvalidValueError for what JSON cannot hold.

    Plain text stands in the record's text alone, so that it is not stored twice. The system role is
    also a label, since a prompt always needs those messages and must find them without a scan.
    """
    data: dict[str, Any] = {"role": message.role}
    if tokens.name != DEFAULT_ENCODING:
        data["encoding"] = tokens.name
    if key is not None:
        data["id"] = message.id
    if not isinstance(message.content, str) and (message.content, message.structured_data) != (None, None):
        data["content"] = check_json(message.content, "content")[0]
    if message.name is not None:
        data["name"] = message.name
    if message.tool_calls:
        data["tool_calls"] = [
            [call.id, call.name, call.arguments, call.type, call.call_id] for call in message.tool_calls
        ]
    if message.agent_calls:
        data["agent_calls"] = [
            [call.agent_name, check_json(call.request, "agent call request")[0]]
            for call in message.agent_calls
        ]
    if message.structured_data is not None:
        data["structured_data"] = check_json(message.structured_data, "structured_data")[0]
    if message.images:
        data["images"] = list(message.images)
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    system = message.role == "system"
    try:
        weight = count_message(message, tokens)
    except UnicodeEncodeError:
        # Counters refuse lone surrogates in words of their own.
        check_text(message.content, "content")
        raise
    return Record(
        scope=scope,
        kind=MESSAGE,
        key=message.id if key is None else key,
        text=message.text,
        data=data,
        meta=message.metadata,
        labels={"role": "system"} if system else {},
        weight=weight,
        pinned=system,
        created=message.timestamp,
        expires=expires,
    )


def decode(record: Record) -> Message:
    """Return the message that a record was made from."""
    data: Any = record.data
    assert record.created is not None, "a stored record has the time of its creation"
    if len(data) == 1:
        # Nearly every message is a role and a text: the short way is twice as fast.
        return Message(data["role"], record.text, record.key, metadata=record.meta, timestamp=record.created)
    return Message(
        role=data["role"],
        content=data.get("content", record.text),
        id=data.get("id", record.key),
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
