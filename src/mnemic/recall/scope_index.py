"""Searches the index of one scope."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ..checks import to_microseconds
from ..messages import ROLES
from ..records import Record, Ref, Stream
from ..store.query import Condition, Search
from .document_table import MOST, NONE, DocumentTable
from .index_entry import EntryBuilder, IndexEntry
from .question import Question, analyze_question
from .scoring import Ranking, View, Weights, rank, signals
from .similarity import similarity
from .strength import USE, days_between, strength, unpack_use

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

COMPARED = 50
"""How many hits are compared pairwise for near-duplicates; beyond that, only exact duplicates are found."""
CLOSE, COPY = 0.95, 0.85
"""Cosine from which two texts are compared word by word, and similarity from which one is a duplicate."""
RANKED = 1_000
"""How many of the best documents are sorted first; the rest on demand."""
MINUTE = 60_000_000
EMPTY_BYTES = 10_000
"""Approximate size of an empty index."""
WEIGHTS = Weights()


class Answer(Struct):
    """Ranked documents, and the reasons for their scores."""

    documents: list[int]
    scores: NDArray[np.float32]
    ranking: Ranking
    rest: tuple[Condition, ...]
    """Conditions that need the records themselves."""
    others: NDArray[np.int64] | None = None
    """Lower-ranked documents, not sorted yet."""

    def widen(self) -> bool:
        """Sort the remaining documents; return False if there are none."""
        if self.others is None or not len(self.others):
            return False
        order = self.others[np.argsort(-self.scores[self.others], kind="stable")]
        self.documents += order.tolist()
        self.others = None
        return True

    def why(self, document: int) -> dict[str, float]:
        """Return the contribution of each signal to a document's score, largest first."""
        scale = self.ranking.scale
        parts = {name: scale * float(values[document]) for name, values in self.ranking.parts.items()}
        if "dense" in parts and not self.ranking.exact:
            parts["dense (approximate)"] = parts.pop("dense")
        return dict(sorted(((n, v) for n, v in parts.items() if abs(v) > 1e-6), key=lambda part: -abs(part[1])))

    def narrow(self, passing: set[int], after: int) -> None:
        """Remove documents after a position that are not in `passing`."""
        self.documents[after:] = [n for n in self.documents[after:] if n in passing]


