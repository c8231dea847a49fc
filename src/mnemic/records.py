"""Values that Mnemic stores and returns; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from hashlib import blake2b, sha256
from operator import attrgetter
from typing import Any

from msgspec import Struct, field, json

from .checks import JSON, MAX_DEPTH, MAX_PATH, check_segment, check_time, shown
from .errors import InvalidValueError, UnreadableStoreError
from .kinds import (
    API_KEY_KIND,
    ARCHIVED,
    AUDIT_KIND,
    AUDIT_KINDS,
    AUDITED,
    CHAINS_KIND,
    EMBEDDER_KIND,
    ENCRYPTION_KIND,
    ERASURE_KIND,
    FACT,
    FENCE_KIND,
    GUARD,
    HISTORY,
    HOLD_KIND,
    JOURNAL,
    KEPT_BY_ERASURE,
    LEASE,
    MEMORY,
    MESSAGE,
    NOTE,
    OF_SESSIONS,
    ONCE_KIND,
    PROGRESS,
    PRUNED,
    RECALLED,
    SIGNING_KIND,
    STATE,
    SUMMARY,
    TITLE,
    UNLISTED,
    VAULT,
    VERSION,
)

__all__ = [
    "API_KEY_KIND", "ARCHIVED", "AUDITED", "AUDIT_KIND", "AUDIT_KINDS", "CHAINS_KIND", "EMBEDDER_KIND",
    "ENCRYPTION_KIND", "ERASURE_KIND", "FACT", "FENCE_KIND", "GUARD", "HISTORY", "HOLD_KIND", "JOURNAL",
    "KEPT_BY_ERASURE", "LEASE", "MEMORY", "MESSAGE", "NOTE", "OF_SESSIONS", "ONCE_KIND", "PROGRESS", "PRUNED",
    "RECALLED", "SIGNING_KIND", "STATE", "SUMMARY", "TITLE", "UNLISTED", "VAULT", "VERSION", "Match", "Record",
    "Ref", "ScopePath", "Stream", "StreamName", "Value", "content", "digest", "digest_of", "fact_key", "known_scope",
    "now", "parse_time", "plain", "unreadable",
]  # fmt: skip

SHOWN = 60
"""How many characters of a text a repr shows."""


now: Callable[[], datetime] = partial(datetime.now, UTC)
"""Return the current time in UTC: the clock of a store that is given none."""


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
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={_brief(value)}" for name, value in fields if not (value is None or value in ("", [], {}, 0)))
        return f"{type(self).__name__}({', '.join(shown)})"


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
        scope = _ROOT
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
        return known_scope(f"{self.path}/{inner}" if self.path and inner else inner or self.path)

    def contains(self, other: ScopePath) -> bool:
        """Return whether `other` is this scope or below it."""
        return not self.path or other.path == self.path or other.path.startswith(f"{self.path}/")

    def __str__(self) -> str:
        return self.path


@lru_cache(maxsize=50_000)
def known_scope(path: str) -> ScopePath:
    """Return the scope of a path, which is not validated again if it is known; raises InvalidValueError."""
    return ScopePath(path)


_ROOT = ScopePath()


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


StreamName = tuple[str, str]
"""Scope path and kind of a stream."""


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

    @property
    def name(self) -> StreamName:
        """Scope path and kind."""
        return (self.scope.path, self.kind)


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


_encode = json.Encoder(order="deterministic").encode
_NOT_CONTENT = {"scope", "kind", "key", "seq", "version", "weight", "created", "updated", "expires", "derived"}
content: Callable[[Record], tuple[Any, ...]] = attrgetter(
    *(name for name in Record.__struct_fields__ if name not in _NOT_CONTENT)
)
"""Return the content of a record: everything except its identity, position, weight, times of writing and expiry."""


def unreadable(record: Record, error: Exception) -> UnreadableStoreError:
    """Return the error for a stored record that does not hold what its kind says."""
    said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    if isinstance(error, AttributeError | TypeError) and not isinstance(record.data, dict):
        said = f"its data must be an object: {shown(record.data)}"
    return UnreadableStoreError(f"{record.kind} {shown(record.key)} of scope {shown(record.scope.path)}: {said}")


def digest(record: Record) -> bytes:
    """Return a digest of a record's content, equal in every store and at every position."""
    return digest_of((record.key, *content(record), record.weight, record.created, record.expires))


def fact_key(*names: str) -> str:
    """Return the key of a fact from its subject, predicate and object, or that of a pair of them."""
    return sha256("\0".join(names).encode()).hexdigest()[:32]


def digest_of(value: Any) -> bytes:
    """Return a digest of values that can be written as JSON."""
    return blake2b(_encode(value), digest_size=16).digest()
