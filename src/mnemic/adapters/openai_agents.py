"""Sessions of the OpenAI Agents SDK, stored as sessions of a scope."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from msgspec.structs import replace

from ..checks import check_text, shown, to_segment
from ..errors import BudgetError, InvalidValueError
from ..features.sessions import AsyncSession
from ..formats import to_openai
from ..images import is_url
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message, Role, ToolCall
from ..scope import AsyncScope
from .foreign import keep, require, segments_of, take_original

if TYPE_CHECKING:
    from agents.memory import SessionSettings

    from agents import RunContextWrapper, TResponseInputItem

require("openai-agents", "0.24", "0.25")

__all__ = ["MnemicSession", "User"]

User: TypeAlias = str | Sequence[str] | Callable[[Any], str | Sequence[str]] | None
"""Whose session it is: a user id, ids from tenant to user, or a function of the context of a run that returns these."""

NAME = "openai_agents"
"""The key in the metadata of messages."""
ROLES: dict[object, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
ARGUMENTS = ("arguments", "input", "code")
"""The fields of items that hold what a tool is called with."""


class MnemicSession:
    """A session of the Agents SDK in a Mnemic memory: pass it to `Runner.run(…, session=…)`.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    `user` says whose session it is, for example `lambda context: (context.tenant, context.user_id)` of each run.
    With `max_tokens`, a run sees the newest whole turns that fit, and the last one in any case.
    """

    session_id: str
    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        memory: AnyMemory = OWN,
        *,
        user: User = None,
        max_tokens: int | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Raise InvalidValueError for an invalid id or memory, TypeError as the SDK does for invalid settings."""
        self._name = to_segment(session_id, "session_id")
        self._user = user
        if not callable(user):
            self._ids(None)
        self._max_tokens = max_tokens
        self._memory = MemoryAccess(memory, options=options)
        self.session_id = session_id
        self.session_settings = None
        if session_settings is not None:
            from agents.memory.session_settings import coerce_session_settings

            self.session_settings = coerce_session_settings(session_settings)

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the newest `limit` items of what a run sees, oldest first; without a limit, that of the settings."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        ids = self._ids(wrapper)
        return await self._memory.call(lambda scope: self._items(self._session(scope, ids), limit))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Add items, all or none; raises InvalidValueError for one that is not a JSON object."""
        messages = [_to_message(item) for item in items]
        ids = self._ids(wrapper)
        await self._memory.call(lambda scope: self._session(scope, ids).add_many(messages, open_images=False))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the newest item and return it; None if there is none."""
        ids = self._ids(wrapper)
        return await self._memory.call(lambda scope: _pop(self._session(scope, ids)))

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Delete all items."""
        ids = self._ids(wrapper)
        await self._memory.call(lambda scope: self._session(scope, ids).clear())

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()

    async def _items(self, session: AsyncSession, limit: int | None) -> list[Any]:
        limit = None if limit is None or limit < 0 else limit
        if self._max_tokens is None or limit == 0:
            messages = await session.messages(limit)
        else:
            messages = await _newest_turns(session, self._max_tokens)
        items = [item for message in messages for item in _to_items(message)]
        # A message that others have stored can be several items.
        return items if limit is None else items[max(0, len(items) - limit) :]

    def _session(self, scope: AsyncScope, ids: list[str]) -> AsyncSession:
        return (scope.scope(*ids) if ids else scope).session(self._name)

    def _ids(self, wrapper: RunContextWrapper[Any] | None) -> list[str]:
        """Return the segments of the user's scope."""
        user = self._user
        if callable(user):
            if wrapper is None:
                raise InvalidValueError("the user is a function of the context of a run: pass wrapper=…")
            user = user(wrapper.context)
            if not user:
                raise InvalidValueError(f"the function for the user returned {shown(user)}: no user has no session")
        return [] if user is None else segments_of(user, "user")


async def _newest_turns(session: AsyncSession, max_tokens: int) -> list[Message]:
    """Return the turns that fit, whole, since APIs refuse calls without their reasoning; system messages first."""
    try:
        window = await session.window(max_tokens)
    except BudgetError:  # the last turn, even if it does not fit
        window = await session.messages(1, roles="user")
    first = next((message.id for message in window if message.role == "user"), None)
    limit = len(window)
    while True:
        messages = await session.messages(limit)
        start = next((n for n, message in enumerate(messages) if message.id == first), None)
        if start is not None or len(messages) < limit or not window:
            turns = messages[start or 0 :]
            return [one for one in window if one.role == "system" and one not in turns] + turns
        limit *= 2


