"""From a question to scores: one number for each document and signal, weighed and summed.

Every signal lies between 0 and 1 (a few between -1 and 1) over the documents that may be found, so a weight
is the most that a signal can add, and the parts of a sum are the reasons for it.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from ..store.ranking import bm25, length_norms, rarity
from .entry import Marks
from .question import Date, Question
from .shard import CONTEXT, NEVER, NONE, Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]

WINDOW = {-4: 0.3, -3: 0.4, -2: 0.6, -1: 0.8, 1: 0.6, 2: 0.4, 3: 0.3}
"""How much of its neighbours' words counts as a turn's own: an answer rarely repeats what was asked."""
SHARES = np.array([1.0, *WINDOW.values()], dtype=np.float32)[:, None]
K1, B = 0.9, 0.4
"""BM25 of a window: chat turns are short, so repetition and length tell little."""
SESSION_B = 0.75
"""BM25 of a session, where length does tell."""
UNRELATED = 0.1
"""The cosine that texts have that have nothing in common."""
RELATED = 0.15
"""From which cosine on a text that shares no word with the question may answer it."""
TELLING = 2
"""From how many terms on a turn may be an answer because of its neighbours, unless it is what was asked for."""
FARTHEST = np.float32(-0.5)
"""How much being far from the question can count against a text."""
LENGTH = 40.0
"""Up to how many terms a longer turn is likelier to say something."""
HOUR = 3_600_000_000

CONTENT = ("lexical", "dense", "session", "speaker", "graph")
"""The signals that tell what a document says, and of whom."""
SIGNALS = ("lexical", "dense", "session", "speaker", "time", "form", "recency", "importance", "graph")
"""All that `why` may name."""


class Weights(Struct, frozen=True, kw_only=True):
    """The most that each signal adds."""

    lexical: float = 3.0
    dense: float = 2.2
    context: float = 1.7
    session: float = 1.45
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


class Certainty(Struct, frozen=True, kw_only=True):
    """How likely there is an answer: a logistic function of what the best documents show."""

    base: float
    coverage: float
    agreement: float
    closeness: float = 0.0

    def of(self, shown: tuple[float, float, float]) -> float:
        """Return the likelihood, from 0 to 1, for a coverage, an agreement and a closeness."""
        coverage, agreement, closeness = shown
        told = self.coverage * coverage + self.agreement * agreement + self.closeness * closeness
        return 1 / (1 + exp(-self.base - told))


MEANING = Certainty(base=-12.9, coverage=3.8, agreement=7.1, closeness=9.4)
WORDS = Certainty(base=-8.0, coverage=5.0, agreement=6.0)
"""With vectors, fitted to LoCoMo (`python -m benchmarks.unanswered FILE` fits them); without, set by hand."""


class Ranking(Struct):
    """Scores of all documents, their parts by signal before they are scaled, and whether it is exact."""

    scores: Floats
    parts: dict[str, Floats]
    scale: float
    exact: bool
    shown: tuple[float, float, float]
    """What speaks for an answer: coverage, agreement and closeness, as `Certainty` weighs them."""


class Signals(Struct):
    """What the signals say of all documents."""

    parts: dict[str, Floats]
    """By signal, what it adds to each score."""
    evidence: Flags
    """Which documents have anything to do with the question, by words or by a meaning of their own."""
    coverage: float
    """The most of the question's words, by weight, that one document holds, from 0 to 1."""
    closeness: float | None
    """The cosine of the closest document; None if no meanings were compared."""
    exact: bool
    """Whether all vectors were compared."""


class Close(Struct):
    """How close documents are to a question in meaning."""

    alone: Floats
    """By themselves: 1 is the closest, 0 the mean."""
    around: Floats
    """With their neighbours, likewise."""
    related: Flags
    """Close enough by themselves to be an answer."""
    lent: Flags
    """Close enough with their neighbours."""
    opposed: Flags
    """With nothing in common with the question by themselves, so that no neighbour can lend them anything."""
    best: float
    """The cosine of the closest."""
    exact: bool
    """Whether all vectors were compared."""


