"""The pass-through layer that the others extend, and scans with a filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeAlias, TypeVar, cast

from msgspec.structs import replace

from ..records import Match, Record, Ref, ScopePath, Stream
from ..store.confinement import Confined, Unconfined
from ..store.matching import to_cursor
from ..store.protocol import Capability, Page, Scrubbed, SearchableStore, Store, destroy, scrub
from ..store.query import Outcome, Scan, Search, StreamScan, Write
from ..telemetry.calls import UNKNOWN, Origin
from .store_signing import StoreSigning

LayerType = TypeVar("LayerType", bound="Layer")


class Layer:
    """Passes every call to the store below."""

    origin: Origin = UNKNOWN
    """The URL of the store, for telemetry; known to the outermost layer."""
    signing: StoreSigning | None = None
    """The signing keys of the store; known to the outermost layer."""

    def __init__(self, below: Store) -> None:
        self._below = below

    @property
    def clock(self) -> Callable[[], datetime]:
        """The clock of the store below."""
        return self._below.clock

    @clock.setter
    def clock(self, clock: Callable[[], datetime]) -> None:
        self._below.clock = clock

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._below.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        return await self._below.write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return await self._below.read(refs)

    async def scan(self, scan: Scan) -> Page[Record]:
        return await self._below.scan(scan)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return await self._below.streams(scan)

    async def search(self, search: Search) -> list[Match]:
        return await cast("SearchableStore", self._below).search(search)

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        return await scrub(self._below, finish=finish)

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        return await destroy(self._below, scope)

    async def close(self) -> None:
        await self._below.close()


def layers_of(store: Store) -> Iterator[Store]:
    """Yield a store and those below it, outermost first; the last is the back-end."""
    yield store
    while isinstance(store, Layer):
        store = store._below
        yield store


def find_layer(store: Store, kind: type[LayerType]) -> LayerType | None:
    """Return the outermost layer of a kind; None if there is none.

    Calls to it pass the layers above it by, with what these check: confine them as `restricted.confined` does.
    """
    while isinstance(store, Layer):
        if isinstance(store, kind):
            return store
        store = store._below
    return None


def backend_of(store: Store) -> Store:
    """Return the back-end below all layers of a store."""
    while isinstance(store, Layer):
        store = store._below
    return store


class ConfiningLayer(Layer):
    """Passes calls on, confined to a scope for a store whose database enforces it, or with the whole store open."""

    def __init__(self, below: Store, confined: Callable[[], Confined]) -> None:
        super().__init__(below)
        self._confined = confined

    async def write(self, write: Write) -> list[Outcome]:
        with self._confined():
            return await self._below.write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        with self._confined():
            return await self._below.read(refs)

    async def scan(self, scan: Scan) -> Page[Record]:
        with self._confined():
            return await self._below.scan(scan)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        with self._confined():
            return await self._below.streams(scan)

    async def search(self, search: Search) -> list[Match]:
        with self._confined():
            return await super().search(search)


def whole_store(below: Store) -> Store:
    """Return a store for what a layer itself stores or buffers, such as a key at the root, for any caller."""
    return ConfiningLayer(below, Unconfined)


LEAST, MOST = 64, 1000
"""How many records are read from below at once."""

RecordFilter: TypeAlias = Callable[[Sequence[Record]], Awaitable[list[Record | None]]]
"""Returns each record as the caller sees it, None for a hidden one."""


async def filtered_scan(below: Store, scan: Scan, transform: RecordFilter) -> Page[Record]:
    """Return the page of a scan over the records that pass the filter."""
    if not scan.limit:
        await below.scan(scan)  # raises for a closed store, and for an invalid cursor
        return Page(())
    found: list[Record] = []
    skip, size = scan.skip, min(max(scan.skip + scan.limit, LEAST), MOST)
    inner = replace(scan, skip=0, limit=size)
    while True:
        page = await below.scan(inner)
        for n, record in enumerate(await transform(page.items)):
            if record is None:
                continue
            if skip:
                skip -= 1
                continue
            found.append(record)
            if len(found) == scan.limit:
                last = n == len(page.items) - 1 and page.cursor is None
                here = to_cursor((record.scope.path, record.kind, record.seq))
                return Page(tuple(found), None if last else here)
        if page.cursor is None:
            return Page(tuple(found))
        inner = replace(inner, cursor=page.cursor, limit=min(2 * inner.limit, MOST))
