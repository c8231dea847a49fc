"""Companion index in any LangChain vector store, through the methods that all of them have.

Texts go in and the vector store's own embeddings make the vectors: of a record, one document per piece of its text.
LangChain has no way to list documents or to delete them by a filter, so the store itself keeps which documents each
record has, and how far each stream was followed. These records outlive an erasure until the documents are deleted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from uuid import UUID, uuid4, uuid5

from msgspec import to_builtins

from ..checks import check_callable, shown
from ..errors import ClosedError, ConflictError, InvalidValueError, StoreError, StoreUnavailableError
from ..event_loop import off_loop
from ..kinds import INDEX_POSITION, INDEXED
from ..recall.index_entry import CHUNK, USE, chunks, readable
from ..records import Record, Ref, ScopePath, StreamName, known_scope
from ..store.availability import Availability
from ..store.protocol import Capability, LangChainFilter, LangChainIndex, Mark, Near, Store, VectorStore, scan_all
from ..store.query import Condition, Delete, Put, Scan, Write

__all__ = ["LangChainIndex", "VectorStore", "VectorStoreIndex", "open_vector_store"]

DOCUMENTS = 256
"""How many documents are added, deleted or read at once."""
MAX_DOCUMENTS = 10_000
"""Maximum number of documents per search; some databases have this limit."""
ATTEMPTS = 20
"""Maximum number of attempts on conflicts with other processes."""

SCOPE, KIND, KEY, WITHIN = "mnemic_scope", "mnemic_kind", "mnemic_key", "mnemic_within_"
"""Metadata of a document; WITHIN and a number n is the path of its scope's first n segments."""

Metadata: TypeAlias = Mapping[str, str | list[str]]
"""Metadata of documents: each name has this value, or one of these."""

_NAMESPACE = UUID("5a7c1c39-6f0b-5c86-8f43-1f0d3c1b7f02")
_IDENTITY = Ref(ScopePath(), INDEX_POSITION, "vector store")
_EVERYTHING = Scan(scope=ScopePath(), kinds=(INDEXED, INDEX_POSITION), below=True)
_MARKER = "This document marks the index of a Mnemic store. 5a7c1c396f0b"
_MARKER_ID = str(uuid5(_NAMESPACE, "marker"))
_INDEX = "mnemic_index"


async def open_vector_store(given: object, store: Store) -> VectorStoreIndex:
    """Return the index of a store in a vector store; raises InvalidValueError for anything else."""
    options = given if isinstance(given, LangChainIndex) else None
    found = options.vector_store if options else given
    if isinstance(found, type) or not isinstance(found, VectorStore):
        raise InvalidValueError(
            f"an index is a URL such as 'qdrant://host', or a LangChain vector store: {shown(given)}"
        )
    options = options or LangChainIndex(found)
    check_callable(options.filter, "the filter of a LangChainIndex")
    if Capability.RECORDS not in store.capabilities:
        raise InvalidValueError("this store keeps only some kinds of records, and cannot follow a vector store")
    index = VectorStoreIndex(options, store)
    await index.prepare()
    return index


