"""Offline token counting: exact for text, by the provider's rule for images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any, Protocol, runtime_checkable

from msgspec import json

from .checks import check_choice, check_count, shown
from .errors import InvalidValueError
from .images import ImageInfo, image_in, image_info
from .messages import Message, decode
from .records import Record

__all__ = ["DEFAULT_ENCODING", "ENVELOPE", "TokenCounter", "count_message", "counter", "encoding", "tokens_of"]

DEFAULT_ENCODING = "o200k_base"
"""The encoding of OpenAI's models since GPT-4o."""
DEFAULT_RULE = "gpt-4o"
"""Image rule for counters that have none."""
ENVELOPE = 4
"""Tokens of a message besides its text, by OpenAI's published rule: three, plus one for its role."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text as a model does; `name` identifies the counter.

    It may have a method `count_image`, which takes an `ImageInfo` and returns the token cost of an image.
    """

    name: str

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        ...


class _Encoding:
    """An encoding from the package splintr-rs, loaded on first use."""

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


def _name_of(function: Callable[..., int]) -> str:
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise InvalidValueError(
            f"{shown(function)} has no name to tell its counts from another's: "
            "give it a `name` and a `count` method, or wrap it in a function"
        )
    return f"{function.__module__}.{name}"


class _FunctionCounter:
    """A plain function as a counter."""

    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function
        self.name = _name_of(function)

    def count(self, text: str) -> int:
        return check_count(self._function(text), f"the count of {self.name}")


@lru_cache(maxsize=16)
def encoding(name: str = DEFAULT_ENCODING) -> TokenCounter:
    """Return the counter of an encoding such as `o200k_base`, `cl100k_base`, `llama3` or `mistral_v3`.

    Raises InvalidValueError for an unknown name.
    """
    return _Encoding(name)


def counter(choice: str | TokenCounter | Callable[[str], int]) -> TokenCounter:
    """Return the counter for an encoding name, a counter, or a function of a text."""
    if isinstance(choice, str):
        return encoding(choice)
    if isinstance(choice, TokenCounter):
        return choice
    if callable(choice):
        return _FunctionCounter(choice)
    raise InvalidValueError(f"tokens are counted by an encoding's name or a function, not {shown(choice)}")


def token_counter(
    text: str | TokenCounter | Callable[[str], int] = DEFAULT_ENCODING,
    images: str | Callable[[ImageInfo], int] = DEFAULT_RULE,
) -> TokenCounter:
    """Return a counter that counts text like `text` and images by a provider's rule.

    `images` is one of IMAGE_RULES, or a function from an `ImageInfo` to a number of tokens. Raises
    InvalidValueError for an unknown rule.
    """
    if isinstance(images, str):
        rule = check_choice(images, "images", tuple(IMAGE_RULES))
        return _WithImages(counter(text), rule, IMAGE_RULES[rule])
    return _WithImages(counter(text), _name_of(images), images)


class _WithImages:
    """A text counter with an image rule."""

    def __init__(self, text: TokenCounter, rule: str, cost: Callable[[ImageInfo], int]) -> None:
        self.name = f"{text.name}+{rule}"
        self.count = text.count
        self._cost = cost

    def count_image(self, image: ImageInfo) -> int:
        return check_count(self._cost(image), f"the count of {self.name}")


def count_message(message: Message, tokens: TokenCounter) -> int:
    """Return the token cost of a message in a prompt: everything sent, including images and overhead.

    Images cost what the counter's `count_image` returns; without one, OpenAI's rule for GPT-4o applies.
    """
    total = ENVELOPE
    if isinstance(message.content, str) and message.content:
        total += tokens.count(message.content)
    elif isinstance(message.content, list):
        total += sum(_count_block(block, tokens) for block in message.content)
    elif message.content or message.structured_data is not None:
        total += tokens.count(_compact(message.content or message.structured_data))
    elif message.agent_calls and not message.tool_calls:
        total += tokens.count(_compact(message.agent_calls))
    if message.name:
        total += 1 + tokens.count(message.name)
    for call in message.tool_calls:
        total += ENVELOPE + tokens.count(call.name) + tokens.count(call.arguments)
    for image in message.images:
        total += _count_image(image_info(image), tokens)
    return total


