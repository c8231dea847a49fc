"""Milvus companion index: a server, or Milvus Lite in a folder, for one process at a time.

Both use the same protocol: Milvus Lite is a server within this process, on a local port. Where possible, every
vector that passes the filter is compared, because an approximate index would miss results under a filter. Words
use Milvus' full-text search.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, Function, FunctionType, MilvusClient, MilvusException
from pymilvus.exceptions import ConnectionConfigException, ParamError

from ..errors import (
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
)
from ..event_loop import off_loop
from ..store.availability import Availability
from ..store.registry import CompanionFactory, StoreURL
from .companion_index import MAX_POINTS, CompanionIndex, MissingTableError, Point, PointFilter, as_words, open_index
from .location import Location, grpc_error, parse_location

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Result = TypeVar("Result")

PORT = 19530
"""Default port of a server."""
SECONDS = 30.0
"""Timeout of a call, in seconds."""
PAGE = 1_000
"""How many points are read at once."""
PIECE, PIECES = 15_000, 1_024
"""Maximum characters of a Milvus text field, and maximum number of parts of a record."""
WORDS = 65_000
"""Maximum characters of searchable words."""
UNFLUSHED = 500
"""How many points stay in Milvus Lite's log, which is slow to search, before they are flushed."""

LOST, RELEASED = 2, 101
"""Error codes: no connection; collection not loaded."""

_COLUMNS = ["id", "scope", "kind", "key", "chunk"]
_users: Counter[Path] = Counter()
"""Number of open indexes in this process per folder."""
_lock = threading.Lock()


