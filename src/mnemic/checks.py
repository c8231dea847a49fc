"""The rules for what may enter a store: names, text, numbers, times and JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from .errors import InvalidValueError, TooLargeError

JSON: TypeAlias = None | bool | int | float | str | list[Any] | dict[str, Any]

MAX_SEGMENT = 200
"""The longest scope segment, in characters."""
MAX_DEPTH = 16
"""The most segments in a scope."""
MAX_KEY = 500
"""The longest key, and the longest label value, in characters."""
MAX_SIZE = 8 * 1024 * 1024
"""The most characters that the text, title, data and meta of one record hold together."""
MAX_COUNT = 2**63 - 1
"""The largest whole number that every back-end can count to."""
MAX_JSON_DEPTH = 100
"""How deep lists and objects may be nested."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXACT = 2**32 * 1_000_000
"""Up to here a float of seconds still tells microseconds apart, and is the faster way."""


def shown(value: object) -> str:
    """Return `value` as an error message quotes it, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"


def check_name(value: object, field: str, longest: int = MAX_KEY) -> str:
    """Return `value` if it can name something.

    Raises InvalidValueError if it is not a string, empty, too long, or holds control characters
    or lone surrogates.
    """
    if not isinstance(value, str):
        raise InvalidValueError(f"{field} must be a string, not {type(value).__name__}: {shown(value)}")
    if not value:
        raise InvalidValueError(f"{field} is empty")
    if len(value) > longest:
        raise InvalidValueError(f"{field} has {len(value):,} characters, more than {longest}: {shown(value)}")
    if (bad := _UNPRINTABLE.search(value)) is not None:
        raise InvalidValueError(f"{field} holds {_described(bad.group())}: {shown(value)}")
    return str(value)


def check_segment(value: object, field: str = "scope segment") -> str:
    """Return `value` if it can be one segment of a scope; raises InvalidValueError otherwise."""
    name = check_name(value, field, MAX_SEGMENT)
    if "/" in name:
        raise InvalidValueError(
            f"{field} holds '/': {shown(name)}; pass each segment on its own, as in scope('acme', 'alice')"
        )
    return name


def check_kind(value: object) -> str:
    """Return `value` if it can be a record's kind; raises InvalidValueError otherwise."""
    if not isinstance(value, str) or not _KIND.fullmatch(value):
        raise InvalidValueError(
            f"kind must be up to 32 lower-case letters, digits, '-' and '_': {shown(value)}"
        )
    return value


def check_text(value: object, field: str) -> str:
    """Return `value` if it is text that every back-end can hold.

    Raises InvalidValueError if it is not a string or holds NUL or lone surrogates, TooLargeError
    if it is over the size limit.
    """
    if not isinstance(value, str):
        raise InvalidValueError(f"{field} must be a string, not {type(value).__name__}: {shown(value)}")
    if len(value) > MAX_SIZE:
        raise TooLargeError(f"{field} has {len(value):,} characters, more than {MAX_SIZE:,}")
    if (bad := _UNSTORABLE.search(value)) is not None:
        raise InvalidValueError(f"{field} holds {_described(bad.group())} at character {bad.start():,}")
    return str(value)


def check_number(value: object, field: str, *, least: float | None = None) -> float:
    """Return `value` as a finite float; raises InvalidValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(f"{field} must be a number, not {type(value).__name__}: {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{field} must be finite: {shown(value)}")
    if least is not None and number < least:
        raise InvalidValueError(f"{field} must be at least {least:g}: {shown(value)}")
    return number


def check_count(value: object, field: str, *, least: int = 0) -> int:
    """Return `value` as a whole number from `least` to MAX_COUNT; raises InvalidValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"{field} must be a whole number, not {type(value).__name__}: {shown(value)}")
    if not least <= value <= MAX_COUNT:
        raise InvalidValueError(f"{field} must be from {least} to {MAX_COUNT}: {shown(value)}")
    return int(value)


def check_time(value: object, field: str) -> datetime:
    """Return `value` in UTC; a naive time is taken as local, as `datetime.astimezone` does.

    Raises InvalidValueError if it is not a datetime, or out of range.
    """
    if not isinstance(value, datetime):
        raise InvalidValueError(f"{field} must be a datetime, not {type(value).__name__}: {shown(value)}")
    if value.tzinfo is UTC:
        return value
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidValueError(f"{field} is out of range: {shown(value)}") from None


def to_microseconds(time: datetime) -> int:
    """Return an aware time as whole microseconds since 1970, exactly."""
    return (time - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    """Return the time that `to_microseconds` was given."""
    if 0 <= value < _EXACT:
        return datetime.fromtimestamp(value / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=value)


def check_json(value: Any, field: str) -> tuple[JSON, int]:
    """Return a copy of `value` that shares nothing with it, and how many characters it holds.

    Tuples become lists. Raises InvalidValueError, naming the path, for what JSON cannot hold:
    NaN, infinity, keys that are not strings, other types, nesting without end.
    """
    characters = 0

    def clean(node: Any, path: str, depth: int) -> JSON:
        nonlocal characters
        if node is None or node is True or node is False:
            return node
        if isinstance(node, str):
            characters += len(node)
            return check_text(node, path)
        if isinstance(node, int):
            characters += 8
            return int(node)
        if isinstance(node, float):
            characters += 8
            if not math.isfinite(node):
                raise InvalidValueError(f"{path} must be finite, as JSON demands: {node!r}")
            return float(node)
        if depth >= MAX_JSON_DEPTH:
            raise InvalidValueError(f"{field} is nested more than {MAX_JSON_DEPTH} deep, or in itself")
        if isinstance(node, Mapping):
            cleaned: dict[str, JSON] = {}
            for key, item in node.items():
                if not isinstance(key, str):
                    raise InvalidValueError(
                        f"{path} has a key that is not a string, as JSON demands: {shown(key)}"
                    )
                characters += len(key)
                cleaned[check_text(key, f"a key of {path}")] = clean(item, f"{path}.{key}", depth + 1)
            return cleaned
        if isinstance(node, list | tuple):
            return [clean(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(node)]
        raise InvalidValueError(f"{path} cannot be kept as JSON: {type(node).__name__} {shown(node)}")

    return clean(value, field, 0), characters


def copy_json(value: JSON) -> JSON:
    """Return a copy of a JSON value that shares nothing with it."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def _described(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return f"the lone surrogate \\u{code:04x}"
    return "a NUL character" if code == 0 else f"the control character \\x{code:02x}"
