"""Chat memory and a memory block of LlamaIndex."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from ..checks import check_count, shown, to_segment
from ..errors import BudgetError, InvalidValueError
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message, Role
from ..scope import AsyncScope
from .foreign import blocks_of, keep, message_of, original, require

require("llama-index-core", "0.14", "0.15", "llama-index")

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.memory import BaseMemory, BaseMemoryBlock

__all__ = ["MnemicMemory", "MnemicMemoryBlock"]

FRAMEWORK = "llama_index"
ROLES: dict[MessageRole, Role] = {
    MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant", MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool", MessageRole.FUNCTION: "tool",
}  # fmt: skip


class MnemicMemory(BaseMemory):
    """The chat history of one session, for chat engines and agents; `recall` adds what is known from elsewhere."""

    session_id: str = "main"
    token_limit: int = Field(default=30_000, ge=1, description="How many tokens `get` returns at most.")
    recall: int = Field(default=0, ge=0, description="How many texts of the scope `get` recalls for the input.")
    url: str | None = Field(default=None, description="The URL of the memory, if that is all it needs to be opened.")
    _memory: MemoryAccess = PrivateAttr()

    def __init__(
        self,
        memory: AnyMemory | None = None,
        session_id: str = "main",
        *,
        token_limit: int = 30_000,
        recall: int = 0,
        url: str | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a session of a scope, such as that of a user, of a memory, or of a URL, opened with `options`."""
        given = url or OWN if memory is None else memory
        restorable = isinstance(given, str) and given != OWN and "@" not in given and not options
        fields = {
            "session_id": session_id,
            "token_limit": token_limit,
            "recall": recall,
            "url": given if restorable else None,
        }
        super().__init__(**fields)
        to_segment(session_id, "session_id")
        self._memory = MemoryAccess(given, options=options)

    @classmethod
    def class_name(cls) -> str:
        return "MnemicMemory"

    @classmethod
    def from_defaults(cls, chat_history: list[ChatMessage] | None = None, **kwargs: Any) -> MnemicMemory:
        """Create a memory from the arguments of the class; a `chat_history` replaces what is stored."""
        found = cls(**kwargs)
        if chat_history is not None:
            found.set(chat_history)
        return found

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the form for `from_dict`; raises InvalidValueError unless the URL is all that the memory needs."""
        _check_url(self.url)
        return super().to_dict(**kwargs)

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> MnemicMemory:
        _check_url(data.get("url"))
        return super().from_dict(data, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        _check_url(self.url)
        return super().__getstate__()

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        return self._memory.call_sync(lambda scope: self._get(scope, input, **kwargs))

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        return await self._memory.call(lambda scope: self._get(scope, input, **kwargs))

    def get_all(self) -> list[ChatMessage]:
        return self._memory.call_sync(self._get_all)

    async def aget_all(self) -> list[ChatMessage]:
        return await self._memory.call(self._get_all)

    def put(self, message: ChatMessage) -> None:
        self.put_messages([message])

    async def aput(self, message: ChatMessage) -> None:
        await self.aput_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages, all or none."""
        added = [_to_message(message) for message in messages]
        self._memory.call_sync(lambda scope: self._session(scope).add_many(added, open_images=False))

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages, all or none."""
        added = [_to_message(message) for message in messages]
        await self._memory.call(lambda scope: self._session(scope).add_many(added, open_images=False))

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace the history in one write; messages that stay the same are not written."""
        after = [_to_message(message) for message in messages]
        self._memory.call_sync(lambda scope: _replace(self._session(scope), after))

    async def aset(self, messages: list[ChatMessage]) -> None:
        after = [_to_message(message) for message in messages]
        await self._memory.call(lambda scope: _replace(self._session(scope), after))

    def reset(self) -> None:
        self._memory.call_sync(lambda scope: self._session(scope).clear())

    async def areset(self) -> None:
        await self._memory.call(lambda scope: self._session(scope).clear())

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()

    def _session(self, scope: AsyncScope) -> AsyncSession:
        return scope.session(to_segment(self.session_id, "session_id"))

    async def _get_all(self, scope: AsyncScope) -> list[ChatMessage]:
        return [_to_chat_message(message) for message in await self._session(scope).messages()]

    async def _get(
        self, scope: AsyncScope, input: str | None, initial_token_count: int = 0, **kwargs: Any
    ) -> list[ChatMessage]:
        """Return the newest messages that fit, with what is recalled; at least the last one."""
        limit = self.token_limit - check_count(initial_token_count, "initial_token_count")
        if limit < 0:
            raise InvalidValueError(f"initial_token_count {initial_token_count} exceeds the limit {self.token_limit}")
        session = self._session(scope)
        info = await session.info()
        try:
            if self.recall:
                found = await scope.context(
                    input or None, max(limit, 1), session=session.name, k=self.recall, min_score=0.1
                )
                messages = found.messages
            elif info is None or info.tokens <= limit:
                messages = await session.messages()
            else:
                messages = await session.window(limit)
        except BudgetError:
            # The model's own error about a message that is too long is clearer than one that is missing.
            messages = await session.messages(1)
        return [_to_chat_message(message) for message in messages]


