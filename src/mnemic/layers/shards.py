"""The indexes of scopes, in memory, and how they are kept up to the store.

What is needed to find a record again is read from beside it, and made where it is missing. What has been
written since, by this process or another, is taken in before each search.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..driving import off_loop, pause
from ..errors import StoreError
from ..recall.entry import Entry, intact, pack, unpack
from ..recall.maker import Maker, log
from ..recall.strength import USE
from ..records import AUDIT_KIND, Record, Ref, ScopePath, Stream, known_scope
from ..store.planning import Name
from ..store.protocol import Page, Store, all_streams, scan_all
from ..store.query import Derive, Op, Scan, StreamScan, Write
from .owner import Owner

if TYPE_CHECKING:
    from ..recall.searching import Index

Result = TypeVar("Result")

PAGE = 4_000
"""How many records are taken in at a time."""
REPAIR_SECONDS = 2.0
"""How long a search makes up for vectors that are missing before it goes on without the rest."""
REPAIRED_AT_ONCE = 256
"""How many vectors are made up for at a time."""
AT_ONCE = 1000
"""How many texts are read at a time to make their entries."""
HELD_BACK = 256
"""How many entries, and how many records' uses, are held back before they are written."""
FEW = 8
"""How many texts a fast embedder takes in place, since finding a thread would take longer."""


class Filled(Struct):
    """Records with their entries, and how many of those were made, or have no vectors as it failed."""

    records: list[Record]
    made: int
    failed: int


