"""The rules for what may enter a store: names, text, numbers, times and JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from .errors import InvalidValueError, TooLargeError

JSON: TypeAlias = Any
"""Text, numbers, booleans, None, and lists and objects of them; `check_json` tells what is none."""

Item = TypeVar("Item")

MAX_SEGMENT = 200
"""The longest scope segment, in characters."""
MAX_DEPTH = 16
"""The most segments in a scope."""
MAX_PATH = 2500
"""The most bytes of a scope's path in UTF-8, with the '/' between its segments: an index of every back-end
takes as many."""
MAX_KEY = 500
"""The longest key, and the longest label value, in characters."""
MAX_SIZE = 8 * 1024 * 1024
"""The most characters that the text, title, data and meta of one record hold together."""
MAX_COUNT = 2**53
"""The largest whole number that every back-end can count to, and add to, exactly."""
MAX_BITS = 1024
"""The longest whole number within JSON, in bits; Python itself reads no more than about 14,000."""
MAX_TTL = timedelta(days=365_000)
"""The longest time to live."""
MAX_JSON_DEPTH = 100
"""How deep lists and objects may be nested."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_EXACT = 2**32 * 1_000_000
"""Up to here a float of seconds still tells microseconds apart, and is the faster way."""


def shown(value: object) -> str:
    """Return `value` as an error message quotes it, shortened, whatever it is."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else f"{value[:60]!r}… ({len(value):,} characters)"
    from reprlib import Repr

    try:
        return Repr().repr(value)
    except Exception:
        # A whole number of thousands of digits, or an object that cannot even show itself.
        return f"a value of the type {type(value).__name__}"


def check_name(value: object, field: str, longest: int = MAX_KEY) -> str:
    """Return `value` if it can name something.

    Raises InvalidValueError if it is not a string, empty, too long, or holds control characters
    or lone surrogates.
    """
    if type(value) is str and 0 < len(value) <= longest and value.isprintable():
        return value
    value = _check_string(value, field)
    if not value:
        raise InvalidValueError(f"{field} is empty")
    if len(value) > longest:
        raise InvalidValueError(f"{field} has {len(value):,} characters, more than {longest}: {shown(value)}")
    if (bad := _UNPRINTABLE.search(value)) is not None:
        raise InvalidValueError(f"{field} holds {_described(bad.group())}: {shown(value)}")
    return value


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
    if not isinstance(value, str) or not _is_kind(value):
        raise InvalidValueError(
            f"kind must be up to 32 lower-case letters, digits, '-' and '_': {shown(value)}"
        )
    return value


@lru_cache(maxsize=256)
def _is_kind(value: str) -> bool:
    return _KIND.fullmatch(value) is not None


def check_choice(value: object, field: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of the `known` names; raises InvalidValueError, which lists them."""
    if isinstance(value, str) and value in known:
        return value
    raise InvalidValueError(f"{field} must be one of {', '.join(known)}: {shown(value)}")


