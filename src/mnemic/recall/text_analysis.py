"""Tokenization and stemming: turns text in any script into search terms."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0002fa1f]+"
)
"""Scripts without spaces between words, or with agglutinative words."""

STOP_WORDS = frozenset(
    """
    a about after again all also am an and any are as at be because been before being between both but by
    can could did do does doing don down during each few for from further get got had has have having he
    her here hers him his how i if in into is it its just let ll me more most my no nor not now of off on
    once only or other our ours out over own re s same shall she should so some such t than that the their
    theirs them then there these they this those through to too under until up us ve very was we were what
    when where which while who whom why will with would you your yours
    """.split()  # noqa: SIM905
)
"""English stop words."""

MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
DAYS = tuple("monday tuesday wednesday thursday friday saturday sunday".split())  # noqa: SIM905
_SHOUTED = frozenset(word.upper() for word in STOP_WORDS if len(word) > 1)
_NAMES = _SHOUTED | {word.capitalize() for word in STOP_WORDS if len(word) > 1}
"""Capitalized stop words, which may be names."""
_BETWEEN = {n: " " for n in range(128) if not chr(n).isalnum() and chr(n) != "'"}
_CACHED_WORDS = 200_000
_HYPHENATED = re.compile(r"(?<![^\W_])[^\W_]++(?:-[^\W_]++)+")
_CAPITAL = re.compile(r"[A-Z][A-Za-z]+")
_COMPOUND = re.compile(r"\w-\w")


class _Stems(dict[str, str | None]):
    """Cache of the term of each word; None for a stop word."""

    def __init__(self, stem: Any) -> None:
        self._stem = stem

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        plain = word.lower().replace("’", "'")
        stop = plain in STOP_WORDS or plain.partition("'")[0] in STOP_WORDS
        term = self[word] = None if stop else self._stem(plain)
        return term


@cache
def _stems() -> _Stems:
    from Stemmer import Stemmer

    return _Stems(Stemmer("english").stemWord)


def words(text: str) -> list[str]:
    """Return the words of a text in order, as written, without accents."""
    if text.isascii():
        # Three times as fast as the regular expression, with the same result.
        found = text.translate(_BETWEEN).split()
        return [word for part in found if (word := part.strip("'"))] if "'" in text else found
    folded = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return _WORD.findall(unicodedata.normalize("NFC", folded))


def terms(text: str, known: list[str] | None = None) -> list[str]:
    """Return the search terms of a text in order: stemmed, without accents and stop words.

    A capitalized stop word inside a sentence is a name (Will, US, IT) and a term of its own. A hyphenated word
    also counts as one word without hyphens. Scripts without spaces yield overlapping character pairs. In a text
    without words, symbols (👍) are terms. Pass `known` if the `words` of the text are computed already.
    """
    stems = _stems()
    spoken = words(text) if known is None else known
    if not spoken:
        return [c for c in text if unicodedata.category(c)[0] == "S"]
    if text.isascii() or _UNSPACED.search(text) is None:
        found = list(filter(None, map(stems.__getitem__, spoken)))
    else:
        found = []
        for word in spoken:
            if _UNSPACED.search(word) is not None:
                found.extend(_pairs(word))
            elif (term := stems[word]) is not None:
                found.append(term)
    if not _NAMES.isdisjoint(spoken[1:]) or (spoken and spoken[0] in _SHOUTED):
        found.extend(_named(text))
    if "-" in text and _COMPOUND.search(text) is not None:
        for compound in _HYPHENATED.findall(text):
            if term := stems[compound.replace("-", "")]:
                found.append(term)
    return found


def _named(text: str) -> list[str]:
    """Return a term for each stop word that is written like a name: in capitals, or capitalized inside a sentence."""
    found: list[str] = []
    if text.isupper():
        return found
    for match in _CAPITAL.finditer(text):
        word = match.group()
        if word in _NAMES:
            before = text[max(match.start() - 2, 0) : match.start()]
            inside = len(before) == 2 and before[1] == " " and (before[0].isalnum() or before[0] == ",")
            if inside or word.isupper():
                found.append(f"{word.lower()}^")
    return found


def _pairs(word: str) -> list[str]:
    word = word.lower()
    found = []
    for run in re.split(f"({_UNSPACED.pattern})", word):
        if _UNSPACED.fullmatch(run):
            found += [run[n : n + 2] for n in range(len(run) - 1)] or [run]
        elif run:
            found.append(run)
    return found
