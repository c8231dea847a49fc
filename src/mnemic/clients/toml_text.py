"""Adds and removes a table of a TOML file as text, so that everything else keeps its bytes."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from ..errors import InvalidValueError


def parse(text: str) -> dict[str, Any]:
    """Return a document's value; raises InvalidValueError, with the line, if it is not TOML."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise InvalidValueError(str(error)) from None


def set_table(text: str, path: tuple[str, ...], values: dict[str, Any]) -> str:
    """Return the document with a table of these values, in place of the old one or at the end."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{'.'.join(path)}]", *(f"{name} = {_written(value)}" for name, value in values.items())]
    block = newline.join(lines) + newline
    if (span := _span(text, path)) is not None:
        return text[: span[0]] + block + text[span[1] :]
    start = text if not text or text.endswith("\n") else text + newline
    return f"{start}{newline if text.strip() else ''}{block}"


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """Return the document without a table and the tables within it; the empty line before each goes too."""
    while (span := _span(text, path) or _span(text, path, within=True)) is not None:
        before = text[: span[0]]
        shorter = re.sub(r"(^|(?<=\n))\r?\n\Z", "", before)
        text = shorter + text[span[1] :]
    return text


def has_table(text: str, path: tuple[str, ...]) -> bool:
    """Return whether a table has a header of its own."""
    return _span(text, path) is not None


def _span(text: str, path: tuple[str, ...], within: bool = False) -> tuple[int, int] | None:
    """Return where a table or one within it is: its header, and the lines up to an empty one, a comment or a header."""
    names = r"\s*\.\s*".join(rf'(?:{re.escape(name)}|"{re.escape(name)}")' for name in path)
    names += r"\s*\.[^\]\r\n]+" if within else ""
    found = re.search(
        rf"^[ \t]*\[\s*{names}\s*\][^\r\n]*(?:\r?\n|\Z)(?:[ \t]*[^\s#\[][^\r\n]*(?:\r?\n|\Z))*", text, re.MULTILINE
    )
    return None if found is None else found.span()


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_written(item)}' for name, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
