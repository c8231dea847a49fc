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

from ..checks import check_callable, check_choice, check_extra, check_names, printable
from ..errors import InvalidValueError
from ..event_loop import off_loop
from ..features.export import Exported, FileOrPath, export_file
from ..features.record_import import Progress
from ..files import check_path, new_folder, replacing
from ..messages import decode, turn_order
from ..records import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, RECALLED, SUMMARY, TITLE, Record, ScopePath, Stream, plain
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import Scan, StreamScan

if TYPE_CHECKING:
    import pandas

FORMATS = ("jsonl", "markdown", "csv")
COLUMNS = (
    "scope", "kind", "id", "role", "name", "text", "value", "tool_calls", "tool_call_id", "agent_calls", "images",
    "structured_data", "subject", "predicate", "object", "confidence", "metadata", "source", "importance", "pinned",
    "tokens", "created", "updated", "expires", "valid_from", "valid_to",
)  # fmt: skip
"""Columns of a table: one row for each message, memory, note, fact, summary and title."""
JSON_COLUMNS = frozenset(("value", "tool_calls", "agent_calls", "images", "structured_data", "metadata"))
"""Columns whose cells are JSON in CSV; an empty cell is none."""
QUOTED = ("=", "+", "-", "@", "\t", "\r", "'")
"""Beginnings of a text that a spreadsheet would run as a formula, and the apostrophe that is put before one."""
LONGEST = 80
"""Maximum length of the name of a file, without its suffix."""
LONGEST_WORD = 1000
"""Maximum length of a text without spaces in Markdown, such as an image in a data URL."""

_UNSAFE = re.compile(r"[^\w.@+ -]|^\.+|[. ]+$")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_TICKS = re.compile("`+")
_MARKUP = re.compile(r"[\\`*<>\[\]]|&(?=#?\w+;)")
"""Characters in a name that Markdown would not show as they are."""


async def export_any(
    store: Store, scope: ScopePath, path: FileOrPath, format: str | None, progress: Progress | None
) -> Exported:
    """Export a scope and below in one of the `FORMATS`; raises as `export_file` does."""
    check_callable(progress, "progress")
    format = format_of(path) if format is None else check_choice(format, "format", FORMATS)
    if format == "jsonl":
        return await export_file(store, scope, path, progress)
    if format == "csv":
        return await _export_csv(store, scope, path, progress)
    if not isinstance(path, str | PathLike):
        raise InvalidValueError("Markdown is exported to a folder: give its path")
    return await _export_markdown(store, scope, check_path(path), progress)


def format_of(path: FileOrPath) -> str:
    """Return the format that the name of a file tells; raises InvalidValueError if it tells none."""
    if not isinstance(path, str | PathLike):
        return "jsonl"
    suffix = check_path(path).suffix.lower()
    if suffix not in (".jsonl", ".csv"):
        raise InvalidValueError(f"{path} ends in neither .jsonl nor .csv: give the format, {', '.join(FORMATS)}")
    return suffix[1:]


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
    data: Any = record.data
    if record.kind in (MESSAGE, ARCHIVED):
        message = decode(record)
        fields = message.to_dict()
        row |= {name: value for name in COLUMNS if (value := fields.get(name)) not in (None, [])}
        row |= {"text": message.text, "tokens": record.weight}
        if not isinstance(message.content, str):
            row["value"] = message.content
    elif record.kind == NOTE:
        row |= {"text": record.title, "value": data}
    elif record.kind == MEMORY and data is not None:
        row["value"] = data
    elif record.kind == FACT:
        row["confidence"] = data["confidence"]
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
                rows.writerow([_cell(name, row) for name in COLUMNS])
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


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row.get(name)
    if name in JSON_COLUMNS and name in row and (value or name != "metadata"):
        return json.encode(plain(value)).decode()
    if isinstance(value, str):
        return f"'{value}" if value.startswith(QUOTED) else value
    if value is None or name == "metadata":
        return ""
    return value.isoformat() if isinstance(value, datetime) else json.encode(value).decode()


