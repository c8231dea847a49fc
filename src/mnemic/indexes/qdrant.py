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
from ..store.nearest import CompanionMaker
from ..store.registry import StoreURL
from .companion_index import (
    LAST,
    MARK,
    CompanionIndex,
    MissingTableError,
    Place,
    Point,
    Where,
    check_folder,
    own_tables,
    place_of,
    refused,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PORT = 6334
"""Default gRPC port."""
SECONDS = 30
"""Timeout of a call, in seconds."""
PAGE = 1_000
"""How many points are read at once."""
K1, B, TYPICAL = 0.9, 0.4, 30
"""BM25 parameters, and the assumed average length of a text."""

_DENSE, _TERMS = "dense", "terms"
_PLAIN = models.PayloadSelectorExclude(exclude=["body"])


class QdrantEngine:
    """Stores points in the collections of a server or a folder."""

    def __init__(self, url: str, client: AsyncQdrantClient | QdrantClient, prefix: str = "") -> None:
        """Take a client; a sync one is called in threads, one call at a time."""
        self.url = url
        self._client: Any = client
        self._prefix = prefix
        self._remote = isinstance(client, AsyncQdrantClient)
        self._lock = threading.Lock()
        self._availability = Availability(url)

    async def tables(self) -> list[str]:
        found = await self._call("get_collections")
        return own_tables(self._prefix, [one.name for one in found.collections])

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
        given = await off_loop(lambda: [_struct(point) for point in points])
        await self._call("upsert", self._prefix + table, points=given, wait=True)

    async def delete(self, table: str, where: Where) -> None:
        selector = models.FilterSelector(filter=_filter(where))
        await self._call("delete", self._prefix + table, points_selector=selector, wait=True)

    async def read(self, table: str, where: Where, *, bodies: bool = True) -> list[Point]:
        found: list[Point] = []
        offset: Any = None
        while True:
            records, offset = await self._call(
                "scroll",
                self._prefix + table,
                scroll_filter=_filter(where),
                limit=PAGE,
                offset=offset,
                with_payload=True if bodies else _PLAIN,
            )
            found += map(_point, records)
            if offset is None:
                return found

    async def fetch(self, table: str, ids: Sequence[str]) -> list[Point]:
        return [_point(found) for found in await self._call("retrieve", self._prefix + table, list(ids))]

    async def nearest(
        self, table: str, where: Where, vector: NDArray[np.int8] | None, terms: Sequence[int], limit: int
    ) -> tuple[list[Point], list[Point]]:
        # Points without vectors, such as marks, are not found by them.
        settings: dict[str, Any] = {"filter": _filter(where, numbered=False), "limit": limit}
        settings["with_payload"] = True
        asked = []
        if vector is not None and vector.any():
            # The local mode compares everything, and warns about index parameters.
            wide = models.SearchParams(hnsw_ef=max(128, 2 * limit)) if self._remote else None
            asked.append(models.QueryRequest(query=_floats(vector), using=_DENSE, params=wide, **settings))
        if terms:
            sparse = models.SparseVector(indices=sorted(set(terms)), values=[1.0] * len(set(terms)))
            asked.append(models.QueryRequest(query=sparse, using=_TERMS, **settings))
        if not asked:
            return [], []
        answers = await self._call("query_batch_points", self._prefix + table, requests=asked)
        found = [[_point(one) for one in answer.points] for answer in answers]
        return (found[0] if asked[0].using == _DENSE else []), (found[-1] if terms else [])

    async def settle(self, table: str) -> None:
        """Do nothing: each write waits until it is durable."""

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        function = getattr(self._client, method)
        with self._availability.watch(), explained(self.url):
            if self._remote:
                return await function(*arguments, **named)

            def call() -> Any:
                with self._lock:
                    return function(*arguments, **named)

            return await off_loop(call)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Map errors of the client and the network to Mnemic errors."""
    try:
        yield
    except grpc.RpcError as error:
        code, detail = error.code().name, error.details()
        if code == "NOT_FOUND":
            raise MissingTableError(f"{url}: {detail}") from error
        raise refused(url, code, detail) from error
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
    place = place_of(url, PORT)
    engine = await _remote(place) if place.path is None else await off_loop(lambda: _local(place))
    index = CompanionIndex(engine)
    try:
        # An unreachable server fails at once.
        await engine.tables()
    except BaseException:
        await index.close()
        raise
    return index


async def _remote(place: Place) -> QdrantEngine:
    client = AsyncQdrantClient(
        host=place.host,
        grpc_port=place.port,
        prefer_grpc=True,
        https=place.tls,
        api_key=place.key,
        timeout=SECONDS,
        check_compatibility=False,
    )
    return QdrantEngine(place.url, client, place.prefix)


def _local(place: Place) -> QdrantEngine:
    folder = check_folder(place)
    with explained(place.url):
        # Its connections may be used by several threads, but by one at a time.
        client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)
    return QdrantEngine(place.url, client)


QDRANT = CompanionMaker(open=_open)

_INDEXES: dict[str, Any] = {
    # Points of one scope are queried together.
    "scope": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    "within": models.PayloadSchemaType.KEYWORD,
    "kind": models.PayloadSchemaType.KEYWORD,
    "key": models.PayloadSchemaType.KEYWORD,
    "chunk": models.PayloadSchemaType.INTEGER,
}


def _filter(where: Where, *, numbered: bool = True) -> models.Filter:
    must: list[Any] = []
    if where.scope or not where.below:
        field = "within" if where.below else "scope"
        must.append(models.FieldCondition(key=field, match=models.MatchValue(value=where.scope)))
    if where.kinds:
        must.append(models.FieldCondition(key="kind", match=models.MatchAny(any=list(where.kinds))))
    if where.keys is not None:
        must.append(models.FieldCondition(key="key", match=models.MatchAny(any=list(where.keys))))
    if numbered and where.chunks != (MARK, LAST):
        first, last = where.chunks
        must.append(models.FieldCondition(key="chunk", range=models.Range(gte=first, lte=last)))
    return models.Filter(must=must)


def _struct(point: Point) -> models.PointStruct:
    vectors: dict[str, Any] = {}
    if point.vector is not None and point.vector.any():
        vectors[_DENSE] = _floats(point.vector)
    if point.terms:
        counts = Counter(point.terms)
        norm = K1 * (1 - B + B * len(point.terms) / TYPICAL)
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
    import numpy as np

    floats: list[float] = vector.astype(np.float32).tolist()
    return floats
