"""The interfaces of back-ends: a store of records, its capabilities, and an index for recall beside or inside it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from ..records import Match, Record, Ref, ScopePath, Stream, StreamName, Value
from .query import Outcome, Scan, Search, StreamScan, Write

__all__ = [
    "Capability", "Companion", "Destroying", "Indexing", "LangChainFilter", "LangChainIndex", "Mark", "MarksChanges",
    "Near", "Nearby", "Nearest", "OwnIndex", "Page", "Scrubbed", "Scrubbing", "SearchableStore", "Store", "Unreached",
    "VectorStore", "all_streams", "destroy", "is_empty", "scan_all", "scan_pages", "scrub",
]  # fmt: skip

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
    """The store has its own keyword and vector `index`, an `OwnIndex`."""
    SEARCH = "search"
    """The store answers searches itself, as a `SearchableStore`."""


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


@runtime_checkable
class MarksChanges(Protocol):
    """A store that can say cheaply whether it has changed."""

    async def change_marker(self) -> tuple[int, object]:
        """Return a number of an observer, and a value of its own that changes with each write, by whichever process.

        Values of different observers, such as connections, are not comparable.
        """
        ...


class SearchableStore(Store, Protocol):
    """A store that answers searches: one with the capability SEARCH, the index layer, and the layers over them."""

    async def search(self, search: Search) -> list[Match]:
        """Return the best `search.limit` records, best first."""
        ...


class Unreached(Value, frozen=True, kw_only=True):
    """Deleted data that remains somewhere for a while: what, until when, and how to finish it before.

    `finishable` says whether `scrub` with `finish` removes it, which may take long or lock the store.
    """

    what: str
    until: str
    finish: str
    finishable: bool = False


class Scrubbed(Struct, kw_only=True):
    """Result of scrubbing: what was removed from caches, indexes and files, by name and number, and what remains."""

    removed: dict[str, int] = field(default_factory=dict)
    unreached: list[Unreached] = field(default_factory=list)

    def add(self, name: str, count: int) -> None:
        """Count something that was removed."""
        if count:
            self.removed[name] = self.removed.get(name, 0) + count


@runtime_checkable
class Scrubbing(Protocol):
    """A store or layer in whose files and logs deleted data remains for a while."""

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Make deleted data unreadable; return what was removed, and what remains.

        With `finish`, also do what may take long or lock the store.
        """
        ...


async def scrub(store: Store, *, finish: bool = False) -> Scrubbed:
    """Make deleted data in the files and logs of a store unreadable; return what remains."""
    return await store.scrub(finish=finish) if isinstance(store, Scrubbing) else Scrubbed()


@runtime_checkable
class Destroying(Protocol):
    """A store or layer that keeps something about a scope besides its records: caches, vectors, keys."""

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        """Destroy it for a scope and everything below; return what was removed.

        Without its keys, what is encrypted in the scope is lost: only an erasure calls this, after it has purged the
        scope. Raises HeldError under a legal hold.
        """
        ...


async def destroy(store: Store, scope: ScopePath) -> Scrubbed:
    """Destroy what a store keeps about an erased scope besides records; return what was removed."""
    return await store.destroy(scope) if isinstance(store, Destroying) else Scrubbed()


async def scan_pages(store: Store, scan: Scan) -> AsyncGenerator[tuple[Record, ...], None]:
    """Yield the pages of a scan that have records; `scan.limit` is the page size."""
    while True:
        page = await store.scan(scan)
        if page.items:
            yield page.items
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor, skip=0)


async def scan_all(store: Store, scan: Scan) -> AsyncGenerator[Record, None]:
    """Yield every record of a scan, page by page; `scan.limit` is the page size."""
    while True:
        page = await store.scan(scan)
        for record in page.items:
            yield record
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor, skip=0)


async def is_empty(store: Store) -> bool:
    """Return whether a store has no records that can be seen."""
    async with aclosing(all_streams(store, StreamScan(scope=ScopePath(), limit=10))) as streams:
        async for _ in streams:
            return False
    return True


async def all_streams(store: Store, scan: StreamScan) -> AsyncGenerator[Stream, None]:
    """Yield every stream of a scan, page by page; `scan.limit` is the page size."""
    while True:
        page = await store.streams(scan)
        for stream in page.items:
            yield stream
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor)


# ---------------------------------------------------------------- indexes outside this process


class Near(Struct, frozen=True, kw_only=True):
    """Query for candidate records in a scope; the caller ranks them.

    `text` is the query; `vector` is its vector as signed bytes from -127 to 127, and `terms` are the numeric ids of
    its words. `name` is the derived value that holds both for each record.
    """

    scope: ScopePath
    name: str
    kinds: tuple[str, ...] = ()
    below: bool = True
    text: str = ""
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


# ---------------------------------------------------------------- vector stores of LangChain

LangChainFilter: TypeAlias = Callable[[Mapping[str, str | list[str]]], dict[str, Any]]
"""A function from the metadata of documents (each name has this value, or one of these) to keyword arguments."""


@runtime_checkable
class VectorStore(Protocol):
    """The methods of a LangChain vector store that an index uses."""

    def add_texts(self, texts: Any, metadatas: Any = None, **options: Any) -> Any:
        """Embed and add texts, with these `ids`."""
        ...

    def delete(self, ids: Any = None, **options: Any) -> Any:
        """Delete documents by id."""
        ...

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> Any:
        """Return the `k` nearest documents."""
        ...


class LangChainIndex(Struct, frozen=True):
    """A LangChain vector store as `index`, with options.

    `filter` returns the keyword arguments of `similarity_search` that select documents by their metadata; without
    it, those of Chroma, Pinecone, PGVector, Qdrant, Weaviate and InMemoryVectorStore are known, and any other vector
    store is searched as a whole, which is slower with many scopes. `use_async` calls the async methods, for a vector
    store that has no others; they run on the event loop of `open_async`.
    """

    vector_store: VectorStore
    filter: LangChainFilter | None = None
    use_async: bool = False


Indexing: TypeAlias = str | VectorStore | LangChainIndex | None
"""A companion index: a URL such as "qdrant://host", or a LangChain vector store."""
