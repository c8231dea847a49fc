"""Reads Markdown files as notes: the path of a file is the key, its first heading the description."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from ..checks import MAX_SIZE
from ..errors import InvalidValueError
from .inputs import Input
from .items import Item, Left, Noted

SUFFIXES = (".md", ".markdown")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


def read_markdown(whole: Input) -> Iterator[Item]:
    """Yield a note for each file; raises InvalidValueError for one that is not UTF-8 or too large."""
    for part in whole.parts:
        with whole.opened(part) as file:
            content = file.read(4 * MAX_SIZE + 1)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidValueError(f"{part.name}: the text is not UTF-8: {error.reason}") from None
        if not text.strip():
            yield Left("an empty file", part.name)
            continue
        key = next((part.name[: -len(end)] for end in SUFFIXES if part.name.lower().endswith(end)), part.name)
        heading = _HEADING.search(text)
        changed = None if part.changed is None else datetime.fromtimestamp(part.changed, UTC)
        yield Noted(key, text, heading[1] if heading else None, {"source": "markdown"}, changed)
