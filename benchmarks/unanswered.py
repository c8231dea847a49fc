"""`python -m benchmarks.unanswered FILE [EMBEDDER …]`: whether the score tells an answer from none.

Each conversation of a recall set is asked its own questions, and those of the next conversation with the
speakers' names exchanged, which it cannot answer. Printed are the area under the curve (the chance that a
question with an answer scores higher than one without), what share of each passes some thresholds, and the
constants of `scoring.Certainty` that would be fitted to these questions. Questions of category 5 ask of one
speaker what another said; no words tell them from others, and they are counted apart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

import mnemic
from mnemic.checks import to_microseconds
from mnemic.layers.index import IndexLayer
from mnemic.recallset import Conversation, read_recall_set
from mnemic.records import now
from mnemic.store.query import Search

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)
ADVERSARIAL = "5"


class Scores(Struct):
    """The best scores of questions with an answer, without one, and about the wrong speaker."""

    answered: list[float] = field(default_factory=list)
    unanswered: list[float] = field(default_factory=list)
    adversarial: list[float] = field(default_factory=list)
    shown: list[tuple[bool, tuple[float, float, float]]] = field(default_factory=list)
    """Whether there is an answer, and what recall saw that speaks for one."""


def area(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the chance that one of the first is greater than one of the second; equals count half."""
    ranked = np.sort(np.asarray(below))
    left, right = np.searchsorted(ranked, above, "left"), np.searchsorted(ranked, above, "right")
    return float((left + right).mean() / 2 / len(ranked))


def speakers(conversation: Conversation) -> list[str]:
    """Return the names of those who speak, in the order in which they first do."""
    turns = (message for messages in conversation.sessions.values() for message in messages)
    return list(dict.fromkeys(message.name for message in turns if message.name))


def exchanged(text: str, names: Sequence[str], others: Sequence[str]) -> str:
    """Return a text with the names of some speakers in the place of others'."""
    new = dict(zip(names, others, strict=False))
    known = "|".join(map(re.escape, new))
    return re.sub(rf"\b(?:{known})\b", lambda found: new[found[0]], text) if known else text


def measure(conversations: Sequence[Conversation], embedder: str) -> Scores:
    """Ask every conversation its own questions and those of the next one."""
    found = Scores()
    with mnemic.open("memory://", embedder=embedder) as memory:
        for n, conversation in enumerate(conversations):
            scope = memory.scope("unanswered", conversation.id)
            for session, messages in conversation.sessions.items():
                scope.session(session).add_many(messages)
            for question in conversation.questions:
                score, shown = _asked(memory, scope, question.text)
                if question.category == ADVERSARIAL:
                    found.adversarial.append(score)
                else:
                    found.answered.append(score)
                    found.shown.append((True, shown))
            other = conversations[(n + 1) % len(conversations)]
            for question in other.questions:
                if question.category != ADVERSARIAL:
                    text = exchanged(question.text, speakers(other), speakers(conversation))
                    score, shown = _asked(memory, scope, text)
                    found.unanswered.append(score)
                    found.shown.append((False, shown))
    return found


def _asked(memory: mnemic.Memory, scope: mnemic.Scope, text: str) -> tuple[float, tuple[float, float, float]]:
    hits = scope.recall(text, 1, uses=False)
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    builder = layer._embedder._builder
    assert builder is not None
    answer = layer._cache._indexes[scope.path.path].answer(
        Search(scope=scope.path, query=text), builder, to_microseconds(now())
    )
    return (hits[0].score if hits else 0.0), answer.ranking.evidence


def fit(shown: Sequence[tuple[bool, tuple[float, float, float]]], steps: int = 50) -> NDArray[np.float64]:
    """Return the base and the weights of coverage, agreement and closeness, by logistic regression."""
    values = np.array([[1.0, *parts] for _, parts in shown])
    target = np.array([float(answered) for answered, _ in shown])
    used = values.std(axis=0) > 0
    used[0] = True
    weights = np.zeros(values.shape[1])
    shrink = 1e-5 * np.eye(int(used.sum()))
    for _ in range(steps):
        likely = 1 / (1 + np.exp(-values @ weights))
        slope = values[:, used].T @ (likely - target) / len(target) + 1e-5 * weights[used]
        bend = (values[:, used] * (likely * (1 - likely))[:, None]).T @ values[:, used] / len(target)
        weights[used] -= np.linalg.solve(bend + shrink, slope)
    return weights


def table(found: Scores) -> str:
    """Return what share of the questions passes each threshold, as a Markdown table."""
    rows = {"with an answer": found.answered, "without": found.unanswered}
    rows |= {"about the wrong speaker": found.adversarial} if found.adversarial else {}
    lines = [
        "| questions | " + " | ".join(f"`min_score={least}`" for least in THRESHOLDS) + " |",
        "|---|" + "--:|" * len(THRESHOLDS),
    ]
    for name, scores in rows.items():
        passing = " | ".join(f"{100 * np.mean(np.array(scores) >= least):.0f}%" for least in THRESHOLDS)
        lines.append(f"| {len(scores):,} {name} | {passing} |")
    return "\n".join(lines)


def main(path: str, embedders: Sequence[str]) -> None:
    """Measure and print."""
    conversations = read_recall_set(path)
    for embedder in embedders or ("static",):
        found = measure(conversations, embedder)
        print(f"{embedder}: area under the curve {area(found.answered, found.unanswered):.3f}", end="")
        if found.adversarial:
            print(f", about the wrong speaker {area(found.answered, found.adversarial):.3f}", end="")
        names = ("base", "coverage", "agreement", "closeness")
        weights = {name: round(float(x), 1) for name, x in zip(names, fit(found.shown), strict=True)}
        print(f"; fitted: {weights}\n\n{table(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