class View:
    """What scoring derives from a shard; it holds as long as the shard does not change."""

    def __init__(self, shard: Shard) -> None:
        count = len(shard)
        self.alive = shard.alive.values.copy()
        self.whole = bool(self.alive.all())
        self.turn = shard.spoken.values.copy()
        self.traffic = (shard.role.values > 0) & ~self.turn
        """System messages, and what tools are asked and answer."""
        self.any_traffic = bool(self.traffic.any())
        self.counted = self.alive & ~self.traffic
        """The documents by which words are counted and meanings compared."""
        self.documents = int(np.count_nonzero(self.counted))
        self.any_turn = bool(self.turn.any())
        before = np.append(shard.before.values, count)
        after = np.append(shard.after.values, count)
        before[before == NONE] = count
        after[after == NONE] = count
        self.near = {-1: before, 1: after}
        for step in range(2, 5):
            self.near[-step] = before[self.near[1 - step]]
            self.near[step] = after[self.near[step - 1]]
        # What stands one step before a turn counts for it, so it is carried one step after.
        self.spread = np.stack([self.near[-step] for step in WINDOW])
        if shard.vectors.size:
            shard.embed_contexts(self.near)
        self._measure(shard)
        self._mark(shard)
        self.bounded = bool((shard.valid_from.values > -NEVER).any() or (shard.valid_to.values < NEVER).any())
        self.expiring = bool((shard.expires.values < NEVER).any())
        self.weighed = not bool(np.isnan(shard.importance.values).all())
        newest = shard.created.values[self.alive].max(initial=0)
        ages = np.log1p(np.maximum(newest - shard.created.values, 0) / HOUR)
        self.recency = (1 - ages / max(float(ages[self.alive].max(initial=0)), 1e-9)).astype(np.float32)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        held = (*vars(self).values(), *self.near.values())
        return sum(values.nbytes for values in held if isinstance(values, np.ndarray))

    def _measure(self, shard: Shard) -> None:
        """Find the lengths of windows and of sessions."""
        count = len(shard)
        lengths = np.append(shard.length.values, np.float32(0))
        lengths[:count][~self.counted] = 0
        window = lengths.copy()
        for step, share in WINDOW.items():
            window += np.float32(share) * lengths[self.near[step]]
        self.norms = length_norms(
            window, float(window[:count][self.counted].sum() / max(self.documents, 1)), k1=K1, b=B
        )
        sessions = np.bincount(
            shard.session.values, weights=lengths[:count], minlength=shard.session_count
        ).astype(np.float32)
        held = sessions > 0
        self.sessions = int(np.count_nonzero(held))
        mean = float(sessions[held].mean()) if self.sessions else 1.0
        self.session_norms = length_norms(sessions, mean, k1=K1, b=SESSION_B)

    def _mark(self, shard: Shard) -> None:
        """Find what the marks and lengths of turns say."""
        marks = shard.marks.values
        self.asks = (((marks & int(Marks.QUESTION)) > 0) & self.turn).astype(np.float32)
        self.links = np.flatnonzero(((marks & int(Marks.FACT)) > 0) & self.alive)
        logs = np.log1p(np.minimum(shard.length.values, LENGTH))
        turns = logs[self.turn & self.alive]
        middle = float(turns.mean()) if len(turns) else 0.0
        self.long = np.where(self.turn, logs - middle, 0).astype(np.float32)


