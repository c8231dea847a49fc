"""Counting tokens, exactly and offline."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, runtime_checkable

from msgspec import json

from .checks import shown
from .errors import InvalidValueError
from .records import Message

DEFAULT_ENCODING = "o200k_base"
"""The encoding of OpenAI's models since GPT-4o."""
ENVELOPE = 4
"""What a message costs beside its text, by OpenAI's published rule: three tokens, and one for its role."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text, as some model would; `name` tells one counter from another."""

    name: str

    def count(self, text: str) -> int:
        """Return how many tokens `text` is."""
        ...


class _Encoding:
    """An encoding whose tables come with the package splintr-rs; loaded when it first counts."""

    def __init__(self, name: str) -> None:
        from splintr import Tokenizer

        try:
            self._encode = Tokenizer.from_pretrained(name).encode_ordinary
        except ValueError as error:
            raise InvalidValueError(f"no token encoding is called {shown(name)}: {error}") from None
        self.name = name

    def count(self, text: str) -> int:
        return len(self._encode(text))


class _Function:
    """A plain function as a counter."""

    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)

    def count(self, text: str) -> int:
        return int(self._function(text))


@lru_cache(maxsize=16)
def encoding(name: str = DEFAULT_ENCODING) -> TokenCounter:
    """Return the counter of an encoding such as `o200k_base`, `cl100k_base`, `llama3` or `mistral_v3`.

    Raises InvalidValueError for a name that is not known.
    """
    return _Encoding(name)


def counter(choice: str | TokenCounter | Callable[[str], int]) -> TokenCounter:
    """Return the counter that is meant by a name, a counter, or a function of a text."""
    if isinstance(choice, str):
        return encoding(choice)
    if isinstance(choice, TokenCounter):
        return choice
    if callable(choice):
        return _Function(choice)
    raise InvalidValueError(f"tokens are counted by an encoding's name or a function, not {shown(choice)}")


def count_message(message: Message, tokens: TokenCounter) -> int:
    """Return what a message costs in a prompt: all its text, and the envelope. Images are not counted."""
    total = ENVELOPE
    if isinstance(message.content, str):
        total += tokens.count(message.content)
    elif message.content is not None:
        total += tokens.count(message.text or "")
    elif message.structured_data is not None:
        total += tokens.count(json.encode(message.structured_data).decode())
    if message.name:
        total += 1 + tokens.count(message.name)
    for call in message.tool_calls:
        total += ENVELOPE + tokens.count(call.name) + tokens.count(call.arguments)
    for request in message.agent_calls:
        total += ENVELOPE + tokens.count(request.agent_name)
        total += tokens.count(json.encode(request.request).decode())
    return total
