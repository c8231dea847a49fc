"""Values that scoring derives from a table of documents: neighbors, lengths, flags; and the formula BM25."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from .document_table import CONTEXT, NEVER, NONE, DocumentTable
from .index_entry import TextFlags
from .languages.detection import UNSPACED

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
WORDS_PER_PAIR = 0.25
"""Terms of other languages that say as much as a pair of characters of a language without spaces."""
SAMPLE = 512
"""How many texts are compared with one another to see how similar unrelated ones are."""
TYPICAL = (0.1, 0.1)
"""Mean and standard deviation of the cosines of unrelated texts, where nothing better is known."""
HOUR = 3_600_000_000
GAP = 4
"""Empty places between conversations in a line of turns: as many as the farthest neighbor is away."""


def _kernel(shares: dict[int, float]) -> NDArray[np.float32]:
    """Return the shares of neighbors, and 1 for the turn itself, as convolution takes them."""
    return np.array([1.0 if not step else shares.get(-step, 0.0) for step in range(-GAP, GAP + 1)], dtype=np.float32)


CONTEXT_KERNEL, WINDOW_KERNEL = _kernel(CONTEXT), _kernel(WINDOW)


class DocumentView:
    """Data that scoring derives from a table, valid until the table changes."""

    def __init__(self, table: DocumentTable) -> None:
        self.alive: NDArray[Any] = table.alive.values
        self.whole: bool = bool(self.alive.all())
        self.turn: NDArray[Any] = table.spoken.values
        self.traffic: Flags = (table.role.values > 0) & ~self.turn
        """System messages, tool calls and tool results."""
        self.any_traffic: bool = bool(self.traffic.any())
        self.counted: Flags = self.alive & ~self.traffic if self.any_traffic else self.alive
        """Documents that count for word statistics and mean similarity."""
        self.documents: int = int(np.count_nonzero(self.counted))
        self.any_turn: bool = bool(self.turn.any())
        self.mixed: bool = self.any_turn and bool((self.counted & ~self.turn).any())
        """Whether there are turns and other texts."""
        self._typical: tuple[float, float] | None = None
        self._line_up(table)
        if table.vectors.size and self.any_turn:
            table.embed_contexts(self.line, self.position)
        self._measure(table)
        self._mark(table)
        self.bounded: bool = bool((table.valid_from.values > -NEVER).any() or (table.valid_to.values < NEVER).any())
        self.expiring: bool = bool((table.expires.values < NEVER).any())
        self.weighed: bool = not bool(np.isnan(table.importance.values).all())
        newest = table.created.values[self.alive].max(initial=0)
        ages = np.log1p(np.maximum(newest - table.created.values, 0) / HOUR)
        self.recency: Floats = (1 - ages / max(float(ages[self.alive].max(initial=0)), 1e-9)).astype(np.float32)

    def typical_cosine(self, table: DocumentTable) -> tuple[float, float]:
        """Return the mean and the standard deviation of the cosines of unrelated texts, as this embedder has them."""
        if self._typical is None:
            known = self.counted & (table.length.values > 0) & (table.rows_of(np.arange(len(table))) != NONE)
            documents = np.flatnonzero(known)
            # The same texts whatever the order in which they were indexed, each once.
            digests = table.digest.values[documents]
            if len(digests) > SAMPLE:
                some = np.argpartition(digests, SAMPLE)[:SAMPLE]
                documents, digests = documents[some], digests[some]
            digests, first = np.unique(digests, return_index=True)
            # A new text is seldom one of them.
            if table.typical is None or not np.array_equal(table.typical[0], digests):
                table.typical = (digests, _typical_cosine(table.units(documents[first]), related=table.sparse))
            self._typical = table.typical[1]
        return self._typical

    def around(self, values: Floats, kernel: Floats) -> Floats:
        """Return the sum of each turn's value and its neighbors', weighted by a kernel; other documents' own values."""
        if not self.any_turn:
            return values
        found: Floats = np.convolve(np.append(values, np.float32(0))[self.line], kernel, "same")[self.position]
        return found if self.all_turns else np.where(self.turn, found, values)

    @property
    def nbytes(self) -> int:
        arrays = [values for values in vars(self).values() if isinstance(values, np.ndarray)]
        return sum(values.nbytes for values in arrays if values.base is None)

    def _line_up(self, table: DocumentTable) -> None:
        """Put the turns of all conversations in one line, with gaps between them, so that neighbors are adjacent."""
        count = len(table) if self.any_turn else 0
        turns = np.flatnonzero(self.turn & self.alive)
        self.turns: int = len(turns)
        self.all_turns: bool = len(turns) == len(table)
        if table.relinked:
            turns = turns[np.lexsort((table.seq.values[turns], table.stream.values[turns]))]
        else:
            turns = turns[np.argsort(table.stream.values[turns], kind="stable")]
        conversations = np.cumsum(table.before.values[turns] == NONE)
        places = np.arange(len(turns)) + GAP * conversations
        size = len(turns) + GAP * (int(conversations[-1]) if len(turns) else 0)
        # At the end are the neighbors of documents that have none.
        self.line: NDArray[np.int32] = np.full(size + 3 * GAP, count, dtype=np.int32)
        self.line[places] = turns
        self.position: NDArray[np.int32] = np.full(count, size + 2 * GAP - 1, dtype=np.int32)
        self.position[turns] = places

    def _measure(self, table: DocumentTable) -> None:
        """Compute the lengths of windows and sessions."""
        lengths = table.length.values.astype(np.float32)
        lengths[~self.counted] = 0
        window = self.around(lengths, WINDOW_KERNEL)
        # A text is long or short among those of its kind: a turn has neighbors, and a note many lines.
        for group in self._groups(table):
            counted = self.counted[group]
            mean = float(window[group][counted].sum() / max(np.count_nonzero(counted), 1))
            window[group] /= max(mean, 1e-9)
        # The last is that of no document.
        self.norms: Floats = length_norms(np.append(window, np.float32(0)), 1.0, k1=K1, b=B)
        # A text that is no turn is no session.
        lengths[~self.turn] = 0
        sessions = np.bincount(table.session.values, weights=lengths, minlength=table.session_count).astype(np.float32)
        nonempty = sessions > 0
        self.sessions: int = int(np.count_nonzero(nonempty))
        mean = float(sessions[nonempty].mean()) if self.sessions else 1.0
        self.session_norms: Floats = length_norms(sessions, mean, k1=K1, b=SESSION_B)

    def _groups(self, table: DocumentTable) -> list[NDArray[np.intp] | slice]:
        """Return the documents of each kind; turns are one kind."""
        if self.all_turns:
            return [slice(None)]
        names = list(dict.fromkeys(kind for _, kind in table.streams))
        kinds = np.fromiter((names.index(kind) for _, kind in table.streams), dtype=np.int8)[table.stream.values]
        kinds[self.turn] = -1
        return [np.flatnonzero(kinds == number) for number in range(-1, len(names))]

    def _mark(self, table: DocumentTable) -> None:
        """Compute the effect of the flags and lengths of turns."""
        flags = table.flags.values
        self.asks: Flags = ((flags & int(TextFlags.QUESTION)) > 0) & self.turn
        self.links: NDArray[np.intp] = np.flatnonzero(((flags & int(TextFlags.FACT)) > 0) & self.alive)
        spoken = self.turn & self.alive
        logs = np.log1p(np.minimum(table.length.values.astype(np.float32), np.float32(LENGTH)))
        turns = logs[spoken]
        middle = float(turns.mean()) if len(turns) else 0.0
        pairs = sum(table.languages.get(language, 0) for language in UNSPACED) / max(sum(table.languages.values()), 1)
        words = 1 - pairs * (1 - WORDS_PER_PAIR)
        self.mean_length: float = words * float(table.length.values[spoken].mean()) if len(turns) else 0.0
        """Mean number of terms of turns, or of as many words where terms are pairs of characters."""
        self.long: Floats = np.where(self.turn, logs - middle, 0).astype(np.float32)
        self.mean_speakers: float = self._mean_speakers(table) if len(table.speakers) > 3 else 0.0

    def _mean_speakers(self, table: DocumentTable) -> float:
        """Return how many speakers with a name a session has, on average over the turns."""
        named = np.flatnonzero(self.turn & self.alive & (table.speaker.values > 0))
        if not len(named):
            return 0.0
        sessions = table.session.values[named]
        pairs = np.unique(sessions.astype(np.int64) * len(table.speakers) + table.speaker.values[named])
        return float(np.bincount(pairs // len(table.speakers), minlength=table.session_count)[sessions].mean())


def _typical_cosine(units: Floats, *, related: bool) -> tuple[float, float]:
    """Return the mean and the standard deviation of the cosines of vectors, unless their texts are `related`."""
    apart = range(1, min(len(units), 5))
    cosines = np.array([np.einsum("ij,ij->i", units, np.roll(units, step, axis=0)) for step in apart])
    # Few texts tell little, and candidates of a search are related.
    share = len(units) / (len(units) + 3) if cosines.size and not related else 0.0
    found = (float(cosines.mean()), float(cosines.std())) if share else TYPICAL
    mean, spread = (share * x + (1 - share) * typical for x, typical in zip(found, TYPICAL, strict=True))
    return mean, max(spread, 0.01)


def rarity(documents: int, holding: int) -> float:
    """Return the inverse document frequency of a term that `holding` of `documents` contain; never negative."""
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def length_norms(lengths: Floats, mean_length: float, *, k1: float, b: float) -> Floats:
    """Return the BM25 length normalization of each document.

    A lower `k1` saturates repeated terms sooner; a higher `b` discounts long texts more.
    """
    return (k1 * (1 - b + b * lengths / max(mean_length, 1e-9))).astype(lengths.dtype)


def bm25(occurrences: Floats, norms: Floats, weights: NDArray[np.float64], k1: float) -> NDArray[np.float64]:
    """Return the BM25 contribution of a term to a document, for each occurrence of one in the other."""
    return occurrences / (occurrences + norms) * weights * (k1 + 1)
