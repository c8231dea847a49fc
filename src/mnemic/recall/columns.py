"""The arrays of an index: growable columns, keys, postings of terms, and blocks of 8-bit vectors. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import simsimd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Whole = NDArray[np.signedinteger[Any]]

BLOCK = 4_096
"""Vectors per block; growing by blocks avoids copying, and memory for vectors to come."""
EXACT = 250_000
"""Maximum number of vectors that are all compared; above it, only those whose signs agree best."""
RESCORED = 4_000
"""How many vectors are compared exactly if not all are."""
PARTS = 8
"""Number of posting partitions."""
PENDING = 2_000
"""How many unsorted terms are buffered before they are merged."""
LOADED = 2_000_000
"""The same while an index is loaded."""
UNSORTED = 500
"""How many buffered terms are compared one by one."""
SMALL = 10_000
"""Number of values up to which an array grows by half."""
KEY_BYTES = 100
"""Approximate memory of a key that was not generated."""

_GENERATED = re.compile("[0-9a-f]*").fullmatch


class Column:
    """A growable array that takes no memory per value while all values are equal."""

    __slots__ = ("_array", "_equal", "_expected", "_most", "_size", "_temporary", "_widens", "values")

    values: NDArray[Any]
    """All values, to read; replaced whole, so that others can read while one thread appends."""

    def __init__(self, dtype: Any, *, widens: bool = False, temporary: bool = False) -> None:
        """`widens` means that an integer type becomes a larger one once a value needs it.

        `temporary` means that speed matters more than memory: the array always grows by half.
        """
        self._array = np.zeros(1, dtype=dtype)
        self._size = 0
        self._equal = True
        self._widens = widens
        self._temporary = temporary
        self._most = np.iinfo(dtype).max if widens else 0
        self._expected = 0
        self._show()

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def writable(self) -> NDArray[Any]:
        """Return all values, to write to."""
        if self._equal:
            self._equal = False
            self._resize(max(64, self._size, self._expected))
            self._show()
        return self.values

    def expect(self, count: int) -> None:
        """Reserve memory for so many more values, so that loading them copies nothing."""
        self._expected = self._size + count

    def repeat(self, value: Any, count: int) -> None:
        """Append a value so many times."""
        if self._equal and self._size and (self._array[0] == value or (value != value and np.isnan(self._array[0]))):
            self._size += count
            self._show()
        else:
            self.extend(np.full(count, value))

    def extend(self, values: Any) -> None:
        """Append values."""
        size = self._size
        room = not self._equal and size < len(self._array)
        if room and len(values) == 1 and (not self._widens or values[0] <= self._most):
            # One message at a time is the most common case, and a table has many columns.
            self._array[size] = values[0]
            self._size = size + 1
            self.values = self._array[: size + 1]
            return
        given = np.asarray(values, dtype=None if self._widens else self._array.dtype)
        count = len(given)
        if not count:
            return
        if self._widens and (most := given.max()) > self._most:
            self._array = self._array.astype(np.int32 if most < 2**31 else np.int64)
            self._most = np.iinfo(self._array.dtype).max
        if self._equal:
            if not self._size:
                self._array[0] = given[0]
            if _all_equal(given, self._array[0]):
                self._size += count
                self._show()
                return
            self.writable()
        end = self._size + count
        if end > len(self._array):
            # Large arrays grow slowly: what is reserved is memory too.
            grown = self._size + self._size // (2 if self._temporary or self._size < SMALL else 16)
            self._resize(max(end, self._expected if self._expected > self._size else grown))
        self._array[self._size : end] = given
        self._size = end
        self._show()

    def _resize(self, size: int) -> None:
        grown = np.empty(size, dtype=self._array.dtype)
        grown[: self._size] = self._array[: self._size]
        self._array = grown

    def _show(self) -> None:
        if self._equal:
            values = np.ndarray(self._size, self._array.dtype, self._array, strides=(0,))
            values.flags.writeable = False
            self.values = values
        else:
            self.values = self._array[: self._size]


def _all_equal(values: NDArray[Any], value: Any) -> bool:
    return bool((values == value).all()) or (value != value and bool(np.isnan(values).all()))


class Keys:
    """The keys of documents: 16 bytes each while all are generated ones, of 32 hexadecimal digits."""

    def __init__(self) -> None:
        self._high = Column(np.uint64)
        self._low = Column(np.uint64)
        self._others: list[str] | None = None
        """All keys, if one was not generated."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> str:
        if self._others is not None:
            return self._others[number]
        return f"{self._high.values[number]:016x}{self._low.values[number]:016x}"

    @property
    def nbytes(self) -> int:
        others = 0 if self._others is None else KEY_BYTES * self._size
        return others + self._high.nbytes + self._low.nbytes

    def expect(self, count: int) -> None:
        """Reserve memory for so many more keys."""
        self._high.expect(count)
        self._low.expect(count)

    def extend(self, keys: Sequence[str]) -> None:
        """Append keys."""
        if self._others is None:
            halves = _halves(keys)
            if halves is not None:
                self._high.extend(halves[:, 0])
                self._low.extend(halves[:, 1])
                self._size += len(keys)
                return
            self._others = [self[n] for n in range(self._size)]
            self._high, self._low = Column(np.uint64), Column(np.uint64)
        self._others.extend(keys)
        self._size += len(keys)

    def find(self, documents: Whole, wanted: Collection[str]) -> list[int]:
        """Return those documents whose keys are wanted."""
        if self._others is None:
            lows = [int(key[16:], 16) for key in wanted if _GENERATED(key) and len(key) == 32]
            documents = documents[np.isin(self._low.values[documents], np.array(lows, dtype=np.uint64))]
        return [n for n in documents.tolist() if self[n] in wanted]


