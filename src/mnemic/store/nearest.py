"""The interface of vector indexes outside this process: companion databases, or the store's own index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from ..records import Record, ScopePath, Stream
from .planning import StreamName
from .registry import StoreURL

GROUP = "mnemic.indexes"
"""Entry point group of companion indexes: the name is the URL scheme, the object a `CompanionMaker`."""


class Near(Struct, frozen=True, kw_only=True):
    """Query for candidate records in a scope; the caller ranks them.

    `vector` is the query vector as signed bytes from -127 to 127; `terms` are the numeric ids of its words.
    `name` is the derived value that holds both for each record.
    """

    scope: ScopePath
    name: str
    kinds: tuple[str, ...] = ()
    below: bool = True
    vector: bytes | None = None
    terms: tuple[int, ...] = ()
    limit: int = 200


class Mark(Struct, frozen=True):
    """How far an index has followed a stream."""

    version: int
    last_seq: int
    count: int


class Companion(Protocol):
    """An index beside a store: derived data that can be rebuilt from the records.

    Each record comes with a derived value, whose `name` identifies the embedder; data of different embedders is
    kept apart. The index ignores expiry and versions and keeps records until told to remove them. Driver errors
    become Mnemic errors that name the URL without its password.
    """

    url: str

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        """Return how far the index has followed the streams of a scope and below."""
        ...

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Add records, replacing older versions with the same scope, kind and key.

        Records have no text or data; the index entry has their terms and vectors. An entry without vectors is
        found by terms only, if the index supports that.
        """
        ...

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove records of a stream for every embedder; with None, the whole stream and its marks."""
        ...

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        """Return the keys of a stream that the index contains."""
        ...

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        """Record how far the index has followed a stream; everything put or removed before is then durable."""
        ...

    async def near(self, near: Near) -> list[Record]:
        """Return the nearest records by vector and, where supported, by words, as they were put."""
        ...

    async def reset(self) -> None:
        """Delete the whole index."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...


class Nearby(Struct):
    """Candidate records with the requested derived value, and the streams for which the index is behind.

    Each of those streams comes with its mark, if the index knows the stream.
    """

    records: list[Record] = field(default_factory=list)
    behind: list[tuple[Stream, Mark | None]] = field(default_factory=list)


class OwnIndex(Companion, Protocol):
    """A store's own index of its records, in the same place; it knows by itself what it lacks."""

    large: int
    """Scopes with at least this many records are searched with it instead of in memory."""
    tidy: bool
    """Whether deleting a record also removes it from the index."""

    async def nearby(self, near: Near) -> Nearby:
        """Return up to `near.limit` records by words and as many by vectors, in one round trip."""
        ...


class Nearest(Protocol):
    """A store with the capability NEAREST."""

    @property
    def index(self) -> OwnIndex:
        """The store's own index."""
        ...


class CompanionMaker(Struct, frozen=True, kw_only=True):
    """Entry point object of a companion index: how to open one."""

    open: Callable[[StoreURL], Awaitable[Companion]]
