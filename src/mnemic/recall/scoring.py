"""Scores documents for a question: a weighted sum of signals.

Every signal is between 0 and 1 (some between -1 and 1) over the visible documents, so a weight is the most that a
signal can add, and the terms of the sum explain the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import exp, log1p
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from .document_table import DocumentTable
from .document_view import CONTEXT_KERNEL, DocumentView, rarity
from .index_entry import TextFlags
from .keywords import best_of, match_keywords
from .question import AnalyzedQuestion, Date

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]

UNRELATED = 0.1
"""Typical cosine of unrelated texts."""
RELATED = 0.15
"""Cosine from which a text without a common word can be an answer."""
INFORMATIVE = 2
"""Number of terms from which a turn can be an answer because of its neighbors, unless it matches by itself."""
FARTHEST = np.float32(-0.5)
"""Largest penalty for distance from the question."""

CONTENT = ("lexical", "dense", "session", "speaker", "graph")
"""Signals about the content and the speaker of a document."""
SIGNALS = ("lexical", "dense", "session", "speaker", "time", "form", "recency", "importance", "graph")
"""Names that `why` can contain."""


class Weights(Struct, frozen=True, kw_only=True):
    """Maximum contribution of each signal."""

    lexical: float = 2.6
    coverage: float = 1.0
    dense: float = 2.2
    context: float = 1.7
    session: float = 1.2
    speaker: float = 2.7
    role: float = 2.4
    time: float = 1.7
    date: float = 3.0
    number: float = 1.3
    question: float = -0.5
    length: float = 0.4
    recency: float = 0.1
    latest: float = 1.0
    importance: float = 0.6
    graph: float = 0.8


MANY_SPEAKERS = {"speaker": -1.35, "session": 2.3, "dense": -1.1, "length": -0.2}
"""Changes of the weights where many speak in one session: scenes and meetings."""
FEW, MANY = 2, 4
"""Number of speakers in a session up to which they are few, and from which they are many."""
LONG_TURNS = {
    "length": -1.7, "question": 0.5, "dense": 1.2, "context": -1.7, "session": -1.2, "number": 0.25, "recency": -0.1,
}  # fmt: skip
"""Changes of the weights where turns are long: chats with an assistant, with lists and code in its answers."""
SHORT, LONG = 20, 60
"""Mean number of terms up to which turns are short, and from which they are long."""


def scope_shape(view: DocumentView) -> tuple[float, float]:
    """Return how far a scope's turns are long, and the speakers in a session many, each from 0 to 1."""
    long = (view.mean_length - SHORT) / (LONG - SHORT)
    many = (view.mean_speakers - FEW) / (MANY - FEW)
    return min(max(long, 0.0), 1.0), min(max(many, 0.0), 1.0)


def weights_for(view: DocumentView, trust: float) -> Weights:
    """Return the weights for the length of a scope's turns and its speakers; `trust` multiplies those of vectors."""
    found = asdict(Weights())
    long, many = scope_shape(view)
    for share, changes in ((long, LONG_TURNS), (many, MANY_SPEAKERS)):
        for name, change in changes.items():
            found[name] += share * change
    # A vector says less about a long text, whatever made it.
    trust = 1 + (1 - long / 2) * (trust - 1)
    return Weights(**found | {name: trust * found[name] for name in ("dense", "context")})


class Evidence(Struct, frozen=True, kw_only=True):
    """Evidence that a scope answers a question."""

    coverage: float
    """Largest weighted share of the question's words in one document, from 0 to 1."""
    agreement: float
    """How far the signals agree on one document: without an answer, the best by words is seldom best by vectors."""
    information: float
    """Logarithm of the weight of these words: frequent ones are shared by chance."""
    closeness: float
    """Similarity of the closest vector, in standard deviations above that of unrelated ones; 0 without vectors."""
    size: float
    """Logarithm of the number of documents, at most `LARGE`: among many, some match by chance."""


class Certainty(Struct, frozen=True, kw_only=True):
    """Probability that there is an answer: a logistic function of the evidence."""

    base: float
    coverage: float
    agreement: float
    information: float
    closeness: float = 0.0
    size: float

    def probability(self, evidence: Evidence) -> float:
        """Return the probability that there is an answer."""
        total = self.base + self.coverage * evidence.coverage + self.agreement * evidence.agreement
        total += self.information * evidence.information + self.closeness * evidence.closeness
        return 1 / (1 + exp(-total - self.size * evidence.size))


