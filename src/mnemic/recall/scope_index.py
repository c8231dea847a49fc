"""Searches the index of one scope."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from ..checks import to_microseconds
from ..messages import ROLES
from ..records import Record, Ref, Stream, StreamName
from ..store.query import Condition, Search
from .columns import cosines
from .document_table import MOST, NONE, DocumentTable
from .document_view import DocumentView
from .index_entry import USE, EntryBuilder, days_between, strength, unpack_all, unpack_use
from .question import AnalyzedQuestion, analyze_question
from .scoring import Ranking, Weights, rank, signals, weights_for
from .text_analysis import similarity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

COMPARED = 50
"""How many hits are compared pairwise for near-duplicates; beyond that, only exact duplicates are found."""
REPEATED = 100
"""How many duplicates with the same terms are compared by their texts; more of them count as duplicates unread."""
CLOSE, DUPLICATE = 0.95, 0.85
"""Cosine from which two texts are compared word by word, and similarity from which one is a duplicate."""
RANKED = 200
"""How many of the best documents are sorted first; the rest on demand."""
MINUTE = 60_000_000
EMPTY_BYTES = 10_000
"""Approximate size of an empty index."""


class RankedDocuments(Struct):
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
        others = np.sort(self.others)
        order = others[np.argsort(-self.scores[others], kind="stable")]
        self.documents += order.tolist()
        self.others = None
        return True

    def why(self, documents: list[int]) -> list[dict[str, float]]:
        """Return the contributions of the signals to each document's score, largest first."""
        places = np.array(documents)
        names = list(self.ranking.parts)
        if "dense" in names and not self.ranking.exact:
            names[names.index("dense")] = "dense (approximate)"
        parts = np.array([values[places] for values in self.ranking.parts.values()], dtype=np.float64).T
        parts *= self.ranking.scale
        order = np.argsort(-np.abs(parts), axis=1, kind="stable")
        return [
            {names[n]: row[n] for n in largest if abs(row[n]) > 1e-6}
            for row, largest in zip(parts.tolist(), order.tolist(), strict=True)
        ]

    def narrow(self, passing: set[int], after: int) -> None:
        """Remove documents after a position that are not in `passing`."""
        self.documents[after:] = [n for n in self.documents[after:] if n in passing]


class StreamPart(Struct):
    """Records of a stream with their intact entries, None for one without text."""

    stream: Stream
    records: list[Record]
    entries: Sequence[bytes | None]
    first: bool
    """Whether the stream's older records are dropped."""


