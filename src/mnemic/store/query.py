"""Operations on a store as values: writes, scans and searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from ..checks import (
    MAX_COUNT,
    MAX_SIZE,
    check_count,
    check_json,
    check_kind,
    check_name,
    check_number,
    check_text,
    check_time,
    check_ttl,
    check_weights,
    is_kind,
    shown,
)
from ..errors import InvalidValueError, TooLargeError
from ..records import Record, Ref, ScopePath, Stream, content, digest_of

__all__ = [
    "FIELDS", "MAX_CHOICES", "ONCE_LASTS", "Condition", "CountUse", "Delete", "Derive", "Expect", "Limit", "Op",
    "Operator", "Outcome", "Purge", "Put", "Scalar", "Scan", "Search", "StreamScan", "Touch", "Write", "checked_record",
    "place_of", "stored_record",
]  # fmt: skip

FIELDS = ("key", "importance", "weight", "pinned", "created", "updated", "valid_from", "valid_to")
"""Record fields that a condition can name, besides `meta.x`, `data.x` and `labels.x`."""

MAX_DERIVED = 100
"""Maximum number of derived values in one scan."""
MAX_CHOICES = 1000
"""Maximum number of values in one condition."""

ONCE_LASTS = timedelta(hours=24)
"""How long the id of a write is remembered."""

Operator: TypeAlias = Literal["eq", "ne", "in", "lt", "le", "gt", "ge"]
Scalar: TypeAlias = None | bool | int | float | str | datetime


class Put(Struct, frozen=True, tag="put", tag_field="op"):
    """Write a record: append a new one, or replace an existing one in its position.

    `if_version` is the version that must be stored now: 0 for none, None for any. The record is validated and
    copied here, so later changes by the caller have no effect. Its own seq, version and updated are ignored;
    created is kept from the first write unless given. `updated` is the time of the change if that is not now, for
    copies: a stream's last change is then that of its newest record.
    """

    record: Record
    if_version: int | None = None
    updated: datetime | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError or TooLargeError if the record cannot be stored."""
        force_setattr(self, "record", checked_record(self.record))
        if self.if_version is not None and (self.if_version or self.if_version.__class__ is not int):
            check_count(self.if_version, "if_version")
        if self.updated is not None:
            force_setattr(self, "updated", check_time(self.updated, "updated"))


class Delete(Struct, frozen=True, tag="delete", tag_field="op"):
    """Delete a record if it exists; with `if_version`, only at that version."""

    ref: Ref
    if_version: int | None = None


class Derive(Struct, frozen=True, tag="derive", tag_field="op"):
    """Store a value derived from a record next to it, by name; None removes it.

    With a `version`, it is valid only while the record has that version; without, until the record is deleted.
    The versions of the record and its stream do not change.
    """

    ref: Ref
    name: str
    value: bytes | None
    version: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid name."""
        check_name(self.name, "name of a derived value")


class CountUse(Struct, frozen=True, tag="count-use", tag_field="op"):
    """Count a use of a record, which slows its decay; `reported` by the user, it also counts as a success of recall.

    The index layer counts uses and writes them later, if a write has no other operations; back-ends ignore this.
    """

    ref: Ref
    reported: bool = False


class Limit(Struct, frozen=True, tag="limit", tag_field="op"):
    """Enforce a limit on a stream after the preceding operations.

    While the stream has more than `max_count` records or more than `max_weight`, the next group of keys in
    `evict` is removed. If that is not enough, a strict limit raises LimitError and rejects the write.
    """

    scope: ScopePath
    kind: str
    max_count: int | None = None
    max_weight: int | None = None
    evict: tuple[tuple[str, ...], ...] = ()
    strict: bool = True


class Purge(Struct, frozen=True, tag="purge", tag_field="op"):
    """Delete all records of a stream except `keep`; or, with `expired_only`, only expired ones.

    With `drop`, the stream itself and its numbering are deleted too.
    """

    scope: ScopePath
    kind: str
    keep: tuple[str, ...] = ()
    expired_only: bool = False
    drop: bool = False


class Touch(Struct, frozen=True, tag="touch", tag_field="op"):
    """Set the time to live of a stream, counted from its last write; None for no expiry.

    Also sets the stream's `settings`, an opaque text for its writers that is deleted with the stream. Counts as a
    write, now or at `updated`. `created` is when the stream began, if that is earlier than its first write here. An
    expired stream reads as empty. One with a time to live does not expire before `until`, if that is given.
    """

    scope: ScopePath
    kind: str
    ttl: timedelta | None = None
    settings: str | None = None
    created: datetime | None = None
    updated: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a time to live that is not positive, or settings that are not text."""
        if self.ttl is not None:
            check_ttl(self.ttl)
        if self.settings is not None:
            check_text(self.settings, "settings")
        for name in ("created", "updated", "until"):
            if (time := getattr(self, name)) is not None:
                force_setattr(self, name, check_time(time, name))

    @classmethod
    def of(cls, stream: Stream) -> Touch:
        """Return the operation that gives another stream the settings and times of this one."""
        return cls(
            stream.scope, stream.kind, stream.ttl, stream.settings, stream.created, stream.updated, stream.expires
        )


