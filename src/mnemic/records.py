"""Values that Mnemic stores and returns; no I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, field
from msgspec.structs import force_setattr

from .checks import (
    JSON,
    MAX_DEPTH,
    MAX_JSON_DEPTH,
    MAX_PATH,
    check_choice,
    check_json,
    check_name,
    check_segment,
    check_text,
    check_time,
    shown,
)
from .errors import InvalidValueError

__all__ = [
    "AUDIT_KIND",
    "EMBEDDER_KIND",
    "LOCK_KIND",
    "ONCE_KIND",
    "ROLES",
    "AgentCall",
    "Content",
    "Match",
    "Message",
    "Record",
    "Ref",
    "Role",
    "ScopePath",
    "Stream",
    "ToolCall",
    "check_fields",
    "known_scope",
    "new_id",
    "now",
    "texts_in",
]

EMBEDDER_KIND = "embedder"
"""Kind of the record, at the root, that identifies the embedder of the stored vectors."""
LOCK_KIND = "encryption"
"""Kind of the record, at the root, that marks a store as encrypted."""
AUDIT_KIND = "audit"
"""Kind of audit log entries; append-only."""
ONCE_KIND = "once"
"""Kind of the records of write ids (idempotency); scans return them only if they name the kind."""

SHOWN = 60
"""How many characters of a text a repr shows."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""The role of a message."""
ROLES: tuple[Role, ...] = get_args(Role)
Content: TypeAlias = str | dict[str, Any] | list[Any] | None
"""Content of a message: text, an object, or a list of content blocks."""


def new_id() -> str:
    """Return a new id of 32 hexadecimal digits; ids sort by creation time, to the millisecond."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


clock: Callable[[], datetime] = partial(datetime.now, UTC)
"""Source of the current time; tests may replace it."""


def now() -> datetime:
    """Return the current time in UTC."""
    return clock()


def parse_time(value: str, name: str) -> datetime:
    """Return a time that is written in ISO 8601, with its timezone; raises InvalidValueError."""
    try:
        return check_time(datetime.fromisoformat(value), name)
    except ValueError:
        raise InvalidValueError(f"{name} is not an ISO 8601 time: {shown(value)}") from None


def plain(value: Any) -> Any:
    """Return a value in JSON types: scopes as paths, times in ISO 8601, durations in seconds."""
    if isinstance(value, ScopePath):
        return value.path
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Value(Struct, frozen=True):
    """A value object with a short repr and a `to_dict` of JSON types."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict that `json.dumps`, FastAPI and pandas accept."""
        return {name: plain(getattr(self, name)) for name in self.__struct_fields__}

    def __repr__(self) -> str:
        """Return the fields that are set, with long texts shortened."""
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        told = (f"{name}={_brief(value)}" for name, value in fields if not (value is None or value in ("", [], {}, 0)))
        return f"{type(self).__name__}({', '.join(told)})"


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…")
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, ScopePath):
        return repr(value.path)
    text = repr(value)
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}…"


class ScopePath(Value, frozen=True, order=True):
    """A path of segments such as `acme/alice/monday`, matched segment by segment.

    Tenants, users, agents, teams and sessions are all scopes. The empty path is the root.
    """

    path: str = ""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an empty, too long or unprintable segment, or too many segments."""
        if self.path.__class__ is not str:
            raise InvalidValueError(f"a scope's path must be a string such as 'acme/alice': {shown(self.path)}")
        if self.path:
            for segment in self.segments:
                check_segment(segment, f"segment of scope {shown(self.path)}")
            if len(self.segments) > MAX_DEPTH:
                raise InvalidValueError(
                    f"scope has {len(self.segments)} segments, more than {MAX_DEPTH}: {shown(self.path)}"
                )
            if 4 * len(self.path) > MAX_PATH and (size := len(self.path.encode())) > MAX_PATH:
                raise InvalidValueError(
                    f"scope has a path of {size:,} bytes, more than {MAX_PATH:,}: {shown(self.path)}"
                )

    @classmethod
    def of(cls, *segments: ScopePath | str) -> ScopePath:
        """Return the scope path of these segments; a string is one segment, so it must not contain '/'."""
        scope = cls()
        for segment in segments:
            scope = scope / segment
        return scope

    @property
    def segments(self) -> tuple[str, ...]:
        """The path's segments."""
        return tuple(self.path.split("/")) if self.path else ()

    @property
    def name(self) -> str:
        """The last segment; empty for the root."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> ScopePath:
        """The scope one level up; the root is its own parent."""
        return ScopePath(self.path.rpartition("/")[0])

    def __truediv__(self, segment: ScopePath | str) -> ScopePath:
        """Return the path one segment below; raises InvalidValueError for an invalid segment."""
        inner = segment.path if isinstance(segment, ScopePath) else check_segment(segment)
        return ScopePath(f"{self.path}/{inner}") if self.path and inner else ScopePath(inner or self.path)

    def holds(self, other: ScopePath) -> bool:
        """Return whether `other` is this scope or below it."""
        return not self.path or other.path == self.path or other.path.startswith(f"{self.path}/")

    def __str__(self) -> str:
        """Return the path."""
        return self.path


@lru_cache(maxsize=10_000)
def known_scope(path: str) -> ScopePath:
    """Return the scope of a stored path, without validating it again; cached."""
    return ScopePath(path)


class Record(Value, frozen=True):
    """A stored record: everything that a store knows of one item.

    `scope`, `kind` and `key` identify it. `seq` is its position in the stream of its scope and kind, assigned by
    the store on the first write; `version` changes with every write. `text` is searched, `title` is shown in
    lists, `data` is the payload, `meta` the user's filterable values, `labels` exact-match strings with an index
    in every store. `weight` counts toward the stream's limit. Limits and decay skip `pinned` records. `derived`
    has values that layers computed, by name; a scan includes only those requested.
    """

    scope: ScopePath
    kind: str
    key: str
    seq: int = 0
    version: int = 0
    text: str | None = None
    title: str | None = None
    data: JSON = None
    meta: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    importance: float | None = None
    weight: int = 0
    pinned: bool = False
    created: datetime | None = None
    updated: datetime | None = None
    expires: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    derived: dict[str, bytes] = field(default_factory=dict)

    @property
    def ref(self) -> Ref:
        """The record's identity."""
        return Ref(self.scope, self.kind, self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without `derived`, which holds bytes."""
        return {name: plain(getattr(self, name)) for name in self.__struct_fields__ if name != "derived"}


class Ref(Value, frozen=True):
    """The identity of a record."""

    scope: ScopePath
    kind: str
    key: str


class Stream(Struct, frozen=True, kw_only=True):
    """The records of one kind in one scope, with the totals that a store maintains."""

    scope: ScopePath
    kind: str
    count: int
    weight: int
    last_seq: int
    version: int
    created: datetime
    updated: datetime
    expires: datetime | None = None
    ttl: timedelta | None = None
    settings: str | None = None


class Match(Struct, frozen=True, kw_only=True):
    """A record that a search found, its score, and `why`: the contribution of each signal.

    A score near 1 means that the record answers the query well, near 0 that nothing in the scope does. `before`
    and `after` are neighboring turns, if requested.
    """

    record: Record
    score: float
    why: dict[str, float]
    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)


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
