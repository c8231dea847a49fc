"""Question analysis: speakers, dates, and terms in a question."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import chain

from msgspec import Struct

from .index_entry import MAX_QUESTION, hashed
from .languages.detection import ENGLISH, LANGUAGES, likely_language, stop_words
from .languages.question_words import QUESTION_WORDS
from .languages.time_words import MONTHS
from .text_analysis import ENGLISH_STOP_WORDS, is_unspaced, name_forms, question_terms, terms

_WORD = re.compile(r"[^\W_]+")

MAX_TERMS = 200
"""How many terms of a question are used."""
MAX_LANGUAGES = 4
"""In how many languages of a scope a question's words are searched."""


_DIGIT = re.compile(r"\d")
_MONTH_STARTS = [name[:3] for name in MONTHS[ENGLISH]]


class Date(Struct, frozen=True):
    """A date in a question, possibly partial."""

    year: int | None = None
    month: int | None = None
    day: int | None = None


class AnalyzedQuestion(Struct, frozen=True):
    """An analyzed question."""

    text: str
    masked: str
    """The question with speaker names replaced by "I", since people do not name themselves in their own turns."""
    terms: dict[int, int]
    variants: dict[int, list[int]]
    """Terms that the words of a question have in texts of other languages, by the term in the question's own."""
    names: frozenset[int]
    """Terms that are speaker names."""
    speakers: frozenset[int]
    """Numbers of the speakers named in the question."""
    about_user: bool
    about_assistant: bool
    wants_time: bool
    wants_number: bool
    wants_latest: bool
    date: Date | None = None


def analyze_question(
    text: str, speakers: Mapping[str, int], languages: Mapping[str, int] | None = None
) -> AnalyzedQuestion:
    """Analyze a question; `speakers` are those of the scope, and `languages` tells how many texts it has in each.

    If it is not known which languages a scope has, and the question does not tell either, it can be any.
    """
    text = text[:MAX_QUESTION]
    spoken = _most_common(languages or {})
    detected = likely_language(text, spoken)
    if languages is None and detected is None:
        spoken = list(LANGUAGES)
    language = detected or (spoken[0] if spoken else ENGLISH)
    table = QUESTION_WORDS[language]
    named = _named(text, speakers, language)
    masked = text
    for word in named:
        if is_unspaced(word):
            masked = masked.replace(word, table.i)
            continue
        possessive, name = _name_patterns(word)
        masked = name.sub(table.i, possessive.sub(table.my, masked))
    found, variants = question_terms(text, language, spoken)
    counts: dict[int, int] = {}
    for term in found[:MAX_TERMS]:
        counts[hashed(term)] = counts.get(hashed(term), 0) + 1
    names: set[str] = set()
    for word in named:
        names.update(terms(f"of {word}", language=ENGLISH))
        if variants or language != ENGLISH:
            own, others = question_terms(word, language, spoken)
            names.update(own, *others.values())
    patterns = _patterns(language, text == text.lower())
    return AnalyzedQuestion(
        text,
        masked,
        counts,
        {hashed(term): [*map(hashed, others)] for term, others in variants.items() if others},
        frozenset(map(hashed, names)),
        frozenset(chain(*named.values())),
        not named and patterns["first"].search(text) is not None,
        not named and patterns["second"].search(patterns["request"].sub(" ", text)) is not None,
        patterns["when"].search(text) is not None,
        patterns["count"].search(text) is not None,
        patterns["latest"].search(text) is not None,
        _date(text, language),
    )


def _most_common(languages: Mapping[str, int]) -> list[str]:
    """Return the languages of a scope, the likeliest for a question first."""
    # Short texts in other languages count as English.
    shares = {language: count * (1 if language == ENGLISH else 3) for language, count in languages.items()}
    return sorted(shares, key=shares.__getitem__, reverse=True)[:MAX_LANGUAGES]


