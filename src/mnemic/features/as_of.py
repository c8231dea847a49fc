"""A store as it was at a moment: read-only, put together from what is there and from the earlier versions.

What is asked for is loaded into a store in memory, which then answers; so every read works as usual, and takes the
memory of what it covers. Of each record, the last change that is not later than the moment counts, in the order in
which the changes were made, whatever the clocks of the writers did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from ..backends.memory import MemoryStore
from ..checks import check_time
from ..errors import InvalidValueError, StorePermissionError
from ..layers.history import history_since
from ..layers.index import IndexLayer, embedder_of
from ..layers.version_records import VERSIONED_KINDS, KeptVersion, PurgeRecord, read_versions
from ..recall.index_entry import RECALL
from ..records import VERSION, Match, Record, Ref, ScopePath, Stream, StreamName
from ..store.protocol import Capability, Page, SearchableStore, all_streams, scan_all
from ..store.query import Outcome, Scan, Search, StreamScan, Write


class AsOfStore:
    """The store below as it was at a moment, without what has expired since; writes raise StorePermissionError."""

    def __init__(self, below: SearchableStore, moment: datetime) -> None:
        self._below = below
        self._moment = moment
        self.clock: Callable[[], datetime] = lambda: moment
        self._past = MemoryStore(clock=self.clock)
        self._index: IndexLayer | None = None
        self._loaded: list[tuple[ScopePath, bool]] = []

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._past.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StorePermissionError(
            f"what was stored at {self._moment.isoformat()} cannot be changed: write to the scope itself, or bring a "
            "version back with restore"
        )

    async def set_hold(self, scope: ScopePath, reason: str, until: datetime | None) -> Any:
        """Raise StorePermissionError, as do the other calls for holds: they concern what is there now."""
        self._refuse()

    async def holds(self, scope: ScopePath) -> Any:
        self._present("holds")

    async def release_hold(self, scope: ScopePath, id: str) -> Any:
        self._refuse()

    def _present(self, what: str) -> NoReturn:
        raise InvalidValueError(f"{what} as of {self._moment.isoformat()} are not known: ask the scope itself")

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        for scope in dict.fromkeys(ref.scope for ref in refs):
            await self._load(scope, below=False)
        return await self._past.read(refs)

    async def scan(self, scan: Scan) -> Page[Record]:
        if scan.kinds == (VERSION,):
            self._present("earlier versions")
        await self._load(scan.scope, below=scan.below)
        return await self._past.scan(scan)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        await self._load(scan.scope, below=scan.below)
        return await self._past.streams(scan)

    async def search(self, search: Search) -> list[Match]:
        if self._index is None:
            self._index = IndexLayer(self._past, await embedder_of(self._below))
        await self._load(search.scope, below=search.below)
        return await self._index.search(replace(search, uses=False))

    async def close(self) -> None:
        """Leave the store below open."""

    async def _load(self, scope: ScopePath, *, below: bool) -> None:
        if any(known.contains(scope) if deep else known == scope and not below for known, deep in self._loaded):
            return
        past: dict[StreamName, _PastStream] = {}
        scan = StreamScan(scope=scope, kinds=VERSIONED_KINDS, below=below, empty=True)
        async for stream in all_streams(self._below, scan):
            past[stream.name] = _PastStream(stream)
        name = None if self._index is None else await self._index.entry_name()
        current = Scan(scope=scope, kinds=VERSIONED_KINDS, below=below, derived=() if name is None else (RECALL,))
        # Before the versions: what is replaced in between is then in both, and not in neither.
        async for record in scan_all(self._below, current):
            derived = {name: record.derived[RECALL]} if name is not None and RECALL in record.derived else {}
            stream_of = past.setdefault((record.scope.path, record.kind), _PastStream(None))
            stream_of.current[record.key] = replace(record, derived=derived)
        versions, purges = await read_versions(self._below, scope, below=below)
        for version in versions:
            stream_of = past.setdefault((version.record.scope.path, version.record.kind), _PastStream(None))
            stream_of.versions.setdefault(version.record.key, []).append(version)
        for purge in purges:
            past.setdefault((purge.scope.path, purge.kind), _PastStream(None)).purges.append(purge)
        for (path, kind), known in past.items():
            if (found := known.at(ScopePath(path), kind, self._moment)) is not None:
                self._past.load_stream(*found)
        self._loaded.append((scope, below))


class _PastStream(Struct):
    """A stream as it is now, with its earlier versions, those of each key in their order."""

    stream: Stream | None
    current: dict[str, Record] = field(default_factory=dict)
    versions: dict[str, list[KeptVersion]] = field(default_factory=dict)
    purges: list[PurgeRecord] = field(default_factory=list)

    def at(self, scope: ScopePath, kind: str, moment: datetime) -> tuple[Stream, list[Record]] | None:
        """Return the stream and its records at a moment; None if it did not exist."""
        times = [purge.time for purge in self.purges]
        found_at: list[tuple[tuple[int, int, int], Record]] = []
        for key in self.versions.keys() | self.current.keys():
            found: Record | None = None
            place: tuple[int, int] | None = None
            versions = self.versions.get(key, [])
            for version in versions:
                times += [_updated(version.record), version.ended]
                if times[-2] <= moment:
                    found, place = version.record, version.place
                if version.removed and version.ended <= moment:
                    found = None
            if (now := self.current.get(key)) is not None:
                times.append(_updated(now))
                found, place = (now, None) if times[-1] <= moment else (found, place)
            if found is not None:
                found_at.append(((found.seq, 0, 0) if place is None else (place[0], 1, place[1]), found))
        times = [time for time in times if time <= moment]
        if not times:
            return None
        found_at.sort(key=lambda one: (one[0], _updated(one[1]), one[1].key))
        records = [replace(record, seq=seq) for seq, (_, record) in enumerate(found_at, 1)]
        return self._stream(scope, kind, moment, max(times), records), records

    def _stream(
        self, scope: ScopePath, kind: str, moment: datetime, updated: datetime, records: list[Record]
    ) -> Stream:
        """Return the stream; settings are those that it has now, or had when it was purged next."""
        purge = next((one for one in self.purges if one.time > moment), None)
        created, ttl, settings = updated, None, None
        if purge is not None:
            created, settings = purge.created or updated, purge.settings
            ttl = None if purge.ttl is None else timedelta(seconds=purge.ttl)
        elif self.stream is not None:
            created, ttl, settings = self.stream.created, self.stream.ttl, self.stream.settings
        return Stream(
            scope=scope,
            kind=kind,
            count=len(records),
            weight=sum(record.weight for record in records),
            last_seq=max((record.seq for record in records), default=0),
            version=max((record.version for record in records), default=0),
            created=min(created, updated),
            updated=updated,
            expires=None if ttl is None else updated + ttl,
            ttl=ttl,
            settings=settings,
        )


def _updated(record: Record) -> datetime:
    assert record.updated is not None
    return record.updated


async def as_of_store(store: SearchableStore, moment: datetime) -> AsOfStore:
    """Return a store as it was at a moment.

    Raises InvalidValueError for a moment in the future, or before the history of the store begins.
    """
    moment = check_time(moment, "moment")
    if isinstance(store, AsOfStore):
        raise InvalidValueError("this scope is as of a moment already: call as_of of the scope itself")
    if moment > store.clock():
        raise InvalidValueError(f"as_of takes a moment in the past, not {moment.isoformat()}")
    since = await history_since(store)
    if since is None:
        raise InvalidValueError("this store has no history: open the memory with history=timedelta(days=30), or so")
    if moment < since:
        raise InvalidValueError(f"the history of this store begins at {since.isoformat()}, after {moment.isoformat()}")
    return AsOfStore(store, moment)