class VectorStoreIndex:
    """A companion index whose documents are stored by a vector store."""

    def __init__(self, options: LangChainIndex, store: Store) -> None:
        self._vectors: Any = options.vector_store
        self._filter = options.filter or _known_filter(type(self._vectors))
        self._use_async = options.use_async
        self._store = store
        self.url: str = f"langchain:{type(self._vectors).__name__}"
        self._availability = Availability(self.url)
        # The local mode of Qdrant is not thread-safe.
        local = type(getattr(getattr(self._vectors, "client", None), "_client", None)).__name__ == "QdrantLocal"
        self._lock = threading.Lock() if local else None
        self._closed = False

    async def prepare(self) -> None:
        """Forget what the store knows of another vector store, or of this one before it was emptied."""
        documents = await self._search(_MARKER, 10, {})
        found = [id for one in documents if isinstance(id := one.metadata.get(_INDEX), str)]
        (recorded,) = await self._store.read([_IDENTITY])
        id = (recorded.data or {}).get("id") if recorded and isinstance(recorded.data, dict) else None
        if id is not None and id in found:
            return
        by_scope: dict[ScopePath, list[Ref]] = {}
        async for record in scan_all(self._store, _EVERYTHING):
            by_scope.setdefault(record.scope, []).append(record.ref)
        for refs in by_scope.values():
            for some in _split(refs):
                await self._store.write(Write(tuple(map(Delete, some))))
        new = found[0] if found else str(uuid4())
        if not found:
            await self._call("add_texts", [_MARKER], metadatas=[{_INDEX: new}], ids=[_MARKER_ID])
        await self._store.write(Write((Put(Record(*_of(_IDENTITY), data={"id": new})),)))

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        self._check_open()
        scan = Scan(scope=scope, kinds=(INDEX_POSITION,), below=True)
        positions = [one async for one in scan_all(self._store, scan) if one.ref != _IDENTITY]
        return {(one.scope.path, one.key): Mark(*_values(one)) for one in positions}

    async def put(self, name: str, records: Sequence[Record]) -> None:
        self._check_open()
        for start in range(0, len(records), DOCUMENTS):
            refs = list(dict.fromkeys(record.ref for record in records[start : start + DOCUMENTS]))
            texts = {
                r.ref: pieces for r in await self._store.read(refs) if r and (pieces := chunks(readable(r), CHUNK))
            }
            by_stream: dict[StreamName, dict[str, int]] = {}
            for ref, pieces in texts.items():
                by_stream.setdefault((ref.scope.path, ref.kind), {})[ref.key] = len(pieces)
            surplus = [id for stream, counts in by_stream.items() for id in await self._claim(stream, counts)]
            documents = [
                (text, _metadata(ref), id)
                for ref, pieces in texts.items()
                for text, id in zip(pieces, _ids(ref, len(pieces)), strict=True)
            ]
            for some in _split(documents):
                added, metadatas, ids = map(list, zip(*some, strict=True))
                await self._call("add_texts", added, metadatas=metadatas, ids=ids)
            await self._delete(surplus)

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        self._check_open()
        scope, kind = known_scope(stream[0]), stream[1]
        if keys is None:
            found = [one async for one in scan_all(self._store, _documents_of(stream))]
        else:
            refs = [_row_ref(Ref(scope, kind, key)) for key in keys]
            found = [one for some in _split(refs) for one in await self._store.read(some) if one is not None]
        await self._delete([id for one in found for id in _row_ids(one)])
        for some in _split([one.ref for one in found]):
            await self._store.write(Write(tuple(map(Delete, some))))
        if keys is None:
            await self._store.write(Write((Delete(Ref(scope, INDEX_POSITION, kind)),)))

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        self._check_open()
        return [_content(one)[0] async for one in scan_all(self._store, _documents_of(stream))]

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        position = Record(known_scope(stream[0]), INDEX_POSITION, stream[1], data=to_builtins(mark))
        await self._store.write(Write((Put(position),)))

    async def near(self, near: Near) -> list[Record]:
        self._check_open()
        if near.limit <= 0 or not near.text.strip():
            return []
        depth = len(near.scope.segments)
        where: dict[str, str | list[str]] = {}
        if depth or not near.below:
            where[f"{WITHIN}{depth}" if near.below else SCOPE] = near.scope.path
        if near.kinds:
            where[KIND] = list(near.kinds)
        count = min(near.limit, MAX_DOCUMENTS)
        while True:
            documents = await self._search(near.text, count, where)
            # A filter may be approximate, or missing.
            refs = [ref for one in documents if (ref := _ref(one.metadata)) is not None and _matches(ref, near)]
            unique = list(dict.fromkeys(refs))[: near.limit]
            if len(unique) == near.limit or len(documents) < count or count == MAX_DOCUMENTS:
                break
            count = min(4 * count, MAX_DOCUMENTS)
        by_stream: dict[tuple[ScopePath, str], list[str]] = {}
        for ref in unique:
            by_stream.setdefault((ref.scope, ref.kind), []).append(ref.key)
        scans = [
            Scan(scope=scope, kinds=(kind,), where=(_among(some),), derived=(near.name, USE), bodies=False)
            for (scope, kind), keys in by_stream.items()
            for some in _split(keys)
        ]
        pages = await asyncio.gather(*map(self._store.scan, scans))
        found = {record.ref: record for page in pages for record in page.items}
        return [found[ref] for ref in unique if ref in found]

    async def reset(self) -> None:
        self._check_open()
        streams = dict.fromkeys([
            (one.scope.path, one.labels["kind"] if one.kind == INDEXED else one.key)
            async for one in scan_all(self._store, _EVERYTHING)
            if one.ref != _IDENTITY
        ])  # fmt: skip
        for stream in streams:
            await self.remove(stream, None)

    async def close(self) -> None:
        """Refuse further calls; the vector store stays open."""
        self._closed = True

    async def _claim(self, stream: StreamName, counts: Mapping[str, int]) -> list[str]:
        """Write down the documents of some records before they are added; return those of longer earlier versions."""
        scope, kind = known_scope(stream[0]), stream[1]
        position = Ref(scope, INDEX_POSITION, kind)
        refs = [_row_ref(Ref(scope, kind, key)) for key in counts]
        attempts = ATTEMPTS
        while True:
            began, *before = await self._store.read([position, *refs])
            ops: list[Put] = []
            if began is None:
                # A stream without a mark would not be looked for if it were erased by another process.
                ops.append(Put(Record(*_of(position), data=to_builtins(Mark(0, 0, 0))), if_version=0))
            for ref, old, (key, count) in zip(refs, before, counts.items(), strict=True):
                # Another process may be adding the documents of an earlier version.
                most = count if old is None else max(count, _content(old)[1])
                row = Record(*_of(ref), labels={"kind": kind}, data={"key": key, "documents": most})
                ops.append(Put(row, if_version=0 if old is None else old.version))
            try:
                await self._store.write(Write(tuple(ops)))
            except ConflictError:
                attempts -= 1
                if not attempts:
                    raise
                continue
            pairs = zip(before, counts.values(), strict=True)
            return [id for old, count in pairs if old is not None for id in _row_ids(old)[count:]]

    async def _delete(self, ids: Sequence[str]) -> None:
        for some in _split(ids):
            await self._call("delete", list(some))

    async def _search(self, query: str, count: int, where: Metadata) -> list[Any]:
        options = self._filter(where) if where and self._filter is not None else {}
        return list(await self._call("similarity_search", query, k=count, **options))

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        with self._availability.watch(), mapped_errors(self.url):
            if self._use_async:
                return await getattr(self._vectors, f"a{method}")(*arguments, **named)
            function = getattr(self._vectors, method)

            def call() -> Any:
                if self._lock is None:
                    return function(*arguments, **named)
                with self._lock:
                    return function(*arguments, **named)

            return await off_loop(call)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url} is closed")


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Map the errors of a vector store, its client and its embeddings to Mnemic errors."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
            causes.append(cause)
        lost = any(
            isinstance(one, ConnectionError | TimeoutError)
            or any(word in type(one).__name__ for word in ("Connect", "Timeout", "Unavailable"))
            for one in causes
        )
        kind, hint = (StoreUnavailableError, "cannot be reached") if lost else (StoreError, "failed")
        raise kind(f"{url}: the vector store {hint} ({type(error).__name__}: {str(error)[:300]})") from error


