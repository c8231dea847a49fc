"""The conversation memory of MARSYS: `ConversationMemory`, `MemoryManager`, and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, get_args

from msgspec import DecodeError, json

import mnemic

from ..checks import check_name, check_segment, new_id, shown
from ..features.session_settings import Retention
from ..features.summary import extractive
from ..memory import OpenOptions
from ..message_list import MessageList
from ..messages import ROLES
from .opening import shared

__all__ = [
    "AgentCallMsg",
    "AnthropicMessages",
    "ConversationMemory",
    "ConversationTracker",
    "MemoryManager",
    "Message",
    "MessageContent",
    "PersistentMemory",
    "SummarizingMemory",
    "ToolCallMsg",
    "format_for_anthropic",
    "format_for_openai",
]

DEFAULT_STORE = "sqlite:///agent_memory.db"
"""Default store of persistent memories."""
SCOPE = "marsys"
"""Scope of the agents' memories."""
ACTIONS = ("call_tool", "invoke_agent", "final_response")


@dataclass
class ToolCallMsg:
    """A tool call in a message."""

    id: str
    call_id: str
    type: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an id or a name that is empty, or not text."""
        for name in ("id", "call_id", "name"):
            check_name(getattr(self, name), f"tool call {name}")

    def to_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "call_id": self.call_id, "type": self.type, "function": function}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ToolCallMsg:
        """Return a call from this class's or OpenAI's format; raises InvalidValueError for anything else."""
        try:
            function = data.get("function", data)
            call_id, kind = data.get("call_id") or data["id"], data.get("type", "function")
            return cls(data["id"], call_id, kind, function["name"], function["arguments"])
        except (AttributeError, KeyError, TypeError):
            raise mnemic.InvalidValueError(f"a tool call has an id, a name and arguments: {shown(data)}") from None


@dataclass
class AgentCallMsg:
    """A request to another agent."""

    agent_name: str
    request: Any

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a name that is empty, or not text."""
        check_name(self.agent_name, "agent name")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AgentCallMsg:
        """Return the call of a `to_dict` dict; raises InvalidValueError if a field is missing."""
        try:
            return cls(data["agent_name"], data.get("request"))
        except (AttributeError, KeyError, TypeError):
            raise mnemic.InvalidValueError(f"an agent call has an agent_name: {shown(data)}") from None


@dataclass
class MessageContent:
    """An agent's thought and next action."""

    thought: str | None = None
    next_action: str | None = None
    action_input: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an unknown action."""
        if self.next_action is not None and self.next_action not in ACTIONS:
            raise mnemic.InvalidValueError(
                f"next_action must be one of {', '.join(ACTIONS)}: {shown(self.next_action)}"
            )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MessageContent:
        return cls(data.get("thought"), data.get("next_action"), data.get("action_input"))


@dataclass
class Message:
    """One message of a conversation."""

    role: str
    content: str | dict[str, Any] | None = None
    message_id: str = field(default_factory=new_id)
    name: str | None = None
    tool_calls: list[ToolCallMsg] | None = None
    agent_calls: list[AgentCallMsg] | None = None
    structured_data: dict[str, Any] | None = None
    images: list[str] | None = None
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        """Accept calls as dicts, a single image as text, and content objects.

        Raises InvalidValueError for an unknown role, an empty id, or a field of the wrong type.
        """
        if isinstance(self.content, MessageContent):
            self.content = self.content.to_dict()
        if isinstance(self.images, str):
            self.images = [self.images]
        self.tool_calls = _calls(self.tool_calls, ToolCallMsg, "tool_calls")
        self.agent_calls = _calls(self.agent_calls, AgentCallMsg, "agent_calls")
        check_name(self.message_id, "message_id")
        encode(self)

    @staticmethod
    def is_valid_role(role: str) -> bool:
        return role in ROLES

    def to_dict(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if value is not None}
        for calls in ("tool_calls", "agent_calls"):
            if calls in fields:
                fields[calls] = [call.to_dict() for call in fields[calls]]
        return fields

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Message:
        """Return the message of a `to_dict` dict; raises InvalidValueError for an unknown field, or without a role."""
        if not isinstance(data, dict) or "role" not in data or set(data) - set(cls.__dataclass_fields__):
            known = ", ".join(cls.__dataclass_fields__)
            raise mnemic.InvalidValueError(f"a message has a role, and of {known} what it needs: {shown(data)}")
        return cls(**{name: value for name, value in data.items() if value is not None})


def _calls(calls: Any, kind: Any, field: str) -> Any:
    if calls is None:
        return None
    if not isinstance(calls, list | tuple):
        raise mnemic.InvalidValueError(f"{field} is a list of {kind.__name__}: {shown(calls)}")
    return [call if isinstance(call, kind) else kind.from_dict(call) for call in calls]


def encode(message: Message, known: Mapping[str, mnemic.Message] | None = None) -> mnemic.Message:
    """Return a Mnemic message, including fields of the stored one with its id.

    Raises InvalidValueError if it is not a message.
    """
    if not isinstance(message, Message):
        raise mnemic.InvalidValueError(f"a memory holds messages, not {shown(message)}")
    role: Any = message.role
    before = (known or {}).get(message.message_id)
    more: dict[str, Any] = {} if before is None else {"metadata": before.metadata, "timestamp": before.timestamp}
    return mnemic.Message(
        role,
        message.content,
        message.message_id,
        message.name,
        [mnemic.ToolCall(c.id, c.name, c.arguments, c.type, c.call_id) for c in message.tool_calls or ()],
        [mnemic.AgentCall(c.agent_name, c.request) for c in message.agent_calls or ()],
        message.structured_data,
        list(message.images or ()),
        message.tool_call_id,
        **more,
    )


def decode(message: mnemic.Message) -> Message:
    """Return a MARSYS message from a Mnemic message."""
    content: Any = message.content
    calls = [ToolCallMsg(c.id, c.call_id or c.id, c.type, c.name, c.arguments) for c in message.tool_calls]
    others = [AgentCallMsg(c.agent_name, c.request) for c in message.agent_calls]
    return Message(
        message.role, content, message.id, message.name, calls or None, others or None,
        message.structured_data, list(message.images) or None, message.tool_call_id,
    )  # fmt: skip


class AnthropicMessages(list[dict[str, Any]]):
    """Messages in Anthropic's format; pass `system` as its own parameter."""

    system: str | None = None