def check_several(values: Iterable[Item], field: str) -> list[Item]:
    """Return several values as a list; raises InvalidValueError for a single text, or for no iterable."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidValueError(f"{field} must be a list, not {type(values).__name__}: {shown(values)}")
    return list(values)


def check_text(value: object, field: str) -> str:
    """Return `value` if it is text that every back-end can hold.

    Raises InvalidValueError if it is not a string or holds NUL or lone surrogates, TooLargeError
    if it is over the size limit.
    """
    if type(value) is str and _is_plain(value):
        return value
    value = _check_string(value, field)
    if len(value) > MAX_SIZE:
        raise TooLargeError(f"{field} has {len(value):,} characters, more than {MAX_SIZE:,}")
    if (bad := _UNSTORABLE.search(value)) is not None:
        raise InvalidValueError(f"{field} holds {_described(bad.group())} at character {bad.start():,}")
    return value


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
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
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


def check_ttl(value: object, field: str = "ttl") -> timedelta:
    """Return `value` if it is a positive timedelta of at most a thousand years, or raise an error."""
    if not isinstance(value, timedelta):
        raise InvalidValueError(f"{field} must be a timedelta, not {type(value).__name__}: {shown(value)}")
    if not timedelta(0) < value <= MAX_TTL:
        raise InvalidValueError(f"{field} must be positive, and at most {MAX_TTL.days:,} days: {value}")
    return value


def to_microseconds(time: datetime) -> int:
    """Return an aware time as whole microseconds since 1970, exactly."""
    return (time - _EPOCH) // MICROSECOND


def from_microseconds(value: int) -> datetime:
    """Return the time that `to_microseconds` was given."""
    if 0 <= value < _EXACT:
        return datetime.fromtimestamp(value / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=value)


def check_json(value: Any, field: str) -> tuple[Any, int]:
    """Return a copy of `value` that shares nothing with it, and about how many characters it holds.

    Tuples become lists. Raises InvalidValueError, naming the path, for what JSON cannot hold:
    NaN, infinity, keys that are not strings, other types, nesting without end.
    """
    try:
        return _clean(value, MAX_JSON_DEPTH)
    except _UnfitError as unfit:
        steps = unfit.path[::-1]
        path = field + "".join(steps if len(steps) < 10 else [*steps[:4], "…", *steps[-2:]])
        raise (TooLargeError if unfit.large else InvalidValueError)(f"{path} {unfit.reason}") from None


class _UnfitError(Exception):
    """What is wrong with a value; each level that it passes on its way out adds its part of the path."""

    def __init__(self, reason: str, large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.large = large
        self.path: list[str] = []


def _clean(node: Any, depth: int) -> tuple[Any, int]:
    kind = type(node)
    if kind is str:
        return (node, len(node)) if _is_plain(node) else _clean_text(node)
    if node is None or kind is bool:
        return node, 4
    if kind is dict or isinstance(node, Mapping):
        return _clean_object(node, depth)
    if kind is list or isinstance(node, tuple | list):
        return _clean_list(node, depth)
    if isinstance(node, int):
        if node.bit_length() > MAX_BITS:
            raise _UnfitError(f"is a whole number of {node.bit_length():,} bits, more than {MAX_BITS:,}")
        return int(node), 8
    if isinstance(node, float):
        if not math.isfinite(node):
            raise _UnfitError(f"must be finite, as JSON demands: {node!r}")
        return float(node), 8
    if isinstance(node, str):
        return _clean_text(str(node))
    raise _UnfitError(f"cannot be kept as JSON: {kind.__name__} {shown(node)}")


def _is_plain(text: str) -> bool:
    """Tell the short way that a text is fit to be stored; False if it takes a longer look."""
    return text.isascii() and "\0" not in text and len(text) <= MAX_SIZE


def _clean_text(text: str) -> tuple[str, int]:
    if len(text) > MAX_SIZE:
        raise _UnfitError(f"has {len(text):,} characters, more than {MAX_SIZE:,}", large=True)
    if (bad := _UNSTORABLE.search(text)) is not None:
        raise _UnfitError(f"holds {_described(bad.group())} at character {bad.start():,}")
    return text, len(text)


def _clean_object(node: Mapping[Any, Any], depth: int) -> tuple[dict[str, Any], int]:
    if not depth:
        raise _UnfitError(f"is nested more than {MAX_JSON_DEPTH} deep, or in itself")
    cleaned: dict[str, Any] = {}
    total = 0
    for key, item in node.items():
        if not isinstance(key, str):
            raise _UnfitError(f"has a key that is not a string, as JSON demands: {shown(key)}")
        try:
            name = key if _is_plain(key) else _clean_text(key)[0]
            cleaned[name], size = _clean(item, depth - 1)
        except _UnfitError as unfit:
            unfit.path.append(f".{key[:40]}")
            raise
        total += len(name) + size
    return cleaned, total


def _clean_list(node: list[Any] | tuple[Any, ...], depth: int) -> tuple[list[Any], int]:
    if not depth:
        raise _UnfitError(f"is nested more than {MAX_JSON_DEPTH} deep, or in itself")
    cleaned = []
    total = 0
    for place, item in enumerate(node):
        try:
            copy, size = _clean(item, depth - 1)
        except _UnfitError as unfit:
            unfit.path.append(f"[{place}]")
            raise
        cleaned.append(copy)
        total += size
    return cleaned, total


def copy_json(value: JSON) -> JSON:
    """Return a copy of a JSON value that shares nothing with it."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def _check_string(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{field} must be a string, not {type(value).__name__}: {shown(value)}")
    return str(value)


def _described(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return f"the lone surrogate \\u{code:04x}"
    return "a NUL character" if code == 0 else f"the control character \\x{code:02x}"
