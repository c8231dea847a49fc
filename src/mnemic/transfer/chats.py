"""Reads chats in the message formats of OpenAI and LangChain, which have no ids of conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ..checks import shown
from ..errors import InvalidValueError
from ..formats import from_openai
from .inputs import Input, each_value
from .items import Item, MessageItem, SkippedItem, fields_of, items_of, text_of

NAMES = ("id", "conversation_id", "session_id", "thread_id", "chat_id")
"""Fields in which programs put the id of a conversation."""
ROLES = {
    "human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "system": "system",
    "developer": "developer", "tool": "tool", "function": "function",
}  # fmt: skip
"""Roles by the types of LangChain's messages."""


def is_openai(value: Any) -> bool:
    """Return whether a JSON value is a conversation, or a message, of OpenAI's format."""
    if not isinstance(value, dict):
        return False
    first = value.get("messages", value)
    if isinstance(first, list):
        first = first[0] if first else {"role": ""}
    return isinstance(first, dict) and isinstance(first.get("role"), str)


def read_openai(whole: Input) -> Iterator[Item]:
    """Yield the messages of each line {"messages": […]}, a session each; or of one array of messages."""
    for name, n, value in each_value(whole):
        fields = fields_of(value, "a line")
        if "messages" not in fields:
            yield message_item(name, n, fields, {"source": "openai"})
            continue
        session = next((str(fields[key]) for key in NAMES if text_of(fields.get(key), key)), f"{name}-{n}")
        for place, message in enumerate(items_of(fields["messages"], "messages"), 1):
            yield message_item(session, place, fields_of(message, "a message"), {"source": "openai"})


def is_langchain(value: Any) -> bool:
    """Return whether a JSON value is a message that LangChain wrote, by messages_to_dict or dumps."""
    if not isinstance(value, dict):
        return False
    return _type(value) is not None and isinstance(value.get("data", value.get("kwargs")), dict)


def read_langchain(whole: Input) -> Iterator[Item]:
    """Yield the messages of an array of LangChain's messages, as one session; or of one array per line."""
    for name, n, value in each_value(whole):
        if isinstance(value, list):
            for place, message in enumerate(value, 1):
                yield _from_langchain(f"{name}-{n}", place, fields_of(message, "a message"))
        else:
            yield _from_langchain(name, n, fields_of(value, "a message"))


def _from_langchain(session: str, n: int, value: dict[str, Any]) -> Item:
    kind = _type(value)
    fields = fields_of(value.get("data", value.get("kwargs")), "the data of a message")
    if kind == "remove":
        return SkippedItem("an order to remove a message", str(fields.get("id")))
    role = str(fields.get("role")).lower() if kind == "chat" else kind
    if kind == "chat" and role not in ROLES:
        return SkippedItem(f"a message of the role {fields.get('role')!r}", str(fields.get("id") or f"{session}:{n}"))
    if role not in ROLES:
        raise InvalidValueError(f"a message has the unknown type {shown(kind)}")
    extra = fields_of(fields.get("additional_kwargs") or {}, "additional_kwargs")
    message: dict[str, Any] = {"role": ROLES[role], "content": fields.get("content")}
    message |= {key: fields[key] for key in ("name", "tool_call_id", "id") if fields.get(key)}
    if calls := items_of(fields.get("tool_calls"), "tool_calls"):
        message["tool_calls"] = [_call(fields_of(call, "a tool call")) for call in calls]
    else:
        message |= {key: extra[key] for key in ("tool_calls", "function_call") if extra.get(key)}
    about = fields.get("response_metadata")
    model = about.get("model_name") if isinstance(about, dict) else None
    return message_item(
        session, n, message, {"source": "langchain"} | ({"model": model} if isinstance(model, str) else {})
    )


def _type(value: dict[str, Any]) -> str | None:
    """Return the type of a message, such as "human"; None if it is no message."""
    if value.get("lc") == 1 and isinstance(path := value.get("id"), list) and path and isinstance(path[-1], str):
        return path[-1].removesuffix("Chunk").removesuffix("Message").lower() if "Message" in path[-1] else None
    kind = value.get("type")
    return kind.removesuffix("Chunk").removesuffix("Message").lower() if isinstance(kind, str) else None


def _call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
    name = call.get("name")
    return {"id": call.get("id") or name, "type": "function", "function": {"name": name, "arguments": arguments}}


def message_item(session: str, n: int, fields: dict[str, Any], about: dict[str, Any]) -> MessageItem:
    """Return a message; without an id of its own, its place in the session is its id."""
    id = text_of(fields.pop("id", None), "id")
    (message,) = from_openai([fields])
    message = replace(message, id=id or f"{session}:{n}", metadata=about | message.metadata)
    return MessageItem(session, message, fields.get("timestamp") is not None)
