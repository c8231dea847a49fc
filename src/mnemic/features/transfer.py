"""Conversations as JSON files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import DecodeError, json

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from ..files import replace_file
from ..records import Message

FORMAT = "mnemic.session/1"


def write_messages(path: str | PathLike[str], messages: Sequence[Message]) -> None:
    """Write messages to a file, which is replaced whole or not at all."""
    content = {"format": FORMAT, "messages": [message.to_dict() for message in messages]}
    replace_file(path, json.format(json.encode(content), indent=1))


def read_messages(path: str | PathLike[str]) -> list[Message]:
    """Return the messages of a file; raises NotFoundError, or InvalidValueError if it is not one of ours."""
    name = os.fspath(path)
    try:
        content: Any = json.decode(Path(path).read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {name}") from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{name} is not a saved session: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidValueError(f"{name} is not a saved session of format {FORMAT!r}: {shown(content)}")
    return [Message.from_dict(value) for value in content.get("messages", ())]