MEANING = Certainty(base=-10.3, coverage=2.2, agreement=8.6, information=1.85, closeness=0.38, size=-0.56)
WORDS = Certainty(base=-5.4, coverage=2.9, agreement=3.6, information=1.85, size=-0.51)
"""With vectors and without, near what fits LoCoMo among other texts (`python -m benchmarks.unanswered`)."""
LARGE = 30_000
"""Number of documents above which more make no difference; assumed where only candidates are known."""


class Ranking(Struct):
    """Scores of all documents, their unscaled contributions by signal, and whether they are exact."""

    scores: Floats
    parts: dict[str, Floats]
    scale: float
    exact: bool
    evidence: Evidence


class Signals(Struct):
    """Values of all signals for all documents."""

    parts: dict[str, Floats]
    """Contribution of each signal to each score."""
    matching: Flags
    """Which documents match the question by a word or by their own vector."""
    coverage: float
    """Largest weighted share of the question's words in one document, from 0 to 1."""
    information: float
    """Largest weight of the question's words in one document."""
    closeness: float | None
    """Similarity of the closest document, as in `Evidence`; None without vectors."""
    documents: int
    """Number of documents."""
    exact: bool
    """Whether all vectors were compared."""


class Closeness(Struct):
    """Vector similarity of documents and the question."""

    alone: Floats
    """Of the document alone: 1 is the closest, 0 the mean."""
    around: Floats
    """Of the document with its neighbors, on the same scale."""
    related: Flags
    """Close enough alone to be an answer."""
    related_around: Flags
    """Close enough with neighbors."""
    unrelated: Flags
    """So far from the question that neighbors do not count."""
    best: float
    """Cosine of the closest."""
    exact: bool
    """Whether all vectors were compared."""


def rank(
    found: Signals,
    visible: Flags | None,
    chosen: frozenset[str] | None = None,
    factors: Mapping[str, float] | None = None,
) -> Ranking:
    """Sum the signals of every document: all of them, or the `chosen` ones, those in `factors` multiplied."""
    parts = {name: values for name, values in found.parts.items() if chosen is None or name in chosen}
    for name, factor in (factors or {}).items():
        if name in parts and factor != 1:
            parts[name] = parts[name] * np.float32(factor)
    scores = np.zeros(len(found.matching), dtype=np.float32)
    for values in parts.values():
        scores += values
    scores[~found.matching] = -np.inf
    if visible is not None:
        scores[~visible] = -np.inf
    best = float(scores.max(initial=0))
    # The best hit gets the probability that there is an answer; the others proportionally less.
    evidence = _evidence(found, parts, visible, best)
    certainty = WORDS if found.closeness is None else MEANING
    scale = certainty.probability(evidence) / best if best > 0 else 0.0
    if scale:
        scores *= np.float32(scale)
    else:
        scores[scores > -np.inf] = 0
    return Ranking(scores, parts, scale, found.exact, evidence)


def _evidence(found: Signals, parts: dict[str, Floats], visible: Flags | None, best: float) -> Evidence:
    most = sum(max(best_of(parts[name], visible), 0.0) for name in CONTENT if name in parts)
    return Evidence(
        coverage=found.coverage,
        agreement=min(best / most, 2.0) if most > 0 else 0.0,
        information=log1p(found.information),
        closeness=found.closeness or 0.0,
        size=log1p(min(found.documents, LARGE)),
    )


