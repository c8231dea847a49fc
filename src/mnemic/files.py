"""Atomic file replacement, and reading of regular files only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO

from .errors import InvalidValueError, MnemicError, NotFoundError, StoreError, StoreFullError, StorePermissionError

DATABASE = b"SQLite format 3\0"
"""The first bytes of an SQLite database file."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_file(path: str | PathLike[str], content: bytes, *, keep_mode: bool = False) -> None:
    """Replace a file atomically, as `replacing` does; with `keep_mode` an existing one keeps its permissions."""
    with replacing(path) as file:
        if keep_mode and hasattr(os, "fchmod"):
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(check_path(path).stat().st_mode))
        file.write(content)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for atomic replacement: a crash or an error leaves either the old or the new file.

    Only its owner can read it. Raises NotFoundError if there is no such folder, StoreFullError if there is no space,
    StorePermissionError if it cannot be written, or if the target is a database or not a regular file (a symbolic
    link, a device), InvalidValueError if `path` is not a path.
    """
    import tempfile

    target = check_path(path)
    if not target.parent.is_dir():
        raise NotFoundError(f"{target} cannot be written: there is no folder {target.parent}")
    try:
        with suppress(FileNotFoundError):
            _check_replaceable(target)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".mnemic-")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except MnemicError:
        raise
    except (OSError, ValueError) as error:
        raise _explained(error, target) from error
    _sync_folder(target.parent)


class _CheckedError(MnemicError):
    """Ends a check, and leaves the file as it was."""


def check_writable(path: str | PathLike[str]) -> None:
    """Check that a file can be written, before what it is to report is done; raises as `replacing` does."""
    with suppress(_CheckedError), replacing(path):
        raise _CheckedError


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a folder atomically: an error leaves none. Only its owner can read it.

    Raises NotFoundError if there is no folder to create it in, InvalidValueError if it is there and not empty,
    StoreFullError or StorePermissionError if it cannot be written.
    """
    import shutil
    import tempfile

    if not is_folder(path.parent):
        raise NotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidValueError(f"{path} is not an empty folder: name a new one")
        working = Path(tempfile.mkdtemp(dir=path.parent, prefix=".mnemic-"))
        try:
            yield working
            if path.exists():
                path.rmdir()
            working.replace(path)
        except BaseException:
            shutil.rmtree(working, ignore_errors=True)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, MnemicError):
            raise
        raise _explained(error, path) from error
    _sync_folder(path.parent)


def read_file(path: str | PathLike[str], most: int = -1) -> bytes:
    """Return a file's bytes, or the first `most`; raises as `reading` does."""
    with reading(path) as file:
        return file.read(most)


@contextmanager
def reading(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for reading.

    Raises NotFoundError, StorePermissionError if it cannot be read or is not a regular file, InvalidValueError if
    `path` is not a path.
    """
    path = check_path(path)
    try:
        # Non-blocking: opening a pipe would otherwise wait for a writer.
        with open(path, "rb", opener=_without_waiting) as file:
            _check_regular(os.fstat(file.fileno()).st_mode, path)
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except MnemicError:
        raise
    except (OSError, ValueError) as error:
        raise _explained(error, path) from error


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; also for a path that cannot exist."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, in order, and links to folders; not those whose names begin with a dot.

    Raises StorePermissionError if a folder cannot be read.
    """

    def failed(error: OSError) -> None:
        raise _explained(error, folder) from error

    for place, names, files in os.walk(folder, onerror=failed):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (Path(place, name) for name in names if Path(place, name).is_symlink())
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def check_path(path: object) -> Path:
    """Return a caller's path; raises InvalidValueError unless it is a string or an os.PathLike of one."""
    if not isinstance(path, str | PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidValueError(f"a path must be a string or a Path, not {type(path).__name__}: {path!r:.80}")
    return Path(path)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_replaceable(path: Path) -> None:
    """Raise StorePermissionError unless a file may be replaced; a database may be in use, so it never is."""
    _check_regular(path.lstat().st_mode, path)
    with path.open("rb") as file:
        if file.read(len(DATABASE)) == DATABASE:
            raise StorePermissionError(f"{path} is an SQLite database, which is not overwritten: choose another file")


def _check_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        what = next((words for test, words in _KINDS if test(mode)), "something else")
        raise StorePermissionError(f"{path} is {what}, not a regular file")


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def _explained(error: OSError | ValueError, path: Path) -> StoreError:
    if isinstance(error, OSError) and error.errno in _FULL:
        return StoreFullError(f"{path}: no space left ({error})")
    return StorePermissionError(f"{path}: the file cannot be read or written there ({error})")


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, on systems where a folder can be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
