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
from ..errors import InvalidValueError
from ..event_loop import mind_forks
from ..models.embedder import Embedder
from ..recall.index_entry import INDEX_BYTES, RECALL, SPEAKING, TURNS, EntryBuilder
from ..recall.metrics import Metrics, MetricsRecorder
from ..recall.strength import OF_USE, ONE_MORE, USE, Use, pack_use, unpack_use
from ..records import Match, Record, Ref, ScopePath
from ..store.matching import matches, to_cursor, true_at
from ..store.nearest import Companion
from ..store.protocol import Capability, Page, Store, scan_all
from ..store.query import (
    MAX_CHOICES,
    Condition,
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
)
from .index_cache import HELD_BACK, IndexCache, aside, try_to_write
from .layer import Layer
from .remote_index import CANDIDATES, RemoteIndex
from .store_embedder import StoreEmbedder

if TYPE_CHECKING:
    from ..recall.scope_index import Answer, ScopeIndex

Result = TypeVar("Result")

SIZED = 60.0
"""How many seconds the size of a scope is cached."""


class IndexLayer(Layer):
    """Implements `search` for a store without it."""

    def __init__(
        self,
        below: Store,
        embedder: Embedder | str | None,
        companion: Companion | None = None,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        super().__init__(below)
        self._owner = StoreEmbedder(below, embedder)
        self._shards = IndexCache(below, self._owner, check_count(index_bytes, "index_bytes"))
        self._companion = companion
        elsewhere = companion is not None or Capability.NEAREST in below.capabilities
        self._afar = RemoteIndex(below, companion, self._shards.filled) if elsewhere else None
        self._sizes: dict[ScopePath, tuple[float, bool]] = {}
        """Whether each scope is too large for memory, and when that was determined."""
        self._uses: dict[Ref, tuple[int, int]] = {}
        self._meter = MetricsRecorder()
        mind_forks(self)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below, and search."""
        return self._below.capabilities | {Capability.LEXICAL}

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with index entries for each text."""
        texts = [
            n
            for n, op in enumerate(write.ops)
            if isinstance(op, Put) and (op.record.text or op.record.title) and (not write.lazy or op.record.derived)
        ]
        if not texts:
            if write.ops and all(isinstance(o, Derive) and o.value in (ONE_MORE, OF_USE) for o in write.ops):
                self._use(write.ops)
                return [Outcome(count=1)] * len(write.ops)
            return await self._let_go(write.ops, await self._below.write(write))
        maker = await self._owner.maker(writing=True)
        ops: list[Any] = list(write.ops)
        missing = []
        for n in texts:
            if (entry := ops[n].record.derived.get(RECALL)) is not None:
                ops[n] = _with_entry(ops[n], maker.name, entry)
            elif not write.lazy:
                missing.append(n)
        if missing:
            records = [ops[n].record for n in missing]
            entries = await aside(maker, len(records), lambda: maker.make(records))
            for n, made in zip(missing, entries, strict=True):
                if made is not None:
                    ops[n] = _with_entry(ops[n], maker.name, made)
        return await self._let_go(write.ops, await self._below.write(replace(write, ops=tuple(ops))))

    async def _let_go(self, ops: tuple[Op, ...], outcomes: list[Outcome]) -> list[Outcome]:
        """Remove deleted records from the indexes, so that they need not look for missing ones."""
        for op, outcome in zip(ops, outcomes, strict=False):
            if outcome.removed and isinstance(op, Delete | Limit):
                scope, kind = (op.ref.scope, op.ref.kind) if isinstance(op, Delete) else (op.scope, op.kind)
                self._shards.let_go((scope.path, kind), outcome.removed)
                if self._afar is not None:
                    await self._afar.let_go((scope.path, kind), outcome.removed)
            elif isinstance(op, Purge) and (outcome.count or op.drop) and self._afar is not None:
                # What is kept is indexed again.
                await self._afar.let_go((op.scope.path, op.kind), None)
        return outcomes

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass the call on; includes buffered uses, and maps the name of the entries."""
        if USE in scan.derived:
            await self._write_uses()
        if RECALL not in scan.derived:
            return await self._below.scan(scan)
        name = (await self._owner.maker()).name
        wanted = tuple(name if asked == RECALL else asked for asked in scan.derived)
        page = await self._below.scan(replace(scan, derived=wanted))
        return Page(tuple(_renamed(record, name) for record in page.items), page.cursor)

    async def search(self, search: Search) -> list[Match]:
        """Return the best records: rank in memory, read, and filter until there are enough."""
        if not search.limit:
            return []
        from ..recall.scoring import SIGNALS

        if unknown := [name for name in search.signals if name not in SIGNALS]:
            raise InvalidValueError(f"no signal is named {shown(unknown[0])}: use {', '.join(SIGNALS)}")
        begun = time.perf_counter()
        maker = await self._owner.maker()
        if self._afar is not None and await self._is_large(search.scope):
            results = await self._search_afar(self._afar, search, maker)
        else:
            index = await self._shards.ready(search.scope, maker)
            try:
                results = await self._answered(index, search, maker)
            finally:
                self._shards.searched(search.scope, index)
        if not search.signals:
            self._meter.recalled(results[0].score if results else None, time.perf_counter() - begun)
        if len(self._uses) >= HELD_BACK:
            await self._write_uses()
        return results

    async def _answered(self, index: ScopeIndex, search: Search, maker: EntryBuilder) -> list[Match]:
        moment = to_microseconds(self.clock())
        answer = await aside(maker, len(index.shard), lambda: index.answer(search, maker, moment))
        return await self._read(index, answer, search)

    async def _search_afar(self, afar: RemoteIndex, search: Search, maker: EntryBuilder) -> list[Match]:
        """Rank the candidates of an external index, and fetch more if too few pass."""
        limit = max(CANDIDATES, 2 * search.limit)
        while True:
            index, more = await afar.index(search, maker, limit)
            results = await self._answered(index, search, maker)
            if len(results) == search.limit or not more:
                return results
            limit *= 4

    async def _is_large(self, scope: ScopePath) -> bool:
        """Return whether a scope is searched externally: always with a companion, otherwise if it is large."""
        if self._afar is None or not self._afar.large:
            return self._afar is not None
        known = self._sizes.get(scope)
        if known is None or time.monotonic() - known[0] > SIZED:
            page = await self._below.streams(StreamScan(scope=scope))
            held = sum(stream.count for stream in page.items)
            known = (time.monotonic(), page.cursor is not None or held >= self._afar.large)
            if len(self._sizes) > 100_000:
                self._sizes.clear()
            self._sizes[scope] = known
        return known[1]

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Rebuild the companion index from the records; return how many texts it has."""
        if self._afar is None or self._companion is None:
            raise InvalidValueError("there is no companion index to rebuild: open the store with index=…")
        await self._companion.reset()
        return await self._afar.catch_up(ScopePath(), await self._owner.maker(writing=True), progress)

    async def move(self, embedder: Embedder | str | None, progress: Callable[[int, int], object] | None = None) -> int:
        """Compute all entries with another embedder, then switch to it; return how many were computed.

        Until then, searches use the old one. If interrupted, it resumes when called again.
        """
        made = await self._owner.move(embedder, progress)
        self._shards.clear()
        if self._afar is not None:
            await self._afar.reset()
        return made

    async def close(self) -> None:
        """Write buffered data, and close the store below."""
        try:
            await self._write_uses()
            await self._shards.write_made()
        finally:
            try:
                await self._below.close()
            finally:
                if self._companion is not None:
                    await self._companion.close()

    async def warm(self, scope: ScopePath) -> int:
        """Compute and load everything that a search of a scope needs; return how many texts there are."""
        maker = await self._owner.maker()
        if self._afar is not None and await self._is_large(scope):
            return await self._afar.catch_up(scope, maker)
        index = await self._shards.ready(scope, maker, float("inf"))
        self._shards.searched(scope, index)
        return int(index.shard.alive.values.sum())

    async def metrics(self) -> Metrics:
        """Return recall statistics."""
        return self._meter.report((await self._owner.maker()).failures)

    async def prepare(self) -> None:
        """Determine the embedder of the stored vectors; raises EmbedderError if it differs."""
        await self._owner.maker()

    def before_fork(self) -> None:
        """Do nothing: memory can be duplicated."""

    def after_fork(self) -> None:
        """Reset in a child: the parent writes the buffered data, and may hold the locks."""
        self._shards.begin()
        self._uses = {}
        self._meter = MetricsRecorder()

    async def _read(self, index: ScopeIndex, answer: Answer, search: Search) -> list[Match]:
        """Read the records of an answer until there are enough that are not duplicates."""
        chosen: dict[int, Match] = {}
        start, size = 0, search.limit
        narrowed = False
        twins = index.twins() if search.diverse else None
        while len(chosen) < search.limit:
            batch = answer.documents[start : start + size]
            if not batch:
                if not answer.widen():
                    break
                continue
            start, size = start + size, max(32, size * 2)
            found = await self._matches(index, answer, search, batch)
            if twins is not None:
                twins.look(list(found))
            for n, match in found.items():
                if len(chosen) == search.limit:
                    break
                if twins is None or not twins.copy(n, match.record):
                    chosen[n] = match
            if len(chosen) < search.limit and start > 500 and answer.rest and not narrowed:
                # So few match that it is cheaper to ask the store which.
                narrowed = True
                passing = Scan(scope=search.scope, kinds=search.kinds, below=True, where=answer.rest, bodies=False)
                places = [(r.scope.path, r.kind, r.seq) async for r in scan_all(self._below, passing)]
                answer.narrow(index.documents(places), after=start)
        results = chosen
        if search.uses:
            moment = to_microseconds(self.clock())
            for n, match in results.items():
                if match.record.importance is not None:
                    self._count(match.record.ref, moment)
                    index.use(n, moment)
        return list(results.values())

    async def _matches(self, index: ScopeIndex, answer: Answer, search: Search, batch: list[int]) -> dict[int, Match]:
        """Return the matches among some documents, with neighbors if requested."""
        here = search.neighbors if not index.shard.sparse else 0
        around = {n: index.around(n, here) for n in batch} if here else {}
        wanted = dict.fromkeys([*batch, *(m for pair in around.values() for side in pair for m in side)])
        refs = {n: index.shard.ref(n) for n in wanted}
        unread = [ref for ref in refs.values() if ref not in index.texts]
        read = index.texts | dict(zip(unread, await self._below.read(unread), strict=True)) if unread else index.texts
        records = {n: read[ref] for n, ref in refs.items()}
        found: dict[int, Match] = {}
        for n in batch:
            record = records[n]
            if record is not None and _wanted(record, search):
                before, after = around.get(n, ((), ()))
                found[n] = Match(
                    record=record,
                    score=float(answer.scores[n]),
                    why=answer.why(n),
                    before=[r for m in before if (r := records[m]) is not None],
                    after=[r for m in after if (r := records[m]) is not None],
                )
                if search.neighbors and index.shard.sparse:
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
            if isinstance(op, Derive):
                self._count(op.ref, moment)
                self._shards.use_of(op.ref, moment)
                if op.value == OF_USE:
                    self._meter.used(1)

    def _count(self, ref: Ref, moment: int) -> None:
        self._uses[ref] = (moment, self._uses.get(ref, (0, 0))[1] + 1)

    async def _write_uses(self) -> None:
        """Write buffered uses in one write; a failure is ignored."""
        uses, self._uses = self._uses, {}
        ops: list[Op] = []
        for (scope, kind), refs in _by_stream(uses).items():
            keys = tuple(ref.key for ref in refs)
            for start in range(0, len(keys), MAX_CHOICES):
                where = (Condition("key", "in", keys[start : start + MAX_CHOICES]),)
                scan = Scan(scope=scope, kinds=(kind,), where=where, derived=(USE,), bodies=False)
                for record in (await self._below.scan(scan)).items:
                    last, more = uses[record.ref]
                    known = unpack_use(record.derived.get(USE)).uses
                    ops.append(Derive(record.ref, USE, pack_use(Use(last, known + more, last))))
        await try_to_write(self._below, tuple(ops))


def _with_entry(put: Put, name: str, entry: bytes) -> Put:
    twin = copy(put)
    force_setattr(twin, "record", replace(put.record, derived={name: entry}))
    return twin


def _renamed(record: Record, name: str) -> Record:
    if name not in record.derived:
        return record
    derived = {RECALL if held == name else held: value for held, value in record.derived.items()}
    return replace(record, derived=derived)


def _by_stream(uses: dict[Ref, tuple[int, int]]) -> dict[tuple[ScopePath, str], list[Ref]]:
    found: dict[tuple[ScopePath, str], list[Ref]] = {}
    for ref in uses:
        found.setdefault((ref.scope, ref.kind), []).append(ref)
    return found


def _wanted(record: Record, search: Search) -> bool:
    return matches(record, search.where) and (search.as_of is None or true_at(record, search.as_of))
