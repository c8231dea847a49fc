"""Converts pydantic-ai messages to Mnemic messages and back.

Kept: texts, tool calls with ids and arguments as the model wrote them, tool results, files and images as data,
provider-specific parts, and the order of all parts. Omitted on purpose: the agent's instructions, which each run
sets; thinking, unless requested, since later turns do not need it and only its provider accepts it; ids of
objects on a provider's server.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias, cast, get_args, get_type_hints

from pydantic_ai import messages as pydantic_ai_messages
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from ..features.turns import TurnMessage, group_turns
from ..formats import parts_of
from ..images import is_url
from ..messages import Message, ToolCall

Block: TypeAlias = dict[str, Any]

OURS = "pydantic_ai"
"""Metadata key for what a Message has no field for."""
FEEDBACK = "retry_feedback"
"""Speaker name of retry feedback, which tells the model why its output was rejected."""
FAILED = ("failed", "retried")
"""Tool outcomes that are errors."""
_OUTCOMES = get_args(get_type_hints(ToolReturnPart, vars(pydantic_ai_messages))["outcome"])
_WRAPS = "wrap_if_error" in ToolReturnPart.model_response_str.__code__.co_varnames


def from_pydantic_ai(
    messages: Iterable[ModelMessage], *, thinking: bool = False, system: bool = False
) -> list[Message]:
    """Return the messages of a pydantic-ai history.

    With `thinking`, the model's thinking is included; with `system`, the system prompts, which a session need not
    store.
    """
    found: list[Message] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            found += from_response(message, thinking=thinking)
        else:
            found += [made for part in message.parts for made in from_request_part(part, system=system)]
    return found


def to_pydantic_ai(messages: Iterable[Message], *, agent: str | None = None) -> list[ModelMessage]:
    """Return messages as a pydantic-ai history, each tool call followed by its results.

    `agent` is the reader: messages of other assistants are prefixed with their names. Image paths are named, not
    opened, and no permission to download from private addresses is restored.
    """
    found: list[ModelMessage] = []
    named: dict[str, str] = {}
    for group in _groups(messages):
        answers: list[ToolReturnPart] = []
        for message in group:
            if message.role == "tool":
                answers.append(_tool_return(message, named))
            elif message.role == "assistant":
                named.update((call.id, call.name) for call in message.tool_calls)
                found.append(_response(message, agent))
            elif message.role == "system":
                part = SystemPromptPart(message.text or "", timestamp=message.timestamp)
                found.append(ModelRequest([part], timestamp=message.timestamp))
            else:
                found.append(_request(message))
        if answers:
            found.append(ModelRequest(answers, timestamp=answers[-1].timestamp))
    return found


def _groups(messages: Iterable[Message]) -> Iterable[list[Message]]:
    """Return messages grouped so that each tool call is next to its results."""
    known = list(messages)
    if all(m.content.__class__ is not list and not m.tool_calls and m.role != "tool" for m in known):
        return [known]
    entries = [TurnMessage(message.id, n, message) for n, message in enumerate(parts_of(known))]
    return [[entry.message for entry in group.messages] for group in group_turns(entries)]


# ---------------------------------------------------------------- from pydantic-ai


def from_request_part(part: Any, *, system: bool = False) -> Iterator[Message]:
    """Yield the message of a request part; a system prompt only if `system` is true."""
    if isinstance(part, UserPromptPart):
        yield Message("user", _content(part.content), timestamp=part.timestamp)
    elif isinstance(part, SystemPromptPart) and system:
        yield Message("system", part.content, timestamp=part.timestamp)
    elif isinstance(part, ToolReturnPart):
        yield _answer(part)
    elif answers_call(part):
        yield _answer(as_tool_return(part))
    elif is_feedback(part):
        kept = {OURS: {"part": _dumped("request", part)}}
        said = part.model_response()
        yield Message("user", said, name=FEEDBACK, metadata=kept, timestamp=part.timestamp)


def from_response(response: ModelResponse, *, thinking: bool = False) -> list[Message]:
    """Return the message of a model response; none if nothing in it is kept.

    Tool calls of a truncated response are omitted: they never ran.
    """
    cut = response.state == "interrupted"
    blocks: list[Block] = []
    calls: list[ToolCall] = []
    order = ""
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            if not cut:
                written = part.args if isinstance(part.args, str) else part.args_as_json_str()
                calls.append(ToolCall(part.tool_call_id, part.tool_name, written))
                order += "c"
        elif (block := _block(part, thinking)) is not None:
            blocks.append(block)
            order += "b"
    if not blocks and not calls:
        return []
    ours: dict[str, Any] = {}
    if "cb" in order:
        ours["order"] = order
    if response.provider_name is not None:
        ours["provider"] = response.provider_name
    metadata: dict[str, Any] = {OURS: ours} if ours else {}
    if response.model_name is not None:
        metadata["model"] = response.model_name
    if cut:
        metadata["interrupted"] = True
    plain = len(blocks) == 1 and blocks[0]["type"] == "text"
    content = blocks[0]["text"] if plain else blocks or None
    return [Message("assistant", content, tool_calls=calls, metadata=metadata, timestamp=response.timestamp)]


def text_of(content: str | Sequence[UserContent] | None) -> str:
    """Return the text of a prompt."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in content)
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(content: str | Sequence[UserContent]) -> str | list[Any]:
    return content if isinstance(content, str) else [_user_block(item) for item in content]


