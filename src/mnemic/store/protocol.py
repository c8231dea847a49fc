"""The contract of a back-end: six methods over records, and what it says it can do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from ..records import Match, Record, Ref, Stream
from .query import Outcome, Scan, Search, StreamScan, Write

__all__ = [
    "Capability",
    "Page",
    "Scrubbing",
    "Store",
    "all_streams",
    "scan_all",
    "scrub",
]

Item = TypeVar("Item")


class Capability(Enum):
    """Something that a store does by itself; what it lacks, a layer does for it."""

    DURABLE = "durable"
    """What was acknowledged is there when the URL is opened again."""
    SHARED = "shared"
    """Several processes may use the same URL at the same time."""
    ATOMIC = "atomic"
    """Writes are all or none and guarded by versions, also between processes; within one, they are anyway."""
    LEXICAL = "lexical"
    """`search` finds words."""
    NEAREST = "nearest"
    """It has an `index` of its own by words and vectors, as `store.nearest` describes it."""


class Page(Struct, Generic[Item], frozen=True):
    """Part of an answer; `cursor` asks for the next part and is None at the end."""

    items: tuple[Item, ...]
    cursor: str | None = None


class Store(Protocol):
    """Keeps records.

    All methods raise ClosedError after `close`, and StoreError or a descendant if the back-end
    fails. Nothing that a caller gives or gets is shared with what is stored.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the store does by itself."""
        ...

    async def write(self, write: Write) -> list[Outcome]:
        """Do all operations of `write`, or none; return what each did.

        What it wrote is durable, and visible to every later call, when it returns. Raises
        ConflictError if a version is not the expected one, LimitError if a limit cannot be held.
        """
        ...

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Return the record of each ref, in their order; None where there is none."""
        ...

    async def scan(self, scan: Scan) -> Page[Record]:
        """Return the next records that `scan` asks for, at most `scan.limit`.

        A page may hold fewer than the limit and still have a cursor; only a page without a cursor
        is the last. Raises InvalidValueError for a cursor that is not ours.
        """
        ...

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        """Return the next streams that `scan` asks for; what has expired is not counted."""
        ...

    async def search(self, search: Search) -> list[Match]:
        """Return the best `search.limit` records, best first.

        Only a store with the capability LEXICAL has this; the index layer gives it to the others.
        """
        ...

    async def close(self) -> None:
        """Let go of files, connections and threads; calling it twice does nothing."""
        ...


@runtime_checkable
class Scrubbing(Protocol):
    """A store whose files show for a while what was deleted from it; most do not, and lack this."""

    async def scrub(self) -> None:
        """Make what was deleted unreadable; raises StoreBusyError if other users of the store prevent it."""
        ...


async def scrub(store: Store) -> None:
    """Make what was deleted unreadable in the store's files; raises StoreBusyError if others prevent it."""
    if isinstance(store, Scrubbing):
        await store.scrub()


async def scan_all(store: Store, scan: Scan) -> AsyncGenerator[Record, None]:
    """Yield every record that `scan` asks for, page by page; `scan.limit` is the size of a page."""
    while True:
        page = await store.scan(scan)
        for record in page.items:
            yield record
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor, skip=0)


async def all_streams(store: Store, scan: StreamScan) -> AsyncGenerator[Stream, None]:
    """Yield every stream that `scan` asks for, page by page; `scan.limit` is the size of a page."""
    while True:
        page = await store.streams(scan)
        for stream in page.items:
            yield stream
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor)
