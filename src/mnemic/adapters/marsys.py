"""MARSYS: conversations of its agents, in any store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any, Unpack

from msgspec.structs import replace

from .foreign import keep, original, printable_name, require

require("marsys", "0.2.1", "0.3", "marsys")

import marsys.agents.memory as theirs
from marsys.agents.memory import AgentCallMsg, BaseMemory, ManagedMemoryConfig, ToolCallMsg
from marsys.agents.memory import Message as MarsysMessage
from marsys.agents.memory_strategies import MemoryState

from ..checks import shown, to_segment
from ..errors import InvalidValueError
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..message_list import MessageList
from ..messages import ROLES, AgentCall, Message, ToolCall
from ..sync import Session
from ..transfer.json_stream import clean_json

__all__ = ["ConversationMemory", "ManagedConversationMemory", "MemoryManager", "Place", "use_memory"]


class Place(OpenOptions, total=False):
    """Where a conversation is: a session of a scope, a memory or a URL.

    `scope`, such as a user's id, is a scope in it. The session is "main" by default. Other values are the options of
    `mnemic.open`, for a URL.
    """

    memory: AnyMemory
    session: str
    scope: str | None


class _InSession:
    """The common part of the memories: a session, and its messages as a list."""

    _memory: MemoryAccess
    _session_name: str

    def _open(
        self, memory: AnyMemory = OWN, session: str = "main", scope: str | None = None, **options: Unpack[OpenOptions]
    ) -> None:
        self._memory = MemoryAccess(memory, None if scope is None else to_segment(scope, "scope"), options)
        self._session_name = to_segment(session, "session")

    @property
    def session(self) -> Session:
        """The session with the conversation, for everything else that Mnemic does with one."""
        return self._memory.session_sync(self._session_name)

    @property
    def _messages(self) -> MessageList[MarsysMessage]:
        return MessageList(lambda: self.session, lambda item, _: to_message(item), to_marsys, open_images=False)

    def close(self) -> None:
        """Close the memory, if it was opened here."""
        self._memory.close_sync()


class ConversationMemory(_InSession, theirs.ConversationMemory):
    """A conversation, in a session of a memory; `memory`, the list of its messages, is the session."""

    def __init__(self, description: str | None = None, **place: Unpack[Place]) -> None:
        """Use a session: `memory=`, `session=`, `scope=` and the options of `mnemic.open`, as `Place` says.

        `description` is the content of the first message, a system message, in place of the one that is there.
        """
        BaseMemory.__init__(self, memory_type="conversation_history")
        self._open(**place)
        if description:
            self.session.replace(lambda stored: _described(stored, description), open_images=False)

    @property
    def memory(self) -> MessageList[MarsysMessage]:
        """The messages; a change of the list is a change of the session."""
        return self._messages

    @memory.setter
    def memory(self, messages: Iterable[MarsysMessage]) -> None:
        self._messages.replace(messages)


class ManagedConversationMemory(_InSession, theirs.ManagedConversationMemory):
    """A conversation with compaction, in a session of a memory; what is compacted moves to the session's archive."""

    _compacted: frozenset[str] | None = None
    """The ids of the messages that the running compaction has seen."""

    def __init__(
        self,
        config: ManagedMemoryConfig | None = None,
        trigger_strategy: Any = None,
        process_strategy: Any = None,
        retrieval_strategy: Any = None,
        description: str | None = None,
        **place: Unpack[Place],
    ) -> None:
        """Use a session as `ConversationMemory` does; other arguments are those of MARSYS's own class."""
        super().__init__(config, trigger_strategy, process_strategy, retrieval_strategy, description)
        self._open(**place)
        if len(self.raw_messages):
            self._recompute_token_accounting()

    @property
    def raw_messages(self) -> MessageList[MarsysMessage]:
        """The messages; a change of the list is a change of the session."""
        return self._messages

    @raw_messages.setter
    def raw_messages(self, messages: Sequence[MarsysMessage]) -> None:
        if not hasattr(self, "_memory"):
            return  # MARSYS begins with an empty list
        before = self._compacted
        if before is None:
            self._messages.replace(messages)
        else:
            self.session.replace(lambda stored: _rewritten(stored, messages, before), archive=True, open_images=False)

    async def _run_compaction(self, runtime: dict[str, Any] | None = None) -> None:
        if self._estimated_total_tokens > self.config.threshold_tokens:
            with self._compacting():
                await super()._run_compaction(runtime)

    async def compact_for_payload_error(self, runtime: dict[str, Any] | None = None) -> bool:
        with self._compacting():
            compacted: bool = await super().compact_for_payload_error(runtime)
            return compacted

    @contextmanager
    def _compacting(self) -> Iterator[None]:
        """Note which messages a compaction has seen: it awaits a model, and others may write meanwhile."""
        self._compacted = frozenset(message.id for message in self._messages.stored())
        try:
            yield
        finally:
            self._compacted = None

    def _get_memory_state(self) -> MemoryState:
        return MemoryState(
            raw_messages=_ReadOnce(self._messages.copy),
            estimated_tokens=self._estimated_total_tokens,
            messages_since_last_retrieval=self._messages_since_last_retrieval,
            tokens_since_last_retrieval=self._tokens_since_last_retrieval,
            last_retrieval_index=self._last_retrieval_index,
            metadata=self.metadata.copy(),
        )


