"""Input validation: names, text, numbers, times and JSON; and new names, ids."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar

from .errors import InvalidValueError, MissingExtraError, TooLargeError

JSON: TypeAlias = Any
"""Any JSON value: text, numbers, booleans, None, lists and objects; `check_json` validates one."""

Item = TypeVar("Item")

MAX_SEGMENT = 200
"""Maximum length of a scope segment, in characters."""
MAX_DEPTH = 16
"""Maximum number of segments in a scope."""
MAX_PATH = 2500
"""Maximum length of a scope path in UTF-8 bytes, including '/': the index key size that every back-end supports."""
MAX_KEY = 500
"""Maximum length of a key or a label value, in characters."""
MAX_SIZE = 8 * 1024 * 1024
"""Maximum number of characters in the text, title, data and meta of one record together."""
MAX_WEIGHT = 100
"""Largest factor of a signal of recall."""
MAX_COUNT = 2**53
"""Largest integer that every back-end can count and sum exactly."""
MAX_BITS = 1024
"""Maximum size of an integer within JSON, in bits."""
MAX_TTL = timedelta(days=365_000)
"""Maximum time to live."""
MAX_JSON_DEPTH = 100
"""Maximum nesting depth of lists and objects."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ESCAPED = re.compile(r"[/\x00-\x1f\x7f]|%(?=2F|25|[01][0-9A-F]|7F|$)")
_ESCAPE = re.compile(r"%(2F|25|[01][0-9A-F]|7F)")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""First and last time that there is, in microseconds since 1970."""
_EXACT = 2**32 * 1_000_000
"""Up to here a float of seconds is exact to the microsecond, and faster."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that could move the cursor, change a terminal's settings, or reverse text."""


def shown(value: object) -> str:
    """Return a value as an error message quotes it: shortened, and never raising."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else f"{value[:60]!r}… ({len(value):,} characters)"
    from reprlib import Repr

    try:
        return Repr().repr(value)
    except Exception:
        # An integer with thousands of digits, or an object whose repr fails.
        return f"a value of the type {type(value).__name__}"


def printable(text: str) -> str:
    """Return a stored text as a terminal may show it: control characters as escapes, line ends as they are."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


def check_name(value: object, field: str, longest: int = MAX_KEY) -> str:
    """Return `value` if it is a valid name.

    Raises InvalidValueError if it is not a string, is empty or too long, or contains control characters or lone
    surrogates.
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


def new_id() -> str:
    """Return a new id of 32 hexadecimal digits; ids sort by creation time, to the millisecond."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def check_segment(value: object, field: str = "scope segment") -> str:
    """Return `value` if it is a valid scope segment; raises InvalidValueError otherwise."""
    name = check_name(value, field, MAX_SEGMENT)
    if "/" in name:
        advice = "; pass each segment on its own, as in scope('acme', 'alice')" if field == "scope segment" else ""
        raise InvalidValueError(f"{field} holds '/': {shown(name)}{advice}")
    return name


def to_segment(id: object, field: str = "id") -> str:
    """Return an id of another system as a scope segment; `from_segment` reverts it.

    A '/', a control character and what looks like an escape are written as %2F and so on, the empty id as "%".
    Raises InvalidValueError for an id that is not text, or too long.
    """
    return _segment_of(_check_string(id, field), field)


@lru_cache(maxsize=10_000)
def _segment_of(text: str, field: str) -> str:
    return check_segment(_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text) or "%", field)


def from_segment(segment: str) -> str:
    """Return the id that `to_segment` has made a segment of."""
    return "" if segment == "%" else _ESCAPE.sub(lambda found: chr(int(found[1], 16)), segment)


def check_kind(value: object) -> str:
    """Return `value` if it is a valid record kind; raises InvalidValueError otherwise."""
    if not isinstance(value, str) or not is_kind(value):
        raise InvalidValueError(f"kind must be up to 32 lower-case letters, digits, '-' and '_': {shown(value)}")
    return value


@lru_cache(maxsize=256)
def is_kind(value: str) -> bool:
    """Return whether `value` is a valid record kind."""
    return _KIND.fullmatch(value) is not None


def check_choice(value: object, field: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of `known`; raises InvalidValueError, which lists them, otherwise."""
    if isinstance(value, str) and value in known:
        return value
    raise InvalidValueError(f"{field} must be one of {', '.join(known)}: {shown(value)}")


def check_names(given: Sequence[str] | str, field: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return one name or several as a tuple.

    Raises InvalidValueError for anything else, and for a name that is not in `known`, if given.
    """
    if isinstance(given, str):
        given = (given,)
    elif not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(n, str) for n in given):
        raise InvalidValueError(f"{field} are names, or a list of them, not {shown(given)}")
    return tuple(check_choice(name, field, known) if known else name for name in given)