def rank(found: Signals, visible: Flags | None, chosen: frozenset[str] | None = None) -> Ranking:
    """Add up what the signals say of every document: all of them, or those that are `chosen`."""
    parts = {name: values for name, values in found.parts.items() if chosen is None or name in chosen}
    scores = np.zeros(len(found.evidence), dtype=np.float32)
    for values in parts.values():
        scores += values
    scores[~found.evidence] = -np.inf
    if visible is not None:
        scores[~visible] = -np.inf
    best = float(scores.max(initial=0))
    # The best hit has the score that says how likely the question is answered at all; the others less.
    shown = _shown(found, parts, visible, best)
    by = WORDS if found.closeness is None else MEANING
    scale = by.of(shown) / best if best > 0 else 0.0
    np.multiply(scores, np.float32(scale), out=scores, where=np.isfinite(scores))
    return Ranking(scores, parts, scale, found.exact, shown)


def _shown(
    found: Signals, parts: dict[str, Floats], visible: Flags | None, best: float
) -> tuple[float, float, float]:
    """Return how much speaks for an answer: coverage, agreement and closeness.

    One document holds the question's words, or is close to it, and the signals agree on one document: where
    nothing answers, the best by words is seldom the best by meaning.
    """
    most = sum(max(_best(parts[name], visible), 0.0) for name in CONTENT if name in parts)
    return found.coverage, min(best / most, 2.0) if most > 0 else 0.0, found.closeness or 0.0


def signals(
    shard: Shard,
    view: View,
    question: Question,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]] | None,
    visible: Flags | None,
    strength: Floats | None,
    weights: Weights,
) -> Signals:
    """Return what each signal says.

    `vectors` are the question's, as asked and masked; `visible` are the documents that may be found, None
    for all; `strength` is what is left of each importance, NaN where there is none.
    """
    found: dict[str, Floats] = {}
    evidence = np.zeros(len(shard), dtype=np.bool_)
    lexical, sessions, own, coverage = _lexical(shard, view, question, visible)
    # What neighbours say counts for a turn that says something itself.
    lent = np.zeros(len(shard), dtype=np.bool_)
    if lexical is not None:
        evidence |= own
        lent |= lexical > 0
        lexical *= np.float32(weights.lexical)
        found["lexical"] = lexical
        if sessions is not None:
            found["session"] = np.float32(weights.session) * sessions
    exact = True
    closeness = None
    if vectors is not None and shard.vectors.size:
        close = _dense(shard, view, vectors, visible)
        found["dense"] = np.float32(weights.dense) * close.alone + np.float32(weights.context) * close.around
        evidence |= close.related
        lent = (lent | close.lent) & ~close.opposed
        closeness, exact = close.best, close.exact
    marks = shard.marks.values
    wanted = question.wants_time * int(Marks.TIME) | question.wants_number * int(Marks.NUMBER)
    evidence |= lent & ((shard.length.values >= TELLING) | ((marks & wanted) > 0))
    speaker = _speaker(shard, view, question, weights)
    if speaker is not None:
        found["speaker"] = speaker
    if question.wants_time:
        found["time"] = _weighed((marks & int(Marks.TIME)) > 0, weights.time)
    if question.date is not None:
        dated = _weighed(_on(question.date, shard.created.values), weights.date)
        found["time"] = found["time"] + dated if "time" in found else dated
    if view.any_turn:
        form = np.float32(weights.length) * view.long + np.float32(weights.question) * view.asks
        if question.wants_number:
            form += _weighed((marks & int(Marks.NUMBER)) > 0, weights.number)
        found["form"] = form
    latest = weights.latest if question.wants_latest else weights.recency
    found["recency"] = np.float32(latest) * view.recency
    if strength is not None:
        centred = np.nan_to_num((strength - 1) / (strength + 1), nan=0.0)
        found["importance"] = np.float32(weights.importance) * centred.astype(np.float32)
    graph = _graph(shard, view, question, visible)
    if graph is not None:
        evidence |= graph > 0
        found["graph"] = np.float32(weights.graph) * graph
    return Signals(found, evidence, coverage, closeness, exact)


def _best(values: Floats, visible: Flags | None) -> float:
    """Return the greatest value of those that may be found; 0 if there is none."""
    seen = values if visible is None else values[visible]
    return float(seen.max()) if len(seen) else 0.0


