"""Recall over indexes outside this process: fetches candidates there and ranks them here.

Ranking is the same as for the in-memory index, over the candidates instead of the whole scope. A companion is
brought up to date before each search. Its position in each stream is recorded only after the data has arrived, so
a crash in between only costs repeated work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from ..checks import check_callable, from_microseconds
from ..event_loop import pause
from ..recall.index_entry import EntryBuilder, IndexEntry, intact, unpack
from ..recall.question import analyze_question
from ..recall.strength import USE
from ..records import AUDIT_KIND, Record, ScopePath, Stream, known_scope
from ..store.nearest import Companion, Mark, Near, Nearest, OwnIndex
from ..store.planning import StreamName
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import Scan, Search, StreamScan
from .index_cache import Filled

if TYPE_CHECKING:
    from ..recall.scope_index import ScopeIndex

CANDIDATES = 200
"""How many candidates are fetched first, by words and by vectors each; more if too few pass."""
MOST = 6_400
"""Maximum number of candidates."""
PAGE = 1_000
"""How many records a companion gets at once."""

Fill = Callable[[list[Record], EntryBuilder], Awaitable[Filled]]
"""Computes missing entries of records."""


class RemoteIndex:
    """Finds candidates in an external index."""

    def __init__(self, below: Store, companion: Companion | None, fill: Fill) -> None:
        """Take the companion, or else the store's own index."""
        self._below = below
        self._own: OwnIndex | None = cast("Nearest", below).index if companion is None else None
        self._companion: Companion = companion or cast("Nearest", below).index
        self._fill = fill
        self._claimed: set[StreamName] = set()
        """Streams being indexed."""

    @property
    def large(self) -> int:
        """Number of records from which a scope is searched there."""
        return 0 if self._own is None else self._own.large

    async def index(self, search: Search, maker: EntryBuilder, limit: int = CANDIDATES) -> tuple[ScopeIndex, bool]:
        """Return a temporary index of candidate records, and whether there may be more."""
        from ..recall.scope_index import ScopeIndex

        near = _near(search, maker, limit)
        found = await self._near(near, maker)
        if damaged := [record for record in found if not intact(record.derived.get(maker.name))]:
            remade = {record.ref: record for record in (await self._fill(damaged, maker)).records}
            lost = {record.ref for record in damaged} - remade.keys()
            found = [remade.get(record.ref, record) for record in found if record.ref not in lost]
        index = ScopeIndex(maker.name, sparse=True)
        by_stream: dict[StreamName, list[Record]] = {}
        for record in found:
            by_stream.setdefault((record.scope.path, record.kind), []).append(record)
        for name, records in by_stream.items():
            records.sort(key=lambda record: record.seq)
            entries: list[IndexEntry | None] = [unpack(record.derived[maker.name]) for record in records]
            index.add(_stream(name), records, entries, first=True, width=maker.dimensions, embedding=False)
            index.texts.update((record.ref, record) for record in records if record.text is not None)
        return index, len(found) >= limit and limit < MOST

    async def catch_up(
        self, scope: ScopePath, maker: EntryBuilder, progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Bring the index up to date; return how many records were indexed.

        `progress` is called with the number of records processed and the total.
        """
        check_callable(progress, "progress")
        companion = self._companion
        # In this order, so that concurrent writes leave the index behind the store, never ahead of it.
        marks = await companion.marks(maker.name, scope)
        streams = [s async for s in all_streams(self._below, StreamScan(scope=scope, empty=True))]
        taken = done = 0
        total = sum(stream.count for stream in streams)
        there = set()
        for stream in streams:
            if stream.kind == AUDIT_KIND:
                continue  # which has no text
            name = (stream.scope.path, stream.kind)
            there.add(name)
            mark = marks.get(name)
            if mark is None or mark.version != stream.version:
                taken += await self._take_in(companion, stream, mark, maker)
            done += stream.count
            if progress is not None:
                progress(done, total)
        for name in marks.keys() - there:
            await companion.remove(name, None)
        return taken

    async def let_go(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove deleted records from the index, or a whole stream, to be indexed again."""
        if self._own is None or not self._own.tidy:
            await self._companion.remove(stream, keys)

    async def reset(self) -> None:
        """Remove the data of a former embedder from the index."""
        await self._companion.reset()

    async def _near(self, near: Near, maker: EntryBuilder) -> list[Record]:
        if self._own is None:
            await self.catch_up(near.scope, maker)
            return await self._companion.near(near)
        found = await self._own.nearby(near)
        behind = [one for one in found.behind if one[0].kind != AUDIT_KIND]
        if behind:
            for stream, mark in behind:
                await self._take_in(self._own, stream, mark, maker)
            found = await self._own.nearby(near)
        return found.records

    async def _take_in(self, companion: Companion, stream: Stream, mark: Mark | None, maker: EntryBuilder) -> int:
        """Bring the companion up to date with one stream, unless another search is doing it."""
        name = (stream.scope.path, stream.kind)
        if name in self._claimed:
            while name in self._claimed:
                await pause()
            mark = (await companion.marks(maker.name, stream.scope)).get(name)
            if mark is not None and mark.version >= stream.version:
                return 0
        self._claimed.add(name)
        try:
            return await self._taken(companion, stream, mark, maker)
        finally:
            self._claimed.discard(name)

    async def _taken(self, companion: Companion, stream: Stream, mark: Mark | None, maker: EntryBuilder) -> int:
        name = (stream.scope.path, stream.kind)
        if mark is not None and (mark.version > stream.version or mark.last_seq > stream.last_seq):
            # The stream was dropped and recreated.
            await companion.remove(name, None)
            mark = None
        scan = Scan(
            scope=stream.scope,
            kinds=(stream.kind,),
            bodies=False,
            limit=PAGE,
            after_version=mark.version if mark else None,
            derived=(maker.name, USE),
        )
        taken = new = 0
        last_seq = mark.last_seq if mark else 0
        async for records in _pages(self._below, scan):
            new += sum(1 for record in records if record.seq > last_seq)
            filled = await self._fill(records, maker)
            silent = {record.key for record in records} - {record.key for record in filled.records}
            if silent and mark is not None:
                await companion.remove(name, sorted(silent))
            await companion.put(maker.name, filled.records)
            taken += len(filled.records)
            if filled.failed and not filled.made:
                # The embedder cannot be reached: without a new mark, the next search retries.
                return taken
        if stream.count != (mark.count if mark else 0) + new:
            await self._compare(companion, stream, maker.name)
        await companion.mark(maker.name, name, Mark(stream.version, stream.last_seq, stream.count))
        return taken

    async def _compare(self, companion: Companion, stream: Stream, entry: str) -> None:
        """Remove records from the companion that the stream no longer has."""
        everything = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, limit=PAGE)
        there = {record.key async for record in scan_all(self._below, everything)}
        name = (stream.scope.path, stream.kind)
        gone = [key for key in await companion.keys(entry, name) if key not in there]
        if gone:
            await companion.remove(name, gone)


def _near(search: Search, maker: EntryBuilder, limit: int) -> Near:
    question = analyze_question(search.query, {})
    vector = maker.question(question.text) if not search.signals or "dense" in search.signals else None
    return Near(
        scope=search.scope,
        name=maker.name,
        kinds=search.kinds,
        below=search.below,
        vector=None if vector is None else vector.tobytes(),
        terms=tuple(question.terms),
        limit=limit,
    )


def _stream(name: StreamName) -> Stream:
    """Return a placeholder for a stream of which only the name is known."""
    then = from_microseconds(0)
    return Stream(
        scope=known_scope(name[0]), kind=name[1], count=0, weight=0, last_seq=0, version=0, created=then,
        updated=then,
    )  # fmt: skip


async def _pages(store: Store, scan: Scan) -> AsyncGenerator[list[Record], None]:
    while True:
        page = await store.scan(scan)
        if page.items:
            yield list(page.items)
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor)
