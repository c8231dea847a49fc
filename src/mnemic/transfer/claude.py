"""Reads the data export of Claude: conversations.json."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from ..formats import from_anthropic
from ..messages import Message, texts_in
from ..records import now
from .conversation_tree import ConversationNode, branches
from .inputs import Input, each_value
from .items import Item, SkippedItem, TitleItem, fields_of, file_text, id_of, items_of, text_of, time_of

SENDERS = {"human": "user", "assistant": "assistant"}
BLOCKS = ("text", "tool_use", "tool_result")
FILES = ("image", "document", "file")
"""Types of blocks that are only named."""
FIRST = "00000000-0000-4000-8000-000000000000"
"""The parent of the first message, which is no message itself."""


def is_claude(value: Any) -> bool:
    """Return whether a JSON value is a conversation of such an export."""
    return isinstance(value, dict) and isinstance(value.get("chat_messages"), list | dict)


def read_claude(whole: Input) -> Iterator[Item]:
    """Yield the messages and titles of all conversations; raises InvalidValueError for what is none."""
    for _, _, value in each_value(whole):
        yield from _conversation(value)


def _conversation(value: Any) -> Iterator[Item]:
    fields = fields_of(value, "a conversation")
    session = id_of(fields.get("uuid"), "a conversation")
    nodes: dict[str, ConversationNode] = {}
    before: str | None = None
    for given in items_of(fields.get("chat_messages"), "chat_messages"):
        message = fields_of(given, "a message")
        id = id_of(message.get("uuid"), "a message")
        parent = message.get("parent_message_uuid", before)
        timed = time_of(message.get("created_at"), "created_at") is not None
        found = list(_messages(id, message))
        for left in found:
            if isinstance(left, SkippedItem):
                yield left
        kept: list[Message | None] = [one for one in found if isinstance(one, Message)]
        kept = kept or [None]
        for n, one in enumerate(kept, 1):
            # Its parts are nodes one after another, and an answer is to the last of them.
            name = id if n == len(kept) else f"{id}#{n}"
            nodes[name] = ConversationNode(one, parent if parent != FIRST else None, timed)
            parent = name
        before = id
    started = time_of(fields.get("created_at"), "created_at")
    yield from branches(session, nodes, started)
    if (title := text_of(fields.get("name"), "name")) is not None:
        yield TitleItem(session, title, started)


def _messages(id: str, fields: dict[str, Any]) -> Iterator[Message | SkippedItem]:
    """Yield a message; one that used tools is several: calls, results, and what was said then."""
    role = SENDERS.get(str(fields.get("sender")))
    if role is None:
        yield SkippedItem(f"a message of the sender {fields.get('sender')!r}", id)
        return
    blocks = []
    for block in items_of(fields.get("content"), "content"):
        kind = fields_of(block, "a content block").get("type")
        if kind in BLOCKS:
            blocks.append(_block(block))
        elif kind in FILES:
            name = block.get("file_name") or block.get("title")
            blocks.append({"type": "text", "text": file_text(name, kind="image" if kind == "image" else "file")})
        else:
            yield SkippedItem(f"a block of the type {kind!r} in a message", id)
    if not any(block.get("text") for block in blocks) and (text := text_of(fields.get("text"), "text")):
        blocks.append({"type": "text", "text": text})
    named: set[Any] = set()
    for attached in (*items_of(fields.get("attachments"), "attachments"), *items_of(fields.get("files"), "files")):
        file = fields_of(attached, "an attachment")
        name = text_of(file.get("file_name"), "file_name")
        if name in named:
            continue
        named |= {name} if name else set()
        text = text_of(file.get("extracted_content"), "extracted_content")
        said = file_text(name) if text is None else f"{file_text(name)}\n{text}"
        blocks.append({"type": "text", "text": said})
    blocks = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    if not blocks:
        yield SkippedItem("a message without text", id)
        return
    time = time_of(fields.get("created_at"), "created_at") or now()
    runs = [list(run) for _, run in groupby(blocks, key=lambda block: block["type"] == "tool_result")]
    for n, message in enumerate(from_anthropic([{"role": role, "content": run} for run in runs])):
        metadata = message.metadata | {"source": "claude"}
        yield replace(message, id=f"{id}:{n}" if n else id, metadata=metadata, timestamp=time)


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a content block without what the web client adds to it."""
    if block["type"] == "text":
        return {"type": "text", "text": text_of(block.get("text"), "text") or ""}
    if block["type"] == "tool_use":
        return {"type": "tool_use", "id": _call(block, "id"), "name": block.get("name"), "input": block.get("input")}
    said = "\n".join(texts_in(block.get("content")))
    return {"type": "tool_result", "tool_use_id": _call(block, "tool_use_id"), "content": said}


def _call(block: dict[str, Any], field: str) -> str:
    """Return the id that links a call with its result; old exports have none, so that the name must do."""
    return text_of(block.get(field), field) or text_of(block.get("name"), "name") or "tool"