def _lexical(
    shard: Shard, view: View, question: Question, visible: Flags | None
) -> tuple[Floats | None, Floats | None, Flags, float]:
    """Return BM25 of each document with its neighbours and of its session, and who holds a term itself.

    And the most of the terms, by weight, that one document holds.
    """
    count = len(shard)
    scores = np.zeros(count + 1, dtype=np.float32)
    shared = 0 < view.sessions < view.documents
    by_session = np.zeros(shard.session_count if shared else 0, dtype=np.float32)
    ideal = 0.0
    covered = np.zeros(count, dtype=np.float32)
    for term, times in question.terms.items():
        documents, occurrences = shard.postings.of(term)
        if not view.whole and len(documents):
            kept = view.alive[documents]
            documents, occurrences = documents[kept], occurrences[kept]
        among = documents[view.counted[documents]] if view.any_traffic else documents
        weight = times * rarity(view.documents, len(among))
        if term not in question.names:
            ideal += weight
        else:
            # Turns say "I" for their speaker; other texts use the name.
            kept = ~view.turn[documents]
            documents, occurrences = documents[kept], occurrences[kept]
        if not len(documents):
            continue
        covered[documents] += np.float32(weight)
        held, window = _windows(view, documents, occurrences, count)
        scores[held] += bm25(window, view.norms[held], weight, K1)
        if shared:
            total = np.bincount(
                shard.session.values[documents],
                weights=occurrences * view.counted[documents],
                minlength=shard.session_count,
            )
            inside = np.flatnonzero(total)
            rare = times * rarity(view.sessions, len(inside))
            by_session[inside] += bm25(total[inside].astype(np.float32), view.session_norms[inside], rare, K1)
    scores = scores[:count]
    best = _best(scores, visible)
    if best <= 0:
        return None, None, covered > 0, 0.0
    coverage = min(1.0, _best(covered, visible) / ideal) if ideal else 0.0
    sessions = None
    if shared:
        sessions = by_session[shard.session.values]
        most = _best(sessions, visible)
        sessions = sessions / np.float32(most) if most > 0 else None
    scores /= np.float32(best)
    return scores, sessions, covered > 0, coverage


def _windows(
    view: View, documents: NDArray[np.int32], occurrences: Floats, count: int
) -> tuple[NDArray[np.signedinteger[Any]], Floats]:
    """Return the documents that hold a term, or whose neighbours do, and how often, neighbours in part."""
    if not view.any_turn:
        return documents, occurrences
    places = np.concatenate((documents[None], view.spread[:, documents])).ravel()
    shares = (SHARES * occurrences).ravel()
    if len(places) * 16 < count:
        held, at = np.unique(places, return_inverse=True)
        window = np.bincount(at, weights=shares).astype(np.float32)
        # The last place is that of no document.
        return (held, window) if held[-1] < count else (held[:-1], window[:-1])
    totals = np.bincount(places, weights=shares, minlength=count + 1)[:count]
    held = np.flatnonzero(totals)
    return held, totals[held].astype(np.float32)


def _dense(
    shard: Shard,
    view: View,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]],
    visible: Flags | None,
) -> Close:
    """Compare the question's vector with those of all documents."""
    asked, masked = vectors
    count = len(shard)
    close, exact = _cosines(shard, masked if view.any_turn else asked)
    if view.any_turn and asked is not masked:
        others, _ = _cosines(shard, asked)
        close[:count][~view.turn] = others[:count][~view.turn]
    known = np.isfinite(close[:count])
    nothing = np.zeros(count, dtype=np.float32)
    best = _best(close[:count], visible)
    if not np.isfinite(best):
        return Close(nothing, nothing, known, known, ~known, 0.0, exact)
    # Of vectors that were not compared it is only known that they are not close.
    everyone = view.counted & known
    all_known = bool(everyone.all())
    middle = _middle(close[:count] if all_known else close[:count][everyone]) if exact else UNRELATED
    if not all_known:
        close[:count][~known] = middle
    close[count] = 0
    around = close[:count].copy()
    for step, share in CONTEXT.items():
        around += np.float32(share) * close[view.near[step][:count]]
    around /= shard.context.values
    if not all_known:
        around[~known] = middle
    enough = max(middle, RELATED)
    related, lent = known & (close[:count] > enough), known & (around > enough)
    opposed = known & (close[:count] <= UNRELATED)
    among = None if all_known else everyone
    alone, around = _scaled(close[:count], among, visible), _scaled(around, among, visible)
    alone[~known] = around[~known] = 0
    return Close(alone, around, related, lent, opposed, best, exact)


