"""Question analysis: speakers, dates, and terms in a question."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from .index_entry import MAX_QUESTION, hashed
from .text_analysis import MONTHS, STOP_WORDS, terms

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
_REQUEST = re.compile(
    r"\b(?:can|could|would|will) you\b|\bdo you (?:think|know|recommend|suggest)\b|"
    r"\byou(?:'d| would)? (?:suggest|recommend)\b",
    re.IGNORECASE,
)
"""How one asks something of the assistant: it is not about the assistant."""
_WORD = re.compile(r"[^\W_]+")

MAX_TERMS = 200
"""How many terms of a question are used."""


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


def analyze_question(text: str, speakers: Mapping[str, int]) -> AnalyzedQuestion:
    """Analyze a question; `speakers` are the names of the speakers in the scope."""
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
    return AnalyzedQuestion(
        text,
        masked,
        counts,
        frozenset(hashed(term) for word in named for term in terms(f"of {word}")),
        frozenset(number for numbers in named.values() for number in numbers),
        not named and (_FIRST_LOW if low else _FIRST).search(text) is not None,
        not named and _SECOND.search(_REQUEST.sub(" ", text)) is not None,
        _WHEN.search(text) is not None,
        _COUNT.search(text) is not None,
        _LATEST.search(text) is not None,
        _date(text),
    )


def _date(text: str) -> Date | None:
    """Return the first date in a text; a month alone counts only after a word such as "in"."""
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
    """Return whether a word that could be a name is used otherwise: "Will it?", "in May"."""
    plain = word.lower()
    if plain in STOP_WORDS:
        return low or text.lstrip().startswith(word)
    if plain in MONTHS:
        before = text[: text.index(word)].split()
        return low or bool(before and before[-1].lower() in _DATING)
    return False


def _named(text: str, speakers: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the words of the question that name speakers, by full or first name."""
    if len(speakers) < 2:
        return {}
    low = text == text.lower()
    found: dict[str, list[int]] = {}
    words = {(word.lower() if low else word): word for word in _WORD.findall(text)}
    for name, number in speakers.items():
        for part in dict.fromkeys((name, name.partition(" ")[0])):
            name_part = part.lower() if low else part
            if name_part in words and not _other(text, words[name_part], low):
                found.setdefault(words[name_part], []).append(number)
            elif " " in name_part and name_part in text:
                found.setdefault(name_part, []).append(number)
    full = {number for word, numbers in found.items() if " " in word for number in numbers}
    if full:
        # A full name identifies that person, not another with the same first name.
        found = {word: [n for n in numbers if n in full] for word, numbers in found.items()}
        found = {word: numbers for word, numbers in found.items() if numbers}
    # Longest first, so that a full name is masked before its first word.
    return {word: found[word] for word in sorted(found, key=len, reverse=True)}
