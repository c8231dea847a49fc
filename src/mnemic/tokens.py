"""Counting tokens, exactly and offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from msgspec import json

from .checks import check_count, shown
from .errors import InvalidValueError
from .records import Message

__all__ = [
    "DEFAULT_ENCODING",
    "ENVELOPE",
    "TokenCounter",
    "count_message",
    "counter",
    "encoding",
]

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
    """An encoding whose tables come with the package splintr-rs; they are loaded when it first counts."""

    def __init__(self, name: str) -> None:
        from splintr import base_vocab_size

        try:
            base_vocab_size(name)
        except ValueError as error:
            raise InvalidValueError(f"no token encoding is called {shown(name)}: {error}") from None
        self.name = name
        self._encode: Callable[[str], list[int]] | None = None

    def count(self, text: str) -> int:
        if self._encode is None:
            from splintr import Tokenizer

            self._encode = Tokenizer.from_pretrained(self.name).encode_ordinary
        return len(self._encode(text))


class _Function:
    """A plain function as a counter."""

    def __init__(self, function: Callable[[str], int]) -> None:
        name = getattr(function, "__qualname__", None)
        if name is None:
            raise InvalidValueError(
                f"{shown(function)} has no name to tell its counts from another's: "
                "give it a `name` and a `count` method, or wrap it in a function"
            )
        self._function = function
        self.name = f"{function.__module__}.{name}"

    def count(self, text: str) -> int:
        return check_count(self._function(text), f"the count of {self.name}")


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
    """Return what a message costs in a prompt: all that would be sent, and the envelope.

    Images are not counted: what they cost is each model's own affair.
    """
    total = ENVELOPE
    if isinstance(message.content, str) and message.content:
        total += tokens.count(message.content)
    else:
        total += sum(tokens.count(part) for part in _sent(message))
    if message.name:
        total += 1 + tokens.count(message.name)
    for call in message.tool_calls:
        total += ENVELOPE + tokens.count(call.name) + tokens.count(call.arguments)
    return total


def _sent(message: Message) -> Iterator[str]:
    """Yield the texts that the chat formats send for content that is not plain text."""
    if isinstance(message.content, list):
        for block in message.content:
            yield from _sent_of_block(block)
    elif message.content:
        yield _compact(message.content)
    elif message.structured_data is not None:
        yield _compact(message.structured_data)
    elif message.agent_calls and not message.tool_calls:
        yield _compact(message.agent_calls)


def _sent_of_block(block: Any) -> Iterator[str]:
    if isinstance(block, str):
        yield block
        return
    kind = block.get("type")
    if kind == "text":
        yield str(block.get("text", ""))
    elif kind not in _IMAGES:
        # What a file holds is not text, and a signature is not read by the model.
        yield _compact({name: item for name, item in block.items() if name not in ("source", "signature")})
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text":
            yield str(source.get("data", ""))


_IMAGES = ("image", "image_url", "input_image", "input_audio")


def _compact(value: Any) -> str:
    return json.encode(value).decode()
