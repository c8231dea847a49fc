"""Tokenization and stemming: turns text in any script into search terms; and word-level similarity of texts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from typing import Any

from .languages.detection import ENGLISH, LANGUAGES, fold, language_of, stop_words
from .languages.irregular_forms import IRREGULAR_FORMS
from .languages.stop_words import CHINESE_STOP_WORDS, JAPANESE_STOP_WORDS, NEGATIONS, STOP_WORDS
from .languages.time_words import DAYS, MONTHS, OTHERS

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0002fa1f]+"
)
"""Scripts without spaces between words, or with agglutinative words."""
_ASPECT = re.compile("(?<=(.))了(?=(.))")
"""The Chinese particle for what is done stands inside words: 跳了舞 is 跳舞."""

ENGLISH_STOP_WORDS = STOP_WORDS[ENGLISH]
_SHOUTED = frozenset(word.upper() for word in ENGLISH_STOP_WORDS if len(word) > 1)
_NAMES = _SHOUTED | {word.capitalize() for word in ENGLISH_STOP_WORDS if len(word) > 1}
"""Capitalized stop words, which may be names."""
_BETWEEN = {n: " " for n in range(128) if not chr(n).isalnum() and chr(n) != "'"}
_CACHED_WORDS = 200_000
_HYPHENATED = re.compile(r"(?<![^\W_])[^\W_]++(?:-[^\W_]++)+")
_CAPITAL = re.compile(r"[A-Z][A-Za-z]+")
_COMPOUND = re.compile(r"\w-\w")
_PART = re.compile(r"[^\W_]+")


class _Stems(dict[str, str | None]):
    """Cache of the term of each word; None for a stop word."""

    def __init__(self, stem: Any) -> None:
        self._stem = stem

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        plain = word.lower().replace("’", "'")
        stop = plain in ENGLISH_STOP_WORDS or plain.partition("'")[0] in ENGLISH_STOP_WORDS
        term = self[word] = None if stop else self._stem(plain)
        return term


class _AccentedStems(dict[str, tuple[str, ...]]):
    """Cache of the terms of each word in a language other than English; none for a stop word.

    Accents matter to the stemmer, but many people leave them out: a word whose stem depends on them has two terms.
    """

    def __init__(self, language: str, stem: Any) -> None:
        self._stop_words = stop_words(language)
        self._stem = stem

    def __missing__(self, word: str) -> tuple[str, ...]:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        lower = word.lower()
        plain = fold(lower)
        found: tuple[str, ...] = ()
        if plain not in self._stop_words:
            found = tuple(dict.fromkeys((fold(self._stem(lower)), self._stem(plain))))
        self[word] = found
        return found


@cache
def _stems() -> _Stems:
    from Stemmer import Stemmer

    return _Stems(Stemmer(LANGUAGES[ENGLISH]).stemWord)


@cache
def _accented_stems(language: str) -> _AccentedStems:
    from Stemmer import Stemmer

    return _AccentedStems(language, Stemmer(LANGUAGES[language]).stemWord)


def words(text: str) -> list[str]:
    """Return the words of a text in order, as written, without accents."""
    if text.isascii():
        # Three times as fast as the regular expression, with the same result.
        found = text.translate(_BETWEEN).split()
        return [word for part in found if (word := part.strip("'"))] if "'" in text else found
    return _WORD.findall(fold(text))


def terms(text: str, known: list[str] | None = None, language: str | None = None) -> list[str]:
    """Return the search terms of a text in order: stemmed, without accents and stop words.

    A capitalized English stop word inside a sentence is a name (Will, US, IT) and a term of its own. A hyphenated
    word also counts as one word without hyphens. Scripts without spaces yield overlapping character pairs, and Han
    characters. In a text
    without words, symbols (👍) are terms. Pass `known` and `language` if they are computed already.
    """
    spoken = words(text) if known is None else known
    if not spoken:
        return [c for c in text if unicodedata.category(c)[0] == "S"]
    if language is None:
        language = language_of(text, spoken)
    if language != ENGLISH and LANGUAGES[language]:
        return _accented_terms(text, language)
    stems = _stems()
    if text.isascii() or _UNSPACED.search(text) is None:
        found = list(filter(None, map(stems.__getitem__, spoken)))
    else:
        found = []
        for word in spoken:
            if _UNSPACED.search(word) is not None:
                found.extend(_pairs(word, language))
            elif (term := stems[word]) is not None:
                found.append(term)
    if not _NAMES.isdisjoint(spoken[1:]) or (spoken and spoken[0] in _SHOUTED):
        found.extend(_named(text))
    if "-" in text and _COMPOUND.search(text) is not None:
        for compound in _HYPHENATED.findall(fold(text)):
            if term := stems[compound.replace("-", "")]:
                found.append(term)
    return found


def _accented_terms(text: str, language: str) -> list[str]:
    """Return the search terms of a text in another language than English; articles before an apostrophe are words."""
    stems = _accented_stems(language)
    text = unicodedata.normalize("NFC", text)
    found: list[str] = []
    for word in _PART.findall(text):
        found.extend(stems[word] if word.isascii() or _UNSPACED.search(word) is None else _pairs(word, language))
    if "-" in text and _COMPOUND.search(text) is not None:
        for compound in _HYPHENATED.findall(text):
            found.extend(stems[compound.replace("-", "")])
    return found


def question_terms(text: str, language: str, others: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the terms of a question, and for a term those that the same word has in texts of `others`.

    Short texts count as English whatever their language, so English is always one of the others.
    """
    found = terms(text, language=language)
    stemmed = [other for other in others if other not in (ENGLISH, language) and LANGUAGES[other]]
    own = language if language != ENGLISH and LANGUAGES[language] else None
    variants: dict[str, list[str]] = {
        term: [*_irregular()[term]] for term in found if own is None and term in _irregular()
    }
    if own is None and not stemmed:
        return found, variants
    unaccented: set[str] = set()
    for word in (_WORD if own is None else _PART).findall(unicodedata.normalize("NFC", text)):
        if _UNSPACED.search(word) is not None:
            continue
        english = [term] if (term := _stems()[fold(word)]) is not None else []
        first, *second = (english if own is None else _accented_stems(own)[word]) or ("",)
        if first:
            unaccented.update(second)
            bare = word.replace("’", "'").partition("'")[0]
            if own is not None and (again := _stems()[first]) is not None:
                english.append(again)
            for term in (*second, *english, *(term for other in stemmed for term in _accented_stems(other)[bare])):
                if term not in (first, *variants.setdefault(first, [])):
                    variants[first].append(term)
    return [term for term in found if term not in unaccented or term in variants], variants


