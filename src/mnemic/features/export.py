"""Files: a scope as JSON Lines, lossless, streamed, and validated before writing; a session as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from os import PathLike
from typing import IO, Any, TypeAlias

from msgspec import DecodeError, Struct, ValidationError, field, json

from ..checks import JSON, check_callable, check_text, shown
from ..errors import ConflictError, InvalidValueError
from ..event_loop import off_loop
from ..files import check_path, read_file, reading, replace_file, replacing
from ..messages import Message
from ..recall.index_entry import USE
from ..records import EMBEDDER_KIND, ENCRYPTION_KIND, LEASE, Record, ScopePath, Value, digest
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import Derive, Op, Put, Scan, StreamScan, Touch, Write

FORMAT = "mnemic.export/1"
NOT_EXPORTED = (ENCRYPTION_KIND, EMBEDDER_KIND, LEASE)
"""Internal kinds that are not exported."""
PAGE = 200
"""How many records are read, compared and written at once."""
MAX_LINE = 64 * 1024 * 1024
"""Maximum length of a line in bytes: larger than any record."""

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of records done, and the total."""
FileOrPath: TypeAlias = str | PathLike[str] | IO[bytes]
"""A path, or an open binary file."""


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    scope: str
    exported: datetime


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A record; or, without a key, the time to live of a stream."""

    scope: str
    kind: str
    key: str | None = None
    text: str | None = None
    title: str | None = None
    data: JSON = None
    metadata: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    importance: float | None = None
    weight: int = 0
    pinned: bool = False
    created: datetime | None = None
    expires: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    uses: bytes | None = None
    ttl: timedelta | None = None
    settings: str | None = None


class End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line."""

    records: int


class Exported(Value, frozen=True, kw_only=True):
    """Number of exported records."""

    records: int


class Imported(Value, frozen=True, kw_only=True):
    """Number of records in an import, and how many of them were new or changed."""

    records: int
    written: int


_COPIED = [name for name in Line.__struct_fields__ if name in Record.__struct_fields__ and name != "scope"]
"""Fields that a line and a record have in common."""

_encode = json.Encoder().encode
_header = json.Decoder(Header).decode
_line = json.Decoder(Line).decode
_end = json.Decoder(End).decode


async def export_file(store: Store, scope: ScopePath, path: FileOrPath, progress: Progress | None = None) -> Exported:
    """Write an export of a scope and below to a file, which is replaced atomically.

    A file object is written to directly. Raises StorePermissionError or StoreFullError if it cannot be written.
    """
    _check_file(path, "write")
    check_callable(progress, "progress")
    streams = [s async for s in all_streams(store, StreamScan(scope=scope)) if s.kind not in NOT_EXPORTED]
    done, total = 0, sum(stream.count for stream in streams)
    with replacing(path) if isinstance(path, str | PathLike) else nullcontext(path) as file:

        async def write(lines: Sequence[Struct]) -> None:
            await off_loop(lambda: file.write(b"".join([_encode(line) + b"\n" for line in lines])))
            if progress is not None:
                progress(done, total)

        await write([Header(format=FORMAT, scope=scope.path, exported=store.clock())])
        for stream in streams:
            if stream.ttl is not None or stream.settings is not None:
                await write([Line(scope=stream.scope.path, kind=stream.kind, ttl=stream.ttl, settings=stream.settings)])
            lines: list[Line] = []
            scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE, derived=(USE,))
            async for record in scan_all(store, scan):
                lines.append(_to_line(record))
                done += 1
                if len(lines) == PAGE:
                    await write(lines)
                    lines = []
            if lines:
                await write(lines)
        await write([End(records=done)])
    return Exported(records=done)


async def import_file(
    store: Store, path: FileOrPath, into: ScopePath | None, *, overwrite: bool, progress: Progress | None
) -> Imported:
    """Validate an export, then write its records; existing records are kept.

    They go to their original scopes, or below `into` instead of below the exported scope. Raises InvalidValueError,
    with the line number, if it is not a complete export, ConflictError if a record exists with different content,
    unless `overwrite` is true.
    """
    check_callable(progress, "progress")
    with _open_input(path) as file:
        start = file.tell()
        total = await off_loop(lambda: _check_export(file))
        file.seek(start)
        return await _import_lines(store, file, into, total, overwrite, progress)


def check_export_file(path: str | PathLike[str]) -> None:
    """Read an export through; raises as `import_file` does, and NotFoundError if there is no such file."""
    with reading(path) as file:
        _check_export(file)


def _check_export(file: IO[bytes]) -> int:
    """Validate an export from the current file position; return the number of records."""
    return sum(line.key is not None for _, line in _parsed(file))


def _check_file(given: FileOrPath, method: str) -> None:
    """Raise InvalidValueError for what is neither a path nor an open file."""
    if not hasattr(given, method):
        check_path(given)


@contextmanager
def _open_input(path: FileOrPath) -> Iterator[IO[bytes]]:
    """Open the import file; input that cannot be read twice, such as a pipe, is copied to a temporary file."""
    _check_file(path, "read")
    if isinstance(path, str | PathLike):
        with reading(path) as file:
            yield file
    elif path.seekable():
        yield path
    else:
        from shutil import copyfileobj
        from tempfile import TemporaryFile

        with TemporaryFile() as spooled:
            copyfileobj(path, spooled)
            spooled.seek(0)
            yield spooled


