"""The conversation memory of MARSYS: `ConversationMemory`, `MemoryManager`, and their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from msgspec import DecodeError, json

import mnemic

from ..checks import check_segment, shown
from ..features.extractive import extractive
from ..features.sessions import Retention
from ..records import ROLES, new_id
from .live import Live, blocking, shared

ACTIONS = ("call_tool", "invoke_agent", "final_response")
KEPT = "sqlite:///agent_memory.db"
"""Where a manager keeps what is persistent, unless it is told."""


@dataclass
class ToolCallMsg:
    """A tool call in a message."""

    id: str
    call_id: str
    type: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "call_id": self.call_id, "type": self.type, "function": function}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ToolCallMsg:
        held = data.get("function", data)
        return cls(
            data["id"],
            data.get("call_id", data["id"]),
            data.get("type", "function"),
            held["name"],
            held["arguments"],
        )


@dataclass
class AgentCallMsg:
    """A request to another agent."""

    agent_name: str
    request: Any

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class MessageContent:
    """What an agent thinks, and does next."""

    thought: str | None = None
    next_action: str | None = None
    action_input: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an action that there is not."""
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
        """Raise InvalidValueError for a role that there is not; take content that knows its own form."""
        if isinstance(self.content, MessageContent):
            self.content = self.content.to_dict()
        encode(self)

    @staticmethod
    def is_valid_role(role: str) -> bool:
        return role in ROLES

    def to_dict(self) -> dict[str, Any]:
        held = {name: value for name, value in vars(self).items() if value is not None}
        for calls in ("tool_calls", "agent_calls"):
            if calls in held:
                held[calls] = [call.to_dict() for call in held[calls]]
        return held

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Message:
        held = dict(data)
        if held.get("tool_calls") is not None:
            held["tool_calls"] = [ToolCallMsg.from_dict(call) for call in held["tool_calls"]]
        if held.get("agent_calls") is not None:
            held["agent_calls"] = [AgentCallMsg(**call) for call in held["agent_calls"]]
        return cls(**held)


def encode(message: Message) -> mnemic.Message:
    """Return a message as Mnemic has it."""
    role: Any = message.role
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
    )


def decode(message: mnemic.Message) -> Message:
    """Return one of Mnemic's messages as it is here."""
    content: Any = message.content
    calls = [ToolCallMsg(c.id, c.call_id or c.id, c.type, c.name, c.arguments) for c in message.tool_calls]
    others = [AgentCallMsg(c.agent_name, c.request) for c in message.agent_calls]
    return Message(
        message.role, content, message.id, message.name, calls or None, others or None,
        message.structured_data, list(message.images) or None, message.tool_call_id,
    )  # fmt: skip


class ConversationMemory:
    """The history of one agent's conversation."""

    def __init__(
        self,
        max_messages: int | None = None,
        retention_policy: str = "session",
        *,
        session: mnemic.Session | None = None,
    ) -> None:
        """`session` is where it lies: in this process, unless one is given."""
        self.max_messages = max_messages
        self.retention_policy = _policy(retention_policy)
        if session is None:
            home = blocking(lambda: mnemic.open("memory://")).scope("marsys")
            session = home.session("chat", max_messages=max_messages, retention=self.retention_policy)
        self.session = session

    @property
    def messages(self) -> Live[Message]:
        return Live(self.session, encode, decode)

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        Live(self.session, encode, decode).replace(messages)

    def add_message(self, message: Message) -> None:
        blocking(lambda: self.session.add(encode(message)))

    def get_messages(self) -> list[Message]:
        return self.messages[:]

    def get_recent(self, n: int = 10) -> list[Message]:
        return [decode(message) for message in blocking(lambda: self.session.recent(n))]

    def clear(self) -> None:
        blocking(self.session.clear)

    def to_dict(self) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.get_messages()]

    def save_to_file(self, filepath: str | PathLike[str]) -> None:
        blocking(lambda: self.session.save(filepath))

    def load_from_file(self, filepath: str | PathLike[str]) -> None:

        def work() -> None:
            try:
                listed: Any = json.decode(Path(filepath).read_bytes())
            except (DecodeError, OSError):
                listed = None
            if isinstance(listed, list):
                self.messages = [Message.from_dict(one) for one in listed]
            else:
                self.session.load(filepath)

        blocking(work)


