"""Reads files line by line: transcripts of Claude Code, and memory.jsonl of the reference MCP memory server."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

from ..errors import InvalidValueError
from ..features.fact_items import Fact
from ..records import now
from .claude_code import TranscriptReader
from .inputs import Input, each_line
from .items import Item, Left, Noted, Said, Stated
from .json_stream import JsonStream


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
            yield Left(found.skipped, f"{name} line {n:,}")
        yield from (Said(found.session, message) for message in found.messages)


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
                    yield Noted(name, {"entityType": kind, "observations": texts}, metadata={"source": "mcp-memory"})
                case {"type": "relation", "from": str(subject), "to": str(object), "relationType": str(predicate)}:
                    fact = Fact(
                        subject=subject, predicate=predicate, object=object, valid_from=now(), source="mcp-memory"
                    )
                    yield Stated(fact, timed=False)
                case _:
                    yield Left("a damaged line, or neither an entity nor a relation", f"line {n:,}")
