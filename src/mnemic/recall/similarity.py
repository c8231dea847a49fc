"""Word-level similarity of two texts; contradictory texts are never similar."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise
from unicodedata import category

from .text_analysis import DAYS, MONTHS, terms

NEAR = 0.85
"""Similarity at which two texts count as duplicates."""
LONG = 400
"""Number of words from which word order is compared in pairs only, to bound the time."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
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
    return _WORD.findall(text.lower().replace("’", "'"))


def _decisive_parts(text: str, words: list[str]) -> tuple[list[str], ...]:
    """Return the parts of a text that change its meaning: numbers, signs, days, negations."""
    negations = sorted(word for word in words if word in _NEGATIONS or word.endswith("n't"))
    times = [word for word in words if word in _TIMES]
    symbols = [c for c in text if not c.isalnum() and (c in "#%&@*/" or category(c)[0] == "S")]
    return negations, times, _NUMBER.findall(text), symbols
