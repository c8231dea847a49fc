"""The formats that can be imported: how each is recognized, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ..checks import check_choice, shown
from ..errors import InvalidValueError, MnemicError
from ..features.export import FORMAT
from . import chatgpt, claude
from .inputs import CONVERSATIONS, Input, Part
from .items import Item, Left
from .json_stream import JsonStream

OURS = "mnemic"
LOOKED_AT = 20
"""How many members of an object are looked at to recognize a format."""


class Format(NamedTuple):
    """A format: whether a JSON value at the top level, or in the array there, belongs to it, and how it is read."""

    title: str
    fits: Callable[[Any], bool]
    read: Callable[[Input], Iterator[Item]]
    suffixes: tuple[str, ...] = ()
    """Names of files in a folder that are read."""


def each_value(whole: Input, read: Callable[[Any], Iterator[Item]]) -> Iterator[Item]:
    """Yield the items of every element of an array, or of every value, in all parts; errors say where."""
    for part in whole.parts:
        with whole.opened(part) as file:
            stream = JsonStream(file)
            for n, value in enumerate(_elements(stream), 1):
                try:
                    yield from read(value)
                except MnemicError as error:
                    raise type(error)(f"{_where(whole, part)}item {n:,}: {error}") from None
    yield from (Left("a file without conversations", name) for name in whole.left_out)


def _elements(stream: JsonStream) -> Iterator[Any]:
    if stream.begins_array:
        for _, value in stream.elements():
            yield value
    else:
        yield from stream.values()


def _where(whole: Input, part: Part) -> str:
    return f"{part.name}: " if len(whole.parts) > 1 or whole.folder else ""


FORMATS: dict[str, Format] = {
    "chatgpt": Format(
        "data export of ChatGPT",
        chatgpt.is_conversation,
        lambda whole: each_value(whole, chatgpt.read_conversation),
        ("conversations.json",),
    ),
    "claude": Format(
        "data export of Claude",
        claude.is_conversation,
        lambda whole: each_value(whole, claude.read_conversation),
        ("conversations.json",),
    ),
}
"""Foreign formats by name; the first that fits is taken."""
NAMES: tuple[str, ...] = (OURS, *FORMATS)


def find_format(whole: Input, given: str | None) -> str:
    """Return the given format, or else the one that the content has; raises InvalidValueError if it has none."""
    if given is not None:
        return check_choice(given, "format", NAMES)
    for part in whole.parts:
        if whole.folder and not CONVERSATIONS.fullmatch(part.name):
            continue
        with whole.opened(part) as file:
            value = _first(JsonStream(file))
        if isinstance(value, dict) and str(value.get("format", "")).startswith(FORMAT.partition("/")[0]):
            return OURS
        for name, format in FORMATS.items():
            if format.fits(value):
                return name
        raise InvalidValueError(
            f"the format of {part.name} is not known: it begins with {shown(value)}; "
            f"name it with format: {', '.join(NAMES)}"
        )
    raise InvalidValueError(f"there is nothing to import in {whole.name}")


def _first(stream: JsonStream) -> Any:
    """Return the first element of an array, or an object with its first members, arrays with their first element."""
    if stream.begins_array:
        return next((value for _, value in stream.elements()), None)
    found: dict[str, Any] = {}
    for key, value in islice(stream.elements(), LOOKED_AT):
        if key in found:
            break
        found[key] = value
    return found
