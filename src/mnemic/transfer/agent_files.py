"""Reads what agents have stored: MARSYS, Opper, Claude Code, and the reference MCP memory server."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

from ..errors import InvalidValueError
from ..features.fact_items import Fact
from ..records import now
from .agent_transcripts import TranscriptReader
from .chats import ROLES, message_item
from .inputs import Input, each_line, each_value
from .items import FactItem, Item, MessageItem, NoteItem, SkippedItem, fields_of, id_of, items_of
from .json_stream import JsonStream


def is_marsys(value: Any) -> bool:
    """Return whether a JSON value is a memory that MARSYS has saved."""
    return isinstance(value, dict) and isinstance(value.get("memory_type"), str) and "timestamp" in value


def read_marsys(whole: Input) -> Iterator[Item]:
    """Yield the messages of each file, a session each with the name of the file."""
    for name, _, value in each_value(whole):
        fields = fields_of(value, "a saved memory")
        for place, one in enumerate(items_of(fields.get("messages"), "messages"), 1):
            message = fields_of(one, "a message")
            if message.get("role") in ROLES:
                yield message_item(name, place, message, {"source": "marsys"})
            else:
                yield SkippedItem(f"a message of the role {message.get('role')!r}", f"{name}:{place}")
        for state in fields_of(fields.get("additional_state") or {}, "additional_state"):
            yield SkippedItem("state of the agent that is no memory", state)


def is_opper(value: Any) -> bool:
    """Return whether a JSON value is a key with its value."""
    return isinstance(value, dict) and value.keys() == {"key", "value"} and isinstance(value["key"], str)


def read_opper(whole: Input) -> Iterator[Item]:
    """Yield a note for each line {"key": …, "value": …}."""
    for _, _, value in each_value(whole):
        fields = fields_of(value, "a line")
        yield NoteItem(id_of(fields.get("key"), "a line"), fields.get("value"), metadata={"source": "opper"})


def is_claude_code(value: Any) -> bool:
    """Return whether a JSON value is a line of a transcript."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    return bool({"sessionId", "leafUuid", "messageId", "parentUuid"} & value.keys())


def read_claude_code(whole: Input) -> Iterator[Item]:
    """Yield the messages of transcripts, as `mnemic hook` stores them."""
    reader, part = TranscriptReader(), ""
    for name, n, line in each_line(whole):
        if name != part:
            reader, part = TranscriptReader(), name
        found = reader.read(line)
        if found.skipped:
            yield SkippedItem(found.skipped, f"{name} line {n:,}")
        yield from (MessageItem(found.session, message) for message in found.messages)


def is_graph(value: Any) -> bool:
    """Return whether a JSON value is an entity or a relation of the reference memory server."""
    match value:
        case {"type": "entity", "name": str(), "entityType": str(), "observations": _}:
            return True
        case {"type": "relation", "from": str(), "to": str(), "relationType": str()}:
            return True
    return False


def merge_entities(stored: Any, given: Any) -> Any:
    """Return an entity with the observations of two versions; None if they are not of one type."""
    match stored, given:
        case (
            {"entityType": str(kind), "observations": list(old)},
            {"entityType": str(other), "observations": list(new)},
        ) if kind == other:
            return stored | {"observations": [*old, *(text for text in new if text not in old)]}
    return None


def read_graph(whole: Input) -> Iterator[Item]:
    """Yield entities as notes and relations as facts, as the graph tools of `mnemic mcp` store them.

    That server may have damaged its file: lines that are not valid are left out.
    """
    for _, n, line in each_line(whole):
        try:
            stream = JsonStream(BytesIO(line))
            values = list(stream.values())
            whole.note_replaced(stream)
        except InvalidValueError:
            values = [None]
        for value in values:
            match value:
                case {"type": "entity", "name": str(name), "entityType": str(kind), "observations": list(texts)} if all(
                    isinstance(text, str) for text in texts
                ):
                    yield NoteItem(name, {"entityType": kind, "observations": texts}, metadata={"source": "mcp-memory"})
                case {"type": "relation", "from": str(subject), "to": str(object), "relationType": str(predicate)}:
                    fact = Fact(
                        subject=subject, predicate=predicate, object=object, valid_from=now(), source="mcp-memory"
                    )
                    yield FactItem(fact, timed=False)
                case _:
                    yield SkippedItem("a damaged line, or neither an entity nor a relation", f"line {n:,}")
