"""Values that scoring derives from a table of documents: neighbors, lengths, flags; and the formula BM25."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from .document_table import NEVER, NONE, DocumentTable
from .index_entry import TextFlags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]

WINDOW = {-4: 0.3, -3: 0.4, -2: 0.6, -1: 0.8, 1: 0.6, 2: 0.4, 3: 0.3}
"""Weights of the words of neighboring turns: an answer rarely repeats the question."""
K1, B = 0.9, 0.4
"""BM25 parameters of a turn with its neighbors: chat turns are short, so repetition and length matter little."""
SESSION_B = 0.75
"""BM25 length parameter of a session, where length matters."""
LENGTH = 40.0
"""Number of terms up to which a longer turn is more likely to be informative."""
HOUR = 3_600_000_000


class DocumentView:
    """Data that scoring derives from a table, valid until the table changes."""

    def __init__(self, table: DocumentTable) -> None:
        count = len(table)
        self.alive: NDArray[Any] = table.alive.values.copy()
        self.whole: bool = bool(self.alive.all())
        self.turn: NDArray[Any] = table.spoken.values.copy()
        self.traffic: Flags = (table.role.values > 0) & ~self.turn
        """System messages, tool calls and tool results."""
        self.any_traffic: bool = bool(self.traffic.any())
        self.counted: Flags = self.alive & ~self.traffic
        """Documents that count for word statistics and mean similarity."""
        self.documents: int = int(np.count_nonzero(self.counted))
        self.any_turn: bool = bool(self.turn.any())
        before = np.append(table.before.values, count)
        after = np.append(table.after.values, count)
        before[before == NONE] = count
        after[after == NONE] = count
        self.near: dict[int, NDArray[Any]] = {-1: before, 1: after}
        for step in range(2, 5):
            self.near[-step] = before[self.near[1 - step]]
            self.near[step] = after[self.near[step - 1]]
        # What is one step before a turn counts for it, so it is shifted one step forward.
        self.spread: NDArray[Any] = np.stack([self.near[-step] for step in WINDOW])
        if table.vectors.size:
            table.embed_contexts(self.near)
        self._measure(table)
        self._mark(table)
        self.bounded: bool = bool((table.valid_from.values > -NEVER).any() or (table.valid_to.values < NEVER).any())
        self.expiring: bool = bool((table.expires.values < NEVER).any())
        self.weighed: bool = not bool(np.isnan(table.importance.values).all())
        newest = table.created.values[self.alive].max(initial=0)
        ages = np.log1p(np.maximum(newest - table.created.values, 0) / HOUR)
        self.recency: Floats = (1 - ages / max(float(ages[self.alive].max(initial=0)), 1e-9)).astype(np.float32)

    @property
    def nbytes(self) -> int:
        arrays = (*vars(self).values(), *self.near.values())
        return sum(values.nbytes for values in arrays if isinstance(values, np.ndarray))

    def _measure(self, table: DocumentTable) -> None:
        """Compute the lengths of windows and sessions."""
        count = len(table)
        lengths = np.append(table.length.values, np.float32(0))
        lengths[:count][~self.counted] = 0
        window = lengths.copy()
        for step, share in WINDOW.items():
            window += np.float32(share) * lengths[self.near[step]]
        self.norms: Floats = length_norms(
            window, float(window[:count][self.counted].sum() / max(self.documents, 1)), k1=K1, b=B
        )
        sessions = np.bincount(table.session.values, weights=lengths[:count], minlength=table.session_count).astype(
            np.float32
        )
        nonempty = sessions > 0
        self.sessions: int = int(np.count_nonzero(nonempty))
        mean = float(sessions[nonempty].mean()) if self.sessions else 1.0
        self.session_norms: Floats = length_norms(sessions, mean, k1=K1, b=SESSION_B)

    def _mark(self, table: DocumentTable) -> None:
        """Compute the effect of the flags and lengths of turns."""
        flags = table.flags.values
        self.asks: Floats = (((flags & int(TextFlags.QUESTION)) > 0) & self.turn).astype(np.float32)
        self.links: NDArray[np.intp] = np.flatnonzero(((flags & int(TextFlags.FACT)) > 0) & self.alive)
        spoken = self.turn & self.alive
        logs = np.log1p(np.minimum(table.length.values, LENGTH))
        turns = logs[spoken]
        middle = float(turns.mean()) if len(turns) else 0.0
        self.mean_length: float = float(table.length.values[spoken].mean()) if len(turns) else 0.0
        self.long: Floats = np.where(self.turn, logs - middle, 0).astype(np.float32)


def rarity(documents: int, holding: int) -> float:
    """Return the inverse document frequency of a term that `holding` of `documents` contain; never negative."""
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def length_norms(lengths: Floats, mean_length: float, *, k1: float, b: float) -> Floats:
    """Return the BM25 length normalization of each document.

    A lower `k1` saturates repeated terms sooner; a higher `b` discounts long texts more.
    """
    return (k1 * (1 - b + b * lengths / max(mean_length, 1e-9))).astype(lengths.dtype)


def bm25(occurrences: Floats, norms: Floats, weight: float, k1: float) -> Floats:
    """Return the BM25 contribution of a term of weight `weight` to each document that contains it."""
    scores: Floats = occurrences / (occurrences + norms)
    scores *= weight * (k1 + 1)
    return scores
