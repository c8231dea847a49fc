"""A companion over any engine that keeps points: all that is the same whichever engine it is.

A record is a point for each of its vectors; the first of them, its head, also has the record's terms and the
record itself. How far the index has come with a stream is a point too, with nothing to be found by, so that
a stream and its mark go in one step. Each embedder has a table of its own, named after its entries and the
dimensions of its vectors; what has come without vectors, before any came with them, moves over.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID, uuid5

from msgspec import Struct, field, json

from ..driving import off_loop
from ..errors import ClosedError, StoreError
from ..recall.entry import unpack
from ..records import Record, ScopePath
from ..store.nearest import Mark, Near
from ..store.planning import Name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Result = TypeVar("Result")

MARK, HEAD, LAST = -1, 0, 32_767
"""The numbers of a mark, of a record's first point, and the largest that a point can have."""
POINTS, BYTES = 500, 4 * 1024 * 1024
"""How many points, and about how many bytes of records, an engine is given at a time."""
KEYS = 500
"""How many keys a condition names at most."""
MOST = 16_000
"""How many points are asked for at most; some engines have a limit not far above."""
LOOKED_AGAIN = 5.0
"""For how many seconds it is remembered which tables there are."""

_SPACE = UUID("6f1f7e0a-6a3c-5d0e-9b57-3f6f1b0c2d11")
_encode = json.Encoder().encode
_record = json.Decoder(Record).decode
_mark = json.Decoder(Mark).decode


class MissingTableError(StoreError):
    """A table is no longer there: another process has dropped it."""


class Point(Struct):
    """One point; those that an engine has found have neither vector nor terms."""

    id: str
    scope: str
    kind: str
    key: str
    chunk: int
    body: bytes = b""
    """The record, or the mark, as JSON; empty except in marks and heads."""
    vector: NDArray[np.int8] | None = None
    terms: list[int] = field(default_factory=list)
    """In the order of the text, as often as they occur."""


class Where(Struct, frozen=True, kw_only=True):
    """Which points are meant: those for which all holds that is given."""

    scope: str = ""
    below: bool = False
    """Whether scopes below are meant too."""
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    chunks: tuple[int, int] = (HEAD, LAST)
    """The first and the last of their numbers."""