class MilvusDatabase:
    """Stores points in the collections of a server or a folder."""

    def __init__(self, location: Location) -> None:
        self.url: str = location.url
        self._location = location
        self._prefix = location.prefix
        self._client: Any = None
        self._connecting = threading.Lock()
        self._availability = Availability(location.url)
        self._loaded: set[str] = set()
        self._unflushed: dict[str, int] = {}

    async def tables(self) -> list[str]:
        return self._location.own_tables(await self._call(lambda client: client.list_collections(timeout=SECONDS)))

    async def create(self, table: str, dimensions: int) -> None:
        await self._call(lambda client: _create(client, self._prefix + table, dimensions))

    async def drop(self, table: str) -> None:
        self._loaded.discard(table)
        self._unflushed.pop(table, None)
        await self._call(lambda client: client.drop_collection(self._prefix + table, timeout=SECONDS))

    async def put(self, table: str, points: Sequence[Point]) -> None:
        def write(client: Any, name: str) -> None:
            # A table's name ends with its dimension.
            client.upsert(name, _rows(points, int(name.rpartition("_")[2])), timeout=SECONDS)

        await self._on(table, write)
        self._unflushed[table] = self._unflushed.get(table, 0) + len(points)

    async def delete(self, table: str, where: PointFilter) -> None:
        expression = _expression(where)
        await self._on(table, lambda client, name: client.delete(name, filter=expression, timeout=SECONDS))

    async def read(self, table: str, where: PointFilter, *, bodies: bool = True) -> list[Point]:
        columns = [*_COLUMNS, "body"] if bodies else _COLUMNS
        query: dict[str, Any] = {"filter": _expression(where), "output_fields": columns, "timeout": SECONDS}

        def read(client: Any, name: str) -> list[Point]:
            rows = client.query(name, limit=MAX_POINTS, **query)
            if len(rows) < MAX_POINTS:
                return [_point(row) for row in rows]
            found: list[Point] = []
            pages = client.query_iterator(name, batch_size=PAGE, **query)
            try:
                while rows := pages.next():
                    found += map(_point, rows)
            finally:
                pages.close()
            return found

        return await self._on(table, read)

    async def by_vector(self, table: str, where: PointFilter, vector: NDArray[np.int8], limit: int) -> list[Point]:
        # Milvus requires a vector, so a point without one gets zeros.
        condition = f"dense == true and {_expression(where)}"
        return await self._search(table, "vector", vector.astype("float32").tolist(), condition, limit)

    async def by_terms(self, table: str, where: PointFilter, terms: Sequence[int], limit: int) -> list[Point]:
        return await self._search(table, "terms", as_words(terms), _expression(where), limit)

    async def flush(self, table: str) -> None:
        # A server does this by itself, and rejects the request.
        if self._location.path is not None and self._unflushed.get(table, 0) >= UNFLUSHED:
            self._unflushed[table] = 0
            await self._on(table, lambda client, name: client.flush(name, timeout=SECONDS))

    async def close(self) -> None:
        await off_loop(self._release)

    async def _search(self, table: str, field: str, query: Any, condition: str, limit: int) -> list[Point]:
        def search(client: Any, name: str) -> list[Point]:
            (hits,) = client.search(
                name,
                [query],
                anns_field=field,
                filter=condition,
                limit=limit,
                output_fields=[*_COLUMNS, "body"],
                timeout=SECONDS,
            )
            return [_point(hit["entity"]) for hit in hits]

        return await self._on(table, search)

    async def _on(self, table: str, work: Callable[[Any, str], Result]) -> Result:
        """Run `work` on a collection, loaded first if necessary."""
        name = self._prefix + table

        def done(client: Any) -> Result:
            if table in self._loaded:
                try:
                    return work(client, name)
                except MilvusException as error:
                    if error.code != RELEASED:
                        raise
            client.load_collection(name, timeout=SECONDS)
            self._loaded.add(table)
            return work(client, name)

        try:
            return await self._call(done)
        except MissingTableError:
            self._loaded.discard(table)
            raise

    async def _call(self, work: Callable[[Any], Result]) -> Result:
        with self._availability.watch(), mapped_errors(self.url):
            return await off_loop(lambda: self._called(work))

    def _called(self, work: Callable[[Any], Result]) -> Result:
        with self._connecting:
            if self._client is None:
                self._client = _connect(self._location)
            client = self._client
        try:
            return work(client)
        except (grpc.RpcError, MilvusException) as error:
            if isinstance(error, grpc.RpcError) or error.code == LOST:
                # A broken connection stays broken, so the next call opens another.
                with self._connecting:
                    if self._client is client:
                        self._client = None
                        client.close()
            raise

    def _release(self) -> None:
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        if (path := self._location.path) is not None:
            with _lock:
                _users[path] -= 1
                if not _users[path]:
                    server_manager_instance.release_server(str(path))


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Map errors of the client and the network to Mnemic errors."""
    try:
        yield
    except grpc.RpcError as error:
        raise grpc_error(url, error.code().name, error.details()) from error
    except ConnectionConfigException as error:
        hint = "the folder cannot be opened: another process has it open, or it is not Milvus Lite's"
        raise StoreBusyError(f"{url}: {hint} ({error.message})") from error
    except ParamError as error:
        raise InvalidValueError(f"{url}: {error.message}") from error
    except MilvusException as error:
        kind, hint = _CODES.get(int(error.code), (StoreError, "Milvus refused a request"))
        message = str(error.message)
        if any(text in message for text in _DENIED):
            kind, hint = StorePermissionError, _KEY
        raise kind(f"{url}: {hint} ({message[:300]})") from error


_DENIED = ("auth check failure", "UNAUTHENTICATED", "PERMISSION_DENIED", "permission deny")
_GONE = "the collection is not there"
_BUSY = "the server holds requests back; try again later"
_FULL = "the server refuses to write: its memory, its disk or a quota is used up"
_KEY = "the server wants another user, password or key"
_CODES: dict[int, tuple[type[StoreError], str]] = {
    LOST: (StoreUnavailableError, "the server cannot be reached"),
    3: (StoreFullError, _FULL),
    4: (StoreBusyError, _BUSY),
    7: (StoreFullError, _FULL),
    8: (StoreBusyError, _BUSY),
    9: (StoreFullError, _FULL),
    12: (StoreBusyError, _BUSY),
    100: (MissingTableError, _GONE),
    RELEASED: (StoreUnavailableError, "the collection is not loaded"),
    102: (StoreFullError, _FULL),
    103: (StoreUnavailableError, "the collection is still being loaded; try again later"),
    106: (StoreUnavailableError, "the collection is being recovered; try again later"),
    250: (StoreFullError, _FULL),
    1400: (StorePermissionError, _KEY),
    1401: (StorePermissionError, _KEY),
    1800: (StorePermissionError, _KEY),
}
"""Meaning of Milvus error codes."""


async def _open(url: StoreURL) -> CompanionIndex:
    location = parse_location(url, PORT, ".db")
    if location.path is not None:
        with _lock:
            _users[location.path] += 1
    return await open_index(MilvusDatabase(location))


def _connect(location: Location) -> Any:
    # Shared connections are never closed.
    if location.path is not None:
        with _lock:
            return MilvusClient(str(location.path), timeout=SECONDS, dedicated=True)
    scheme = "https" if location.tls else "http"
    token = f"{location.user}:{location.key}" if location.user else location.key or ""
    return MilvusClient(f"{scheme}://{location.host}:{location.port}", token=token, timeout=SECONDS, dedicated=True)


MILVUS = CompanionFactory(open=_open)


def _create(client: Any, name: str, dimensions: int) -> None:
    if not client.has_collection(name, timeout=SECONDS):
        schema = _schema(dimensions)
        try:
            client.create_collection(name, schema=schema, consistency_level="Strong", timeout=SECONDS)
        except MilvusException:
            # Another process may have been faster.
            if not client.has_collection(name, timeout=SECONDS):
                raise
    indexes = client.prepare_index_params()
    indexes.add_index("terms", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    if dimensions:
        indexes.add_index("vector", index_type="FLAT", metric_type="COSINE")
    for field in ("scope", "kind", "key", "chunk"):
        indexes.add_index(field, index_type="INVERTED")
    # Polling reports an index only twice a second; for an empty collection it is ready at once.
    client.create_index(name, indexes, sync=False, timeout=SECONDS)


def _schema(dimensions: int) -> Any:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=36)
    schema.add_field("scope", DataType.VARCHAR, max_length=16_000)
    schema.add_field("kind", DataType.VARCHAR, max_length=200)
    schema.add_field("key", DataType.VARCHAR, max_length=4_000)
    schema.add_field("chunk", DataType.INT16)
    schema.add_field("dense", DataType.BOOL)
    schema.add_field("body", DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=PIECES, max_length=65_000)
    schema.add_field(
        "words", DataType.VARCHAR, max_length=65_535, enable_analyzer=True, analyzer_params={"tokenizer": "standard"}
    )
    schema.add_field("terms", DataType.SPARSE_FLOAT_VECTOR)
    bm25 = Function(
        name="bm25", input_field_names=["words"], output_field_names=["terms"],
        function_type=FunctionType.BM25,
    )  # fmt: skip
    schema.add_function(bm25)
    if dimensions:
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
    return schema


def _rows(points: Sequence[Point], dimensions: int) -> list[dict[str, Any]]:
    rows = []
    for point in points:
        body = point.body.decode()
        row: dict[str, Any] = {name: getattr(point, name) for name in _COLUMNS}
        row["body"] = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
        row["words"] = as_words(point.terms[: WORDS // 9])
        row["dense"] = point.direction is not None
        if dimensions:
            row["vector"] = [0.0] * dimensions if point.vector is None else point.vector.astype("float32")
        rows.append(row)
    return rows


def _point(row: Any) -> Point:
    body = "".join(row.get("body") or ()).encode()
    return Point(row["id"], row["scope"], row["kind"], row["key"], int(row["chunk"]), body)


def _expression(where: PointFilter) -> str:
    return where.expression(lambda value: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"', "[]")
