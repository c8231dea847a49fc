"""Summaries and titles without a model: the sentences that say most of what a conversation is about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import log, sqrt

from msgspec import Struct

from ..records import Message
from ..store.analysis import terms

MAX_SENTENCES = 12
"""How many sentences a summary has."""
MAX_TITLE = 60
"""How many characters a title has."""
LONGEST = 300
"""Longer sentences than this are cut: they are lists, or code."""
SO_FAR = "Summary so far: "
"""What stands before the summary that is to be carried on."""

_SENTENCE = re.compile(r"(?<=[.!?…。！？])\s+|\n+")


class _Sentence(Struct, frozen=True):
    place: int
    text: str
    terms: frozenset[str]
    weight: float


def extractive(messages: Sequence[Message]) -> str:
    """Return a summary made of the conversation's own sentences, in their order, what was told before first.

    It takes what a model would be given to summarise: the summary so far, if there is one, as a system
    message, and the messages.
    """
    sentences = list(_sentences(messages))
    said = Counter(term for sentence in sentences for term in sentence.terms)
    chosen: list[_Sentence] = []
    # A word alone says something only where nobody says more.
    telling = [sentence for sentence in sentences if len(sentence.terms) > 1] or sentences
    left = {sentence.place: sentence for sentence in telling if sentence.terms}
    told: set[str] = set()
    while left and len(chosen) < MAX_SENTENCES:
        best = max(left.values(), key=lambda s: (_worth(s, said, told), -s.place))
        if _worth(best, said, told) <= 0:
            break
        chosen.append(left.pop(best.place))
        told |= best.terms
    return "\n".join(sentence.text for sentence in sorted(chosen, key=lambda s: s.place)) or "…"


def title_of(messages: Sequence[Message]) -> str | None:
    """Return a title: the first sentence of the user's that says something; None if there is none."""
    for message in messages:
        if message.role != "user":
            continue
        for text in _SENTENCE.split(message.text or ""):
            if len(set(terms(text))) >= 2:
                return _cut(" ".join(text.split()).rstrip(".!?… "), MAX_TITLE)
    said = next((message.text for message in messages if message.role == "user" and message.text), None)
    return _cut(" ".join(said.split()), MAX_TITLE) if said and said.strip() else None


def _sentences(messages: Sequence[Message]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for message in messages:
        text = message.text or ""
        if message.role == "tool" or not text:
            continue
        before = message.role == "system" and text.startswith(SO_FAR)
        if message.role == "system" and not before:
            continue
        # What a user says tells more of a conversation than how it was answered.
        weight = 1.5 if before else 1.0 if message.role == "user" else 0.7
        for piece in _SENTENCE.split(text.removeprefix(SO_FAR)):
            plain = " ".join(piece.split())
            said = plain if before else f"{message.name or message.role}: {plain}"
            if plain:
                made = _Sentence(len(found), _cut(said, LONGEST), frozenset(terms(plain)), weight)
                found.append(made)
    return found


def _worth(sentence: _Sentence, said: Counter[str], told: set[str]) -> float:
    """Return what a sentence adds: the words it has that others have too, and that were not told yet."""
    new = sentence.terms - told
    return sentence.weight * sum(log(1 + said[term]) for term in new) / sqrt(3 + len(sentence.terms))


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return (
        text[: most - 1].rpartition(" ")[0].rstrip(" ,;:–-") + "…"
        if " " in text[:most]
        else text[: most - 1] + "…"
    )