def _user_block(item: UserContent) -> Block:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if type(item) is TextContent:
        return {"type": "text", "text": item.content}
    # Images are in a format that other models accept too.
    if isinstance(item, ImageUrl) and not (item.vendor_metadata or item.force_download):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.is_image and not item.vendor_metadata:
        return {"type": "image_url", "image_url": {"url": item.data_uri}}
    dumped = _dumped("request", UserPromptPart([item]))["content"][0]
    # Data under `source` counts neither as text nor as tokens.
    return {"type": dumped.get("kind", "text"), "source": dumped}


def _answer(part: ToolReturnPart) -> Message:
    ours: dict[str, Any] = {}
    structured: dict[str, Any] | None = None
    content = answer_text(part)
    if not isinstance(part.content, str):
        # A result that is not text is stored as text, and as data beside it.
        structured = {"content": _dumped("request", part)["content"]}
    if part.outcome != "success":
        ours["outcome"] = part.outcome
    metadata: dict[str, Any] = {OURS: ours} if ours else {}
    if part.outcome in FAILED:
        metadata["is_error"] = True
    if part.outcome == "interrupted":
        metadata["interrupted"] = True
    return Message(
        "tool",
        content,
        name=part.tool_name,
        tool_call_id=part.tool_call_id,
        structured_data=structured,
        metadata=metadata,
        timestamp=part.timestamp,
    )


def _block(part: ModelResponsePart, thinking: bool) -> Block | None:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.content} if part.content else None
    if isinstance(part, ThinkingPart):
        if not thinking:
            return None
        block: Block = {"type": "thinking", "thinking": part.content}
        if part.signature is not None:
            block["signature"] = part.signature
        return block
    return {"type": part.part_kind, "source": _dumped("response", part)}


def _dumped(kind: str, part: Any) -> Any:
    message: Any = ModelRequest([part]) if kind == "request" else ModelResponse([part])
    return ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]["parts"][0]


# ---------------------------------------------------------------- to pydantic-ai


def _request(message: Message) -> ModelRequest:
    if message.content.__class__ is str and message.name is None and not message.images:
        plain = UserPromptPart(message.content, timestamp=message.timestamp)
        return ModelRequest([plain], timestamp=message.timestamp)
    kept = _ours(message).get("part")
    if kept is not None:
        return ModelRequest([_loaded("request", kept)], timestamp=message.timestamp)
    items = list(_user_content(message))
    if message.name:
        # A prompt has no field for its author.
        first = items.pop(0) if items and isinstance(items[0], str) else ""
        items.insert(0, f"{message.name}: {first}")
    content = items[0] if len(items) == 1 and isinstance(items[0], str) else items
    return ModelRequest([UserPromptPart(content, timestamp=message.timestamp)], timestamp=message.timestamp)


def _user_content(message: Message) -> Iterator[UserContent]:
    if isinstance(message.content, list):
        for block in message.content:
            yield _item(block)
    elif isinstance(message.content, dict):
        yield json.dumps(message.content, ensure_ascii=False)
    elif message.content is not None or not message.images:
        yield message.text or ""
    for image in message.images:
        # A stored path may come from anyone, and is not opened.
        yield _image(image) if is_url(image) else f"[an image that was not stored: {image}]"


def _item(block: Any) -> UserContent:
    if isinstance(block, str):
        return block
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image_url", "image_url": str(url)}:
            return _image(url)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return _image(url)
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return BinaryContent(b64decode(data), media_type=kind)
        case {"type": str(kind), "source": {"kind": str(same)} as dumped} if kind == same:
            part = _loaded("request", {"part_kind": "user-prompt", "content": [dumped]})
            found: UserContent = part.content[0]
            return found
    return json.dumps(block, ensure_ascii=False)


def _image(url: str) -> ImageUrl | BinaryContent:
    if url[:5].lower() == "data:":
        with suppress(ValueError):
            return BinaryContent.from_data_uri(url)
    return ImageUrl(url)


