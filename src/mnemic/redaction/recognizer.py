"""Recognizers: functions that find one type of personal data or secret in a text, by pattern or by a list of names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from typing import TypeAlias

from msgspec import Struct

from ..checks import check_text, shown
from ..errors import InvalidValueError
from ..records import Value

Span: TypeAlias = tuple[int, int]
"""Start and end of a finding in a text."""
Finder: TypeAlias = Callable[[str], Iterable[Span]]
"""Returns where a text holds what it looks for."""

NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
"""Form of the name of a recognizer, which stands in the text in place of a finding."""


RecognizerLike: TypeAlias = str | re.Pattern[str] | Finder
"""A recognizer as users give it: a regular expression, whose first group, if any, is the finding, or a function."""
FEW = 100
"""Up to how many names a text is first searched for each of them."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
NAME_LIST = "NAME"
"""Name of the recognizer of a list of names."""
_HIDDEN = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
"""Characters that are not seen: soft hyphen, spaces of no width, joiners."""
_MARKS = re.compile("[\u0300-\u036f]")
_STOP = re.compile(r"(?<=[A-Za-z0-9])[。｡．](?=[A-Za-z0-9])")
"""A full stop of another script, in an address."""
_PLAIN: dict[int, str] = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code != 0xFF0E},
    0xFE6B: "@",
    0x2019: "'",
    0x02BC: "'",
}
"""Full-width characters, and apostrophes."""
_DIGIT = re.compile(r"(?![0-9])\d")


class Recognizer(Struct, frozen=True):
    """Finds one type of data, whose `name` stands in its place: `[EMAIL]`."""

    name: str
    find: Finder

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a name that could not be told from other text."""
        check_recognizer_name(self.name)


class Finding(Value, frozen=True, order=True):
    """A place in a text, and the name of the recognizer that found it."""

    start: int
    end: int
    name: str


def check_recognizer_name(name: object) -> str:
    """Return the name of a recognizer; raises InvalidValueError."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidValueError(
            f"the name of a recognizer is up to 32 capital letters, digits and '_', such as ORDER_NUMBER: {shown(name)}"
        )
    return name


def custom(given: Mapping[str, RecognizerLike]) -> list[Recognizer]:
    """Return the recognizers that a user gives by name; raises InvalidValueError for an invalid pattern."""
    found = []
    for name, one in given.items():
        find: Finder
        if isinstance(one, str | re.Pattern):
            try:
                find = matches_of(re.compile(one))
            except re.error as error:
                raise InvalidValueError(f"the pattern of {shown(name)} is not a regular expression: {error}") from None
        elif callable(one):
            find = _checked(name, one)
        else:
            raise InvalidValueError(
                f"a recognizer is a regular expression or a function from a text to spans, not {shown(one)}"
            )
        found.append(Recognizer(check_recognizer_name(name), find))
    return found


def _checked(name: str, given: Finder) -> Finder:
    """Return a finder of the user's; it raises InvalidValueError if it returns anything but places."""

    def find(text: str) -> Iterator[Span]:
        try:
            for start, end in given(text):
                yield index(start), index(end)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"the function of the recognizer {name} must return (start, end) pairs, an empty list for none: {error}"
            ) from error

    return find


def matches_of(pattern: re.Pattern[str]) -> Finder:
    """Return a finder of the matches of a pattern, or of its first group."""
    group = 1 if pattern.groups else 0

    def find(text: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            if match.start(group) < match.end(group):
                yield match.span(group)

    return find


def follows(text: str, start: int, words: re.Pattern[str], reach: int = 40) -> bool:
    """Return whether one of these words stands shortly before a position."""
    return words.search(text, max(0, start - reach), start) is not None


def name_list(names: Iterable[str]) -> Recognizer:
    """Return a recognizer of names, whatever their case, as whole words; it takes the same time for many names."""
    by_first: dict[str, list[list[str]]] = {}
    for name in names:
        words = [word.casefold() for word in _WORD.findall(normal_form(check_text(name, "name")).text)]
        if not words:
            raise InvalidValueError(f"a name to redact has no letters: {shown(name)}")
        by_first.setdefault(words[0], []).append(words)
    for several in by_first.values():
        several.sort(key=len, reverse=True)

    def find(text: str) -> Iterator[Span]:
        if len(by_first) <= FEW and not any(first in folded for folded in (text.casefold(),) for first in by_first):
            return
        words = [*_WORD.finditer(text)]
        at = 0
        while at < len(words):
            length = _name_at(words, at)
            if length:
                last = words[at + length - 1]
                yield words[at].start(), last.start() + len(_without_genitive(last[0]))
            at += length or 1

    def _name_at(words: list[re.Match[str]], at: int) -> int:
        """Return how many words from here on are a name; 0 for none."""
        first = words[at][0].casefold()
        for name in (*by_first.get(first, ()), *by_first.get(_without_genitive(first), ())):
            found = [match[0].casefold() for match in words[at : at + len(name)]]
            if found == name or [*found[:-1], _without_genitive(found[-1])] == name:
                return len(name)
        return 0

    return Recognizer(NAME_LIST, find)


def _without_genitive(word: str) -> str:
    return word[:-2] if word.casefold().endswith(("'s", "’s")) else word


class NormalForm(Struct):
    """A text in its plain form; `places` are start and end of each of its characters, None if none was moved."""

    text: str
    places: list[tuple[int, int]] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of it is in the text as it was given."""
        if self.places is None or not 0 <= start < end <= len(self.places):
            return start, end
        return self.places[start][0], self.places[end - 1][1]


def normal_form(text: str) -> NormalForm:
    """Return a text with plain digits and letters, composed accents, and without what is not seen."""
    if text.isascii():
        return NormalForm(text)
    places: list[tuple[int, int]] | None = None
    if _HIDDEN.search(text) is not None or _MARKS.search(text) is not None:
        pieces: list[str] = []
        places = []
        for at, one in enumerate(text):
            if _HIDDEN.match(one):
                continue
            if pieces and _MARKS.match(one) and len(both := unicodedata.normalize("NFC", pieces[-1] + one)) == 1:
                pieces[-1] = both
                places[-1] = (places[-1][0], at + 1)
            else:
                pieces.append(one)
                places.append((at, at + 1))
        text = "".join(pieces)
    text = _DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text.translate(_PLAIN))
    return NormalForm(_STOP.sub(".", text), places)
