"""From a question to scores: one number for each document and signal, weighed and summed.

Every signal lies between 0 and 1 (a few between -1 and 1) over the documents that may be found, so a weight
is the most that a signal can add, and the parts of a sum are the reasons for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from ..store.ranking import bm25, rarity
from .entry import Marks
from .question import Date, Question
from .shard import CONTEXT, NONE, Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]

WINDOW = {-4: 0.3, -3: 0.4, -2: 0.6, -1: 0.8, 1: 0.6, 2: 0.4, 3: 0.3}
"""How much of its neighbours' words counts as a turn's own: an answer rarely repeats what was asked."""
K1, B = 0.9, 0.4
"""BM25 of a window: chat turns are short, so repetition and length tell little."""
SESSION_B = 0.75
"""BM25 of a session, where length does tell."""
UNRELATED = 0.1
"""The cosine that texts have that have nothing in common."""
RELATED = 0.15
"""From which cosine on a text that shares no word with the question may answer it."""
FARTHEST = np.float32(-0.5)
"""How much being far from the question can count against a text."""
LENGTH = 40.0
"""Up to how many terms a longer turn is likelier to say something."""
HOUR = 3_600_000_000

SIGNALS = ("lexical", "dense", "session", "speaker", "time", "form", "recency", "importance", "graph")
"""All that `why` may name."""


class Weights(Struct, frozen=True, kw_only=True):
    """The most that each signal adds."""

    lexical: float = 3.2
    dense: float = 1.8
    context: float = 1.6
    session: float = 1.35
    speaker: float = 2.7
    role: float = 2.4
    time: float = 1.7
    date: float = 3.0
    number: float = 1.3
    question: float = -0.8
    length: float = 0.6
    recency: float = 0.1
    latest: float = 1.0
    importance: float = 0.6
    graph: float = 0.8


class Ranking(Struct):
    """Scores of all documents, their parts by signal, and whether all vectors were compared."""

    scores: Floats
    parts: dict[str, Floats]
    exact: bool


class Signals(Struct):
    """What the signals say of all documents."""

    parts: dict[str, Floats]
    """By signal, what it adds to each score."""
    evidence: Flags
    """Which documents have anything to do with the question."""
    quality: float
    """How well the best of them answers it, from 0 to 1."""
    exact: bool
    """Whether all vectors were compared."""


class View:
    """What scoring derives from a shard; it holds as long as the shard does not change."""

    def __init__(self, shard: Shard) -> None:
        count = len(shard)
        self.alive = shard.alive.values.copy()
        self.whole = bool(self.alive.all())
        self.documents = int(np.count_nonzero(self.alive))
        before = np.append(shard.before.values, count)
        after = np.append(shard.after.values, count)
        before[before == NONE] = count
        after[after == NONE] = count
        self.near = {-1: before, 1: after}
        for step in range(2, 5):
            self.near[-step] = before[self.near[1 - step]]
            self.near[step] = after[self.near[step - 1]]
        if shard.vectors.size:
            shard.embed_contexts(self.near)
        lengths = np.append(shard.length.values, np.float32(0))
        lengths[:count][~self.alive] = 0
        window = lengths.copy()
        for step, share in WINDOW.items():
            window += np.float32(share) * lengths[self.near[step]]
        self.window = window
        self.mean_window = float(window[:count].sum() / max(self.documents, 1))
        self.turn = shard.role.values > 0
        self.any_turn = bool(self.turn.any())
        self.all_turns = bool(self.turn.all())
        self.session_lengths = np.bincount(
            shard.session.values, weights=lengths[:count], minlength=shard.session_count
        ).astype(np.float32)
        held = self.session_lengths > 0
        self.sessions = int(np.count_nonzero(held))
        self.mean_session = float(self.session_lengths[held].mean()) if self.sessions else 1.0
        logs = np.log1p(np.minimum(shard.length.values, LENGTH))
        turns = logs[self.turn & self.alive]
        middle = float(turns.mean()) if len(turns) else 0.0
        self.form = np.where(self.turn, logs - middle, 0).astype(np.float32)


def rank(
    shard: Shard,
    view: View,
    question: Question,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]] | None,
    visible: Flags,
    moment: int,
    strength: Floats,
    weights: Weights,
    chosen: frozenset[str] | None = None,
) -> Ranking:
    """Score every document; `vectors` are the question's, as asked and masked; see `signals`."""
    found = signals(shard, view, question, vectors, visible, moment, strength, weights)
    parts = {name: values for name, values in found.parts.items() if chosen is None or name in chosen}
    scores = np.zeros(len(shard), dtype=np.float32)
    best = 0.0
    for values in parts.values():
        scores += values
    if len(scores) and visible.any():
        best = float(scores[visible].max())
    # The best hit has the score that says how well the question is answered at all; the others less.
    scale = np.float32(found.quality / best if best > 0 else 0.0)
    scores *= scale
    for name in parts:
        parts[name] = parts[name] * scale
    scores[~(visible & found.evidence)] = -np.inf
    return Ranking(scores, parts, found.exact)


