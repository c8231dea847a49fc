"""The keyword signal: BM25 of documents with their neighbors, and of sessions, for all terms of a question together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from .document_table import DocumentTable
from .document_view import K1, WINDOW, DocumentView, bm25, rarity
from .question import AnalyzedQuestion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]
    Whole = NDArray[np.signedinteger[Any]]

SHARES = np.array([1.0, *WINDOW.values()], dtype=np.float32)[:, None]
STEPS = -np.array([*WINDOW], dtype=np.int32)[:, None]
"""Where the turns are that a term counts for, too: it counts for the next turn as the turn before that."""
CELLS = 200_000
"""Size of the matrix of terms and documents that is computed at once."""


def best_of(values: NDArray[np.floating[Any]], visible: Flags | None) -> float:
    """Return the largest visible value; 0 if there is none."""
    seen = values if visible is None else values[visible]
    return float(np.maximum.reduce(seen)) if len(seen) else 0.0


class Occurrences(Struct):
    """The documents that contain a term, how often, the term's weight, its count in the question, and who is named."""

    documents: NDArray[np.int32]
    times: NDArray[np.uint8]
    weight: float
    count: int
    name: bool
    """Whether it is a speaker's name: turns say "I" for their speaker, and only other texts use the name."""


class Keywords(Struct):
    """How documents match the words of a question."""

    covered: Floats
    """The weighted share of the words in each document, from 0 to 1."""
    scores: Floats | None = None
    """BM25 of each document with its neighbors, from 0 to 1; None if no visible document matches."""
    sessions: Floats | None = None
    """BM25 of each document's session, from 0 to 1; None if sessions do not differ from documents."""
    weight: float = 0.0
    """Total weight of the words."""


