"""Reads agent files of Letta (.af), of both versions: memory blocks become notes, messages a session."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from msgspec.structs import replace

from ..formats import from_openai
from ..messages import Message
from ..records import digest_of
from .inputs import Input, each_value
from .items import Item, MessageItem, NoteItem, SkippedItem, fields_of, items_of, text_of, time_of
from .json_stream import JsonStream

SPEAKING = "send_message"
"""Name of the tool with which agents of Letta speak to the user."""


def is_letta(value: Any) -> bool:
    """Return whether a JSON value is an agent file."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get(""), str):
        value = _unquoted(value[""])
    return isinstance(value, dict) and _is_agents(value)


def _is_agents(value: dict[str, Any]) -> bool:
    return {"agents", "blocks"} <= value.keys() or {"agent_type", "core_memory"} <= value.keys()


def _unquoted(value: Any) -> Any:
    """Return an agent file; some are written as JSON in a JSON text."""
    return next(JsonStream(BytesIO(value.encode())).values(), None) if isinstance(value, str) else value


def read_letta(whole: Input) -> Iterator[Item]:
    """Yield the blocks and messages of the agents of a file."""
    for name, _, value in each_value(whole):
        fields = fields_of(_unquoted(value), "an agent file")
        agents = [fields_of(one, "an agent") for one in items_of(fields.get("agents", [fields]), "agents")]
        blocks = [
            fields_of(one, "a block") for one in items_of(fields.get("blocks", fields.get("core_memory")), "blocks")
        ]
        names = Counter(agent.get("name") for agent in agents)
        prefixes = _prefixes(agents, blocks) if len(agents) > 1 or len(whole.parts) > 1 else [""] * len(blocks)
        labels = Counter((prefix, block.get("label")) for prefix, block in zip(prefixes, blocks, strict=True))
        for prefix, block in zip(prefixes, blocks, strict=True):
            yield _note(block, prefix, labels[prefix, block.get("label")] > 1)
        for agent in agents:
            called = text_of(agent.get("name"), "name") or name
            session = called if names[called] < 2 else f"{called} {agent.get('id')}"
            yield from _messages(session, items_of(agent.get("messages"), "messages"))
        for kind in ("tools", "files", "sources", "groups"):
            for one in items_of(fields.get(kind), kind):
                yield SkippedItem(
                    f"one of the agent's {kind}", str(one.get("name") or one.get("id")) if isinstance(one, dict) else ""
                )


def _prefixes(agents: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> list[str]:
    """Return the begin of the note key of each block: the name of its agent, unless several agents share the block."""
    found = []
    for block in blocks:
        owners = [one for one in agents if len(agents) == 1 or block.get("id") in (one.get("block_ids") or [])]
        name = text_of(owners[0].get("name"), "name") if len(owners) == 1 else None
        found.append(f"{name}/" if name else "")
    return found


def _note(block: dict[str, Any], prefix: str, ambiguous: bool) -> Item:
    label = text_of(block.get("label"), "label") or text_of(block.get("id"), "id")
    value = text_of(block.get("value"), "value")
    if label is None or value is None:
        return SkippedItem("an empty block", label or "")
    key = prefix + (f"{label} {block.get('id')}" if ambiguous else label)
    changed = time_of(block.get("updated_at"), "updated_at")
    return NoteItem(key, value, text_of(block.get("description"), "description"), {"source": "letta"}, changed)


def _messages(session: str, given: list[Any]) -> Iterator[Item]:
    spoken: set[str] = set()
    for value in given:
        fields = fields_of(value, "a message")
        # The ids in a file are only its own.
        id = digest_of([fields.get(key) for key in ("created_at", "role", "content", "tool_calls")]).hex()
        found = _message(fields, spoken)
        if isinstance(found, str):
            yield SkippedItem(found, id)
            continue
        time = time_of(fields.get("created_at"), "created_at")
        found = replace(found, id=id, metadata={"source": "letta"}, timestamp=time or found.timestamp)
        yield MessageItem(session, found, time is not None)


def _message(fields: dict[str, Any], spoken: set[str]) -> Message | str:
    """Return a message, or why it is left out; `spoken` collects the ids of calls that are what the agent said."""
    role, text = fields.get("role"), _text(fields.get("content"))
    calls = []
    for call in items_of(fields.get("tool_calls"), "tool_calls"):
        function = fields_of(fields_of(call, "a tool call").get("function"), "the function of a tool call")
        said = _object_in(function.get("arguments")).get("message")
        if function.get("name") == SPEAKING and isinstance(said, str):
            text = said
            spoken.add(str(call.get("id")))
        else:
            calls.append(call)
    if role == "system":
        return "a system prompt"
    if role == "tool" and str(fields.get("tool_call_id")) in spoken:
        return f"the result of {SPEAKING}"
    if role == "user" and isinstance((event := _object_in(text)).get("type"), str):
        # Letta wraps what the user says, and what happens, in objects.
        if event["type"] != "user_message" or not isinstance(event.get("message"), str):
            return "an event that is no message of the user"
        text = event["message"]
    if role not in ("user", "assistant", "tool", "function") or not (text.strip() or calls):
        return "a message without text"
    message: dict[str, Any] = {"role": role, "content": text or None, "tool_calls": calls}
    message |= {key: fields[key] for key in ("name", "tool_call_id") if fields.get(key)}
    return from_openai([message])[0]


def _text(content: Any) -> str:
    """Return the text of a content, without the model's reasoning."""
    if isinstance(content, str):
        return content
    parts = [fields_of(part, "a part of a message") for part in items_of(content, "content")]
    return "\n".join(part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str))


def _object_in(text: Any) -> dict[str, Any]:
    """Return the JSON object that a text is; an empty one if it is something else."""
    try:
        found = json.loads(text) if isinstance(text, str) and text.startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
