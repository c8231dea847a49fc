"""Files: a scope as JSON Lines, lossless, streamed, and validated before writing; a session as JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from os import SEEK_END, PathLike
from typing import IO, Any, TypeAlias

from msgspec import NODEFAULT, DecodeError, Struct, ValidationError, defstruct, field, json
from msgspec.structs import FieldInfo, astuple, fields

from ..checks import check_callable, check_kind, check_text, shown
from ..errors import InvalidValueError
from ..event_loop import off_loop
from ..files import check_path, reading, replacing
from ..messages import Message
from ..recall.index_entry import USE
from ..records import Record, ScopePath, Stream, Value
from ..store.protocol import Store, all_streams, scan_pages
from ..store.query import Scan, StreamScan, Touch
from .record_import import (
    INTERNAL,
    Imported,
    ImportSource,
    Incoming,
    IncomingRecord,
    Progress,
    SkipReport,
    check_contents,
    check_settings,
    import_records,
)

FORMAT = "mnemic.export/1"
PAGE = 200
"""How many records are read at once."""
MAX_LINE = 64 * 1024 * 1024
"""Maximum length of a line in bytes: larger than any record."""

FileOrPath: TypeAlias = str | PathLike[str] | IO[bytes]
"""A path, or an open binary file."""


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    scope: str
    exported: datetime


def _line_field(one: FieldInfo) -> Any:
    if one.required:
        return (one.name, str) if one.name != "key" else (one.name, str | None, None)
    default = field(default_factory=one.default_factory) if one.default is NODEFAULT else one.default
    return (one.name, one.type, default)


_LAST = Record.__struct_fields__.index("derived")
Line: Any = defstruct(
    "Line",
    [
        *map(_line_field, fields(Record)[:_LAST]),
        ("uses", bytes | None, None),
        ("ttl", timedelta | None, None),
        ("settings", str | None, None),
    ],
    rename={"meta": "metadata"},
    omit_defaults=True,
    forbid_unknown_fields=True,
)
"""A record, with its stored uses; or, without a key, the time to live, settings and times of a stream."""


class End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line."""

    records: int


class Exported(Value, frozen=True, kw_only=True):
    """Number of exported records."""

    records: int


class SubjectExport(Value, frozen=True, kw_only=True):
    """Number of records of a subject, of records derived elsewhere, of audit log entries and of earlier versions.

    `unreadable` names damaged records that were left out, and may be derived from the data of the subject.
    """

    records: int
    elsewhere: int
    audit: int
    versions: int = 0
    unreadable: list[str] = field(default_factory=list)


_encode = json.Encoder().encode
_header = json.Decoder(Header).decode
_line: Callable[[bytes], Any] = json.Decoder(Line).decode
_end = json.Decoder(End).decode


async def export_file(store: Store, scope: ScopePath, path: FileOrPath, progress: Progress | None = None) -> Exported:
    """Write an export of a scope and below to a file, which is replaced atomically.

    A file object is written to directly. Raises StorePermissionError or StoreFullError if it cannot be written.
    """
    _check_file(path, "write")
    check_callable(progress, "progress")
    done = 0
    with replacing(path) if isinstance(path, str | PathLike) else nullcontext(path) as file:
        async for lines, done, total in export_lines(store, scope):
            await off_loop(partial(file.write, lines))
            if progress is not None:
                progress(done, total)
    return Exported(records=done)


async def export_lines(store: Store, scope: ScopePath) -> AsyncGenerator[tuple[bytes, int, int], None]:
    """Yield an export of a scope and below in parts: some lines, how many records are done, and the total."""
    streams = [s async for s in all_streams(store, StreamScan(scope=scope, empty=True)) if _exported(s, store.clock())]
    done, total = 0, sum(stream.count for stream in streams)
    yield _joined([Header(format=FORMAT, scope=scope.path, exported=store.clock())]), done, total
    for stream in streams:
        lines = [_stream_line(stream)]
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE, derived=(USE,))
        async for page in scan_pages(store, scan):
            done += len(page)
            yield _joined([*lines, *map(_to_line, page)]), done, total
            lines = []
        if lines:
            yield _joined(lines), done, total
    yield _joined([End(records=done)]), done, total


def _joined(lines: Sequence[Struct]) -> bytes:
    return b"".join([_encode(line) + b"\n" for line in lines])


