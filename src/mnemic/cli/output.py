"""Output of commands: tables, texts, times and JSON, and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from ..checks import printable as printable

WIDTH = 60
"""How many characters of a text a table shows."""


def print_json(value: Any, *, err: bool = False) -> None:
    """Print a value, or several in lists and dicts, as JSON."""
    from msgspec import json

    click.echo(json.format(json.encode(_plain(value)), indent=2), err=err)


def _plain(value: Any) -> Any:
    from ..records import ScopePath, plain

    if hasattr(value, "to_dict") and not isinstance(value, ScopePath):
        return value.to_dict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else plain(value)


def brief(text: str, width: int = WIDTH) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def indented(text: str) -> str:
    """Return a stored text with each line indented."""
    return "\n".join(f"  {line}".rstrip() for line in printable(text).split("\n"))


def time(moment: datetime | None) -> str:
    """Return a time to the minute, in UTC; empty if there is none."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, such as "1 note" or "2,000 notes"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def path(scope: Any) -> str:
    """Return the path of a scope; / is the root."""
    return printable(str(scope)) or "/"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0, 1)) -> Iterator[str]:
    """Yield the lines of a table, columns `left` aligned to the left and the others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows how many of how many are done, on stderr if it is a terminal."""
    bar = click.progressbar(length=0, label=label, file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=20)

    def show(done: int, total: int) -> None:
        bar.length = total
        bar.update(done - bar.pos)

    with bar:
        yield show
