"""The Store protocol: five methods over records, and capabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from ..records import Match, Record, Ref, Stream
from .query import Outcome, Scan, Search, StreamScan, Write

__all__ = ["Capability", "Page", "Scrubbing", "SearchableStore", "Store", "all_streams", "scan_all", "scrub"]

Item = TypeVar("Item")


class Capability(Enum):
    """A feature that a store implements itself; a layer supplies the missing ones."""

    DURABLE = "durable"
    """Acknowledged data is there when the URL is opened again."""
    SHARED = "shared"
    """Several processes can use the same URL at the same time."""
    ATOMIC = "atomic"
    """Atomicity and version checks hold between processes, not only within one."""
    RECORDS = "records"
    """Records of every kind are stored, and derived values; otherwise only conversations and memories."""
    NEAREST = "nearest"
    """The store has its own keyword and vector `index`, as described in `store.nearest`."""


class Page(Struct, Generic[Item], frozen=True):
    """One page of results; `cursor` requests the next page and is None on the last one."""

    items: tuple[Item, ...]
    cursor: str | None = None


class Store(Protocol):
    """Stores records.

    All methods raise ClosedError after `close`, and StoreError or a subclass if the back-end fails. Arguments and
    results share no state with stored data.
    """

    clock: Callable[[], datetime]
    """Source of the current time, for expiry and the times of records; a memory that is opened with a clock sets it."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Features that the store implements itself."""
        ...

    async def write(self, write: Write) -> list[Outcome]:
        """Apply all operations of `write`, or none; return their outcomes.

        When it returns, the write is durable and visible to every later call. Raises ConflictError if a version
        does not match, LimitError if a limit cannot be met.
        """
        ...

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Return the record of each ref, in order; None for one that does not exist."""
        ...

    async def scan(self, scan: Scan) -> Page[Record]:
        """Return the next records of a scan, at most `scan.limit`.

        A page can have fewer than `limit` records and still have a cursor; only a page without a cursor is the
        last. Raises InvalidValueError for an invalid cursor.
        """
        ...

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        """Return the next streams of a scan; expired records are not counted."""
        ...

    async def close(self) -> None:
        """Close files, connections and threads; further calls do nothing."""
        ...


class SearchableStore(Store, Protocol):
    """A store that answers searches: the index layer, and the layers over it."""

    async def search(self, search: Search) -> list[Match]:
        """Return the best `search.limit` records, best first."""
        ...


@runtime_checkable
class Scrubbing(Protocol):
    """A store whose files can contain deleted data for a while; most stores do not need this."""

    async def scrub(self) -> None:
        """Make deleted data unreadable; raises StoreBusyError if other processes prevent it."""
        ...


async def scrub(store: Store) -> None:
    """Make deleted data in the store's files unreadable; raises StoreBusyError if other processes prevent it."""
    if isinstance(store, Scrubbing):
        await store.scrub()


async def scan_all(store: Store, scan: Scan) -> AsyncGenerator[Record, None]:
    """Yield every record of a scan, page by page; `scan.limit` is the page size."""
    while True:
        page = await store.scan(scan)
        for record in page.items:
            yield record
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor, skip=0)


async def all_streams(store: Store, scan: StreamScan) -> AsyncGenerator[Stream, None]:
    """Yield every stream of a scan, page by page; `scan.limit` is the page size."""
    while True:
        page = await store.streams(scan)
        for stream in page.items:
            yield stream
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor)