class Engine(Protocol):
    """Keeps points in tables; raises our errors, and MissingTableError for a table that is not there."""

    url: str

    async def tables(self) -> list[str]:
        """Return the names of all tables of this index."""
        ...

    async def create(self, table: str, dimensions: int) -> None:
        """Make a table, unless it is there; with no dimensions, its points have no vectors."""
        ...

    async def drop(self, table: str) -> None:
        """Remove a table, if it is there."""
        ...

    async def put(self, table: str, points: Sequence[Point]) -> None:
        """Write points, in the place of those with the same ids."""
        ...

    async def delete(self, table: str, where: Where) -> None:
        """Remove points."""
        ...

    async def read(self, table: str, where: Where, *, bodies: bool = True) -> list[Point]:
        """Return all points that are meant, however many there are, in any order."""
        ...

    async def fetch(self, table: str, ids: Sequence[str]) -> list[Point]:
        """Return the points with these ids, those that are there, in any order."""
        ...

    async def nearest(
        self, table: str, where: Where, vector: NDArray[np.int8] | None, terms: Sequence[int], limit: int
    ) -> tuple[list[Point], list[Point]]:
        """Return the nearest points by vector, and by terms if it can; at most `limit` of each."""
        ...

    async def settle(self, table: str) -> None:
        """Return when what was written is durable, and tidy up if it is time to."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...


class PointIndex:
    """A companion whose points an engine keeps."""

    def __init__(self, engine: Engine) -> None:
        self.url = engine.url
        self._engine = engine
        self._tables: dict[str, int] = {}
        """The dimensions of the tables that there are, by name."""
        self._looked = float("-inf")
        self._making = asyncio.Lock()
        self._closed = False

    async def marks(self, name: str, scope: ScopePath) -> dict[Name, Mark]:
        """Return how far it has come with the streams of a scope and of those below it."""
        where = Where(scope=scope.path, below=True, chunks=(MARK, MARK))
        found: dict[Name, Mark] = {}
        for point in await self._asked(name, lambda table: self._engine.read(table, where)):
            stream, mark = (point.scope, point.kind), _mark(point.body)
            # An engine without keys may hold a mark twice, if two processes made it at once.
            if stream not in found or mark.version < found[stream].version:
                found[stream] = mark
        return found

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Take records in, in the place of older versions of the same scope, kind and key."""
        if records:
            points = await off_loop(lambda: [point for record in records for point in _points(name, record)])
            await self._again(lambda: self._put(name, points))

    async def remove(self, stream: Name, keys: Sequence[str] | None) -> None:
        """Forget records of a stream, of every embedder, or with None all of them and its marks."""
        wheres = (
            [Where(scope=stream[0], kinds=(stream[1],), chunks=(MARK, LAST))]
            if keys is None
            else [_of(stream, some) for some in _cut(keys, KEYS)]
        )
        await self._look(LOOKED_AGAIN)
        for table in list(self._tables):
            for where in wheres:
                try:
                    await self._engine.delete(table, where)
                except MissingTableError:
                    self._tables.pop(table, None)

    async def keys(self, name: str, stream: Name) -> list[str]:
        """Return which records of a stream it holds."""
        where = Where(scope=stream[0], kinds=(stream[1],), chunks=(HEAD, HEAD))
        heads = await self._asked(name, lambda table: self._engine.read(table, where, bodies=False))
        return list(dict.fromkeys(point.key for point in heads))

    async def mark(self, name: str, stream: Name, mark: Mark) -> None:
        """Note how far it has come; what was put and removed before is durable when this returns."""
        id = _id(*stream, "", MARK)
        point = Point(id, *stream, key="", chunk=MARK, body=_encode(mark))

        async def write() -> None:
            table = await self._ready(name, 0)
            await self._engine.put(table, [point])
            await self._engine.settle(table)

        await self._again(write)

    async def near(self, near: Near) -> list[Record]:
        """Return the nearest records by vector, and by words where it can, as they were put."""
        if near.limit <= 0:
            return []
        return await self._asked(near.name, lambda table: self._near(table, near))

    async def reset(self) -> None:
        """Forget everything."""
        await self._look(0)
        for table in list(self._tables):
            await self._engine.drop(table)
        self._tables.clear()

    async def close(self) -> None:
        """Let go of files and connections."""
        self._closed = True
        await self._engine.close()

    async def _near(self, table: str, near: Near) -> list[Record]:
        import numpy as np

        vector = None
        if near.vector is not None and len(near.vector) == self._tables[table]:
            vector = np.frombuffer(near.vector, dtype=np.int8)
        where = Where(scope=near.scope.path, below=near.below, kinds=near.kinds)
        count = min(near.limit, MOST)
        by_vector, by_terms = await self._engine.nearest(table, where, vector, near.terms, count)
        while len(by_vector) == count < MOST and len(set(map(_head, by_vector))) < near.limit:
            # So many of the points are of the same records that there are more to be found.
            count = min(4 * count, MOST)
            by_vector, _ = await self._engine.nearest(table, where, vector, (), count)
        bodies = {point.id: point.body for point in (*by_vector, *by_terms) if point.chunk == HEAD}
        heads = [*list(dict.fromkeys(map(_head, by_vector)))[: near.limit], *map(_head, by_terms)]
        for some in _cut([id for id in dict.fromkeys(heads) if id not in bodies], KEYS):
            bodies |= {point.id: point.body for point in await self._engine.fetch(table, some)}
        return [_record(bodies[id]) for id in dict.fromkeys(heads) if id in bodies]

    async def _put(self, name: str, points: list[Point]) -> None:
        width = next((len(point.vector) for point in points if point.vector is not None), 0)
        table = await self._ready(name, width)
        held = self._tables[table]
        fitting = [point for point in (_fitted(point, held) for point in points) if point is not None]
        # A record that was given twice is there once, as it was given last.
        fitting = list({point.id: point for point in fitting}.values())
        for some in _batches(fitting):
            await self._engine.put(table, some)
        # A version with fewer points leaves those of the one before behind.
        for (stream, count), keys in _counted(fitting).items():
            for few in _cut(keys, KEYS):
                await self._engine.delete(table, _of(stream, few, first=count))

    async def _move(self, name: str, before: str, table: str) -> None:
        """Let a table take over what has come without vectors; marks come last, as ever."""
        found = await self._engine.read(before, Where(below=True, chunks=(MARK, LAST)))
        heads = [point for one in found if one.chunk == HEAD for point in _points(name, _record(one.body))]
        for some in _batches([*heads, *(one for one in found if one.chunk == MARK)]):
            await self._engine.put(table, some)
        await self._engine.drop(before)
        self._tables.pop(before, None)

    async def _table(self, name: str) -> str | None:
        """Return the table of an embedder, if there is one; that for vectors, where there are two."""
        self._check_open()
        found = self._of(name)
        if not found:
            await self._look(0)
            found = self._of(name)
        return max(found, key=self._tables.__getitem__, default=None)

    def _of(self, name: str) -> list[str]:
        return [table for table in self._tables if table.startswith(_stem(name))]

    async def _ready(self, name: str, dimensions: int) -> str:
        """Return the table of an embedder, which is made, or made anew for vectors, if it has to be."""
        async with self._making:
            before = await self._table(name)
            if before is not None and (self._tables[before] or not dimensions):
                return before
            table = f"{_stem(name)}{dimensions}"
            await self._engine.create(table, dimensions)
            self._tables[table] = dimensions
            if before is not None:
                await self._move(name, before, table)
            return table

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url} is closed")

    async def _look(self, seconds: float) -> None:
        """Find out which tables there are, unless it is known for no longer than that."""
        self._check_open()
        if time.monotonic() - self._looked >= seconds:
            named = [(table, _NAMED.fullmatch(table)) for table in await self._engine.tables()]
            self._tables = {table: int(found[1]) for table, found in named if found is not None}
            self._looked = time.monotonic()

    async def _asked(self, name: str, ask: Callable[[str], Awaitable[list[Result]]]) -> list[Result]:
        """Return what is found in the table of an embedder: nothing, if there is none."""
        table = await self._table(name)
        try:
            return [] if table is None else await ask(table)
        except MissingTableError:
            self._tables.clear()
            return []

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work on a table, and once more if another process has dropped the table."""
        try:
            await work()
        except MissingTableError:
            self._tables.clear()
            await work()


async def both(
    one: Coroutine[Any, Any, list[Point]], other: Coroutine[Any, Any, list[Point]]
) -> tuple[list[Point], list[Point]]:
    """Return what two questions find that are asked at the same time."""
    first, second = await asyncio.gather(one, other)
    return first, second


def spelled(terms: Sequence[int]) -> str:
    """Return terms as words, for engines that search texts."""
    return " ".join(f"{term:08x}" for term in terms)


_NAMED = re.compile(r"entries_[0-9a-f]{16}_(\d+)")


def _stem(name: str) -> str:
    """Return how the names of an embedder's tables begin, whatever characters its own name has."""
    return f"entries_{sha256(name.encode()).hexdigest()[:16]}_"