async def _pop(session: AsyncSession) -> Any:
    message = await session.pop()
    if message is None:
        return None
    *others, item = _to_items(message)
    if others:
        await session.add_many([_to_message(other) for other in others], open_images=False)
    return item


def _to_message(item: Any) -> Message:
    """Return an item as a message, with its text and its tool call where recall, windows and limits look for them."""
    if not isinstance(item, Mapping):
        raise InvalidValueError(f"an item is a JSON object, not {shown(item)}")
    match item:
        case {"role": "user" | "assistant" | "system" as role, "content": str(text)} if len(item) == 2 and _plain(text):
            return Message(role, text)  # nothing else to store
    kind, id = item.get("type"), item.get("call_id")
    form: dict[str, Any] = {"item": dict(item)}
    if kind in (None, "message") and isinstance(role := item.get("role"), str) and role in ROLES:
        return keep(NAME, Message(ROLES[role], _content(item.get("content"))), form)
    kind = str(kind)
    if kind.endswith("output"):
        message = Message("tool", _content(item.get("output")))
        with suppress(InvalidValueError):  # an id that cannot be stored as one links nothing, and stays in the item
            message = Message("tool", message.content, tool_call_id=id)
        return keep(NAME, message, form)
    # Without a call or a text, it is nothing that others could show to a model: windows leave such a message out.
    message = Message("tool")
    with suppress(InvalidValueError):
        field = next((field for field in ARGUMENTS if isinstance(item.get(field), str)), None)
        arguments = "{}" if field is None else check_text(item[field], field)
        call = ToolCall(id, item.get("name", kind), arguments, type=kind.removesuffix("_call").removesuffix("_tool"))  # type: ignore[arg-type]
        message = Message("assistant", tool_calls=[call])
        if field is not None:
            form = {"item": {**item, field: None}, "arguments": field}
    return keep(NAME, message, form)


def _plain(text: str) -> bool:
    with suppress(InvalidValueError):
        return bool(check_text(text, "content")) or not text
    return False


def _content(content: Any) -> Any:
    """Return a content as text if that is all that it holds, otherwise as blocks; None for anything else."""
    match content:
        case [{"type": "input_text" | "output_text", "text": str(text)}] | [{"type": "refusal", "refusal": str(text)}]:
            return text
        case str():
            return content
        case list() if all(isinstance(block, dict) for block in content):
            return content
    return None


def _to_items(message: Message) -> list[Any]:
    """Return the item that was stored as this message; one or more for a message that was stored another way."""
    if (form := take_original(NAME, message)) is not None:
        item = form["item"]
        if "arguments" in form:
            item[form["arguments"]] = message.tool_calls[0].arguments
        return [item]
    plain = message.role != "tool" and not (message.metadata or message.tool_calls or message.images)
    if plain and message.content and isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    items: list[Any] = []
    for chat in to_openai([replace(message, images=[image for image in message.images if is_url(image)])]):
        role, content, calls = chat["role"], chat.get("content"), chat.get("tool_calls", ())
        if role == "tool":
            id = chat.get("tool_call_id", "")
            items.append({"type": "function_call_output", "call_id": id, "output": _input(content)})
        elif content or not calls:
            items.append({"role": role, "content": message.text or "" if role == "assistant" else _input(content)})
        for call in calls:
            kind = {"function": "function_call", "custom": "custom_tool_call"}[call["type"]]
            items.append({"type": kind, "call_id": call["id"], **call[call["type"]]})
    return items


def _input(content: Any) -> str | list[dict[str, Any]]:
    """Return the content of a Chat Completions message as that of an input item."""
    if not isinstance(content, list):
        return content or ""
    blocks: list[dict[str, Any]] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                blocks.append({"type": "input_text", "text": text})
            case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
                blocks.append({"type": "input_image", "image_url": url, "detail": rest.get("detail", "auto")})
            case _:
                blocks.append({"type": "input_text", "text": json.dumps(block, ensure_ascii=False)})
    return blocks