class Shards:
    """Gives the index of a scope, with all that was written until now."""

    def __init__(self, below: Store, owner: Owner, max_bytes: int) -> None:
        """`max_bytes` bounds the indexes of all scopes together; the least recently searched go first."""
        self._below = below
        self._owner = owner
        self._max_bytes = max_bytes
        self.begin()

    def begin(self) -> None:
        """Begin anew, with nothing in memory."""
        self._lock = threading.Lock()
        self._indexes: OrderedDict[ScopePath, Index] = OrderedDict()
        """From the least recently searched to the one that was searched last."""
        self._sizes: dict[ScopePath, int] = {}
        self.nbytes = 0
        """How much memory all indexes take: the sum of their sizes, kept up to date as they change."""
        self._made: list[Derive] = []

    def clear(self) -> None:
        """Forget all indexes, and what was made for them."""
        with self._lock:
            self._indexes.clear()
            self._sizes.clear()
            self.nbytes = 0
            self._made.clear()

    def let_go(self, stream: Name, keys: Sequence[str]) -> None:
        """Forget records of a stream that were removed."""
        for index in self._holding(known_scope(stream[0])):
            index.let_go(stream, keys)

    def use_of(self, ref: Ref, moment: int) -> None:
        """Count a use of a record in all indexes."""
        for index in self._holding(ref.scope):
            index.use_of(ref, moment)

    def _holding(self, scope: ScopePath) -> list[Index]:
        """Return the indexes that hold what is stored in a scope: its own, and those of the scopes above."""
        above = [scope]
        while above[-1] != above[-1].parent:
            above.append(above[-1].parent)
        with self._lock:
            return [index for one in above if (index := self._indexes.get(one)) is not None]

    async def ready(self, scope: ScopePath, maker: Maker, seconds: float = REPAIR_SECONDS) -> Index:
        """Return the index of a scope, with all that was written until now."""
        index = self._index_of(scope, maker.name)
        known, there = set(index.shard.versions), set()
        async for stream in all_streams(self._below, StreamScan(scope=scope, empty=True)):
            if stream.kind == AUDIT_KIND:
                continue  # which holds no text, and as many records as changes were made
            there.add((stream.scope.path, stream.kind))
            index.expect(stream)
            while not await self._take_in(index, stream, maker):
                # Another search has taken in part of it meanwhile.
                continue
        # Streams that someone else has found since the list was begun are not gone.
        index.forget(known - there)
        if index.shard.lacking and maker.embedder is not None:
            await self._make_up(index, maker, seconds)
        return index

    def _index_of(self, scope: ScopePath, name: str) -> Index:
        from ..recall.searching import Index

        with self._lock:
            index = self._indexes.get(scope)
            if index is None or index.name != name or index.shard.worn:
                index = self._indexes[scope] = Index(name)
            self._indexes.move_to_end(scope)
            return index

    def searched(self, scope: ScopePath, index: Index) -> None:
        """Note how large an index is after a search, and let the least recently searched go if need be."""
        size = index.nbytes
        with self._lock:
            if self._indexes.get(scope) is not index:
                return  # it was let go, or made anew, meanwhile
            self.nbytes += size - self._sizes.get(scope, 0)
            self._sizes[scope] = size
            while self.nbytes > self._max_bytes and len(self._indexes) > 1:
                oldest, _ = self._indexes.popitem(last=False)
                self.nbytes -= self._sizes.pop(oldest, 0)

    async def _take_in(self, index: Index, stream: Stream, maker: Maker) -> bool:
        """Bring the index up to a stream; False if another search is at it."""
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
        self, index: Index, stream: Stream, page: Page[Record], maker: Maker, *, first: bool
    ) -> None:
        records = list(page.items)
        entries = [_entry(record, maker.name) for record in records]
        missing = [n for n, entry in enumerate(entries) if entry is None]
        if missing:
            await self._fill(records, entries, missing, maker)

        embedding = maker.embedder is not None

        def add() -> None:
            index.add(stream, records, entries, first=first, width=maker.dimensions, embedding=embedding)

        # A few are taken in faster than a thread is found.
        if len(records) < 50:
            add()
        else:
            await off_loop(add)

    async def _fill(
        self, records: list[Record], entries: list[Entry | None], missing: list[int], maker: Maker
    ) -> None:
        """Make the entries that are missing from the texts, and keep them; vectors only if that is fast."""
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            read = await self._below.read([records[n].ref for n in some])
            texts = {
                n: record
                for n, record in zip(some, read, strict=True)
                if record is not None
                and record.version == records[n].version
                and (record.text or record.title)
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

    async def filled(self, records: list[Record], maker: Maker) -> Filled:
        """Return those of the records that have a text, each with its entry, which is made where it lacks.

        What the embedder fails on has an entry without vectors, for now; the store does not keep it.
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
        """Keep the entries that were made for searches; whoever loses them makes them again."""
        made, self._made = self._made, []
        await self.keep(tuple(made))

    async def keep(self, ops: tuple[Op, ...]) -> None:
        """Keep entries that were made for a search, if the store can be written."""
        if ops:
            try:
                await self._owner.maker(writing=True)
            except StoreError:
                return
            await try_to_write(self._below, ops)

    async def _make_up(self, index: Index, maker: Maker, seconds: float) -> None:
        """Make vectors that are missing, newest first, for as long as a search may wait, and keep them."""
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


async def aside(maker: Maker, size: int, work: Callable[[], Result]) -> Result:
    """Do work that computes, in a thread if there is an event loop that it would hold up."""
    # A model is read when it is first used, and that takes long whatever it is.
    ready = maker.instant and (maker.embedder is None or maker.dimensions)
    return work() if ready and size <= FEW else await off_loop(work)


async def try_to_write(store: Store, ops: tuple[Op, ...]) -> None:
    """Write what was computed, which is no loss if it fails."""
    if ops:
        try:
            await store.write(Write(ops))
        except StoreError as error:
            log.warning("what was computed for recall could not be kept: %s", error)


def _made(records: list[Record], maker: Maker) -> list[bytes]:
    made = maker.make(records) if maker.instant else [None] * len(records)
    return [pack(r, None) if entry is None else entry for r, entry in zip(records, made, strict=True)]


def _entry(record: Record, name: str) -> Entry | None:
    """Return what is kept beside a record; None if there is nothing, or it is damaged: it is made again."""
    value = record.derived.get(name)
    return unpack(value) if value is not None and intact(value) else None
