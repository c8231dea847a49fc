"""Cached in-memory indexes of scopes, kept in sync with the store.

Entries are loaded from the store, and computed where they are missing. Every search first reads what this or
another process has written since.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..errors import StoreError
from ..event_loop import off_loop, pause
from ..recall.index_entry import EntryBuilder, IndexEntry, intact, log, pack, unpack
from ..recall.strength import USE
from ..records import AUDIT_KIND, Record, Ref, ScopePath, Stream
from ..store.availability import name_of
from ..store.planning import StreamName
from ..store.protocol import Page, Store, all_streams, scan_all
from ..store.query import Derive, Op, Scan, StreamScan, Write
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
AT_ONCE = 1000
"""How many texts are read at once to compute their entries."""
HELD_BACK = 256
"""How many entries, and uses, are buffered before they are written."""
FEW = 8
"""Up to how many texts a fast embedder runs inline instead of in a thread."""


class Filled(Struct):
    """Records with their entries, how many entries were computed, and how many lack vectors because that failed."""

    records: list[Record]
    made: int
    failed: int


class IndexCache:
    """Provides up-to-date indexes of scopes."""

    def __init__(self, below: Store, owner: StoreEmbedder, max_bytes: int) -> None:
        """`max_bytes` bounds all indexes together; the least recently used is evicted."""
        self._below = below
        self._owner = owner
        self._max_bytes = max_bytes
        self.begin()

    def begin(self) -> None:
        """Reset the cache."""
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, ScopeIndex] = OrderedDict()
        """By path, in order of their last search."""
        self._sizes: dict[str, int] = {}
        self.nbytes: int = 0
        """Total size of all indexes, maintained incrementally."""
        self._made: list[Derive] = []

    def clear(self) -> None:
        """Evict all indexes, and entries computed for them."""
        with self._lock:
            self._indexes.clear()
            self._sizes.clear()
            self.nbytes = 0
            self._made.clear()

    def let_go(self, stream: StreamName, keys: Sequence[str]) -> None:
        """Remove deleted records of a stream."""
        for index in self._holding(stream[0]):
            index.let_go(stream, keys)

    def use_of(self, ref: Ref, moment: int) -> None:
        """Count a use of a record in all indexes."""
        for index in self._holding(ref.scope.path):
            index.use_of(ref, moment)

    def _holding(self, path: str) -> list[ScopeIndex]:
        """Return the indexes that cover a scope: its own, and those of the scopes above."""
        if not self._indexes:
            return []
        above = [path]
        while path:
            path = path.rpartition("/")[0]
            above.append(path)
        with self._lock:
            return [index for one in above if (index := self._indexes.get(one)) is not None]

    async def ready(self, scope: ScopePath, maker: EntryBuilder, seconds: float = REPAIR_SECONDS) -> ScopeIndex:
        """Return the index of a scope, up to date."""
        index = self._index_of(scope, maker.name)
        known, there = set(index.shard.versions), set()
        async for stream in all_streams(self._below, StreamScan(scope=scope, empty=True)):
            if stream.kind == AUDIT_KIND:
                continue  # without text, and as many records as there were changes
            there.add((stream.scope.path, stream.kind))
            index.expect(stream)
            while not await self._take_in(index, stream, maker):
                # Another search has indexed part of it meanwhile.
                continue
        # Streams found by another search since the listing are not gone.
        index.forget(known - there)
        if index.shard.lacking and maker.embedder is not None:
            await self._make_up(index, maker, seconds)
        return index

    def _index_of(self, scope: ScopePath, name: str) -> ScopeIndex:
        from ..recall.scope_index import ScopeIndex

        with self._lock:
            index = self._indexes.get(scope.path)
            if index is None or index.name != name or index.shard.worn:
                index = self._indexes[scope.path] = ScopeIndex(name)
            self._indexes.move_to_end(scope.path)
            return index

    def searched(self, scope: ScopePath, index: ScopeIndex) -> None:
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

    async def _take_in(self, index: ScopeIndex, stream: Stream, maker: EntryBuilder) -> bool:
        """Bring the index up to date with a stream; return False if another search is doing it."""
        since = index.shard.seen(stream)
        if since and since >= stream.version:
            return True
        if not index.claim(stream):
            await pause()
            return False
        try:
            everything = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, limit=PAGE)
            changed = replace(everything, after_version=since, derived=(maker.name, USE))
            page = await self._below.scan(changed)
            await self._add(index, stream, page, maker, first=not since)
            while page.cursor is not None:
                page = await self._below.scan(replace(changed, cursor=page.cursor))
                await self._add(index, stream, page, maker, first=False)
            if index.count(stream) != stream.count:
                seqs = [record.seq async for record in scan_all(self._below, everything)]
                index.keep(stream, seqs)
            index.reached(stream)
            return True
        finally:
            index.release(stream)

    async def _add(
        self, index: ScopeIndex, stream: Stream, page: Page[Record], maker: EntryBuilder, *, first: bool
    ) -> None:
        records = list(page.items)
        entries = [_entry(record, maker.name) for record in records]
        missing = [n for n, entry in enumerate(entries) if entry is None]
        if missing:
            await self._fill(records, entries, missing, maker)

        embedding = maker.embedder is not None

        def add() -> None:
            index.add(stream, records, entries, first=first, width=maker.dimensions, embedding=embedding)

        # For a few, a thread would be slower.
        if len(records) < 50:
            add()
        else:
            await off_loop(add)

    async def _fill(
        self, records: list[Record], entries: list[IndexEntry | None], missing: list[int], maker: EntryBuilder
    ) -> None:
        """Compute and store missing entries; vectors only if that is fast."""
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            read = await self._below.read([records[n].ref for n in some])
            texts = {
                n: record
                for n, record in zip(some, read, strict=True)
                if record is not None and record.version == records[n].version and (record.text or record.title)
            }
            found = list(texts.values())
            made = await aside(maker, len(found), lambda found=found: _made(found, maker))  # type: ignore[misc]
            for n, entry in zip(texts, made, strict=True):
                entries[n] = unpack(entry)
            if maker.instant:
                pairs = zip(found, made, strict=True)
                self._made += [Derive(r.ref, maker.name, entry, r.version) for r, entry in pairs]
                if len(self._made) >= HELD_BACK:
                    await self.write_made()

    async def filled(self, records: list[Record], maker: EntryBuilder) -> Filled:
        """Return the records that have a text, each with its entry, computed if it is missing.

        If the embedder fails, the entry has no vectors and is not stored.
        """
        whole = {record.ref for record in records if intact(record.derived.get(maker.name))}
        missing = [record for record in records if record.ref not in whole]
        made: dict[Ref, bytes] = {}
        wordy: dict[Ref, bytes] = {}
        for start in range(0, len(missing), AT_ONCE):
            read = await self._below.read([record.ref for record in missing[start : start + AT_ONCE]])
            texts = [record for record in read if record is not None and (record.text or record.title)]
            entries = await aside(maker, len(texts), lambda texts=texts: maker.make(texts))  # type: ignore[misc]
            found = [(r, entry) for r, entry in zip(texts, entries, strict=True) if entry is not None]
            await self.keep(tuple(Derive(r.ref, maker.name, entry, r.version) for r, entry in found))
            made |= {record.ref: entry for record, entry in found}
            wordy |= {record.ref: pack(record, None) for record in texts if record.ref not in made}
        new = made | wordy
        return Filled(
            [
                replace(record, derived={**record.derived, maker.name: new[record.ref]})
                if record.ref in new
                else record
                for record in records
                if record.ref in new or record.ref in whole
            ],
            made=len(made),
            failed=len(wordy),
        )

    async def write_made(self) -> None:
        """Store the entries computed for searches; losing them only costs recomputing."""
        made, self._made = self._made, []
        await self.keep(tuple(made))

    async def keep(self, ops: tuple[Op, ...]) -> None:
        """Store entries computed for a search, if the store is writable."""
        if ops:
            try:
                await self._owner.maker(writing=True)
            except StoreError:
                return
            await try_to_write(self._below, ops)

    async def _make_up(self, index: ScopeIndex, maker: EntryBuilder, seconds: float) -> None:
        """Compute and store missing vectors, newest first, within the time limit of a search."""
        until = time.monotonic() + seconds
        while index.shard.lacking and time.monotonic() < until:
            some = dict(sorted(index.shard.lacking.items(), reverse=True)[:REPAIRED_AT_ONCE])
            records = await self._below.read([index.shard.ref(n) for n in some])
            fresh = {
                n: record
                for (n, version), record in zip(some.items(), records, strict=True)
                if record is not None and version in (0, record.version)
            }
            made = await off_loop(lambda fresh=fresh: maker.make(list(fresh.values())))  # type: ignore[misc]
            if fresh and all(entry is None for entry in made):
                return
            ops = []
            with index.lock:
                for n in some:
                    index.shard.lacking.pop(n, None)
                for (n, record), entry in zip(fresh.items(), made, strict=True):
                    vectors = None if entry is None else unpack(entry).vectors
                    if entry is not None and vectors is not None and index.attach(n, vectors):
                        ops.append(Derive(record.ref, maker.name, entry, record.version))
            await self.keep(tuple(ops))


async def aside(maker: EntryBuilder, size: int, work: Callable[[], Result]) -> Result:
    """Run CPU-bound work, in a thread if it would block an event loop."""
    # A model is loaded on first use, which is always slow.
    ready = maker.instant and (maker.embedder is None or maker.dimensions)
    return work() if ready and size <= FEW else await off_loop(work)


async def try_to_write(store: Store, ops: tuple[Op, ...]) -> None:
    """Write computed data; a failure is ignored."""
    if ops:
        try:
            await store.write(Write(ops))
        except StoreError as error:
            log.warning("what was computed for recall could not be kept (%s)", name_of(error))


def _made(records: list[Record], maker: EntryBuilder) -> list[bytes]:
    made = maker.make(records) if maker.instant else [None] * len(records)
    return [pack(r, None) if entry is None else entry for r, entry in zip(records, made, strict=True)]


def _entry(record: Record, name: str) -> IndexEntry | None:
    """Return the stored entry of a record; None if it is missing or damaged, so that it is recomputed."""
    value = record.derived.get(name)
    return unpack(value) if value is not None and intact(value) else None
