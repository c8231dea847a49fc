"""Companion index over any engine that stores points.

A record is one point per vector; the first, its head, also has the record's terms and the record itself. The
position in a stream is a point without vector or terms, so that a stream and its mark are deleted together. Each
embedder has its own table, named after its entries and dimension; points stored before any vectors existed move
there later.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote
from uuid import UUID, uuid5

from msgspec import Struct, field, json

from ..errors import (
    ClosedError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from ..event_loop import off_loop
from ..recall.index_entry import unpack
from ..records import Record, ScopePath
from ..store.nearest import Mark, Near
from ..store.planning import StreamName
from ..store.registry import StoreURL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Result = TypeVar("Result")

MARK, HEAD, LAST = -1, 0, 32_767
"""Numbers of a mark and of a record's first point, and the largest number of a point."""
POINTS, BYTES = 500, 4 * 1024 * 1024
"""How many points, and approximately how many bytes of records, an engine gets at once."""
KEYS = 500
"""Maximum number of keys in a condition."""
MOST = 16_000
"""Maximum number of points per query; some engines have a limit not far above."""
LOOKED_AGAIN = 5.0
"""How many seconds the list of tables is cached."""

_SPACE = UUID("6f1f7e0a-6a3c-5d0e-9b57-3f6f1b0c2d11")
_encode = json.Encoder().encode
_record = json.Decoder(Record).decode
_mark = json.Decoder(Mark).decode


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


class Where(Struct, frozen=True, kw_only=True):
    """A filter on points: all given fields must match."""

    scope: str = ""
    below: bool = False
    """Whether scopes below are included."""
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    chunks: tuple[int, int] = (HEAD, LAST)
    """First and last point number."""


