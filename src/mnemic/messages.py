"""Messages, how callers give them, and their form as records; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from msgspec import field
from msgspec.structs import force_setattr

from .checks import (
    MAX_JSON_DEPTH,
    MAX_SIZE,
    check_choice,
    check_json,
    check_name,
    check_text,
    check_time,
    new_id,
    shown,
)
from .errors import InvalidValueError, TooLargeError
from .records import MESSAGE, Record, ScopePath, Value, now, parse_time, unreadable

__all__ = [
    "ROLES", "SYSTEM_ID", "AgentCall", "Content", "Message", "MessageLike", "Role", "ToolCall",
    "check_fields", "decode", "encode", "one_message", "texts_in", "to_message", "turn_order",
]  # fmt: skip

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""The role of a message."""
ROLES: tuple[Role, ...] = get_args(Role)
Content: TypeAlias = str | dict[str, Any] | list[Any] | None
"""Content of a message: text, an object, or a list of content blocks."""
SYSTEM_ID = "@system"
"""Reserved id of the message that `set_system` writes."""


class ToolCall(Value, frozen=True, omit_defaults=True):
    """A model's request to run a tool; `arguments` is JSON text, as models write it."""

    id: str
    name: str
    arguments: str = "{}"
    type: str = "function"
    call_id: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError if a field is not text."""
        check_name(self.id, "tool call id")
        check_name(self.name, "tool call name")
        check_text(self.arguments, "tool call arguments")


class AgentCall(Value, frozen=True, omit_defaults=True):
    """A request to another agent."""

    agent_name: str
    request: Any = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError if the name is invalid, or the request is not JSON."""
        check_name(self.agent_name, "agent name")
        check_json(self.request, "agent call request")


class Message(Value, frozen=True):
    """One message of a conversation.

    `content` is text, an object, or a list of content blocks; `images` are paths, URLs or data URLs;
    `tool_call_id` links a tool result to its call.
    """

    role: Role
    content: Content = None
    id: str = field(default_factory=new_id)
    name: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    agent_calls: list[AgentCall] = field(default_factory=list)
    structured_data: dict[str, Any] | None = None
    images: list[str] = field(default_factory=list)
    tool_call_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    timestamp: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an unknown role, or a field of the wrong type."""
        if self.role not in ROLES:
            check_choice(self.role, "role", ROLES)
        content = self.content.__class__
        if content is not str and not (self.content is None or issubclass(content, str | dict | list)):
            raise InvalidValueError(f"content must be text, an object or a list of blocks, not {content.__name__}")
        if content is list:
            _check_blocks(self.content)
        if self.metadata.__class__ is not dict:
            raise InvalidValueError(f"metadata must be a dict: {shown(self.metadata)}")
        if self.timestamp.__class__ is not datetime or self.timestamp.tzinfo is None:
            force_setattr(self, "timestamp", check_time(self.timestamp, "timestamp"))
        # A fast path: nearly every message has none of these.
        if self.name is not None or self.tool_call_id is not None or self.structured_data is not None:
            _check_optional(self)
        if self.tool_calls != []:
            _check_items(self.tool_calls, ToolCall, "tool_calls")
        if self.agent_calls != []:
            _check_items(self.agent_calls, AgentCall, "agent_calls")
        if self.images != []:
            _check_items(self.images, str, "images")

    @property
    def text(self) -> str | None:
        """The readable text of the message: its content, the texts within it, or its tool calls."""
        if isinstance(self.content, str):
            return self.content
        parts = [*texts_in(self.content), *texts_in(self.structured_data)]
        if not parts:
            parts = [f"{call.name}({call.arguments})" for call in self.tool_calls]
            parts += [" ".join([call.agent_name, *texts_in(call.request)]) for call in self.agent_calls]
        return "\n".join(parts) if parts else None

    def to_dict(self) -> dict[str, Any]:
        """Return the message as a dict of JSON types, without loss; raises InvalidValueError if it has other types."""
        return {
            "role": self.role,
            "content": check_json(self.content, "content")[0],
            "id": self.id,
            "name": self.name,
            "tool_calls": [_as_dict(call) for call in self.tool_calls],
            "agent_calls": [_as_dict(call) for call in self.agent_calls],
            "structured_data": check_json(self.structured_data, "structured_data")[0],
            "images": list(self.images),
            "tool_call_id": self.tool_call_id,
            "metadata": check_json(self.metadata, "metadata")[0],
            "timestamp": check_time(self.timestamp, "timestamp").isoformat(),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Message:
        """Return the message of a `to_dict` dict; missing fields have their defaults.

        Raises InvalidValueError for an unknown field, which would otherwise be lost.
        """
        if not isinstance(value, dict):
            raise InvalidValueError(f"a message is made from a dict, not {shown(value)}")
        check_fields(value)
        fields: dict[str, Any] = {name: item for name, item in value.items() if item is not None}
        if "role" not in fields:
            raise InvalidValueError(f"a message needs a role: {shown(value)}")
        for name, kind in (("tool_calls", ToolCall), ("agent_calls", AgentCall)):
            if isinstance(calls := fields.get(name), list):
                fields[name] = [_from_dict(kind, call) for call in calls]
        if isinstance(stamp := fields.get("timestamp"), str):
            fields["timestamp"] = parse_time(stamp, "timestamp")
        for name in ("content", "structured_data", "metadata"):
            if name in fields:
                fields[name] = check_json(fields[name], name)[0]
        return cls(**fields)


def texts_in(value: Any, depth: int = MAX_JSON_DEPTH) -> Iterator[str]:
    """Yield the strings that a reader would see: all values, but only the text of typed blocks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth:
        for item in value:
            yield from texts_in(item, depth - 1)
    elif isinstance(value, dict) and depth:
        seen = ("text", "content", "input", "thinking") if isinstance(value.get("type"), str) else tuple(value)
        for key in seen:
            yield from texts_in(value.get(key), depth - 1)