def signals(
    table: DocumentTable,
    view: DocumentView,
    question: AnalyzedQuestion,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]] | None,
    visible: Flags | None,
    strength: Floats | None,
    weights: Weights,
) -> Signals:
    """Compute all signals.

    `vectors` are the question's, original and masked; `visible` are the documents that can be found, None for
    all; `strength` is the decayed importance, NaN where there is none.
    """
    found: dict[str, Floats] = {}
    matching = np.zeros(len(table), dtype=np.bool_)
    words = match_keywords(table, view, question, visible)
    # Neighbors count only for a turn that says something itself.
    by_neighbors = np.zeros(len(table), dtype=np.bool_)
    if words.scores is not None:
        matching |= words.covered > 0
        by_neighbors |= words.scores > 0
        found["lexical"] = np.float32(weights.lexical) * words.scores + np.float32(weights.coverage) * words.covered
        if words.sessions is not None:
            found["session"] = np.float32(weights.session) * words.sessions
    exact = True
    closeness = None
    if vectors is not None and table.vectors.size:
        close = _dense(table, view, vectors, visible)
        found["dense"] = np.float32(weights.dense) * close.alone + np.float32(weights.context) * close.around
        matching |= close.related
        by_neighbors = (by_neighbors | close.related_around) & ~close.unrelated
        mean, spread = view.typical_cosine(table)
        closeness, exact = (close.best - mean) / spread, close.exact
    flags = table.flags.values
    wanted = question.wants_time * int(TextFlags.TIME) | question.wants_number * int(TextFlags.NUMBER)
    matching |= by_neighbors & ((table.length.values >= INFORMATIVE) | ((flags & wanted) > 0))
    speaker = _speaker(table, view, question, weights)
    if speaker is not None:
        found["speaker"] = speaker
    if question.wants_time:
        found["time"] = _weighed((flags & int(TextFlags.TIME)) > 0, weights.time)
    if question.date is not None:
        dated = _weighed(_on(question.date, table.created.values), weights.date)
        found["time"] = found["time"] + dated if "time" in found else dated
    if view.any_turn:
        form = np.float32(weights.length) * view.long + _weighed(view.asks, weights.question)
        if question.wants_number:
            form += _weighed((flags & int(TextFlags.NUMBER)) > 0, weights.number)
        found["form"] = form
    latest = weights.latest if question.wants_latest else weights.recency
    found["recency"] = np.float32(latest) * view.recency
    if strength is not None:
        centred = np.nan_to_num((strength - 1) / (strength + 1), nan=0.0)
        found["importance"] = np.float32(weights.importance) * centred.astype(np.float32)
    graph = _graph(table, view, question, visible)
    if graph is not None:
        matching |= graph > 0
        found["graph"] = np.float32(weights.graph) * graph
    coverage = best_of(words.covered, visible)
    documents = LARGE if table.sparse else view.documents
    return Signals(found, matching, coverage, coverage * words.weight, closeness, documents, exact)


def _dense(
    table: DocumentTable, view: DocumentView, vectors: tuple[NDArray[np.int8], NDArray[np.int8]], visible: Flags | None
) -> Closeness:
    """Compare the question's vector with those of all documents."""
    plain, masked = vectors
    count = len(table)
    close, exact = _cosines(table, masked if view.any_turn else plain)
    if view.any_turn and plain is not masked:
        others, _ = _cosines(table, plain)
        close[~view.turn] = others[~view.turn]
    known = np.isfinite(close)
    nothing = np.zeros(count, dtype=np.float32)
    best = best_of(close, visible)
    if not np.isfinite(best):
        return Closeness(nothing, nothing, known, known, ~known, 0.0, exact)
    # Vectors that were not compared are known only to be not close.
    everyone = view.counted & known
    all_known = np.count_nonzero(everyone) == count
    middle = _middle(close if all_known else close[everyone]) if exact else UNRELATED
    if not all_known:
        close[~known] = middle
    around = view.around(close, CONTEXT_KERNEL)
    if view.any_turn:
        lengths = table.context.values
        around /= lengths if view.all_turns else np.where(view.turn, lengths, np.float32(1))
        if view.mixed:
            _match(around, close, view.turn & everyone)
    if not all_known:
        around[~known] = middle
    enough = max(middle, RELATED)
    related, related_around = known & (close > enough), known & (around > enough)
    unrelated = known & (close <= UNRELATED)
    among = None if all_known else everyone
    alone, around = _scaled(close, among, visible), _scaled(around, among, visible)
    alone[~known] = around[~known] = 0
    return Closeness(alone, around, related, related_around, unrelated, best, exact)


def _match(around: Floats, alone: Floats, turns: Flags) -> None:
    """Give similarities of turns with neighbors the mean and spread of those without, as other documents have them."""
    from_, to = around[turns], alone[turns]
    if len(to) > 10:
        scale = float(to.std()) / max(float(from_.std()), 1e-6)
        around[turns] = to.mean() + np.float32(scale) * (from_ - from_.mean())


