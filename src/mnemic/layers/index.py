"""The index layer: search for stores that have none, from terms kept in this process.

Nothing of it is stored. An index is built when a scope is first searched, and before each search it
takes in what has been written since, by this process or another. Terms are counted within the
searched scope alone, so what other users have stored neither slows a search nor changes its order.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ..checks import to_microseconds
from ..driving import off_loop
from ..records import Hit, Record, Ref, Scope, Stream, now
from ..store.analysis import terms
from ..store.matching import matches, true_at
from ..store.protocol import Capability, Store, all_streams, scan_all
from ..store.query import Scan, Search, StreamScan
from ..store.ranking import bm25, rarity
from .layer import Layer

MAX_DOCUMENTS = 2_000_000
"""How many documents the indexes of all scopes hold together, before the least used of them goes."""
FIRST_BATCH = 32
"""How many of the best candidates are read and filtered at first; each further batch is four times that."""
NEVER = 2**62
"""When a record expires that does not."""

NO_DOCUMENT = -1
"""The number of a record that has no text."""

Name = tuple[str, str]
"""A stream's scope and kind."""


class Change(Struct):
    """What has happened to a stream since it was last taken in."""

    stream: Stream
    since: int
    written: list[Record]
    present: set[str] | None
    """All keys that are there, if some that were are not."""


