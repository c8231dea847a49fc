"""The keyword signal: BM25 of documents with their neighbors, and of sessions, for all terms of a question together."""

from __future__ import annotations

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
    return float(seen.max()) if len(seen) else 0.0


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
    scores = np.zeros(count + 1)
    covered = np.zeros(count)
    by_session = np.zeros(table.session_count if shared else 0)
    at_once = max(CELLS // (count + 1), 1)
    for start in range(0, len(found), at_once):
        some = found[start : start + at_once]
        documents = np.concatenate([one.documents for one in some])
        occurrences = np.concatenate([one.times for one in some], dtype=np.float32)
        terms = np.repeat(np.arange(len(some)), [len(one.documents) for one in some])
        weights = np.array([one.weight for one in some])
        if shared:
            by_session += _session_scores(table, view, some, documents, terms, occurrences)
        named = np.array([one.name for one in some])
        if named.any():
            own = ~(named[terms] & view.turn[documents])
            documents, terms, occurrences = documents[own], terms[own], occurrences[own]
        covered += np.bincount(documents, weights[terms], count)
        around, of, window = _windows(view, documents, terms, occurrences, len(some))
        scores += np.bincount(around, bm25(window, view.norms[around], weights[of], K1), count + 1)
    lexical = scores[:count].astype(np.float32)
    best = best_of(lexical, visible)
    if best <= 0:
        return Keywords(np.zeros(count, dtype=np.float32))
    # With nothing but names to look for, these are the words.
    weight = ideal or best_of(covered, None)
    share = np.minimum(covered / weight, 1).astype(np.float32)
    by_document = None
    if shared:
        by_document = by_session.astype(np.float32)[table.session.values]
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
    places = table.session.values[documents] + terms * table.session_count
    inside, of, total = _sums(places, occurrences, len(some), table.session_count)
    holding = np.bincount(of, minlength=len(some)).tolist()
    rare = [one.count * rarity(view.sessions, many) for one, many in zip(some, holding, strict=True)]
    scores = bm25(total, view.session_norms[inside], np.array(rare)[of], K1)
    return np.bincount(inside, scores, table.session_count)


def _windows(
    view: DocumentView, documents: NDArray[np.int32], terms: Whole, occurrences: Floats, count: int
) -> tuple[Whole, Whole, Floats]:
    """Return documents that contain one of `count` terms, or whose neighbors do, the term, and its weighted frequency.

    The last document stands for none.
    """
    if not view.any_turn:
        return documents, terms, occurrences
    places = np.concatenate((documents[None], view.line[view.position[documents] + STEPS]))
    width = len(view.norms)
    return _sums((places + terms * width).ravel(), (SHARES * occurrences).ravel(), count, width)


def _sums(places: Whole, values: Floats, rows: int, width: int) -> tuple[Whole, Whole, Floats]:
    """Add up values at the same place of a matrix; return the column, row and sum of each place that has one."""
    if len(places) * 16 < rows * width:
        found, at = np.unique(places, return_inverse=True)
        totals = np.bincount(at, values)
    else:
        dense = np.bincount(places, values, rows * width)
        found = dense.nonzero()[0]
        totals = dense[found]
    of = found // width
    return found - of * width, of, totals.astype(np.float32)


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
    several = [found, *map(table.postings.of, question.variants[term])]
    documents, at = np.unique(np.concatenate([documents for documents, _ in several]), return_inverse=True)
    times = np.bincount(at, np.concatenate([times for _, times in several]), len(documents))
    return documents, np.minimum(times, 255).astype(np.uint8)
