"""The interface of a key-value engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from ...store.planning import Needs, RecordState, StreamName
from ...store.protocol import Capability
from .kept import Kept, KeptHead, Row


class Loaded(Struct):
    """Loaded heads and slots; None for one that does not exist."""

    heads: dict[StreamName, KeptHead | None] = field(default_factory=dict)
    slots: dict[StreamName, dict[str, RecordState | None]] = field(default_factory=dict)
    whole: set[StreamName] = field(default_factory=set)


class Change(Struct):
    """Changes of one stream, applied in this order: removed, labels lost, put, derived."""

    name: StreamName
    expected: int | None
    """Required revision of the stream; None if it must not exist."""
    head: KeptHead | None
    """The new head; None if the stream is dropped."""
    same: bool = False
    """Whether the head does not change and is only compared."""
    put: list[Kept] = field(default_factory=list)
    new: set[int] = field(default_factory=set)
    """Seqs of records that are new."""
    removed: list[tuple[int, str]] = field(default_factory=list)
    """Seqs and keys of records to remove, with their derived values."""
    lost_labels: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Former labels of records, by seq; some of those records are put with other labels, some are removed."""
    derived: list[tuple[int, str, int, bytes | None]] = field(default_factory=list)
    """Seq, name, version and value of derived values; None removes one."""
    absent: list[str] = field(default_factory=list)
    """Keys that were not looked up and must not exist."""
    keys: dict[int, str] = field(default_factory=dict)
    """Keys, by seq, of records of which only derived values change."""


class Batch(Struct):
    """Changes that are applied together, or not at all."""

    changes: list[Change]
    moment: int = 0


class Span(Struct, frozen=True):
    """A range of records of a stream, in seq order."""

    reverse: bool = False
    after: int | None = None
    """Start after this seq, or before it in reverse."""
    limit: int = 1000
    seqs: tuple[int, ...] | None = None
    """Only these seqs; other bounds are then ignored."""
    derived: tuple[str, ...] = ()
    revision: int | None = None
    """A revision of the stream read earlier in the same call: data at least that new is sufficient."""


class Reach(Struct, frozen=True):
    """A range of streams, in the order of scope and kind."""

    scope: str
    below: bool
    kinds: tuple[str, ...] = ()
    reverse: bool = False
    after: StreamName | None = None
    """Start after this one, or before it in reverse."""
    limit: int = 500


class Engine(Protocol):
    """Stores the bytes of a store; maps every driver error to a Mnemic error."""

    url: str
    """URL without a password, for error messages."""
    capabilities: frozenset[Capability]
    expires_streams: bool
    """Whether an expired stream reads as empty by itself."""

    def partition(self, name: StreamName) -> str:
        """Return the partition of a stream; changes within one partition can be atomic."""
        ...

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch within one partition is small enough for one commit."""
        ...

    async def load(self, needs: Needs) -> Loaded:
        """Load what is needed; each stream's head is no newer than its slots."""
        ...

    async def commit(self, batch: Batch) -> bool:
        """Apply all changes durably if all expectations hold; otherwise change nothing and return False."""
        ...

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        """Return the records of a span, and the stream's head unless it was not needed."""
        ...

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        """Return the records of these keys, in any order, and the head as `rows` does."""
        ...

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        """Return the seqs of records with a label of these values; None if labels are not indexed."""
        ...

    async def heads(self, reach: Reach) -> list[KeptHead]:
        """Return the next heads; fewer than `limit` only at the end."""
        ...

    async def note(self, key: str) -> bytes | None:
        """Return a journal entry by its name."""
        ...

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        """Compare and swap a journal entry, None being absent; return False if it has changed.

        An entry may expire after a month: by then it is left over from an interrupted write.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class Spanning(Protocol):
    """An engine whose batches can span partitions in one commit, if they fit."""

    spans: bool


@runtime_checkable
class Carrying(Protocol):
    """An engine that splits a change too large for one commit itself."""

    most: int
    """Maximum number of records in a commit, to avoid planning more."""

    def check(self, batch: Batch) -> None:
        """Raise TooLargeError if a batch cannot be applied even in steps, before it is committed."""
        ...

    async def carry(self, change: Change, moment: int) -> None:
        """Apply a committed change, whatever others have already applied; nothing if its stream has moved on."""
        ...
