"""The index of one scope and the answers that it gives."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ..checks import to_microseconds
from ..records import ROLES, Record, Stream, now
from ..store.query import Condition, Search
from .entry import Entry
from .maker import Maker
from .question import understand
from .scoring import Ranking, View, Weights, rank
from .shard import NONE, Shard
from .strength import USE, days_between, strength, unpack_use

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

COPY = 0.985
"""From which cosine on two texts are near-copies of one another."""
RANKED = 1_000
"""How many of the best documents are put in order at first; the rest only if they are needed."""
MINUTE = 60_000_000
WEIGHTS = Weights()


class Answer(Struct):
    """Documents in order of their scores, and the reasons."""

    documents: list[int]
    scores: NDArray[np.float32]
    ranking: Ranking
    rest: tuple[Condition, ...]
    """The conditions that only the records themselves can answer."""

    def why(self, document: int) -> dict[str, float]:
        """Return what each signal added to a document's score, the most first."""
        scale = self.ranking.scale
        parts = {name: scale * float(values[document]) for name, values in self.ranking.parts.items()}
        if "dense" in parts and not self.ranking.exact:
            parts["dense (approximate)"] = parts.pop("dense")
        return dict(
            sorted(((n, v) for n, v in parts.items() if abs(v) > 1e-6), key=lambda part: -abs(part[1]))
        )

    def narrow(self, passing: set[int], after: int) -> None:
        """Leave out, from a place on, what is not among those that pass."""
        self.documents[after:] = [n for n in self.documents[after:] if n in passing]