class ScopeIndex:
    """The terms of all records with text in a scope and below it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.versions: dict[Name, int] = {}
        self.born: dict[Name, datetime] = {}
        self.places: dict[Name, dict[str, int]] = {}
        """By stream and key, the number of the document; numbers are not used again."""
        self.refs: list[Ref | None] = []
        self.lengths = array("f")
        self.expiries = array("q")
        self.kinds = array("i")
        self.kind_numbers: dict[str, int] = {}
        self.postings: dict[str, tuple[array[int], array[float]]] = {}
        self.alive = 0
        self.total_length = 0.0

    def __len__(self) -> int:
        return len(self.refs)

    def seen(self, stream: Stream) -> int:
        """Return up to which version the stream was taken in; 0 if it is new, or another of that name."""
        name = (stream.scope.path, stream.kind)
        return self.versions.get(name, 0) if self.born.get(name) == stream.created else 0

    @property
    def worn(self) -> bool:
        """Whether most of what it holds is gone, so that it is better built anew."""
        return len(self) > 2 * self.alive + 1000

    def take_in(self, change: Change) -> bool:
        """Apply a change; False if the stream is no longer at the version that it starts from."""
        name = (change.stream.scope.path, change.stream.kind)
        if self.seen(change.stream) != change.since:
            return False
        places = self.places.setdefault(name, {})
        if not change.since:
            # A stream that was dropped and begun anew has nothing of the old one.
            for number in places.values():
                self._drop(number)
            places.clear()
        self.born[name] = change.stream.created
        for record in change.written:
            self._drop(places.pop(record.key, NO_DOCUMENT))
            places[record.key] = self._add(record) if record.text else NO_DOCUMENT
        if change.present is not None:
            for key in places.keys() - change.present:
                self._drop(places.pop(key))
        self.versions[name] = change.stream.version
        return True

    def best(self, query: Iterable[str], kinds: tuple[str, ...], moment: int) -> list[tuple[int, float]]:
        """Return the documents that hold any term of the query, with their scores, best first."""
        import numpy as np

        if not self.alive:
            return []
        scores = np.zeros(len(self), dtype=np.float32)
        lengths = np.frombuffer(self.lengths, dtype=np.float32)
        mean = self.total_length / self.alive
        alive = np.frombuffer(self.expiries, dtype=np.int64) > 0
        for term, times in Counter(query).items():
            if term not in self.postings:
                continue
            held, counts = self.postings[term]
            documents = np.frombuffer(held, dtype=np.int32)
            occurrences = np.frombuffer(counts, dtype=np.float32)
            holding = int(np.count_nonzero(alive[documents]))
            weight = times * rarity(self.alive, holding)
            scores[documents] += bm25(occurrences, lengths[documents], mean, weight)
        visible = np.frombuffer(self.expiries, dtype=np.int64) > moment
        if kinds:
            wanted = [self.kind_numbers.get(kind, -1) for kind in kinds]
            visible &= np.isin(np.frombuffer(self.kinds, dtype=np.int32), wanted)
        found = np.flatnonzero(visible & (scores > 0))
        order = found[np.argsort(-scores[found], kind="stable")]
        return [(int(n), float(scores[n])) for n in order]

    def _add(self, record: Record) -> int:
        number = len(self.refs)
        counts = Counter(terms(record.text or ""))
        length = float(sum(counts.values()))
        self.refs.append(record.ref)
        self.lengths.append(length)
        self.expiries.append(NEVER if record.expires is None else to_microseconds(record.expires))
        self.kinds.append(self.kind_numbers.setdefault(record.kind, len(self.kind_numbers)))
        for term, times in counts.items():
            if term not in self.postings:
                self.postings[term] = (array("i"), array("f"))
            documents, occurrences = self.postings[term]
            documents.append(number)
            occurrences.append(times)
        self.alive += 1
        self.total_length += length
        return number

    def _drop(self, number: int) -> None:
        if number != NO_DOCUMENT:
            self.refs[number] = None
            self.expiries[number] = 0
            self.alive -= 1
            self.total_length -= self.lengths[number]


class IndexLayer(Layer):
    """Gives `search` to a store that has none."""

    def __init__(self, below: Store, max_documents: int = MAX_DOCUMENTS) -> None:
        super().__init__(below)
        self._max_documents = max_documents
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Scope, ScopeIndex] = OrderedDict()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the store below can do, and search."""
        return self._below.capabilities | {Capability.LEXICAL}

    async def search(self, search: Search) -> list[Hit]:
        """Return the best records; read, and filtered, only as far down as it takes to have enough."""
        if not search.limit:
            return []
        index = self._index_of(search.scope)
        await self._catch_up(index, search.scope)
        moment = now()
        with index.lock:
            ranked = index.best(terms(search.query), search.kinds, to_microseconds(moment))
            candidates = [(ref, score) for n, score in ranked if (ref := index.refs[n]) is not None]
        hits: list[Hit] = []
        start, size = 0, max(FIRST_BATCH, search.limit)
        while start < len(candidates) and len(hits) < search.limit:
            batch = candidates[start : start + size]
            start, size = start + size, size * 4
            records = await self._below.read([ref for ref, _ in batch])
            for record, (_, score) in zip(records, batch, strict=True):
                if record is not None and _wanted(record, search):
                    hits.append(Hit(record=record, score=score, why={"lexical": score}))
        return hits[: search.limit]

    def _index_of(self, scope: Scope) -> ScopeIndex:
        with self._lock:
            index = self._indexes.get(scope)
            if index is None or index.worn:
                index = self._indexes[scope] = ScopeIndex()
            self._indexes.move_to_end(scope)
            held = sum(map(len, self._indexes.values()))
            while held > self._max_documents and len(self._indexes) > 1:
                _, oldest = self._indexes.popitem(last=False)
                held -= len(oldest)
            return index

    async def _catch_up(self, index: ScopeIndex, scope: Scope) -> None:
        """Take in all that was written since the last search."""
        async for stream in all_streams(self._below, StreamScan(scope=scope, empty=True)):
            while not await self._catch_up_stream(index, stream):
                # Another search has taken in part of it meanwhile.
                continue

    async def _catch_up_stream(self, index: ScopeIndex, stream: Stream) -> bool:
        since = index.seen(stream)
        if since and since >= stream.version:
            return True
        name = (stream.scope.path, stream.kind)
        everything = Scan(scope=stream.scope, kinds=(stream.kind,))
        written = [r async for r in scan_all(self._below, replace(everything, after_version=since))]
        known = (index.places.get(name, {}).keys() if since else set()) | {r.key for r in written}
        present = None
        if len(known) != stream.count:
            keys = scan_all(self._below, replace(everything, bodies=False))
            present = {record.key async for record in keys}

        def take_in() -> bool:
            with index.lock:
                return index.take_in(Change(stream, since, written, present))

        # A few records are taken in faster than a thread is found.
        return take_in() if len(written) < 50 else await off_loop(take_in)


def _wanted(record: Record, search: Search) -> bool:
    return matches(record, search.where) and (search.as_of is None or true_at(record, search.as_of))