class ScopeIndex:
    """A shard with its lock, and data derived from it that is valid until it changes."""

    def __init__(self, name: str, *, sparse: bool = False) -> None:
        """`sparse` means that the index has only some records of the scope."""
        self.name = name
        self.lock: threading.Lock = threading.Lock()
        self.shard: DocumentTable = DocumentTable(sparse=sparse)
        self.texts: dict[Ref, Record] = {}
        """Records that are already loaded."""
        self._claimed: set[tuple[str, str]] = set()
        self._view: View | None = None
        self._sized: tuple[View, int] | None = None
        self._left: tuple[View, int, NDArray[np.float32]] | None = None

    @property
    def nbytes(self) -> int:
        """Memory use, including derived data."""
        with self.lock:
            if self._view is None:
                return EMPTY_BYTES + self.shard.nbytes
            if self._sized is None or self._sized[0] is not self._view:
                self._sized = (self._view, EMPTY_BYTES + self.shard.nbytes + self._view.nbytes)
            return self._sized[1]

    def claim(self, stream: Stream) -> bool:
        """Start indexing new records of a stream; return False if another search is already doing it."""
        name = (stream.scope.path, stream.kind)
        with self.lock:
            if name in self._claimed:
                return False
            self._claimed.add(name)
            return True

    def release(self, stream: Stream) -> None:
        """Allow others to index the stream; unfinished work is repeated."""
        with self.lock:
            self._claimed.discard((stream.scope.path, stream.kind))

    def reached(self, stream: Stream) -> None:
        """Record that the stream is indexed up to its listed version."""
        with self.lock:
            self.shard.versions[stream.scope.path, stream.kind] = stream.version

    def expect(self, stream: Stream) -> None:
        """Record when a stream expires, which does not change its version."""
        name = (stream.scope.path, stream.kind)
        if stream.expires is not None:
            self.shard.ends[name] = to_microseconds(stream.expires)
        else:
            self.shard.ends.pop(name, None)

    def forget(self, gone: set[tuple[str, str]]) -> None:
        """Remove streams that no longer exist."""
        if gone:
            with self.lock:
                for name in gone:
                    self.shard.forget(name)
                self._view = None

    def add(
        self,
        stream: Stream,
        records: list[Record],
        entries: list[IndexEntry | None],
        *,
        first: bool,
        width: int,
        embedding: bool,
    ) -> None:
        """Index records of a stream, starting with the `first`; `width` is the dimension of new vectors."""
        shard = self.shard
        with self.lock:
            if first:
                shard.begin(stream)
            silent = shard.silent.setdefault((stream.scope.path, stream.kind), set())
            gone = [record.seq for record, entry in zip(records, entries, strict=True) if entry is None]
            if gone:
                # A new version without text replaces one with text.
                held = shard.held(stream)
                shard.drop(held[np.isin(shard.seq.values[held], gone)])
                silent.update(gone)
                records = [r for r, entry in zip(records, entries, strict=True) if entry is not None]
            texts = [entry for entry in entries if entry is not None]
            if silent:
                silent.difference_update(record.seq for record in records)
            wanted = shard.vectors.dimensions or width
            for entry in texts:
                if entry.vectors is not None:
                    wanted = wanted or entry.vectors.shape[1]
                    if entry.vectors.shape[1] != wanted:
                        entry.vectors = None
            for n, record, entry in zip(shard.add(stream, records, texts), records, texts, strict=True):
                if USE in record.derived:
                    use = unpack_use(record.derived[USE])
                    shard.used.values[n], shard.uses.values[n] = use.since, use.uses
                if embedding and entry.vectors is None and len(entry.terms):
                    shard.lacking[n] = record.version
            shard.settle()
            self._view = None

    def use(self, document: int, moment: int) -> None:
        """Count a use of a document; it takes effect within a minute."""
        self.shard.used.values[document] = moment
        self.shard.uses.values[document] += 1

    def use_of(self, ref: Ref, moment: int) -> None:
        """Count a use of a record, if it is indexed, effective at once."""
        with self.lock:
            for n in self.shard.of_keys((ref.scope.path, ref.kind), (ref.key,)):
                self.use(n, moment)
                self._left = None

    def let_go(self, name: tuple[str, str], keys: Sequence[str]) -> None:
        """Remove deleted records of a stream."""
        with self.lock:
            gone = self.shard.of_keys(name, keys)
            if gone:
                self.shard.drop(np.array(gone))
                self._view = None

    def count(self, stream: Stream) -> int:
        """Return how many of a stream's records are indexed, including those without text."""
        with self.lock:
            silent = self.shard.silent.get((stream.scope.path, stream.kind), ())
            return len(self.shard.held(stream)) + len(silent)

    def keep(self, stream: Stream, seqs: Sequence[int]) -> None:
        """Remove records whose seq is not in `seqs`."""
        with self.lock:
            held = self.shard.held(stream)
            known = self.shard.seq.values[held]
            present = np.isin(known, np.asarray(seqs, dtype=np.int64))
            self.shard.drop(held[~present])
            self.shard.silent[stream.scope.path, stream.kind] = set(seqs) - set(known.tolist())
            self._view = None

    def twins(self) -> DuplicateFilter:
        """Return a duplicate detector for the hits of a search."""
        return DuplicateFilter(self)

    def attach(self, document: int, vectors: NDArray[np.int8]) -> bool:
        """Add missing vectors if their dimension matches; the caller holds the lock."""
        if self.shard.vectors.dimensions not in (0, vectors.shape[1]):
            return False
        self.shard.attach(document, vectors)
        self._view = None
        return True

    def around(self, document: int, count: int) -> tuple[list[int], list[int]]:
        """Return the turns before and after one, in order."""
        sides = []
        shard = self.shard
        with self.lock:
            if shard.role.values[document] and not shard.spoken.values[document]:
                # It is not a turn, so it is not linked with its neighbors.
                held = shard.held_by(shard.streams[shard.stream.values[document]])
                turns = held[shard.spoken.values[held]]
                turns = turns[np.argsort(shard.seq.values[turns])]
                at = int(np.searchsorted(shard.seq.values[turns], shard.seq.values[document]))
                return turns[max(0, at - count) : at].tolist(), turns[at : at + count].tolist()
            for column in (self.shard.before.values, self.shard.after.values):
                side: list[int] = []
                at = int(column[document])
                while at != NONE and len(side) < count:
                    side.append(at)
                    at = int(column[at])
                sides.append(side)
        return sides[0][::-1], sides[1]

    def documents(self, places: Iterable[tuple[str, str, int]]) -> set[int]:
        """Return the documents at the given scope, kind and seq."""
        shard = self.shard
        by_stream: dict[tuple[str, str], list[int]] = {}
        for path, kind, seq in places:
            by_stream.setdefault((path, kind), []).append(seq)
        found: set[int] = set()
        with self.lock:
            for name, seqs in by_stream.items():
                held = shard.held_by(name)
                found.update(held[np.isin(shard.seq.values[held], seqs)].tolist())
        return found

    def answer(self, search: Search, maker: EntryBuilder, moment: int) -> Answer:
        """Rank all documents that the search can find at a moment, in microseconds."""
        shard = self.shard
        with self.lock:
            speakers = dict(shard.speakers)
        question = analyze_question(search.query, speakers)
        both = self._vectors(question, maker) if not search.signals or "dense" in search.signals else None
        with self.lock:
            if both is not None and shard.vectors.dimensions != len(both[0]):
                # The model changed under the same name: recompute its vectors.
                shard.lack_all()
                both = self._view = None
            if self._view is None:
                self._view = View(shard)
            view = self._view
            visible, rest = self._visible(search, view, moment)
            chosen = frozenset(search.signals) or None
            weights = replace(WEIGHTS, dense=WEIGHTS.dense * maker.trust, context=WEIGHTS.context * maker.trust)
            strengths = self._strengths(view, moment)
            said = signals(shard, view, question, both, visible, strengths, weights)
            ranking = rank(said, visible, chosen)
        return self._ordered(ranking, search, rest)

    def _vectors(self, question: Question, maker: EntryBuilder) -> tuple[NDArray[np.int8], NDArray[np.int8]] | None:
        """Return the question's vectors, original and masked; the lock is not held while the model runs."""
        if not self.shard.vectors.size:
            return None
        masked = maker.question(question.masked)
        # Only texts that are not turns are compared with the unmasked question.
        same = question.masked == question.text or self.shard.only_turns
        asked = masked if same else maker.question(question.text)
        return None if asked is None or masked is None else (asked, masked)

    def _visible(self, search: Search, view: View, moment: int) -> tuple[Flags | None, tuple[Condition, ...]]:
        """Return which documents are visible (None for all), and the conditions that this does not decide."""
        shard = self.shard
        tests: list[Flags] = [] if view.whole else [view.alive]
        if view.any_traffic and not search.traffic:
            tests.append(~view.traffic)
        if search.exclude:
            tests.append(self._others(search.exclude))
        if view.expiring:
            tests.append(shard.expires.values > moment)
        ended = [shard.numbers[n] for n, end in shard.ends.items() if end <= moment and n in shard.numbers]
        if ended:
            tests.append(~np.isin(shard.stream.values, ended))
        if not search.below:
            here = np.fromiter((path == search.scope.path for path, _ in shard.streams), dtype=np.bool_)
            tests.append(here[shard.stream.values])
        if search.kinds:
            wanted = np.fromiter((kind in search.kinds for _, kind in shard.streams), dtype=np.bool_)
            tests.append(wanted[shard.stream.values])
        if search.as_of is not None and view.bounded:
            then = to_microseconds(search.as_of)
            tests.append((shard.valid_from.values <= then) & (shard.valid_to.values > then))
        rest = []
        for test in search.where:
            known = self._test(test)
            if known is None:
                rest.append(test)
            else:
                tests.append(known)
        return (np.logical_and.reduce(tests) if tests else None), tuple(rest)

    def _others(self, exclude: tuple[Ref, ...]) -> Flags:
        """Return which documents a search does not exclude."""
        others = np.ones(len(self.shard), dtype=np.bool_)
        by_stream: dict[tuple[str, str], list[str]] = {}
        for ref in exclude:
            by_stream.setdefault((ref.scope.path, ref.kind), []).append(ref.key)
        for name, keys in by_stream.items():
            others[self.shard.of_keys(name, keys)] = False
        return others

    def _test(self, test: Condition) -> Flags | None:
        shard = self.shard
        value: Any = test.value
        known: Flags | None = None
        if test.field == "created" and test.op in ("ge", "le", "gt", "lt"):
            known = _COMPARE[test.op](shard.created.values, to_microseconds(value))
        elif test.field == "importance" and test.op in ("ge", "gt"):
            # Half as precise as the stored number, which is checked again when the record is read.
            least = np.float32(min(value, MOST) - 1e-6 * abs(min(value, MOST)))
            known = np.nan_to_num(shard.importance.values, nan=-np.inf) >= least
        elif test.field == "data.role" and test.op == "in":
            known = np.isin(shard.role.values, [ROLES.index(role) + 1 for role in value])
        return known

    def _strengths(self, view: View, moment: int) -> NDArray[np.float32] | None:
        """Return the decayed importance of each document, to the minute; None if there are none."""
        if not view.weighed:
            return None
        shard = self.shard
        minute = moment // MINUTE
        if self._left is None or self._left[0] is not view or self._left[1] != minute:
            importance = shard.importance.values
            since = np.maximum(shard.used.values, shard.created.values)
            left = strength(importance, days_between(since, moment), shard.uses.values)
            kept = np.where(shard.pinned.values, importance, left).astype(np.float32)
            self._left = (view, minute, kept)
        return self._left[2]

    def _ordered(self, ranking: Ranking, search: Search, rest: tuple[Condition, ...]) -> Answer:
        """Return the documents, best first: as many as are likely needed, the others unsorted."""
        scores = ranking.scores
        least = np.float32(-np.inf)
        if search.min_score is not None:
            least = np.nextafter(np.float32(search.min_score), least)
        found = np.flatnonzero(scores > least)
        most = max(RANKED, 4 * search.limit)
        others = None
        if len(found) > most:
            parted = found[np.argpartition(-scores[found], most)]
            found, others = np.sort(parted[:most]), np.sort(parted[most:])
        order: list[int] = found[np.argsort(-scores[found], kind="stable")].tolist()
        return Answer(order, scores, ranking, rest, others)