def format_for_openai(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format."""
    return mnemic.to_openai([encode(message) for message in messages])


def format_for_anthropic(messages: Iterable[Message]) -> AnthropicMessages:
    """Return messages in Anthropic's format; the list's `system` is the system text."""
    system, turns = mnemic.to_anthropic([encode(message) for message in messages])
    formatted = AnthropicMessages(turns)
    formatted.system = system
    return formatted


class ConversationMemory:
    """The history of one agent's conversation."""

    def __init__(
        self,
        max_messages: int | None = None,
        retention_policy: str = "session",
        *,
        session: mnemic.Session | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """`session` is the underlying session; by default one in this process, opened with `options`."""
        self.max_messages = max_messages
        self.retention_policy: str = _policy(retention_policy)
        if session is None:
            session = _session(mnemic.open("memory://", **options), (), max_messages, retention_policy)
        self.session = session

    @property
    def messages(self) -> MessageList[Message]:
        return MessageList(lambda: self.session, encode, decode)

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        self.messages.replace(messages)

    def add_message(self, message: Message) -> None:
        self.session.add(encode(message))

    def get_messages(self) -> list[Message]:
        return self.messages[:]

    def get_recent(self, n: int = 10) -> list[Message]:
        return [decode(message) for message in self.session.recent(n)]

    def clear(self) -> None:
        self.session.clear()

    def to_dict(self) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.get_messages()]

    def save_to_file(self, filepath: str | PathLike[str]) -> None:
        self.session.save(filepath)

    def load_from_file(self, filepath: str | PathLike[str]) -> None:
        try:
            listed: Any = json.decode(Path(filepath).read_bytes())
        except (DecodeError, UnicodeDecodeError, RecursionError, OSError):
            listed = None
        if isinstance(listed, list):
            loaded = [encode(Message.from_dict(one)) for one in listed]
            # Paths in a file are not opened: it may come from anyone.
            self.session.replace(loaded, open_images=False)
        else:
            self.session.load(filepath)


class MemoryManager:
    """The memories of several agents; leaving a `with` block ends their session."""

    def __init__(
        self,
        retention_policy: str = "session",
        max_messages_per_agent: int = 1000,
        *,
        store: str | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """`store` is the URL of persistent memories, opened on first use.

        `options` are those of `mnemic.open`, such as `encryption_key`.
        """
        self.retention_policy = _policy(retention_policy)
        self.max_messages_per_agent = max_messages_per_agent
        self._store = store
        self._options = options
        self._scratch = mnemic.open("memory://", **(options | {"index": None}))  # the index is of the persistent store
        self._memories: dict[str, ConversationMemory] = {}

    def get_memory(self, agent_name: str) -> ConversationMemory:
        """Return an agent's memory: always the same object, also after a change of its policy."""
        if agent_name not in self._memories:
            self._memories[agent_name] = ConversationMemory(
                self.max_messages_per_agent,
                self.retention_policy,
                session=self._session(agent_name, self.retention_policy),
            )
        return self._memories[agent_name]

    def clear_agent_memory(self, agent_name: str) -> None:
        self.get_memory(agent_name).clear()

    def clear_all(self) -> None:
        """Clear the memories of all agents, including persistent ones that are not open.

        A manager without `store` and without persistent memories looks for none.
        """
        for memory in list(self._memories.values()):
            memory.clear()
        policies = {self.retention_policy, *(memory.retention_policy for memory in self._memories.values())}
        if self._store is None and "persistent" not in policies:
            return
        root = self._persistent().scope(SCOPE)
        for info in root.sessions.list():
            root.scope(*info.scope.parent.segments[1:]).session(info.name).clear()

    def set_retention_policy(self, agent_name: str, policy: str) -> None:
        """Change an agent's policy, and move its messages accordingly."""
        _policy(policy)
        memory = self.get_memory(agent_name)
        before, after = memory.session, self._session(agent_name, policy)
        moves = (memory.retention_policy == "persistent") != (policy == "persistent")
        memory.session, memory.retention_policy = after, policy
        # Repeat until nothing is left: others may still be adding to the old session.
        while moves and (stored := before.messages()):
            after.add_many(stored, open_images=False)
            before.delete(*stored)

    def _session(self, agent_name: str, policy: str) -> mnemic.Session:
        memory = self._persistent() if policy == "persistent" else self._scratch
        return _session(memory, (agent_name,), self.max_messages_per_agent, policy)

    def _persistent(self) -> mnemic.Memory:
        return shared(DEFAULT_STORE if self._store is None else self._store, **self._options)

    @contextmanager
    def run(self) -> Iterator[MemoryManager]:
        try:
            yield self
        finally:
            for memory in self._memories.values():
                if memory.retention_policy == "single_run":
                    memory.clear()

    def end_session(self) -> None:
        for memory in self._memories.values():
            with memory.session:  # and clear it at its end, by its retention
                pass

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_session()


class ConversationTracker:
    """A conversation as pairs of user message and answer."""

    def __init__(self) -> None:
        self.memory: ConversationMemory = ConversationMemory()
        self.turn_count: int = 0

    def add_turn(self, user_msg: str, assistant_msg: str) -> None:
        pair = [Message("user", user_msg), Message("assistant", assistant_msg)]
        self.memory.session.add_many([encode(message) for message in pair])
        self.turn_count += 1

    def get_context(self, max_turns: int = 5) -> list[Message]:
        return self.memory.get_recent(max_turns * 2)


class SummarizingMemory(ConversationMemory):
    """A memory that summarizes its oldest messages: with `model`, from messages to text, or extractively."""

    def __init__(
        self, max_messages: int = 50, model: Callable[[list[Message]], str] | None = None, **given: Any
    ) -> None:
        super().__init__(max_messages, **given)
        self.max_messages: int = max_messages
        self.summaries: list[str] = []
        self._model = model

    def add_message(self, message: Message) -> None:
        super().add_message(message)
        if len(self.messages) >= self.max_messages:
            oldest = self.messages[: max(1, self.max_messages // 2)]
            self.summaries.append(self._summarize(oldest))
            # Deleted by id: messages added while the model was running stay.
            self.session.delete(*(message.message_id for message in oldest))

    def _summarize(self, messages: list[Message]) -> str:
        if self._model is not None:
            return self._model(messages)
        return extractive([encode(message) for message in messages])


class PersistentMemory:
    """A memory in a file of its own, written with every message."""

    def __init__(self, agent_name: str, base_path: str | PathLike[str]) -> None:
        """Raise InvalidValueError for a name that points outside the folder."""
        self.agent_name: str = check_segment(agent_name, "agent name")
        self.filepath: Path = Path(base_path) / f"{agent_name}_memory.json"
        self.memory: ConversationMemory = ConversationMemory()
        self._load()

    def _load(self) -> None:
        if self.filepath.exists():
            self.memory.load_from_file(self.filepath)

    def save(self) -> None:
        self.memory.save_to_file(self.filepath)

    def add_message(self, message: Message) -> None:
        self.memory.add_message(message)
        self.save()


def _session(memory: mnemic.Memory, scope: tuple[str, ...], max_messages: int | None, policy: str) -> mnemic.Session:
    # `max_messages` is a retention limit, so the rest is not archived.
    return memory.scope(SCOPE, *scope).session(
        "chat", max_messages=max_messages, overflow="drop", retention=_policy(policy)
    )


def _policy(policy: str) -> Retention:
    if policy not in get_args(Retention):
        known = ", ".join(get_args(Retention))
        raise mnemic.InvalidValueError(f"retention policy must be one of {known}: {shown(policy)}")
    return policy  # type: ignore[return-value]
