"""Values as the HTTP API has them: those of the library, with scopes as paths and durations in seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

from ...checks import MAX_COUNT, MAX_KEY, MAX_SEGMENT, MAX_TTL
from ...features.fact_items import Fact
from ...features.hits import Hit
from ...features.listing import SessionInfo, Stats
from ...features.memory_items import Faded, MemoryItem
from ...features.session_settings import Retention, SessionSettings
from ...messages import Message

Out = TypeVar("Out", bound=Struct)

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_KEY, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A key, an id or another name."""
SessionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_SEGMENT, pattern=r"^[^\x00-\x1f\x7f/]+$")]
Text: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\x00]*$"})]
"""Any text that can be stored."""
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A time with its timezone."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0.001, le=MAX_TTL.total_seconds(), description="In seconds.")]
Number: TypeAlias = Annotated[float, Meta(ge=-(2**50), le=2**50)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Importance: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=10_000_000)]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Kind: TypeAlias = Literal["message", "memory", "note", "fact", "summary", "title"]
Metadata: TypeAlias = dict[str, Any]
Scalar: TypeAlias = Text | Annotated[int, Meta(ge=-(2**53), le=2**53)] | Number | bool | None
Filter: TypeAlias = dict[Annotated[str, Meta(min_length=1)], Scalar | Annotated[list[Scalar], Meta(max_length=100)]]
"""Values that metadata must have: equal to one, or to one of a list."""


def duration(seconds: float | None) -> timedelta | None:
    """Return a number of seconds as a duration."""
    return None if seconds is None else timedelta(seconds=seconds)


class HitOut(Struct, kw_only=True, frozen=True):
    """A hit: what recall found, its score, and in `why` the share of each signal.

    `said_by` is the name or the role of who said a message.
    """

    kind: str
    id: str
    scope: str
    text: str
    score: float
    why: dict[str, float]
    metadata: Metadata
    importance: float | None
    pinned: bool
    source: str | None
    said_by: str | None
    created: datetime | None
    before: list[Message]
    after: list[Message]


def hit_out(hit: Hit) -> HitOut:
    """Return a hit as it is sent."""
    message = hit.message
    return HitOut(
        kind=hit.kind,
        id=hit.id,
        scope=hit.scope.path,
        text=hit.text,
        score=hit.score,
        why=hit.why,
        metadata=hit.metadata,
        importance=hit.record.importance,
        pinned=hit.record.pinned,
        source=hit.source,
        said_by=None if message is None else message.name or message.role,
        created=hit.created,
        before=hit.before,
        after=hit.after,
    )


class ScopeOut(Struct, kw_only=True, frozen=True):
    """A scope with the counts of what is in it."""

    scope: str
    sessions: int
    messages: int
    tokens: int
    archived: int
    summaries: int
    memories: int
    notes: int
    note_bytes: int
    facts: int
    state: int
    state_bytes: int
    first_activity: datetime | None
    last_activity: datetime | None


def scope_out(stats: Stats) -> ScopeOut:
    """Return a scope's counts as they are sent."""
    return _with_path(ScopeOut, stats)


class SessionOut(Struct, kw_only=True, frozen=True):
    """A session: its title, if it has one, its counts, tokens and times; `scope` is its own path.

    `last_activity` is when it was last written to. `newest` is the time of its newest message, which is another one if
    messages are stored with an earlier `timestamp`; it is null but in a list by `order=recent`.
    """

    name: str
    scope: str
    messages: int
    tokens: int
    started: datetime
    last_activity: datetime
    expires: datetime | None
    title: str | None
    newest: datetime | None = None


def session_out(info: SessionInfo, newest: datetime | None = None) -> SessionOut:
    """Return a session as it is sent."""
    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    return SessionOut(**{**fields, "scope": info.scope.path, "newest": newest})


class SettingsOut(Struct, kw_only=True, frozen=True):
    """The settings of a session; `ttl` is in seconds."""

    max_messages: int | None
    max_tokens: int | None
    overflow: Literal["drop", "archive", "function", "summarize"]
    keep: float
    retention: Retention
    ttl: float | None


def settings_out(settings: SessionSettings) -> SettingsOut:
    """Return a session's settings as they are sent."""
    given = {name: getattr(settings, name) for name in SettingsOut.__struct_fields__}
    return SettingsOut(**given | {"ttl": None if settings.ttl is None else settings.ttl.total_seconds()})


class MemoryOut(Struct, kw_only=True, frozen=True):
    """A memory with its version; `data` has what was merged into it."""

    id: str
    scope: str
    text: str
    importance: float
    metadata: Metadata
    source: str | None
    valid_from: datetime | None
    valid_to: datetime | None
    pinned: bool
    created: datetime | None
    updated: datetime | None
    expires: datetime | None
    data: Any
    version: int


def memory_out(item: MemoryItem) -> MemoryOut:
    """Return a memory as it is sent."""
    return _with_path(MemoryOut, item)


class FadingOut(Struct, kw_only=True, frozen=True):
    """A memory that decays: the importance that is left, when it was last used, and how often."""

    memory: MemoryOut
    strength: float
    used: datetime | None
    uses: float


def fading_out(fade: Faded) -> FadingOut:
    """Return a fading memory as it is sent."""
    return FadingOut(memory=memory_out(fade.memory), strength=fade.strength, used=fade.used, uses=fade.uses)


class FactOut(Struct, kw_only=True, frozen=True):
    """A fact, valid from `valid_from` until `valid_to`, or still valid without one."""

    id: str
    subject: str
    predicate: str
    object: str
    valid_from: datetime
    valid_to: datetime | None
    source: str | None
    confidence: float
    metadata: Metadata


def fact_out(fact: Fact) -> FactOut:
    """Return a fact as it is sent."""
    return FactOut(**{name: getattr(fact, name) for name in FactOut.__struct_fields__})


def _with_path(kind: type[Out], value: Any) -> Out:
    """Return the fields of a value, with its scope as a path."""
    fields = {name: getattr(value, name) for name in kind.__struct_fields__}
    fields["scope"] = value.scope.path
    return kind(**fields)
