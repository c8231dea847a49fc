"""The profile chatgpt: search and fetch, as OpenAI's connectors and deep research call them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from msgspec import json

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from ..features.fact_items import Fact
from ..features.hits import Hit, Item
from ..features.memory_items import MemoryItem
from ..features.note_files import as_text
from ..features.notes import Note
from ..features.summary import QUOTED
from ..messages import Message
from ..records import Ref, ScopePath
from .tools import TEXT, Tool, ToolContext, ToolResult, checked_query, object_schema, shortened_text

RESULTS = 10
"""How many results a search returns."""
LONGEST = 100_000
"""Maximum length of the text of a result, in characters."""
TITLE = 80
"""Maximum length of a title, in characters."""


async def search(call: ToolContext, query: str) -> ToolResult:
    """Return the ids, titles and addresses of the best hits."""
    hits = await call.scope.recall(checked_query(query), RESULTS)
    return _answer(
        {"results": [{"id": (id := _id(call, hit)), "title": _title(hit.text), "url": _url(id)} for hit in hits]}
    )


async def fetch(call: ToolContext, id: str) -> ToolResult:
    """Return one record in full."""
    kind, _, rest = id.partition("/")
    below, _, key = rest.rpartition("/")
    try:
        scope = ScopePath.of(call.scope.path, *filter(None, unquote(below).split("/")))
        text, metadata = _described(await call.scope.get(Ref(scope, kind, unquote(key))))
    except (InvalidValueError, NotFoundError):
        raise NotFoundError(f"there is nothing with the id {shown(id)}: ids are those that search returns") from None
    found = {"id": id, "title": _title(text), "text": shortened_text(text, LONGEST), "url": _url(id)}
    return _answer({**found, "metadata": {"kind": kind, **metadata, "notice": QUOTED}})


def _id(call: ToolContext, hit: Hit) -> str:
    return "/".join(quote(part, safe="") for part in (hit.ref.kind, call.below(hit.scope), hit.id) if part)


def _url(id: str) -> str:
    return f"mnemic://{id}"


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"


def _described(item: Item) -> tuple[str, dict[str, str]]:
    """Return the text of an item, and more about it; the values of metadata are texts."""
    if isinstance(item, str):
        return item, {}
    more: dict[str, Any] = {}
    if isinstance(item, Message):
        text, more = item.text or "", {"said_by": item.name or item.role, "created": item.timestamp}
    elif isinstance(item, Note):
        text, more = as_text(item.value), {"key": item.key, "description": item.description, "updated": item.updated}
    elif isinstance(item, Fact):
        text, more = f"{item.subject} {item.predicate} {item.object}", {"since": item.valid_from, "source": item.source}
    else:
        assert isinstance(item, MemoryItem)
        text, more = item.text, {"created": item.created, "source": item.source}
    return text, {name: str(value) for name, value in more.items() if value is not None}


def _answer(data: dict[str, Any]) -> ToolResult:
    return ToolResult(json.encode(data).decode(), data)


_RESULT = object_schema("id title url", id=TEXT, title=TEXT, url=TEXT)

CHATGPT_TOOLS = [
    Tool(
        "search",
        "Search everything remembered: memories, earlier conversations, notes and facts.",
        search,
        object_schema("query", query=TEXT),
        object_schema("results", results={"type": "array", "items": _RESULT}),
        read_only=True,
    ),
    Tool(
        "fetch",
        "Get one result of a search in full, by its id.",
        fetch,
        object_schema("id", id=TEXT),
        object_schema("id title text url", id=TEXT, title=TEXT, text=TEXT, url=TEXT, metadata={"type": "object"}),
        read_only=True,
    ),
]