def match_keywords(
    table: DocumentTable, view: DocumentView, question: AnalyzedQuestion, visible: Flags | None
) -> Keywords:
    """Score all documents by the words that they share with a question."""
    count = len(table)
    found, ideal = _occurrences(table, view, question)
    if not found:
        return Keywords(np.zeros(count, dtype=np.float32))
    shared = 0 < view.sessions < view.turns
    scores: NDArray[Any] | float = 0.0
    covered: NDArray[Any] | float = 0.0
    by_session: NDArray[Any] | float = 0.0
    at_once = max(CELLS // (count + 1), 1)
    for start in range(0, len(found), at_once):
        some = found[start : start + at_once]
        documents = np.concatenate([one.documents for one in some])
        terms = np.repeat(np.arange(len(some)), [len(one.documents) for one in some])
        occurrences = np.concatenate([one.times for one in some], dtype=np.float32)
        if shared:
            by_session = _session_scores(table, view, some, documents, terms, occurrences) + by_session
        if view.any_turn and any(one.name for one in some):
            own = ~(np.array([one.name for one in some])[terms] & view.turn[documents])
            documents, terms, occurrences = documents[own], terms[own], occurrences[own]
        weights = np.array([one.weight for one in some])
        covered = np.bincount(documents, weights[terms], count) + covered
        scores = _window_scores(view, documents, terms, occurrences, weights) + scores
    lexical = np.asarray(scores)[1:].astype(np.float32)
    best = best_of(lexical, visible)
    if best <= 0:
        return Keywords(np.zeros(count, dtype=np.float32))
    # With nothing but names to look for, these are the words.
    covered = np.asarray(covered)
    weight = ideal or best_of(covered, None)
    share = np.minimum(covered / weight, 1).astype(np.float32)
    by_document = None
    if shared:
        by_document = np.asarray(by_session, dtype=np.float32).take(table.session.values)
        most = best_of(by_document, visible)
        by_document = by_document / np.float32(most) if most > 0 else None
    lexical /= np.float32(best)
    if by_document is not None and view.mixed:
        # A text that is no turn is a session of its own.
        by_document = np.where(view.turn, by_document, lexical)
    return Keywords(share, lexical, by_document, weight)


def _session_scores(
    table: DocumentTable,
    view: DocumentView,
    some: list[Occurrences],
    documents: NDArray[np.int32],
    terms: Whole,
    occurrences: Floats,
) -> NDArray[Any]:
    """Return BM25 of each session of turns for some terms."""
    if not view.all_turns:
        turns = view.turn[documents]
        documents, terms, occurrences = documents[turns], terms[turns], occurrences[turns]

    def weigh(holding: Whole) -> NDArray[np.float64]:
        many = zip(some, holding.tolist(), strict=True)
        return np.array([one.count * rarity(view.sessions, sessions) for one, sessions in many])

    def norms(sessions: Whole | None) -> Floats:
        return view.session_norms if sessions is None else view.session_norms.take(sessions)

    width = table.session_count
    places = table.session.values.take(documents) + terms * width
    return _bm25_of_columns(places, occurrences, norms, weigh, (len(some), width))


def _window_scores(
    view: DocumentView, documents: NDArray[np.int32], terms: Whole, occurrences: Floats, weights: NDArray[np.float64]
) -> NDArray[Any]:
    """Return BM25 of each document with its neighbors, by its number plus 1; 0 stands for none."""
    places = documents + np.int32(1)
    width = view.size + 1
    if not view.any_turn:
        return np.bincount(places, bm25(occurrences, view.norms_of(places), weights[terms], K1), width)
    places = np.concatenate((places[None], view.line.documents.take(view.line.place.take(documents) + STEPS)))
    places = (places + terms * width).ravel()
    return _bm25_of_columns(places, (SHARES * occurrences).ravel(), view.norms_of, weights, (len(weights), width))


def _bm25_of_columns(
    places: Whole,
    values: Floats,
    norms: Callable[[Whole | None], Floats],
    weights: NDArray[np.float64] | Callable[[Whole], NDArray[np.float64]],
    shape: tuple[int, int],
) -> NDArray[Any]:
    """Add up values at the same place of a matrix with a row for each term; return BM25 of its columns.

    `norms` returns the length normalization of some columns, or of all; `weights` are those of the rows, or a function
    of how many places of each have a value.
    """
    rows, width = shape
    if len(places) * 16 < rows * width:
        found, at = np.unique(places, return_inverse=True)
        of = found // width
        columns = found - of * width
        if callable(weights):
            weights = weights(np.bincount(of, minlength=rows))
        totals = np.bincount(at, values).astype(np.float32)
        return np.bincount(columns, bm25(totals, norms(columns), weights[of], K1), width)
    # Not only where there are values: asking which takes longer than computing with zeros.
    dense = np.bincount(places, values, rows * width).reshape(rows, width)
    if callable(weights):
        weights = weights(np.add.reduce(dense > 0, axis=1))
    np.divide(dense, dense + norms(None), out=dense)
    # Not as a matrix product, which BLAS would start threads for.
    found_scores: NDArray[np.float64] = np.einsum("i,ij->j", weights, dense)
    found_scores *= K1 + 1
    return found_scores


def _occurrences(
    table: DocumentTable, view: DocumentView, question: AnalyzedQuestion
) -> tuple[list[Occurrences], float]:
    """Return the terms that some document contains, and the total weight of all."""
    ideal = 0.0
    found: list[Occurrences] = []
    for term, times in question.terms.items():
        documents, occurrences = _postings(table, question, term)
        if not view.whole and len(documents):
            alive = view.alive[documents]
            documents, occurrences = documents[alive], occurrences[alive]
        among = documents[view.counted[documents]] if view.any_traffic else documents
        weight = times * rarity(view.documents, len(among))
        name = term in question.names
        ideal += weight * (not name)
        if len(documents):
            found.append(Occurrences(documents, occurrences, weight, times, name))
    return found, ideal


def _postings(
    table: DocumentTable, question: AnalyzedQuestion, term: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the documents that contain a term of the question, in whatever language, and how often."""
    found = table.postings.of(term)
    if term not in question.variants:
        return found
    several = [one for one in (found, *map(table.postings.of, question.variants[term])) if len(one[0])]
    if len(several) < 2:
        return several[0] if several else found
    documents, at = np.unique(np.concatenate([documents for documents, _ in several]), return_inverse=True)
    times = np.bincount(at, np.concatenate([times for _, times in several]), len(documents))
    return documents, np.minimum(times, 255).astype(np.uint8)