def _id(scope: str, kind: str, key: str, chunk: int) -> str:
    # Names hold no control characters, so nothing else comes out the same.
    return str(uuid5(_SPACE, f"{scope}\n{kind}\n{key}\n{chunk}"))


def _head(point: Point) -> str:
    return point.id if point.chunk == HEAD else _id(point.scope, point.kind, point.key, HEAD)


def _of(stream: Name, keys: Sequence[str], first: int = HEAD) -> Where:
    return Where(scope=stream[0], kinds=(stream[1],), keys=tuple(keys), chunks=(first, LAST))


def _points(name: str, record: Record) -> Iterator[Point]:
    entry = unpack(record.derived[name])
    vectors = () if entry.vectors is None else entry.vectors
    place = (record.scope.path, record.kind, record.key)
    head = Point(_id(*place, HEAD), *place, HEAD, _encode(record), terms=entry.terms.tolist())
    if not len(vectors):
        yield head
    for chunk, vector in enumerate(vectors):
        point = head if chunk == HEAD else Point(_id(*place, chunk), *place, chunk)
        point.vector = vector
        yield point


def _fitted(point: Point, dimensions: int) -> Point | None:
    """Return a point as a table can take it: vectors of other dimensions are none."""
    if point.vector is None or len(point.vector) == dimensions:
        return point
    point.vector = None
    return point if point.chunk == HEAD else None


def _counted(points: Sequence[Point]) -> dict[tuple[Name, int], list[str]]:
    """Return the keys of records, by their stream and how many points each has."""
    counts: dict[tuple[Name, str], int] = {}
    for point in points:
        counts[(point.scope, point.kind), point.key] = point.chunk + 1
    found: dict[tuple[Name, int], list[str]] = {}
    for (stream, key), count in counts.items():
        found.setdefault((stream, count), []).append(key)
    return found


def _batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    some: list[Point] = []
    size = 0
    for point in points:
        if some and (len(some) == POINTS or size + len(point.body) > BYTES):
            yield some
            some, size = [], 0
        some.append(point)
        size += len(point.body)
    if some:
        yield some


def _cut(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