def _middle(values: Floats) -> float:
    """Return the mean of cosines, with a few of unrelated texts added, since a mean of few says little."""
    return float((values.sum() + 10 * UNRELATED) / (len(values) + 10))


def _scaled(values: Floats, among: Flags | None, visible: Flags | None) -> Floats:
    """Return values such that the best that is visible is 1, unless it is poor, and the mean of all is 0."""
    middle = _middle(values if among is None else values[among])
    scaled: Floats = (values - np.float32(middle)) / np.float32(max(_best(values, visible) - middle, 0.2))
    return np.maximum(scaled, FARTHEST, out=scaled)


def _cosines(shard: Shard, query: NDArray[np.int8]) -> tuple[Floats, bool]:
    """Return the cosine of each document's closest vector with the query; -inf where it has none."""
    cosines, owners, exact = shard.vectors.compare(query)
    close = np.full(len(shard) + 1, -np.inf, dtype=np.float32)
    if shard.vectors.several:
        np.maximum.at(close, owners, cosines)
    else:
        close[owners] = cosines
    return close, exact


def _speaker(shard: Shard, view: View, question: Question, weights: Weights) -> Floats | None:
    """Return a bonus for what was said by the one whom the question is about."""
    if len(question.speakers) == 1:
        (speaker,) = question.speakers
        said = (shard.speaker.values == speaker) & view.turn
        for name in question.names:
            documents = _holding(shard, view, name)
            said[documents[~view.turn[documents]]] = True
        return _weighed(said, weights.speaker)
    if question.about_user != question.about_assistant and view.any_turn:
        role = 2 if question.about_user else 3
        return _weighed((shard.role.values == role) & view.turn, weights.role)
    return None


def _weighed(flags: Flags, weight: float) -> Floats:
    values: Floats = flags.astype(np.float32)
    values *= np.float32(weight)
    return values


def _on(date: Date, moments: NDArray[np.int64]) -> Flags:
    """Tell which moments, in microseconds, lie on a date, in as far as it is known."""
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


def _holding(shard: Shard, view: View, term: int) -> NDArray[np.int32]:
    """Return the documents that hold a term, are still there, and count."""
    documents, _ = shard.postings.of(term)
    return documents if view.whole and not view.any_traffic else documents[view.counted[documents]]


def _graph(shard: Shard, view: View, question: Question, visible: Flags | None) -> Floats | None:
    """Return how much a document speaks of what facts link with what the question speaks of."""
    if not len(view.links) or not question.terms:
        return None
    matched = np.zeros(len(shard), dtype=np.float32)
    for term in question.terms:
        documents = _holding(shard, view, term)
        matched[documents] += np.float32(rarity(view.documents, len(documents)))
    near = view.links[np.argsort(-matched[view.links], kind="stable")[:5]]
    near = near[matched[near] > 0]
    if not len(near):
        return None
    scores = np.zeros(len(shard), dtype=np.float32)
    for link in near.tolist():
        for term in shard.postings.terms_of(link).tolist():
            if term not in question.terms:
                documents = _holding(shard, view, term)
                scores[documents] += np.float32(rarity(view.documents, len(documents)) * matched[link])
        scores[link] += matched[link]
    best = _best(scores, visible)
    return scores / np.float32(best) if best > 0 else None