# ---------------------------------------------------------------- filters


def _operators(where: Metadata) -> dict[str, Any]:
    tests = [{name: {"$in" if isinstance(value, list) else "$eq": value}} for name, value in where.items()]
    return {"filter": tests[0] if len(tests) == 1 else {"$and": tests}}


def _qdrant(where: Metadata) -> dict[str, Any]:
    from qdrant_client import models

    def test(name: str, value: str | list[str]) -> models.FieldCondition:
        match = models.MatchAny(any=value) if isinstance(value, list) else models.MatchValue(value=value)
        return models.FieldCondition(key=f"metadata.{name}", match=match)

    return {"filter": models.Filter(must=[test(*one) for one in where.items()])}


def _weaviate(where: Metadata) -> dict[str, Any]:
    from weaviate.classes.query import Filter

    def test(name: str, value: str | list[str]) -> Any:
        found = Filter.by_property(name)
        return found.contains_any(value) if isinstance(value, list) else found.equal(value)

    return {"filters": Filter.all_of([test(*one) for one in where.items()])}


def _in_memory(where: Metadata) -> dict[str, Any]:
    def test(document: Any) -> bool:
        found = document.metadata
        return all(
            found.get(name) in value if isinstance(value, list) else found.get(name) == value
            for name, value in where.items()
        )

    return {"filter": test}


