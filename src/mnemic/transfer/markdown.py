"""Reads Markdown files as notes: the path of a file is the key, its title or first heading the description."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from ..checks import MAX_SIZE
from .inputs import Input
from .items import REPLACED, Item, NoteItem, SkippedItem
from .json_stream import clean_text

SUFFIXES = (".md", ".markdown")
_HEADING = re.compile(r"#{1,6}\s+(.+?)\s*#*\s*")
_TITLE = re.compile(r"""title:\s*(["']?)(.+?)\1\s*""")


def read_markdown(whole: Input) -> Iterator[Item]:
    """Yield a note for each file; raises TooLargeError for one that is too large."""
    for part in whole.parts:
        with whole.opened(part) as file:
            content = file.read(4 * MAX_SIZE + 1)
        try:
            given = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            yield SkippedItem("a file that is not UTF-8", part.name)
            continue
        if not given.strip():
            yield SkippedItem("an empty file", part.name)
            continue
        if (text := clean_text(given)) != given:
            yield SkippedItem(REPLACED, part.name)
        key = next((part.name[: -len(end)] for end in SUFFIXES if part.name.lower().endswith(end)), part.name)
        changed = None if part.changed is None else datetime.fromtimestamp(part.changed, UTC)
        yield NoteItem(key, text, _description(text), {"source": "markdown"}, changed)


def _description(text: str) -> str | None:
    """Return the title in the front matter, or else the first heading outside of code."""
    lines = text.splitlines()
    start = 0
    if lines[0].rstrip() == "---":
        start = next((n for n, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "...")), 0)
        if title := next((found for line in lines[1:start] if (found := _TITLE.fullmatch(line))), None):
            return title[2]
    fence = ""
    for line in lines[start:]:
        begins = line.lstrip()[:3]
        if fence:
            fence = "" if begins == fence else fence
        elif begins in ("```", "~~~"):
            fence = begins
        elif heading := _HEADING.fullmatch(line):
            return heading[1]
    return None