class DuplicateFilter:
    """Detects hits that duplicate better ones."""

    def __init__(self, index: ScopeIndex) -> None:
        self._index = index
        self._digests: dict[int, int] = {}
        self._units: dict[int, NDArray[np.float32]] = {}
        self._same: dict[int, list[str]] = {}
        """Chosen texts, by the digests of their terms."""
        self._chosen: list[str] = []
        self._matrix = np.zeros((COMPARED, index.shard.vectors.dimensions), dtype=np.float32)
        """Vectors of the chosen documents."""

    def look(self, found: list[int]) -> None:
        """Load the vectors of candidate documents."""
        shard = self._index.shard
        with self._index.lock:
            documents = np.array(found, dtype=np.int64)
            self._digests = dict(zip(found, shard.digest.values[documents].tolist(), strict=True))
            rows = shard.first_row.values[documents]
            held = np.flatnonzero(rows != NONE)
            self._units = {}
            if len(held) and shard.vectors.dimensions == self._matrix.shape[1]:
                units = shard.vectors.of(rows[held]) * shard.vectors.inverses(rows[held])[:, None]
                self._units = dict(zip(documents[held].tolist(), units, strict=True))

    def copy(self, document: int, record: Record) -> bool:
        """Return whether a document duplicates a chosen one; if not, choose it."""
        text, digest = record.text or "", self._digests[document]
        # Stop words are not terms, but a "not" among them inverts the meaning.
        if digest and any(_alike(text, known) for known in self._same.get(digest, ())):
            return True
        unit = self._units.get(document)
        if unit is not None and len(self._chosen) < COMPARED:
            count = len(self._chosen)
            for other in np.flatnonzero(self._matrix[:count] @ unit > CLOSE).tolist():
                if _alike(text, self._chosen[other]):
                    return True
            self._matrix[count] = unit
            self._chosen.append(text)
        self._same.setdefault(digest, []).append(text)
        return False


def _alike(text: str, known: str) -> bool:
    return text == known or similarity(text, known, strict=False) >= COPY


_COMPARE: dict[str, Any] = {"ge": np.greater_equal, "le": np.less_equal, "gt": np.greater, "lt": np.less}
