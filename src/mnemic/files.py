"""Files that are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from os import PathLike
from pathlib import Path

from .errors import NotFoundError, StoreError, StoreFullError, StorePermissionError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file; a crash leaves the old one or the new one, never half of it.

    Raises StoreFullError if there is no space, StorePermissionError if it may not be written there.
    """
    import tempfile

    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".mnemic-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except (OSError, ValueError) as error:
        raise _explained(error, target) from error
    _sync_folder(target.parent)


def read_file(path: str | PathLike[str]) -> bytes:
    """Return what a file holds; raises NotFoundError, or StorePermissionError if it may not be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {os.fspath(path)}") from None
    except (OSError, ValueError) as error:
        raise _explained(error, Path(path)) from error


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
