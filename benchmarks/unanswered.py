"""`python -m benchmarks.unanswered FILE [EMBEDDER …] [--among=FILE …]`: whether the score tells an answer from none.

Scopes of 10 to a million turns are made of each conversation of a recall set: stretches of it up to 100, and the
whole with turns of the other files above, if these have at least half as many. Other files are recall sets, or texts
(`.txt`), each line a turn, as training/texts.py writes them. Each scope is asked its own questions, those of the next
conversation with the speakers' names exchanged, which it cannot answer, and small talk. Printed are, by size, the area
under the curve (the chance that a question with an answer scores higher than one without), what share of each passes
`min_score`, the precision there, and the constants of `scoring.Certainty` that would be fitted to all sizes alike.
Questions of category 5 ask of one speaker what another said; no words tell them from others: they are counted apart.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import astuple, fields

import mnemic
from mnemic.checks import to_microseconds
from mnemic.layers.index import IndexLayer
from mnemic.messages import Message
from mnemic.recall.scoring import Evidence
from mnemic.recallset import Conversation, read_recall_set
from mnemic.records import now
from mnemic.store.query import Search

LEAST = 0.5
"""The documented threshold."""
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
SIZES = (10, 100, 1_000, 10_000, 50_000, 200_000, 1_000_000)
ADVERSARIAL = "5"
ASKED = 150
ASKED_OF_MANY = 60
"""How many questions of each kind are asked of one scope at most, and of one of more than `MANY` turns."""
MANY = 200_000
LINES = 20
"""How many lines of a text file make a session."""
SMALL_TALK = (
    "How are you today?",
    "Tell me a joke.",
    "What's the weather like?",
    "Thanks, that was helpful.",
    "Can you write a poem about autumn?",
    "What is two plus two?",
    "Who are you?",
    "Let's talk about something else.",
    "How do I center a div?",
    "What time is it in Tokyo?",
    "Translate 'cheese' into French.",
    "I'm bored.",
    "What is the capital of Peru?",
    "How far is the moon?",
    "Happy new year!",
    "Explain recursion.",
)

Turns = list[tuple[str, Message]]
"""Messages with the names of their sessions."""


class Scores(Struct):
    """The best scores of questions with an answer, without one, about the wrong speaker, and of small talk."""

    answered: list[float] = field(default_factory=list)
    unanswered: list[float] = field(default_factory=list)
    adversarial: list[float] = field(default_factory=list)
    small_talk: list[float] = field(default_factory=list)
    shown: list[tuple[bool, Evidence]] = field(default_factory=list)
    """Whether there is an answer, and what recall saw that speaks for one."""

    def ask(self, scope: mnemic.Scope, memory: mnemic.Memory, texts: Sequence[str], kind: str) -> None:
        """Ask a scope, and keep the best scores under the name of a kind."""
        for text in texts:
            score, shown = _asked(memory, scope, text)
            getattr(self, kind).append(score)
            if kind != "adversarial":
                self.shown.append((kind == "answered", shown))


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


def measure(conversations: Sequence[Conversation], embedder: str, size: int = 1_000, among: Turns = []) -> Scores:  # noqa: B006
    """Ask scopes of about `size` turns their own questions and those of the next conversation."""
    found = Scores()
    most = ASKED if size <= MANY else ASKED_OF_MANY
    with mnemic.open("memory://", embedder=embedder) as memory:
        for n, conversation in enumerate(conversations):
            other = conversations[(n + 1) % len(conversations)]
            foreign = [
                exchanged(question.text, speakers(other), speakers(conversation))
                for question in other.questions
                if question.category != ADVERSARIAL
            ]
            for number, turns in enumerate(stretches(conversation, size, among)):
                there = {(session, message.id) for session, message in turns}
                inside = [question for question in conversation.questions if set(question.evidence) <= there]
                own = [question.text for question in inside if question.category != ADVERSARIAL][:most]
                if not own:
                    continue
                scope = memory.scope("unanswered", conversation.id, str(number))
                _store(scope, turns)
                found.ask(scope, memory, own, "answered")
                start = number * most % len(foreign)
                found.ask(scope, memory, (foreign * 2)[start : start + len(own)], "unanswered")
                wrong = [question.text for question in inside if question.category == ADVERSARIAL][:most]
                found.ask(scope, memory, wrong, "adversarial")
                found.ask(scope, memory, SMALL_TALK, "small_talk")
    return found


def stretches(conversation: Conversation, size: int, among: Turns) -> Iterator[Turns]:
    """Yield stretches of a conversation with so many turns, or all of it with other turns, if there are enough."""
    turns = [(session, message) for session, messages in conversation.sessions.items() for message in messages]
    if size <= 100:
        for start in range(0, len(turns) - size + 1, max(size, len(turns) // 12)):
            yield turns[start : start + size]
    elif size <= 1_000 or len(turns) + len(among) >= 0.5 * size:
        yield turns + among[: max(size - len(turns), 0)]


def turns_of(path: str) -> Iterator[tuple[str, Message]]:
    """Yield the turns of a recall set, or the lines of a text file as turns of sessions of `LINES`."""
    if path.endswith(".txt"):
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                yield f"texts-{number // LINES}", Message("user", line.strip())
        return
    for one in read_recall_set(path):
        for session, messages in one.sessions.items():
            for message in messages:
                yield f"{one.id}-{session}", message


def _store(scope: mnemic.Scope, turns: Turns) -> None:
    sessions: dict[str, list[Message]] = {}
    for session, message in turns:
        sessions.setdefault(session, []).append(message)
    for session, messages in sessions.items():
        scope.session(session).add_many(messages)


def _asked(memory: mnemic.Memory, scope: mnemic.Scope, text: str) -> tuple[float, Evidence]:
    hits = scope.recall(text, 1, uses=False)
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    builder = layer._embedder._builder
    assert builder is not None
    answer = layer._cache._indexes[scope.path.path].answer(
        Search(scope=scope.path, query=text), builder, to_microseconds(now())
    )
    return (hits[0].score if hits else 0.0), answer.ranking.evidence


def fit(groups: Sequence[Sequence[tuple[bool, Evidence]]], steps: int = 50) -> dict[str, float]:
    """Return the constants of `Certainty`, by logistic regression in which every group counts alike."""
    shown = [one for group in groups for one in group]
    values = np.array([[1.0, *astuple(evidence)] for _, evidence in shown])
    target = np.array([float(answered) for answered, _ in shown])
    shares = []
    for group in groups:
        answers = sum(answered for answered, _ in group)
        shares += [1 / (answers if answered else len(group) - answers) for answered, _ in group]
    share = np.array(shares) / sum(shares)
    used = values.std(axis=0) > 0
    used[0] = True
    weights = np.zeros(values.shape[1])
    shrink = 1e-5 * np.eye(int(used.sum()))
    for _ in range(steps):
        likely = 1 / (1 + np.exp(-values @ weights))
        slope = values[:, used].T @ (share * (likely - target)) + 1e-5 * weights[used]
        bend = (values[:, used] * (share * likely * (1 - likely))[:, None]).T @ values[:, used]
        weights[used] -= np.linalg.solve(bend + shrink, slope)
    names = ("base", *(one.name for one in fields(Evidence)))
    return {name: round(float(x), 2) for name, x in zip(names, weights, strict=True)}


def passing(scores: Sequence[float], least: float = LEAST) -> float:
    """Return the share of scores that are not below a threshold."""
    return float(np.mean(np.array(scores) >= least)) if scores else 0.0


def row(size: int, found: Scores) -> str:
    """Return the figures of one size as a row of a Markdown table."""
    answered, unanswered = passing(found.answered), passing(found.unanswered)
    areas = (area(found.answered, others) for others in (found.unanswered, found.small_talk))
    shares = (answered, unanswered, passing(found.small_talk), passing(found.adversarial))
    figures = " | ".join([*(f"{x:.3f}" for x in areas), *(f"{100 * x:.0f}%" for x in shares)])
    return f"| {size:,} | {figures} | {100 * answered / max(answered + unanswered, 1e-9):.0f}% |"


def table(found: Scores) -> str:
    """Return what share of the questions passes each threshold, as a Markdown table."""
    rows = {"with an answer": found.answered, "without": found.unanswered, "small talk": found.small_talk}
    rows |= {"about the wrong speaker": found.adversarial} if found.adversarial else {}
    lines = [
        "| questions | " + " | ".join(f"`min_score={least}`" for least in THRESHOLDS) + " |",
        "|---|" + "--:|" * len(THRESHOLDS),
    ]
    for name, scores in rows.items():
        shares = " | ".join(f"{100 * passing(scores, least):.0f}%" for least in THRESHOLDS)
        lines.append(f"| {len(scores):,} {name} | {shares} |")
    return "\n".join(lines)


def main(path: str, embedders: Sequence[str], among: Sequence[str]) -> None:
    """Measure and print."""
    conversations = read_recall_set(path)
    others: Turns = [turn for file in among for turn in turns_of(file)]
    for embedder in embedders or ("static",):
        print(f"{embedder}:\n")
        print(
            "| turns | area, other questions | area, small talk | answered | other | small talk | wrong speaker |",
            end="",
        )
        print(" precision |\n|--:|" + "--:|" * 7)
        groups = []
        for size in SIZES:
            # A large scope takes long to build.
            some = conversations if size <= 1_000 else conversations[:2]
            found = measure(some, embedder, size, others)
            if found.answered:
                groups.append(found.shown)
                print(row(size, found), flush=True)
            if size == 1_000:
                whole = table(found)
        print(f"\nAmong 1,000:\n\n{whole}\n\nfitted: {fit(groups)}\n", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        given[0],
        [name for name in given[1:] if not name.startswith("--")],
        [name.partition("=")[2] for name in given[1:] if name.startswith("--among=")],
    )
