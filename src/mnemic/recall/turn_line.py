"""The turns of all conversations in one line, with gaps between them, so that neighbors are adjacent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .columns import Column
from .document_table import NONE, DocumentTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Places = NDArray[np.int32]

GAP = 4
"""Empty places between conversations: as many as the farthest neighbor is away."""
ALONE = GAP
"""The place of documents that are no turns, and have no neighbors."""
BEGIN = 2 * GAP + 1
"""The first place of a turn."""
ROOM = 16
"""How many turns can at least be appended to a conversation that was moved, before it is moved again."""
FEW_RUNS = 64
"""In how many places turns are inserted; if there are more, the line is made again."""


class TurnLine:
    """A line into which turns at the end of conversations are inserted, in time that depends on these alone."""

    def __init__(self) -> None:
        self.documents: Places
        """The number of the document at each place, plus 1; 0 where there is none."""
        self.turns: int = 0
        """How many turns there are."""
        self._array: Places = np.zeros(BEGIN + GAP, dtype=np.int32)
        self._place = Column(np.int32)
        self._set_end(BEGIN)

    @property
    def place(self) -> Places:
        """The place of each document."""
        return self._place.values

    @property
    def nbytes(self) -> int:
        return self._array.nbytes + self._place.nbytes

    def extend(self, table: DocumentTable, new: NDArray[np.intp]) -> list[slice]:
        """Add what is new in a table, of which `new` are turns; return where turns have new neighbors."""
        known = len(self._place.values)
        self._place.repeat(ALONE, len(table) - known)
        if not len(new):
            return []
        before = table.before.values[new]
        runs = np.split(new, np.flatnonzero(before[1:] != new[:-1]) + 1)
        self.turns += len(new)
        sparse = 3 * self.turns + (ROOM + GAP) * len(table.streams) + BEGIN < len(self.documents)
        if not known or sparse or len(runs) > FEW_RUNS:
            return self._line_up(table, int(new[-1]))
        return [self._insert(run, int(table.before.values[run[0]])) for run in runs]

    def around(self, values: Floats, kernel: Floats) -> Floats:
        """Return the sum of the values of each turn and its neighbors, weighted by a kernel; 0 for what is no turn."""
        padded = np.zeros(len(values) + 1, dtype=np.float32)
        padded[1:] = values
        found: Floats = np.convolve(padded.take(self.documents), kernel, "same").take(self.place)
        return found

    def _line_up(self, table: DocumentTable, latest: int) -> list[slice]:
        """Put all turns in the line again, the conversation of the latest one last, where it can grow."""
        turns = np.flatnonzero(table.spoken.values & table.alive.values)
        streams = table.stream.values[turns].astype(np.int32)
        streams[streams == table.stream.values[latest]] = len(table.streams)
        order = np.lexsort((table.seq.values[turns], streams)) if table.relinked else np.argsort(streams, kind="stable")
        turns = turns[order]
        places = np.arange(BEGIN - GAP, BEGIN - GAP + len(turns))
        places += GAP * np.cumsum(table.before.values[turns] == NONE)
        end = int(places[-1]) + 1
        self.turns = len(turns)
        self._array = np.zeros(end + GAP, dtype=np.int32)
        self._array[places] = turns + 1
        self._place.writable()[turns] = places
        self._set_end(end)
        return [slice(BEGIN, end)]

    def _insert(self, run: NDArray[np.intp], before: int) -> slice:
        """Insert turns after the one before them, if any, moving its conversation to where there is room."""
        count = len(run)
        first = len(self.documents)
        if before != NONE:
            first = int(self._place.values[before]) + 1
            if self.documents[first : first + count + GAP].any():
                first = self._move(first, count)
        self._set_end(max(len(self.documents), first + count + GAP) - GAP)
        self.documents[first : first + count] = run + 1
        self._place.writable()[run] = np.arange(first, first + count)
        return slice(first, first + count)

    def _move(self, end: int, more: int) -> int:
        """Move a conversation to the end of the line, with room for more turns; return where these begin."""
        size = int(np.argmin(self.documents[end - 1 :: -1] > 0))
        turns = self.documents[end - size : end].copy()
        self.documents[end - size : end] = 0
        first = len(self.documents)
        self._set_end(first + size + more + max(size // 8, ROOM))
        self.documents[first : first + size] = turns
        self._place.writable()[turns - 1] = np.arange(first, first + size)
        return first + size

    def _set_end(self, end: int) -> None:
        """Set the length of the line, which ends with a gap."""
        if end + GAP > len(self._array):
            grown = np.zeros(end + end // 16 + GAP, dtype=np.int32)
            grown[: len(self._array)] = self._array
            self._array = grown
        self.documents = self._array[: end + GAP]
