"""Recall over indexes outside this process: fetches candidates there and ranks them here.

Ranking is the same as for the in-memory index, over the candidates instead of the whole scope. A companion is
brought up to date before each search. Its position in each stream is recorded only after the data has arrived, so
a crash in between only costs repeated work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from ..checks import check_callable, from_microseconds
from ..recall.index_entry import MAX_QUESTION, USE, EntryBuilder, intact
from ..recall.question import analyze_question
from ..records import AUDIT_KINDS, Record, ScopePath, Stream, StreamName, known_scope
from ..store.protocol import Companion, Mark, Near, Nearest, OwnIndex, Store, all_streams, scan_all, scan_pages
from ..store.query import Derive, Scan, Search, StreamScan
from .index_cache import IndexCache

if TYPE_CHECKING:
    from ..recall.scope_index import ScopeIndex

CANDIDATES = 200
"""How many candidates are fetched first, by words and by vectors each; more if too few pass."""
MAX_CANDIDATES = 6_400
"""Maximum number of candidates."""
PAGE = 1_000
"""How many records a companion gets at once."""


class RemoteIndex:
    """Finds candidates in an external index: a companion, or else the store's own."""

    def __init__(self, below: Store, companion: Companion | None, cache: IndexCache) -> None:
        self._below = below
        self._own: OwnIndex | None = cast("Nearest", below).index if companion is None else None
        self._companion: Companion = companion or cast("Nearest", below).index
        self._cache = cache
        self._updates = 0
        self._updated: dict[StreamName, int] = {}
        """The number of the last update of each stream by this process."""

    @property
    def large(self) -> int:
        """Number of records from which a scope is searched there."""
        return 0 if self._own is None else self._own.large

    async def candidates(self, search: Search, builder: EntryBuilder, limit: int) -> tuple[ScopeIndex, bool]:
        """Return a temporary index of candidate records, and whether there may be more."""
        from ..recall.scope_index import ScopeIndex, StreamPart

        found, _ = await self._with_entries(await self._nearest(_query(search, builder, limit), builder), builder)
        index = ScopeIndex(builder.name, sparse=True)
        by_stream: dict[StreamName, list[Record]] = {}
        for record in found:
            by_stream.setdefault((record.scope.path, record.kind), []).append(record)
        parts = []
        for name, records in by_stream.items():
            records.sort(key=lambda record: record.seq)
            entries = [record.derived[builder.name] for record in records]
            parts.append(StreamPart(_stream(name), records, entries, first=True))
            index.texts.update((record.ref, record) for record in records if record.text is not None)
        index.add(parts, width=builder.dimensions, embedding=False)
        return index, len(found) >= limit and limit < MAX_CANDIDATES

    async def catch_up(
        self, scope: ScopePath, builder: EntryBuilder, progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Bring the index up to date; return how many records were indexed.

        `progress` is called with the number of records processed and the total.
        """
        check_callable(progress, "progress")
        # In this order, so that concurrent writes leave the index behind the store, never ahead of it.
        since = self._updates
        marks = await self._companion.marks(builder.name, scope)
        streams = [s async for s in all_streams(self._below, StreamScan(scope=scope, empty=True))]
        indexed = done = 0
        total = sum(stream.count for stream in streams)
        listed = set()
        for stream in streams:
            if stream.kind in AUDIT_KINDS:
                continue  # which has no text
            name = stream.name
            listed.add(name)
            mark = marks.get(name)
            if mark is None or mark.version != stream.version:
                indexed += await self._update(stream, mark, builder, since)
            done += stream.count
            if progress is not None:
                progress(done, total)
        for name in marks.keys() - listed:
            await self._companion.remove(name, None)
        return indexed

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove deleted records from the index, or a whole stream, to be indexed again."""
        if self._own is None or not self._own.tidy:
            await self._companion.remove(stream, keys)

    async def erase(self, scope: ScopePath, builder: EntryBuilder) -> int:
        """Remove every stream of an erased scope that the index still follows; return how many."""
        present = {stream.name async for stream in all_streams(self._below, StreamScan(scope=scope, empty=True))}
        left = [name for name in await self._companion.marks(builder.name, scope) if name not in present]
        for name in left:
            await self._companion.remove(name, None)
        return len(left)

    async def reset(self) -> None:
        """Remove the data of a former embedder from the index."""
        await self._companion.reset()

    async def _nearest(self, near: Near, builder: EntryBuilder) -> list[Record]:
        if self._own is None:
            await self.catch_up(near.scope, builder)
            return await self._companion.near(near)
        since = self._updates
        found = await self._own.nearby(near)
        behind = [one for one in found.behind if one[0].kind not in AUDIT_KINDS]
        for stream, mark in behind:
            await self._update(stream, mark, builder, since)
        return (await self._own.nearby(near)).records if behind else found.records

    async def _update(self, stream: Stream, mark: Mark | None, builder: EntryBuilder, since: int) -> int:
        """Index what is new in a stream, unless another search has done it; return how many records.

        `since` is the number of updates when the mark was read.
        """
        async with self._cache.updating.hold((self, stream.name)) as waited:
            if waited or self._updated.get(stream.name, 0) > since:
                mark = (await self._companion.marks(builder.name, stream.scope)).get(stream.name)
                if mark is not None and mark.version >= stream.version:
                    return 0
            indexed = await self._index(stream, mark, builder)
            self._updates += 1
            self._updated[stream.name] = self._updates
            return indexed

    async def _index(self, stream: Stream, mark: Mark | None, builder: EntryBuilder) -> int:
        name, companion = stream.name, self._companion
        if mark is not None and (mark.version > stream.version or mark.last_seq > stream.last_seq):
            # The stream was dropped and recreated.
            await companion.remove(name, None)
            mark = None
        since = mark or Mark(0, 0, 0)
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, limit=PAGE, derived=(builder.name, USE))
        changed = replace(scan, after_version=mark.version if mark else None)
        indexed = new = 0
        async for records in scan_pages(self._below, changed):
            new += sum(1 for record in records if record.seq > since.last_seq)
            with_text, failed = await self._with_entries(records, builder)
            without_text = {record.key for record in records} - {record.key for record in with_text}
            if without_text and mark is not None:
                await companion.remove(name, sorted(without_text))
            await companion.put(builder.name, with_text)
            indexed += len(with_text)
            if failed:
                # Without a new mark, the next search retries.
                return indexed
        if stream.count != since.count + new:
            present = {record.key async for record in scan_all(self._below, replace(scan, derived=()))}
            gone = [key for key in await companion.keys(builder.name, name) if key not in present]
            if gone:
                await companion.remove(name, gone)
        await companion.mark(builder.name, name, Mark(stream.version, stream.last_seq, stream.count))
        return indexed

    async def _with_entries(self, records: Sequence[Record], builder: EntryBuilder) -> tuple[list[Record], bool]:
        """Return the records that have a text, with their entries, and whether the embedder cannot be reached.

        Missing entries are computed. If the embedder fails, an entry has no vectors and is not stored.
        """
        missing = [record for record in records if not intact(record.derived.get(builder.name))]
        complete, partial = await self._cache.compute(missing, builder)
        await self._cache.store_entries([Derive(r.ref, builder.name, entry, r.version) for r, entry in complete])
        new = {record.ref: entry for record, entry in (*complete, *partial)}
        textless = {record.ref for record in missing} - new.keys()
        found = [
            replace(record, derived={**record.derived, builder.name: new[record.ref]}) if record.ref in new else record
            for record in records
            if record.ref not in textless
        ]
        return found, bool(partial) and not complete


def _query(search: Search, builder: EntryBuilder, limit: int) -> Near:
    question = analyze_question(search.query, {})
    vector = builder.embed_question(question.text) if not search.signals or "dense" in search.signals else None
    return Near(
        scope=search.scope,
        name=builder.name,
        kinds=search.kinds,
        below=search.below,
        text=question.text[:MAX_QUESTION],
        vector=None if vector is None else vector.tobytes(),
        terms=tuple(dict.fromkeys((*question.terms, *chain(*question.variants.values())))),
        limit=limit,
    )


def _stream(name: StreamName) -> Stream:
    """Return a placeholder for a stream of which only the name is known."""
    then = from_microseconds(0)
    return Stream(
        scope=known_scope(name[0]), kind=name[1], count=0, weight=0, last_seq=0, version=0, created=then,
        updated=then,
    )  # fmt: skip
