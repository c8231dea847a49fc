"""Companion index over any vector database that stores points.

A record is one point per vector; the first, its head, also has the record's terms and the record itself. The
position in a stream is a point without vector or terms, so that a stream and its mark are deleted together. Each
embedder has its own table, named after its entries and dimension; points stored before any vectors existed move
there later.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID, uuid5

from msgspec import Struct, field, json

from ..errors import ClosedError, StoreError
from ..event_loop import off_loop
from ..recall.index_entry import unpack
from ..records import Record, ScopePath, StreamName
from ..store.protocol import Mark, Near
from ..store.registry import closed_on_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Result = TypeVar("Result")

MARK, HEAD, LAST = -1, 0, 32_767
"""Numbers of a mark and of a record's first point, and the largest number of a point."""
POINTS, BYTES = 500, 4 * 1024 * 1024
"""How many points, and approximately how many bytes of records, are written at once."""
KEYS = 500
"""Maximum number of keys or ids in a filter."""
MAX_POINTS = 16_000
"""Maximum number of points per query; some databases have a limit not far above."""
TABLES_SECONDS = 5.0
"""How many seconds the list of tables is cached."""

_NAMESPACE = UUID("6f1f7e0a-6a3c-5d0e-9b57-3f6f1b0c2d11")
_TABLE = re.compile(r"entries_[0-9a-f]{16}_(\d+)")
_encode = json.Encoder().encode
_decode_record = json.Decoder(Record).decode
_decode_mark = json.Decoder(Mark).decode


class MissingTableError(StoreError):
    """A table does not exist any more: another process has dropped it."""


class Point(Struct):
    """One point; query results have neither vector nor terms."""

    id: str
    scope: str
    kind: str
    key: str
    chunk: int
    body: bytes = b""
    """The record or mark as JSON; empty in other points."""
    vector: NDArray[np.int8] | None = None
    terms: list[int] = field(default_factory=list)
    """In text order, with repetitions."""

    @property
    def direction(self) -> NDArray[np.int8] | None:
        """The vector, unless it is all zeros and cannot be compared."""
        return self.vector if self.vector is not None and self.vector.any() else None


class PointFilter(Struct, frozen=True, kw_only=True):
    """Conditions on points: all given fields must match."""

    scope: str = ""
    below: bool = False
    """Whether scopes below are included."""
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    chunks: tuple[int, int] = (HEAD, LAST)
    """First and last point number."""

    def expression(self, literal: Callable[[str], str], brackets: str) -> str:
        """Return the conditions in the syntax that SQL and Milvus share, but for literals and lists."""

        def among(name: str, values: Sequence[str]) -> str:
            return f"{name} in {brackets[0]}{', '.join(map(literal, values))}{brackets[1]}"

        parts = [f"chunk >= {self.chunks[0]} and chunk <= {self.chunks[1]}"]
        here = f"scope == {literal(self.scope)}"
        if not self.below:
            parts.append(here)
        elif self.scope:
            # '0' follows '/' in ASCII, so this range is exactly what is below the scope.
            low, high = literal(f"{self.scope}/"), literal(f"{self.scope}0")
            parts.append(f"({here} or (scope >= {low} and scope < {high}))")
        if self.kinds:
            parts.append(among("kind", self.kinds))
        if self.keys is not None:
            parts.append(among("key", self.keys))
        if self.ids is not None:
            parts.append(among("id", self.ids))
        return " and ".join(parts)


