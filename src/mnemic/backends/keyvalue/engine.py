"""What a store over keys and values needs of the engine that keeps the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from ...store.loaded import Needs
from ...store.planning import Name, Slot
from ...store.protocol import Capability
from .kept import Kept, KeptHead, Row


class Loaded(Struct):
    """What an engine has found; a head or a slot that was looked for and is not there is None."""

    heads: dict[Name, KeptHead | None] = field(default_factory=dict)
    slots: dict[Name, dict[str, Slot | None]] = field(default_factory=dict)
    whole: set[Name] = field(default_factory=set)


class Change(Struct):
    """What is to change in one stream, in this order: removed, labels lost, put, derived."""

    name: Name
    expected: int | None
    """The revision at which the stream must be; None if there must be no such stream."""
    head: KeptHead | None
    """The head from now on; None if the stream goes."""
    same: bool = False
    """Whether the head stays as it is, and is only compared."""
    put: list[Kept] = field(default_factory=list)
    new: set[int] = field(default_factory=set)
    """The seqs of those records that were not there before."""
    removed: list[tuple[int, str]] = field(default_factory=list)
    """The seqs and keys of records to remove, with all that was derived from them."""
    lost_labels: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """By seq, labels that records had; some of those records are put with others, some are removed."""
    derived: list[tuple[int, str, int, bytes | None]] = field(default_factory=list)
    """The seq, name, version and value of what was derived; None removes it."""
    absent: list[str] = field(default_factory=list)
    """Keys that nobody has looked up, and that must not be there."""
    keys: dict[int, str] = field(default_factory=dict)
    """By seq, the keys of the records of which only derived values change."""


class Batch(Struct):
    """Changes that are done all together, or not at all."""

    changes: list[Change]
    moment: int = 0


class Span(Struct, frozen=True):
    """Which records of a stream to read, in order of their seqs."""

    reverse: bool = False
    after: int | None = None
    """Those after this seq, or before it in reverse."""
    limit: int = 1000
    seqs: tuple[int, ...] | None = None
    """These alone, if given; the other bounds do not count then."""
    derived: tuple[str, ...] = ()
    revision: int | None = None
    """The stream's revision that was read in the same call: what is no older than that is new enough."""


class Reach(Struct, frozen=True):
    """Which streams to list, in the order of scope and kind."""

    scope: str
    below: bool
    kinds: tuple[str, ...] = ()
    reverse: bool = False
    after: Name | None = None
    """Those after this one, or before it in reverse; not itself."""
    limit: int = 500


class Engine(Protocol):
    """Keeps the bytes of a store; every error of its driver leaves it as one of ours."""

    url: str
    """What errors name the store by: without a password."""
    capabilities: frozenset[Capability]
    expires_streams: bool
    """Whether what it reads of a stream that has expired is empty by itself."""

    def partition(self, name: Name) -> str:
        """Return the part of the store that a stream lies in: changes within one part can be done at once."""
        ...

    def fits(self, batch: Batch) -> bool:
        """Tell whether a batch within one partition is small enough to be done at once."""
        ...

    async def load(self, needs: Needs) -> Loaded:
        """Return what is asked for; each stream's head is no newer than its slots."""
        ...

    async def commit(self, batch: Batch) -> bool:
        """Do all changes, durably, if all is as they expect; False, and nothing done, if it is not."""
        ...

    async def rows(self, name: Name, span: Span) -> tuple[KeptHead | None, list[Row]]:
        """Return records of a stream, all that `span` asks for, and its head unless it was not needed."""
        ...

    async def find(self, name: Name, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        """Return the records of these keys, in any order, and the head as `rows` does."""
        ...

    async def labelled(self, name: Name, label: str, values: Sequence[str]) -> list[int] | None:
        """Return the seqs of the records with a label of these values; None if labels are not indexed."""
        ...

    async def heads(self, reach: Reach) -> list[KeptHead]:
        """Return the next heads that are asked for, fewer than `limit` only at the end."""
        ...

    async def note(self, key: str) -> bytes | None:
        """Return a note by its name; notes are few, for writes that are too large to be done at once."""
        ...

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        """Put a note in the place of another, None being no note; False if it is not as it was before.

        A note may be forgotten after a month: by then it is one that a broken-off write has left behind.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class Spanning(Protocol):
    """An engine whose batches may lie in several partitions and still be done at once, if they fit."""

    spans: bool


@runtime_checkable
class Carrying(Protocol):
    """An engine that divides a change that is too large for one commit by itself."""

    most: int
    """How many records a commit takes at most: that more do not fit need not be found out by planning."""

    def check(self, batch: Batch) -> None:
        """Raise TooLargeError if a batch could not be done even in steps, before it is certain."""
        ...

    async def carry(self, change: Change, moment: int) -> None:
        """Do a change that is certain, whatever others have done of it; nothing if its stream moved on."""
        ...
