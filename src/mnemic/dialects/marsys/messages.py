"""MARSYS messages, and conversions to Mnemic's and to model providers' formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import mnemic

from ...checks import check_name, new_id, shown
from ...messages import ROLES

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
            held = data.get("function", data)
            call_id, kind = data.get("call_id") or data["id"], data.get("type", "function")
            return cls(data["id"], call_id, kind, held["name"], held["arguments"])
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
        held = {name: value for name, value in vars(self).items() if value is not None}
        for calls in ("tool_calls", "agent_calls"):
            if calls in held:
                held[calls] = [call.to_dict() for call in held[calls]]
        return held

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