@cache
def _irregular() -> dict[str, list[str]]:
    """Return the terms of the other forms of an irregular English word, by the term of each."""
    found: dict[str, list[str]] = {}
    for forms in IRREGULAR_FORMS:
        stems = list(dict.fromkeys(stem for form in forms.split() if (stem := _stems()[form]) is not None))
        for stem in stems:
            known = found.setdefault(stem, [])
            known.extend(other for other in stems if other != stem and other not in known)
    return found


def name_forms(name: str, language: str) -> list[str]:
    """Return stems by which forms of a name match in a language other than English: "Annas", "Анны"."""
    stems = _accented_stems(language)
    return [f"{name[:1]}{form}" for word in (name, name.removesuffix("s")) for form in stems[word]]


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


def _pairs(word: str, language: str) -> list[str]:
    found: list[str] = []
    word, place = word.lower(), 0
    for match in _UNSPACED.finditer(word):
        found += [word[place : match.start()]] if match.start() > place else []
        run, place = match.group(), match.end()
        pairs = [run[n : n + 2] for n in range(len(run) - 1)]
        # Many Chinese and Japanese words have one character, and others before and after them.
        single = [c for c in run if "\u3400" <= c <= "\u9fff" and c not in CHINESE_STOP_WORDS]
        if language == "ja":
            pairs = [pair for pair in pairs if pair not in JAPANESE_STOP_WORDS]
        elif language == "zh":
            pairs = [pair for pair in pairs if not CHINESE_STOP_WORDS.issuperset(pair)]
            pairs += [f"{before}{after}" for before, after in _ASPECT.findall(run)]
        found += (pairs + single) or [run]
    return [*found, word[place:]] if place < len(word) else found


def is_unspaced(word: str) -> bool:
    """Return whether a word is in a script without spaces between words."""
    return _UNSPACED.fullmatch(word) is not None


# ---------------------------------------------------------------- similarity

NEAR = 0.85
"""Similarity at which two texts count as duplicates."""
LONG = 400
"""Number of words from which word order is compared in pairs only, to bound the time."""

_PLAIN_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:/]\d+)*")


@cache
def _times() -> frozenset[str]:
    """Return words for times, of which another one makes another text."""
    others = " ".join(words for language, words in OTHERS.items() if language != ENGLISH)
    tables = (*DAYS.values(), *(form for forms in MONTHS.values() for form in forms), others)
    shifts = ("morning", "evening", "today", "tonight", "tomorrow", "yesterday", "last", "next")
    return frozenset(form for table in (*tables, *shifts) for word in table.split() for form in (word, fold(word)))


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
    negations = sorted(word for word in words if word in NEGATIONS or word.endswith("n't"))
    times = [word for word in words if word in _times()]
    symbols = [c for c in text if not c.isalnum() and (c in "#%&@*/" or unicodedata.category(c)[0] == "S")]
    return negations, times, _NUMBER.findall(text), symbols