def signals(
    shard: Shard,
    view: View,
    question: Question,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]] | None,
    visible: Flags,
    moment: int,
    strength: Floats,
    weights: Weights,
) -> Signals:
    """Return what each signal says; `strength` is what is left of each importance, or NaN."""
    found: dict[str, Floats] = {}
    evidence = np.zeros(len(shard), dtype=np.bool_)
    lexical, sessions, coverage = _lexical(shard, view, question, visible)
    if lexical is not None:
        found["lexical"] = np.float32(weights.lexical) * lexical
        evidence |= lexical > 0
        if sessions is not None:
            found["session"] = np.float32(weights.session) * sessions
    exact = True
    closeness = 0.0
    if vectors is not None and shard.vectors.size:
        alone, around, related, closeness, exact = _dense(shard, view, vectors, visible)
        found["dense"] = np.float32(weights.dense) * alone + np.float32(weights.context) * around
        evidence |= related
    speaker = _speaker(shard, view, question, weights)
    if speaker is not None:
        found["speaker"] = speaker
    marks = shard.marks.values
    if question.wants_time:
        found["time"] = _weighed((marks & Marks.TIME) > 0, weights.time)
    if question.date is not None:
        dated = _weighed(_on(question.date, shard.created.values), weights.date)
        found["time"] = found["time"] + dated if "time" in found else dated
    form = np.float32(weights.length) * view.form
    form += np.float32(weights.question) * (((marks & Marks.QUESTION) > 0) & view.turn)
    if question.wants_number:
        form += np.float32(weights.number) * ((marks & Marks.NUMBER) > 0)
    if view.any_turn:
        found["form"] = form
    ages = np.maximum(moment - shard.created.values, 0) / HOUR
    weight = weights.latest if question.wants_latest else weights.recency
    found["recency"] = np.float32(weight) * _recency(ages, visible)
    if np.isfinite(strength).any():
        centred = np.nan_to_num((strength - 1) / (strength + 1), nan=0.0)
        found["importance"] = np.float32(weights.importance) * centred.astype(np.float32)
    graph = _graph(shard, view, question, visible)
    if graph is not None:
        found["graph"] = np.float32(weights.graph) * graph
        evidence |= graph > 0
    return Signals(found, evidence, float(min(1.0, max(coverage, closeness, 0.02))), exact)


def _lexical(
    shard: Shard, view: View, question: Question, visible: Flags
) -> tuple[Floats | None, Floats | None, float]:
    """Return BM25 of each document with its neighbours and of its session, and the best share of terms."""
    count = len(shard)
    scores = np.zeros(count + 1, dtype=np.float32)
    by_session = np.zeros(shard.session_count, dtype=np.float32)
    shared = 0 < view.sessions < view.documents
    ideal = 0.0
    covered = np.zeros(count, dtype=np.float32)
    for term, times in question.terms.items():
        documents, occurrences = shard.postings.of(term)
        if not view.whole and len(documents):
            kept = view.alive[documents]
            documents, occurrences = documents[kept], occurrences[kept]
        weight = times * rarity(view.documents, len(documents))
        ideal += weight
        if term in question.names:
            # Turns say "I" for their speaker; other texts use the name.
            kept = ~view.turn[documents]
            documents, occurrences = documents[kept], occurrences[kept]
        if not len(documents):
            continue
        covered[documents] += np.float32(weight)
        window = np.zeros(count + 1, dtype=np.float32)
        window[documents] = occurrences
        for step, share in WINDOW.items():
            # What stands at one step before a turn counts for it, so it is carried one step after.
            window[view.near[-step][documents]] += np.float32(share) * occurrences
        held = np.flatnonzero(window[:count])
        scores[held] += bm25(window[held], view.window[held], view.mean_window, weight, k1=K1, b=B)
        if shared:
            total = np.bincount(
                shard.session.values[documents], weights=occurrences, minlength=shard.session_count
            ).astype(np.float32)
            inside = np.flatnonzero(total)
            rare = times * rarity(view.sessions, len(inside))
            by_session[inside] += bm25(
                total[inside], view.session_lengths[inside], view.mean_session, rare, k1=K1, b=SESSION_B
            )
    scores = scores[:count]
    best = float(scores[visible].max()) if visible.any() else 0.0
    if best <= 0:
        return None, None, 0.0
    coverage = float(covered[visible].max()) / ideal if ideal else 0.0
    sessions = None
    if shared:
        sessions = by_session[shard.session.values]
        most = float(sessions[visible].max())
        sessions = sessions / np.float32(most) if most > 0 else None
    return scores / np.float32(best), sessions, coverage


