"""Reads the data export of ChatGPT: conversations.json, whose conversations are trees."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, takewhile
from typing import Any

from msgspec.structs import replace

from ..messages import Message, Role, ToolCall
from ..records import now
from .conversation_tree import ConversationNode, branches
from .inputs import Input, each_value
from .items import Item, MessageItem, SkippedItem, TitleItem, fields_of, file_text, id_of, items_of, text_of, time_of

ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
THINKING = ("thoughts", "reasoning_recap")
TEXTS = (
    "text", "multimodal_text", "code", "execution_output", "tether_browsing_display", "tether_quote", "system_error",
    "user_editable_context",
)  # fmt: skip
"""Types of content that have a text."""
MAX_RESULTS = 100
"""How many messages of a tool in a row are taken for results of one call."""


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
    nodes: dict[str, ConversationNode] = {}
    for id, given in fields_of(fields.get("mapping"), "the mapping of a conversation").items():
        node = fields_of(given, "a node of a conversation")
        kept, timed = None, True
        if (message := node.get("message")) is not None:
            found = _message(id, fields_of(message, "a message"))
            timed = time_of(message.get("create_time"), "create_time") is not None
            if isinstance(found, SkippedItem):
                yield found
            else:
                kept = found
        children = [child for child in items_of(node.get("children"), "children") if isinstance(child, str)]
        nodes[id] = ConversationNode(kept, text_of(node.get("parent"), "parent"), timed, children)
    started = time_of(fields.get("create_time"), "create_time")
    for _, branch in groupby(branches(session, nodes, started), key=lambda said: said.session):
        yield from _with_calls(list(branch))
    if (title := text_of(fields.get("title"), "title")) is not None:
        yield TitleItem(session, title, started)


def _with_calls(branch: list[MessageItem]) -> Iterator[MessageItem]:
    """Yield messages; one to a tool that has answered is a call, and what the tool said next is its result.

    Models take one result for a call, so that each further one has a call of its own, without arguments.
    """
    waiting: list[str] = []
    for n, said in enumerate(branch):
        message = said.message
        if waiting:
            message = replace(message, tool_call_id=waiting.pop(0))
        elif "recipient" in message.metadata:
            results = list(takewhile(lambda one: one.message.role == "tool", branch[n + 1 : n + 1 + MAX_RESULTS]))
            if results:
                waiting = [message.id, *(one.message.id for one in results[1:])]
                name = message.metadata["recipient"]
                calls = [ToolCall(id, name) for id in waiting]
                calls[0] = replace(calls[0], arguments=message.text or "")
                metadata = {key: value for key, value in message.metadata.items() if key != "recipient"}
                message = replace(message, content=None, tool_calls=calls, metadata=metadata)
        yield said._replace(message=message)


def _message(id: str, fields: dict[str, Any]) -> Message | SkippedItem:
    author = fields_of(fields.get("author"), "the author of a message")
    about = fields.get("metadata") or {}
    role = ROLES.get(str(author.get("role")))
    if role is None:
        return SkippedItem(f"a message of the role {author.get('role')!r}", id)
    if isinstance(about, dict) and about.get("is_visually_hidden_from_conversation"):
        return SkippedItem("a message that ChatGPT hides, such as its instructions", id)
    content = fields_of(fields.get("content"), "the content of a message")
    kind = content.get("content_type")
    if kind in THINKING:
        return SkippedItem("the model's thinking", id)
    attached = about.get("attachments") if isinstance(about, dict) else None
    text = _text(content, [file for file in attached if isinstance(file, dict)] if isinstance(attached, list) else [])
    if text is None:
        return SkippedItem("a message without text" if kind in TEXTS else f"a message of the type {kind!r}", id)
    metadata: dict[str, Any] = {"source": "chatgpt"}
    if isinstance(about, dict) and isinstance(model := about.get("model_slug"), str):
        metadata["model"] = model
    if kind not in ("text", "multimodal_text"):
        metadata["content_type"] = str(kind)
    recipient = fields.get("recipient")
    if role == "assistant" and isinstance(recipient, str) and recipient not in ("", "all"):
        metadata["recipient"] = recipient
    time = time_of(fields.get("create_time"), "create_time")
    name = text_of(author.get("name"), "the name of an author")
    return Message(role, text, id, name if role == "tool" else None, metadata=metadata, timestamp=time or now())


def _text(content: dict[str, Any], attached: list[dict[str, Any]]) -> str | None:
    """Return the text of a content; images and files in it are named only."""
    parts = items_of(content.get("parts"), "the parts of a message")
    for name in ("text", "result", "user_profile", "user_instructions"):
        if isinstance(content.get(name), str):
            parts = [*parts, content[name]]
    names = {file.get("id"): file.get("name") for file in attached if isinstance(file.get("id"), str)}
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict):
            kind = str(part.get("content_type") or "file").removesuffix("_asset_pointer").replace("_", " ")
            id = str(part.get("asset_pointer") or "").rpartition("://")[2]
            texts.append(file_text(names.pop(id, None) or id, kind=kind))
    texts += [
        file_text(file.get("name"), file.get("mime_type", file.get("mimeType")))
        for file in attached
        if not isinstance(file.get("id"), str) or file["id"] in names
    ]
    said = "\n".join(text for text in texts if text)
    return said if said.strip() else None