@lru_cache(1000)
def _name_patterns(word: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns that find a name with a possessive ending, and alone."""
    return re.compile(rf"\b{re.escape(word)}(?:'s|’s)"), re.compile(rf"\b{re.escape(word)}\b")


@cache
def _patterns(language: str, low: bool) -> dict[str, re.Pattern[str]]:
    """Return the patterns of a language; `low` if there are no capitals, so that "i" may mean "I"."""
    edge = r"\b" if LANGUAGES[language] else ""
    found = {}
    for name in ("when", "count", "latest", "first", "second", "request"):
        exact = name == "first" and language == ENGLISH and not low
        pattern = rf"{edge}(?:{getattr(QUESTION_WORDS[language], name)}){edge}"
        found[name] = re.compile(pattern, re.NOFLAG if exact else re.IGNORECASE)
    return found


@cache
def _dates(language: str) -> tuple[re.Pattern[str], ...]:
    """Return how a language writes dates, the most telling first."""
    numeric = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month_number>\d\d?)(?:-(?P<day>\d\d?))?\b")
    year = r"(?P<year>(?:19|20)\d\d)"
    if not LANGUAGES[language]:
        day = r"(?P<month_number>\d\d?)月(?:(?P<day>\d\d?)[日号號])?"
        return numeric, re.compile(rf"(?:{year}年)?{day}"), re.compile(rf"{year}年")
    if language == ENGLISH:
        month = "|".join(f"{name}|{name[:3]}" for name in MONTHS[ENGLISH])
        of, ordinal, dating = "(?:of )?", "(?:st|nd|rd|th)?", "in|during|of|since|before|after"
    else:
        month = "|".join(form for forms in MONTHS[language] for form in forms.split())
        of, ordinal, dating = "(?:de |del |di |do |d')?", r"(?:\.|er|º|°|-?го)?", QUESTION_WORDS[language].dating
    return (
        numeric,
        re.compile(rf"\b(?P<day>\d\d?){ordinal} {of}(?P<month>{month})\b\.?(?:,? {of}{year})?", re.IGNORECASE),
        re.compile(rf"\b(?P<month>{month})\b\.?(?: (?P<day>\d\d?){ordinal}\b)?(?:,? {of}{year})?", re.IGNORECASE),
        re.compile(rf"\b(?:{dating}) {year}\b", re.IGNORECASE),
    )


@cache
def _dating(language: str) -> frozenset[str]:
    return frozenset(QUESTION_WORDS[language].dating.split("|"))


def _date(text: str, language: str) -> Date | None:
    """Return the first date in a text; a month alone counts only after a word such as "in"."""
    lower = text.lower()
    if language == ENGLISH and _DIGIT.search(text) is None and not any(start in lower for start in _MONTH_STARTS):
        return None
    dating = _dating(language)
    for pattern in _dates(language):
        for match in pattern.finditer(text):
            found = match.groupdict()
            month = int(found["month_number"]) if found.get("month_number") else None
            if name := found.get("month"):
                before = text[: match.start()].rsplit(None, 1)
                if not (found.get("day") or found.get("year") or (before and before[-1].lower() in dating)):
                    continue
                name = name.lower()
                start = name[:3] if language == ENGLISH else name
                month = next(n for n, forms in enumerate(MONTHS[language], 1) if _starts(forms, start, language))
            year = int(found["year"]) if found.get("year") else None
            return Date(year, month, int(found["day"]) if found.get("day") else None)
    return None


def _starts(forms: str, start: str, language: str) -> bool:
    return forms.startswith(start) if language == ENGLISH else start in forms.split()


def _other(text: str, word: str, low: bool, language: str) -> bool:
    """Return whether a word that could be a name is used otherwise: "Will it?", "in May"."""
    plain = word.lower()
    if plain in ENGLISH_STOP_WORDS or plain in stop_words(language):
        return low or text.lstrip().startswith(word)
    if plain in MONTHS[ENGLISH]:
        before = text[: text.index(word)].split()
        return low or bool(before and before[-1].lower() in _dating(ENGLISH))
    return False


def _named(text: str, speakers: Mapping[str, int], language: str) -> dict[str, list[int]]:
    """Return the words of the question that name speakers, by full or first name, inflected in other languages."""
    if len(speakers) < 2:
        return {}
    low = text == text.lower()
    found: dict[str, list[int]] = {}
    words = {(word.lower() if low else word): word for word in _WORD.findall(text)}
    inflected = language != ENGLISH and bool(LANGUAGES[language])
    forms = {form: words[word] for word in reversed(words) for form in name_forms(word, language)} if inflected else {}
    for name, number in speakers.items():
        for part in dict.fromkeys((name, name.partition(" ")[0])):
            name_part = part.lower() if low else part
            if name_part in words and not _other(text, words[name_part], low, language):
                found.setdefault(words[name_part], []).append(number)
            elif (" " in name_part or (len(name_part) > 1 and is_unspaced(name_part))) and name_part in text:
                found.setdefault(name_part, []).append(number)
            elif inflected and (form := next(filter(forms.get, name_forms(name_part, language)), None)):
                found.setdefault(forms[form], []).append(number)
    full = {number for word, numbers in found.items() if " " in word for number in numbers}
    if full:
        # A full name identifies that person, not another with the same first name.
        found = {word: [n for n in numbers if n in full] for word, numbers in found.items()}
        found = {word: numbers for word, numbers in found.items() if numbers}
    # Longest first, so that a full name is masked before its first word.
    return {word: found[word] for word in sorted(found, key=len, reverse=True)}
