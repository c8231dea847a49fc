"""`python -m benchmarks.tuning [--left-out | --without] [--embedder=NAME] FILE …`: fit and judge recall's weights.

Each file is a kind of conversation. Each question gives, for every turn of its conversation, the values of all
signals. The weights are those that make the evidence likeliest under a softmax over the turns (categories 1 to 4
where there are categories). Printed are the recall@10 that weights reach on conversations that they were not fitted
to, and the weights that are fitted to all. With `--left-out`, weights are fitted to all kinds but one and measured on
that: one set of weights for all scopes, and weights that follow the length of turns and the number of speakers. With
`--without`, recall@10 is measured with the weights in use, without each signal and with words alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import fields, replace
from numpy.typing import NDArray

import mnemic
from mnemic.layers.index import IndexLayer
from mnemic.recall.document_view import DocumentView
from mnemic.recall.index_entry import EntryBuilder
from mnemic.recall.question import analyze_question
from mnemic.recall.scoring import Weights, scope_shape, signals, weights_for
from mnemic.recallset import Conversation, read_recall_set
from mnemic.sync import Memory

FOLDS = 5
NAMES = [field.name for field in fields(Weights)]
ADVERSARIAL = "5"
SIGNAL_WEIGHTS = {
    "lexical": ("lexical", "coverage"),
    "dense": ("dense", "context"),
    "session": ("session",),
    "speaker": ("speaker", "role"),
    "time": ("time", "date"),
    "form": ("length", "question", "number"),
    "recency": ("recency", "latest"),
}
"""The weights of each signal of a hit's `why` that turns have."""

Case = tuple[NDArray[np.float32], list[int], NDArray[np.int32]]
"""The signals of each turn, the turns that are evidence, and the session of each turn."""
Fitted = NDArray[np.float64]
"""A weight for each of NAMES; or three: for any scope, and how they change with long turns and with many speakers."""


class Asked(Struct):
    """The questions of one conversation."""

    cases: list[Case]
    in_use: Fitted
    """The weights in use there."""
    shape: tuple[float, float]
    """How far its turns are long, and its speakers many, from 0 to 1."""


def cases(memory: Memory, conversation: Conversation) -> Asked:
    """Return the signals of one conversation's questions, the weights in use there, and what it looks like."""
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
    return Asked(found, np.array([getattr(in_use, name) for name in NAMES]), scope_shape(view))


def fit(kinds: Sequence[Sequence[Asked]], *, shaped: bool = False, steps: int = 500, rate: float = 0.05) -> Fitted:
    """Return the weights that make the evidence likeliest, by Adam with a little shrinking; all kinds count alike.

    If they are `shaped`, they follow what a conversation looks like.
    """
    items = [[(one, case) for one in kind for case in one.cases] for kind in kinds]
    weights = np.zeros((3 if shaped else 1, len(NAMES)))
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    random = np.random.default_rng(0)
    for step in range(1, steps + 1):
        slope = np.zeros_like(weights)
        for n in range(64):
            kind = items[n % len(items)]
            one, (values, evidence, _) = kind[random.integers(len(kind))]
            shares = np.array((1.0, *one.shape))[: len(weights)]
            scores = values @ (shares @ weights)
            likely = np.exp(scores - scores.max())
            slope += np.outer(shares, (likely / likely.sum()) @ values - values[evidence].mean(axis=0))
        slope = slope / 64 + 0.002 * weights
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope**2
        weights -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return weights