def _halves(keys: Sequence[str]) -> NDArray[np.uint64] | None:
    """Return two numbers for each key; None if one of them was not generated."""
    joined = "".join(keys)
    if set(map(len, keys)) - {32} or _GENERATED(joined) is None:
        return None
    return np.frombuffer(bytes.fromhex(joined), dtype=">u8").astype(np.uint64).reshape(-1, 2)


class Sorted:
    """One partition of the postings: sorted terms with their documents and frequencies."""

    __slots__ = ("documents", "starts", "terms", "times")

    def __init__(self) -> None:
        self.terms: NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)
        self.starts: NDArray[np.signedinteger[Any]] = np.zeros(1, dtype=np.int32)
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
        self.starts = np.append(edges, len(repeated)).astype(np.int32 if len(repeated) < 2**31 else np.int64)

    def of(self, term: np.uint32) -> slice:
        """Return the slice of a term's documents."""
        # Of the same type as the terms: for a plain number, all terms would be converted.
        place = int(self.terms.searchsorted(term))
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
        self._new_terms = Column(np.uint32, temporary=True)
        self._new_documents = Column(np.int32, temporary=True)
        self._fresh = Sorted()
        """The first terms of the buffer, sorted."""
        self._fresh_size = 0
        """How many these are."""

    @property
    def nbytes(self) -> int:
        parts = sum(part.nbytes for part in (*self._parts, self._fresh))
        return parts + self._new_terms.nbytes + self._new_documents.nbytes

    def add(self, terms: NDArray[np.uint32], documents: NDArray[np.int32]) -> None:
        """Add terms with their documents; repeat a term that a document contains more than once."""
        self._new_terms.extend(terms)
        self._new_documents.extend(documents)

    def merge_buffer(self, *, loading: bool = False) -> None:
        """Merge the buffer if it is large; `loading` means that more follows before the next search."""
        terms, documents = self._new_terms.values, self._new_documents.values
        least = max(LOADED, self._sorted) if loading else max(PENDING, self._sorted // 16)
        if len(terms) > least:
            which = terms % PARTS
            for number, part in enumerate(self._parts):
                here = which == number
                if here.any():
                    part.merge(terms[here], documents[here])
            self._sorted = sum(len(part.documents) for part in self._parts)
            self._new_terms = Column(np.uint32, temporary=True)
            self._new_documents = Column(np.int32, temporary=True)
            self._fresh, self._fresh_size = Sorted(), 0

    def of(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return the documents of a term, and its frequency in each."""
        exact = np.uint32(term)
        part = self._parts[term % PARTS]
        place = part.of(exact)
        documents, times = part.documents[place], part.times[place]
        terms = self._new_terms.values
        if len(terms):
            if len(terms) - self._fresh_size > UNSORTED:
                self._fresh = Sorted()
                self._fresh.merge(terms, self._new_documents.values)
                self._fresh_size = len(terms)
            place = self._fresh.of(exact)
            if place.start != place.stop:
                documents = np.concatenate((documents, self._fresh.documents[place]))
                times = np.concatenate((times, self._fresh.times[place]))
            newest = (terms[self._fresh_size :] == exact).nonzero()[0]
            if len(newest):
                counts = Counter(self._new_documents.values[self._fresh_size + newest].tolist())
                documents = np.concatenate((documents, np.array([*counts], dtype=np.int32)))
                times = np.concatenate((times, np.array([min(n, 255) for n in counts.values()], dtype=np.uint8)))
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
        self.owners: Column | None = None
        """The document of each vector; None while each document has one vector, in the same place."""
        self.multiple = False
        """Whether a document has more than one vector."""
        self._blocks: list[NDArray[np.int8]] = []
        self._signs: list[NDArray[np.uint8]] = []
        self._inverses = Column(np.float32)

    @property
    def nbytes(self) -> int:
        blocks = sum(block.nbytes for block in (*self._blocks, *self._signs))
        return blocks + self._inverses.nbytes + (0 if self.owners is None else self.owners.nbytes)

    def extend(self, rows: NDArray[np.int8], owners: NDArray[np.int32]) -> None:
        """Append vectors with their documents."""
        if self.owners is None and not np.array_equal(owners, np.arange(self.size, self.size + len(rows))):
            self.owners = Column(np.int32)
            self.owners.extend(np.arange(self.size))
        if self.owners is not None:
            self.owners.extend(owners)
        self.dimensions = rows.shape[1]
        exact = rows.astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", exact, exact))
        self._inverses.extend(np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0))
        while len(rows):
            used = self.size % BLOCK
            if not used:
                self._blocks.append(np.empty((0, self.dimensions), dtype=np.int8))
            room = min(BLOCK - used, len(rows))
            block = self._blocks[-1]
            if used + room > len(block):
                grown = np.empty((min(BLOCK, used + max(room, used // 2)), self.dimensions), np.int8)
                grown[:used] = block[:used]
                self._blocks[-1] = block = grown
            block[used : used + room] = rows[:room]
            rows = rows[room:]
            self.size += room

    def of(self, rows: Whole) -> NDArray[np.int8]:
        """Return the vectors of some rows."""
        if len(self._blocks) == 1:
            return self._blocks[0][rows]
        found = np.zeros((len(rows), self.dimensions), dtype=np.int8)
        blocks = rows // BLOCK
        for number in np.unique(blocks).tolist():
            here = (blocks == number).nonzero()[0]
            found[here] = self._blocks[number][rows[here] % BLOCK]
        return found

    def units(self, rows: Whole) -> Floats:
        """Return the vectors of some rows, normalized to length one."""
        found: Floats = self.of(rows) * self._inverses.values[rows][:, None]
        return found

    def compare(self, query: NDArray[np.int8]) -> tuple[Floats, Any, bool]:
        """Return each vector's cosine with the query, the places of their documents, and whether all were compared."""
        if self.size <= EXACT:
            several = [_products(query, block[: self.size - n * BLOCK]) for n, block in enumerate(self._blocks)]
            products = several[0] if len(several) == 1 else np.concatenate(several)
            rows, exact = slice(None), True
        else:
            rows, exact = self._likely(query), False
            products = _products(query, self.of(rows))
        exactly = query.astype(np.float32)
        length = sqrt(float(np.dot(exactly, exactly)))
        scale = np.float32(1 / length if length else 0)
        if self.owners is not None:
            owners: Any = self.owners.values[rows]
        else:
            owners = slice(self.size) if exact else rows
        products *= self._inverses.values[rows]
        products *= scale
        return products, owners, exact

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


def cosines(rows: NDArray[np.int8], others: NDArray[np.int8]) -> Floats:
    """Return the cosine of each vector with each of others."""
    found: Floats = 1 - np.asarray(simsimd.cdist(rows, others, "cosine"))
    return found


def _products(query: NDArray[np.int8], rows: NDArray[np.int8]) -> Floats:
    found: Floats = np.asarray(simsimd.cdist(query[None], rows, "dot"))[0].astype(np.float32)
    return found