class Index:
    """A shard, the lock that guards it, and what is derived from it while it does not change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.shard = Shard()
        self._claimed: set[tuple[str, str]] = set()
        self._view: View | None = None
        self._left: tuple[View, int, NDArray[np.float32]] | None = None

    def claim(self, stream: Stream) -> bool:
        """Begin to take in what a stream has had since; False if someone else has begun."""
        name = (stream.scope.path, stream.kind)
        with self.lock:
            if name in self._claimed:
                return False
            self._claimed.add(name)
            return True

    def release(self, stream: Stream) -> None:
        """Let others take the stream in; what was begun and not ended is begun again."""
        with self.lock:
            self._claimed.discard((stream.scope.path, stream.kind))

    def reached(self, stream: Stream) -> None:
        """Note that the stream was taken in as far as it went when it was listed."""
        with self.lock:
            self.shard.versions[stream.scope.path, stream.kind] = stream.version

    def add(
        self,
        stream: Stream,
        records: list[Record],
        entries: list[Entry | None],
        *,
        first: bool,
        embedding: bool,
    ) -> None:
        """Take in records of a stream, the `first` of it or those after."""
        shard = self.shard
        with self.lock:
            if first:
                shard.begin(stream)
            gone = [record.seq for record, entry in zip(records, entries, strict=True) if entry is None]
            if gone:
                # A new version without text takes the place of one with text.
                held = shard.held(stream)
                shard.drop(held[np.isin(shard.seq.values[held], gone)])
                records = [r for r, entry in zip(records, entries, strict=True) if entry is not None]
            texts = [entry for entry in entries if entry is not None]
            for n, record, entry in zip(shard.add(stream, records, texts), records, texts, strict=True):
                if USE in record.derived:
                    shard.used.values[n], shard.uses.values[n] = unpack_use(record.derived[USE])
                if embedding and entry.vectors is None and len(entry.terms):
                    shard.lacking[n] = record.version
            shard.settle()
            self._view = None

    def count(self, stream: Stream) -> int:
        """Return how many of a stream's records are known, those without text too."""
        return len(self.shard.held(stream)) + self.shard.silent.get((stream.scope.path, stream.kind), 0)

    def keep(self, stream: Stream, seqs: Sequence[int]) -> None:
        """Forget what is not among the seqs that a stream has."""
        with self.lock:
            held = self.shard.held(stream)
            present = np.isin(self.shard.seq.values[held], np.asarray(seqs, dtype=np.int64))
            self.shard.drop(held[~present])
            self.shard.silent[stream.scope.path, stream.kind] = len(seqs) - int(np.count_nonzero(present))
            self._view = None

    def attach(self, document: int, vectors: NDArray[np.int8]) -> None:
        """Add vectors that were missing; the lock is the caller's."""
        self.shard.attach(document, vectors)
        self._view = None

    def around(self, document: int, count: int) -> tuple[list[int], list[int]]:
        """Return the turns before and after one, both in their order."""
        sides = []
        for column in (self.shard.before.values, self.shard.after.values):
            side: list[int] = []
            at = int(column[document])
            while at != NONE and len(side) < count:
                side.append(at)
                at = int(column[at])
            sides.append(side)
        return sides[0][::-1], sides[1]

    def documents(self, places: Iterable[tuple[str, str, int]]) -> set[int]:
        """Return the documents at places, given by scope, kind and seq."""
        shard = self.shard
        wanted = {(shard.numbers[p, k], seq) for p, k, seq in places if (p, k) in shard.numbers}
        pairs = zip(shard.stream.values.tolist(), shard.seq.values.tolist(), strict=True)
        return {n for n, pair in enumerate(pairs) if pair in wanted}

    def answer(self, search: Search, maker: Maker) -> Answer:
        """Rank all documents that the search may find."""
        shard = self.shard
        with self.lock:
            if self._view is None:
                self._view = View(shard)
            view = self._view
            question = understand(search.query, shard.speakers)
            dense = not search.signals or "dense" in search.signals
            asked = maker.question(search.query) if dense and shard.vectors.size else None
            masked = asked if question.masked == question.text else maker.question(question.masked)
            both = None if asked is None or masked is None else (asked, masked)
            moment = to_microseconds(now())
            visible, rest = self._visible(search, view, moment)
            chosen = frozenset(search.signals) or None
            weights = replace(
                WEIGHTS, dense=WEIGHTS.dense * maker.trust, context=WEIGHTS.context * maker.trust
            )
            strengths = self._strengths(view, moment)
            ranking = rank(shard, view, question, both, visible, strengths, weights, chosen)
            order = self._order(ranking, search)
            if search.diverse:
                order = self._diverse(order, search.limit)
            return Answer(order, ranking.scores, ranking, rest)

    def _visible(self, search: Search, view: View, moment: int) -> tuple[Flags | None, tuple[Condition, ...]]:
        """Return which documents may be found, None for all, and the conditions that this does not settle."""
        shard = self.shard
        tests: list[Flags] = [] if view.whole else [view.alive]
        if view.expiring:
            tests.append(shard.expires.values > moment)
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

    def _test(self, test: Condition) -> Flags | None:
        shard = self.shard
        value: Any = test.value
        known: Flags | None = None
        if test.field == "created" and test.op in ("ge", "le", "gt", "lt"):
            known = _COMPARE[test.op](shard.created.values, to_microseconds(value))
        elif test.field == "importance" and test.op in ("ge", "gt"):
            known = _COMPARE[test.op](np.nan_to_num(shard.importance.values, nan=-np.inf), value)
        elif test.field == "data.role" and test.op == "in":
            known = np.isin(shard.role.values, [ROLES.index(role) + 1 for role in value])
        return known

    def _strengths(self, view: View, moment: int) -> NDArray[np.float32] | None:
        """Return what is left of each importance, to the minute; None if there are none."""
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

    def _order(self, ranking: Ranking, search: Search) -> list[int]:
        """Return the documents, best first: those that a search can end with, and all if it may filter."""
        scores = ranking.scores
        found = np.flatnonzero(scores > (search.min_score or -np.inf))
        most = max(RANKED, 4 * search.limit)
        if len(found) > most and not search.where:
            found = found[np.argpartition(-scores[found], most)[:most]]
        order: list[int] = found[np.argsort(-scores[found], kind="stable")].tolist()
        return order

    def _diverse(self, order: list[int], limit: int) -> list[int]:
        """Put copies of better documents behind the first `limit` that are none."""
        shard = self.shard
        kept: list[int] = []
        copies: list[int] = []
        digests: set[int] = set()
        for place, document in enumerate(order):
            if len(kept) == limit:
                return kept + copies + order[place:]
            digest = int(shard.digest.values[document])
            if digest and digest in digests:
                copies.append(document)
                continue
            digests.add(digest)
            kept.append(document)
        return kept + copies


_COMPARE: dict[str, Any] = {"ge": np.greater_equal, "le": np.less_equal, "gt": np.greater, "lt": np.less}
