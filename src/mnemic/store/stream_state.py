"""States of streams and records: what a plan needs and changes, and the checks of versions and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

from msgspec import UNSET, Meta, Struct, field

from ..checks import EARLIEST, LATEST, MICROSECOND, from_microseconds
from ..errors import ConflictError, LimitError, MnemicError, SettingsChangedError
from ..records import Record, Ref, Stream, StreamName, known_scope
from .query import Expect, Limit

__all__ = [
    "Derived", "Loaded", "Microseconds", "Needs", "NeedsMoreError", "RecordState", "StreamChange", "StreamState",
    "check_expected", "check_limit", "check_version", "over_limit", "shown_limit",
]  # fmt: skip

Microseconds = Annotated[int, Meta(ge=EARLIEST, le=LATEST)]
"""A time in microseconds since 1970."""


class StreamState(Struct, array_like=True):
    """Totals and settings of a stream; `ttl` is in microseconds."""

    scope: str
    kind: str
    last_seq: int
    version: int
    count: int
    weight: int
    created: Microseconds
    updated: Microseconds
    ttl: int | None = None
    expires: Microseconds | None = None
    soonest: Microseconds | None = None
    """Lower bound of the first expiry of a record."""
    settings: str | None = None
    edited: int = 0
    """Version of the last change to an existing record; later ones are appends."""
    revision: int = 0
    """Changes with every change of the stream; a recreated stream does not reuse one."""

    @property
    def name(self) -> StreamName:
        """Scope path and kind."""
        return (self.scope, self.kind)

    def ended(self, moment: int) -> bool:
        """Return whether the whole stream has expired."""
        return self.expires is not None and self.expires <= moment

    def stream(self, count: int, weight: int) -> Stream:
        """Return the stream with its unexpired count and weight."""
        return Stream(
            scope=known_scope(self.scope),
            kind=self.kind,
            count=count,
            weight=weight,
            last_seq=self.last_seq,
            version=self.version,
            created=from_microseconds(self.created),
            updated=from_microseconds(self.updated),
            expires=None if self.expires is None else from_microseconds(self.expires),
            ttl=None if self.ttl is None else self.ttl * MICROSECOND,
            settings=self.settings,
        )


class RecordState(Struct, frozen=True):
    """The state of a stored record, as a plan needs it."""

    key: str
    seq: int
    version: int
    created: int
    weight: int
    labels: dict[str, str]
    expires: int | None = None


class Needs(Struct):
    """Data to load from a store before planning a write."""

    streams: set[StreamName] = field(default_factory=set)
    keys: dict[StreamName, set[str]] = field(default_factory=dict)
    """Keys of records to load, by stream."""
    whole: set[StreamName] = field(default_factory=set)
    """Streams of which to load all records."""

    def __bool__(self) -> bool:
        """Return whether anything is requested."""
        return bool(self.streams or self.keys or self.whole)


class Loaded(Struct):
    """Loaded states; None for a stream or a record that does not exist."""

    streams: dict[StreamName, StreamState | None] = field(default_factory=dict)
    records: dict[StreamName, dict[str, RecordState | None]] = field(default_factory=dict)
    whole: set[StreamName] = field(default_factory=set)
    """Streams of which all records were loaded."""
    assumed: dict[StreamName, set[str]] = field(default_factory=dict)
    """Keys that were not looked up, but are assumed not to exist."""

    def take(self, more: Loaded) -> None:
        """Add more loaded states."""
        self.streams |= more.streams
        self.whole |= more.whole
        for name, records in more.records.items():
            self.records.setdefault(name, {}).update(records)


class NeedsMoreError(MnemicError):
    """A plan needs states that are not loaded; internal."""

    def __init__(self, needs: Needs) -> None:
        super().__init__("a plan needs more loaded states")
        self.needs = needs


class Derived(NamedTuple):
    """A derived value of a record to store with its version, or to remove if None."""

    key: str
    seq: int
    name: str
    version: int
    value: bytes | None


class StreamChange(Struct):
    """Changes of one stream, applied in this order: removals, lost labels, replaced and added records, derived."""

    name: StreamName
    before: StreamState | None
    """The stored state; None if the stream must not exist."""
    after: StreamState | None
    """The new state, the same object as `before` if it does not change; None if the stream is dropped."""
    dropped: bool = False
    """Whether the stored stream is dropped, and `after` is a new one."""
    cleared: bool = False
    """Whether all stored records except `spared` are removed, with their labels and derived values."""
    spared: list[RecordState] = field(default_factory=list)
    removed: list[RecordState] = field(default_factory=list)
    """Stored records to remove, with their labels and derived values; empty if `cleared`."""
    lost_labels: dict[int, dict[str, str]] = field(default_factory=dict)
    """Stored labels of the replaced records, by seq."""
    added: list[Record] = field(default_factory=list)
    """Complete new records."""
    replaced: list[Record] = field(default_factory=list)
    """Complete records that replace stored ones with the same seq."""
    derived: list[Derived] = field(default_factory=list)
    """Derived values, including those of the added and replaced records."""
    absent: list[str] = field(default_factory=list)
    """Keys that were not looked up and must not exist."""

    @property
    def only_checks(self) -> bool:
        """Whether the stream does not change, and must only still be as it was."""
        return self.after is self.before and not self.derived

    def expand(self, stored: Iterable[RecordState | None]) -> None:
        """Name the records that a cleared stream loses, given all its stored ones."""
        if self.cleared:
            spared = {record.seq for record in self.spared}
            self.removed = [record for record in stored if record is not None and record.seq not in spared]


# ---------------------------------------------------------------- checks of every store


def check_version(ref: Ref, expected: int | None, current: int) -> None:
    """Raise ConflictError unless the record is at the expected version; 0 means absent, None means any."""
    if expected is None or expected == current:
        return
    state = f"is at version {current}" if current else "is not there"
    wanted = f"version {expected}" if expected else "it to be new"
    raise ConflictError(f"{_named(ref)} {state}; the writer expected {wanted}", key=ref.key, current=current)


def check_expected(op: Expect, current: int, settings: str | None) -> None:
    """Raise ConflictError unless the stream or record is at the version that `op` expects.

    Raises SettingsChangedError if the stream's settings differ from the expected ones.
    """
    if op.settings is not UNSET and op.settings != settings:
        raise SettingsChangedError(
            f"the {op.kind} stream of scope {op.scope.path!r} has the settings {settings!r}; "
            f"the writer expected {op.settings!r}",
            settings=settings,
        )
    if op.key is not None:
        ref = Ref(op.scope, op.kind, op.key)
        if op.version is None and not current:
            raise ConflictError(f"{_named(ref)} is not there", key=op.key)
        check_version(ref, op.version, current)
    elif op.version is not None and op.version != current:
        raise ConflictError(
            f"the {op.kind} stream of scope {op.scope.path!r} is at version {current}; "
            f"the writer expected {op.version}",
            current=current,
        )


def over_limit(op: Limit, count: int, weight: int) -> bool:
    """Return whether this count and weight exceed the limit."""
    return (op.max_count is not None and count > op.max_count) or (op.max_weight is not None and weight > op.max_weight)


def check_limit(op: Limit, count: int, weight: int) -> None:
    """Raise LimitError if the limit is strict and this count or weight exceeds it."""
    if op.strict and over_limit(op, count, weight):
        raise LimitError(
            f"the {op.kind} stream of scope {op.scope.path!r} would hold {count:,} records of weight "
            f"{weight:,}; its limits are {shown_limit(op.max_count)} records and weight {shown_limit(op.max_weight)}",
            count=count,
            weight=weight,
        )


def _named(ref: Ref) -> str:
    return f"{ref.kind} {ref.key!r} in scope {ref.scope.path!r}"


def shown_limit(limit: int | None) -> str:
    """Return a limit as an error message shows it."""
    return "any number of" if limit is None else f"{limit:,}"