def _tool_return(message: Message, named: dict[str, str]) -> ToolReturnPart:
    structured = message.structured_data or {}
    outcome = _ours(message).get("outcome")
    if outcome is None:
        flags = message.metadata
        outcome = "interrupted" if flags.get("interrupted") else "failed" if flags.get("is_error") else "success"
    call = message.tool_call_id or ""
    name = message.name or named.get(call) or "tool"
    fields: dict[str, Any] = {
        "tool_name": name,
        "tool_call_id": call,
        "outcome": known_outcome(outcome),
        "timestamp": message.timestamp,
    }
    if set(structured) == {"content"}:
        part = _loaded("request", {"part_kind": "tool-return", **structured, **fields})
        assert isinstance(part, ToolReturnPart)
        if isinstance(part.content, list):
            return replace(part, content=[_file(item) for item in part.content])
        return replace(part, content=_file(part.content))
    content = message.content if isinstance(message.content, str) else message.text or ""
    return ToolReturnPart(content=content, **fields)


def _file(item: Any) -> Any:
    """Return an item of a tool's answer, a file as a file, which some versions of pydantic-ai load as a dict."""
    if isinstance(item, dict) and {"kind", "data", "media_type"} <= item.keys():
        with suppress(ValueError):
            item = _loaded("request", {"part_kind": "user-prompt", "content": [item]}).content[0]
    return BinaryContent.narrow_type(item) if isinstance(item, BinaryContent) else item


def _response(message: Message, agent: str | None) -> ModelResponse:
    ours = _ours(message)
    provider = ours.get("provider")
    parts: list[ModelResponsePart] = []
    blocks = message.content if isinstance(message.content, list) else None
    if blocks is not None:
        parts += [_response_part(block, provider) for block in blocks]
    elif isinstance(message.content, dict):
        parts.append(TextPart(json.dumps(message.content, ensure_ascii=False)))
    elif (text := message.text) and (message.content is not None or not message.tool_calls):
        parts.append(TextPart(text))
    if message.name is not None and message.name != agent:
        match parts:
            case [TextPart(content=said), *rest]:
                parts = [TextPart(f"[{message.name}] {said}"), *rest]
            case _:
                parts.insert(0, TextPart(f"[{message.name}]"))
    calls = [ToolCallPart(call.name, call.arguments, call.id) for call in message.tool_calls]
    ordered = _in_order(parts, calls, str(ours.get("order", "")))
    model = message.metadata.get("model")
    return ModelResponse(
        ordered,
        timestamp=message.timestamp,
        model_name=model if isinstance(model, str) else None,
        provider_name=provider if isinstance(provider, str) else None,
    )


def _in_order(parts: list[ModelResponsePart], calls: list[ToolCallPart], order: str) -> list[ModelResponsePart]:
    if order.count("b") != len(parts) or order.count("c") != len(calls):
        return [*parts, *calls]
    rest = {"b": iter(parts), "c": iter(calls)}
    return [next(rest[letter]) for letter in order]


def _response_part(block: Any, provider: str | None) -> ModelResponsePart:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingPart(text, signature=block.get("signature"), provider_name=provider)
        case {"type": str(kind), "source": {"part_kind": str(same)} as dumped} if kind == same:
            found: ModelResponsePart = _loaded("response", dumped)
            return found
    return TextPart(block if isinstance(block, str) else json.dumps(block, ensure_ascii=False))


def _loaded(kind: str, part: Block) -> Any:
    (message,) = ModelMessagesTypeAdapter.validate_python([{"kind": kind, "parts": [without_trust(part)]}])
    return message.parts[0]


def without_trust(value: Any) -> Any:
    """Return a stored value without permission to download from private addresses: anyone may have written it."""
    if isinstance(value, list):
        return [without_trust(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: without_trust(item) for name, item in value.items()}
    if kept.get("force_download") == "allow-local":
        kept["force_download"] = True
    return kept


def _ours(message: Message) -> dict[str, Any]:
    ours = message.metadata.get(OURS)
    return ours if isinstance(ours, dict) else {}


# ---------------------------------------------------------------- differences between versions of pydantic-ai


def answer_text(part: ToolReturnPart) -> str:
    """Return a tool result as text, also if it is an error."""
    return part.model_response_str(wrap_if_error=False) if _WRAPS else part.model_response_str()


def known_outcome(outcome: str) -> Any:
    """Return a tool outcome that this version knows; an unknown one counts as failed."""
    return outcome if outcome in _OUTCOMES else "failed"


def answers_call(part: Any) -> bool:
    """Return whether a request part asks the model to repeat a tool call, as in versions before 2.52."""
    return part.part_kind == "retry-prompt" and part.tool_name is not None


def as_tool_return(part: Any) -> ToolReturnPart:
    """Return such a part as the result of the call."""
    return ToolReturnPart(
        part.tool_name,
        part.model_response(),
        part.tool_call_id,
        timestamp=part.timestamp,
        outcome=cast("Any", "retried"),
    )


def is_feedback(part: Any) -> bool:
    """Return whether a request part tells the model why its output was rejected."""
    return part.part_kind in ("retry-feedback", "retry-prompt")
