"""The index layer: implements recall for stores without their own search.

Index entries are computed once and stored beside each record: in the write, or, if it is lazy, at the first
search. The first search of a scope loads its entries into memory, and every search first reads what this or
another process has written since. Word statistics are per scope, so other users' data neither slows a search nor
changes its order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import force_setattr, replace

from ..checks import check_count, shown, to_microseconds
from ..errors import InvalidValueError, StoreError
from ..event_loop import ForkAware, notify_on_fork
from ..models.embedder import AUTO, Embedder
from ..recall.index_entry import INDEX_BYTES, RECALL, SPEAKING, TURNS, USE, EntryBuilder, Use, pack_use, unpack_use
from ..recall.metrics import Metrics, MetricsRecorder
from ..records import Match, Record, Ref, ScopePath
from ..store.matching import is_valid_at, matches, to_cursor
from ..store.protocol import Capability, Companion, Page, Scrubbed, Store, Unreached, scan_all
from ..store.query import (
    MAX_CHOICES,
    Condition,
    CountUse,
    Delete,
    Derive,
    Limit,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    Search,
    StreamScan,
    Write,
    place_of,
)
from .index_cache import BUFFERED, IndexCache, in_thread, try_to_write
from .layer import Layer, find_layer, whole_store
from .remote_index import CANDIDATES, RemoteIndex
from .store_embedder import StoreEmbedder

if TYPE_CHECKING:
    from ..recall.scope_index import RankedDocuments, ScopeIndex

Result = TypeVar("Result")

SIZE_SECONDS = 60.0
"""How many seconds the size of a scope is cached."""
COMPARED_AT_ONCE, MOST_DUPLICATES = 512, 5000
"""How many hits are compared with one another for duplicates, and after how many duplicates a search ends."""
CACHED_INDEXES = "cached indexes"
"""How an erasure names the indexes that it has dropped from the memory of this process."""


class IndexLayer(Layer, ForkAware):
    """Implements `search` for a store without it."""

    def __init__(
        self,
        below: Store,
        embedder: Embedder | str | None,
        companion: Companion | None = None,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        super().__init__(below)
        self._embedder = StoreEmbedder(below, embedder)
        self._cache = IndexCache(below, self._embedder, check_count(index_bytes, "index_bytes"))
        self._companion = companion
        elsewhere = companion is not None or Capability.NEAREST in below.capabilities
        self._remote = RemoteIndex(below, companion, self._cache) if elsewhere else None
        self._sizes: dict[ScopePath, tuple[float, bool]] = {}
        """Whether each scope is too large for memory, and when that was determined."""
        self._uses: dict[Ref, tuple[int, int]] = {}
        self._metrics = MetricsRecorder()
        notify_on_fork(self)

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with index entries for each text."""
        texts: list[int] = []
        uses = 0
        for n, op in enumerate(write.ops):
            if isinstance(op, Put) and (op.record.text or op.record.title) and (not write.lazy or op.record.derived):
                texts.append(n)
            uses += isinstance(op, CountUse)
        if not texts:
            if uses and uses == len(write.ops):
                self._use(write.ops)
                return [Outcome(count=1)] * len(write.ops)
            return await self._remove_deleted(write.ops, await self._below.write(write))
        builder = await self._embedder.builder(writing=True)
        ops: list[Any] = list(write.ops)
        missing = []
        for n in texts:
            if (entry := ops[n].record.derived.get(RECALL)) is not None:
                ops[n] = _with_entry(ops[n], builder.name, entry)
            elif not write.lazy:
                missing.append(n)
        if missing:
            records = [ops[n].record for n in missing]
            entries = await in_thread(builder, len(records), lambda: builder.build(records))
            for n, made in zip(missing, entries, strict=True):
                if made is not None:
                    ops[n] = _with_entry(ops[n], builder.name, made)
        return await self._remove_deleted(write.ops, await self._below.write(replace(write, ops=tuple(ops))))

    async def _remove_deleted(self, ops: tuple[Op, ...], outcomes: list[Outcome]) -> list[Outcome]:
        """Remove deleted records from the indexes, so that they need not look for missing ones."""
        for op, outcome in zip(ops, outcomes, strict=False):
            if outcome.removed and isinstance(op, Delete | Limit):
                scope, kind, _ = place_of(op)
                self._cache.remove((scope.path, kind), outcome.removed)
                if self._remote is not None:
                    await self._remote.remove((scope.path, kind), outcome.removed)
            elif isinstance(op, Purge) and (outcome.count or op.drop) and self._remote is not None:
                # What is kept is indexed again.
                await self._remote.remove((op.scope.path, op.kind), None)
        return outcomes

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass the scan on, after writing buffered uses, and map the name of the entries."""
        if USE in scan.derived:
            await self._write_uses()
        if RECALL not in scan.derived:
            return await self._below.scan(scan)
        name = (await self._embedder.builder()).name
        wanted = tuple(name if one == RECALL else one for one in scan.derived)
        page = await self._below.scan(replace(scan, derived=wanted))
        return Page(tuple(_renamed(record, name) for record in page.items), page.cursor)

    async def entry_name(self) -> str:
        """Return the name of the entries as derived values of the store below."""
        return (await self._embedder.builder()).name

    async def embedder(self) -> Embedder | None:
        """Return the embedder of the store's vectors."""
        return (await self._embedder.builder()).embedder

    async def search(self, search: Search) -> list[Match]:
        """Return the best records: rank in memory, read, and filter until there are enough."""
        if not search.limit:
            return []
        from ..recall.scoring import SIGNALS

        if unknown := [name for name in (*search.signals, *dict(search.weights)) if name not in SIGNALS]:
            raise InvalidValueError(f"no signal is named {shown(unknown[0])}: use {', '.join(SIGNALS)}")
        started = time.perf_counter()
        builder = await self._embedder.builder()
        if self._remote is not None and await self._is_large(search.scope):
            results = await self._search_remote(self._remote, search, builder)
        else:
            index = await self._cache.current(search.scope, builder)
            try:
                results = await self._read_results(index, search, builder)
            finally:
                self._cache.update_size(search.scope, index)
        if not search.signals and not search.weights:
            self._metrics.recalled(results[0].score if results else None, time.perf_counter() - started)
        if len(self._uses) >= BUFFERED:
            await self._write_uses()
        return results

    async def _search_remote(self, remote: RemoteIndex, search: Search, builder: EntryBuilder) -> list[Match]:
        """Rank the candidates of an external index, and fetch more if too few pass."""
        limit = max(CANDIDATES, 2 * search.limit)
        while True:
            index, more = await remote.candidates(search, builder, limit)
            results = await self._read_results(index, search, builder)
            if len(results) == search.limit or not more:
                return results
            limit *= 4

    async def _is_large(self, scope: ScopePath) -> bool:
        """Return whether a scope is searched externally: always with a companion, otherwise if it is large."""
        if self._remote is None or not self._remote.large:
            return self._remote is not None
        known = self._sizes.get(scope)
        if known is None or time.monotonic() - known[0] > SIZE_SECONDS:
            page = await self._below.streams(StreamScan(scope=scope))
            count = sum(stream.count for stream in page.items)
            known = (time.monotonic(), page.cursor is not None or count >= self._remote.large)
            if len(self._sizes) > 100_000:
                self._sizes.clear()
            self._sizes[scope] = known
        return known[1]

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Rebuild the companion index from the records; return how many texts it has."""
        if self._remote is None or self._companion is None:
            raise InvalidValueError("there is no companion index to rebuild: open the store with index=…")
        await self._companion.reset()
        return await self._remote.catch_up(ScopePath(), await self._embedder.builder(writing=True), progress)

    async def reembed(
        self, embedder: Embedder | str | None, progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Compute all entries with another embedder, then switch to it; return how many were computed.

        Until then, searches use the old one. If interrupted, it resumes when called again.
        """
        count = await self._embedder.reembed(embedder, progress)
        self._cache.clear()
        if self._remote is not None:
            await self._remote.reset()
        return count

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        """Drop the cached indexes of an erased scope, and whatever a companion index still has of it."""
        indexes, streams = self._cache.drop(scope), 0
        self._uses = {ref: use for ref, use in self._uses.items() if not scope.contains(ref.scope)}
        self._sizes = {path: size for path, size in self._sizes.items() if not scope.contains(path)}
        if self._remote is not None:
            streams = await self._remote.erase(scope, await self._embedder.builder())
        done = await super().destroy(scope)
        done.add(CACHED_INDEXES, indexes)
        done.add("streams of a companion index", streams)
        return done

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name the deleted vectors in the files of a companion index; with `finish`, build it again."""
        done = await super().scrub(finish=finish)
        if self._companion is not None and finish:
            done.add("texts indexed again", await self.reindex())
        elif self._companion is not None:
            done.unreached.append(
                Unreached(
                    what=f"deleted vectors in the files of {self._companion.url}",
                    until="until the vector database compacts them",
                    finish="mnemic erase --finish CERTIFICATE, or mnemic reindex",
                    finishable=True,
                )
            )
        return done

    async def close(self) -> None:
        try:
            await self._write_uses()
            await self._cache.write_computed()
        finally:
            try:
                await self._below.close()
            finally:
                if self._companion is not None:
                    await self._companion.close()

    async def warm(self, scope: ScopePath) -> int:
        """Compute and load everything that a search of a scope needs; return how many texts there are."""
        builder = await self._embedder.builder()
        if self._remote is not None and await self._is_large(scope):
            return await self._remote.catch_up(scope, builder)
        index = await self._cache.current(scope, builder, float("inf"))
        self._cache.update_size(scope, index)
        return int(index.table.alive.values.sum())

    async def metrics(self) -> Metrics:
        return self._metrics.report((await self._embedder.builder()).failures)

    async def prepare(self) -> None:
        """Determine the embedder of the stored vectors; raises EmbedderError if it differs."""
        await self._embedder.builder()

    def after_fork(self) -> None:
        """Reset in a child: the parent writes the buffered data, and may hold the locks."""
        self._cache.after_fork()
        self._uses = {}
        self._metrics = MetricsRecorder()

    async def _read_results(self, index: ScopeIndex, search: Search, builder: EntryBuilder) -> list[Match]:
        """Rank the documents of an index, and read their records until there are enough that are not duplicates."""
        moment = to_microseconds(self.clock())
        answer = await in_thread(builder, len(index.table), lambda: index.answer(search, builder, moment))
        chosen: dict[int, Match] = {}
        start, size = 0, search.limit
        narrowed = False
        duplicates = index.duplicate_filter() if search.diverse else None
        while len(chosen) < search.limit:
            batch = answer.documents[start : start + size]
            if not batch:
                if not answer.widen():
                    break
                continue
            start, size = start + size, max(32, size * 2)
            if duplicates is not None:
                size = min(size, COMPARED_AT_ONCE)
                batch = duplicates.without_repeated(batch)
                if not batch:
                    continue
            found = await self._read_matches(index, answer, search, batch)
            if duplicates is not None:
                duplicates.load(list(found))
            for n, match in found.items():
                if len(chosen) == search.limit:
                    break
                if duplicates is None or not duplicates.is_duplicate(n, match.record):
                    chosen[n] = match
            if duplicates is not None and duplicates.count > MOST_DUPLICATES:
                break
            if len(chosen) < search.limit and start > 500 and answer.rest and not narrowed:
                # So few match that it is cheaper to ask the store which.
                narrowed = True
                passing = Scan(scope=search.scope, kinds=search.kinds, below=True, where=answer.rest, bodies=False)
                places = [(r.scope.path, r.kind, r.seq) async for r in scan_all(self._below, passing)]
                answer.narrow(index.documents(places), after=start)
        if search.uses:
            for n, match in chosen.items():
                if match.record.importance is not None:
                    self._count(match.record.ref, moment)
                    index.count_use(n, moment)
        return list(chosen.values())

    async def _read_matches(
        self, index: ScopeIndex, answer: RankedDocuments, search: Search, batch: list[int]
    ) -> dict[int, Match]:
        """Return the matches among some documents, with neighbors if requested."""
        here = search.neighbors if not index.table.sparse else 0
        around = {n: index.around(n, here) for n in batch} if here else {}
        wanted = dict.fromkeys([*batch, *(m for pair in around.values() for side in pair for m in side)])
        refs = {n: index.table.ref(n) for n in wanted}
        records: dict[int, Record | None] = dict.fromkeys(refs)
        if index.texts:
            records = {n: index.texts.get(ref) for n, ref in refs.items()}
        unread = [n for n, record in records.items() if record is None]
        if unread:
            records.update(zip(unread, await self._below.read([refs[n] for n in unread]), strict=True))
        found: dict[int, Match] = {}
        for n, score, why in zip(batch, answer.scores[batch].tolist(), answer.why(batch), strict=True):
            record = records[n]
            if record is not None and _wanted(record, search):
                before, after = around.get(n, ((), ()))
                found[n] = Match(
                    record=record,
                    score=score,
                    why=why,
                    before=[r for m in before if (r := records[m]) is not None],
                    after=[r for m in after if (r := records[m]) is not None],
                )
                if search.neighbors and index.table.sparse:
                    found[n] = await self._with_neighbors(found[n], search.neighbors)
        return found

    async def _with_neighbors(self, match: Match, count: int) -> Match:
        """Return a match with the turns before and after it, read from the store."""
        record = match.record
        if record.kind not in TURNS:
            return match
        here = to_cursor((record.scope.path, record.kind, record.seq))
        spoken = (Condition("data.role", "in", SPEAKING),)
        scan = Scan(scope=record.scope, kinds=(record.kind,), where=spoken, limit=count, cursor=here)
        before = await self._below.scan(replace(scan, reverse=True))
        after = await self._below.scan(scan)
        return replace(match, before=list(before.items)[::-1], after=list(after.items))

    def _use(self, ops: tuple[Op, ...]) -> None:
        """Count the uses in a write; they are written later."""
        moment = to_microseconds(self.clock())
        for op in ops:
            if isinstance(op, CountUse):
                self._count(op.ref, moment)
                self._cache.count_use(op.ref, moment)
                if op.reported:
                    self._metrics.used(1)

    def _count(self, ref: Ref, moment: int) -> None:
        self._uses[ref] = (moment, self._uses.get(ref, (0, 0))[1] + 1)

    async def _write_uses(self) -> None:
        """Write buffered uses, of whichever callers; a failure is ignored."""
        store = whole_store(self._below)
        uses, self._uses = self._uses, {}
        ops: list[Derive] = []
        by_stream: dict[tuple[ScopePath, str], list[str]] = {}
        for ref in uses:
            by_stream.setdefault((ref.scope, ref.kind), []).append(ref.key)
        for (scope, kind), keys in by_stream.items():
            for start in range(0, len(keys), MAX_CHOICES):
                where = (Condition("key", "in", tuple(keys[start : start + MAX_CHOICES])),)
                scan = Scan(scope=scope, kinds=(kind,), where=where, derived=(USE,), bodies=False)
                try:
                    records = (await store.scan(scan)).items
                except StoreError:
                    continue
                for record in records:
                    last, more = uses[record.ref]
                    known = unpack_use(record.derived.get(USE)).uses
                    ops.append(Derive(record.ref, USE, pack_use(Use(last, known + more, last))))
        await try_to_write(store, ops)


def _with_entry(put: Put, name: str, entry: bytes) -> Put:
    changed = copy(put)
    derived = {one: value for one, value in put.record.derived.items() if one != RECALL} if put.record.derived else {}
    derived[name] = entry
    force_setattr(changed, "record", replace(put.record, derived=derived))
    return changed


def _renamed(record: Record, name: str) -> Record:
    if name not in record.derived:
        return record
    derived = {RECALL if one == name else one: value for one, value in record.derived.items()}
    return replace(record, derived=derived)


def _wanted(record: Record, search: Search) -> bool:
    if search.where and not matches(record, search.where):
        return False
    return search.as_of is None or is_valid_at(record, search.as_of)


async def embedder_of(store: Store) -> Embedder | str | None:
    """Return the embedder of the index layer within a store; "auto" if there is none."""
    layer = find_layer(store, IndexLayer)
    return AUTO if layer is None else await layer.embedder()