class MemoryManager(theirs.MemoryManager):
    """MARSYS's manager of a memory, with the memory in a session; the type "kg" stays in the process."""

    def __init__(
        self,
        memory_type: str = "conversation_history",
        description: str | None = None,
        model: Any = None,
        memory_config: ManagedMemoryConfig | None = None,
        token_counter: Callable[..., Any] | None = None,
        **place: Unpack[Place],
    ) -> None:
        """Use a session as `ConversationMemory` does; other arguments are those of MARSYS's own class."""
        super().__init__(memory_type, description, model, memory_config, token_counter)
        self.memory_module: BaseMemory
        if isinstance(self.memory_module, theirs.ConversationMemory):
            self.memory_module = ConversationMemory(description, **place)
        elif isinstance(self.memory_module, theirs.ManagedConversationMemory):
            config = self.memory_module.config
            self.memory_module = ManagedConversationMemory(config, description=description, **place)

    def close(self) -> None:
        """Close the memory, if it was opened here."""
        if isinstance(self.memory_module, _InSession):
            self.memory_module.close()


def use_memory(
    agent: Any,
    memory: AnyMemory = OWN,
    session: str | None = None,
    *,
    scope: str | None = None,
    **options: Unpack[OpenOptions],
) -> MemoryManager:
    """Give an agent a memory of the type, configuration and strategies that it has, in a session, by default its name.

    Raises InvalidValueError for an agent without a memory of MARSYS, or with the type "kg".
    """
    old = getattr(agent, "memory", None)
    if not isinstance(old, theirs.MemoryManager) or old.memory_type == "kg":
        raise InvalidValueError(f"only an agent with a conversation can be given another memory: {shown(agent)}")
    agent.memory = manager = MemoryManager(
        old.memory_type,
        agent.instruction if old.memory_type == "conversation_history" else None,
        memory_config=getattr(old.memory_module, "config", None),
        memory=memory,
        session=agent.name if session is None else session,
        scope=scope,
        **options,
    )
    if isinstance(old.memory_module, theirs.ManagedConversationMemory):
        for name in ("trigger_strategy", "process_strategy", "retrieval_strategy"):
            setattr(manager.memory_module, name, getattr(old.memory_module, name))
    return manager


class _ReadOnce(Sequence[MarsysMessage]):
    """The messages of a session, read when they are first used: most strategies only look at the count of tokens."""

    def __init__(self, read: Callable[[], list[MarsysMessage]]) -> None:
        self._read = read

    @cached_property
    def _all(self) -> list[MarsysMessage]:
        return self._read()

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)


def _described(stored: list[Message], description: str) -> list[Message]:
    """Return the messages with a first system message of this text."""
    made = to_message(MarsysMessage(role="system", content=description))
    if not stored or stored[0].role != "system":
        return [made, *stored]
    first = stored[0]
    kept = {name: value for name, value in first.metadata.items() if name != "marsys"}
    return [replace(first, content=made.content, metadata={**kept, **made.metadata}), *stored[1:]]


def _rewritten(stored: list[Message], messages: Iterable[MarsysMessage], before: frozenset[str]) -> Iterator[Message]:
    """Yield the new messages, the unchanged ones as they are stored, and then what others have added meanwhile."""
    known = [(message, to_marsys(message).to_llm_dict()) for message in stored]
    for given in messages:
        form = given.to_llm_dict()
        found = next((place for place, (_, old) in enumerate(known) if old == form), None)
        if found is None:
            yield to_message(given)
        else:
            yield known[found][0]
            del known[: found + 1]
    yield from (message for message in stored if message.id not in before)


def to_message(given: MarsysMessage) -> Message:
    """Return a message of MARSYS as a Message, from which `to_marsys` makes the same again."""
    if not isinstance(given, MarsysMessage):
        raise InvalidValueError(f"a MARSYS Message is stored, not {type(given).__name__}")
    message = Message(
        given.role if given.role in ROLES else "assistant",  # such as "error"
        clean_json(given.content),
        given.message_id,
        name=printable_name(given.name) if given.name else None,
        tool_calls=[
            ToolCall(printable_name(one.id), printable_name(one.name), clean_json(one.arguments), one.type, one.call_id)
            for one in given.tool_calls or ()
        ],
        agent_calls=[
            AgentCall(printable_name(one.agent_name), clean_json(one.request)) for one in given.agent_calls or ()
        ],
        structured_data=clean_json(given.structured_data),
        images=clean_json(given.images or []),
        tool_call_id=printable_name(given.tool_call_id) if given.tool_call_id else None,
    )
    if to_marsys(message) == given:
        return message
    return keep("marsys", message, {name: value for name, value in asdict(given).items() if name != "message_id"})


def to_marsys(message: Message) -> MarsysMessage:
    """Return a message as one of MARSYS: the same if it was one, else one with the same content."""
    if (form := original("marsys", message)) is not None:
        calls, agents = form.pop("tool_calls"), form.pop("agent_calls")
        return MarsysMessage(
            **form,
            message_id=message.id,
            tool_calls=None if calls is None else [ToolCallMsg(**call) for call in calls],
            agent_calls=None if agents is None else [AgentCallMsg(**call) for call in agents],
        )
    calls, agents = message.tool_calls, message.agent_calls
    return MarsysMessage(
        role=message.role,
        content=message.content,
        message_id=message.id,
        name=message.name,
        tool_calls=list(map(_tool_call, calls)) if calls else None,
        agent_calls=list(map(_agent_call, agents)) if agents else None,
        structured_data=message.structured_data,
        images=message.images or None,
        tool_call_id=message.tool_call_id,
    )


def _tool_call(call: ToolCall) -> ToolCallMsg:
    return ToolCallMsg(call.id, call.call_id or call.id, call.type, call.name, call.arguments)


def _agent_call(call: AgentCall) -> AgentCallMsg:
    return AgentCallMsg(call.agent_name, "" if call.request is None else call.request)
