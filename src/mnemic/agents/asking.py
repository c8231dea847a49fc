"""Asks a model for JSON about numbered items, so that it can name its sources."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ..errors import InvalidValueError
from ..event_loop import call
from ..records import Message

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


def asked(model: Any) -> Asked:
    """Return a pydantic-ai model, or a function from messages or a prompt, as an async function."""
    if callable(model):
        plain = wants_text(model)

        async def ask(messages: list[Message]) -> str:
            return _text(await call(model, as_prompt(messages) if plain else messages))

        return ask
    from pydantic_ai.direct import model_request

    from .conversion import to_pydantic_ai
    from .models import model_of

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


def name_of(model: Any) -> str | None:
    """Return the name of a model."""
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