_FILTERS: dict[str, LangChainFilter] = {
    "langchain_chroma": _operators,
    "langchain_pinecone": _operators,
    "langchain_postgres": _operators,
    "langchain_qdrant": _qdrant,
    "langchain_weaviate": _weaviate,
    "langchain_core": _in_memory,
}
"""The filters of vector stores, by package."""


def _known_filter(kind: type) -> LangChainFilter | None:
    names = [one.__module__.partition(".")[0] for one in kind.__mro__ if one.__name__ != "VectorStore"]
    return next((_FILTERS[name] for name in names if name in _FILTERS), None)


# ---------------------------------------------------------------- documents


def _of(ref: Ref) -> tuple[ScopePath, str, str]:
    return ref.scope, ref.kind, ref.key


def _ids(ref: Ref, count: int) -> list[str]:
    # Names have no control characters, so the encoding is unambiguous.
    return [str(uuid5(_NAMESPACE, f"{ref.scope.path}\n{ref.kind}\n{ref.key}\n{n}")) for n in range(count)]


def _row_ref(ref: Ref) -> Ref:
    """Return the ref of the record that says which documents another record has."""
    return Ref(ref.scope, INDEXED, _ids(ref, 1)[0])


def _row_ids(row: Record) -> list[str]:
    key, count = _content(row)
    return _ids(Ref(row.scope, row.labels["kind"], key), count)


def _documents_of(stream: StreamName) -> Scan:
    where = (Condition("labels.kind", "eq", stream[1]),)
    return Scan(scope=known_scope(stream[0]), kinds=(INDEXED,), where=where)


def _content(row: Record) -> tuple[str, int]:
    data: Any = row.data
    return data["key"], data["documents"]


def _values(position: Record) -> tuple[int, int, int]:
    data: Any = position.data
    return data["version"], data["last_seq"], data["count"]


def _metadata(ref: Ref) -> dict[str, str]:
    segments = ref.scope.segments
    within = {f"{WITHIN}{n}": "/".join(segments[:n]) for n in range(1, len(segments) + 1)}
    return {SCOPE: ref.scope.path, KIND: ref.kind, KEY: ref.key, **within}


def _ref(metadata: Mapping[str, Any]) -> Ref | None:
    scope, kind, key = (metadata.get(name) for name in (SCOPE, KIND, KEY))
    if not (isinstance(scope, str) and isinstance(kind, str) and isinstance(key, str)):
        return None  # of someone else
    return Ref(known_scope(scope), kind, key)


def _matches(ref: Ref, near: Near) -> bool:
    inside = near.scope.contains(ref.scope) if near.below else near.scope == ref.scope
    return inside and (not near.kinds or ref.kind in near.kinds)


def _among(keys: Sequence[str]) -> Condition:
    return Condition("key", "in", tuple(keys))


def _split(values: Sequence[Any]) -> Iterator[Any]:
    for start in range(0, len(values), DOCUMENTS):
        yield values[start : start + DOCUMENTS]
