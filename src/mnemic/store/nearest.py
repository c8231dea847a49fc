"""What is asked of an index that lies outside of this process: a companion's, or the store's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from ..records import Record, ScopePath, Stream
from .planning import Name
from .registry import StoreURL

GROUP = "mnemic.indexes"
"""The entry point group: the name is the URL scheme, the object a `CompanionMaker`."""


class Near(Struct, frozen=True, kw_only=True):
    """Find the records of a scope that are likely to answer a question; who asks ranks them.

    `vector` holds whole numbers from -127 to 127, one byte each, in the direction of the question; `terms`
    are the numbers that stand for its words. `name` is that of the derived value in which records have both.
    """

    scope: ScopePath
    name: str
    kinds: tuple[str, ...] = ()
    below: bool = True
    vector: bytes | None = None
    terms: tuple[int, ...] = ()
    limit: int = 200


class Mark(Struct, frozen=True):
    """How far a companion has come with a stream."""

    version: int
    last_seq: int
    count: int


class Companion(Protocol):
    """An index beside a store: derived data, which can always be made again from the records.

    What it is given is of one embedder, told by the `name` of the derived value that each record brings
    along; that of another lies apart. It keeps what it is given until it is told otherwise, and knows nothing
    of expiry or versions. Errors of its driver leave it as ours, naming its URL without a password.
    """

    url: str

    async def marks(self, name: str, scope: ScopePath) -> dict[Name, Mark]:
        """Return how far it has come with the streams of a scope and of those below it."""
        ...

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Take records in, in the place of older versions of the same scope, kind and key.

        Each record is without text and data; its entry says by which terms and vectors it is found. One whose
        entry has no vectors is found by its terms alone, if it can be.
        """
        ...

    async def remove(self, stream: Name, keys: Sequence[str] | None) -> None:
        """Forget records of a stream, of every embedder, or with None all of them and its marks."""
        ...

    async def keys(self, name: str, stream: Name) -> list[str]:
        """Return which records of a stream it holds."""
        ...

    async def mark(self, name: str, stream: Name, mark: Mark) -> None:
        """Note how far it has come; what was put and removed before is durable when this returns."""
        ...

    async def near(self, near: Near) -> list[Record]:
        """Return the nearest records by vector, and by words where it can, as they were put."""
        ...

    async def reset(self) -> None:
        """Forget everything."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...


class Nearby(Struct):
    """Records with the derived value that was asked for, and the streams that the index is behind.

    Each of those streams comes with how far the index has come with it, if it knows it at all.
    """

    records: list[Record] = field(default_factory=list)
    behind: list[tuple[Stream, Mark | None]] = field(default_factory=list)


class OwnIndex(Companion, Protocol):
    """An index that a store keeps of its own records, in the same place: it tells by itself what it lacks."""

    large: int
    """From how many records on a scope is searched with it, and not in memory."""
    tidy: bool
    """Whether what goes from the store goes from it by itself."""

    async def nearby(self, near: Near) -> Nearby:
        """Return at most `near.limit` whole records by words and as many by vectors, in one round trip."""
        ...


class Nearest(Protocol):
    """A store with the capability NEAREST."""

    @property
    def index(self) -> OwnIndex:
        """The store's own index."""
        ...


class CompanionMaker(Struct, frozen=True, kw_only=True):
    """What an entry point in `mnemic.indexes` names: how to open a companion, and how to try one."""

    open: Callable[[StoreURL], Awaitable[Companion]]
    trial: Callable[[Path], AbstractContextManager[str]] | None = None
