"""Converts what callers pass to messages, and messages to records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from ..checks import MAX_SIZE, check_json, check_name, check_text, check_time, shown
from ..errors import InvalidValueError, TooLargeError
from ..event_loop import off_loop
from ..images import with_data
from ..records import ROLES, AgentCall, Content, Message, Record, Role, ScopePath, ToolCall, check_fields
from ..store.query import Delete, Op, Put
from ..tokens import DEFAULT_ENCODING, TokenCounter, count_message
from .kinds import MESSAGE

SYSTEM_ID = "@system"
"""Reserved id of the message that `set_system` writes."""

MessageLike: TypeAlias = Message | Mapping[str, Any]
"""A message, or a dict of its fields such as {"role": "user", "content": "hello"}."""

TAKEN = (
    f'a message is given as a role ({", ".join(ROLES)}) and content, such as "user", "hello"; '
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
    """Return a message, or one from a dict of fields; raises InvalidValueError."""
    if isinstance(given, Message):
        return given
    if isinstance(given, Mapping):
        fields = dict(given)
        if fields.get("timestamp") is None:
            fields["timestamp"] = clock()
        return Message.from_dict(fields)
    raise InvalidValueError(f"{TAKEN}, not {shown(given)}")


async def take_messages(
    given: Sequence[MessageLike], clock: Callable[[], datetime], *, open_images: bool = True, kept: Collection[str] = ()
) -> list[Message]:
    """Return messages with their image files read, except those in `kept`."""
    messages = [to_message(one, clock) for one in given]
    if not open_images or not any(message.images for message in messages):
        return messages
    return await off_loop(lambda: [with_data(message, kept) for message in messages])


def encode(message: Message, scope: ScopePath, tokens: TokenCounter, *, expires: datetime | None = None) -> Record:
    """Return a message as a record; raises InvalidValueError or TooLargeError.

    Plain text is only in the record's text, so it is stored once. The system role is also a label, so that system
    messages are found without a scan.
    """
    if message.id == SYSTEM_ID and message.role != "system":
        raise InvalidValueError(f"the id {SYSTEM_ID!r} is reserved for the system message")
    data: dict[str, Any] = {"role": message.role}
    size = 0

    def kept(value: Any, field: str) -> Any:
        nonlocal size
        copy, characters = check_json(value, field)
        size += characters
        return copy

    if tokens.name != DEFAULT_ENCODING:
        data["encoding"] = tokens.name
    if isinstance(message.content, str):
        size = len(message.content)
    elif (content := kept(message.content, "content")) is not None:
        data["content"] = content
    if message.name is not None:
        data["name"] = message.name
    if message.tool_calls:
        calls = [[call.id, call.name, call.arguments, call.type, call.call_id] for call in message.tool_calls]
        data["tool_calls"] = kept(calls, "tool_calls")
    if message.agent_calls:
        requests = [[call.agent_name, call.request] for call in message.agent_calls]
        data["agent_calls"] = kept(requests, "agent_calls")
    if message.structured_data is not None:
        data["structured_data"] = kept(message.structured_data, "structured_data")
    if message.images:
        data["images"] = kept(message.images, "images")
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    # Rejecting an oversized message is much faster than counting its tokens.
    if size > MAX_SIZE:
        raise TooLargeError(f"message {message.id!r} holds {size:,} characters, more than {MAX_SIZE:,}")
    try:
        weight = count_message(message, tokens)
    except UnicodeEncodeError:
        # A counter's own error for lone surrogates would be less clear.
        check_text(message.content, "content")
        raise
    text = message.text
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
        created=check_time(message.timestamp, "timestamp"),
        expires=expires,
    )


def decode(record: Record) -> Message:
    """Return the message of a record."""
    data: Any = record.data
    assert record.created is not None, "a stored record has the time of its creation"
    if len(data) == 1:
        # A fast path: most messages have only a role and a text.
        return Message(data["role"], record.text, record.key, None, [], [], None, [], None, record.meta, record.created)
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
        timestamp=record.created,
    )


def tokens_of(record: Record, tokens: TokenCounter) -> int:
    """Return the token cost of a message; recounted only if another encoding counted it."""
    data: Any = record.data
    if data.get("encoding", DEFAULT_ENCODING) == tokens.name:
        return record.weight
    return count_message(decode(record), tokens)


Encode: TypeAlias = Callable[[Message, datetime | None], Record]


def difference(stored: list[Record], messages: list[Message], encode: Encode) -> tuple[list[Op], list[Record]]:
    """Return the operations that turn `stored` into `messages`, and the resulting records.

    A new record goes to the end of its stream, so everything after the first new or moved message is deleted and
    put again. Raises InvalidValueError for duplicate ids.
    """
    known = {record.key: record for record in stored}
    ops: list[Op] = []
    placed: list[Record] = []
    moved: list[Record] = []
    after: list[Record] = []
    last = 0
    for message in messages:
        old = known.pop(message.id, None)
        if old is None or decode(old) != message:
            record = encode(message, old.expires if old is not None else None)
        else:
            record = old
        after.append(record)
        if old is None or moved or old.seq < last:
            moved.append(record)
            ops += [Delete(old.ref)] if old is not None else []
        else:
            last = old.seq
            placed += [record] if record is not old else []
    if len({message.id for message in messages}) < len(messages):
        raise InvalidValueError("a session cannot hold two messages with the same id")
    ops += [Delete(record.ref) for record in known.values()]
    return [*ops, *map(Put, placed), *map(Put, moved)], after
