"""Converts messages to and from the chat formats of OpenAI (Chat Completions) and Anthropic (Messages)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias

from msgspec import to_builtins
from msgspec.structs import replace

from .checks import check_several, check_time, shown
from .errors import InvalidValueError
from .images import data_url, image_in, is_url, split_data_url
from .messages import Message, ToolCall
from .records import now, parse_time

__all__ = [
    "AnthropicMessage", "Block", "OpenAIMessage", "from_anthropic", "from_openai", "image_url", "parts_of",
    "to_anthropic", "to_openai",
]  # fmt: skip

Block: TypeAlias = dict[str, Any]
OpenAIMessage: TypeAlias = Any
"""A dict in the Chat Completions format, typed so that it fits the TypedDicts of every version of `openai`."""
AnthropicMessage: TypeAlias = Any
"""A dict in the Messages API format, typed so that it fits the TypedDicts of every version of `anthropic`."""

_OPENAI_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "timestamp"}
_ORDER = {"tool_result": -1, "tool_use": 1}
_ARGUMENTS = {"function": "arguments", "custom": "input"}


def to_openai(messages: Iterable[Message], *, open_images: bool = False) -> list[OpenAIMessage]:
    """Return messages in the Chat Completions format.

    Image paths are read only with `open_images`: a session reads files when messages are added, and paths in
    stored conversations are not trusted. Raises InvalidValueError for a path otherwise, for a file that is not an
    image, and for content that is not JSON; NotFoundError for a missing file.
    """
    return [_openai_message(part) for part in parts_of(_ready(messages, open_images))]


def from_openai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of a Chat Completions conversation.

    A `timestamp`, which exports of old chats may have, is a datetime, ISO 8601 or seconds since 1970. Unknown fields
    are kept in the metadata, under "openai". Raises InvalidValueError for an unknown role, a timestamp that is not a
    time, or a value that is not a message.
    """
    return [_from_openai(_mapping(value, "a message")) for value in check_several(messages, "messages")]


def to_anthropic(
    messages: Iterable[Message], *, open_images: bool = False
) -> tuple[str | None, list[AnthropicMessage]]:
    """Return the system text (or None) and the messages in the Messages API format.

    Raises as `to_openai` does, and InvalidValueError for a tool result without a `tool_call_id` or an image data:
    URL that is not base64.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for part in parts_of(_ready(messages, open_images)):
        if part.role == "system":
            system += _texts(_anthropic_blocks(part))
            continue
        role = "assistant" if part.role == "assistant" else "user"
        blocks = _anthropic_turn(part)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        # The API requires this order of results, and models write it so for uses; the sort is stable.
        turn["content"].sort(key=lambda block: _ORDER.get(str(block.get("type")), 0))
        turn["content"] = _collapsed(turn["content"])
    return "\n\n".join(system) or None, turns


def from_anthropic(
    messages: Iterable[Mapping[str, Any]], system: str | list[dict[str, Any]] | None = None
) -> list[Message]:
    """Return the messages of a Messages API conversation, its system text first.

    Raises InvalidValueError for an unknown role, or a value that is not a message.
    """
    found: list[Message] = []
    given = check_several(messages, "messages")
    for value in [{"role": "system", "content": system}, *given] if system else given:
        fields = _mapping(value, "a message")
        if (role := fields.get("role")) not in ("user", "assistant", "system"):
            raise InvalidValueError(f"role must be user, assistant or system: {shown(role)}")
        parts = _taken_apart(Message(role, fields.get("content")))
        found += [_tidied(part, _anthropic_blocks) for part in parts]
    return found


def _ready(messages: Iterable[Message], open_images: bool) -> Iterator[Message]:
    """Yield messages with images as URLs; files are read if `open_images` is true."""
    for message in messages:
        if isinstance(message, Message) and message.images:
            message = replace(message, images=[image_url(image, open_images) for image in message.images])
        yield message


def parts_of(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages whose content has no tool calls or results, each result with its `tool_call_id`."""
    ids: dict[str, str] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidValueError(f"only messages can be converted, not {shown(message)}")
        for part in _taken_apart(message):
            ids.update((call.call_id, call.id) for call in part.tool_calls if call.call_id)
            if part.tool_call_id in ids:
                part = replace(part, tool_call_id=ids[part.tool_call_id])
            yield part


