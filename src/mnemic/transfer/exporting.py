"""Exports for people and other programs: a folder of Markdown, CSV, and pandas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import json

from ..checks import check_callable, check_choice, check_extra, check_names
from ..errors import InvalidValueError
from ..event_loop import off_loop
from ..features.export import Exported, FileOrPath, export_file
from ..features.importing import Progress
from ..files import check_path, new_folder, replacing
from ..messages import Message, decode
from ..records import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, RECALLED, SUMMARY, TITLE, Record, ScopePath, Stream, plain
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import Scan, StreamScan

if TYPE_CHECKING:
    import pandas

FORMATS = ("jsonl", "markdown", "csv")
COLUMNS = (
    "scope", "kind", "id", "role", "name", "text", "value", "subject", "predicate", "object", "metadata", "source",
    "importance", "pinned", "tokens", "created", "updated", "expires", "valid_from", "valid_to",
)  # fmt: skip
"""Columns of a table: one row for each message, memory, note, fact, summary and title."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet would run as a formula."""
LONGEST = 80
"""Maximum length of the name of a file, without its suffix."""

_UNSAFE = re.compile(r"[^\w.@+ -]|^\.+|[. ]+$")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(`{3,})", re.MULTILINE)


async def export_any(
    store: Store, scope: ScopePath, path: FileOrPath, format: str, progress: Progress | None
) -> Exported:
    """Export a scope and below in one of the `FORMATS`; raises as `export_file` does."""
    check_callable(progress, "progress")
    if check_choice(format, "format", FORMATS) == "jsonl":
        return await export_file(store, scope, path, progress)
    if format == "csv":
        return await _export_csv(store, scope, path, progress)
    if not isinstance(path, str | PathLike):
        raise InvalidValueError("Markdown is exported to a folder: give its path")
    return await _export_markdown(store, scope, check_path(path), progress)


# ---------------------------------------------------------------- tables


async def to_pandas(store: Store, scope: ScopePath, kinds: Sequence[str] | str | None) -> pandas.DataFrame:
    """Return a table of a scope and below; raises MissingExtraError if pandas is not installed."""
    chosen = RECALLED if kinds is None else check_names(kinds, "kind", RECALLED)
    check_extra("pandas", "to_pandas", "pandas")
    import pandas

    rows = [_row(record) async for record in _records(store, scope, chosen)] if chosen else []
    frame = pandas.DataFrame(rows, columns=list(COLUMNS))
    times = ("created", "updated", "expires", "valid_from", "valid_to")
    return frame.assign(**{name: pandas.to_datetime(frame[name], utc=True) for name in times})


def _row(record: Record) -> dict[str, Any]:
    """Return the cells of a record; those that its kind does not have are missing."""
    row: dict[str, Any] = {name: getattr(record, name) for name in COLUMNS if hasattr(record, name)}
    row |= {"scope": record.scope.path, "id": record.key, "metadata": record.meta, **record.labels}
    if record.kind in (MESSAGE, ARCHIVED):
        message = decode(record)
        row |= {"role": message.role, "name": message.name, "text": message.text, "tokens": record.weight}
    elif record.kind == NOTE:
        row |= {"text": record.title, "value": record.data}
    elif record.kind == TITLE:
        row["text"] = record.title
    return {name: row[name] for name in COLUMNS if name in row}


async def _export_csv(store: Store, scope: ScopePath, path: FileOrPath, progress: Progress | None) -> Exported:
    total = sum([stream.count for stream in await _streams(store, scope)])
    done = 0
    with replacing(path) if isinstance(path, str | PathLike) else nullcontext(path) as file:
        buffer = io.StringIO(newline="")
        rows = csv.writer(buffer)
        rows.writerow(COLUMNS)
        async with aclosing(_records(store, scope, RECALLED)) as records:
            async for record in records:
                row = _row(record)
                rows.writerow([_cell(row.get(name)) for name in COLUMNS])
                done += 1
                if done % 200 == 0:
                    await _flush(buffer, file)
                    if progress is not None:
                        progress(done, max(done, total))
        await _flush(buffer, file)
    if progress is not None:
        progress(done, done)
    return Exported(records=done)


async def _flush(buffer: io.StringIO, file: IO[bytes]) -> None:
    content = buffer.getvalue().encode()
    await off_loop(lambda: file.write(content))
    buffer.seek(0)
    buffer.truncate()


def _cell(value: Any) -> str:
    if value is None or value == {}:
        return ""
    text = value if isinstance(value, str) else value.isoformat() if isinstance(value, datetime) else ""
    if not text and not isinstance(value, str):
        return json.encode(plain(value)).decode()
    return f"'{text}" if text.startswith(FORMULA) else text


# ---------------------------------------------------------------- Markdown


async def _export_markdown(store: Store, scope: ScopePath, folder: Path, progress: Progress | None) -> Exported:
    """Write a folder that is not there yet, or empty: whole, or not at all."""
    by_scope: dict[ScopePath, set[str]] = {}
    total = 0
    for stream in await _streams(store, scope):
        by_scope.setdefault(stream.scope, set()).add(stream.kind)
        total += stream.count
    written = _Folder(store, total, progress)
    with new_folder(folder) as working:
        names = _FileNames(working)
        for where, kinds in by_scope.items():
            below = where.segments[len(scope.segments) :]
            if kinds & {MESSAGE, ARCHIVED}:
                await written.session(names.file(below or ("session",)), where)
            if kinds & {MEMORY, NOTE, FACT}:
                await written.memory(names.file((*below, "memory")), where)
    return Exported(records=written.done)


class _FileNames:
    """Names of files in a folder for scopes: safe on every system, readable, and never the same twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: set[str] = set()

    def file(self, segments: Sequence[str]) -> Path:
        *above, last = [self._safe(name) for name in segments]
        path = self._folder.joinpath(*above, f"{last}.md")
        if str(path).lower() in self._used:
            path = path.with_name(f"{last}-{_digest('/'.join(segments))}.md")
        self._used.add(str(path).lower())
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _safe(self, name: str) -> str:
        safe = _UNSAFE.sub("_", name)[:LONGEST]
        # Another name could become the same.
        return f"{safe}-{_digest(name)}" if safe != name or _RESERVED.fullmatch(name) else safe


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:8]


class _Folder:
    """Writes sessions and memories to files, and counts records."""

    def __init__(self, store: Store, total: int, progress: Progress | None) -> None:
        self._store = store
        self._total = total
        self._progress = progress
        self.done = 0

    async def session(self, path: Path, scope: ScopePath) -> None:
        with path.open("w", encoding="utf-8") as file:
            titles = [record.title async for record in self._of(scope, TITLE)]
            file.write(f"# {titles[0] or scope.name if titles else scope.name}\n")
            async for record in self._of(scope, SUMMARY):
                file.write(f"\n## Summary of what is no longer in the session\n\n{record.text}\n")
            for kind in (ARCHIVED, MESSAGE):
                async for record in self._of(scope, kind):
                    file.write(_shown_message(decode(record)))

    async def memory(self, path: Path, scope: ScopePath) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write(f"# Memory of {scope.path or 'everything'}\n")
            for kind, heading in ((MEMORY, "Memories"), (FACT, "Facts"), (NOTE, "Notes")):
                first = True
                async for record in self._of(scope, kind):
                    if first:
                        file.write(f"\n## {heading}\n\n")
                    file.write(_shown_note(record) if kind == NOTE else _shown_memory(record))
                    first = False

    async def _of(self, scope: ScopePath, kind: str) -> AsyncIterator[Record]:
        async for record in scan_all(self._store, Scan(scope=scope, kinds=(kind,))):
            self.done += 1
            if self._progress is not None and self.done % 200 == 0:
                self._progress(self.done, max(self.done, self._total))
            yield record


def _shown_message(message: Message) -> str:
    name = f" ({message.name})" if message.name else ""
    calls = "".join(f"\n{_fenced(f'{call.name}({call.arguments})')}\n" for call in message.tool_calls)
    text = message.text if message.content or not message.tool_calls else None
    return f"\n## {message.role}{name}, {_time(message.timestamp)}\n" + (f"\n{text}\n" if text else "") + calls


def _shown_memory(record: Record) -> str:
    about = [f"from {_time(record.valid_from)}"] if record.valid_from else []
    about += [f"until {_time(record.valid_to)}"] if record.valid_to else []
    about += [f"importance {record.importance:g}"] if record.importance not in (None, 1) else []
    about += [f"source {record.labels['source']}"] if "source" in record.labels else []
    about += [_time(record.created)] if record.kind == MEMORY else []
    text = (record.text or "").replace("\n", "\n  ")
    return f"- {text}" + (f" *({', '.join(about)})*" if about else "") + "\n"


def _shown_note(record: Record) -> str:
    described = f"*{record.title}*\n\n" if record.title else ""
    if isinstance(record.data, str):
        return f"### {record.key}\n\n{described}{record.data.rstrip()}\n\n"
    value = json.format(json.encode(record.data), indent=2).decode()
    return f"### {record.key}\n\n{described}{_fenced(value, 'json')}\n\n"


def _fenced(text: str, language: str = "") -> str:
    """Return a text as a block of code, whatever it holds."""
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCE.findall(text))])
    return f"{fence}{language}\n{text}\n{fence}"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


async def _streams(store: Store, scope: ScopePath) -> list[Stream]:
    scan = StreamScan(scope=scope, kinds=RECALLED)
    return [stream async for stream in all_streams(store, scan) if stream.count]


def _records(store: Store, scope: ScopePath, kinds: Sequence[str]) -> AsyncGenerator[Record, None]:
    return scan_all(store, Scan(scope=scope, kinds=tuple(kinds), below=True))