def _middle(values: Floats) -> float:
    """Return the mean of cosines, smoothed with typical unrelated ones, for small sets."""
    return float((np.add.reduce(values) + 10 * UNRELATED) / (len(values) + 10))


def _scaled(values: Floats, among: Flags | None, visible: Flags | None) -> Floats:
    """Scale values so that the best visible one is 1, unless it is poor, and the mean is 0."""
    middle = _middle(values if among is None else values[among])
    scaled: Floats = (values - np.float32(middle)) / np.float32(max(best_of(values, visible) - middle, 0.2))
    return np.maximum(scaled, FARTHEST, out=scaled)


def _cosines(table: DocumentTable, query: NDArray[np.int8]) -> tuple[Floats, bool]:
    """Return the cosine of each document's closest vector; -inf where it has none."""
    cosines, owners, exact = table.vectors.compare(query)
    if isinstance(owners, slice) and len(cosines) == len(table):
        return cosines, exact
    close = np.full(len(table), -np.inf, dtype=np.float32)
    if table.vectors.multiple:
        np.maximum.at(close, owners, cosines)
    else:
        close[owners] = cosines
    return close, exact


def _speaker(table: DocumentTable, view: DocumentView, question: AnalyzedQuestion, weights: Weights) -> Floats | None:
    """Return a bonus for turns by the person whom the question is about."""
    if len(question.speakers) == 1:
        (speaker,) = question.speakers
        by_speaker = (table.speaker.values == speaker) & view.turn
        for name in question.names:
            documents = _holding(table, view, name)
            by_speaker[documents[~view.turn[documents]]] = True
        return _weighed(by_speaker, weights.speaker)
    if question.about_user != question.about_assistant and view.any_turn:
        role = 2 if question.about_user else 3
        spoken = (table.role.values == role) & view.turn
        # Notes, facts and memories are about the user, whose scope it is.
        return _weighed(spoken | ~(view.turn | view.traffic) if view.mixed and role == 2 else spoken, weights.role)
    return None


def _weighed(flags: Flags, weight: float) -> Floats:
    values: Floats = flags.astype(np.float32)
    values *= np.float32(weight)
    return values


def _on(date: Date, moments: NDArray[np.int64]) -> Flags:
    """Return which times, in microseconds, fall on a possibly partial date."""
    days = moments.astype("datetime64[us]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    years = days.astype("datetime64[Y]")
    found = np.ones(len(moments), dtype=np.bool_)
    if date.year is not None:
        found &= years.astype(np.int64) + 1970 == date.year
    if date.month is not None:
        found &= (months - years.astype("datetime64[M]")).astype(np.int64) + 1 == date.month
    if date.day is not None:
        found &= (days - months.astype("datetime64[D]")).astype(np.int64) + 1 == date.day
    return found


def _holding(table: DocumentTable, view: DocumentView, term: int) -> NDArray[np.int32]:
    """Return the live documents that contain a term and count for statistics."""
    documents, _ = table.postings.of(term)
    return documents if view.whole and not view.any_traffic else documents[view.counted[documents]]


def _graph(
    table: DocumentTable, view: DocumentView, question: AnalyzedQuestion, visible: Flags | None
) -> Floats | None:
    """Return how much a document mentions entities that facts connect with those in the question."""
    if not len(view.links) or not question.terms:
        return None
    matched = np.zeros(len(table), dtype=np.float32)
    for term in (*question.terms, *chain(*question.variants.values())):
        documents = _holding(table, view, term)
        matched[documents] += np.float32(rarity(view.documents, len(documents)))
    near = view.links[np.argsort(-matched[view.links], kind="stable")[:5]]
    near = near[matched[near] > 0]
    if not len(near):
        return None
    scores = np.zeros(len(table), dtype=np.float32)
    for link in near.tolist():
        for term in table.postings.terms_of(link).tolist():
            if term not in question.terms:
                documents = _holding(table, view, term)
                scores[documents] += np.float32(rarity(view.documents, len(documents)) * matched[link])
        scores[link] += matched[link]
    best = best_of(scores, visible)
    return scores / np.float32(best) if best > 0 else None
