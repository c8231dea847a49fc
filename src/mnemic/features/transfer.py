"""Saves and loads sessions as JSON files."""

from __future__ import annotations

from os import PathLike
from typing import Any

from msgspec import DecodeError, Struct, json

from ..checks import check_text, shown
from ..errors import InvalidValueError
from ..files import check_path, read_file, replace_file
from ..records import Message

FORMAT = "mnemic.session/1"


class Saved(Struct, frozen=True):
    """A saved session."""

    messages: list[Message]
    archived: list[Message]
    summary: str | None


def write_session(path: str | PathLike[str], saved: Saved) -> None:
    """Write a session to a file, which is replaced atomically; raises a StoreError."""
    content = {
        "format": FORMAT,
        "messages": [message.to_dict() for message in saved.messages],
        "archived": [message.to_dict() for message in saved.archived],
        "summary": saved.summary,
    }
    replace_file(path, json.format(json.encode(content), indent=1))


def read_session(path: str | PathLike[str]) -> Saved:
    """Read a saved session; raises NotFoundError, or InvalidValueError if the file is invalid."""
    name = str(check_path(path))
    try:
        content: Any = json.decode(read_file(path))
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValueError(f"{name} is not a saved session: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidValueError(f"{name} is not a saved session of format {FORMAT!r}: {shown(content)}")
    summary = content.get("summary")
    return Saved(
        _messages(content.get("messages"), name),
        _messages(content.get("archived", []), name),
        None if summary is None else check_text(summary, "summary"),
    )


def _messages(values: Any, name: str) -> list[Message]:
    if not isinstance(values, list):
        raise InvalidValueError(f"{name} is not a saved session: it holds no list of messages")
    messages = [Message.from_dict(value) for value in values]
    if len({message.id for message in messages}) != len(messages):
        raise InvalidValueError(f"{name} is not a saved session: two of its messages have one id")
    return messages
