"""Reads immutable objects, segments and directories, with a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from msgspec import MsgspecError
from zstandard import ZstdError

from ...store.planning import StreamName
from .manifest import Directory, Segment, damaged, read_directory
from .names import Names
from .objects import Bucket
from .segment import Index, Place, Spot, read_block, read_index, read_table

CACHED = 64 * 1024 * 1024
"""Approximate size of the cache, in bytes."""
WHOLE = 512 * 1024
"""Up to this size a segment is fetched as a whole."""


class GoneError(Exception):
    """An object does not exist: the reference is out of date, or it was deleted."""


class Cache:
    """An LRU cache bounded by size."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._things: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def get(self, key: Any) -> Any:
        """Return a cached value, or None."""
        if key not in self._things:
            return None
        self._things.move_to_end(key)
        return self._things[key][0]

    def put(self, key: Any, thing: Any, size: int) -> None:
        """Cache a value of about this many bytes, unless it is too large."""
        self.drop(key)
        if size > self._most // 4:
            return
        self._things[key] = (thing, size)
        self._held += size
        while self._held > self._most:
            _, (_, freed) = self._things.popitem(last=False)
            self._held -= freed

    def drop(self, key: Any) -> None:
        """Remove a value from the cache."""
        if (old := self._things.pop(key, None)) is not None:
            self._held -= old[1]


class Library:
    """Reads the segments and directories of all tenants; raises GoneError for a missing one."""

    def __init__(self, bucket: Bucket, names: Names) -> None:
        self._bucket = bucket
        self._names = names
        self._cache = Cache(CACHED)

    def add(self, id: str, data: bytes) -> None:
        """Cache an object that was just written or read, if it is small."""
        if len(data) <= WHOLE:
            self._cache.put(id, data, len(data))

    async def whole(self, tenant: str, segment: Segment) -> bytes:
        """Return all bytes of a segment."""
        return await self._fetch(tenant, segment.id)

    async def table(self, tenant: str, segment: Segment) -> dict[StreamName, Place]:
        """Return the positions of the runs in a segment."""
        at = (segment.id, "table")
        table: dict[StreamName, Place] | None = self._cache.get(at)
        if table is None:
            data = await self._part(tenant, segment, segment.size - segment.table, segment.table)
            table = self.read(tenant, segment, read_table, data)
            self._cache.put(at, table, 400 * len(table))
        return table

    async def index(self, tenant: str, segment: Segment, name: StreamName) -> Index:
        """Return the index of a stream's run."""
        at = (segment.id, name)
        index: Index | None = self._cache.get(at)
        if index is None:
            place = await self._place(tenant, segment, name)
            data = await self._part(tenant, segment, place.offset, place.index)
            index = self.read(tenant, segment, read_index, data)
            self._cache.put(at, index, 500 * len(index.seqs) + 150 * len(index.marks))
        return index

    async def bodies(
        self, tenant: str, segment: Segment, name: StreamName, places: Iterable[int], *, of_marks: bool = False
    ) -> dict[int, bytes]:
        """Return the bodies of records, or derived values, by their positions in the index."""
        wanted = list(places)
        index = await self.index(tenant, segment, name)
        blocks: list[tuple[Spot, list[bytes]]] = []
        missing: list[list[tuple[int, Spot]]] = []
        for number, spot in index.spots(wanted, of_marks=of_marks).items():
            kept = self._cache.get((segment.id, name, of_marks, number))
            if kept is not None:
                blocks.append((spot, kept))
            elif missing and missing[-1][-1][0] == number - 1:
                missing[-1].append((number, spot))
            else:
                missing.append([(number, spot)])
        for found in await asyncio.gather(*(self._blocks(tenant, segment, name, of_marks, spots) for spots in missing)):
            blocks += found
        held = {spot.first + at: body for spot, block in blocks for at, body in enumerate(block)}
        return {place: held[place] for place in wanted}

    async def directory(self, tenant: str, id: str) -> Directory:
        """Return a directory."""
        at = (id, "directory")
        directory: Directory | None = self._cache.get(at)
        if directory is None:
            data = await self._fetch(tenant, id)
            directory = read_directory(data, self._where(tenant, id))
            self._cache.put(at, directory, 600 * len(directory.streams) + 10 * len(data))
        return directory

    async def _place(self, tenant: str, segment: Segment, name: StreamName) -> Place:
        try:
            return (await self.table(tenant, segment))[name]
        except KeyError as error:
            raise damaged(self._where(tenant, segment.id), error) from error

    async def _blocks(
        self, tenant: str, segment: Segment, name: StreamName, of_marks: bool, spots: list[tuple[int, Spot]]
    ) -> list[tuple[Spot, list[bytes]]]:
        """Fetch adjacent blocks."""
        place = await self._place(tenant, segment, name)
        start, last = spots[0][1].offset, spots[-1][1]
        size = last.offset + last.size - start
        data = await self._part(tenant, segment, place.offset + place.index + start, size)
        found = []
        for number, spot in spots:
            at = spot.offset - start
            block = self.read(tenant, segment, read_block, data[at : at + spot.size])
            self._cache.put((segment.id, name, of_marks, number), block, sum(map(len, block)) + 50 * len(block))
            found.append((spot, block))
        return found

    async def _part(self, tenant: str, segment: Segment, start: int, size: int) -> bytes:
        if segment.size <= WHOLE:
            return (await self.whole(tenant, segment))[start : start + size]
        found = await self._bucket.get_part(self._names.segment(tenant, segment.id), start, size)
        if found is None:
            raise GoneError(segment.id)
        return found.data

    async def _fetch(self, tenant: str, id: str) -> bytes:
        data: bytes | None = self._cache.get(id)
        if data is None:
            found = await self._bucket.get(self._names.segment(tenant, id))
            if found is None:
                raise GoneError(id)
            data = found.data
            self.add(id, data)
        return data

    def read(self, tenant: str, segment: Segment, reader: Any, *data: Any) -> Any:
        """Parse bytes of a segment; raises UnreadableStoreError if they are damaged."""
        try:
            return reader(*data)
        except (MsgspecError, ZstdError) as error:
            raise damaged(self._where(tenant, segment.id), error) from error

    def _where(self, tenant: str, id: str) -> str:
        return f"{self._bucket.url}: the object {self._names.segment(tenant, id)}"
