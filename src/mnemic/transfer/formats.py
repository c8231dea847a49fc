"""The formats that can be imported: how each is recognized, and how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ..checks import check_choice, shown
from ..errors import InvalidValueError
from ..features.export import FORMAT
from .agent_files import (
    is_claude_code,
    is_graph,
    is_marsys,
    is_opper,
    read_claude_code,
    read_graph,
    read_marsys,
    read_opper,
)
from .chatgpt import is_chatgpt, read_chatgpt
from .chats import is_langchain, is_openai, read_langchain, read_openai
from .claude import is_claude, read_claude
from .fence import SQLITE, is_fence, read_fence
from .inputs import CONVERSATIONS, Input, Part
from .items import Item
from .json_stream import JsonStream
from .letta import is_letta, read_letta
from .markdown import SUFFIXES, read_markdown
from .mem0 import is_mem0, read_mem0

OURS = "mnemic"
EMPTY = ""
"""The format of an export of nothing, an empty array."""
LOOKED_AT = 50
"""How many members of an object are looked at to recognize a format."""
JSON_LINES = re.compile(r".*\.jsonl")
MARKDOWN = re.compile(r".*\.(md|markdown)", re.IGNORECASE)
ANY = re.compile(r".*")


class Format(NamedTuple):
    """A format: whether it has a JSON value, how it is read, and which files of a folder it has."""

    fits: Callable[[Any], bool]
    read: Callable[[Input], Iterator[Item]]
    files: re.Pattern[str] = ANY


FORMATS: dict[str, Format] = {
    "chatgpt": Format(is_chatgpt, read_chatgpt, CONVERSATIONS),
    "claude": Format(is_claude, read_claude, CONVERSATIONS),
    "letta": Format(is_letta, read_letta),
    "mem0": Format(is_mem0, read_mem0),
    "mcp-memory": Format(is_graph, read_graph),
    "claude-code": Format(is_claude_code, read_claude_code, JSON_LINES),
    "fence": Format(is_fence, read_fence),
    "marsys": Format(is_marsys, read_marsys),
    "opper": Format(is_opper, read_opper),
    "langchain": Format(is_langchain, read_langchain),
    "openai": Format(is_openai, read_openai),
    "markdown": Format(lambda value: False, read_markdown, MARKDOWN),
}
"""Foreign formats by name; the first that fits is taken."""
NAMES: tuple[str, ...] = (OURS, *FORMATS)


def find_format(whole: Input, given: str | None) -> str:
    """Return the given format, or else the one that the content has; raises InvalidValueError if it has none."""
    if given is not None:
        return check_choice(given, "format", NAMES)
    for wanted in (CONVERSATIONS, JSON_LINES, MARKDOWN) if whole.folder else (ANY,):
        parts = [part for part in whole.parts if wanted.fullmatch(part.name)]
        if parts and not CONVERSATIONS.fullmatch(parts[0].name):
            parts = parts[:1]
        found = {_format_in(whole, part): part.name for part in reversed(parts)}
        if len(found) > 1:
            found.pop(EMPTY, None)
        if len(found) > 1:
            named = ", ".join(f"{name} is of {format}" for format, name in sorted(found.items()))
            raise InvalidValueError(f"{shown(whole.name)} has several exports: {named}; import them one by one")
        if found:
            return next(iter(found)) or "openai"
    raise InvalidValueError(f"{shown(whole.name)} has nothing to import: no conversations.json, no .jsonl and no .md")


def _format_in(whole: Input, part: Part) -> str:
    if part.name.lower().endswith(SUFFIXES):
        return "markdown"
    with whole.opened(part) as file:
        if file.read(len(SQLITE)) == SQLITE:
            return "fence"
    with whole.opened(part) as file:
        return _format_of(part.name, _first(JsonStream(file)))


def _format_of(name: str, value: Any) -> str:
    if value == []:
        return EMPTY
    if isinstance(value, dict) and str(value.get("format", "")).startswith(FORMAT.partition("/")[0]):
        return OURS
    if value is None or value == {}:
        raise InvalidValueError(f"{name} is empty")
    found = next((name for name, format in FORMATS.items() if format.fits(value)), None)
    if found is None:
        raise InvalidValueError(
            f"the format of {name} is not known: it begins with {shown(value)}; name it with format: {', '.join(NAMES)}"
        )
    return found


def _first(stream: JsonStream) -> Any:
    """Return the first element of an array, or an object with its first members, and the first of each array.

    An empty array is returned as it is.
    """
    if stream.begins_array:
        return next((value for _, value in stream.elements()), [])
    found: dict[str, Any] = {}
    try:
        for key, value in islice(stream.elements(), LOOKED_AT):
            found.setdefault(key, value)
    except InvalidValueError:
        if not found:
            raise  # else the reader of the format says what is wrong with the rest
    return found
