"""`python -m benchmarks.tuning FILE …`: fit the weights of recall's signals to recall sets.

Each question gives, for every turn of its conversation, the values of all signals. The weights are those that
make the evidence likeliest under a softmax over the turns (categories 1 to 4 where there are categories).
Printed are the recall@10 that weights reach on conversations that they were not fitted to, and the weights
that are fitted to all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from msgspec.structs import fields, replace
from numpy.typing import NDArray

import mnemic
from mnemic.layers.index import IndexLayer
from mnemic.recall.document_view import DocumentView
from mnemic.recall.index_entry import EntryBuilder
from mnemic.recall.question import analyze_question
from mnemic.recall.scoring import Weights, signals, weights_for
from mnemic.recallset import Conversation, read_recall_set
from mnemic.sync import Memory

FOLDS = 5
NAMES = [field.name for field in fields(Weights)]
ADVERSARIAL = "5"

Case = tuple[NDArray[np.float32], list[int], NDArray[np.int32]]
"""The signals of each turn, the turns that are evidence, and the session of each turn."""
Fitted = NDArray[np.float64]
"""A weight for each of NAMES."""


def cases(memory: Memory, conversation: Conversation) -> tuple[list[Case], Fitted]:
    """Return the signals of one conversation's questions, and the weights in use there."""
    space = memory.scope("tuning", conversation.id)
    for session, messages in conversation.sessions.items():
        space.session(session).add_many(messages)
    memory.warm("tuning", conversation.id)
    space.recall("nothing", 1)
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    index = layer._cache._indexes[f"tuning/{conversation.id}"]
    table = index.table
    view = DocumentView(table)
    builder = layer._embedder._builder
    assert isinstance(builder, EntryBuilder)
    places = {(table.ref(n).scope.name, table.keys[n]): n for n in range(len(table))}
    nothing = replace(Weights(), **dict.fromkeys(NAMES, 0.0))
    found: list[Case] = []
    for asked in conversation.questions:
        evidence = [places[place] for place in asked.evidence if place in places]
        if not evidence or str(asked.category) == ADVERSARIAL:
            continue
        question = analyze_question(asked.text, table.speakers, table.languages)
        plain, masked = builder.embed_question(question.text), builder.embed_question(question.masked)
        assert plain is not None
        assert masked is not None
        columns = []
        for name in NAMES:
            weights = replace(nothing, **{name: 1.0})
            parts = signals(table, view, question, (plain, masked), None, None, weights).parts
            columns.append(sum(parts.values()) + np.zeros(len(table), dtype=np.float32))
        found.append((np.stack(columns, axis=1).astype(np.float32), evidence, table.session.values.copy()))
    in_use = weights_for(view, builder.trust)
    return found, np.array([getattr(in_use, name) for name in NAMES])


def fit(conversations: list[list[Case]], steps: int = 500, rate: float = 0.05) -> Fitted:
    """Return the weights that make the evidence likeliest, by Adam with a little shrinking."""
    items = [(case[0].astype(np.float64), case[1]) for cases in conversations for case in cases]
    weights = np.zeros(len(NAMES))
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    random = np.random.default_rng(0)
    for step in range(1, steps + 1):
        slope = np.zeros_like(weights)
        for n in random.integers(0, len(items), 64):
            values, evidence = items[n]
            scores = values @ weights
            shares = np.exp(scores - scores.max())
            slope += (shares / shares.sum()) @ values - values[evidence].mean(axis=0)
        slope = slope / 64 + 0.002 * weights
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope**2
        weights -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return weights


def measured(conversations: list[list[Case]], weights: Fitted | list[Fitted]) -> tuple[float, float, float]:
    """Return recall@10 as the mean share and as all, and all-evidence recall@5 of sessions, in percent."""
    shares, sessions = [], []
    several = weights if isinstance(weights, list) else [weights] * len(conversations)
    for some, own in zip(conversations, several, strict=True):
        for values, evidence, session in some:
            order = np.argsort(-(values @ own), kind="stable")
            shares.append(np.isin(evidence, order[:10]).mean())
            ranked = list(dict.fromkeys(session[order[:50]].tolist()))[:5]
            sessions.append(set(session[evidence].tolist()) <= set(ranked))
    return (100 * float(np.mean(shares)), 100 * float(np.mean(np.equal(shares, 1))), 100 * float(np.mean(sessions)))


def main(paths: list[str], embedder: str = "auto") -> None:
    """Fit and print."""
    sets: dict[str, list[list[Case]]] = {}
    in_use: dict[str, list[Fitted]] = {}
    for path in paths:
        with mnemic.open("memory://", embedder=embedder) as memory:
            both = [cases(memory, conversation) for conversation in read_recall_set(path)]
        sets[Path(path).stem], in_use[Path(path).stem] = [some for some, _ in both], [own for _, own in both]
    for name, found in sets.items():
        print(name, "with the weights in use:", *(f"{x:.1f}" for x in measured(found, in_use[name])))
        held_out = []
        for fold in range(FOLDS):
            weights = fit([some for n, some in enumerate(found) if n % FOLDS != fold])
            held_out.append(measured([some for n, some in enumerate(found) if n % FOLDS == fold], weights))
        print(name, "held out:", *(f"{x:.1f}" for x in np.mean(held_out, axis=0)))
        own = fit(found)
        print(name, "fitted:", {key: round(float(x), 2) for key, x in zip(NAMES, own, strict=True)})
        for other, questions in sets.items():
            print(f"  {name} → {other}:", *(f"{x:.1f}" for x in measured(questions, own)))
    if len(sets) > 1:
        together = fit([some for found in sets.values() for some in found])
        print("all fitted:", {key: round(float(x), 2) for key, x in zip(NAMES, together, strict=True)})
        for name, found in sets.items():
            print(f"  all → {name}:", *(f"{x:.1f}" for x in measured(found, together)))


if __name__ == "__main__":
    embedders = [a.partition("=")[2] for a in sys.argv[1:] if a.startswith("--embedder=")]
    main([a for a in sys.argv[1:] if not a.startswith("--")], *embedders)