def _check_optional(message: Message) -> None:
    if message.name is not None:
        check_name(message.name, "name")
    if message.tool_call_id is not None:
        check_name(message.tool_call_id, "tool_call_id")
    if not isinstance(message.structured_data, dict | None):
        raise InvalidValueError(f"structured_data must be a dict: {shown(message.structured_data)}")


def check_fields(fields: Iterable[str]) -> None:
    """Raise InvalidValueError, which lists the fields of a message, for an unknown one."""
    if unknown := set(fields) - set(Message.__struct_fields__):
        known = ", ".join(Message.__struct_fields__)
        raise InvalidValueError(f"a message has no field {', '.join(sorted(map(str, unknown)))}: use {known}")


def _check_blocks(content: Any) -> None:
    for place, block in enumerate(content):
        if not isinstance(block, str | Mapping):
            raise InvalidValueError(
                f"content[{place}] must be text or an object, as model_dump() returns: {shown(block)}"
            )


def _check_items(items: Any, kind: type, field: str) -> None:
    if not isinstance(items, list):
        raise InvalidValueError(f"{field} must be a list, not {type(items).__name__}: {shown(items)}")
    for item in items:
        if not isinstance(item, kind):
            raise InvalidValueError(f"{field} holds {kind.__name__} values, not {shown(item)}")


def _as_dict(call: ToolCall | AgentCall) -> dict[str, Any]:
    return {
        name: value
        for name in call.__struct_fields__
        if (value := getattr(call, name)) is not None or name == "request"
    }


def _from_dict(kind: type[ToolCall] | type[AgentCall], value: Any) -> ToolCall | AgentCall:
    if isinstance(value, kind):
        return value
    try:
        return kind(**value)
    except TypeError:
        fields = ", ".join(kind.__struct_fields__)
        hint = "; from_openai converts this format" if isinstance(value, dict) and "function" in value else ""
        raise InvalidValueError(f"a {kind.__name__} has the fields {fields}: {shown(value)}{hint}") from None


MessageLike: TypeAlias = Message | Mapping[str, Any] | tuple[Role, Content]
"""A message, a dict of its fields such as {"role": "user", "content": "hello"}, or a pair of role and content."""

TAKEN = (
    f'a message is given as a role ({", ".join(ROLES)}) and content, such as "user", "hello", or both in a tuple; '
    'as a dict, {"role": "user", "content": "hello"}; or as a Message'
)


def one_message(
    message: MessageLike | Role | None,
    content: Content,
    role: Role | None,
    fields: dict[str, Any],
    clock: Callable[[], datetime],
) -> Message:
    """Return a message from fields or a whole one; raises InvalidValueError with the accepted forms."""
    both = "give either a message, or a role with content and fields, not both"
    if isinstance(message, str):
        if role is not None:
            raise InvalidValueError(both)
        message, role = None, message
    if message is not None:
        whole = to_message(message, clock)
        if content is not None or role is not None or fields:
            raise InvalidValueError(both)
        return whole
    if role not in ROLES:
        raise InvalidValueError(f"{TAKEN}: {'there is no role' if role is None else f'the role is {shown(role)}'}")
    if fields:
        check_fields(fields)
    if "timestamp" not in fields:
        fields["timestamp"] = clock()
    return Message(role, content, **fields)