def _dense(
    shard: Shard,
    view: View,
    vectors: tuple[NDArray[np.int8], NDArray[np.int8]],
    visible: Flags,
) -> tuple[Floats, Floats, Flags, float, bool]:
    """Return how close each document is by itself and with its neighbours: 1 is the closest, 0 the mean.

    And which are close enough to be an answer, how close the best is in itself, from 0 to 1, and whether
    all vectors were compared.
    """
    asked, masked = vectors
    count = len(shard)
    close, exact = _cosines(shard, masked if view.any_turn else asked)
    if view.any_turn and not view.all_turns and not np.array_equal(asked, masked):
        others, _ = _cosines(shard, asked)
        close[:count][~view.turn] = others[:count][~view.turn]
    known = np.isfinite(close[:count])
    nothing = np.zeros(count, dtype=np.float32)
    if not (known & visible).any():
        return nothing, nothing, known, 0.0, exact
    best = float(close[:count][known & visible].max())
    # Of vectors that were not compared it is only known that they are not close.
    middle = _middle(close[:count][known & view.alive]) if exact else UNRELATED
    close[:count][~known] = middle
    close[count] = 0
    around = close[:count].copy()
    for step, share in CONTEXT.items():
        around += np.float32(share) * close[view.near[step][:count]]
    around /= shard.context.values
    closeness = float(np.clip((best - 0.15) / 0.6, 0, 1))
    everyone = view.alive & known
    related = known & (np.maximum(close[:count], around) > max(middle, RELATED))
    alone = _scaled(close[:count], everyone, visible)
    return alone, _scaled(around, everyone, visible), related, closeness, exact


def _middle(values: Floats) -> float:
    """Return the mean of cosines, with a few of unrelated texts added, since a mean of few says little."""
    return float((values.sum() + 10 * UNRELATED) / (len(values) + 10))


def _scaled(values: Floats, everyone: Flags, visible: Flags) -> Floats:
    """Return values such that the best that is visible is 1, unless it is poor, and the mean of all is 0."""
    middle, best = _middle(values[everyone]), float(values[visible].max())
    scaled: Floats = (values - np.float32(middle)) / np.float32(max(best - middle, 0.2))
    scaled[~everyone] = 0
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
            documents, _ = shard.postings.of(name)
            said[documents[~view.turn[documents]]] = True
        return _weighed(said, weights.speaker)
    if question.about_user != question.about_assistant and view.any_turn:
        role = 2 if question.about_user else 3
        return _weighed(shard.role.values == role, weights.role)
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


def _recency(ages: NDArray[np.float64], visible: Flags) -> Floats:
    """Return 1 for the newest down to 0 for the oldest, by the logarithm of their ages."""
    logs = np.log1p(ages)
    if not visible.any():
        return logs.astype(np.float32)
    least, most = float(logs[visible].min()), float(logs[visible].max())
    recent: Floats = ((most - logs) / max(most - least, 1e-9)).astype(np.float32)
    return recent


def _graph(shard: Shard, view: View, question: Question, visible: Flags) -> Floats | None:
    """Return how much a document speaks of what facts link with what the question speaks of."""
    links = np.flatnonzero(((shard.marks.values & Marks.LINK) > 0) & view.alive)
    if not len(links) or not question.terms:
        return None
    matched = np.zeros(len(shard), dtype=np.float32)
    for term in question.terms:
        documents, _ = shard.postings.of(term)
        matched[documents] += np.float32(rarity(view.documents, len(documents)))
    near = links[np.argsort(-matched[links], kind="stable")[:5]]
    near = near[matched[near] > 0]
    if not len(near):
        return None
    scores = np.zeros(len(shard), dtype=np.float32)
    for link in near.tolist():
        for term in shard.postings.terms_of(link).tolist():
            if term not in question.terms:
                documents, _ = shard.postings.of(term)
                scores[documents] += np.float32(rarity(view.documents, len(documents)) * matched[link])
        scores[link] += matched[link]
    best = float(scores[visible].max()) if visible.any() else 0.0
    return scores / np.float32(best) if best > 0 else None
