"""The timeline of a scope: when its records were made, counted in buckets, without reading their texts."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ..checks import to_microseconds
from ..records import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, SUMMARY, Record, Ref, ScopePath, Stream
from ..store.matching import conditions
from ..store.protocol import Store, all_streams
from ..store.query import Scan, StreamScan
from .forgetting import REWRITTEN

TIMELINE_KINDS = (MESSAGE, ARCHIVED, SUMMARY, MEMORY, FACT, NOTE)
"""Kinds of records that have a place in time."""
SPOKEN = (MESSAGE, ARCHIVED)
"""Kinds that have a role."""
MOST_READ = 20_000
"""How many records one call reads at most; the next call continues."""
MOST_CACHED = 500_000
"""How many records are cached at most, over all scopes."""
PAGE = 2000
"""How many records are read at once."""
STREAMS_AT_ONCE = 8
"""How many streams are read at the same time."""
MOST = 1e30
"""Largest importance that is compared; greater ones count as this."""
NEVER = np.iinfo(np.int64).max

Numbers: TypeAlias = NDArray[Any]
Missing: TypeAlias = Literal["nothing", "more", "old"]
"""Missing parts of a timeline: nothing; more, which the next call reads; or old streams, too many to cache."""


class StreamTimes:
    """Position, time, importance, expiry and key of the records of one stream, as far as they were read."""

    def __init__(self, stream: Stream) -> None:
        self.scope: ScopePath = stream.scope
        self.kind: str = stream.kind
        self.created: datetime = stream.created
        self.version: int = stream.version
        """Version of the stream when reading began: what is newer has to be read."""
        self.cursor: str | None = None
        """Where reading goes on, if it did not reach the end."""
        self.complete = False
        self.keys: list[str] = []
        self.seqs: Numbers = np.empty(0, np.int64)
        self.times: Numbers = np.empty(0, np.int64)
        self.importance: Numbers = np.empty(0, np.float32)
        self.expires: Numbers = np.empty(0, np.int64)

    def add(self, records: Sequence[Record]) -> None:
        """Add records in order of their positions, or replace those that are here."""
        if not records:
            return
        seqs = np.fromiter((record.seq for record in records), np.int64, len(records))
        places = np.searchsorted(self.seqs, seqs)
        known = places < len(self.seqs)
        known[known] = self.seqs[places[known]] == seqs[known]
        values: dict[str, Numbers] = {
            "seqs": seqs,
            "times": np.fromiter(map(time_of, records), np.int64, len(records)),
            "importance": np.array(
                [np.nan if r.importance is None else min(max(r.importance, 0), MOST) for r in records], np.float32
            ),
            "expires": np.array([NEVER if r.expires is None else to_microseconds(r.expires) for r in records]),
        }
        for name, new in values.items():
            column = getattr(self, name).copy()
            column[places[known]] = new[known]
            setattr(self, name, np.concatenate((column, new[~known])))
        self.keys += [record.key for record, there in zip(records, known, strict=True) if not there]


def time_of(record: Record) -> int:
    """Return when a record happened, in microseconds: facts begin, notes and summaries change, others are made."""
    if record.kind == FACT:
        moment = record.valid_from
    else:
        moment = record.updated if record.kind in REWRITTEN else record.created
    return 0 if moment is None else to_microseconds(moment)


class TimelinePlace(Struct, frozen=True, array_like=True):
    """A place in a timeline; places order records of the same time."""

    time: int
    scope: str
    kind: str
    seq: int


DECADE = 10 * 365 * 86_400 * 1_000_000
"""Ten years in microseconds."""


class Timeline:
    """The records of a scope along time, as far as they were read: `read` of `total`."""

    def __init__(self, streams: list[StreamTimes], total: int, moment: int, missing: Missing = "nothing") -> None:
        self.total = total
        self.missing: Missing = missing
        self._streams = sorted(streams, key=lambda one: (one.scope.path, one.kind))
        self._names = [(one.scope.path, one.kind) for one in self._streams]
        counts = [len(one.seqs) for one in self._streams]
        self._streams_of = np.repeat(np.arange(len(counts)), counts)
        self._rows = np.concatenate([np.arange(count) for count in counts] or [np.empty(0, np.int64)])
        self._kinds = np.repeat([TIMELINE_KINDS.index(one.kind) for one in self._streams] or [0], counts or [0])
        self._seqs = self._joined("seqs")
        self._times = self._joined("times")
        self._importance = self._joined("importance")
        self._there = self._joined("expires") > moment
        self.read: int = int(self._there.sum())

    def _joined(self, name: str) -> Numbers:
        columns: list[Numbers] = [getattr(one, name) for one in self._streams]
        return np.concatenate(columns) if columns else np.empty(0, np.int64)

    def keep(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        min_importance: float | None = None,
        max_importance: float | None = None,
    ) -> None:
        """Keep what is from `since` on and before `until`, and within these bounds of importance."""
        if since is not None:
            self._there &= self._times >= to_microseconds(since)
        if until is not None:
            self._there &= self._times < to_microseconds(until)
        if min_importance is not None:
            self._there &= self._importance >= min_importance
        if max_importance is not None:
            self._there &= self._importance <= max_importance

    @property
    def extent(self) -> tuple[int, int] | None:
        """Times of the first and the last record, in microseconds; None if there is none."""
        times = self._times[self._there]
        return (int(times.min()), int(times.max())) if len(times) else None

    def usual(self, until: int) -> tuple[int, int] | None:
        """Return the extent without records before 1970 or from `until` on, if they make it ten times as long or more.

        A time that was written wrongly may be thousands of years away. Less than a century is shown whole.
        """
        whole, times = self.extent, self._times[self._there]
        near = times[(times >= 0) & (times < until)]
        if whole is None or not len(near):
            return whole
        first, last = int(near.min()), int(near.max())
        return (first, last) if whole[1] - whole[0] > 10 * max(last - first, DECADE) else whole

    def counts(self, since: int, until: int, buckets: int) -> dict[str, list[int]]:
        """Return the number of records in each of so many equal parts of a time, by kind."""
        here = self._there & (self._times >= since) & (self._times < until)
        width = max((until - since) / buckets, 1)
        parts = np.minimum(((self._times[here] - since) / width).astype(np.int64), buckets - 1)
        cells = np.bincount(self._kinds[here] * buckets + parts, minlength=buckets * len(TIMELINE_KINDS))
        return dict(zip(TIMELINE_KINDS, cells.reshape(-1, buckets).tolist(), strict=True))

    def newest(self, limit: int, before: TimelinePlace | None = None) -> tuple[list[Ref], TimelinePlace | None]:
        """Return the newest records, or the newest before a place, and the place of the last if there are more."""
        here = self._there
        if before is not None:
            name = (before.scope, before.kind)
            at = bisect_left(self._names, name)
            own = at < len(self._names) and self._names[at] == name
            same = self._streams_of < at
            if own:
                same |= (self._streams_of == at) & (self._seqs < before.seq)
            here = here & ((self._times < before.time) | ((self._times == before.time) & same))
        found = np.flatnonzero(here)
        order = np.lexsort((self._seqs[found], self._streams_of[found], self._times[found]))
        chosen = found[order[::-1][:limit]].tolist()
        refs = []
        for one in chosen:
            stream = self._streams[self._streams_of[one]]
            refs.append(Ref(stream.scope, stream.kind, stream.keys[self._rows[one]]))
        if len(found) <= limit or not chosen:
            return refs, None
        last = chosen[-1]
        scope, kind = self._names[self._streams_of[last]]
        return refs, TimelinePlace(int(self._times[last]), scope, kind, int(self._seqs[last]))


class TimelineCache:
    """Reads timelines: what has not changed since the last time, by the versions of streams, is not read again.

    A call reads at most `most_read` records, of the streams that changed last first; the next call continues. It
    serves one store, also through handles that show only a part of it: each sees only the streams of its own.
    """

    def __init__(self, most_read: int = MOST_READ, most_cached: int = MOST_CACHED) -> None:
        self._most_read = most_read
        self._most_cached = most_cached
        self._known: OrderedDict[tuple[str, str, tuple[str, ...]], StreamTimes] = OrderedDict()
        self._lock = asyncio.Lock()

    async def read(
        self,
        store: Store,
        scope: ScopePath,
        kinds: Sequence[str] = TIMELINE_KINDS,
        roles: Sequence[str] = (),
        visible: ScopePath | None = None,
    ) -> Timeline:
        """Return the timeline of a scope and those below; with `roles`, only of messages of these roles.

        `visible` is the scope that the store shows, if it is a handle for a part of it.
        """
        wanted = tuple(kind for kind in kinds if kind in SPOKEN or not roles)
        if not wanted:
            return Timeline([], 0, 0)
        scan = StreamScan(scope=scope, kinds=wanted)
        streams = [stream async for stream in all_streams(store, scan)]
        spoken = tuple(sorted(roles))
        async with self._lock:
            if visible is None or visible.contains(scope):
                self._drop_gone(scope, wanted, {stream.name for stream in streams})
            found, waiting = list[StreamTimes](), list[Stream]()
            for stream in sorted(streams, key=lambda one: one.updated, reverse=True):
                known = self._known.get((*stream.name, spoken))
                if known is not None:
                    self._known.move_to_end((*stream.name, spoken))
                if known is None or not known.complete or known.version != stream.version:
                    waiting.append(stream)
                else:
                    found.append(known)
            size = sum(len(one.seqs) for one in found)
            left = min(self._most_read, self._most_cached - size)
            for start in range(0, len(waiting), STREAMS_AT_ONCE):
                some = waiting[start : start + STREAMS_AT_ONCE]
                if left <= 0:
                    found += [known for one in some if (known := self._known.get((*one.name, spoken))) is not None]
                    continue
                room = max(left // len(some), PAGE)
                read = await asyncio.gather(*(self._update(store, one, spoken, room) for one in some))
                left -= sum(count for _, count in read)
                found += [times for times, _ in read]
            self._shrink({(one.scope.path, one.kind, spoken) for one in found})
        return Timeline(
            found,
            sum(stream.count for stream in streams),
            to_microseconds(store.clock()),
            self._missing(found, streams),
        )

    def _missing(self, found: list[StreamTimes], streams: list[Stream]) -> Missing:
        """Return whether a timeline lacks nothing, or what another call would read, or what is too much to cache."""
        if len(found) == len(streams) and all(one.complete for one in found):
            return "nothing"
        return "more" if sum(len(one.seqs) for one in found) < self._most_cached else "old"

    async def _update(self, store: Store, stream: Stream, roles: tuple[str, ...], room: int) -> tuple[StreamTimes, int]:
        """Read what is new in a stream, or all of it, but not much more than `room`; return how much was read."""
        times = self._known.get((*stream.name, roles))
        changed = times is not None and times.complete
        if times is None or times.created != stream.created or times.version > stream.version or (changed and roles):
            times, changed = StreamTimes(stream), False
        count = await self._read_on(store, stream, roles, times, None if changed else room)
        if changed and int((times.expires > to_microseconds(store.clock())).sum()) != stream.count:
            # Something was deleted, and a scan of changes does not say what.
            times = StreamTimes(stream)
            count += await self._read_on(store, stream, roles, times, room)
        self._known[(*stream.name, roles)] = times
        return times, count

    async def _read_on(
        self, store: Store, stream: Stream, roles: tuple[str, ...], times: StreamTimes, room: int | None
    ) -> int:
        """Read on where reading stopped, not much more than `room`; without it, what changed. Return how much."""
        scan = Scan(
            scope=stream.scope,
            kinds=(stream.kind,),
            where=conditions(roles=roles) if roles else (),  # type: ignore[arg-type]
            bodies=False,
            limit=PAGE,
            cursor=times.cursor,
            after_version=times.version if room is None else None,
        )
        count = 0
        while True:
            page = await store.scan(scan)
            times.add(page.items)
            count += len(page.items)
            times.cursor = page.cursor
            if page.cursor is None:
                times.complete = True
                times.version = stream.version if room is None else times.version
                return count
            if room is not None and count >= room:
                return count
            scan = replace(scan, cursor=page.cursor)

    def _drop_gone(self, scope: ScopePath, kinds: Sequence[str], there: set[tuple[str, str]]) -> None:
        """Forget streams of a scope that are no longer there, so that nothing of what was erased stays."""
        for path, kind, roles in list(self._known):
            if kind in kinds and (path, kind) not in there and scope.contains(ScopePath(path)):
                del self._known[path, kind, roles]

    def _shrink(self, used: set[tuple[str, str, tuple[str, ...]]]) -> None:
        """Forget the streams that were not used for the longest time, until the rest is small enough."""
        size = sum(len(one.seqs) for one in self._known.values())
        for name in [name for name in self._known if name not in used]:
            if size <= self._most_cached:
                break
            size -= len(self._known.pop(name).seqs)
