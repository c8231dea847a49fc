"""A message as a chat shows it: its tokens, its calls, and its images by name instead of their data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, json

from ...features.turns import answers_of
from ...images import image_in, image_info, split_data_url
from ...messages import Message, decode
from ...records import ARCHIVED, Record
from .values import Metadata

MOST_TEXT = 20_000
"""How many characters of a text are sent."""
MOST_NAME = 120
"""How many characters of an image's address are shown."""


class CallView(Struct, kw_only=True, frozen=True):
    """A call of a tool, or of another agent; `arguments` as JSON text."""

    id: str | None
    name: str
    arguments: str


class MessageView(Struct, kw_only=True, frozen=True):
    """A message, with its text of `length` characters as far as it is sent, and the ids of the `calls` it `answers`."""

    id: str
    role: str
    name: str | None
    time: datetime
    text: str
    length: int
    tokens: int
    calls: list[CallView]
    answers: list[str]
    images: list[str]
    archived: bool
    pinned: bool
    importance: float | None
    metadata: Metadata


def message_view(record: Record) -> MessageView:
    """Return a stored message as a chat shows it."""
    message = decode(record)
    blocks: list[Any] = message.content if isinstance(message.content, list) else []
    calls = [CallView(id=call.id, name=call.name, arguments=call.arguments[:MOST_TEXT]) for call in message.tool_calls]
    calls += [
        CallView(id=str(block.get("id")), name=str(block.get("name")), arguments=_json(block.get("input")))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_use"
    ]
    calls += [CallView(id=None, name=call.agent_name, arguments=_json(call.request)) for call in message.agent_calls]
    images = [*message.images, *filter(None, map(image_in, blocks))]
    text = _text(message)
    return MessageView(
        id=message.id,
        role=message.role,
        name=message.name,
        time=message.timestamp,
        text=text[:MOST_TEXT],
        length=len(text),
        tokens=record.weight,
        calls=calls,
        answers=answers_of(message),
        images=[image_name(image) for image in images],
        archived=record.kind == ARCHIVED,
        pinned=record.pinned,
        importance=record.importance,
        metadata=message.metadata,
    )


def _text(message: Message) -> str:
    """Return the readable text of a message, without its calls, which are shown apart."""
    if message.content is None and message.structured_data is None:
        return ""
    return message.text or ""


def _json(value: Any) -> str:
    return json.encode(value).decode()[:MOST_TEXT]


def image_name(image: str) -> str:
    """Return a name for an image: its type and size, or the end of its address."""
    parts = split_data_url(image) if image[:5].lower() == "data:" else None
    if parts is None:
        return image if len(image) <= MOST_NAME else f"…{image[-MOST_NAME:]}"
    info = image_info(image)
    pixels = "" if info.width is None else f", {info.width} × {info.height} pixels"
    return f"{parts[0][:40]}{pixels}, {len(parts[1]) * 3 // 4:,} bytes"
