"""Measures the quality and speed of recall on a recall set."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from .errors import ConflictError, InvalidValueError
from .recallset import Conversation, Question, TurnId
from .sync import Memory, Scope

__all__ = [
    "CUTOFFS", "GAIN_CUTOFF", "TENANT", "Breakdown", "Latency", "Level", "Report", "TimedHits", "evaluate", "measure",
    "steps",
]  # fmt: skip

CUTOFFS = (1, 5, 10, 20, 50)
"""Numbers of hits at which recall is measured; the last is how many are requested."""
GAIN_CUTOFF = 10
"""Number of hits for nDCG."""
TENANT = "eval"
"""First scope segment of the stored conversations."""

Item = TypeVar("Item", bound=Hashable)


class Level(Struct, frozen=True):
    """Metrics from 0 to 1, over turns or over sessions.

    Keyed by k, among the first k hits: the share of questions with `any` and with `all` of their evidence, and
    the `mean` share of it. Then nDCG@10, and the mean reciprocal rank of the first evidence.
    """

    any: dict[str, float]
    all: dict[str, float]
    mean: dict[str, float]
    ndcg10: float
    mrr: float


class Breakdown(Struct, frozen=True):
    """Metrics of the questions of one category."""

    turn: Level
    session: Level
    questions: int


class Latency(Struct, frozen=True):
    """Duration of a recall, in milliseconds."""

    p50: float
    p95: float


class Report(Struct, frozen=True, omit_defaults=True):
    """Result of an evaluation; `compare` has the metrics of single signals, by name."""

    turn: Level
    session: Level
    categories: dict[str, Breakdown]
    questions: int
    store_s: float
    recall_ms: Latency
    compare: dict[str, Report] = field(default_factory=dict)


class TimedHits(Struct, frozen=True):
    """A question's hits, best first, and how long they took."""

    question: Question
    hits: list[TurnId]
    ms: float

    @property
    def turns(self) -> tuple[list[TurnId], set[TurnId]]:
        """The ranking of turns, and the evidence among them."""
        return self.hits, set(self.question.evidence)

    @property
    def sessions(self) -> tuple[list[str], set[str]]:
        """The sessions in order of their first hits, and those of the evidence."""
        ranked = dict.fromkeys(session for session, _ in self.hits)
        return list(ranked), {session for session, _ in self.question.evidence}


def evaluate(
    memory: Memory,
    conversations: Sequence[Conversation],
    *,
    compare: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    keep: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Store the conversations, ask their questions, and return the metrics; `weights` are those of recall.

    Questions about a scope are asked of what the memory holds there. For each name in `compare`, it asks again with
    that signal only, or with several joined by '+'. Stored data is erased afterwards unless `keep` is true.
    `progress` is called with the number of turns stored, and for each recall. Raises InvalidValueError if there are
    no questions, ConflictError if the memory already has sessions in the scopes of the conversations.
    """
    if not any(conversation.questions for conversation in conversations):
        raise InvalidValueError("there are no questions with evidence to ask")
    ways: dict[str, dict[str, Any]] = {"": {"weights": weights}} | {
        name: {"signals": name.split("+")} for name in compare
    }
    answers: dict[str, list[TimedHits]] = {name: [] for name in ways}
    done = progress or (lambda _: None)
    written: list[Scope] = []
    seconds = 0.0
    try:
        for conversation in conversations:
            if conversation.scope is not None:
                continue
            space = _vacant(memory, conversation)
            for session, messages in conversation.sessions.items():
                written.append(space.scope(session))
                started = perf_counter()
                space.session(session).add_many(messages)
                seconds += perf_counter() - started
                done(len(messages))
            started = perf_counter()
            memory.warm(TENANT, conversation.id)
            seconds += perf_counter() - started
        for conversation in conversations:
            ask = _ask if conversation.scope is None else _ask_store
            space = memory.scope(*((TENANT, conversation.id) if conversation.scope is None else (conversation.scope,)))
            for question in conversation.questions:
                for name, options in ways.items():
                    answers[name].append(ask(space, question, options))
                    done(1)
    finally:
        if not keep:
            for space in written:
                space.erase()
    reports = {name: _report(given, seconds) for name, given in answers.items()}
    return replace(reports.pop(""), compare=reports)


def steps(conversations: Iterable[Conversation], compare: Sequence[str] = ()) -> int:
    """Return the total number of steps that `progress` is called with."""
    return sum(one.turns + len(one.questions) * (1 + len(compare)) for one in conversations)


def measure(rankings: Sequence[tuple[Sequence[Item], Collection[Item]]]) -> Level:
    """Return the metrics of rankings, best first, each with its evidence, which is not empty."""
    found = [([item in evidence for item in ranking], len(evidence)) for ranking, evidence in rankings]

    def average(scores: Iterable[float]) -> float:
        return sum(scores) / len(found)

    return Level(
        any={str(k): average(any(marks[:k]) for marks, _ in found) for k in CUTOFFS},
        all={str(k): average(sum(marks[:k]) == size for marks, size in found) for k in CUTOFFS},
        mean={str(k): average(sum(marks[:k]) / size for marks, size in found) for k in CUTOFFS},
        ndcg10=average(_gain(marks) / _gain([True] * size) for marks, size in found),
        mrr=average(1 / (marks.index(True) + 1) if any(marks) else 0 for marks, _ in found),
    )


def _gain(marks: list[bool]) -> float:
    return sum(1 / math.log2(rank + 1) for rank, hit in enumerate(marks[:GAIN_CUTOFF], 1) if hit)


def _vacant(memory: Memory, conversation: Conversation) -> Scope:
    """Return the scope of a conversation; raises ConflictError if it has sessions already."""
    space = memory.scope(TENANT, conversation.id)
    if space.sessions.list():
        raise ConflictError(f"{space.path.path!r} has sessions already; erase it, or use another store")
    return space


def _ask(space: Scope, question: Question, options: dict[str, Any]) -> TimedHits:
    started = perf_counter()
    hits = space.recall(question.text, CUTOFFS[-1], kinds="message", **options)
    ms = (perf_counter() - started) * 1000
    return TimedHits(question, [(hit.record.scope.name, hit.record.key) for hit in hits], ms)


def _ask_store(space: Scope, question: Question, options: dict[str, Any]) -> TimedHits:
    started = perf_counter()
    hits = space.recall(question.text, CUTOFFS[-1], uses=False, **options)
    ms = (perf_counter() - started) * 1000
    return TimedHits(question, [(hit.scope.path, f"{hit.kind}/{hit.id}") for hit in hits], ms)


def _report(answers: list[TimedHits], store_s: float) -> Report:
    by_category: dict[str, list[TimedHits]] = {}
    for answer in answers:
        if answer.question.category is not None:
            by_category.setdefault(answer.question.category, []).append(answer)
    whole = _breakdown(answers)
    return Report(
        turn=whole.turn,
        session=whole.session,
        categories={name: _breakdown(by_category[name]) for name in sorted(by_category)},
        questions=whole.questions,
        store_s=store_s,
        recall_ms=_latency([answer.ms for answer in answers]),
    )


def _breakdown(answers: list[TimedHits]) -> Breakdown:
    turns, sessions = [answer.turns for answer in answers], [answer.sessions for answer in answers]
    return Breakdown(measure(turns), measure(sessions), len(answers))


def _latency(times: list[float]) -> Latency:
    ranked = sorted(times)
    p50, p95 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.95))
    return Latency(p50, p95)