class Engine(Protocol):
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

    async def delete(self, table: str, where: Where) -> None:
        """Delete points."""
        ...

    async def read(self, table: str, where: Where, *, bodies: bool = True) -> list[Point]:
        """Return all matching points, in any order."""
        ...

    async def fetch(self, table: str, ids: Sequence[str]) -> list[Point]:
        """Return the existing points with these ids, in any order."""
        ...

    async def nearest(
        self, table: str, where: Where, vector: NDArray[np.int8] | None, terms: Sequence[int], limit: int
    ) -> tuple[list[Point], list[Point]]:
        """Return the nearest points by vector and, if supported, by terms; at most `limit` of each."""
        ...

    async def settle(self, table: str) -> None:
        """Wait until writes are durable, and compact if it is due."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...


class CompanionIndex:
    """A companion index whose points are stored by an engine."""

    def __init__(self, engine: Engine) -> None:
        self.url: str = engine.url
        self._engine = engine
        self._tables: dict[str, int] = {}
        """Dimensions of the existing tables, by name."""
        self._looked = float("-inf")
        self._making = asyncio.Lock()
        self._closed = False

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        """Return how far the index has followed the streams of a scope and below."""
        where = Where(scope=scope.path, below=True, chunks=(MARK, MARK))
        found: dict[StreamName, Mark] = {}
        for point in await self._asked(name, lambda table: self._engine.read(table, where)):
            stream, mark = (point.scope, point.kind), _mark(point.body)
            # An engine without unique keys may have a mark twice, if two processes created it at once.
            if stream not in found or mark.version < found[stream].version:
                found[stream] = mark
        return found

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Add records, replacing older versions with the same scope, kind and key."""
        if records:
            points = await off_loop(lambda: [point for record in records for point in _points(name, record)])
            await self._again(lambda: self._put(name, points))

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove records of a stream for every embedder; with None, the whole stream and its marks."""
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

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        """Return the keys of a stream that the index contains."""
        where = Where(scope=stream[0], kinds=(stream[1],), chunks=(HEAD, HEAD))
        heads = await self._asked(name, lambda table: self._engine.read(table, where, bodies=False))
        return list(dict.fromkeys(point.key for point in heads))

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        """Record how far the index has followed a stream; everything put or removed before is then durable."""
        id = _id(*stream, "", MARK)
        point = Point(id, *stream, key="", chunk=MARK, body=_encode(mark))

        async def write() -> None:
            table = await self._ready(name, 0)
            await self._engine.put(table, [point])
            await self._engine.settle(table)

        await self._again(write)

    async def near(self, near: Near) -> list[Record]:
        """Return the nearest records by vector and, where supported, by words, as they were put."""
        if near.limit <= 0:
            return []
        return await self._asked(near.name, lambda table: self._near(table, near))

    async def reset(self) -> None:
        """Delete the whole index."""
        await self._look(0)
        for table in list(self._tables):
            await self._engine.drop(table)
        self._tables.clear()

    async def close(self) -> None:
        """Close files and connections."""
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
            # So many points belong to the same records that there are more records to find.
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
        # A record given twice is stored once, in its last version.
        fitting = list({point.id: point for point in fitting}.values())
        for some in _batches(fitting):
            await self._engine.put(table, some)
        # A version with fewer points leaves those of the previous one behind.
        for (stream, count), keys in _counted(fitting).items():
            for few in _cut(keys, KEYS):
                await self._engine.delete(table, _of(stream, few, first=count))

    async def _move(self, name: str, before: str, table: str) -> None:
        """Move points without vectors to the table for vectors; marks last."""
        found = await self._engine.read(before, Where(below=True, chunks=(MARK, LAST)))
        heads = [point for one in found if one.chunk == HEAD for point in _points(name, _record(one.body))]
        for some in _batches([*heads, *(one for one in found if one.chunk == MARK)]):
            await self._engine.put(table, some)
        await self._engine.drop(before)
        self._tables.pop(before, None)

    async def _table(self, name: str) -> str | None:
        """Return the table of an embedder; the one for vectors, if there are two."""
        self._check_open()
        found = self._of(name)
        if not found:
            await self._look(0)
            found = self._of(name)
        return max(found, key=self._tables.__getitem__, default=None)

    def _of(self, name: str) -> list[str]:
        return [table for table in self._tables if table.startswith(_stem(name))]

    async def _ready(self, name: str, dimensions: int) -> str:
        """Return the table of an embedder; create it, or recreate it for vectors, if necessary."""
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
        """Refresh the list of tables if it is older than this."""
        self._check_open()
        if time.monotonic() - self._looked >= seconds:
            named = [(table, _NAMED.fullmatch(table)) for table in await self._engine.tables()]
            self._tables = {table: int(found[1]) for table, found in named if found is not None}
            self._looked = time.monotonic()

    async def _asked(self, name: str, ask: Callable[[str], Awaitable[list[Result]]]) -> list[Result]:
        """Query the table of an embedder; empty if there is none."""
        table = await self._table(name)
        try:
            return [] if table is None else await ask(table)
        except MissingTableError:
            self._tables.clear()
            return []

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work on a table; repeat it once if another process has dropped the table."""
        try:
            await work()
        except MissingTableError:
            self._tables.clear()
            await work()


async def both(
    one: Coroutine[Any, Any, list[Point]], other: Coroutine[Any, Any, list[Point]]
) -> tuple[list[Point], list[Point]]:
    """Run two queries concurrently and return both results."""
    first, second = await asyncio.gather(one, other)
    return first, second


def spelled(terms: Sequence[int]) -> str:
    """Return terms as words, for engines that search text."""
    return " ".join(f"{term:08x}" for term in terms)


_NAMED = re.compile(r"entries_[0-9a-f]{16}_(\d+)")


def _stem(name: str) -> str:
    """Return the table name prefix of an embedder, safe for any characters."""
    return f"entries_{sha256(name.encode()).hexdigest()[:16]}_"


def _id(scope: str, kind: str, key: str, chunk: int) -> str:
    # Names have no control characters, so the encoding is unambiguous.
    return str(uuid5(_SPACE, f"{scope}\n{kind}\n{key}\n{chunk}"))


def _head(point: Point) -> str:
    return point.id if point.chunk == HEAD else _id(point.scope, point.kind, point.key, HEAD)


def _of(stream: StreamName, keys: Sequence[str], first: int = HEAD) -> Where:
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
    """Return a point without its vector if the dimension does not match."""
    if point.vector is None or len(point.vector) == dimensions:
        return point
    point.vector = None
    return point if point.chunk == HEAD else None


def _counted(points: Sequence[Point]) -> dict[tuple[StreamName, int], list[str]]:
    """Return the keys of records, by stream and number of points."""
    counts: dict[tuple[StreamName, str], int] = {}
    for point in points:
        counts[(point.scope, point.kind), point.key] = point.chunk + 1
    found: dict[tuple[StreamName, int], list[str]] = {}
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