class ScopeIndex:
    """A table with its lock, and data derived from it that is valid until it changes."""

    def __init__(self, name: str, *, sparse: bool = False) -> None:
        """`sparse` means that the index has only some records of the scope."""
        self.name = name
        self.lock: threading.Lock = threading.Lock()
        self.table: DocumentTable = DocumentTable(sparse=sparse)
        self.texts: dict[Ref, Record] = {}
        """Records that are already loaded."""
        self.markers: dict[int, object] = {}
        """The store's change markers that the index is up to date with, by observer."""
        self._view: DocumentView | None = None
        self._size_cache: tuple[DocumentView, int, int] | None = None
        # What is computed from the view, until it changes.
        self._strengths_cache: tuple[int, NDArray[np.float32]] | None = None
        self._weights_cache: tuple[float, Weights] | None = None

    @property
    def nbytes(self) -> int:
        """Memory use, including derived data."""
        with self.lock:
            if self._view is None:
                return EMPTY_BYTES + self.table.nbytes
            # To one percent: adding up the columns takes longer than appending to them.
            known = self._size_cache
            if known is None or known[0] is not self._view or len(self.table) - known[1] > known[1] // 100:
                size = EMPTY_BYTES + self.table.nbytes + self._view.nbytes
                known = self._size_cache = (self._view, len(self.table), size)
            return known[2]

    def set_version(self, stream: Stream) -> None:
        """Record that the stream is indexed up to its listed version."""
        with self.lock:
            self.table.versions[stream.name] = stream.version

    def set_expiry(self, stream: Stream) -> None:
        """Record when a stream expires, which does not change its version."""
        name = stream.name
        if stream.expires is not None:
            self.table.expiries[name] = to_microseconds(stream.expires)
        else:
            self.table.expiries.pop(name, None)

    def expect(self, count: int) -> None:
        """Reserve memory for so many more documents."""
        with self.lock:
            self.table.expect(count)

    def forget(self, gone: set[StreamName]) -> None:
        if gone:
            with self.lock:
                for name in gone:
                    self.table.forget(name)

    def add(self, parts: Sequence[StreamPart], *, width: int, embedding: bool) -> None:
        """Index records of streams; `width` is the dimension of new vectors, if they are `embedding`."""
        table = self.table
        with self.lock:
            kept: list[tuple[Stream, list[Record]]] = []
            packed: list[bytes] = []
            for part in parts:
                if part.first:
                    table.restart(part.stream)
                kept.append((part.stream, self._with_text(part)))
                packed += [entry for entry in part.entries if entry is not None]
            texts = unpack_all(packed, table.vectors.dimensions or width)
            documents = table.add(kept, texts).tolist()
            records = [record for _, some in kept for record in some]
            for n, record in zip(documents, records, strict=True):
                if USE in record.derived:
                    use = unpack_use(record.derived[USE])
                    table.used.writable()[n], table.uses.writable()[n] = use.since, use.uses
            if embedding and not texts.rows.all():
                for n in np.flatnonzero((texts.rows == 0) & (texts.sizes > 0)).tolist():
                    table.without_vectors[documents[n]] = records[n].version
            table.postings.merge_buffer(loading=True)

    def _with_text(self, part: StreamPart) -> list[Record]:
        """Return the records that have text, and note which have none; the caller holds the lock."""
        name, records = part.stream.name, part.records
        without_text = self.table.without_text.setdefault(name, set())
        gone = [record.seq for record, entry in zip(records, part.entries, strict=True) if entry is None]
        if gone:
            # A new version without text replaces one with text.
            self.table.drop(self.table.with_seqs(name, gone))
            without_text.update(gone)
            records = [record for record, entry in zip(records, part.entries, strict=True) if entry is not None]
        if without_text:
            without_text.difference_update(record.seq for record in records)
        return records

    def count_use(self, document: int, moment: int) -> None:
        """Count a use of a document; it takes effect within a minute."""
        self.table.used.writable()[document] = moment
        self.table.uses.writable()[document] += 1

    def count_use_of(self, ref: Ref, moment: int) -> None:
        """Count a use of a record, if it is indexed, effective at once."""
        with self.lock:
            for n in self.table.with_keys((ref.scope.path, ref.kind), (ref.key,)):
                self.count_use(n, moment)
                self._strengths_cache = None

    def remove(self, name: StreamName, keys: Sequence[str]) -> None:
        with self.lock:
            gone = self.table.with_keys(name, keys)
            if gone:
                self.table.drop(np.array(gone))

    def count(self, stream: Stream) -> int:
        """Return how many of a stream's records are indexed, including those without text."""
        with self.lock:
            without_text = self.table.without_text.get(stream.name, ())
            return self.table.count(stream.name) + len(without_text)

    def retain(self, stream: Stream, seqs: Sequence[int]) -> None:
        """Remove records whose seq is not in `seqs`."""
        with self.lock:
            documents = self.table.documents_in(stream.name)
            known = self.table.seq.values[documents]
            present = np.isin(known, np.asarray(seqs, dtype=np.int64))
            self.table.drop(documents[~present])
            self.table.without_text[stream.name] = set(seqs) - set(known.tolist())

    def duplicate_filter(self) -> DuplicateFilter:
        return DuplicateFilter(self)

    def attach(self, document: int, vectors: NDArray[np.int8]) -> bool:
        """Add missing vectors if their dimension matches; the caller holds the lock."""
        if self.table.vectors.dimensions not in (0, vectors.shape[1]):
            return False
        self.table.attach(document, vectors)
        return True

    def around(self, document: int, count: int) -> tuple[list[int], list[int]]:
        """Return the turns before and after one, in order."""
        sides = []
        table = self.table
        with self.lock:
            if table.role.values[document] and not table.spoken.values[document]:
                # It is not a turn, so it is not linked with its neighbors.
                siblings = table.documents_in(table.streams[table.stream.values[document]])
                turns = siblings[table.spoken.values[siblings]]
                turns = turns[np.argsort(table.seq.values[turns])]
                at = int(np.searchsorted(table.seq.values[turns], table.seq.values[document]))
                return turns[max(0, at - count) : at].tolist(), turns[at : at + count].tolist()
            for column in (table.before.values, table.after.values):
                side: list[int] = []
                at = int(column[document])
                while at != NONE and len(side) < count:
                    side.append(at)
                    at = int(column[at])
                sides.append(side)
        return sides[0][::-1], sides[1]

    def documents(self, places: Iterable[tuple[str, str, int]]) -> set[int]:
        """Return the documents at the given scope, kind and seq."""
        by_stream: dict[StreamName, list[int]] = {}
        for path, kind, seq in places:
            by_stream.setdefault((path, kind), []).append(seq)
        with self.lock:
            return {n for name, seqs in by_stream.items() for n in self.table.with_seqs(name, seqs).tolist()}

    def answer(self, search: Search, builder: EntryBuilder, moment: int) -> RankedDocuments:
        """Rank all documents that the search can find at a moment, in microseconds."""
        table = self.table
        with self.lock:
            speakers, languages = dict(table.speakers), dict(table.languages)
        question = analyze_question(search.query, speakers, languages)
        vectors = self._vectors(question, builder) if not search.signals or "dense" in search.signals else None
        with self.lock:
            if vectors is not None and table.vectors.dimensions != len(vectors[0]):
                # The model changed under the same name: recompute its vectors.
                table.remove_vectors()
                vectors = None
            view = self._current_view()
            visible, rest = self._visible(search, view, moment)
            strengths = self._strengths(view, moment)
            if self._weights_cache is None or self._weights_cache[0] != builder.trust:
                self._weights_cache = (builder.trust, weights_for(view, builder.trust))
            found = signals(table, view, question, vectors, visible, strengths, self._weights_cache[1])
            ranking = rank(found, visible, frozenset(search.signals) or None, dict(search.weights))
        return self._ordered(ranking, search, rest)

    def _current_view(self) -> DocumentView:
        """Return the view of the table as it is now; the caller holds the lock."""
        view, table = self._view, self.table
        if view is None or not view.is_current(table):
            # Until it is complete there is none, should anything fail.
            self._view = self._strengths_cache = self._weights_cache = None
            table.postings.merge_buffer()
            if view is not None and view.is_extensible(table):
                view.extend(table)
            else:
                view = DocumentView(table)
            self._view = view
        return view

    def _vectors(
        self, question: AnalyzedQuestion, builder: EntryBuilder
    ) -> tuple[NDArray[np.int8], NDArray[np.int8]] | None:
        """Return the question's vectors, original and masked; the lock is not held while the model runs."""
        if not self.table.vectors.size:
            return None
        masked = builder.embed_question(question.masked)
        # Only texts that are not turns are compared with the unmasked question.
        same = question.masked == question.text or self.table.only_turns
        plain = masked if same else builder.embed_question(question.text)
        return None if plain is None or masked is None else (plain, masked)

    def _visible(self, search: Search, view: DocumentView, moment: int) -> tuple[Flags | None, tuple[Condition, ...]]:
        """Return which documents are visible (None for all), and the conditions that this does not decide."""
        table = self.table
        tests: list[Flags] = [] if view.whole else [view.alive]
        if view.any_traffic and not search.traffic:
            tests.append(~view.traffic)
        if search.exclude:
            tests.append(self._others(search.exclude))
        if view.expiring:
            tests.append(table.expires.values > moment)
        ended = [table.numbers[n] for n, end in table.expiries.items() if end <= moment and n in table.numbers]
        if ended:
            tests.append(~np.isin(table.stream.values, ended))
        if not search.below:
            here = np.fromiter((path == search.scope.path for path, _ in table.streams), dtype=np.bool_)
            tests.append(here[table.stream.values])
        if search.kinds and any(kind not in search.kinds for _, kind in table.streams):
            wanted = np.fromiter((kind in search.kinds for _, kind in table.streams), dtype=np.bool_)
            tests.append(wanted[table.stream.values])
        if search.as_of is not None and view.bounded:
            then = to_microseconds(search.as_of)
            tests.append((table.valid_from.values <= then) & (table.valid_to.values > then))
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
        others = np.ones(len(self.table), dtype=np.bool_)
        by_stream: dict[StreamName, list[str]] = {}
        for ref in exclude:
            by_stream.setdefault((ref.scope.path, ref.kind), []).append(ref.key)
        for name, keys in by_stream.items():
            others[self.table.with_keys(name, keys)] = False
        return others

    def _test(self, test: Condition) -> Flags | None:
        table = self.table
        value: Any = test.value
        known: Flags | None = None
        if test.field == "created" and test.op in ("ge", "le", "gt", "lt"):
            known = _COMPARE[test.op](table.created.values, to_microseconds(value))
        elif test.field == "importance" and test.op in ("ge", "gt"):
            # Half as precise as the stored number, which is checked again when the record is read.
            least = np.float32(min(value, MOST) - 1e-6 * abs(min(value, MOST)))
            known = np.nan_to_num(table.importance.values, nan=-np.inf) >= least
        elif test.field == "data.role" and test.op == "in":
            known = np.isin(table.role.values, [ROLES.index(role) + 1 for role in value])
        return known

    def _strengths(self, view: DocumentView, moment: int) -> NDArray[np.float32] | None:
        """Return the decayed importance of each document, to the minute; None if there are none."""
        if not view.weighed:
            return None
        table = self.table
        minute = moment // MINUTE
        if self._strengths_cache is None or self._strengths_cache[0] != minute:
            importance = table.importance.values
            since = np.maximum(table.used.values, table.created.values)
            decayed = strength(importance, days_between(since, moment), table.uses.values)
            values = np.where(table.pinned.values, importance, decayed).astype(np.float32)
            self._strengths_cache = (minute, values)
        return self._strengths_cache[1]

    def _ordered(self, ranking: Ranking, search: Search, rest: tuple[Condition, ...]) -> RankedDocuments:
        """Return the documents, best first: as many as are likely needed, the others unsorted."""
        scores = ranking.scores
        least = np.float32(-np.inf)
        if search.min_score is not None:
            least = np.nextafter(np.float32(search.min_score), least)
        found = (scores > least).nonzero()[0]
        most = max(RANKED, 4 * search.limit)
        others = None
        if len(found) > most:
            parted = found[np.argpartition(-scores[found], most)]
            found, others = np.sort(parted[:most]), parted[most:]
        order: list[int] = found[np.argsort(-scores[found], kind="stable")].tolist()
        return RankedDocuments(order, scores, ranking, rest, others)