# ---------------------------------------------------------------- Markdown


async def _export_markdown(store: Store, scope: ScopePath, folder: Path, progress: Progress | None) -> Exported:
    """Write a folder that is not there yet, or empty: whole, or not at all."""
    by_scope: dict[ScopePath, dict[str, Stream]] = {}
    total = 0
    for stream in await _streams(store, scope):
        by_scope.setdefault(stream.scope, {})[stream.kind] = stream
        total += stream.count
    written = _Folder(store, total, progress)
    with new_folder(folder) as working:
        names = _FileNames(working)
        for where, kinds in by_scope.items():
            below = where.segments[len(scope.segments) :]
            if kinds.keys() & {MESSAGE, ARCHIVED}:
                expires = kinds[MESSAGE].expires if MESSAGE in kinds else None
                await written.session(names.file(below or ("session",)), where, expires)
            if kinds.keys() & {MEMORY, NOTE, FACT}:
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

    async def session(self, path: Path, scope: ScopePath, expires: datetime | None) -> None:
        with path.open("w", encoding="utf-8") as file:
            titles = [record.title async for record in self._of(scope, TITLE)]
            ends = f", expires {_time(expires)}" if expires else ""
            title = _inline(titles[0] or scope.name if titles else scope.name)
            file.write(f"# {title}\n\n{_code(scope.path)}{ends}\n")
            async for record in self._of(scope, SUMMARY):
                file.write(f"\n## Summary of what is no longer in the session\n\n{_quoted(record.text or '')}\n")
            async for record in self._turns(scope):
                file.write(_shown_message(record))

    async def _turns(self, scope: ScopePath) -> AsyncIterator[Record]:
        """Yield the messages of a session and of its archive, in the order of their times."""
        archive, live = self._of(scope, ARCHIVED), self._of(scope, MESSAGE)
        old, new = await anext(archive, None), await anext(live, None)
        while old is not None or new is not None:
            if old is None or (new is not None and _turn(new) < _turn(old)):
                assert new is not None
                yield new
                new = await anext(live, None)
            else:
                yield old
                old = await anext(archive, None)

    async def memory(self, path: Path, scope: ScopePath) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write(f"# Memory of {_code(scope.path) if scope.path else 'everything'}\n")
            shown = ((MEMORY, "Memories", _shown_memory), (FACT, "Facts", _shown_fact), (NOTE, "Notes", _shown_note))
            for kind, heading, show in shown:
                first = True
                async for record in self._of(scope, kind):
                    file.write(f"\n## {heading}\n{show(record)}" if first else show(record))
                    first = False

    async def _of(self, scope: ScopePath, kind: str) -> AsyncGenerator[Record, None]:
        async for record in scan_all(self._store, Scan(scope=scope, kinds=(kind,))):
            self.done += 1
            if self._progress is not None and self.done % 200 == 0:
                self._progress(self.done, max(self.done, self._total))
            yield record


def _turn(record: Record) -> tuple[Any, ...]:
    return turn_order(record.key, record.created, record.pinned)


def _shown_message(record: Record) -> str:
    message = decode(record)
    name = f" ({_inline(message.name)})" if message.name else ""
    mark = ", archived" if record.kind == ARCHIVED else ""
    content = message.content
    parts = [f"## {message.role}{name}, {_time(message.timestamp)}{mark}"]
    parts += [_shown_block(block) for block in (content if isinstance(content, list) else [content])]
    for call in message.tool_calls:
        parts.append(f"Tool call {_code(call.id)}:\n\n{_fenced(f'{call.name}({call.arguments})')}")
    parts += [f"Call of the agent {_code(one.agent_name)}:\n\n{_json(one.request)}" for one in message.agent_calls]
    parts += [f"Structured data:\n\n{_json(message.structured_data)}"] if message.structured_data is not None else []
    about = [f"result of {_code(message.tool_call_id)}"] if message.tool_call_id else []
    about += [f"image {_code(_short(image))}" for image in message.images]
    return "".join(f"\n{part}\n" for part in [*parts, _details(record, about)] if part)


