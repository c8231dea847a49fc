"""Qdrant companion index: a server over gRPC, or the client's local mode in a folder.

Words are sparse vectors with inverse document frequencies per collection. The local mode compares everything in
Python and allows one process at a time: use it for trying things out.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse

from ..errors import StoreBusyError, StoreError, StoreUnavailableError, UnreadableStoreError
from ..event_loop import off_loop
from ..store.availability import Availability
from ..store.registry import CompanionFactory, StoreURL
from .companion_index import LAST, MARK, CompanionIndex, MissingTableError, Point, PointFilter, open_index
from .location import Location, grpc_error, parse_location

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PORT = 6334
"""Default gRPC port."""
SECONDS = 30
"""Timeout of a call, in seconds."""
PAGE = 1_000
"""How many points are read at once."""
K1, B, TYPICAL_LENGTH = 0.9, 0.4, 30
"""BM25 parameters, and the assumed average length of a text."""

_DENSE, _TERMS = "dense", "terms"
_WITHOUT_BODY = models.PayloadSelectorExclude(exclude=["body"])


class QdrantDatabase:
    """Stores points in the collections of a server or a folder."""

    def __init__(self, location: Location, client: AsyncQdrantClient | QdrantClient) -> None:
        """Take a client; a sync one is called in threads, one call at a time."""
        self.url: str = location.url
        self._location = location
        self._prefix = location.prefix
        self._client: Any = client
        self._remote = isinstance(client, AsyncQdrantClient)
        self._lock = threading.Lock()
        self._availability = Availability(location.url)

    async def tables(self) -> list[str]:
        found = await self._call("get_collections")
        return self._location.own_tables([one.name for one in found.collections])

    async def create(self, table: str, dimensions: int) -> None:
        name = self._prefix + table
        dense = models.VectorParams(
            size=max(dimensions, 1), distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16
        )
        try:
            await self._call(
                "create_collection",
                name,
                vectors_config={_DENSE: dense} if dimensions else {},
                sparse_vectors_config={_TERMS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            )
        except StoreError:
            # Another process may have been faster.
            if not await self._call("collection_exists", name):
                raise
        if self._remote:
            for field, schema in _INDEXES.items():
                await self._call("create_payload_index", name, field, field_schema=schema, wait=True)

    async def drop(self, table: str) -> None:
        await self._call("delete_collection", self._prefix + table)

    async def put(self, table: str, points: Sequence[Point]) -> None:
        structs = await off_loop(lambda: [_struct(point) for point in points])
        await self._call("upsert", self._prefix + table, points=structs, wait=True)

    async def delete(self, table: str, where: PointFilter) -> None:
        selector = models.FilterSelector(filter=_filter(where))
        await self._call("delete", self._prefix + table, points_selector=selector, wait=True)

    async def read(self, table: str, where: PointFilter, *, bodies: bool = True) -> list[Point]:
        found: list[Point] = []
        offset: Any = None
        while True:
            records, offset = await self._call(
                "scroll",
                self._prefix + table,
                scroll_filter=_filter(where),
                limit=PAGE,
                offset=offset,
                with_payload=True if bodies else _WITHOUT_BODY,
            )
            found += map(_point, records)
            if offset is None:
                return found

    async def by_vector(self, table: str, where: PointFilter, vector: NDArray[np.int8], limit: int) -> list[Point]:
        # The local mode compares everything, and warns about index parameters.
        params = models.SearchParams(hnsw_ef=max(128, 2 * limit)) if self._remote else None
        return await self._search(table, where, _DENSE, _floats(vector), limit, search_params=params)

    async def by_terms(self, table: str, where: PointFilter, terms: Sequence[int], limit: int) -> list[Point]:
        unique = sorted(set(terms))
        query = models.SparseVector(indices=unique, values=[1.0] * len(unique))
        return await self._search(table, where, _TERMS, query, limit)

    async def _search(
        self, table: str, where: PointFilter, using: str, query: Any, limit: int, **settings: Any
    ) -> list[Point]:
        answer = await self._call(
            "query_points",
            self._prefix + table,
            query=query,
            using=using,
            # Points without vectors, such as marks, are not found by them.
            query_filter=_filter(where, chunks=False),
            limit=limit,
            with_payload=True,
            **settings,
        )
        return [_point(found) for found in answer.points]

    async def flush(self, table: str) -> None:
        """Do nothing: each write waits until it is durable."""

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        function = getattr(self._client, method)
        with self._availability.watch(), mapped_errors(self.url):
            if self._remote:
                return await function(*arguments, **named)

            def call() -> Any:
                with self._lock:
                    return function(*arguments, **named)

            return await off_loop(call)


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Map errors of the client and the network to Mnemic errors."""
    try:
        yield
    except grpc.RpcError as error:
        code, detail = error.code().name, error.details()
        if code == "NOT_FOUND":
            raise MissingTableError(f"{url}: {detail}") from error
        raise grpc_error(url, code, detail) from error
    except ResourceExhaustedResponse as error:
        raise StoreBusyError(f"{url}: the server is too busy; try again later ({error})") from error
    except sqlite3.Error as error:
        raise UnreadableStoreError(f"{url}: the index cannot be read or written ({error})") from error
    except ValueError as error:
        # The local mode has no errors of its own.
        kind = MissingTableError if "not found" in str(error) else StoreError
        raise kind(f"{url}: {error}") from error
    except RuntimeError as error:
        kind = StoreBusyError if "already accessed" in str(error) else StoreUnavailableError
        raise kind(f"{url}: {error}") from error


