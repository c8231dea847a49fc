"""The index of one scope, in memory: columns of what is known of each text, postings of terms, vectors.

Documents are numbered as they come and the number of one that is gone is not used again; when most are
gone, a shard is better built anew. Nothing here does I/O, and a lock is the caller's to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import simsimd

from ..checks import to_microseconds
from ..records import ROLES, Record, Ref, Stream, known_scope
from .entry import SPEAKING, Entry, Marks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Whole = NDArray[np.signedinteger[Any]]
    Flags = NDArray[np.bool_]

NEVER = 2**62
"""A time that does not come, and its opposite one that was always past."""
NONE = -1
"""The number of no document."""
BLOCK = 65_536
"""How many vectors lie together; a matrix that grows by blocks is never copied."""
EXACT = 250_000
"""Up to how many vectors every one is compared; beyond that, only those whose signs agree best."""
RESCORED = 4_000
"""How many vectors are compared exactly when not all are."""
CONTEXT = {-2: 0.6, -1: 1.0, 1: 0.8, 2: 0.3}
"""How much of its neighbours' vectors goes into that of a turn in its context."""
SPEAKERS = tuple(ROLES.index(role) + 1 for role in SPEAKING)
"""The numbers of the roles whose messages are turns of a conversation."""
CALL = int(Marks.CALL)
MOST = 1e30
"""The greatest importance that is told from a greater one."""
PARTS = 8
"""In how many parts the postings lie."""
KEY_BYTES, STREAM_BYTES = 100, 2_000
"""How much memory a key takes, and what is noted of a stream, roughly."""
PENDING = 2_000
"""How many terms are kept unsorted before they are sorted in among the others."""

Name = tuple[str, str]
"""A stream's scope and kind."""