class MnemicMemoryBlock(BaseMemoryBlock[str]):
    """A block for LlamaIndex's `Memory`: messages that leave the short-term memory are stored, and recalled by meaning.

    It also recalls memories, notes, facts and conversations that anything else has stored in the scope.
    """

    name: str = "memory"
    k: int = Field(default=5, ge=1, description="How many texts are recalled at most.")
    min_score: float | None = 0.1
    _memory: MemoryAccess = PrivateAttr()

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        name: str = "memory",
        description: str | None = None,
        priority: int = 0,
        accept_short_term_memory: bool = True,
        k: int = 5,
        min_score: float | None = 0.1,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a scope, such as that of a user, a memory, or a URL, which is opened with `options` on first use."""
        fields: dict[str, Any] = {"name": name, "description": description, "priority": priority}
        fields |= {"accept_short_term_memory": accept_short_term_memory, "k": k, "min_score": min_score}
        super().__init__(**fields)
        self._memory = MemoryAccess(memory, options=options)

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        users = [message.content for message in messages or [] if message.role == MessageRole.USER and message.content]
        if not users:
            return ""
        hits = await self._memory.call(lambda scope: scope.recall(users[-1], self.k, min_score=self.min_score))
        known = {message.content for message in messages or []}
        return "\n".join(hit.text for hit in hits if hit.text not in known)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        added: dict[str, list[Message]] = {}
        for message in messages:
            fields = dict(message.additional_kwargs)
            session = to_segment(fields.pop("session_id", "main"), "session_id")
            stored = _to_message(message.model_copy(update={"additional_kwargs": fields}))
            added.setdefault(session, []).append(stored)
        for session, stored_ones in added.items():
            await self._memory.call(
                lambda scope, name=session, new=stored_ones: scope.session(name).add_many(new, open_images=False)  # type: ignore[misc]
            )

    async def aclose(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


def _check_url(url: object) -> None:
    if not isinstance(url, str):
        raise InvalidValueError(
            "only a memory given as a URL, without a password and options, can be restored: pass this one again"
        )


async def _replace(session: AsyncSession, after: list[Message]) -> None:
    def change(before: list[Message]) -> list[Message]:
        kept = [old if _same(old, new) else new for old, new in zip(before, after, strict=False)]
        return kept + after[len(kept) :]

    await session.replace(change, open_images=False)


def _same(old: Message, new: Message) -> bool:
    return (old.role, original(FRAMEWORK, old)) == (new.role, original(FRAMEWORK, new))


def _to_message(given: ChatMessage) -> Message:
    if not isinstance(given, ChatMessage):
        raise InvalidValueError(f"a message of LlamaIndex is a ChatMessage, not {shown(given)}")
    form = given.model_dump(mode="json", exclude_none=True)
    role, text, answered = ROLES[given.role], given.content, form["additional_kwargs"].get("tool_call_id")
    results = [(answered, text)] if role == "tool" and answered else []
    return keep(FRAMEWORK, message_of(role, None if results else text, _calls(form), results), form)


def _calls(form: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the tool calls of a message: its blocks or, as older integrations give them, in OpenAI's format."""
    blocks = [block for block in form["blocks"] if block["block_type"] == "tool_call"]
    older = form["additional_kwargs"].get("tool_calls") if not blocks else None
    for block in blocks:
        yield block.get("tool_call_id"), block["tool_name"], block["tool_kwargs"]
    for call in older if isinstance(older, list) else []:
        match call:
            case {"id": id, "function": {"name": str(name), "arguments": arguments}}:
                yield id, name, arguments


def _to_chat_message(message: Message) -> ChatMessage:
    if (form := original(FRAMEWORK, message)) is not None:
        return ChatMessage.model_validate(form)
    extra: dict[str, Any] = {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}
    if message.name is not None:
        extra["name"] = message.name
    blocks: list[ContentBlock] = blocks_of(
        message,
        text=lambda text: TextBlock(text=text),
        image=lambda kind, data: ImageBlock(image=data.encode(), image_mimetype=kind),
        call=lambda call, given: ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=given),
    )
    return ChatMessage(role=MessageRole(message.role), blocks=blocks, additional_kwargs=extra)
