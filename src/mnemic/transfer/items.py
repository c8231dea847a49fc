"""Items of every foreign format: messages, titles, notes, memories and facts, with the ids of their source."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from mimetypes import guess_type
from typing import Any, NamedTuple, TypeAlias

from ..checks import shown
from ..errors import InvalidValueError
from ..features.fact_items import Fact
from ..features.memory_items import MemoryItem
from ..messages import Message
from ..records import ScopePath, parse_time


class MessageItem(NamedTuple):
    """A message of a session in a scope below; not `timed` if the source does not tell when it was said."""

    session: str
    message: Message
    timed: bool = True
    scope: ScopePath = ScopePath()


class TitleItem(NamedTuple):
    """The title of a session."""

    session: str
    title: str
    created: datetime | None = None


class NoteItem(NamedTuple):
    """A note."""

    key: str
    value: Any
    description: str | None = None
    metadata: Mapping[str, Any] = {}
    updated: datetime | None = None


class FactItem(NamedTuple):
    """A fact; not `timed` if the source does not tell from when on it is true."""

    fact: Fact
    timed: bool = True


REPLACED = "characters that cannot be stored were replaced by U+FFFD"


class SkippedItem(NamedTuple):
    """Something that is not imported: why, and which."""

    reason: str
    which: str = ""


Item: TypeAlias = MessageItem | TitleItem | NoteItem | MemoryItem | FactItem | SkippedItem


def fields_of(value: Any, what: str) -> dict[str, Any]:
    """Return a JSON object; raises InvalidValueError, which says what it should be."""
    if not isinstance(value, dict):
        raise InvalidValueError(f"{what} must be an object: {shown(value)}")
    return value


def items_of(value: Any, what: str) -> list[Any]:
    """Return a JSON array, empty for null; raises InvalidValueError, which says what it should be."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidValueError(f"{what} must be an array: {shown(value)}")
    return value


def text_of(value: Any, what: str) -> str | None:
    """Return a text that is not blank, or None; raises InvalidValueError for anything else but null."""
    if value is not None and not isinstance(value, str):
        raise InvalidValueError(f"{what} must be text: {shown(value)}")
    return value if value and value.strip() else None


def id_of(value: Any, what: str) -> str:
    """Return an id of the source, as text; raises InvalidValueError if there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise InvalidValueError(f"{what} has no id: {shown(value)}")
    return value


def file_text(name: Any, media_type: Any = None, kind: str = "file") -> str:
    """Return the text that stands for a file or an image, such as "[file: report.pdf]"."""
    name = name if isinstance(name, str) and name.strip() else None
    media_type = media_type if isinstance(media_type, str) else guess_type(name or "")[0]
    if kind == "file" and (media_type or "").startswith("image/"):
        kind = "image"
    return f"[{kind}: {name}]" if name else f"[{kind}]"


def time_of(value: Any, what: str) -> datetime | None:
    """Return a time given in seconds since 1970 or ISO 8601 (UTC if it has no offset), None for null or 0."""
    if value is None or value == 0 or value == "":
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return parse_time(value, what) if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise InvalidValueError(f"{what} is not a time: {shown(value)}")