class DuplicateFilter:
    """Detects hits that duplicate better ones."""

    def __init__(self, index: ScopeIndex) -> None:
        self.count: int = 0
        """How many duplicates were found."""
        self._index = index
        self._digests: dict[int, int] = {}
        self._repeats: dict[int, int] = {}
        """How many duplicates had the terms of a digest."""
        self._same: dict[int, list[str]] = {}
        """Chosen texts, by the digests of their terms."""
        self._close: dict[int, list[int]] = {}
        """Documents that are close to another one, by document."""
        self._chosen: dict[int, str] = {}
        """The first chosen texts that have a vector, by document."""
        self._vectors: dict[int, NDArray[np.int8]] = {}

    def without_repeated(self, documents: list[int]) -> list[int]:
        """Return documents without those whose terms are those of many duplicates of one chosen text."""
        known = {n for n, times in self._repeats.items() if times >= REPEATED and len(self._same[n]) == 1}
        if not known:
            return documents
        with self._index.lock:
            digests = self._index.table.digest.values[np.array(documents, dtype=np.int64)].tolist()
        return [document for document, digest in zip(documents, digests, strict=True) if digest not in known]

    def load(self, found: list[int]) -> None:
        """Compare candidate documents with each other and with the chosen ones."""
        table = self._index.table
        with self._index.lock:
            documents = np.array(found, dtype=np.int64)
            self._digests = dict(zip(found, table.digest.values[documents].tolist(), strict=True))
            rows = table.rows_of(documents)
            known = documents[rows != NONE].tolist() if table.vectors.size else []
            vectors = table.vectors.of(rows[rows != NONE]) if known else None
        if vectors is None or (self._vectors and vectors.shape[1] != len(next(iter(self._vectors.values())))):
            return
        before = {n: self._vectors[n] for n in self._chosen}
        others = np.stack([*before.values(), *vectors]) if before else vectors
        near = cosines(vectors, others) > CLOSE
        self._vectors = before | dict(zip(known, vectors, strict=True))
        if np.count_nonzero(near) > len(known):
            names = list(self._vectors)
            self._close = {n: [names[m] for m in row.nonzero()[0].tolist()] for n, row in zip(known, near, strict=True)}

    def is_duplicate(self, document: int, record: Record) -> bool:
        """Return whether a document duplicates a chosen one; if not, choose it."""
        text, digest = record.text or "", self._digests[document]
        # Stop words are not terms, but a "not" among them inverts the meaning.
        if digest and any(_alike(text, known) for known in self._same.get(digest, ())):
            self.count += 1
            self._repeats[digest] = self._repeats.get(digest, 0) + 1
            return True
        if document in self._vectors and len(self._chosen) < COMPARED:
            for other in self._close.get(document, ()):
                if other in self._chosen and _alike(text, self._chosen[other]):
                    self.count += 1
                    return True
            self._chosen[document] = text
        self._same.setdefault(digest, []).append(text)
        return False


def _alike(text: str, known: str) -> bool:
    return text == known or similarity(text, known, strict=False) >= DUPLICATE


_COMPARE: dict[str, Any] = {"ge": np.greater_equal, "le": np.less_equal, "gt": np.greater, "lt": np.less}
