"""Messages of a framework without loss, scopes of its ids, and the versions of frameworks that are supported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec.json import encode as encode_json
from msgspec.structs import replace

from ..checks import MAX_JSON_DEPTH, MAX_KEY, shown, to_segment
from ..errors import InvalidValueError
from ..formats import parts_of
from ..images import split_data_url
from ..messages import Content, Message, Role, ToolCall
from ..transfer.json_stream import clean_json, clean_text

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
ORIGINAL, CONTENT_AT, ESCAPED = "original", "content_at", "escaped"
"""In the metadata of a message, below the name of a framework: its own form, and where the content was taken out.

Or, if no back-end can store the characters of the form (NUL, halves of surrogate pairs), the form as escaped JSON text.
"""


def message_of(
    role: Role,
    text: str | None,
    calls: Iterable[tuple[Any, Any, Any]] = (),
    results: Sequence[tuple[Any, Any]] = (),
    **fields: Any,
) -> Message:
    """Return a message with a text, tool calls (id, name, arguments), and results of tools (id of the call, value).

    With results it is a tool message: one without a text is its content; otherwise each is a content block. Ids and
    names that could not be stored, as models make them up, are made printable, and so are arguments: the caller calls
    `keep`, which has the original of all of it.
    """
    content: Content = text
    if len(results) == 1 and text is None:
        ((id, content),) = results
        fields["tool_call_id"] = printable_name(id)
    elif results:
        content = [
            {"type": "tool_result", "tool_use_id": printable_name(id), "content": _text(value)} for id, value in results
        ]
        content += [] if text is None else [{"type": "text", "text": text}]
    tool_calls = [
        ToolCall(printable_name(id or name), printable_name(name), clean_text(_text(value)))
        for id, name, value in calls
    ]
    return Message("tool" if results else role, content, tool_calls=tool_calls, **fields)


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a tool call as an object; other text, as models write it, is under "arguments"."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(call.arguments or "{}"), dict):
            return found
    return {"arguments": call.arguments}


def blocks_of(
    message: Message,
    text: Callable[[str], Any],
    image: Callable[[str, str], Any],
    call: Callable[[ToolCall, dict[str, Any]], Any],
    result: Callable[[Message], Any] | None = None,
) -> list[Any]:
    """Return the content blocks of a message that came another way than from a framework, as these functions make them.

    They take a text; the media type and base64 data of an image; a tool call and its arguments as an object; and a
    tool message, which is otherwise a text.
    """
    found: list[Any] = []
    for part in parts_of([message]):
        if part.role == "tool" and result is not None:
            found.append(result(part))
        elif part.content and part.text:
            found.append(text(part.text))
        found += [image(*split) for split in map(split_data_url, part.images) if split is not None]
        found += [call(one, arguments_of(one)) for one in part.tool_calls]
    return found


def printable_name(given: Any) -> str:
    """Return an id or a name without control characters, not empty and not too long."""
    return _UNPRINTABLE.sub("\ufffd", str(given or "unnamed"))[:MAX_KEY]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def keep(framework: str, message: Message, original: Mapping[str, Any]) -> Message:
    """Return a message with a framework's own JSON form of it in its metadata, for `original`.

    The part of the form that equals the message's content is left out, so nothing is stored twice. Characters that
    cannot be stored, as in the output of a tool that reads binary files, are U+FFFD in the message's content.
    Raises InvalidValueError if such a form is not JSON.
    """
    form: dict[str, Any] = dict(original)
    if not _storable(form):
        try:
            escaped = {ESCAPED: json.dumps(form, allow_nan=False)}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValueError(f"a message of {framework} is not JSON: {error}") from None
        return replace(message, content=clean_json(message.content), metadata={**message.metadata, framework: escaped})
    kept: dict[str, Any] = {ORIGINAL: form}
    if message.content and (path := find_part(form, message.content)):
        kept = {ORIGINAL: replace_part(form, path, None), CONTENT_AT: path}
    return replace(message, metadata={**message.metadata, framework: kept})


def original(framework: str, message: Message) -> dict[str, Any] | None:
    """Return the form of a message that a framework has stored; None for a message that came another way.

    Values within it are those of the message, not copies: a message that was read from a store is the reader's own.
    """
    kept = message.metadata.get(framework)
    if not isinstance(kept, dict):
        return None
    if isinstance(form := kept.get(ORIGINAL), dict):
        path = kept.get(CONTENT_AT)
        return replace_part(form, path, message.content) if path else form.copy()
    if isinstance(text := kept.get(ESCAPED), str):
        found: dict[str, Any] = json.loads(text)
        return found
    return None


def take_original(framework: str, message: Message) -> dict[str, Any] | None:
    """Return the form as `original` does, from a message that is not used further: its metadata changes."""
    kept = message.metadata.get(framework)
    form = kept.get(ORIGINAL) if isinstance(kept, dict) else None
    if not isinstance(kept, dict) or not isinstance(form, dict):
        return original(framework, message)
    if path := kept.get(CONTENT_AT):
        inner: Any = form
        for place in path[:-1]:
            inner = inner[place]
        inner[path[-1]] = message.content
    return form


def _storable(form: dict[str, Any]) -> bool:
    """Return whether every back-end can store the characters of a JSON value."""
    try:
        if b"\\u0000" not in encode_json(form):  # a fast test, which nearly every value passes
            return True
    except (UnicodeEncodeError, TypeError, OverflowError, RecursionError):
        pass
    return bool(clean_json(form) == form)


def form_json(form: Any) -> bytes:
    """Return a form as JSON text; halves of surrogate pairs, which it cannot have, are U+FFFD."""
    try:
        return encode_json(form)
    except UnicodeEncodeError:
        return encode_json(clean_json(form))


def find_part(form: Any, part: Any, depth: int = MAX_JSON_DEPTH) -> list[str | int] | None:
    """Return the path within a JSON value to the first part that equals this one."""
    inside: Any = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    for place, value in inside:
        if type(value) is type(part) and value == part:
            return [place]
        if depth and isinstance(value, dict | list) and (path := find_part(value, part, depth - 1)) is not None:
            return [place, *path]
    return None


def replace_part(form: Any, path: list[str | int], value: Any) -> Any:
    """Return a copy of an object or a list with another value at a place, which is not empty; the rest is shared."""
    *above, last = path
    copy = inner = form.copy()
    for place in above:
        inner[place] = inner = inner[place].copy()
    inner[last] = value
    return copy


def segments_of(given: object, what: str) -> list[str]:
    """Return an id, or ids from the outermost scope to the innermost, as segments of a path.

    Raises InvalidValueError for none, or an empty one, which all who have no id would share.
    """
    ids = [given] if isinstance(given, str) else given
    if not isinstance(ids, Sequence) or not ids or not all(isinstance(id, str) and id for id in ids):
        raise InvalidValueError(f"{what} must be an id, or ids from the outermost scope down: {shown(given)}")
    return [to_segment(id, what) for id in ids]


def require(distribution: str, at_least: str, below: str, extra: str | None = None) -> None:
    """Raise ImportError unless a framework is installed in a version for which its adapter was tested."""
    wanted = f"{distribution}>={at_least},<{below}"
    install = f"pip install 'mnemic[{extra}]'" if extra is not None else f"pip install '{wanted}'"
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        raise ImportError(f"this adapter needs {wanted}: {install}", name=distribution) from None
    if not _numbers(at_least) <= _numbers(installed) < _numbers(below):
        raise ImportError(f"this adapter needs {wanted}, and {installed} is installed: {install}", name=distribution)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