class Column:
    """An array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self._held = np.zeros(64, dtype=dtype)
        self._size = 0

    @property
    def values(self) -> NDArray[Any]:
        """All values so far; writing to them changes the column."""
        return self._held[: self._size]

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self._held.nbytes

    def extend(self, values: Any) -> None:
        """Add values at the end."""
        end = self._size + len(values)
        if end > len(self._held):
            grown = np.zeros(max(end, self._size + self._size // 2), dtype=self._held.dtype)
            grown[: self._size] = self._held[: self._size]
            self._held = grown
        self._held[self._size : end] = values
        self._size = end


class Sorted:
    """Terms in order, with the documents that hold each and how often: one part of the postings."""

    def __init__(self) -> None:
        self.terms = np.zeros(0, dtype=np.uint32)
        self.starts = np.zeros(1, dtype=np.int64)
        self.documents = np.zeros(0, dtype=np.int32)
        self.times = np.zeros(0, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.terms.nbytes + self.starts.nbytes + self.documents.nbytes + self.times.nbytes

    def merge(self, terms: NDArray[np.uint32], documents: NDArray[np.int32]) -> None:
        """Sort new terms in, one for each time that a document holds it."""
        both = terms.astype(np.uint64) << np.uint64(32)
        both |= documents.astype(np.uint64)
        both, times = np.unique(both, return_counts=True)
        times = np.minimum(times, 255).astype(np.uint8)
        if len(self.documents):
            old = np.repeat(self.terms, np.diff(self.starts)).astype(np.uint64) << np.uint64(32)
            old |= self.documents.astype(np.uint64)
            both = np.concatenate((old, both))
            order = np.argsort(both, kind="stable")
            both, times = both[order], np.concatenate((self.times, times))[order]
        held = (both >> np.uint64(32)).astype(np.uint32)
        self.documents = (both & np.uint64(0xFFFFFFFF)).astype(np.int32)
        self.times = times
        edges = np.append(0, np.flatnonzero(np.diff(held)) + 1)
        self.terms = held[edges]
        self.starts = np.append(edges, len(held)).astype(np.int64)

    def of(self, term: int) -> slice:
        """Return where the documents of a term lie."""
        place = int(np.searchsorted(self.terms, term))
        if place < len(self.terms) and self.terms[place] == term:
            return slice(int(self.starts[place]), int(self.starts[place + 1]))
        return slice(0, 0)


class Postings:
    """Which documents hold which term, and how often: sorted parts, and a small one that is not yet.

    There are several parts so that sorting one needs little memory.
    """

    def __init__(self) -> None:
        self._parts = [Sorted() for _ in range(PARTS)]
        self._sorted = 0
        self._new_terms = Column(np.uint32)
        self._new_documents = Column(np.int32)
        self._fresh: Sorted | None = None
        """The new terms, sorted by themselves, until there are more."""

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        parts = sum(part.nbytes for part in (*self._parts, self._fresh) if part is not None)
        return parts + self._new_terms.nbytes + self._new_documents.nbytes

    def add(self, terms: NDArray[np.uint32], documents: NDArray[np.int32]) -> None:
        """Note for each term which document holds it; one that it holds twice comes twice."""
        self._new_terms.extend(terms)
        self._new_documents.extend(documents)
        self._fresh = None

    def settle(self) -> None:
        """Sort new terms in, if they are many."""
        terms, documents = self._new_terms.values, self._new_documents.values
        if len(terms) > max(PENDING, self._sorted // 4):
            which = terms % PARTS
            for number, part in enumerate(self._parts):
                here = which == number
                if here.any():
                    part.merge(terms[here], documents[here])
            self._sorted = sum(len(part.documents) for part in self._parts)
            self._new_terms, self._new_documents = Column(np.uint32), Column(np.int32)
            self._fresh = None

    def of(self, term: int) -> tuple[NDArray[np.int32], Floats]:
        """Return the documents that hold a term, and how often each does."""
        part = self._parts[term % PARTS]
        place = part.of(term)
        documents, times = part.documents[place], part.times[place].astype(np.float32)
        if len(self._new_terms.values):
            if self._fresh is None:
                self._fresh = Sorted()
                self._fresh.merge(self._new_terms.values, self._new_documents.values)
            place = self._fresh.of(term)
            if place.start != place.stop:
                documents = np.concatenate((documents, self._fresh.documents[place]))
                times = np.concatenate((times, self._fresh.times[place].astype(np.float32)))
        return documents, times

    def terms_of(self, document: int) -> NDArray[np.uint32]:
        """Return the terms that a document holds, each once; slow, for a few documents."""
        found = [self._new_terms.values[self._new_documents.values == document]]
        for part in self._parts:
            places = np.flatnonzero(part.documents == document)
            found.append(part.terms[np.searchsorted(part.starts, places, side="right") - 1])
        return np.unique(np.concatenate(found))


class Vectors:
    """Vectors of eight-bit numbers, in blocks, with the document that each belongs to."""

    def __init__(self) -> None:
        self.dimensions = 0
        self.size = 0
        self.owners = Column(np.int32)
        self.several = False
        """Whether some document has more than one."""
        self._blocks: list[NDArray[np.int8]] = []
        self._signs: list[NDArray[np.uint8]] = []
        self._inverses = Column(np.float32)

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        blocks = sum(block.nbytes for block in (*self._blocks, *self._signs))
        return blocks + self.owners.nbytes + self._inverses.nbytes

    def extend(self, rows: NDArray[np.int8], owners: NDArray[np.int32]) -> None:
        """Add vectors, each with its document."""
        self.dimensions = rows.shape[1]
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float32))
        self._inverses.extend(np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0))
        self.owners.extend(owners)
        while len(rows):
            used = self.size % BLOCK
            if not used:
                self._blocks.append(np.zeros((0, self.dimensions), dtype=np.int8))
            room = min(BLOCK - used, len(rows))
            block = self._blocks[-1]
            if used + room > len(block):
                grown = np.zeros((min(BLOCK, max(used + room, 2 * len(block))), self.dimensions), np.int8)
                grown[:used] = block[:used]
                self._blocks[-1] = block = grown
            block[used : used + room] = rows[:room]
            rows = rows[room:]
            self.size += room

    def of(self, rows: Whole) -> NDArray[np.int8]:
        """Return some of the vectors."""
        found = np.zeros((len(rows), self.dimensions), dtype=np.int8)
        for number, block in enumerate(self._blocks):
            here = np.flatnonzero(rows // BLOCK == number)
            found[here] = block[rows[here] % BLOCK]
        return found

    def inverses(self, rows: Whole) -> Floats:
        """Return by what some of the vectors are to be multiplied to have the length one."""
        found: Floats = self._inverses.values[rows]
        return found

    def compare(self, query: NDArray[np.int8]) -> tuple[Floats, NDArray[np.int32], bool]:
        """Return the cosine of each vector with the query, their documents, and whether all were compared."""
        if self.size <= EXACT:
            products = np.concatenate(
                [_products(query, block[: self.size - n * BLOCK]) for n, block in enumerate(self._blocks)]
            )
            rows, exact = slice(None), True
        else:
            rows, exact = self._likely(query), False
            products = _products(query, self.of(rows))
        length = float(np.sqrt(np.dot(query.astype(np.float32), query.astype(np.float32))))
        scale = np.float32(1 / length if length else 0)
        return products * self._inverses.values[rows] * scale, self.owners.values[rows], exact

    def _likely(self, query: NDArray[np.int8]) -> Any:
        """Return the vectors whose signs agree best with those of the query."""
        sign = np.packbits(query > 0)[None]
        while len(self._signs) < len(self._blocks):
            self._signs.append(np.zeros((0, len(sign[0])), dtype=np.uint8))
        distances = []
        for number, block in enumerate(self._blocks):
            held = block[: self.size - number * BLOCK]
            known = self._signs[number]
            if len(known) < len(held):
                fresh = np.packbits(held[len(known) :] > 0, axis=1)
                self._signs[number] = known = np.concatenate((known, fresh))
            distances.append(np.asarray(simsimd.cdist(sign, known, "hamming", dtype="bin8"))[0])
        apart = np.concatenate(distances)
        return np.sort(np.argpartition(apart, RESCORED)[:RESCORED])


class Shard:
    """All that recall knows of the texts in a scope and below it."""

    def __init__(self, *, sparse: bool = False) -> None:
        """`sparse` says that only some of the texts are here: turns that follow here may not follow there."""
        self.sparse = sparse
        self.versions: dict[Name, int] = {}
        self.born: dict[Name, datetime] = {}
        self.numbers: dict[Name, int] = {}
        self.streams: list[Name] = []
        self.last: list[int] = []
        """By stream, the last document that is a turn of a conversation."""
        self.last_seq: list[int] = []
        self.sessions: dict[str, int] = {}
        self.session_count = 0
        self.only_turns = True
        self.speakers: dict[str, int] = {"": 0}
        self.keys: list[str] = []
        self.stream = Column(np.int32)
        self.seq = Column(np.int64)
        self.created = Column(np.int64)
        self.expires = Column(np.int64)
        self.valid_from = Column(np.int64)
        self.valid_to = Column(np.int64)
        self.importance = Column(np.float32)
        self.pinned = Column(np.bool_)
        self.used = Column(np.int64)
        self.uses = Column(np.float32)
        self.length = Column(np.float32)
        self.marks = Column(np.uint8)
        self.role = Column(np.uint8)
        self.spoken = Column(np.bool_)
        """Whether a document is a turn that a user or an assistant spoke: no system message, no tool's."""
        self.speaker = Column(np.int32)
        self.session = Column(np.int32)
        self.before = Column(np.int32)
        self.after = Column(np.int32)
        self.digest = Column(np.uint64)
        self.first_row = Column(np.int32)
        """The first of a document's vectors; NONE where it has none."""
        self.context = Column(np.float32)
        """The length of a document's vector with those of its neighbours added; NaN until it is known."""
        self.alive = Column(np.bool_)
        self.postings = Postings()
        self.vectors = Vectors()
        self.silent: dict[Name, set[int]] = {}
        """The seqs of a stream's records that have no text."""
        self.ends: dict[Name, int] = {}
        """When a stream expires, of those that do."""
        self.lacking: dict[int, int] = {}
        """Documents whose vectors are not made yet, and the version of the record."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """How much memory it takes, with a guess at what Python adds to each key and stream."""
        columns = sum(held.nbytes for held in vars(self).values() if isinstance(held, Column))
        columns += self.postings.nbytes + self.vectors.nbytes
        return columns + KEY_BYTES * len(self) + STREAM_BYTES * len(self.streams)

    @property
    def worn(self) -> bool:
        """Whether most of what it holds is gone, so that it is better built anew."""
        return len(self) > 2 * int(np.count_nonzero(self.alive.values)) + 1000

    def seen(self, stream: Stream) -> int:
        """Return up to which version the stream was taken in; 0 if it is new, or another of that name."""
        name = (stream.scope.path, stream.kind)
        return self.versions.get(name, 0) if self.born.get(name) == stream.created else 0

    def held(self, stream: Stream) -> Whole:
        """Return the documents of a stream."""
        return self.held_by((stream.scope.path, stream.kind))

    def held_by(self, name: Name) -> Whole:
        """Return the documents of the stream of a name."""
        number = self.numbers.get(name)
        if number is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((self.stream.values == number) & self.alive.values)

    def of_keys(self, name: Name, keys: Sequence[str]) -> list[int]:
        """Return the documents of some keys of a stream."""
        wanted = set(keys)
        return [n for n in self.held_by(name).tolist() if self.keys[n] in wanted]

    def ref(self, document: int) -> Ref:
        """Return the identity of a document's record."""
        path, kind = self.streams[self.stream.values[document]]
        return Ref(known_scope(path), kind, self.keys[document])

    def begin(self, stream: Stream) -> None:
        """Forget a stream that was dropped, to take another of that name in."""
        name = (stream.scope.path, stream.kind)
        self.forget(name)
        self.born[name] = stream.created

    def forget(self, name: Name) -> None:
        """Forget a stream that is gone."""
        self.versions.pop(name, None)
        self.silent.pop(name, None)
        if name in self.numbers:
            number = self.numbers[name]
            self.drop(self.held_by(name))
            self.last[number] = NONE
            self.last_seq[number] = 0

    def lack_all(self) -> None:
        """Forget all vectors, since they are not as wide as those that are made now."""
        self.vectors = Vectors()
        self.first_row.values[:] = NONE
        self.context.values[:] = np.nan
        self.lacking = dict.fromkeys(np.flatnonzero(self.alive.values & (self.length.values > 0)).tolist(), 0)

    def add(self, stream: Stream, records: Sequence[Record], entries: Sequence[Entry]) -> list[int]:
        """Take records of one stream in, in order; return their numbers."""
        if not records:
            return []
        number = self._number(stream)
        seqs = np.fromiter((r.seq for r in records), dtype=np.int64, count=len(records))
        again = bool(seqs[0] <= self.last_seq[number])
        if again:
            # Some are new versions of what is there.
            held = self.held(stream)
            self.drop(held[np.isin(self.seq.values[held], seqs)])
        self.last_seq[number] = max(self.last_seq[number], int(seqs[-1]))
        first = len(self)
        documents = np.arange(first, first + len(records), dtype=np.int32)
        self.keys.extend(r.key for r in records)
        self.stream.extend(np.full(len(records), number))
        self.seq.extend(seqs)
        self.alive.extend(np.ones(len(records)))
        self.created.extend([_moment(r.created, 0) for r in records])
        self.expires.extend([_moment(r.expires, NEVER) for r in records])
        self.valid_from.extend([_moment(r.valid_from, -NEVER) for r in records])
        self.valid_to.extend([_moment(r.valid_to, NEVER) for r in records])
        self.importance.extend([np.nan if r.importance is None else min(r.importance, MOST) for r in records])
        self.pinned.extend([r.pinned for r in records])
        self.used.extend(np.zeros(len(records)))
        self.uses.extend(np.zeros(len(records)))
        self.marks.extend([e.marks for e in entries])
        self.role.extend([e.role for e in entries])
        self.spoken.extend([e.role in SPEAKERS and not e.marks & CALL for e in entries])
        self.speaker.extend([self.speakers.setdefault(e.speaker, len(self.speakers)) for e in entries])
        sizes = np.fromiter((len(e.terms) for e in entries), dtype=np.int64, count=len(entries))
        self.length.extend(sizes)
        terms = np.concatenate([e.terms for e in entries])
        self.postings.add(terms, np.repeat(documents, sizes))
        self.digest.extend(_digests(terms, sizes))
        self._link(number, documents)
        self._add_vectors(documents, entries)
        self.context.extend(np.full(len(records), np.nan))
        if again:
            self._relink(number)
        self._unsettle(documents[:1])
        return documents.tolist()

    def settle(self) -> None:
        """Put what was added in order, once there is enough of it."""
        self.postings.settle()

    def attach(self, document: int, vectors: NDArray[np.int8]) -> None:
        """Add the vectors of a document that had none."""
        self.lacking.pop(document, None)
        if self.alive.values[document]:
            self.first_row.values[document] = self.vectors.size
            self.vectors.extend(vectors, np.full(len(vectors), document, dtype=np.int32))
            self.vectors.several |= len(vectors) > 1
            self._unsettle(np.array([document]))

    def drop(self, documents: Whole) -> None:
        """Forget documents, and link those on both sides of each with one another."""
        if not len(documents):
            return
        self.alive.values[documents] = False
        self._unsettle(documents)
        before, after = self.before.values, self.after.values
        for document in documents.tolist():
            self.lacking.pop(document, None)
            left, right = int(before[document]), int(after[document])
            if left != NONE:
                after[left] = right
            if right != NONE:
                before[right] = left
            number = self.stream.values[document]
            if self.last[number] == document:
                self.last[number] = left

    def embed_contexts(self, near: dict[int, NDArray[np.int32]]) -> None:
        """Find the lengths of vectors in their contexts that are not known; `near` are the neighbours."""
        unknown = np.flatnonzero(np.isnan(self.context.values))
        for start in range(0, len(unknown), 4096):
            some = unknown[start : start + 4096]
            total = self._units(some)
            for step, share in CONTEXT.items():
                total += np.float32(share) * self._units(near[step][some])
            lengths = np.sqrt(np.einsum("ij,ij->i", total, total))
            self.context.values[some] = np.maximum(lengths, 1e-3)

    def _units(self, documents: Whole) -> Floats:
        """Return the vectors of documents with the length one; zeros where there is none."""
        rows = np.append(self.first_row.values, NONE)[documents]
        found = np.zeros((len(documents), self.vectors.dimensions), dtype=np.float32)
        held = np.flatnonzero(rows != NONE)
        found[held] = self.vectors.of(rows[held]) * self.vectors.inverses(rows[held])[:, None]
        return found

    def _unsettle(self, documents: Whole) -> None:
        """Note that documents have other neighbours, or other vectors, than before."""
        for column in (self.before.values, self.after.values):
            at = np.asarray(documents)
            for _ in range(3):
                self.context.values[at] = np.nan
                at = column[at]
                at = at[at != NONE]

    def _number(self, stream: Stream) -> int:
        name = (stream.scope.path, stream.kind)
        if name not in self.numbers:
            self.numbers[name] = len(self.streams)
            self.streams.append(name)
            self.last.append(NONE)
            self.last_seq.append(0)
            self.born.setdefault(name, stream.created)
        return self.numbers[name]

    def _link(self, number: int, documents: NDArray[np.int32]) -> None:
        """Chain the turns of a conversation, which are one session; any other text is one by itself.

        System messages and the traffic of tools are no turns: they lend their words to no neighbour.
        """
        before = np.full(len(documents), NONE, dtype=np.int32)
        after = np.full(len(documents), NONE, dtype=np.int32)
        sessions = np.zeros(len(documents), dtype=np.int32)
        first = int(documents[0])
        turns = np.flatnonzero(self.spoken.values[first:])
        if len(turns):
            before[turns[1:]] = documents[turns[:-1]]
            after[turns[:-1]] = documents[turns[1:]]
            if self.sparse:
                apart = np.flatnonzero(np.diff(self.seq.values[documents[turns]]) > 1)
                before[turns[apart + 1]] = after[turns[apart]] = NONE
            before[turns[0]] = self.last[number]
            self.last[number] = int(documents[turns[-1]])
            path = self.streams[number][0]
            if path not in self.sessions:
                self.sessions[path] = self.session_count
                self.session_count += 1
            sessions[turns] = self.sessions[path]
        alone = np.flatnonzero(~self.spoken.values[first:])
        self.only_turns &= not len(alone)
        sessions[alone] = np.arange(self.session_count, self.session_count + len(alone))
        self.session_count += len(alone)
        self.session.extend(sessions)
        self.before.extend(before)
        self.after.extend(after)
        if len(turns) and before[turns[0]] != NONE:
            self.after.values[before[turns[0]]] = documents[turns[0]]

    def _relink(self, number: int) -> None:
        """Chain the turns of a stream anew, by their seqs, since some came late."""
        turns = np.flatnonzero((self.stream.values == number) & self.alive.values & self.spoken.values)
        if len(turns):
            turns = turns[np.argsort(self.seq.values[turns])]
            self.before.values[turns] = np.append(NONE, turns[:-1])
            self.after.values[turns] = np.append(turns[1:], NONE)
            self.last[number] = int(turns[-1])
            self.context.values[turns] = np.nan

    def _add_vectors(self, documents: NDArray[np.int32], entries: Sequence[Entry]) -> None:
        held = [(n, e.vectors) for n, e in zip(documents, entries, strict=True) if e.vectors is not None]
        first = np.full(len(documents), NONE, dtype=np.int32)
        if held:
            sizes = np.fromiter((len(v) for _, v in held), dtype=np.int64, count=len(held))
            owners = np.repeat([n for n, _ in held], sizes).astype(np.int32)
            first[[n - documents[0] for n, _ in held]] = self.vectors.size + np.cumsum(sizes) - sizes
            self.vectors.extend(np.concatenate([v for _, v in held]), owners)
            self.vectors.several |= len(owners) > len(held)
        self.first_row.extend(first)


def _moment(time: datetime | None, otherwise: int) -> int:
    return otherwise if time is None else to_microseconds(time)


def _products(query: NDArray[np.int8], rows: NDArray[np.int8]) -> Floats:
    found: Floats = np.asarray(simsimd.cdist(query[None], rows, "dot"))[0].astype(np.float32)
    return found


def _digests(terms: NDArray[np.uint32], sizes: Whole) -> NDArray[np.uint64]:
    """Return a number for each text that is the same for texts of the same terms in the same order."""
    starts = np.cumsum(sizes) - sizes
    places = np.arange(len(terms), dtype=np.uint64) - np.repeat(starts, sizes).astype(np.uint64)
    mixed = (terms.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(2) * places + np.uint64(1)
    found = np.zeros(len(sizes), dtype=np.uint64)
    held = np.flatnonzero(sizes)
    if len(held):
        found[held] = np.add.reduceat(mixed, starts[held])
    return found