class Expect(Struct, frozen=True, tag="expect", tag_field="op"):
    """Raise ConflictError, and reject the write, unless the stored state is as expected.

    Without a key, the stream must be at `version`, not counting what has expired since; 0 means that it never
    existed. With a key, that record must be at `version`, or exist if `version` is None. With `settings`, the
    stream must have these settings, None for none; otherwise SettingsChangedError carries the stored ones.
    """

    scope: ScopePath
    kind: str
    version: int | None = None
    key: str | None = None
    settings: str | None | UnsetType = UNSET


Op: TypeAlias = Put | Delete | Derive | CountUse | Limit | Purge | Touch | Expect


_SCOPE: dict[type, Callable[[Any], ScopePath]] = dict.fromkeys((Limit, Purge, Touch, Expect), attrgetter("scope"))
_SCOPE |= dict.fromkeys((Delete, Derive, CountUse), attrgetter("ref.scope")) | {Put: attrgetter("record.scope")}


class Write(Struct, frozen=True):
    """Operations on streams of one scope, applied in order, all or none.

    A write with an `id` runs once: sent again within `ONCE_LASTS`, it returns the first outcomes. The id is erased
    with the scope. `digest` identifies the content of the write; it is computed unless given. With `lazy`, layers may
    compute derived values later. `held_until` is set by the layer of legal holds for a scope under one: the earlier
    versions that history keeps do not expire before.
    """

    ops: tuple[Op, ...]
    id: str | None = None
    lazy: bool = False
    digest: str | None = None
    held_until: datetime | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for operations in several scopes, or an invalid id."""
        if len(self.ops) > 1:
            scope = _SCOPE[type(self.ops[0])](self.ops[0])
            for op in self.ops:
                if (other := _SCOPE[type(op)](op)) is not scope and other != scope:
                    raise InvalidValueError(
                        f"a write concerns one scope, but its operations name {scope.path!r} and {other.path!r}; "
                        "send one write for each scope"
                    )
        if self.id is not None:
            check_name(self.id, "once, the id of a write,")
            if self.digest is None:
                force_setattr(self, "digest", digest_of(list(filter(None, map(_repeatable_part, self.ops)))).hex())


class Outcome(Struct, frozen=True, omit_defaults=True):
    """Result of one operation.

    A Put returns the record's key, seq, version and times; a Delete and a Limit the removed keys, and a Limit
    also the remaining count and weight; a Purge the number removed; a Derive 1 if the record exists, else 0; an
    Expect the version found.
    """

    seq: int = 0
    version: int = 0
    created: datetime | None = None
    updated: datetime | None = None
    removed: tuple[str, ...] = ()
    count: int = 0
    weight: int = 0
    key: str = ""


class Condition(Struct, frozen=True):
    """A test of one record field: one of `FIELDS`, or a name within meta, data or labels.

    A missing value is None. Numbers compare with numbers, text with text, times with times; comparing different
    types is false, so `ne` is true. True is not 1.
    """

    field: str
    op: Operator
    value: Scalar | tuple[Scalar, ...]

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a condition that no store can evaluate."""
        group, dot, name = self.field.partition(".")
        if not (self.field in FIELDS or (dot and name and group in ("meta", "data", "labels"))):
            raise InvalidValueError(
                f"cannot filter on {shown(self.field)}: use {', '.join(FIELDS)}, "
                "or a name within 'meta.', 'data.' or 'labels.'"
            )
        if (self.op == "in") != isinstance(self.value, tuple):
            raise InvalidValueError(
                f"a filter takes a tuple with 'in', and only there: {self.field} {shown(self.value)}"
            )
        choices = self.value if isinstance(self.value, tuple) else (self.value,)
        if len(choices) > MAX_CHOICES:
            raise InvalidValueError(
                f"a filter on {self.field} takes at most {MAX_CHOICES:,} values, not {len(choices):,}"
            )
        for value in choices:
            if not isinstance(value, None | bool | int | float | str | datetime):
                raise InvalidValueError(
                    f"{self.field} can be compared with text, numbers, booleans and None, "
                    f"not with {type(value).__name__}: {shown(value)}"
                )
            if isinstance(value, float):
                check_number(value, f"the filter on {self.field}")
            elif isinstance(value, int):
                if abs(value) >= 2**63:
                    raise InvalidValueError(f"the filter on {self.field} has more than 64 bits: {shown(value)}")
            elif isinstance(value, str):
                check_text(value, f"the filter on {self.field}")


