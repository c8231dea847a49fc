"""Reads JSON of other tools: large files value by value, in bounded memory, and single lines."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import IO, Any

from msgspec import DecodeError
from msgspec import json as fast_json

from ..checks import shown
from ..errors import InvalidValueError

CHUNK = 1024 * 1024
"""How many bytes are read at once."""
MAX_VALUE = 64 * 1024 * 1024
"""Maximum length of one value in characters, such as one conversation."""

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u(0000|[dD][89a-fA-F])")
"""How NUL is written, and surrogates, which may be lone."""
_SPACE = re.compile(r"[ \t\r\n]*")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidValueError(f"an object has the key {shown(next(n for n in names if names.count(n) > 1))} twice")
    return found


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise InvalidValueError(f"a number is too large: {shown(text)}")
    return number


def _constant(text: str) -> Any:
    raise InvalidValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant).raw_decode


class JsonStream:
    """The JSON values of a file: one document, or one after another as in JSON Lines.

    Errors are InvalidValueErrors that say where: invalid JSON, duplicate keys, NaN, numbers too large, text that is
    not UTF-8, values nested too deeply or longer than `MAX_VALUE`. Characters that cannot be stored, NUL and lone
    surrogates, become U+FFFD.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = self._lines = 0
        self._ended = False
        self.replaced: bool = False
        """Whether the last value had characters that cannot be stored."""

    @property
    def line(self) -> int:
        """The number of the line of the next value."""
        return self._lines + self._text.count("\n", 0, self._at) + 1

    @property
    def begins_array(self) -> bool:
        """Whether the next value is an array."""
        return self._peek() == "["

    def values(self) -> Iterator[Any]:
        """Yield the values at the top level."""
        while self._peek():
            yield self._value()

    def elements(self) -> Iterator[tuple[str, Any]]:
        """Yield the elements of the values at the top level: those of an array, and the members of an object.

        Each comes with its key, which is empty in an array; an array in an object is yielded element by element, if it
        has any.
        """
        while first := self._peek():
            if first == "[":
                yield from (("", value) for value in self._array())
            elif first == "{":
                yield from self._members()
            else:
                yield "", self._value()

    def _members(self) -> Iterator[tuple[str, Any]]:
        keys: set[str] = set()
        for _ in self._separated("}"):
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._error("an object must have keys with values")
            if key in keys:
                raise self._error(f"an object has the key {shown(key)} twice")
            keys.add(key)
            self._at += 1
            if self._peek() != "[":
                yield key, self._value()
                continue
            empty = True
            for value in self._array():
                empty = False
                yield key, value
            if empty:
                yield key, []

    def _array(self) -> Iterator[Any]:
        for _ in self._separated("]"):
            yield self._value()

    def _separated(self, end: str) -> Iterator[None]:
        """Yield before each element of an array or object, and consume what is around and between them."""
        self._at += 1
        if self._peek() == end:
            self._at += 1
            return
        while True:
            yield
            found = self._peek()
            self._at += 1
            if found == end:
                return
            if found != ",":
                self._at -= 1
                raise self._error(f"expected ',' or '{end}'")

    def _peek(self) -> str:
        """Return the next character that is no white space; empty at the end of the file."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
                clean = clean_json(value) if _ESCAPED.search(self._text, self._at, end) else value
            except json.JSONDecodeError as error:
                # The value may be incomplete as yet.
                if len(self._text) - self._at > MAX_VALUE:
                    raise self._error(f"a value is longer than {MAX_VALUE:,} characters, or it is not JSON") from None
                if not self._more():
                    raise self._error(f"invalid JSON: {error.msg}") from None
            except RecursionError:
                raise self._error("a value is nested too deeply") from None
            except InvalidValueError as error:
                raise self._error(str(error)) from None
            except ValueError:
                raise self._error("a number has too many digits") from None
            else:
                if end - self._at > MAX_VALUE:
                    raise self._error(f"a value is longer than {MAX_VALUE:,} characters")
                # A number may go on in what is not read yet.
                if end < len(self._text) or not isinstance(value, int | float):
                    self._at = end
                    self.replaced = clean is not value and clean != value
                    return clean
                if not self._more():
                    self._at = len(self._text)
                    return value

    def _more(self) -> bool:
        """Read more text; return whether there was any."""
        if self._ended:
            return False
        content = self._file.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not content
        try:
            text = self._utf8.decode(content, self._ended)
        except UnicodeDecodeError as error:
            line = self._lines + self._text.count("\n") + content.count(b"\n", 0, error.start) + 1
            raise InvalidValueError(f"line {line:,}: the text is not UTF-8: {error.reason}") from None
        self._lines += self._text.count("\n", 0, self._at)
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(text) or (not self._ended and self._more())

    def _error(self, reason: str) -> InvalidValueError:
        return InvalidValueError(f"line {self.line:,}: {reason}")


def decode_line(line: bytes) -> Any:
    """Return the value of a JSON line, also if it has lone surrogates; None if it is not JSON."""
    try:
        return fast_json.decode(line)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        # A tool's output cut within a character: a lone surrogate, which only Python's decoder accepts.
        if b"\\ud" not in line.lower():
            return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def clean_text(text: Any) -> str:
    """Return a text with U+FFFD for what cannot be stored; raises InvalidValueError if it is none."""
    if not isinstance(text, str):
        raise InvalidValueError("text")
    return _UNSTORABLE.sub("�", text)


def clean_json(value: Any) -> Any:
    """Return a JSON value with U+FFFD for what cannot be stored."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return {clean_text(key): clean_json(item) for key, item in value.items()} if isinstance(value, dict) else value
