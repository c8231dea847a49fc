"""Requests to a model for learning: the prompts, the expected answers, and asking for JSON about numbered items."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from ..errors import InvalidValueError
from ..event_loop import call
from ..messages import Message

Asked: TypeAlias = Callable[[list[Message]], Awaitable[str]]
"""A model as a function from messages to text."""
Answer = TypeVar("Answer", bound=Struct)

ATTEMPTS = 2
"""How often a model is asked for a valid answer."""
MAX_LINE = 2000
"""Maximum number of characters shown per message."""

PROMPTS = ("prompt", "text", "question")
"""Parameter names of functions that take one text instead of messages."""

_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)

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


class ExtractedFacts(Struct):
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


def asked(model: Any) -> Asked:
    """Return a pydantic-ai model, or a function from messages or a prompt, as an async function."""
    if callable(model):
        plain = wants_text(model)

        async def ask(messages: list[Message]) -> str:
            return _text(await call(model, as_prompt(messages) if plain else messages))

        return ask
    from pydantic_ai.direct import model_request

    from .agent import model_of
    from .conversion import to_pydantic_ai

    known = model_of(model)

    async def request(messages: list[Message]) -> str:
        return _text((await model_request(known, to_pydantic_ai(messages))).text)

    return request


def wants_text(function: Callable[..., Any]) -> bool:
    """Return whether a function takes a prompt, by the name or type of its first parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    first = parameters[0] if parameters else None
    return first is not None and (first.name in PROMPTS or first.annotation in (str, "str"))


def as_prompt(messages: list[Message]) -> str:
    """Return messages as one text: who said what."""
    return "\n\n".join(
        (message.text or "") if message.role == "system" else f"{message.name or message.role}: {message.text or ''}"
        for message in messages
    )


def model_name(model: Any) -> str | None:
    """Return the name of a model; None if there is none."""
    for attribute in ("model_name", "__name__"):
        if isinstance(name := getattr(model, attribute, None), str):
            return name
    return model if isinstance(model, str) else type(model).__name__ if model is not None else None


def numbered(lines: Sequence[str]) -> str:
    """Return numbered lines, starting with 1."""
    return "\n".join(f"[{n}] {' '.join(line.split())[:MAX_LINE]}" for n, line in enumerate(lines, 1))


async def ask_for(answer: type[Answer], model: Asked, task: str, material: str) -> Answer:
    """Return a model's JSON answer to a task, decoded; raises InvalidValueError."""
    messages = [Message("system", task), Message("user", material)]
    for attempt in range(ATTEMPTS):
        text = await model(messages)
        try:
            return msgspec.convert(_parsed(text), answer, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            if attempt + 1 == ATTEMPTS:
                raise InvalidValueError(f"the model did not answer with the JSON it was asked for: {error}") from None
            again = f"That cannot be read ({error}). Answer with the JSON alone."
            messages = [*messages, Message("assistant", text), Message("user", again)]
    raise AssertionError("unreachable")


def _parsed(text: str) -> Any:
    fenced = _FENCED.search(text)
    inner = fenced[1] if fenced else text
    start, end = inner.find("{"), inner.rfind("}")
    if start < 0 or end < start:
        raise ValueError("there is no JSON object in it")
    return json.loads(inner[start : end + 1])


def _text(answered: object) -> str:
    if not isinstance(answered, str):
        raise InvalidValueError(f"a model returns text, not {type(answered).__name__}")
    return answered