def measured(conversations: Sequence[Asked], weights: Fitted | None = None) -> tuple[float, float, float]:
    """Return recall@10 as the mean share and as all, and all-evidence recall@5 of sessions, in percent.

    The weights are fitted ones, or those in use.
    """
    shares, sessions = [], []
    for one in conversations:
        own = one.in_use if weights is None else np.array((1.0, *one.shape))[: len(weights)] @ weights
        for values, evidence, session in one.cases:
            order = np.argsort(-(values @ own), kind="stable")
            shares.append(np.isin(evidence, order[:10]).mean())
            ranked = list(dict.fromkeys(session[order[:50]].tolist()))[:5]
            sessions.append(set(session[evidence].tolist()) <= set(ranked))
    return (100 * float(np.mean(shares)), 100 * float(np.mean(np.equal(shares, 1))), 100 * float(np.mean(sessions)))


def main(paths: list[str], embedder: str = "auto", mode: str = "") -> None:
    """Read the sets, and print what the mode asks for."""
    sets: dict[str, list[Asked]] = {}
    for path in paths:
        with mnemic.open("memory://", embedder=embedder) as memory:
            sets[Path(path).stem] = [cases(memory, conversation) for conversation in read_recall_set(path)]
    {"": fit_each, "left-out": leave_out_each, "without": measure_without}[mode](sets)


def fit_each(sets: dict[str, list[Asked]]) -> None:
    """Print how weights do on other conversations of the kind that they were fitted to, and on other kinds."""
    for name, found in sets.items():
        print(name, "with the weights in use:", *(f"{x:.1f}" for x in measured(found)))
        held_out = []
        for fold in range(FOLDS):
            weights = fit([[one for n, one in enumerate(found) if n % FOLDS != fold]])
            held_out.append(measured([one for n, one in enumerate(found) if n % FOLDS == fold], weights))
        print(name, "held out:", *(f"{x:.1f}" for x in np.mean(held_out, axis=0)))
        own = fit([found])
        print(name, "fitted:", _named(own[0]))
        for other, questions in sets.items():
            print(f"  {name} → {other}:", *(f"{x:.1f}" for x in measured(questions, own)))
    if len(sets) > 1:
        together = fit(list(sets.values()))
        print("all fitted:", _named(together[0]))
        for name, found in sets.items():
            print(f"  all → {name}:", *(f"{x:.1f}" for x in measured(found, together)))


def leave_out_each(sets: dict[str, list[Asked]]) -> None:
    """Print, as a table, how weights that were fitted to the other kinds do on each kind."""
    print("| weights |", " | ".join(sets), "|")
    rows: dict[str, list[str]] = {"in use": [], "fitted to the other kinds": [], "the same, following the scope": []}
    for name, found in sets.items():
        others = [other for kind, other in sets.items() if kind != name]
        for row, weights in zip(rows.values(), (None, fit(others), fit(others, shaped=True)), strict=True):
            row.append(f"{measured(found, weights)[0]:.1f}")
    for label, row in rows.items():
        print(f"| {label} |", " | ".join(row), "|", flush=True)


def measure_without(sets: dict[str, list[Asked]]) -> None:
    """Print, as a table, what the weights in use find, and what they find without each signal and with words alone."""
    print("| signals |", " | ".join(sets), "|")
    kept = {"all": set(NAMES)}
    kept |= {f"without `{signal}`": set(NAMES) - {*names} for signal, names in SIGNAL_WEIGHTS.items()}
    kept["`lexical` alone"] = {*SIGNAL_WEIGHTS["lexical"]}
    for label, names in kept.items():
        used = np.array([name in names for name in NAMES])
        changed = ([replace(one, in_use=one.in_use * used) for one in found] for found in sets.values())
        print(f"| {label} |", " | ".join(f"{measured(found)[0]:.1f}" for found in changed), "|", flush=True)


def _named(weights: Fitted) -> dict[str, float]:
    return {key: round(float(x), 2) for key, x in zip(NAMES, weights, strict=True)}


if __name__ == "__main__":
    options = dict(a[2:].partition("=")[::2] for a in sys.argv[1:] if a.startswith("--"))
    modes = [name for name in options if name != "embedder"]
    main([a for a in sys.argv[1:] if not a.startswith("--")], options.get("embedder", "auto"), *modes)
