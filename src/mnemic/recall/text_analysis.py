"""Tokenization and stemming: turns text in any script into search terms; and word-level similarity of texts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
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


# ---------------------------------------------------------------- similarity

NEAR = 0.85
"""Similarity at which two texts count as duplicates."""
LONG = 400
"""Number of words from which word order is compared in pairs only, to bound the time."""

_PLAIN_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:/]\d+)*")
_NEGATIONS = frozenset(
    """
    no not never none nothing nobody nor without cannot nicht kein keine keinen keinem nie niemals nichts ohne
    ne pas jamais rien sans non mai senza nunca jamás sin nada não не нет никогда без 不 没 ない
    """.split()  # noqa: SIM905
)
_TIMES = frozenset(
    (*DAYS, *MONTHS, *"morning evening today tonight tomorrow yesterday last next".split())  # noqa: SIM905
)


def similarity(one: str, other: str, *, strict: bool = True) -> float:
    """Return the similarity of two texts, from 0 to 1 (same words in the same order).

    Texts that differ in a number, a sign or a day, or of which only one has a negation, have similarity 0. With
    `strict`, texts in which a content word is replaced have at most 0.8.
    """
    words, others = _words(one), _words(other)
    if not words or not others:
        return float(one.strip() == other.strip())
    if _decisive_parts(one, words) != _decisive_parts(other, others):
        return 0.0
    if words == others:
        return 1.0
    most = 0.99 if not strict or content_words(one) == content_words(other) else 0.8
    if len(words) + len(others) < 2 * LONG:
        return most * SequenceMatcher(None, words, others, autojunk=False).ratio()
    first, second = (Counter(pairwise(some)) for some in (words, others))
    return most * sum((first & second).values()) / max(sum((first | second).values()), 1)


def content_words(text: str) -> tuple[str, ...]:
    """Return the stemmed content words of a text: the same for similar texts."""
    return tuple(terms(text))


def _words(text: str) -> list[str]:
    return _PLAIN_WORD.findall(text.lower().replace("’", "'"))


def _decisive_parts(text: str, words: list[str]) -> tuple[list[str], ...]:
    """Return the parts of a text that change its meaning: numbers, signs, days, negations."""
    negations = sorted(word for word in words if word in _NEGATIONS or word.endswith("n't"))
    times = [word for word in words if word in _TIMES]
    symbols = [c for c in text if not c.isalnum() and (c in "#%&@*/" or unicodedata.category(c)[0] == "S")]
    return negations, times, _NUMBER.findall(text), symbols