def check_several(values: Iterable[Item], field: str) -> list[Item]:
    """Return an iterable as a list; raises InvalidValueError for a single string, or if it is not iterable."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidValueError(f"{field} must be a list, not {type(values).__name__}: {shown(values)}")
    return list(values)


def check_callable(value: object, field: str) -> None:
    """Raise InvalidValueError unless `value` can be called, or is None."""
    if value is not None and not callable(value):
        raise InvalidValueError(f"{field} must be a function, not {type(value).__name__}: {shown(value)}")


def check_text(value: object, field: str) -> str:
    """Return `value` if it is text that every back-end can store.

    Raises InvalidValueError if it is not a string or contains NUL or lone surrogates, TooLargeError if it is over
    the size limit.
    """
    if type(value) is str and value.isascii() and "\0" not in value and len(value) <= MAX_SIZE:
        return value
    value = _check_string(value, field)
    if len(value) > MAX_SIZE:
        raise TooLargeError(f"{field} has {len(value):,} characters, more than {MAX_SIZE:,}")
    if (bad := _UNSTORABLE.search(value)) is not None:
        raise InvalidValueError(f"{field} holds {_described(bad.group())} at character {bad.start():,}")
    return value


def storable_text(value: object, field: str) -> str:
    """Return text with U+FFFD for what no back-end can store; raises as `check_text` if it is no text or too long."""
    return check_text(_UNSTORABLE.sub("\ufffd", _check_string(value, field)), field)


def check_number(value: object, field: str, *, least: float | None = None) -> float:
    """Return `value` as a finite float; raises InvalidValueError for anything else."""
    if type(value) is float and math.isfinite(value) and (least is None or value >= least):
        return value
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


def check_weights(given: object) -> tuple[tuple[str, float], ...]:
    """Return the factors of signals as pairs; raises InvalidValueError unless each is from 0 to MAX_WEIGHT."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidValueError(f"weights must be a mapping of signals to factors: {shown(given)}")
    for name, factor in given.items():
        if check_number(factor, f"weight of {shown(name)}", least=0) > MAX_WEIGHT:
            raise InvalidValueError(f"weight of {shown(name)} must be at most {MAX_WEIGHT}: {shown(factor)}")
    return tuple((name, float(factor)) for name, factor in given.items())


def check_count(value: object, field: str, *, least: int = 0) -> int:
    """Return `value` as an integer from `least` to MAX_COUNT; raises InvalidValueError otherwise."""
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValueError(f"{field} must be a whole number, not {type(value).__name__}: {shown(value)}")
    if not least <= value <= MAX_COUNT:
        raise InvalidValueError(f"{field} must be from {least} to {MAX_COUNT}: {shown(value)}")
    return int(value)


def check_time(value: object, field: str) -> datetime:
    """Return `value` in UTC; a naive time is local time.

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
    """Return `value` if it is a positive timedelta of at most a thousand years; raises InvalidValueError otherwise."""
    if not isinstance(value, timedelta):
        raise InvalidValueError(f"{field} must be a timedelta, not {type(value).__name__}: {shown(value)}")
    if not timedelta(0) < value <= MAX_TTL:
        raise InvalidValueError(f"{field} must be positive, and at most {MAX_TTL.days:,} days: {value}")
    return value


def to_microseconds(time: datetime) -> int:
    """Return an aware time as exact microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


def from_microseconds(value: int) -> datetime:
    """Return the time of a number of microseconds since 1970."""
    if 0 <= value < _EXACT:
        return datetime.fromtimestamp(value / 1_000_000, UTC)
    return EPOCH + timedelta(microseconds=value)


def check_json(value: Any, field: str) -> tuple[Any, int]:
    """Return a deep copy of a JSON value, and its approximate size in characters.

    Tuples become lists. Raises InvalidValueError, with the path, for values that JSON does not have: NaN,
    infinity, keys that are not strings, other types, circular references.
    """
    try:
        return _clean_object(value, MAX_JSON_DEPTH) if type(value) is dict else _clean(value, MAX_JSON_DEPTH)
    except _UnfitError as unfit:
        steps = unfit.path[::-1]
        path = field + "".join(steps if len(steps) < 10 else [*steps[:4], "…", *steps[-2:]])
        raise (TooLargeError if unfit.large else InvalidValueError)(f"{path} {unfit.reason}") from None


class _UnfitError(Exception):
    """An invalid value; each level that it propagates through adds its part of the path."""

    def __init__(self, reason: str, large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.large = large
        self.path: list[str] = []


def _clean(node: Any, depth: int) -> tuple[Any, int]:
    kind = type(node)
    if kind is str:
        # Nearly every text passes this fast test.
        plain = node.isascii() and "\0" not in node and len(node) <= MAX_SIZE
        return (node, len(node)) if plain else _clean_text(node)
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
        return _clean_text(str.__str__(node))
    raise _UnfitError(f"cannot be kept as JSON: {kind.__name__} {shown(node)}")


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
            name = key if type(key) is str and key.isprintable() else _clean_text(str.__str__(key))[0]
            # Nearly every text passes this fast test.
            if type(item) is str and item.isascii() and "\0" not in item and len(item) <= MAX_SIZE:
                cleaned[name], size = item, len(item)
            elif item is None or type(item) is bool:
                cleaned[name], size = item, 4
            else:
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
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def _check_string(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{field} must be a string, not {type(value).__name__}: {shown(value)}")
    return str.__str__(value)


def _described(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return f"the lone surrogate \\u{code:04x}"
    return "a NUL character" if code == 0 else f"the control character \\x{code:02x}"


def check_extra(extra: str, purpose: str, *modules: str) -> None:
    """Check that modules are installed, without importing them.

    Raises MissingExtraError, with the command that installs them.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{purpose} needs {', '.join(missing)}: pip install 'mnemic[{extra}]'")