def _count_block(block: Any, tokens: TokenCounter) -> int:
    if isinstance(block, str):
        return tokens.count(block)
    kind = block.get("type")
    if kind in ("text", "input_text", "output_text"):
        return tokens.count(str(block.get("text", "")))
    if kind in _IMAGES:
        named = block.get("image_url")
        detail = named.get("detail") if isinstance(named, Mapping) else block.get("detail")
        return _count_image(image_info(image_in(block), detail), tokens)
    source = block.get("source")
    if kind == "image-url" or (kind == "binary" and _media_type(source).startswith("image/")):
        # pydantic-ai writes it this way when other formats have no field for it.
        return _count_image(ImageInfo(), tokens)
    if kind == "input_audio":
        return 0
    # File bytes are not text, and the model does not read a signature.
    rest = {name: item for name, item in block.items() if name not in ("source", "signature", "file_data")}
    inner = rest.pop("content", None) if kind == "tool_result" else None
    total = tokens.count(_compact(rest))
    for item in inner if isinstance(inner, list) else [] if inner is None else [str(inner)]:
        total += _count_block(item, tokens)
    if isinstance(source, Mapping) and source.get("type") == "text":
        total += tokens.count(str(source.get("data", "")))
    return total


def _media_type(source: Any) -> str:
    return str(source.get("media_type", "")) if isinstance(source, Mapping) else ""


_IMAGES = ("image", "image_url", "input_image")


def _count_image(image: ImageInfo, tokens: TokenCounter) -> int:
    cost: Callable[[ImageInfo], int] = getattr(tokens, "count_image", None) or IMAGE_RULES[DEFAULT_RULE]
    return cost(image)


def _compact(value: Any) -> str:
    return json.encode(value).decode()


def tokens_of(record: Record, tokens: TokenCounter) -> int:
    """Return the token cost of a message; recounted only if another encoding counted it."""
    data: Any = record.data
    if data.get("encoding", DEFAULT_ENCODING) == tokens.name:
        return record.weight
    return count_message(decode(record), tokens)


# ---------------------------------------------------------------- what images cost


def _tiles(base: int, tile: int) -> Callable[[ImageInfo], int]:
    """Return OpenAI's rule of 512 px tiles, after scaling to at most 2,048 by 768 px."""

    def cost(image: ImageInfo) -> int:
        if image.detail == "low":
            return base
        if image.width is None or image.height is None:
            return base + 8 * tile  # the maximum
        long, short = max(image.width, image.height), min(image.width, image.height)
        scale = min(1.0, 2048 / long, 768 / short)
        return base + tile * ceil(round(long * scale, 6) / 512) * ceil(round(short * scale, 6) / 512)

    return cost


def _patches(factor: float) -> Callable[[ImageInfo], int]:
    """Return OpenAI's rule of 32 px patches, at most 1,536."""

    def cost(image: ImageInfo) -> int:
        if image.width is None or image.height is None:
            return ceil(1536 * factor)
        return ceil(min(1536, ceil(image.width / 32) * ceil(image.height / 32)) * factor)

    return cost


def _claude(image: ImageInfo) -> int:
    """Count by Anthropic's rule: width × height / 750, after scaling to at most 1,568 px and about 1,600 tokens."""
    if image.width is None or image.height is None:
        return 1600
    scale = min(1.0, 1568 / max(image.width, image.height))
    return min(1600, ceil(image.width * scale * image.height * scale / 750))


IMAGE_RULES: dict[str, Callable[[ImageInfo], int]] = {
    "gpt-4o": _tiles(85, 170),
    "gpt-4o-mini": _tiles(2833, 5667),
    "gpt-5": _tiles(70, 140),
    "gpt-4.1-mini": _patches(1.62),
    "gpt-4.1-nano": _patches(2.46),
    "o4-mini": _patches(1.72),
    "claude": _claude,
}
"""Image cost by model family, as documented by OpenAI and Anthropic; for an unknown size, the maximum."""
