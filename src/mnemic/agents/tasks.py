"""Prompts for learning from conversations, and the expected answers."""

from __future__ import annotations

from msgspec import Struct, field

SUMMARIZE = """\
Summarize the conversation for someone who will continue it: who the people are, what they want, what \
was found out, decided and left open, with names, numbers and dates. If a summary so far is given, carry it \
on, and keep of it what still matters. Answer with the summary alone, in at most 200 words."""
TITLE_TASK = "Give the conversation a title of at most eight words. Answer with the title alone."
EXTRACT = """\
You are given numbered messages. Find what they say that will matter later: about people, their plans, \
preferences, circumstances and relations. State only what is said, not what you guess. Answer with JSON alone:
{"facts": [{"text": "a sentence that makes sense on its own, with names", "message": 1, "confidence": 0.9}],
 "triples": [{"subject": "Alice", "predicate": "lives_in", "object": "Oslo", "single": true, "message": 1,
 "confidence": 0.9}]}
"message" is the number of the message that says it. "single" is for what has one object at a time. If there \
is nothing, the lists are empty."""
REFLECT = """\
You are given numbered things that were said or remembered over some time. Say what they amount to, where \
several of them together show something that none of them says: habits, changes, causes, contradictions. \
Answer with JSON alone:
{"insights": [{"text": "a sentence that makes sense on its own", "sources": [1, 4], "importance": 3}]}
"sources" are the numbers of what shows it, "importance" is from 1 to 10. If there is nothing, the list is \
empty."""


class FoundFact(Struct):
    """A fact, and the number of the message that says it."""

    text: str
    message: int
    confidence: float = 1.0


class Triple(Struct):
    """A fact as subject, predicate and object, and the number of the message that says it."""

    subject: str
    predicate: str
    object: str
    message: int
    single: bool = False
    confidence: float = 1.0


class Found(Struct):
    """Facts and triples that a model found in messages."""

    facts: list[FoundFact] = field(default_factory=list)
    triples: list[Triple] = field(default_factory=list)


class Insight(Struct):
    """A conclusion from several items, by their numbers."""

    text: str
    sources: list[int]
    importance: float = 1.0


class Insights(Struct):
    """Insights that a model found."""

    insights: list[Insight] = field(default_factory=list)
