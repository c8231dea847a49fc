"""The pass-through layer that the others extend."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Match, Record, Ref, Stream
from ..store.protocol import Capability, Page, Store, scrub
from ..store.query import Outcome, Scan, Search, StreamScan, Write


class Layer:
    """Passes every call to the store below."""

    def __init__(self, below: Store) -> None:
        self._below = below

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below."""
        return self._below.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        """Pass on."""
        return await self._below.write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Pass on."""
        return await self._below.read(refs)

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass on."""
        return await self._below.scan(scan)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        """Pass on."""
        return await self._below.streams(scan)

    async def search(self, search: Search) -> list[Match]:
        """Pass on."""
        return await self._below.search(search)

    async def scrub(self) -> None:
        """Pass on."""
        await scrub(self._below)

    async def close(self) -> None:
        """Pass on."""
        await self._below.close()

    def beside(self, other: Store) -> Store:
        """Return another store, protected like this one, for records that are moved out of it."""
        return beside(self._below, other)


def beside(store: Store, other: Store) -> Store:
    """Return `other` wrapped in those layers of `store` that its data must not leave without, such as encryption."""
    return store.beside(other) if isinstance(store, Layer) else other