class Scan(Struct, frozen=True, kw_only=True):
    """Read a stream, or with `below` all streams of a scope and the scopes below it, in order.

    The order is scope, kind, seq; `reverse` inverts it. `skip` skips that many matches, `cursor` continues after
    a page. `after_version` keeps what was written later; `as_of` keeps what was valid then; without `bodies`,
    text and data are omitted. `derived` names derived values to include, and `lacking` keeps only records without
    that one. Expired records are never returned.
    """

    scope: ScopePath
    kinds: tuple[str, ...] = ()
    below: bool = False
    where: tuple[Condition, ...] = ()
    reverse: bool = False
    skip: int = 0
    limit: int = 1000
    cursor: str | None = None
    after_version: int | None = None
    as_of: datetime | None = None
    bodies: bool = True
    derived: tuple[str, ...] = ()
    lacking: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a negative limit, skip or version, or too many derived values."""
        check_count(self.limit, "limit")
        check_count(self.skip, "skip")
        if self.after_version is not None:
            check_count(self.after_version, "after_version")
        if len(self.derived) > MAX_DERIVED:
            raise InvalidValueError(f"a scan takes at most {MAX_DERIVED} names of derived values")


class StreamScan(Struct, frozen=True, kw_only=True):
    """List the streams of a scope and, with `below`, of the scopes below it, by scope and kind.

    Empty streams are omitted unless `empty` is true.
    """

    scope: ScopePath
    kinds: tuple[str, ...] = ()
    below: bool = True
    empty: bool = False
    limit: int = 1000
    cursor: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a negative limit."""
        check_count(self.limit, "limit")