class MemoryManager:
    """The memories of several agents; with `with`, the session of all of them ends at its end."""

    def __init__(
        self,
        retention_policy: str = "session",
        max_messages_per_agent: int = 1000,
        *,
        store: str = KEPT,
    ) -> None:
        """`store` is the URL at which persistent memories are kept, opened when the first is needed."""
        self.retention_policy = _policy(retention_policy)
        self.max_messages_per_agent = max_messages_per_agent
        self._store = store
        self._scratch = blocking(lambda: mnemic.open("memory://"))
        self._policies: dict[str, Retention] = {}
        self._memories: dict[str, ConversationMemory] = {}

    def get_memory(self, agent_name: str) -> ConversationMemory:
        if agent_name not in self._memories:
            policy = self._policies.get(agent_name, self.retention_policy)
            memory = shared(self._store) if policy == "persistent" else self._scratch
            session = memory.scope("marsys", agent_name).session(
                "chat", max_messages=self.max_messages_per_agent, retention=policy
            )
            self._memories[agent_name] = ConversationMemory(
                self.max_messages_per_agent, policy, session=session
            )
        return self._memories[agent_name]

    def clear_agent_memory(self, agent_name: str) -> None:
        self.get_memory(agent_name).clear()

    def clear_all(self) -> None:
        for memory in self._memories.values():
            memory.clear()

    def set_retention_policy(self, agent_name: str, policy: str) -> None:
        before = self.get_memory(agent_name)
        self._policies[agent_name] = _policy(policy)
        del self._memories[agent_name]
        after = self.get_memory(agent_name)
        if (before.retention_policy == "persistent") != (policy == "persistent"):
            blocking(lambda: after.session.add_many(before.session.messages()))
            before.clear()

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
            blocking(memory.session.end)

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_session()


class ConversationTracker:
    """A conversation by turns: what a user said, and what was answered."""

    def __init__(self) -> None:
        self.memory = ConversationMemory()
        self.turn_count = 0

    def add_turn(self, user_msg: str, assistant_msg: str) -> None:
        pair = [Message("user", user_msg), Message("assistant", assistant_msg)]
        blocking(lambda: self.memory.session.add_many([encode(message) for message in pair]))
        self.turn_count += 1

    def get_context(self, max_turns: int = 5) -> list[Message]:
        return self.memory.get_recent(max_turns * 2)


class SummarizingMemory(ConversationMemory):
    """A memory that summarises its oldest messages: with `model`, from messages to text, or by extracts."""

    def __init__(
        self, max_messages: int = 50, model: Callable[[list[Message]], str] | None = None, **given: Any
    ) -> None:
        super().__init__(max_messages, **given)
        self.max_messages: int = max_messages
        self.summaries: list[str] = []
        self._model = model

    def add_message(self, message: Message) -> None:
        super().add_message(message)
        held = self.get_messages()
        if len(held) >= self.max_messages:
            oldest = held[: max(1, self.max_messages // 2)]
            self.summaries.append(self._summarize(oldest))
            # Removed by their ids: what came while the model was thinking stays.
            blocking(lambda: self.session.remove([message.message_id for message in oldest]))

    def _summarize(self, messages: list[Message]) -> str:
        if self._model is not None:
            return self._model(messages)
        return extractive([encode(message) for message in messages])


class PersistentMemory:
    """A memory in a file of its own, which is written with every message."""

    def __init__(self, agent_name: str, base_path: str | PathLike[str]) -> None:
        """Raise InvalidValueError for a name that would lead out of the folder."""
        self.agent_name = check_segment(agent_name, "agent name")
        self.filepath = Path(base_path) / f"{agent_name}_memory.json"
        self.memory = ConversationMemory()
        self._load()

    def _load(self) -> None:
        if self.filepath.exists():
            self.memory.load_from_file(self.filepath)

    def save(self) -> None:
        self.memory.save_to_file(self.filepath)

    def add_message(self, message: Message) -> None:
        self.memory.add_message(message)
        self.save()


class AnthropicMessages(list[dict[str, Any]]):
    """Messages as Anthropic takes them; `system` goes into its own parameter."""

    system: str | None = None


def format_for_openai(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages as OpenAI takes them."""
    return mnemic.to_openai([encode(message) for message in messages])


def format_for_anthropic(messages: Iterable[Message]) -> AnthropicMessages:
    """Return messages as Anthropic takes them; the system text is the `system` of the list."""
    system, turns = mnemic.to_anthropic([encode(message) for message in messages])
    formatted = AnthropicMessages(turns)
    formatted.system = system
    return formatted


def _policy(policy: str) -> Retention:
    if policy not in get_args(Retention):
        known = ", ".join(get_args(Retention))
        raise mnemic.InvalidValueError(f"retention policy must be one of {known}: {shown(policy)}")
    return policy  # type: ignore[return-value]
