"""Stored form of records and heads: plain values that each engine serializes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field, json

from ...checks import from_microseconds, shown, to_microseconds
from ...errors import UnreadableStoreError
from ...records import Record, ScopePath
from ...store.planning import Microseconds, RecordState, StreamName, StreamState


class Kept(Struct, array_like=True):
    """A record without its scope and kind; times are microseconds since 1970."""

    key: str
    seq: int
    version: int
    text: str | None
    title: str | None
    data: Any
    meta: dict[str, Any]
    labels: dict[str, str]
    importance: float | None
    weight: int
    pinned: bool
    created: Microseconds
    updated: Microseconds
    expires: Microseconds | None
    valid_from: Microseconds | None
    valid_to: Microseconds | None

    @classmethod
    def of(cls, record: Record) -> Kept:
        """Return the stored form of a record."""
        return cls(
            record.key,
            record.seq,
            record.version,
            record.text,
            record.title,
            record.data,
            record.meta,
            record.labels,
            record.importance,
            record.weight,
            record.pinned,
            _micro(record.created) or 0,
            _micro(record.updated) or 0,
            _micro(record.expires),
            _micro(record.valid_from),
            _micro(record.valid_to),
        )

    def record(self, scope: ScopePath, kind: str, derived: dict[str, bytes], *, bodies: bool = True) -> Record:
        """Return the record."""
        return Record(
            scope,
            kind,
            self.key,
            self.seq,
            self.version,
            self.text if bodies else None,
            self.title,
            self.data if bodies else None,
            self.meta,
            self.labels,
            self.importance,
            self.weight,
            self.pinned,
            from_microseconds(self.created),
            from_microseconds(self.updated),
            None if self.expires is None else from_microseconds(self.expires),
            None if self.valid_from is None else from_microseconds(self.valid_from),
            None if self.valid_to is None else from_microseconds(self.valid_to),
            derived,
        )

    def slot(self) -> RecordState:
        """Return the state that the write path needs."""
        return RecordState(self.key, self.seq, self.version, self.created, self.weight, self.labels, self.expires)


class KeptHead(Struct, array_like=True):
    """Stored totals of a stream."""

    scope: str
    kind: str
    last_seq: int
    version: int
    count: int
    weight: int
    created: Microseconds
    updated: Microseconds
    ttl: int | None
    expires: Microseconds | None
    soonest: Microseconds | None
    revision: int
    """Changes with every change of the stream; a recreated stream does not reuse one."""
    edited: int = 0
    """Version of the last change to an existing record; later ones are appends."""
    pending: str | None = None
    """Journal of a write that is about to change the stream, if any."""
    settings: str | None = None

    @classmethod
    def of(cls, state: StreamState) -> KeptHead:
        """Return the stored form of a stream's state."""
        return cls(
            state.scope, state.kind, state.last_seq, state.version, state.count, state.weight, state.created,
            state.updated, state.ttl, state.expires, state.soonest, state.revision, state.edited,
            settings=state.settings,
        )  # fmt: skip

    @property
    def name(self) -> StreamName:
        """Scope path and kind of the stream."""
        return (self.scope, self.kind)

    @property
    def blank(self) -> bool:
        """Whether the stream exists only because a write has locked it."""
        return self.created == 0

    def state(self) -> StreamState:
        """Return the state for planning."""
        return StreamState(
            self.scope, self.kind, self.last_seq, self.version, self.count, self.weight, self.created,
            self.updated, self.ttl, self.expires, self.soonest, self.settings, self.edited, self.revision,
        )  # fmt: skip

    def ended(self, moment: int) -> bool:
        """Return whether the whole stream has expired."""
        return self.expires is not None and self.expires <= moment


def next_revision(before: KeptHead | None) -> int:
    """Return the next revision; that of a new stream is random."""
    return before.revision + 1 if before is not None else secrets.randbits(48) + 1


class Row(Struct):
    """A loaded record with its derived values, by name, with version and value."""

    kept: Kept
    derived: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def values(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the valid derived values of these names."""
        held = ((name, self.derived[name]) for name in names if name in self.derived)
        return {name: value for name, (version, value) in held if version in (0, self.kept.version)}


def _micro(time: Any) -> int | None:
    return None if time is None else to_microseconds(time)


encode: Callable[[Any], bytes] = json.Encoder().encode
_kept = json.Decoder(Kept).decode
_head = json.Decoder(KeptHead).decode


def decode_kept(raw: bytes | str) -> Kept:
    """Decode a record; raises UnreadableStoreError if it is damaged."""
    try:
        return _kept(raw)
    except ValueError as error:
        raise damaged("record", raw, error) from error


def decode_head(raw: bytes | str) -> KeptHead:
    """Decode the head of a stream; raises UnreadableStoreError if it is damaged."""
    try:
        return _head(raw)
    except ValueError as error:
        raise damaged("head of a stream", raw, error) from error


def damaged(what: str, raw: bytes | str, error: Exception) -> UnreadableStoreError:
    """Return the error for damaged data; it shows only the first field, the name."""
    text = raw if isinstance(raw, str) else raw.decode(errors="replace")
    start = text[:60].partition(",")[0]
    return UnreadableStoreError(f"the {what} that begins with {shown(start)} is damaged ({error})")
