"""The indexes of scopes in memory: brings them up to date with the store, and evicts the least recently used.

Entries are loaded from the store, and computed where they are missing. Every search first reads what this or
another process has written since.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ..errors import StoreError
from ..event_loop import off_loop, pause
from ..recall.index_entry import USE, EntryBuilder, intact_only, log, pack, unpack
from ..records import AUDIT_KINDS, Record, Ref, ScopePath, Stream, StreamName
from ..store.availability import cause_name
from ..store.protocol import MarksChanges, Store, all_streams, scan_all, scan_pages
from ..store.query import Derive, Scan, StreamScan, Write
from ..telemetry.calls import watch
from .layer import backend_of, whole_store
from .store_embedder import StoreEmbedder

if TYPE_CHECKING:
    from ..recall.scope_index import ScopeIndex

Result = TypeVar("Result")

PAGE = 4_000
"""How many records are indexed at once."""
REPAIR_SECONDS = 2.0
"""How long a search computes missing vectors before it continues without the rest."""
REPAIRED_AT_ONCE = 256
"""How many missing vectors are computed at once."""
TEXTS_AT_ONCE = 1000
"""How many texts are read at once to compute their entries."""
MAX_MARKERS = 100
"""How many change markers an index remembers."""
BUFFERED = 256
"""How many entries, and uses, are buffered before they are written."""
FEW = 8
"""Up to how many texts a fast embedder runs inline instead of in a thread."""


class KeyedLock:
    """A lock for each key, for any number of threads and event loops."""

    def __init__(self) -> None:
        self._owners: dict[Hashable, object] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[bool]:
        """Wait until nobody else holds the key, and hold it; gives whether somebody did."""
        me, waited = object(), False
        while self._owners.setdefault(key, me) is not me:
            waited = True
            await pause()
        try:
            yield waited
        finally:
            del self._owners[key]


class IndexCache:
    """Provides up-to-date indexes of scopes."""

    def __init__(self, below: Store, embedder: StoreEmbedder, max_bytes: int) -> None:
        """`max_bytes` bounds all indexes together; the least recently used is evicted."""
        self._below = below
        self._embedder = embedder
        self._max_bytes = max_bytes
        backend = backend_of(below)
        self._marks = backend if isinstance(backend, MarksChanges) else None
        self.after_fork()
        watch(self)

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """Yield the size of all indexes."""
        yield "index_bytes", "", self.nbytes

    def after_fork(self) -> None:
        """Start empty, in a child whose parent may hold the lock and writes the buffered entries."""
        self._lock = threading.Lock()
        self.updating: KeyedLock = KeyedLock()
        """Held while an index is brought up to date."""
        self.clear()

    def clear(self) -> None:
        """Evict all indexes, and entries computed for them."""
        with self._lock:
            self._indexes: OrderedDict[str, ScopeIndex] = OrderedDict()
            """By path, in order of their last search."""
            self._sizes: dict[str, int] = {}
            self.nbytes: int = 0
            """Total size of all indexes, maintained incrementally."""
            self._computed: list[Derive] = []

    def remove(self, stream: StreamName, keys: Sequence[str]) -> None:
        """Remove deleted records of a stream."""
        for index in self._covering(stream[0]):
            index.remove(stream, keys)

    def drop(self, scope: ScopePath) -> int:
        """Evict every index that covers a part of a scope, and what was computed for it; return how many."""
        with self._lock:
            paths = [
                path for path in self._indexes if scope.contains(ScopePath(path)) or ScopePath(path).contains(scope)
            ]
            for path in paths:
                del self._indexes[path]
                self.nbytes -= self._sizes.pop(path, 0)
            self._computed = [one for one in self._computed if not scope.contains(one.ref.scope)]
        return len(paths)

    def count_use(self, ref: Ref, moment: int) -> None:
        """Count a use of a record in all indexes."""
        for index in self._covering(ref.scope.path):
            index.count_use_of(ref, moment)

    def _covering(self, path: str) -> list[ScopeIndex]:
        """Return the indexes that cover a scope: its own, and those of the scopes above."""
        if not self._indexes:
            return []
        paths = [path]
        while path:
            path = path.rpartition("/")[0]
            paths.append(path)
        with self._lock:
            return [index for one in paths if (index := self._indexes.get(one)) is not None]

    async def current(self, scope: ScopePath, builder: EntryBuilder, seconds: float = REPAIR_SECONDS) -> ScopeIndex:
        """Return the index of a scope, up to date; `seconds` limits the time for missing vectors."""
        index = self._index_of(scope, builder.name)
        # Read before the streams are: a write in between changes it again.
        observer, marker = (0, None) if self._marks is None else await self._marks.change_marker()
        if marker is None or index.markers.get(observer) != marker:
            await self._update_all(index, scope, builder)
            if marker is not None:
                if len(index.markers) >= MAX_MARKERS:  # threads come and go, each with its connection
                    index.markers.clear()
                index.markers[observer] = marker
        if index.table.without_vectors and builder.embedder is not None:
            await self._add_vectors(index, builder, seconds)
        return index

    async def _update_all(self, index: ScopeIndex, scope: ScopePath, builder: EntryBuilder) -> None:
        """Bring the index of a scope up to date with all streams."""
        known, listed = set(index.table.versions), set()
        outdated: list[Stream] = []
        async for stream in all_streams(self._below, StreamScan(scope=scope, empty=True)):
            if stream.kind in AUDIT_KINDS:
                continue  # without text, and as many records as there were changes
            listed.add(stream.name)
            index.set_expiry(stream)
            if not _is_current(index, stream):
                outdated.append(stream)
        if outdated:
            async with self.updating.hold(index):
                outdated = [stream for stream in outdated if not _is_current(index, stream)]
                if index.table.versions:
                    for stream in outdated:
                        await self._update(index, stream, builder)
                else:
                    await self._load(index, scope, outdated, builder)
        # Streams found by another search since the listing are not gone.
        index.forget(known - listed)

    async def _load(self, index: ScopeIndex, scope: ScopePath, streams: list[Stream], builder: EntryBuilder) -> None:
        """Index all records of a scope, of which nothing is indexed: many streams at once, as most are short."""
        index.expect(sum(stream.count for stream in streams))
        waiting, begun = {stream.name: stream for stream in streams}, dict[StreamName, Stream]()
        kinds = tuple({stream.kind for stream in streams})
        everything = Scan(scope=scope, kinds=kinds, below=True, bodies=False, limit=PAGE, derived=(builder.name, USE))
        async for records in scan_pages(self._below, everything):
            parts: list[tuple[Stream, list[Record], bool]] = []
            for name, some in groupby(records, lambda record: (record.scope.path, record.kind)):
                first = name in waiting
                if first:
                    begun[name] = waiting.pop(name)
                if name in begun:  # otherwise it was made since
                    parts.append((begun[name], list(some), first))
            await self._add(index, parts, builder)
        await self._add(index, [(stream, [], True) for stream in waiting.values()], builder)
        for stream in streams:
            await self._settle(index, stream)

    def _index_of(self, scope: ScopePath, name: str) -> ScopeIndex:
        from ..recall.scope_index import ScopeIndex

        with self._lock:
            index = self._indexes.get(scope.path)
            if index is None or index.name != name or index.table.mostly_deleted:
                index = self._indexes[scope.path] = ScopeIndex(name)
            self._indexes.move_to_end(scope.path)
            return index

    def update_size(self, scope: ScopePath, index: ScopeIndex) -> None:
        """Update the size of an index after a search, and evict others if necessary."""
        size = index.nbytes
        with self._lock:
            if self._indexes.get(scope.path) is not index:
                return  # evicted or recreated meanwhile
            self.nbytes += size - self._sizes.get(scope.path, 0)
            self._sizes[scope.path] = size
            while self.nbytes > self._max_bytes and len(self._indexes) > 1:
                oldest, _ = self._indexes.popitem(last=False)
                self.nbytes -= self._sizes.pop(oldest, 0)

    async def _update(self, index: ScopeIndex, stream: Stream, builder: EntryBuilder) -> None:
        """Bring the index up to date with a stream."""
        since = index.table.indexed_version(stream)
        changed = replace(_records_of(stream), after_version=since, derived=(builder.name, USE))
        page = await self._below.scan(changed)
        await self._add(index, [(stream, list(page.items), not since)], builder)
        while page.cursor is not None:
            page = await self._below.scan(replace(changed, cursor=page.cursor))
            await self._add(index, [(stream, list(page.items), False)], builder)
        await self._settle(index, stream)

    async def _settle(self, index: ScopeIndex, stream: Stream) -> None:
        """Remove records that are gone from the index, which then has a stream as it was listed."""
        if index.count(stream) != stream.count:
            index.retain(stream, [record.seq async for record in scan_all(self._below, _records_of(stream))])
        index.set_version(stream)

    async def _add(
        self, index: ScopeIndex, parts: Sequence[tuple[Stream, list[Record], bool]], builder: EntryBuilder
    ) -> None:
        """Index records of streams, each with whether the stream's older records are dropped."""
        from ..recall.scope_index import StreamPart

        records = [record for _, some, _ in parts for record in some]
        packed = intact_only([record.derived.get(builder.name) for record in records])
        missing = [record for record, entry in zip(records, packed, strict=True) if entry is None]
        # A slow embedder computes vectors later, within the time limit of a search.
        complete, partial = await self.compute(missing, builder, vectors=builder.instant)
        if missing:
            entries = {record.ref: entry for record, entry in (*complete, *partial)}
            packed = [entry or entries.get(r.ref) for r, entry in zip(records, packed, strict=True)]
        if builder.instant:
            self._computed += [Derive(r.ref, builder.name, entry, r.version) for r, entry in complete]
            if len(self._computed) >= BUFFERED:
                await self.write_computed()
        rest = iter(packed)
        given = [StreamPart(stream, some, [*islice(rest, len(some))], first) for stream, some, first in parts]

        def add() -> None:
            index.add(given, width=builder.dimensions, embedding=builder.embedder is not None)

        # For a few, a thread would be slower.
        if len(records) < 50:
            add()
        else:
            await off_loop(add)

    async def compute(
        self, records: Sequence[Record], builder: EntryBuilder, *, vectors: bool = True
    ) -> tuple[list[tuple[Record, bytes]], list[tuple[Record, bytes]]]:
        """Read the texts of records and compute their entries: complete ones, and ones that lack vectors.

        Vectors are missing if they are not wanted or the embedder failed. Records without text have no entry.
        """
        complete: list[tuple[Record, bytes]] = []
        partial: list[tuple[Record, bytes]] = []
        for start in range(0, len(records), TEXTS_AT_ONCE):
            read = await self._below.read([record.ref for record in records[start : start + TEXTS_AT_ONCE]])
            texts = [record for record in read if record is not None and (record.text or record.title)]

            def build(texts: list[Record] = texts) -> None:
                built = builder.build(texts) if vectors else [None] * len(texts)
                for record, entry in zip(texts, built, strict=True):
                    (partial if entry is None else complete).append((record, entry or pack(record, None)))

            await in_thread(builder, len(texts), build)
        return complete, partial

    async def write_computed(self) -> None:
        """Store the entries computed for searches; losing them only costs recomputing."""
        computed, self._computed = self._computed, []
        await self.store_entries(computed)

    async def store_entries(self, ops: Sequence[Derive]) -> None:
        """Store entries computed for a search, if the store is writable."""
        if ops:
            try:
                await self._embedder.builder(writing=True)
            except StoreError:
                return
            await try_to_write(whole_store(self._below), ops)

    async def _add_vectors(self, index: ScopeIndex, builder: EntryBuilder, seconds: float) -> None:
        """Compute and store missing vectors, newest first, within the time limit of a search."""
        until = time.monotonic() + seconds
        while index.table.without_vectors and time.monotonic() < until:
            some = dict(sorted(index.table.without_vectors.items(), reverse=True)[:REPAIRED_AT_ONCE])
            records = await self._below.read([index.table.ref(n) for n in some])
            unchanged = {
                n: record
                for (n, version), record in zip(some.items(), records, strict=True)
                if record is not None and version in (0, record.version)
            }
            built = await off_loop(lambda unchanged=unchanged: builder.build(list(unchanged.values())))  # type: ignore[misc]
            if unchanged and all(entry is None for entry in built):
                return
            ops = []
            with index.lock:
                for n in some:
                    index.table.without_vectors.pop(n, None)
                for (n, record), entry in zip(unchanged.items(), built, strict=True):
                    vectors = None if entry is None else unpack(entry).vectors
                    if entry is not None and vectors is not None and index.attach(n, vectors):
                        ops.append(Derive(record.ref, builder.name, entry, record.version))
            await self.store_entries(ops)


def _records_of(stream: Stream) -> Scan:
    return Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, limit=PAGE)


def _is_current(index: ScopeIndex, stream: Stream) -> bool:
    since = index.table.indexed_version(stream)
    return bool(since) and since >= stream.version


async def in_thread(builder: EntryBuilder, size: int, work: Callable[[], Result]) -> Result:
    """Run CPU-bound work, in a thread if it would block an event loop."""
    # A model is loaded on first use, which is always slow.
    ready = builder.instant and (builder.embedder is None or builder.dimensions)
    return work() if ready and size <= FEW else await off_loop(work)


async def try_to_write(store: Store, ops: Sequence[Derive]) -> None:
    """Write computed data, scope by scope; a failure is ignored."""
    by_scope: dict[ScopePath, list[Derive]] = {}
    for op in ops:
        by_scope.setdefault(op.ref.scope, []).append(op)
    for some in by_scope.values():
        try:
            await store.write(Write(tuple(some)))
        except StoreError as error:
            log.warning("what was computed for recall could not be kept (%s)", cause_name(error))