def _taken_apart(message: Message) -> Iterator[Message]:
    """Yield the tool results in a message's content as separate messages, then the rest with its tool calls."""
    if not isinstance(message.content, list):
        yield message
        return
    rest: list[Block] = []
    calls: list[ToolCall] = []
    answers: list[Message] = []
    for block in map(_block, message.content):
        if block.get("type") == "tool_result":
            answers.append(_answer(block))
        elif block.get("type") == "tool_use":
            calls.append(_tool_call(block.get("id"), block.get("name"), block.get("input")))
        else:
            rest.append(block)
    yield from answers
    # A call may appear in both places; it is still one call.
    ids = {call.id for call in calls}
    calls += [call for call in message.tool_calls if call.id not in ids]
    if rest or calls or message.images or not answers:
        yield replace(message, content=rest or None, tool_calls=calls)


def _tool_call(id: Any, name: Any, arguments: Any, kind: str = "function") -> ToolCall:
    if not isinstance(arguments, str):
        arguments = _json({} if arguments is None else arguments, "tool call arguments")
    return ToolCall(id, name, arguments, kind)


def _answer(block: Block) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        content = [_block(item) for item in content]
        if all(item.get("type") == "text" for item in content):
            content = "\n".join(str(item.get("text", "")) for item in content)
    metadata = {"is_error": True} if block.get("is_error") else {}
    return Message("tool", content, tool_call_id=block.get("tool_use_id"), metadata=metadata)


def _blocks(message: Message) -> list[Block]:
    """Return the content blocks of a message; images in OpenAI's format."""
    content = _content(message)
    items = content if isinstance(content, list) else [] if content is None else [content]
    blocks = [_block(item) for item in items]
    images = [_openai_image(image) for image in message.images]
    return images + blocks if message.metadata.get("images_first") else blocks + images


def _content(message: Message) -> str | list[Any] | None:
    if isinstance(message.content, dict):
        return _json(message.content, "content")
    if message.content:
        return message.content
    if message.structured_data is not None:
        return _json(message.structured_data, "structured_data")
    if message.agent_calls and not message.tool_calls and not message.images:
        return _json(to_builtins(message.agent_calls), "agent_calls")
    return message.content


def _tidied(message: Message, written: Callable[[Message], object]) -> Message:
    """Return a message with text and images moved out of their blocks, if `written` still yields the same.

    Otherwise the blocks stay, since their order or other fields matter.
    """
    if not isinstance(message.content, list):
        return message
    blocks = [_block(item) for item in message.content]
    texts = _texts(blocks)
    images = [url for block in blocks if (url := image_in(block)) is not None]
    order = {"images_first": True} if images and texts and image_in(blocks[0]) else {}
    text = texts[0] if texts else None
    tidy = replace(message, content=text, images=images, metadata=message.metadata | order)
    return tidy if written(tidy) == blocks else replace(message, content=blocks)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{what} must be a mapping, as model_dump() returns: {shown(value)}")
    return value


def _block(value: Any) -> Block:
    """Return a content block; those of OpenAI's Responses API as the other APIs name them."""
    if isinstance(value, str):
        return _text(value)
    match _mapping(value, "a content block"):
        case {"type": "input_text" | "output_text", "text": str(text)}:
            return _text(text)
        case {"type": "input_image"} as block if (url := image_in(block)) is not None:
            detail = {"detail": block["detail"]} if "detail" in block else {}
            return {"type": "image_url", "image_url": {"url": url} | detail}
        case block:
            return dict(block)


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _texts(blocks: list[Block]) -> list[str]:
    return [text for block in blocks if isinstance(text := block.get("text"), str)]


def _json(value: Any, field: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"{field} cannot be written as JSON: {shown(value)}: {error}") from None


def image_url(image: str, open_images: bool = False) -> str:
    """Return an image's URL; a file becomes a data: URL if `open_images` is true.

    Raises InvalidValueError for a path otherwise, because stored paths are not trusted.
    """
    if is_url(image):
        return image
    if not open_images:
        raise InvalidValueError(
            f"the image {shown(image)} is a path, and stored paths are never opened: pass open_images=True "
            "if it is your own, or add the message to a session, which reads the file"
        )
    return data_url(image)


def _openai_image(url: str) -> Block:
    return {"type": "image_url", "image_url": {"url": url}}


def _anthropic_image(url: str) -> Block:
    if url[:5].lower() != "data:":
        return {"type": "image", "source": {"type": "url", "url": url}}
    if (found := split_data_url(url)) is None:
        raise InvalidValueError(f"an image's data: URL must be data:<media type>;base64,…: {shown(url)}")
    # A common mistake, which the API rejects.
    media_type = "image/jpeg" if found[0] == "image/jpg" else found[0]
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": found[1]}}


