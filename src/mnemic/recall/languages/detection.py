"""Detects the language of a text by its script, and then by its stop words and letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

from .stop_words import COMMON_ENGLISH, LETTERS, STOP_WORDS
from .time_words import DAYS, OTHERS

LANGUAGES: dict[str, str] = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "pt": "portuguese",
    "it": "italian",
    "nl": "dutch",
    "pl": "polish",
    "ru": "russian",
    "sv": "swedish",
    "da": "danish",
    "no": "norwegian",
    "fi": "finnish",
    "tr": "turkish",
    "zh": "",
    "ja": "",
}
"""Languages, with the names of their Snowball stemmers; entries store positions, so append only."""
ENGLISH = "en"
UNSPACED = tuple(language for language, stemmer in LANGUAGES.items() if not stemmer)
"""Languages whose terms are pairs of characters."""
NUMBERS: dict[str, int] = {language: number for number, language in enumerate(LANGUAGES)}

_MARK = re.compile("(?<![иИ])\u0306|[\u0300-\u0305\u0307-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
"""Marks that are no letters of their own; й is a letter, and so are が and ぱ."""
_LETTERS = str.maketrans(
    {"ß": "ss", "ẞ": "SS", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "æ": "ae", "Æ": "Ae"}
    | {"œ": "oe", "Œ": "Oe", "’": "'"}
)
_NOT_RUSSIAN = frozenset("іїєґўјљњћђџѓќѕ")
_PART = re.compile(r"[^\W_]+")
_MANY = 1000
"""How many characters are looked at."""
_ENOUGH = 2
"""How many stop words, or letters, of another language a text in it has at least."""


def fold(text: str) -> str:
    """Return a text without accents, in which equal letters are equal characters."""
    if text.isascii():
        return text
    plain = _MARK.sub("", unicodedata.normalize("NFKD", text.translate(_LETTERS)))
    return unicodedata.normalize("NFC", plain)


def language_of(text: str, words: Sequence[str]) -> str:
    """Return the language of a text, of which `words` are folded; English unless there is reason to think otherwise."""
    foreign = _foreign()
    if (text.isascii() or not any(map(_telling, set(text)))) and (
        foreign.isdisjoint(words) or (len(foreign.intersection(words)) < _ENOUGH and not _english().isdisjoint(words))
    ):
        return ENGLISH
    return likely_language(text) or ENGLISH


def likely_language(text: str, expected: Sequence[str] = ()) -> str | None:
    """Return the language of a text; None if nothing tells.

    One word is enough if it belongs to no other language, or to an `expected` one; if words tell nothing, it is the
    first of these.
    """
    if text.isascii() and (not expected or expected[0] == ENGLISH):
        written = _PART.findall(text)
        if _foreign().isdisjoint(written):
            return None if _english().isdisjoint(written) else ENGLISH
    text = unicodedata.normalize("NFC", text[:_MANY]).lower()
    if not text.isascii() and (language := _by_script(text)) is not None:
        return "ja" if language == "zh" and "ja" in expected and "zh" not in expected else language
    known = _languages()
    words = {word for word in _PART.findall(text) if word in known}
    # Words of one letter tell related languages apart, but not whether a text is English.
    spoken = [known[word] for word in words if len(word) > 1]
    telling = _letters()
    letters = [] if text.isascii() else [telling[c] for c in set(text) if c in telling]
    votes = dict.fromkeys(expected, 30)
    for languages in (*map(known.__getitem__, words), *letters):
        if ENGLISH not in languages:
            share = 60 + 60 // len(languages)
            for language in languages:
                votes[language] = votes.get(language, 0) + share
    most = max(votes.values(), default=0)
    best = next(language for language in LANGUAGES if votes.get(language, 0) == most)
    english = [languages for languages in spoken if ENGLISH in languages]
    against = sum(best not in languages for languages in english)
    own = sum(best in languages and ENGLISH not in languages for languages in spoken)
    own += min(sum(best in languages for languages in letters), 1 if against else _ENOUGH)
    unmistakable = not english and any(known[word] == (best,) for word in words if len(word) > 2)
    if own > against and own >= (1 if unmistakable or best in expected else _ENOUGH):
        return best
    if own == against and best in expected[:1]:
        return best
    return ENGLISH if english else None


def is_latin(text: str) -> bool:
    """Return whether at least half of a text's letters are Latin."""
    if text.isascii():
        return True
    letters = [c for c in text if c.isalpha()]
    return 2 * sum(c <= "ɏ" for c in letters) >= len(letters)


def _telling(c: str) -> bool:
    """Return whether a character can tell a language: a letter with an accent, or of another script."""
    return "À" <= c <= "ɏ" or "Ѐ" <= c <= "ӿ" or "\u3040" <= c <= "\u9fff"


def _by_script(text: str) -> str | None:
    """Return the language of a text in lower case that its script tells."""
    latin = sum("a" <= c <= "z" for c in text)
    kana = sum("\u3040" <= c <= "\u30ff" for c in text)
    han = sum("\u3400" <= c <= "\u9fff" for c in text)
    if kana + han and 2 * (kana + han) > latin:
        return "ja" if kana and 8 * kana >= han else "zh"
    if sum("Ѐ" <= c <= "ӿ" for c in text) > latin and _NOT_RUSSIAN.isdisjoint(text):
        return "ru"
    return None


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, without accents."""
    return frozenset(map(fold, STOP_WORDS.get(language, ())))


@cache
def _languages() -> dict[str, tuple[str, ...]]:
    """Return the languages of stop words and words for times, with accents and as they are without."""
    found: dict[str, list[str]] = {word: [ENGLISH] for word in COMMON_ENGLISH}
    for language in STOP_WORDS:
        for word in (*STOP_WORDS[language], *DAYS[language].split(), *OTHERS[language].split()):
            for form in {word, fold(word)}:
                if language not in found.setdefault(form, []):
                    found[form].append(language)
    return {word: tuple(languages) for word, languages in found.items()}


@cache
def _letters() -> dict[str, tuple[str, ...]]:
    """Return the languages of letters that are not English."""
    return {c: tuple(name for name, own in LETTERS.items() if c in own) for own in LETTERS.values() for c in own}


@cache
def _foreign() -> frozenset[str]:
    """Return the stop words that are not English, as they are written."""
    return all_cases(word for word, languages in _languages().items() if ENGLISH not in languages and word.isascii())


@cache
def _english() -> frozenset[str]:
    """Return frequent English words, as they are written."""
    return all_cases(word for word, languages in _languages().items() if ENGLISH in languages and len(word) > 1)


def all_cases(words: Iterable[str]) -> frozenset[str]:
    """Return words in lower case, capitalized and in upper case."""
    return frozenset(form for word in words for form in (word, word.capitalize(), word.upper()))
