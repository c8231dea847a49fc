"""Reads the data export of ChatGPT: conversations.json, whose conversations are trees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..messages import Message, Role
from ..records import now
from .inputs import Input, each_value
from .items import Item, Left, Titled, fields_of, id_of, items_of, text_of, time_of
from .trees import Node, branches

ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
THINKING = ("thoughts", "reasoning_recap")


def is_chatgpt(value: Any) -> bool:
    """Return whether a JSON value is a conversation of such an export."""
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def read_chatgpt(whole: Input) -> Iterator[Item]:
    """Yield the messages and titles of all conversations; raises InvalidValueError for what is none."""
    for _, _, value in each_value(whole):
        yield from _conversation(value)


def _conversation(value: Any) -> Iterator[Item]:
    fields = fields_of(value, "a conversation")
    session = id_of(fields.get("conversation_id") or fields.get("id"), "a conversation")
    nodes: dict[str, Node] = {}
    for id, given in fields_of(fields.get("mapping"), "the mapping of a conversation").items():
        node = fields_of(given, "a node of a conversation")
        kept, timed = None, True
        if (message := node.get("message")) is not None:
            found = _message(id, fields_of(message, "a message"))
            timed = time_of(message.get("create_time"), "create_time") is not None
            if isinstance(found, Left):
                yield found
            else:
                kept = found
        children = [child for child in items_of(node.get("children"), "children") if isinstance(child, str)]
        nodes[id] = Node(kept, text_of(node.get("parent"), "parent"), timed, children)
    yield from branches(session, nodes)
    if (title := text_of(fields.get("title"), "title")) is not None:
        yield Titled(session, title, time_of(fields.get("create_time"), "create_time"))


def _message(id: str, fields: dict[str, Any]) -> Message | Left:
    author = fields_of(fields.get("author"), "the author of a message")
    about = fields.get("metadata") or {}
    role = ROLES.get(str(author.get("role")))
    if role is None:
        return Left(f"a message of the role {author.get('role')!r}", id)
    if isinstance(about, dict) and about.get("is_visually_hidden_from_conversation"):
        return Left("a message that ChatGPT hides, such as its instructions", id)
    content = fields_of(fields.get("content"), "the content of a message")
    kind = content.get("content_type")
    if kind in THINKING:
        return Left("the model's thinking", id)
    text = _text(content)
    if text is None:
        return Left("a message without text, such as an image alone", id)
    metadata: dict[str, Any] = {"source": "chatgpt"}
    if isinstance(about, dict) and isinstance(model := about.get("model_slug"), str):
        metadata["model"] = model
    if kind not in ("text", "multimodal_text"):
        metadata["content_type"] = str(kind)
    time = time_of(fields.get("create_time"), "create_time")
    name = text_of(author.get("name"), "the name of an author")
    return Message(role, text, id, name if role == "tool" else None, metadata=metadata, timestamp=time or now())


def _text(content: dict[str, Any]) -> str | None:
    """Return the text of a content; images and files in it are named only."""
    parts = items_of(content.get("parts"), "the parts of a message")
    for name in ("text", "result", "user_profile", "user_instructions"):
        if isinstance(content.get(name), str):
            parts = [*parts, content[name]]
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict):
            kind = str(part.get("content_type") or "file").removesuffix("_asset_pointer").replace("_", " ")
            texts.append(f"[{kind}]")
    said = "\n".join(texts)
    return said if any(text.strip() and not text.startswith("[") for text in texts) else None