class Search(Struct, frozen=True, kw_only=True):
    """Find the records of a scope and below that answer `query`, best first.

    `signals` restricts the ranking to these signals, `weights` has factors of signals. `min_score` drops weaker
    matches, `neighbors` adds that many turns before and after each match, and `diverse` drops near-duplicates of a
    better match. With `traffic`, system messages, tool results and messages that only call tools are included;
    records in `exclude` are not. A match counts as a use of its record unless `uses` is false.
    """

    scope: ScopePath
    query: str
    kinds: tuple[str, ...] = ()
    below: bool = True
    where: tuple[Condition, ...] = ()
    as_of: datetime | None = None
    limit: int = 10
    signals: tuple[str, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    min_score: float | None = None
    neighbors: int = 0
    diverse: bool = True
    traffic: bool = False
    exclude: tuple[Ref, ...] = ()
    uses: bool = True

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a query that is not text, a negative limit, or a weight out of range."""
        check_text(self.query, "query")
        if self.weights:
            check_weights(dict(self.weights))
        check_count(self.limit, "limit")
        check_count(self.neighbors, "neighbors")
        if self.min_score is not None:
            check_number(self.min_score, "min_score")


_NAMING = (Delete, Derive, CountUse)  # as a tuple, in a third of the time that a union takes


def place_of(op: Op) -> tuple[ScopePath, str, str | None]:
    """Return the scope, the kind and, if it names one, the key of an operation."""
    if isinstance(op, Put):
        return op.record.scope, op.record.kind, op.record.key
    if isinstance(op, _NAMING):
        return op.ref.scope, op.ref.kind, op.ref.key
    return op.scope, op.kind, op.key if isinstance(op, Expect) else None


def _repeatable_part(op: Op) -> Any:
    """Return the part of an operation that stays the same when its caller retries.

    Most callers generate a new key for a new record on each attempt, and recompute guards: expected versions, and
    eviction candidates.
    """
    scope, kind, key = place_of(op)
    where = (type(op).__name__, scope.path, kind)
    if isinstance(op, Put):
        return (*where, None if op.if_version == 0 else key, content(op.record))
    if isinstance(op, Delete):
        return (*where, key)
    if isinstance(op, Purge):
        return (*where, op.keep, op.expired_only, op.drop)
    return None


def stored_record(record: Record, did: Outcome) -> Record:
    """Return a record as stored after a Put with this outcome."""
    return replace(record, seq=did.seq, version=did.version, created=did.created, updated=did.updated, derived={})


def checked_record(record: Record) -> Record:
    """Return a validated copy of a record; raises InvalidValueError or TooLargeError."""
    if record.kind.__class__ is not str or not is_kind(record.kind):
        check_kind(record.kind)
    for field, given in (("metadata", record.meta), ("labels", record.labels)):
        if given.__class__ is not dict and not isinstance(given, Mapping):
            raise InvalidValueError(f"{field} must be a dict: {shown(given)}")
    labels = {check_name(name, "label"): check_name(value, f"label {name}") for name, value in record.labels.items()}
    data, data_size = check_json(record.data, "data") if record.data is not None else (None, 0)
    meta, meta_size = check_json(record.meta, "metadata") if record.meta else ({}, 0)
    text = None if record.text is None else check_text(record.text, "text")
    title = None if record.title is None else check_text(record.title, "title")
    size = len(text or "") + len(title or "") + data_size + meta_size
    if size > MAX_SIZE:
        raise TooLargeError(f"{record.kind} {shown(record.key)} holds {size:,} characters, more than {MAX_SIZE:,}")
    weight, created, expires = record.weight, record.created, record.expires
    valid_from, valid_to = record.valid_from, record.valid_to
    return replace(
        record,
        key=check_name(record.key, "key"),
        seq=0,
        version=0,
        text=text,
        title=title,
        data=data,
        meta=meta,
        labels=labels,
        importance=None if record.importance is None else check_number(record.importance, "importance"),
        weight=weight if weight.__class__ is int and 0 <= weight <= MAX_COUNT else check_count(weight, "weight"),
        pinned=bool(record.pinned),
        created=None if created is None else check_time(created, "created"),
        updated=None,
        expires=None if expires is None else check_time(expires, "expires"),
        valid_from=None if valid_from is None else check_time(valid_from, "valid_from"),
        valid_to=None if valid_to is None else check_time(valid_to, "valid_to"),
        derived=dict(record.derived) if record.derived else {},
    )