COLLECTION = "mnemic"
"""Default collection."""

_COLLECTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Place(Struct, frozen=True, kw_only=True):
    """A parsed index URL; `url` has no key."""

    url: str
    path: Path | None = None
    """The folder, if the index is embedded."""
    host: str = ""
    port: int = 0
    key: str | None = None
    user: str | None = None
    """User name, if the key is a password."""
    prefix: str = ""
    """Prefix of its collection names on the server."""
    tls: bool = False

    def __repr__(self) -> str:
        """Return only the URL, without the key."""
        return f"Place({self.url!r})"


def place_of(url: StoreURL, port: int | None = None, suffix: str = "") -> Place:
    """Parse an index URL; it names a server if there is a default `port`.

    A folder's name has the `suffix`. Raises InvalidValueError for an invalid URL or unknown options.
    """
    split = url.split
    if not split.netloc.rpartition("@")[2]:
        url.take()
        name = unquote(split.path[1:])
        if not name.strip("/") or not name.endswith(suffix):
            example = f"{url.scheme}:///index{suffix}"
            raise InvalidValueError(f"{url} names no place: use {example}, or with four slashes an absolute path")
        # Absolute, because the working directory may change later.
        return Place(url=str(url), path=Path(name).absolute())
    if port is None:
        raise InvalidValueError(f"{url} names a server, and {url.scheme} is a folder: use {url.scheme}:///index")
    options = url.take(tls=_flag)
    collection = unquote(split.path.strip("/")) or COLLECTION
    if _COLLECTION.fullmatch(collection) is None:
        raise InvalidValueError(f"{url} names no collection: its name is made of letters, digits and '_', 100 at most")
    try:
        number = split.port or port
    except ValueError:
        raise InvalidValueError(f"{url} has a bad port: it is a number up to 65535") from None
    if not split.hostname:
        raise InvalidValueError(f"{url} names no host")
    user, key = unquote(split.username or "") or None, unquote(split.password or "") or None
    return Place(
        url=str(url),
        host=split.hostname,
        port=number,
        key=key or user,
        user=user if key else None,
        prefix=f"{collection}_",
        tls=bool(options.get("tls")),
    )


def own_tables(prefix: str, names: list[str]) -> list[str]:
    """Return the names of this index's tables among all collections of a server."""
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def check_folder(place: Place) -> Path:
    """Return the folder of an embedded index; raises a StoreError if it cannot be created."""
    path = place.path
    assert path is not None
    try:
        if not path.parent.is_dir():
            raise InvalidValueError(f"{place.url}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_dir():
            raise UnreadableStoreError(f"{place.url}: {path} is a file, and an index is a folder")
    except OSError as error:
        raise StorePermissionError(f"{place.url}: the folder cannot be opened ({error})") from None
    return path


_UNREACHED = "the server cannot be reached, or has gone"
_BUSY = "the server is too busy; try again later"
_DENIED = "the server does not permit it"
_KEY = "the server wants a key, or another one: give it in the URL, before the host and '@'"

STATUSES: dict[str, tuple[type[StoreError], str]] = {
    "UNAVAILABLE": (StoreUnavailableError, _UNREACHED),
    "DEADLINE_EXCEEDED": (StoreUnavailableError, "the server did not answer in time"),
    "CANCELLED": (StoreUnavailableError, _UNREACHED),
    "UNAUTHENTICATED": (StorePermissionError, _KEY),
    "PERMISSION_DENIED": (StorePermissionError, _DENIED),
    "RESOURCE_EXHAUSTED": (StoreBusyError, _BUSY),
    "ABORTED": (StoreBusyError, _BUSY),
    "UNIMPLEMENTED": (StoreError, "the server is of a version that lacks something, or of another kind"),
}
"""Meaning of gRPC status codes."""


def refused(url: str, code: str, detail: object) -> StoreError:
    """Return the Mnemic error for a gRPC status."""
    kind, hint = STATUSES.get(code, (StoreError, "the server refused a request"))
    return kind(f"{url}: {hint} ({detail})")


def _flag(text: str) -> bool:
    flags: dict[str, bool] = {"1": True, "true": True, "0": False, "false": False}
    return flags[text.lower()]
