"""What a question tells by its words: whom it is about, whether it asks for a time, and its terms."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from ..store.analysis import MONTHS, STOP_WORDS, terms
from .entry import hashed

_WHEN = re.compile(
    r"\b(?:when|how long|how old|what (?:date|day|month|year|time)|"
    r"which (?:date|day|month|year|weekend|week)|wann|quand|cuándo|quando|kiedy)\b|何时|什么时候|いつ|언제",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\bhow (?:many|much|often|long|far|old|big|tall)\b|\bwhat (?:number|percentage)\b", re.I)
_LATEST = re.compile(
    r"\b(?:latest|newest|most recent(?:ly)?|last time|currently|right now|these days|nowadays|"
    r"at the moment)\b",
    re.IGNORECASE,
)
_FIRST = re.compile(r"\b(?:I|my|me|mine|I'm|I've|I'd|myself)\b")
_FIRST_LOW = re.compile(r"\b(?:i|my|me|mine|i'm|i've|i'd|myself)\b")
_SECOND = re.compile(r"\b(?:you|your|yours|you've|you'd)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")

MAX_QUESTION = 10_000
"""How many characters of a question are looked at."""
MAX_TERMS = 200
"""And how many of its terms."""


_MONTH = "|".join(f"{name}|{name[:3]}" for name in MONTHS)
_DATES = (
    re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month_number>\d\d?)(?:-(?P<day>\d\d?))?\b"),
    re.compile(
        rf"\b(?P<day>\d\d?)(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})\b\.?(?:,? (?P<year>(?:19|20)\d\d))?",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?P<month>{_MONTH})\b\.?(?: (?P<day>\d\d?)(?:st|nd|rd|th)?\b)?"
        r"(?:,? (?:of )?(?P<year>(?:19|20)\d\d))?",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:in|during|of|since|before|after) (?P<year>(?:19|20)\d\d)\b", re.IGNORECASE),
)


_DATING = frozenset(
    """
    in during of since before after until till by last next this early late mid around
    """.split()  # noqa: SIM905
)


class Date(Struct, frozen=True):
    """A date that a question names, or as much of one as it names."""

    year: int | None = None
    month: int | None = None
    day: int | None = None


class Question(Struct, frozen=True):
    """A question, as recall understands it."""

    text: str
    masked: str
    """The question as the person it names would ask it: a person's own turns say "I", not a name."""
    terms: dict[int, int]
    names: frozenset[int]
    """Those of the terms that are names of speakers."""
    speakers: frozenset[int]
    """The numbers of the speakers that it names."""
    about_user: bool
    about_assistant: bool
    wants_time: bool
    wants_number: bool
    wants_latest: bool
    date: Date | None = None


def understand(text: str, speakers: Mapping[str, int]) -> Question:
    """Return what a question tells; `speakers` are the names of those who speak in the scope."""
    text = text[:MAX_QUESTION]
    named = _named(text, speakers)
    masked = text
    for word in named:
        masked = re.sub(rf"\b{re.escape(word)}(?:'s|’s)", "my", masked)
        masked = re.sub(rf"\b{re.escape(word)}\b", "I", masked)
    counts: dict[int, int] = {}
    for term in terms(text)[:MAX_TERMS]:
        counts[hashed(term)] = counts.get(hashed(term), 0) + 1
    low = text == text.lower()
    return Question(
        text,
        masked,
        counts,
        frozenset(hashed(term) for word in named for term in terms(f"of {word}")),
        frozenset(number for numbers in named.values() for number in numbers),
        not named and (_FIRST_LOW if low else _FIRST).search(text) is not None,
        not named and _SECOND.search(text) is not None,
        _WHEN.search(text) is not None,
        _COUNT.search(text) is not None,
        _LATEST.search(text) is not None,
        _date(text),
    )


def _date(text: str) -> Date | None:
    """Return the first date in a text; a month alone is one only after a word such as "in"."""
    for pattern in _DATES:
        for match in pattern.finditer(text):
            found = match.groupdict()
            month = int(found["month_number"]) if found.get("month_number") else None
            if name := found.get("month"):
                before = text[: match.start()].rsplit(None, 1)
                if not (found.get("day") or found.get("year") or (before and before[-1].lower() in _DATING)):
                    continue
                month = next(n for n, full in enumerate(MONTHS, 1) if full.startswith(name.lower()[:3]))
            year = int(found["year"]) if found.get("year") else None
            return Date(year, month, int(found["day"]) if found.get("day") else None)
    return None


def _other(text: str, word: str, low: bool) -> bool:
    """Tell whether a word that is also a name is used for what else it means: Will it?, in May."""
    plain = word.lower()
    if plain in STOP_WORDS:
        return low or text.lstrip().startswith(word)
    if plain in MONTHS:
        before = text[: text.index(word)].split()
        return low or bool(before and before[-1].lower() in _DATING)
    return False


def _named(text: str, speakers: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the words of the question that name speakers, by their full or their first names."""
    if len(speakers) < 2:
        return {}
    low = text == text.lower()
    found: dict[str, list[int]] = {}
    words = {(word.lower() if low else word): word for word in _WORD.findall(text)}
    for name, number in speakers.items():
        for part in dict.fromkeys((name, name.partition(" ")[0])):
            asked = part.lower() if low else part
            if asked in words and not _other(text, words[asked], low):
                found.setdefault(words[asked], []).append(number)
            elif " " in asked and asked in text:
                found.setdefault(asked, []).append(number)
    full = {number for word, numbers in found.items() if " " in word for number in numbers}
    if full:
        # A full name is that person's, and not that of another of the same first name.
        found = {word: [n for n in numbers if n in full] for word, numbers in found.items()}
        found = {word: numbers for word, numbers in found.items() if numbers}
    # The longest first, so that a full name is masked before its first word is.
    return {word: found[word] for word in sorted(found, key=len, reverse=True)}