def _openai_message(message: Message) -> dict[str, Any]:
    extra = message.metadata.get("openai")
    result: dict[str, Any] = dict(extra) if isinstance(extra, Mapping) else {}
    content = _openai_content(message)
    # Null content is allowed only together with tool calls, or something else such as a refusal.
    if content is None and not (message.role == "assistant" and (message.tool_calls or result)):
        content = ""
    developer = message.role == "system" and message.metadata.get("openai_role") == "developer"
    result |= {"role": "developer" if developer else message.role, "content": content}
    if message.name:
        result["name"] = message.name
    if message.tool_calls:
        result["tool_calls"] = [_openai_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        result["tool_call_id"] = message.tool_call_id
    return result


def _openai_content(message: Message) -> str | list[Block] | None:
    content = _content(message)
    if isinstance(content, str) and not message.images:
        return content
    found = []
    for block in _blocks(message):
        kind = block.get("type")
        # Thinking is signed for the API that wrote it; other APIs reject it.
        if kind not in ("thinking", "redacted_thinking"):
            url = image_in(block) if kind == "image" else None
            found.append(_openai_image(url) if url else block)
    return found or None


def _openai_call(call: ToolCall) -> dict[str, Any]:
    kind = call.type if call.type in _ARGUMENTS else "function"
    return {"id": call.id, "type": kind, kind: {"name": call.name, _ARGUMENTS[kind]: call.arguments}}


def _from_openai(fields: Mapping[str, Any]) -> Message:
    role: Any = fields.get("role")
    name, answered = fields.get("name"), fields.get("tool_call_id")
    metadata: dict[str, Any] = {}
    if role == "developer":
        role, metadata["openai_role"] = "system", role
    elif role == "function":
        # This role has no ids: the function's name links the result to its call.
        role, answered = "tool", answered or name
    if extra := {key: item for key, item in fields.items() if key not in _OPENAI_FIELDS and item}:
        metadata["openai"] = extra
    found = Message(
        role,
        fields.get("content"),
        name=name,
        tool_call_id=answered,
        metadata=metadata,
        timestamp=_timestamp(fields.get("timestamp")),
    )
    return _tidied(replace(found, tool_calls=_calls_in(fields)), _openai_content)


def _timestamp(stamp: Any) -> datetime:
    if stamp is None:
        return now()
    if isinstance(stamp, str):
        return parse_time(stamp, "timestamp")
    if isinstance(stamp, int | float):
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(stamp, UTC)
    return check_time(stamp, "timestamp")


def _calls_in(fields: Mapping[str, Any]) -> list[ToolCall]:
    given = fields.get("tool_calls") or []
    if not isinstance(given, list):
        raise InvalidValueError(f"tool_calls must be a list: {shown(given)}")
    if (legacy := fields.get("function_call")) is not None:
        given = [*given, {"id": _mapping(legacy, "function_call").get("name"), "function": legacy}]
    calls = []
    for call in (_mapping(item, "a tool call") for item in given):
        kind = "custom" if call.get("type") == "custom" else "function"
        body = _mapping(call.get(kind), f"the {kind} of a tool call")
        calls.append(_tool_call(call.get("id"), body.get("name"), body.get(_ARGUMENTS[kind]), kind))
    return calls


def _anthropic_turn(message: Message) -> list[Block]:
    blocks = _anthropic_blocks(message)
    if message.role == "tool":
        return [_tool_result(message, blocks)]
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        for call in message.tool_calls
    ]


def _anthropic_blocks(message: Message) -> list[Block]:
    found = []
    for block in _blocks(message):
        match block:
            case {"type": "image_url"} if (url := image_in(block)) is not None:
                found.append(_anthropic_image(url))
            case {"type": "refusal", "refusal": str(text)}:
                found.append(_text(text))
            # The API rejects a text block that is empty or white space.
            case {"type": "text", "text": str(text)} if not text.strip():
                pass
            case _:
                found.append(block)
    return found


def _tool_result(message: Message, blocks: list[Block]) -> Block:
    if message.tool_call_id is None:
        raise InvalidValueError(f"a tool's answer needs a tool_call_id; message {message.id} has none")
    result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    if blocks:
        result["content"] = _collapsed(blocks)
    if message.metadata.get("is_error"):
        result["is_error"] = True
    return result


def _collapsed(blocks: list[Block]) -> str | list[Block]:
    text = blocks[0].get("text")
    return text if isinstance(text, str) and blocks == [_text(text)] else blocks


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments or "{}")
        # Python parses NaN and infinity, which are not JSON.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