def to_message(given: MessageLike, clock: Callable[[], datetime]) -> Message:
    """Return a message, or one from a dict of fields or a pair of role and content; raises InvalidValueError."""
    if isinstance(given, Message):
        return given
    if isinstance(given, tuple) and len(given) == 2 and given[0] in ROLES:
        return Message(given[0], given[1], timestamp=clock())
    if isinstance(given, Mapping):
        fields = dict(given)
        if fields.get("timestamp") is None:
            fields["timestamp"] = clock()
        return Message.from_dict(fields)
    raise InvalidValueError(f"{TAKEN}, not {shown(given)}")


def encode(
    message: Message,
    scope: ScopePath,
    count: Callable[[Message], int],
    encoding: str | None,
    expires: datetime | None = None,
) -> Record:
    """Return a message as a record, weighed by `count`; raises InvalidValueError or TooLargeError.

    `encoding` names the encoding that counts tokens, if it is not the default.

    Plain text is only in the record's text, so it is stored once. The system role is also a label, so that system
    messages are found without a scan.
    """
    if message.id == SYSTEM_ID and message.role != "system":
        raise InvalidValueError(f"the id {SYSTEM_ID!r} is reserved for the system message")
    data: dict[str, Any] = {"role": message.role}
    size = 0

    def checked(value: Any, field: str) -> Any:
        nonlocal size
        copy, characters = check_json(value, field)
        size += characters
        return copy

    if encoding is not None:
        data["encoding"] = encoding
    if isinstance(message.content, str):
        size = len(message.content)
    elif (content := checked(message.content, "content")) is not None:
        data["content"] = content
    if message.name is not None:
        data["name"] = message.name
    if message.tool_calls:
        calls = [[call.id, call.name, call.arguments, call.type, call.call_id] for call in message.tool_calls]
        data["tool_calls"] = checked(calls, "tool_calls")
    if message.agent_calls:
        requests = [[call.agent_name, call.request] for call in message.agent_calls]
        data["agent_calls"] = checked(requests, "agent_calls")
    if message.structured_data is not None:
        data["structured_data"] = checked(message.structured_data, "structured_data")
    if message.images:
        data["images"] = checked(message.images, "images")
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    # Rejecting an oversized message is much faster than counting its tokens.
    if size > MAX_SIZE:
        raise TooLargeError(f"message {message.id!r} holds {size:,} characters, more than {MAX_SIZE:,}")
    try:
        weight = count(message)
    except UnicodeEncodeError:
        # A counter's own error for lone surrogates would be less clear.
        check_text(message.content, "content")
        raise
    text = message.content if isinstance(message.content, str) else message.text
    if message.content is None and text is not None:
        data["content"] = None
    system = message.role == "system"
    return Record(
        scope=scope,
        kind=MESSAGE,
        key=check_name(message.id, "message id"),
        text=text,
        data=data,
        meta=message.metadata,
        labels={"role": "system"} if system else {},
        weight=weight,
        pinned=system,
        created=message.timestamp,
        expires=expires,
    )


def decode(record: Record) -> Message:
    """Return the message of a record; raises UnreadableStoreError if it holds something else."""
    data: Any = record.data
    try:
        if len(data) == 1:
            # A fast path: most messages have only a role and a text.
            role, text = data["role"], record.text
            return Message(role, text, record.key, None, [], [], None, [], None, record.meta, record.created)  # type: ignore[arg-type]
        if len(data) == 2 and "name" in data:
            role, text, name = data["role"], record.text, data["name"]
            return Message(role, text, record.key, name, [], [], None, [], None, record.meta, record.created)  # type: ignore[arg-type]
        return Message(
            role=data["role"],
            content=data.get("content", record.text),
            id=record.key,
            name=data.get("name"),
            tool_calls=[ToolCall(*call) for call in data.get("tool_calls", ())],
            agent_calls=[AgentCall(*call) for call in data.get("agent_calls", ())],
            structured_data=data.get("structured_data"),
            images=data.get("images", []),
            tool_call_id=data.get("tool_call_id"),
            metadata=record.meta,
            timestamp=record.created,  # type: ignore[arg-type]
        )
    except (AttributeError, InvalidValueError, KeyError, TypeError) as error:
        raise unreadable(record, error) from None


def turn_order(id: str, time: datetime | None, system: bool) -> tuple[Any, ...]:
    """Return the sort key of a message among those of its session and its archive: the system message is the first."""
    return id != SYSTEM_ID, time, not system
