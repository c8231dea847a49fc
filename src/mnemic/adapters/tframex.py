"""TFrameX: histories of its agents, in any store."""

from __future__ import annotations

from typing import Unpack

from .foreign import keep, message_of, original, printable_name, require

require("tframex", "1.1", "1.2", "tframex")

from tframex.models.primitives import FunctionCall
from tframex.models.primitives import Message as TFrameXMessage
from tframex.models.primitives import ToolCall as TFrameXToolCall
from tframex.util.memory import BaseMemoryStore

from ..checks import check_count, check_several, to_segment
from ..errors import InvalidValueError
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message, ToolCall
from ..scope import AsyncScope
from ..transfer.json_stream import clean_json

__all__ = ["MnemicMemoryStore"]


class MnemicMemoryStore(BaseMemoryStore):
    """The history of a TFrameX agent, in a session of a memory."""

    def __init__(
        self,
        memory: AnyMemory = OWN,
        session: str = "main",
        *,
        scope: str | None = None,
        max_history_size: int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a session of a scope, a memory or a URL, with `scope`, such as a user's id, of that scope in it.

        Beyond `max_history_size`, the oldest messages move to the session's archive. `options` are those of
        `mnemic.open`, for a URL.
        """
        self._memory = MemoryAccess(memory, None if scope is None else to_segment(scope, "scope"), options)
        self._name = to_segment(session, "session")
        self._size = None if max_history_size is None else check_count(max_history_size, "max_history_size", least=1)

    async def add_message(self, message: TFrameXMessage) -> None:
        """Add a message; raises InvalidValueError for anything else."""
        added = to_message(message)
        await self._memory.call(lambda scope: self._session(scope).add(added))

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[str] | None = None
    ) -> list[TFrameXMessage]:
        """Return the messages with these roles, oldest first; `limit` and `offset` count back from the newest.

        A limited history does not begin with the results of a tool call that is left out.
        """
        asked: list[str] | None = check_several(roles, "roles") if roles else None
        found = await self._memory.call(
            lambda scope: self._session(scope).messages(limit, offset, roles=asked)  # type: ignore[arg-type]
        )
        while limit is not None and not asked and found and found[0].role == "tool":
            found = found[1:]
        return [to_tframex(message) for message in found]

    async def clear(self) -> None:
        await self._memory.call(lambda scope: self._session(scope).clear())

    async def close(self) -> None:
        """Close the memory, if it was opened here."""
        await self._memory.close()

    def _session(self, scope: AsyncScope) -> AsyncSession:
        if self._size is None:
            return scope.session(self._name)
        return scope.session(self._name, max_messages=self._size)


def to_message(given: TFrameXMessage) -> Message:
    """Return a message of TFrameX as a Message, from which `to_tframex` makes the same again."""
    if not isinstance(given, TFrameXMessage):
        raise InvalidValueError(f"a TFrameX Message is stored, not {type(given).__name__}")
    if not isinstance(given.content, str | None):
        raise InvalidValueError(f"content of a TFrameX Message is text, not {type(given.content).__name__}")
    message = message_of(
        given.role,
        clean_json(given.content),
        [(call.id, call.function.name, call.function.arguments) for call in given.tool_calls or ()],
        name=printable_name(given.name) if given.name else None,
        tool_call_id=printable_name(given.tool_call_id) if given.tool_call_id else None,
    )
    return message if to_tframex(message) == given else keep("tframex", message, given.model_dump(mode="json"))


def to_tframex(message: Message) -> TFrameXMessage:
    """Return a message as one of TFrameX: the same if it was one, else one with the same text and tool calls."""
    if (form := original("tframex", message)) is not None:
        return TFrameXMessage.model_validate(form)
    calls = message.tool_calls
    return TFrameXMessage(
        role=message.role,
        content=None if message.content is None and calls else message.text,
        tool_calls=[_call(call) for call in calls] or None,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _call(call: ToolCall) -> TFrameXToolCall:
    return TFrameXToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