class VectorDatabase(Protocol):
    """Stores points in tables; raises Mnemic errors, and MissingTableError for a missing table."""

    url: str

    async def tables(self) -> list[str]:
        """Return the names of all tables of this index."""
        ...

    async def create(self, table: str, dimensions: int) -> None:
        """Create a table if it does not exist; with no dimensions, its points have no vectors."""
        ...

    async def drop(self, table: str) -> None:
        """Drop a table if it exists."""
        ...

    async def put(self, table: str, points: Sequence[Point]) -> None:
        """Write points, replacing those with the same ids."""
        ...

    async def delete(self, table: str, where: PointFilter) -> None:
        """Delete points."""
        ...

    async def read(self, table: str, where: PointFilter, *, bodies: bool = True) -> list[Point]:
        """Return all matching points, in any order."""
        ...

    async def by_vector(self, table: str, where: PointFilter, vector: NDArray[np.int8], limit: int) -> list[Point]:
        """Return the points with the nearest vectors."""
        ...

    async def by_terms(self, table: str, where: PointFilter, terms: Sequence[int], limit: int) -> list[Point]:
        """Return the heads that match the terms best; none if the database does not search words."""
        ...

    async def flush(self, table: str) -> None:
        """Wait until writes are durable, and compact if it is due."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...


async def open_index(database: VectorDatabase) -> CompanionIndex:
    """Return the index of a database; raises a StoreError if its server cannot be reached."""
    async with closed_on_error(database):
        await database.tables()
    return CompanionIndex(database)


class CompanionIndex:
    """A companion index whose points are stored by a vector database."""

    def __init__(self, database: VectorDatabase) -> None:
        self.url: str = database.url
        self._database = database
        self._tables: dict[str, int] = {}
        """Dimensions of the existing tables, by name."""
        self._listed = float("-inf")
        self._creating = asyncio.Lock()
        self._closed = False

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        where = PointFilter(scope=scope.path, below=True, chunks=(MARK, MARK))
        found: dict[StreamName, Mark] = {}
        for point in await self._query(name, lambda table: self._database.read(table, where)):
            stream, mark = (point.scope, point.kind), _decode_mark(point.body)
            # A database without unique keys may have a mark twice, if two processes created it at once.
            if stream not in found or mark.version < found[stream].version:
                found[stream] = mark
        return found

    async def put(self, name: str, records: Sequence[Record]) -> None:
        if records:
            points = await off_loop(lambda: [point for record in records for point in _points(name, record)])
            await self._retry_missing(lambda: self._put(name, points))

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        filters = [_of_keys(stream, some) for some in _split(keys or (), KEYS)]
        if keys is None:
            filters = [PointFilter(scope=stream[0], kinds=(stream[1],), chunks=(MARK, LAST))]
        await self._list_tables(TABLES_SECONDS)
        for table in list(self._tables):
            for where in filters:
                try:
                    await self._database.delete(table, where)
                except MissingTableError:
                    self._tables.pop(table, None)

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        where = PointFilter(scope=stream[0], kinds=(stream[1],), chunks=(HEAD, HEAD))
        heads = await self._query(name, lambda table: self._database.read(table, where, bodies=False))
        return list(dict.fromkeys(point.key for point in heads))

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        point = Point(_id(*stream, "", MARK), *stream, key="", chunk=MARK, body=_encode(mark))

        async def write() -> None:
            table = await self._ensure_table(name, 0)
            await self._database.put(table, [point])
            await self._database.flush(table)

        await self._retry_missing(write)

    async def near(self, near: Near) -> list[Record]:
        return await self._query(near.name, lambda table: self._near(table, near)) if near.limit > 0 else []

    async def reset(self) -> None:
        await self._list_tables(0)
        for table in list(self._tables):
            await self._database.drop(table)
        self._tables.clear()

    async def close(self) -> None:
        self._closed = True
        await self._database.close()

    async def _near(self, table: str, near: Near) -> list[Record]:
        import numpy as np

        vector = np.frombuffer(near.vector or b"", dtype=np.int8)
        where = PointFilter(scope=near.scope.path, below=near.below, kinds=near.kinds)
        count = min(near.limit, MAX_POINTS)

        async def by_vector() -> list[Point]:
            comparable = len(vector) == self._tables[table] and vector.any()
            return await self._database.by_vector(table, where, vector, count) if comparable else []

        async def by_terms() -> list[Point]:
            return await self._database.by_terms(table, where, near.terms, count) if near.terms else []

        nearest, matching = await asyncio.gather(by_vector(), by_terms())
        while len(nearest) == count < MAX_POINTS and len(set(map(_head_id, nearest))) < near.limit:
            # So many points belong to the same records that there are more records to find.
            count = min(4 * count, MAX_POINTS)
            nearest = await by_vector()
        heads = dict.fromkeys([*list(dict.fromkeys(map(_head_id, nearest)))[: near.limit], *map(_head_id, matching)])
        bodies = {point.id: point.body for point in (*nearest, *matching) if point.chunk == HEAD}
        for some in _split([id for id in heads if id not in bodies], KEYS):
            where = PointFilter(below=True, ids=tuple(some))
            bodies |= {point.id: point.body for point in await self._database.read(table, where)}
        return [_decode_record(bodies[id]) for id in heads if id in bodies]

    async def _put(self, name: str, points: list[Point]) -> None:
        width = next((len(point.vector) for point in points if point.vector is not None), 0)
        table = await self._ensure_table(name, width)
        fitting = [point for point in points if _fits(point, self._tables[table])]
        # A record given twice is stored once, in its last version.
        fitting = list({point.id: point for point in fitting}.values())
        for batch in _batches(fitting):
            await self._database.put(table, batch)
        # A version with fewer points leaves those of the previous one behind.
        by_count: dict[tuple[StreamName, int], list[str]] = {}
        counts = {((point.scope, point.kind), point.key): point.chunk + 1 for point in fitting}
        for (stream, key), count in counts.items():
            by_count.setdefault((stream, count), []).append(key)
        for (stream, count), keys in by_count.items():
            for some in _split(keys, KEYS):
                await self._database.delete(table, _of_keys(stream, some, first=count))

    async def _ensure_table(self, name: str, dimensions: int) -> str:
        """Return the table of an embedder; create it, or recreate it for vectors, if necessary."""
        async with self._creating:
            before = await self._table(name)
            if before is not None and (self._tables[before] or not dimensions):
                return before
            table = f"{_table_prefix(name)}{dimensions}"
            await self._database.create(table, dimensions)
            self._tables[table] = dimensions
            if before is not None:
                await self._move(name, before, table)
            return table

    async def _move(self, name: str, before: str, table: str) -> None:
        """Move points without vectors to the table for vectors; marks last."""
        found = await self._database.read(before, PointFilter(below=True, chunks=(MARK, LAST)))
        heads = [point for one in found if one.chunk == HEAD for point in _points(name, _decode_record(one.body))]
        for batch in _batches([*heads, *(one for one in found if one.chunk == MARK)]):
            await self._database.put(table, batch)
        await self._database.drop(before)
        self._tables.pop(before, None)

    async def _table(self, name: str) -> str | None:
        """Return the table of an embedder; the one for vectors, if there are two."""
        self._check_open()
        prefix = _table_prefix(name)
        if not any(table.startswith(prefix) for table in self._tables):
            await self._list_tables(0)
        found = [table for table in self._tables if table.startswith(prefix)]
        return max(found, key=self._tables.__getitem__, default=None)

    async def _list_tables(self, seconds: float) -> None:
        """Refresh the list of tables if it is older than this."""
        self._check_open()
        if time.monotonic() - self._listed >= seconds:
            named = [(table, _TABLE.fullmatch(table)) for table in await self._database.tables()]
            self._tables = {table: int(found[1]) for table, found in named if found is not None}
            self._listed = time.monotonic()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url} is closed")

    async def _query(self, name: str, query: Callable[[str], Awaitable[list[Result]]]) -> list[Result]:
        """Query the table of an embedder; empty if there is none."""
        table = await self._table(name)
        try:
            return [] if table is None else await query(table)
        except MissingTableError:
            self._tables.clear()
            return []

    async def _retry_missing(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work on a table; repeat it once if another process has dropped the table."""
        try:
            await work()
        except MissingTableError:
            self._tables.clear()
            await work()