async def _open(url: StoreURL) -> CompanionIndex:
    location = parse_location(url, PORT)
    client = _server_client(location) if location.path is None else await _local(location)
    return await open_index(QdrantDatabase(location, client))


def _server_client(location: Location) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        host=location.host,
        grpc_port=location.port,
        prefer_grpc=True,
        https=location.tls,
        api_key=location.key,
        timeout=SECONDS,
        check_compatibility=False,
    )


async def _local(location: Location) -> QdrantClient:
    with mapped_errors(location.url):
        # Its connections may be used by several threads, but by one at a time.
        return await off_loop(lambda: QdrantClient(path=str(location.path), force_disable_check_same_thread=True))


QDRANT = CompanionFactory(open=_open)

_INDEXES: dict[str, Any] = {
    # Points of one scope are queried together.
    "scope": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    "within": models.PayloadSchemaType.KEYWORD,
    "kind": models.PayloadSchemaType.KEYWORD,
    "key": models.PayloadSchemaType.KEYWORD,
    "chunk": models.PayloadSchemaType.INTEGER,
}


def _filter(where: PointFilter, *, chunks: bool = True) -> models.Filter:
    must: list[Any] = []
    if where.scope or not where.below:
        field = "within" if where.below else "scope"
        must.append(models.FieldCondition(key=field, match=models.MatchValue(value=where.scope)))
    if where.kinds:
        must.append(models.FieldCondition(key="kind", match=models.MatchAny(any=list(where.kinds))))
    if where.keys is not None:
        must.append(models.FieldCondition(key="key", match=models.MatchAny(any=list(where.keys))))
    if where.ids is not None:
        must.append(models.HasIdCondition(has_id=list(where.ids)))
    if chunks and where.chunks != (MARK, LAST):
        first, last = where.chunks
        must.append(models.FieldCondition(key="chunk", range=models.Range(gte=first, lte=last)))
    return models.Filter(must=must)


def _struct(point: Point) -> models.PointStruct:
    vectors: dict[str, Any] = {}
    if point.direction is not None:
        vectors[_DENSE] = _floats(point.direction)
    if point.terms:
        counts = Counter(point.terms)
        norm = K1 * (1 - B + B * len(point.terms) / TYPICAL_LENGTH)
        values = [count * (K1 + 1) / (count + norm) for count in counts.values()]
        vectors[_TERMS] = models.SparseVector(indices=list(counts), values=values)
    segments = point.scope.split("/") if point.scope else []
    return models.PointStruct(
        id=point.id,
        vector=vectors,
        payload={
            "scope": point.scope,
            "within": ["", *("/".join(segments[: n + 1]) for n in range(len(segments)))],
            "kind": point.kind,
            "key": point.key,
            "chunk": point.chunk,
            "body": point.body.decode(),
        },
    )


def _point(found: Any) -> Point:
    payload = found.payload
    body = payload.get("body", "").encode()
    return Point(str(found.id), payload["scope"], payload["kind"], payload["key"], payload["chunk"], body)


def _floats(vector: NDArray[np.int8]) -> list[float]:
    floats: list[float] = vector.astype("float32").tolist()
    return floats