def _shown_block(block: Any) -> str:
    """Return a part of the content of a message: texts are quoted, others are JSON."""
    if isinstance(block, dict) and block.keys() == {"type", "text"} and isinstance(block["text"], str):
        block = block["text"]
    if block is None:
        return ""
    return _quoted(block) if isinstance(block, str) else _json(block)


def _shown_memory(record: Record) -> str:
    data = f"Data:\n\n{_json(record.data)}" if record.data is not None else ""
    parts = [f"### {_code(record.key)}, {_time(record.created)}", _quoted(record.text or ""), data, _details(record)]
    return "".join(f"\n{part}\n" for part in parts if part)


def _shown_fact(record: Record) -> str:
    named = record.labels
    data: Any = record.data
    sure = f"confidence {data['confidence']:g}"
    details = _details(record, [] if data["confidence"] == 1 else [sure]).replace("\n", "\n  ")
    fact = f"- **{_inline(named['subject'])}** {_inline(named['predicate'])} **{_inline(named['object'])}**"
    return f"\n{fact}\n  {details}\n" if details else f"\n{fact}\n"


def _shown_note(record: Record) -> str:
    value = _quoted(record.data) if isinstance(record.data, str) else _json(record.data)
    about = [f"description {_code(record.title)}"] if record.title else []
    parts = [f"### {_code(record.key)}, {_time(record.updated)}", value, _details(record, about)]
    return "".join(f"\n{part}\n" for part in parts if part)


def _details(record: Record, first: Sequence[str] = ()) -> str:
    """Return the other fields of a record, as a list."""
    details = list(first)
    if record.importance not in (None, 1):
        details.append(f"importance {record.importance:g}")
    if record.pinned and record.kind not in (MESSAGE, ARCHIVED):
        details.append("pinned")
    times = (("from", record.valid_from), ("until", record.valid_to), ("expires", record.expires))
    details += [f"{word} {_time(moment)}" for word, moment in times if moment is not None]
    if "source" in record.labels:
        details.append(f"source {_code(record.labels['source'])}")
    if record.meta:
        details.append(f"metadata {_code(json.encode(plain(_short(record.meta))).decode())}")
    return "\n".join(f"- {one}" for one in details)


def _quoted(text: str) -> str:
    """Return a text as a block quote, so that whatever it holds ends where it ends."""
    return "\n".join(f"> {line}".rstrip() for line in _safe(text).split("\n"))


def _json(value: Any) -> str:
    return _fenced(json.format(json.encode(plain(_short(value))), indent=2).decode(), "json")


def _fenced(text: str, language: str = "") -> str:
    """Return a text as a block of code, with a longer fence than any in it."""
    fence = "`" * max(3, _ticks(text) + 1)
    return f"{fence}{language}\n{_safe(text)}\n{fence}"


def _code(text: str) -> str:
    """Return a text on one line as code."""
    line = " ".join(_safe(text).split())
    fence = "`" * (_ticks(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def _inline(text: str) -> str:
    """Return a name or a title on one line, without markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(_safe(text).split()))


def _ticks(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)


def _safe(text: str) -> str:
    return printable(text).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _short(value: Any) -> Any:
    """Return a JSON value with long data, such as an image in a data URL, cut."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, str) and len(value) > LONGEST_WORD and len(value.split(maxsplit=1)) == 1:
        return f"{value[:40]}… ({len(value):,} characters)"
    return value


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


async def _streams(store: Store, scope: ScopePath) -> list[Stream]:
    scan = StreamScan(scope=scope, kinds=RECALLED)
    return [stream async for stream in all_streams(store, scan) if stream.count]


def _records(store: Store, scope: ScopePath, kinds: Sequence[str]) -> AsyncGenerator[Record, None]:
    return scan_all(store, Scan(scope=scope, kinds=tuple(kinds), below=True))