def as_words(terms: Sequence[int]) -> str:
    """Return terms as words of eight digits, for databases that search text."""
    return " ".join(f"{term:08x}" for term in terms)


def _table_prefix(name: str) -> str:
    """Return the table name prefix of an embedder, safe for any characters."""
    return f"entries_{sha256(name.encode()).hexdigest()[:16]}_"


def _id(scope: str, kind: str, key: str, chunk: int) -> str:
    # Names have no control characters, so the encoding is unambiguous.
    return str(uuid5(_NAMESPACE, f"{scope}\n{kind}\n{key}\n{chunk}"))


def _head_id(point: Point) -> str:
    return point.id if point.chunk == HEAD else _id(point.scope, point.kind, point.key, HEAD)


def _of_keys(stream: StreamName, keys: Sequence[str], first: int = HEAD) -> PointFilter:
    return PointFilter(scope=stream[0], kinds=(stream[1],), keys=tuple(keys), chunks=(first, LAST))


def _points(name: str, record: Record) -> Iterator[Point]:
    entry = unpack(record.derived[name])
    place = (record.scope.path, record.kind, record.key)
    vectors = [None] if entry.vectors is None or not len(entry.vectors) else entry.vectors
    for chunk, vector in enumerate(vectors):
        point = Point(_id(*place, chunk), *place, chunk, vector=vector)
        if chunk == HEAD:
            point.body, point.terms = _encode(record), entry.terms.tolist()
        yield point


def _fits(point: Point, dimensions: int) -> bool:
    """Drop a vector of another dimension, and return whether the point is still needed."""
    if point.vector is not None and len(point.vector) != dimensions:
        point.vector = None
        return point.chunk == HEAD
    return True


def _batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    batch: list[Point] = []
    size = 0
    for point in points:
        if batch and (len(batch) == POINTS or size + len(point.body) > BYTES):
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += len(point.body)
    if batch:
        yield batch


def _split(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
