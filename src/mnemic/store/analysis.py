"""From text to the terms that search compares: words without their endings, in any script."""

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
"""Scripts that are written without spaces between words, or whose words carry their grammar with them."""

STOP_WORDS = frozenset(
    """
    a about after again all also am an and any are as at be because been before being between both but by
    can could did do does doing don down during each few for from further get got had has have having he her
    here hers him his how i if in into is it its just let ll me more most my no nor not now of off on once
    only or other our ours out over own re s same she should so some such t than that the their theirs them
    then there these they this those through to too under until up us ve very was we were what when where
    which while who whom why will with would you your yours
    """.split()  # noqa: SIM905
)
"""English words that say little about what a text is about."""

_CACHED_WORDS = 200_000
_HYPHENATED = re.compile(r"[^\W_]+(?:-[^\W_]+)+")
_SENTENCE_END = '.!?:;\n"“”‘(*-•'


class _Stems(dict[str, str | None]):
    """The term of each word seen so far; None for a stop word, and "" for one that may be a name."""

    def __init__(self, stem: Any) -> None:
        self._stem = stem

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        plain = word.lower().replace("’", "'")
        term: str | None
        if plain in STOP_WORDS or plain.partition("'")[0] in STOP_WORDS:
            term = "" if word[0].isupper() and len(plain.partition("'")[0]) > 1 else None
        else:
            term = self._stem(plain)
        self[word] = term
        return term


@cache
def _stems() -> _Stems:
    from Stemmer import Stemmer

    return _Stems(Stemmer("english").stemWord)


def terms(text: str) -> list[str]:
    """Return the terms of a text in their order: stop words left out, endings and accents taken off.

    A stop word with a capital where no sentence begins is a name (Will, US, IT) and a term of its own.
    A word with hyphens is also one without them. A script that is written without spaces gives pairs
    of characters, which overlap.
    """
    stems = _stems()
    if text.isascii():
        found = [term for word in _WORD.findall(text) if (term := stems[word]) is not None]
    else:
        folded = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        text = unicodedata.normalize("NFC", folded)
        found = []
        for word in _WORD.findall(text):
            if _UNSPACED.search(word) is not None:
                found.extend(_pairs(word))
            elif (term := stems[word]) is not None:
                found.append(term)
    if "" in found:
        found = [term for term in found if term] + _names(text)
    if "-" in text:
        for compound in _HYPHENATED.findall(text):
            if term := stems[compound.replace("-", "")]:
                found.append(term)
    return found


def _names(text: str) -> list[str]:
    """Return a term for each stop word that is written as a name."""
    stems = _stems()
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        if stems[word] == "":
            before = text[: match.start()].rstrip(" \t")
            loud = word.isupper() and not text.isupper()
            if loud or (before and before[-1] not in _SENTENCE_END):
                found.append(f"{word.lower().partition(chr(39))[0]}^")
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
