"""Input of an import: a file, the chats in a .zip, or the files of a folder; each part can be read several times."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple, cast

from msgspec import Struct, field

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from ..features.export import FileOrPath, numbered_lines, open_input
from ..files import check_path, files_below, is_folder, reading
from .json_stream import JsonStream

MAX_NAME = 100
"""How many characters of a file's name are the name of a session."""
MOST_DENSE = 200
"""How many times its compressed size a file in a .zip may have: text has 5 to 20."""
SMALL = 16 * 1024 * 1024
"""Up to this size a file in a .zip may be as dense as it likes."""
CONVERSATIONS = re.compile(r"(.*/)?conversations(-\d+)?\.json")
"""Where ChatGPT and Claude put conversations."""


class Part(NamedTuple):
    """A file to read: its name relative to what is imported, its size, and how it is opened from its beginning."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]
    changed: float | None = None
    """When the file was last changed, in seconds since 1970, if known."""


class Input(Struct):
    """Input of an import: its name, the parts to read, and the names of those that are left out."""

    name: str
    parts: list[Part]
    left_out: list[str] = field(default_factory=list)
    folder: bool = False
    file: IO[bytes] | None = None
    """The file itself, at its beginning, if it is one file."""
    read: int = 0
    """How many bytes were read since the last `rewind`."""
    start: int = 0
    place: str = ""
    """Where the reader is, in words that begin an error."""
    replaced: list[str] = field(default_factory=list)
    """Where characters were replaced that cannot be stored."""

    @property
    def size(self) -> int:
        """Number of bytes of all parts."""
        return sum(part.size for part in self.parts)

    def rewind(self) -> None:
        """Begin to count again what is read."""
        self.read = 0
        self.replaced.clear()
        if self.file is not None:
            self.file.seek(self.start)

    @contextmanager
    def at(self, part: Part, place: str) -> Iterator[None]:
        """Say where the reader is meanwhile."""
        before = self.place
        self.place = f"{part.name}: {place}" if len(self.parts) > 1 else place
        yield
        self.place = before

    def note_replaced(self, stream: JsonStream) -> None:
        """Note where the reader is if the last value of a stream had characters that cannot be stored."""
        if stream.replaced:
            self.replaced.append(self.place.removesuffix(": "))

    @contextmanager
    def opened(self, part: Part) -> Iterator[IO[bytes]]:
        """Open a part; what is read from it is counted. Raises InvalidValueError if a .zip is damaged."""
        try:
            with part.open() as file:
                yield cast("IO[bytes]", _Counted(file, self))
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
            if isinstance(error, RecursionError):
                raise
            raise InvalidValueError(f"{part.name} cannot be read from the archive: {error}") from None


class _Counted:
    def __init__(self, file: IO[bytes], whole: Input) -> None:
        self._file = file
        self._whole = whole

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._whole.read += len(content)
        return content

    def readline(self, size: int = -1) -> bytes:
        content = self._file.readline(size)
        self._whole.read += len(content)
        return content


@contextmanager
def opened_input(path: FileOrPath) -> Iterator[Input]:
    """Open a file, a .zip, a folder, or an open binary file.

    Raises NotFoundError, StorePermissionError, or InvalidValueError for an archive that could do harm.
    """
    if path == "":
        raise InvalidValueError("the path of what is imported is empty")
    if isinstance(path, str | PathLike) and is_folder(check_path(path)):
        yield _folder(Path(path))
        return
    with ExitStack() as stack:
        file = stack.enter_context(open_input(path))
        name = Path(path).name if isinstance(path, str | PathLike) else "stdin"
        start = file.tell()
        begins = file.read(4)
        size = file.seek(0, os.SEEK_END) - start
        file.seek(start)
        if begins.startswith(b"\x1f\x8b"):
            raise InvalidValueError(f"{name} is compressed by gzip: unpack it first")
        if begins == b"PK\x03\x04":
            yield _archive(name, file)
            return

        def from_start() -> IO[bytes]:
            file.seek(start)
            return cast("IO[bytes]", _Borrowed(file))

        yield Input(name, [Part(name, size, from_start)], file=file, start=start)


class _Borrowed:
    """A file that stays open."""

    def __init__(self, file: IO[bytes]) -> None:
        self.read = file.read
        self.readline = file.readline

    def __enter__(self) -> _Borrowed:
        return self

    def __exit__(self, *error: object) -> None: ...


def _archive(name: str, file: IO[bytes]) -> Input:
    try:
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise InvalidValueError(f"the file is not a .zip that can be read: {error}") from None
    for one in members:
        _check_member(one)
    wanted = sorted((m for m in members if CONVERSATIONS.fullmatch(m.filename)), key=lambda one: one.filename)
    if not wanted:
        raise NotFoundError("the archive has no conversations.json, as the exports of ChatGPT and Claude have")

    def opening(member: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        return lambda: archive.open(member)

    parts = [Part(one.filename, one.file_size, opening(one)) for one in wanted]
    return Input(name, parts, [one.filename for one in members if one not in wanted and not one.is_dir()])


def _check_member(member: zipfile.ZipInfo) -> None:
    named = member.filename
    parts = {*PurePosixPath(named).parts, *PureWindowsPath(named).parts}
    if ".." in parts or PurePosixPath(named).is_absolute() or PureWindowsPath(named).anchor:
        raise InvalidValueError(f"the archive names a file outside of itself: {shown(named)}")
    if member.file_size > SMALL and member.file_size > MOST_DENSE * member.compress_size:
        raise InvalidValueError(
            f"{shown(named)} claims {member.file_size:,} bytes in {member.compress_size:,}: "
            f"more than {MOST_DENSE} times its size is not unpacked"
        )


def _folder(folder: Path) -> Input:
    """Return the files of a folder and those below; hidden ones and links are left out."""
    parts: list[Part] = []
    left_out: list[str] = []
    for path in files_below(folder):
        named = path.relative_to(folder).as_posix()
        if path.is_symlink():
            left_out.append(named)
        else:
            with reading(path) as file:
                status = os.fstat(file.fileno())
            parts.append(Part(named, status.st_size, _opening(path), status.st_mtime))
    return Input(folder.resolve().name, parts, left_out, folder=True)


def _opening(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: cast("IO[bytes]", reading(path))


def choose_files(whole: Input, wanted: re.Pattern[str]) -> None:
    """Leave out of a folder the files whose names do not match."""
    if whole.folder:
        others = [part.name for part in whole.parts if not wanted.fullmatch(part.name)]
        whole.parts = [part for part in whole.parts if wanted.fullmatch(part.name)]
        whole.left_out += others


def each_value(whole: Input) -> Iterator[tuple[str, int, Any]]:
    """Yield the elements of an array, or the values, of all parts; each with the name of its part and its number."""
    for part, file in _files(whole):
        stream = JsonStream(file)
        found = (value for _, value in stream.elements()) if stream.begins_array else stream.values()
        for n, value in enumerate(found, 1):
            with whole.at(part, f"item {n:,}: "):
                whole.note_replaced(stream)
                yield Path(part.name).stem[:MAX_NAME], n, value


def each_member(whole: Input) -> Iterator[tuple[str, Any]]:
    """Yield the elements of the arrays, and the members of the objects, at the top level, each with its key."""
    for part, file in _files(whole):
        stream = JsonStream(file)
        for n, (key, value) in enumerate(stream.elements(), 1):
            with whole.at(part, f"item {n:,}: "):
                whole.note_replaced(stream)
                yield key, value


def each_line(whole: Input) -> Iterator[tuple[str, int, bytes]]:
    """Yield the lines of all parts that are not empty, each with the name of its part and its number."""
    for part, file in _files(whole):
        for n, line in numbered_lines(file):
            with whole.at(part, f"line {n:,}: "):
                yield part.name, n, line


def _files(whole: Input) -> Iterator[tuple[Part, IO[bytes]]]:
    for part in whole.parts:
        with whole.opened(part) as file, whole.at(part, ""):
            yield part, file