async def import_file(
    store: Store,
    path: FileOrPath,
    into: ScopePath | None,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Validate an export, then write its records; existing records are kept.

    They go to their original scopes, or below `into` instead of below the exported scope. With `dry_run` nothing is
    written. Raises InvalidValueError, with the line number, if it is not a complete export, ConflictError if a record
    exists with different content, unless `overwrite` is true; then nothing is written.
    """
    check_callable(progress, "progress")
    with open_input(path) as file:
        start = file.tell()

        def read(weighed: bool) -> Iterator[Incoming]:
            file.seek(start)
            return _incoming(file, into)

        source = ImportSource(read, lambda: file.tell() - start, file.seek(0, SEEK_END) - start)
        return await import_records(
            store,
            into or ScopePath(),
            source,
            SkipReport(),
            foreign=False,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )


def _check_file(given: FileOrPath, method: str) -> None:
    """Raise InvalidValueError for what is neither a path nor an open file."""
    if not hasattr(given, method):
        check_path(given)


@contextmanager
def open_input(path: FileOrPath) -> Iterator[IO[bytes]]:
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


def _incoming(file: IO[bytes], into: ScopePath | None) -> Iterator[Incoming]:
    """Yield what an export holds; raises InvalidValueError with the number of an invalid line."""
    header: Header | None = None
    count = 0
    ended = False
    path, scope = "", ScopePath() if into is None else into
    for number, text in numbered_lines(file):
        if ended:
            raise InvalidValueError(f"line {number:,}: an export ends with its count, but here it goes on")
        try:
            if header is None:
                header = _header(text)
                if header.format != FORMAT:
                    raise InvalidValueError(f"the format is {shown(header.format)}, not {FORMAT!r}")
                path = header.scope
                scope = ScopePath(path) if into is None else into
                continue
            if text.startswith(b'{"records":'):
                ended = True
                if (expected := _end(text).records) != count:
                    raise InvalidValueError(f"{expected:,} records were exported, {count:,} are here")
                continue
            line = _line(text)
            if line.kind in INTERNAL:
                raise InvalidValueError(f"records of the kind {line.kind!r} belong to a store, and are not imported")
            if line.scope != path:
                path = line.scope
                scope = ScopePath(path) if into is None else _moved(path, header.scope, into)
            touch = None
            if line.key is None:
                touch = Touch(scope, check_kind(line.kind), line.ttl, line.settings, line.created, line.updated)
                check_settings(touch)
            else:
                record = Record(scope, *astuple(line)[1:_LAST])
                check_contents(record)
        except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValueError(f"line {number:,} is not a line of {FORMAT!r}: {error}") from None
        except InvalidValueError as error:
            raise InvalidValueError(f"line {number:,}: {error}") from None
        if touch is not None:
            yield touch
        else:
            count += 1
            yield IncomingRecord(record, line.uses, number)
    if not ended:
        raise InvalidValueError("the file is not a complete export: its last line, the count, is missing")


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, each with its number; raises InvalidValueError for one that is too long."""
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


def _to_line(record: Record) -> Any:
    # The position and version of a record belong to its store.
    _, kind, key, _, _, *rest = astuple(record)[:_LAST]
    return Line(record.scope.path, kind, key, 0, 0, *rest, uses=record.derived.get(USE))


def _exported(stream: Stream, moment: datetime) -> bool:
    """Return whether a stream has records, or settings that its next records will have."""
    lasting = stream.settings is not None and (stream.expires is None or stream.expires > moment)
    return stream.kind not in INTERNAL and (stream.count > 0 or lasting)


def _stream_line(stream: Stream) -> Any:
    return Line(
        stream.scope.path,
        stream.kind,
        created=stream.created,
        updated=stream.updated,
        ttl=stream.ttl,
        settings=stream.settings,
    )


# ---------------------------------------------------------------- a session as JSON

SESSION_FORMAT = "mnemic.session/1"


class Saved(Struct, frozen=True):
    """A saved session."""

    messages: list[Message]
    archived: list[Message]
    summary: str | None


def session_file(saved: Saved) -> bytes:
    """Return the content of the file of a saved session."""
    content = {
        "format": SESSION_FORMAT,
        "messages": [message.to_dict() for message in saved.messages],
        "archived": [message.to_dict() for message in saved.archived],
        "summary": saved.summary,
    }
    return json.format(json.encode(content), indent=1)


def read_session(stored: bytes, name: str) -> Saved:
    """Return the saved session that a file of this name holds; raises InvalidValueError if it is invalid."""
    try:
        content: Any = json.decode(stored)
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