async def _import_lines(
    store: Store, file: IO[bytes], into: ScopePath | None, total: int, overwrite: bool, progress: Progress | None
) -> Imported:
    records = written = 0
    batch: list[tuple[Record, bytes | None]] = []
    settings: list[Touch] = []

    async def flush() -> None:
        nonlocal written
        written += await _store_batch(store, batch, overwrite)
        batch.clear()
        if progress is not None:
            progress(records, total)

    for header, line in _parsed(file):
        scope = ScopePath(line.scope) if into is None else _moved(line.scope, header.scope, into)
        if line.key is None:
            settings.append(Touch(scope, line.kind, line.ttl, line.settings))
            continue
        if batch and (len(batch) == PAGE or batch[0][0].scope != scope):
            await flush()
        batch.append((_to_record(line, scope), line.uses))
        records += 1
    await flush()
    for op in settings:
        await store.write(Write((op,)))
    return Imported(records=records, written=written)


async def _store_batch(store: Store, batch: list[tuple[Record, bytes | None]], overwrite: bool) -> int:
    """Write the missing records of one scope; return how many."""
    ops: list[Op] = []
    count = 0
    stored = await store.read([record.ref for record, _ in batch])
    for (record, uses), old in zip(batch, stored, strict=True):
        if old is not None and digest(old) == digest(record):
            continue
        if old is not None and not overwrite:
            raise ConflictError(
                f"{record.kind} {shown(record.key)} of scope {record.scope.path!r} exists with different content: "
                "import with overwrite to replace it",
                key=record.key,
                current=old.version,
            )
        ops.append(Put(record, old.version if old is not None else 0))
        if uses is not None:
            ops.append(Derive(record.ref, USE, uses))
        count += 1
    if ops:
        await store.write(Write(tuple(ops), lazy=True))
    return count


def _parsed(file: IO[bytes]) -> Iterator[tuple[Header, Line]]:
    """Yield each line with the header; raises InvalidValueError with the number of an invalid line."""
    header: Header | None = None
    count = 0
    ended = False
    for number, text in _lines(file):
        if ended:
            raise InvalidValueError(f"line {number:,}: an export ends with its count, but here it goes on")
        try:
            if header is None:
                header = _header(text)
                if header.format != FORMAT:
                    raise InvalidValueError(f"the format is {shown(header.format)}, not {FORMAT!r}")
                continue
            if text.startswith(b'{"records":'):
                ended = True
                if (expected := _end(text).records) != count:
                    raise InvalidValueError(f"{expected:,} records were exported, {count:,} are here")
                continue
            line = _line(text)
            if line.key is not None:
                count += 1
                Put(_to_record(line, ScopePath(line.scope)))
        except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValueError(f"line {number:,} is not a line of {FORMAT!r}: {error}") from None
        except InvalidValueError as error:
            raise InvalidValueError(f"line {number:,}: {error}") from None
        yield header, line
    if not ended:
        raise InvalidValueError("the file is not a complete export: its last line, the count, is missing")


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    while text := file.readline(MAX_LINE + 1):
        number += 1
        if len(text) > MAX_LINE:
            raise InvalidValueError(f"line {number:,} is longer than {MAX_LINE:,} bytes")
        if text.strip():
            yield number, text


def _moved(path: str, exported: str, into: ScopePath) -> ScopePath:
    below, above = ScopePath(path).segments, ScopePath(exported).segments
    if below[: len(above)] != above:
        raise InvalidValueError(f"scope {shown(path)} is not below the exported scope {shown(exported)}")
    return ScopePath.of(into, *below[len(above) :])


def _to_line(record: Record) -> Line:
    fields: dict[str, Any] = {name: getattr(record, name) for name in _COPIED}
    return Line(scope=record.scope.path, metadata=record.meta, uses=record.derived.get(USE), **fields)


def _to_record(line: Line, scope: ScopePath) -> Record:
    fields: dict[str, Any] = {name: getattr(line, name) for name in _COPIED}
    return Record(scope=scope, meta=line.metadata, **fields)


# ---------------------------------------------------------------- a session as JSON

SESSION_FORMAT = "mnemic.session/1"


class Saved(Struct, frozen=True):
    """A saved session."""

    messages: list[Message]
    archived: list[Message]
    summary: str | None


def write_session(path: str | PathLike[str], saved: Saved) -> None:
    """Write a session to a file, which is replaced atomically; raises a StoreError."""
    content = {
        "format": SESSION_FORMAT,
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
    if not isinstance(content, dict) or content.get("format") != SESSION_FORMAT:
        raise InvalidValueError(f"{name} is not a saved session of format {SESSION_FORMAT!r}: {shown(content)}")
    summary = content.get("summary")
    return Saved(
        _saved_messages(content.get("messages"), name),
        _saved_messages(content.get("archived", []), name),
        None if summary is None else check_text(summary, "summary"),
    )


def _saved_messages(values: Any, name: str) -> list[Message]:
    if not isinstance(values, list):
        raise InvalidValueError(f"{name} is not a saved session: it holds no list of messages")
    messages = [Message.from_dict(value) for value in values]
    if len({message.id for message in messages}) != len(messages):
        raise InvalidValueError(f"{name} is not a saved session: two of its messages have one id")
    return messages
