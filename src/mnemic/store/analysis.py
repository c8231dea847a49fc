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


class _Stems(dict[str, str | None]):
    """The term of each word seen so far; None for a stop word."""

    def __init__(self, stem: Any) -> None:
        self._stem = stem

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        plain = word.replace("’", "'")
        term = None if plain in STOP_WORDS or plain.partition("'")[0] in STOP_WORDS else self._stem(plain)
        self[word] = term
        return term


@cache
def _stems() -> _Stems:
    from Stemmer import Stemmer

    return _Stems(Stemmer("english").stemWord)


def terms(text: str) -> list[str]:
    """Return the terms of a text in their order: stop words left out, endings and accents taken off.

    A script that is written without spaces gives pairs of characters, which overlap.
    """
    text = text.lower()
    stems = _stems()
    if text.isascii():
        return [term for word in _WORD.findall(text) if (term := stems[word]) is not None]
    folded = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFC", folded)):
        if _UNSPACED.search(word) is None:
            if (term := stems[word]) is not None:
                found.append(term)
        else:
            found.extend(_pairs(word))
    return found


def _pairs(word: str) -> list[str]:
    found = []
    for run in re.split(f"({_UNSPACED.pattern})", word):
        if _UNSPACED.fullmatch(run):
            found += [run[n : n + 2] for n in range(len(run) - 1)] or [run]
        elif run:
            found.append(run)
    return found
