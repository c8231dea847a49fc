"""The arrays of an index: growable columns, postings of terms, and blocks of 8-bit vectors. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import simsimd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Whole = NDArray[np.signedinteger[Any]]

BLOCK = 65_536
"""Vectors per block; growing by blocks avoids copying."""
EXACT = 250_000
"""Maximum number of vectors that are all compared; above it, only those whose signs agree best."""
RESCORED = 4_000
"""How many vectors are compared exactly if not all are."""
PARTS = 8
"""Number of posting partitions."""
PENDING = 2_000
"""How many unsorted terms are buffered before they are merged."""


class Column:
    """A growable array."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.zeros(64, dtype=dtype)
        self._size = 0

    @property
    def values(self) -> NDArray[Any]:
        """All values; writing to them changes the column."""
        return self._array[: self._size]

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def extend(self, values: Any) -> None:
        end = self._size + len(values)
        if end > len(self._array):
            grown = np.zeros(max(end, self._size + self._size // 2), dtype=self._array.dtype)
            grown[: self._size] = self._array[: self._size]
            self._array = grown
        self._array[self._size : end] = values
        self._size = end


class Sorted:
    """One partition of the postings: sorted terms with their documents and frequencies."""

    def __init__(self) -> None:
        self.terms: NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)
        self.starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.documents: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.times: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        return self.terms.nbytes + self.starts.nbytes + self.documents.nbytes + self.times.nbytes

    def merge(self, terms: NDArray[np.uint32], documents: NDArray[np.int32]) -> None:
        """Merge new terms, one for each occurrence in a document."""
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
        repeated = (both >> np.uint64(32)).astype(np.uint32)
        self.documents = (both & np.uint64(0xFFFFFFFF)).astype(np.int32)
        self.times = times
        edges = np.append(0, np.flatnonzero(np.diff(repeated)) + 1)
        self.terms = repeated[edges]
        self.starts = np.append(edges, len(repeated)).astype(np.int64)

    def of(self, term: int) -> slice:
        """Return the slice of a term's documents."""
        place = int(np.searchsorted(self.terms, term))
        if place < len(self.terms) and self.terms[place] == term:
            return slice(int(self.starts[place]), int(self.starts[place + 1]))
        return slice(0, 0)


class Postings:
    """Inverted index from terms to documents and frequencies: sorted partitions and an unsorted buffer.

    Partitions bound the memory that sorting needs.
    """

    def __init__(self) -> None:
        self._parts = [Sorted() for _ in range(PARTS)]
        self._sorted = 0
        self._new_terms = Column(np.uint32)
        self._new_documents = Column(np.int32)
        self._fresh: Sorted | None = None
        """Buffered terms, sorted, until more arrive."""

    @property
    def nbytes(self) -> int:
        parts = sum(part.nbytes for part in (*self._parts, self._fresh) if part is not None)
        return parts + self._new_terms.nbytes + self._new_documents.nbytes

    def add(self, terms: NDArray[np.uint32], documents: NDArray[np.int32]) -> None:
        """Add terms with their documents; repeat a term that a document contains more than once."""
        self._new_terms.extend(terms)
        self._new_documents.extend(documents)
        self._fresh = None

    def merge_buffer(self) -> None:
        """Merge the buffer if it is large."""
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
        """Return the documents of a term, and its frequency in each."""
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
        """Return the distinct terms of a document; slow, for few documents only."""
        found = [self._new_terms.values[self._new_documents.values == document]]
        for part in self._parts:
            places = np.flatnonzero(part.documents == document)
            found.append(part.terms[np.searchsorted(part.starts, places, side="right") - 1])
        return np.unique(np.concatenate(found))


class Vectors:
    """8-bit vectors in blocks, each with its document."""

    def __init__(self) -> None:
        self.dimensions: int = 0
        self.size: int = 0
        self.owners: Column = Column(np.int32)
        self.multiple = False
        """Whether a document has more than one vector."""
        self._blocks: list[NDArray[np.int8]] = []
        self._signs: list[NDArray[np.uint8]] = []
        self._inverses = Column(np.float32)

    @property
    def nbytes(self) -> int:
        blocks = sum(block.nbytes for block in (*self._blocks, *self._signs))
        return blocks + self.owners.nbytes + self._inverses.nbytes

    def extend(self, rows: NDArray[np.int8], owners: NDArray[np.int32]) -> None:
        """Append vectors with their documents."""
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
        """Return the vectors of some rows."""
        found = np.zeros((len(rows), self.dimensions), dtype=np.int8)
        for number, block in enumerate(self._blocks):
            here = np.flatnonzero(rows // BLOCK == number)
            found[here] = block[rows[here] % BLOCK]
        return found

    def units(self, rows: Whole) -> Floats:
        """Return the vectors of some rows, normalized to length one."""
        found: Floats = self.of(rows) * self._inverses.values[rows][:, None]
        return found

    def compare(self, query: NDArray[np.int8]) -> tuple[Floats, NDArray[np.int32], bool]:
        """Return each vector's cosine with the query, its document, and whether all were compared."""
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
        """Return the vectors whose signs agree best with the query."""
        sign = np.packbits(query > 0)[None]
        while len(self._signs) < len(self._blocks):
            self._signs.append(np.zeros((0, len(sign[0])), dtype=np.uint8))
        distances = []
        for number, block in enumerate(self._blocks):
            rows = block[: self.size - number * BLOCK]
            known = self._signs[number]
            if len(known) < len(rows):
                fresh = np.packbits(rows[len(known) :] > 0, axis=1)
                self._signs[number] = known = np.concatenate((known, fresh))
            distances.append(np.asarray(simsimd.cdist(sign, known, "hamming", dtype="bin8"))[0])
        apart = np.concatenate(distances)
        return np.sort(np.argpartition(apart, RESCORED)[:RESCORED])


def _products(query: NDArray[np.int8], rows: NDArray[np.int8]) -> Floats:
    found: Floats = np.asarray(simsimd.cdist(query[None], rows, "dot"))[0].astype(np.float32)
    return found
