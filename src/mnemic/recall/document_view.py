"""Values that scoring derives from a table of documents: neighbors, lengths, flags; and the formula BM25."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import Column
from .document_table import CONTEXT, NEVER, NONE, DocumentTable
from .index_entry import TextFlags
from .languages.detection import UNSPACED
from .turn_line import GAP, TurnLine

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
LENGTH = 40
"""Number of terms up to which a longer turn is more likely to be informative."""
WORDS_PER_PAIR = 0.25
"""Terms of other languages that say as much as a pair of characters of a language without spaces."""
SAMPLE = 512
"""How many texts are compared with one another to see how similar unrelated ones are."""
TYPICAL = (0.1, 0.1)
"""Mean and standard deviation of the cosines of unrelated texts, where nothing better is known."""
HOUR = 3_600_000_000


def _kernel(shares: dict[int, float]) -> Floats:
    """Return the shares of neighbors, and 1 for the turn itself, as convolution takes them."""
    return np.array([1.0 if not step else shares.get(-step, 0.0) for step in range(-GAP, GAP + 1)], dtype=np.float32)


CONTEXT_KERNEL, WINDOW_KERNEL = _kernel(CONTEXT), _kernel(WINDOW)
LOG_LENGTHS: NDArray[np.float32] = np.log1p(np.arange(LENGTH + 1, dtype=np.float32))


class DocumentView:
    """Data that scoring derives from a table; what was appended since is added to it by `extend`.

    The caller holds the lock of the table.
    """

    def __init__(self, table: DocumentTable) -> None:
        self.size: int = 0
        """How many documents of the table it has."""
        self.whole: bool = True
        self.any_traffic: bool = False
        self.any_turn: bool = False
        self.mixed: bool = False
        """Whether there are turns and other texts."""
        self.bounded: bool = False
        self.expiring: bool = False
        self.weighed: bool = False
        self.links: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.line: TurnLine = TurnLine()
        self._rewrites = table.rewrites
        self._any_other = False
        self._embedded = False
        """Whether the context vectors of known turns are computed."""
        self._terms = 0
        """Number of terms of all turns."""
        self._newest, self._oldest = 0, NEVER
        self._traffic = Column(np.bool_)
        self._asks = Column(np.bool_)
        self._window = Column(np.float32)
        """Lengths of turns with weighted neighbors, and of other documents, by their numbers plus 1; the first is 0."""
        self._window.extend([0])
        self._session_lengths: Floats = np.zeros(0, dtype=np.float32)
        self.extend(table)

    def is_current(self, table: DocumentTable) -> bool:
        """Return whether the table has not changed since."""
        return self.size == len(table) and self._rewrites == table.rewrites

    def is_extensible(self, table: DocumentTable) -> bool:
        """Return whether the table has changed by appending alone, so that `extend` is enough."""
        return self._rewrites == table.rewrites

    def extend(self, table: DocumentTable) -> None:
        """Add the documents that were appended to the table."""
        first, self.size = self.size, len(table)
        self.alive: NDArray[Any] = table.alive.values
        self.turn: NDArray[Any] = table.spoken.values
        alive, turn = self.alive[first:], self.turn[first:]
        self.whole &= bool(alive.all())
        traffic = (table.role.values[first:] > 0) & ~turn
        self._traffic.extend(traffic)
        self.traffic: Flags = self._traffic.values
        """System messages, tool calls and tool results."""
        self.any_traffic |= bool((traffic & alive).any())
        self.counted: Flags = self.alive & ~self.traffic if self.any_traffic else self.alive
        """Documents that count for word statistics and mean similarity."""
        self.documents: int = self.size
        if self.any_traffic or not self.whole:
            self.documents = int(np.count_nonzero(self.counted))
        self._any_other |= bool((self.counted[first:] & ~turn).any())
        spoken = first + np.flatnonzero(turn & alive)
        self.any_turn |= len(spoken) > 0
        self.mixed = self.any_turn and self._any_other
        changed = self.line.extend(table, spoken)
        self.turns: int = self.line.turns
        self.all_turns: bool = self.turns == self.size
        self._embed_contexts(table, changed)
        self._measure(table, first, changed)
        self._mark(table, first, spoken)
        self.bounded |= bool(
            (table.valid_from.values[first:] > -NEVER).any() or (table.valid_to.values[first:] < NEVER).any()
        )
        self.expiring |= bool((table.expires.values[first:] < NEVER).any())
        self.weighed |= not bool(np.isnan(table.importance.values[first:]).all())
        self._date(table, first)
        self._typical: tuple[float, float] | None = None

    def typical_cosine(self, table: DocumentTable) -> tuple[float, float]:
        """Return the mean and the standard deviation of the cosines of unrelated texts, as this embedder has them."""
        if self._typical is None:
            new = table.digest.values[table.sampled :]
            # A new text is seldom one of those that are compared.
            if table.typical is None or not table.sampled or (len(new) and new.min() < table.typical[0][-1]):
                self._sample(table)
            assert table.typical is not None
            self._typical = table.typical[1]
        return self._typical

    def _sample(self, table: DocumentTable) -> None:
        """Compare some texts with one another: the same whatever the order in which they were indexed, each once."""
        known = self.counted & (table.length.values > 0) & (table.rows_of(np.arange(len(table))) != NONE)
        documents = np.flatnonzero(known)
        digests = table.digest.values[documents]
        table.sampled = len(table) if len(digests) > SAMPLE else 0
        if len(digests) > SAMPLE:
            some = np.argpartition(digests, SAMPLE)[:SAMPLE]
            documents, digests = documents[some], digests[some]
        digests, first = np.unique(digests, return_index=True)
        if table.typical is None or not np.array_equal(table.typical[0], digests):
            table.typical = (digests, _typical_cosine(table.units(documents[first]), related=table.sparse))

    def around(self, values: Floats, kernel: Floats) -> Floats:
        """Return the sum of each turn's value and its neighbors', weighted by a kernel; other documents' own values."""
        if not self.any_turn:
            return values
        found = self.line.around(values, kernel)
        return found if self.all_turns else np.where(self.turn, found, values)

    @property
    def nbytes(self) -> int:
        values = vars(self).values()
        arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray) and value.base is None)
        return self.line.nbytes + arrays + sum(value.nbytes for value in values if isinstance(value, Column))

    def _embed_contexts(self, table: DocumentTable, changed: list[slice]) -> None:
        """Compute the lengths of context vectors of turns whose neighbors have changed."""
        if not table.vectors.size or not self.any_turn:
            return
        if self._embedded:
            near = [self.line.documents[some.start - GAP : some.stop + GAP] for some in changed]
            turns = np.concatenate([some[some > 0] - 1 for some in near]) if near else np.zeros(0, dtype=np.int32)
            turns = turns[np.isnan(table.context.values[turns])]
        else:
            turns = np.flatnonzero(np.isnan(table.context.values) & self.turn & self.alive)
        table.embed_contexts(self.line.documents, np.sort(self.line.place[turns]))
        self._embedded = True

    def _measure(self, table: DocumentTable, first: int, changed: list[slice]) -> None:
        """Compute the lengths of windows and sessions."""
        lengths = table.length.values[first:].astype(np.float32)
        if self.documents < self.size:
            lengths[~self.counted[first:]] = 0
        self._window.extend(lengths)
        if not self.all_turns:
            # A text that is no turn is no session.
            lengths[~self.turn[first:]] = 0
        if changed:
            window = self._window.writable()
        for some in changed:
            near = self.line.documents[some.start - 2 * GAP : some.stop + 2 * GAP]
            known = np.where(near > 0, table.length.values.take(near - 1, mode="clip"), 0).astype(np.float32)
            inner = slice(GAP, GAP + some.stop - some.start + 2 * GAP)
            turns = near[inner]
            window[turns[turns > 0]] = np.convolve(known, WINDOW_KERNEL, "same")[inner][turns > 0]
        self._normalize(table)
        self.sessions: int = 0
        if self.any_turn:
            if len(self._session_lengths) < table.session_count:
                more = np.zeros(table.session_count - len(self._session_lengths), dtype=np.float32)
                self._session_lengths = np.concatenate((self._session_lengths, more))
            np.add.at(self._session_lengths, table.session.values[first:], lengths)
            nonempty = self._session_lengths > 0
            self.sessions = int(np.count_nonzero(nonempty))
        mean = float(self._session_lengths[nonempty].mean()) if self.sessions else 1.0
        self.session_norms: Floats = length_norms(self._session_lengths, mean, k1=K1, b=SESSION_B)

    def _normalize(self, table: DocumentTable) -> None:
        """Relate the lengths of windows to their means: those of texts that are no turns to that of their kind."""
        window = self._window.values[1:]
        mean = 1.0
        if self.turns:
            spoken = window if self.all_turns else window[self.turn & self.alive]
            mean = max(float(spoken.sum(dtype=np.float64)) / self.turns, 1e-9)
        self._mean_window = mean
        if self._any_other:
            # A text is long or short among those of its kind: a turn has neighbors, and a note many lines.
            others = np.flatnonzero(~self.turn & self.counted)
            kinds = np.array(table.kinds, dtype=np.intp)[table.stream.values[others]]
            lengths = table.length.values[others].astype(np.float32)
            means = np.bincount(kinds, lengths) / np.maximum(np.bincount(kinds), 1)
            self._window.writable()[1 + others] = lengths * (mean / np.maximum(means, 1e-9)).astype(np.float32)[kinds]

    def norms_of(self, places: NDArray[np.signedinteger[Any]] | None) -> Floats:
        """Return the BM25 length normalization of windows of documents, given by their numbers plus 1, or of all."""
        window = self._window.values
        return length_norms(window if places is None else window.take(places), self._mean_window, k1=K1, b=B)

    def _mark(self, table: DocumentTable, first: int, spoken: NDArray[np.intp]) -> None:
        """Compute the effect of the flags and lengths of turns; `spoken` are the new ones."""
        flags = table.flags.values[first:]
        self._asks.extend(((flags & int(TextFlags.QUESTION)) > 0) & self.turn[first:])
        self.asks: Flags = self._asks.values
        links = (flags & int(TextFlags.FACT)) > 0
        if links.any():
            self.links = np.append(self.links, first + np.flatnonzero(links & self.alive[first:]))
        self._terms += int(table.length.values[spoken].sum())
        pairs = sum(table.languages.get(language, 0) for language in UNSPACED) / max(sum(table.languages.values()), 1)
        words = 1 - pairs * (1 - WORDS_PER_PAIR)
        self.mean_length: float = words * self._terms / max(self.turns, 1)
        """Mean number of terms of turns, or of as many words where terms are pairs of characters."""
        logs = LOG_LENGTHS.take(np.minimum(table.length.values, LENGTH))
        if self.all_turns:
            logs -= logs.mean() if self.turns else 0
        elif self.turns:
            logs -= logs[self.turn & self.alive].mean()
            logs[~self.turn] = 0
        else:
            logs[:] = 0
        self.long: Floats = logs
        self.mean_speakers: float = self._mean_speakers(table) if len(table.speakers) > 3 else 0.0

    def _mean_speakers(self, table: DocumentTable) -> float:
        """Return how many speakers with a name a session has, on average over the turns."""
        named = np.flatnonzero(self.turn & self.alive & (table.speaker.values > 0))
        if not len(named):
            return 0.0
        sessions = table.session.values[named]
        pairs = np.unique(sessions.astype(np.int64) * len(table.speakers) + table.speaker.values[named])
        return float(np.bincount(pairs // len(table.speakers), minlength=table.session_count)[sessions].mean())

    def _date(self, table: DocumentTable, first: int) -> None:
        """Compute how recent documents are: 1 for the newest, and 0 for the oldest."""
        created = table.created.values
        new = created[first:] if self.whole else created[first:][self.alive[first:]]
        self._newest = max(self._newest, int(new.max(initial=0)))
        self._oldest = min(self._oldest, int(new.min(initial=NEVER)))
        hours = ((self._newest - created) / HOUR).astype(np.float32)
        if not self.whole:
            np.maximum(hours, 0, out=hours)
        most = np.log1p(np.float32(max(self._newest - self._oldest, 0) / HOUR))
        ages = _log1p(hours)
        ages /= np.float32(max(float(most), 1e-9))
        self.recency: Floats = np.subtract(1, ages, out=ages)


def _log1p(values: Floats) -> Floats:
    """Return log(1 + x) of each value, within rounding, in a fifth of the time that numpy takes for it."""
    more = values + np.float32(1)
    lost = more - np.float32(1)
    small = (lost == 0).nonzero()[0]
    lost[small] = 1
    found: Floats = np.log(more, out=more)
    # What was rounded off before the logarithm, nearly proportionally.
    found *= values
    found /= lost
    found[small] = values[small]
    return found


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
