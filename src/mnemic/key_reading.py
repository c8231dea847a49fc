"""Reads secret keys of 32 bytes: given as such or as base64, in a file, or in an environment variable.

Errors say where a key should be, and what was found instead, but never show it.
"""

from __future__ import annotations

import os
from base64 import b64decode
from os import PathLike
from pathlib import Path

from .errors import InvalidValueError

__all__ = ["KEY_SIZE", "MAX_KEY_FILE", "given_key", "key_in_content", "key_in_file", "key_in_variable", "secret_of"]

KEY_SIZE = 32
"""Length of a key in bytes."""
MAX_KEY_FILE = 4096
"""Maximum size of a key file in bytes; one in PEM is longer than a key."""

_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def given_key(key: object) -> tuple[object, str]:
    """Return a key, which "file:PATH", a Path and "env:NAME" name, and the beginning of a sentence that describes it.

    Raises InvalidValueError if the file or the variable cannot be read.
    """
    if isinstance(key, PathLike) or (isinstance(key, str) and key.startswith("file:")):
        path = key.removeprefix("file:") if isinstance(key, str) else key
        key, source = key_in_file(path), f"the key file {path} holds"
    elif isinstance(key, str) and key.startswith("env:"):
        name = key.removeprefix("env:")
        key, source = key_in_variable(name), f"the environment variable {name} holds"
    else:
        source = "given was"
    size = f" of length {len(key)}" if isinstance(key, str | bytes | bytearray) else ""
    return key, f"{source} a value of the type {type(key).__name__}{size}"


def secret_of(key: object) -> bytes | None:
    """Return the bytes of a key that is 32 bytes, or their 44 base64 characters; None if it is something else."""
    if isinstance(key, bytes | bytearray) and len(key) == KEY_SIZE:
        return bytes(key)
    if not isinstance(key, str | bytes | bytearray) or len(key) != 44:
        return None
    try:
        found = b64decode((key.encode() if isinstance(key, str) else bytes(key)).translate(_URL_SAFE), validate=True)
    except ValueError:
        return None
    return found if len(found) == KEY_SIZE else None


def key_in_file(path: str | PathLike[str]) -> str | bytes:
    """Return the key in a file: 32 bytes, or text; raises InvalidValueError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return key_in_content(file.read(MAX_KEY_FILE + 1), str(path))
    except OSError as error:
        raise InvalidValueError(f"cannot read the key file {path}: {error.strerror}") from None


def key_in_content(content: bytes, name: str) -> str | bytes:
    """Return the key that a file of this name has; raises InvalidValueError."""
    if len(content) > MAX_KEY_FILE:
        raise InvalidValueError(f"the key file {name} is longer than {MAX_KEY_FILE:,} bytes; a key has 32")
    if len(content) == KEY_SIZE:
        return content
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise InvalidValueError(
            f"the key file {name} holds no key: 32 bytes, or 44 characters as Fernet keys have"
        ) from None


def key_in_variable(name: str) -> str:
    """Return the key in an environment variable; raises InvalidValueError."""
    if (value := os.environ.get(name)) is None:
        raise InvalidValueError(f"the environment variable {name} is not set; it should hold a key")
    if not (value := value.strip()):
        raise InvalidValueError(f"the environment variable {name} is empty; it should hold a key")
    return value
