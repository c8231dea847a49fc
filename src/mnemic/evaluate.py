"""Recall sets in, figures out: how much of the evidence recall finds, and how fast."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from os import PathLike
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from .checks import check_name, check_segment, check_text, check_time, shown
from .errors import ConflictError, InvalidValueError
from .files import read_file
from .records import ROLES, Message
from .sync import Memory, Space

CUTOFFS = (1, 5, 10, 20, 50)
"""The numbers of hits at which recall is measured; the last is how many are asked for."""
GAIN_CUTOFF = 10
"""The number of hits over which nDCG is measured."""
TENANT = "eval"
"""The first segment of the scopes that conversations are stored in."""

Place: TypeAlias = tuple[str, str]
"""Where a turn stands: its session and its id."""
Item = TypeVar("Item", bound=Hashable)

_NATIVE_SESSION = re.compile(r"session_([0-9]+)")
_NATIVE_EVIDENCE = re.compile(r"D:?([0-9]+):([0-9]+)")
_NATIVE_TIME = "%I:%M %p on %d %B, %Y"


class Question(Struct, frozen=True, kw_only=True):
    """A question, and the turns that answer it."""

    id: str
    text: str
    evidence: tuple[Place, ...]
    category: str | None = None


class Conversation(Struct, frozen=True, kw_only=True):
    """One user's sessions, and what is asked of them; `left_out` counts questions without evidence."""

    id: str
    sessions: dict[str, list[Message]]
    questions: list[Question]
    left_out: int = 0

    @property
    def turns(self) -> int:
        """How many turns the sessions have together."""
        return sum(map(len, self.sessions.values()))


class Level(Struct, frozen=True):
    """Shares from 0 to 1, over turns or over sessions.

    Among the first k hits, keyed by k: how many questions have `any` and how many have `all` of
    their evidence, and the `mean` share of it. Then nDCG among the first 10, and the mean
    reciprocal rank of the first evidence.
    """

    any: dict[str, float]
    all: dict[str, float]
    mean: dict[str, float]
    ndcg10: float
    mrr: float


class Breakdown(Struct, frozen=True):
    """The figures of the questions of one category."""

    turn: Level
    session: Level
    questions: int


class Latency(Struct, frozen=True):
    """How long a recall took, in milliseconds."""

    p50: float
    p95: float


class Report(Struct, frozen=True, omit_defaults=True):
    """All that an evaluation found; `compare` holds the figures of single signals, by their names."""

    turn: Level
    session: Level
    categories: dict[str, Breakdown]
    questions: int
    store_s: float
    recall_ms: Latency
    compare: dict[str, Report] = field(default_factory=dict)


class Answer(Struct, frozen=True):
    """A question's hits, best first, and how long they took."""

    question: Question
    hits: list[Place]
    ms: float

    @property
    def turns(self) -> tuple[list[Place], set[Place]]:
        """The ranking of turns, and the evidence among them."""
        return self.hits, set(self.question.evidence)

    @property
    def sessions(self) -> tuple[list[str], set[str]]:
        """The sessions in the order of their first hits, and those of the evidence."""
        ranked = dict.fromkeys(session for session, _ in self.hits)
        return list(ranked), {session for session, _ in self.question.evidence}


def read_recall_set(path: str | PathLike[str]) -> list[Conversation]:
    """Return the conversations of a recall set: one JSON object per line, or a JSON array of them.

    Each is either in our own form or in that of the LoCoMo project. Raises InvalidValueError naming
    the line and the field, NotFoundError if there is no such file, StorePermissionError.
    """
    name = os.fspath(path)
    conversations: list[Conversation] = []
    known: set[str] = set()
    for node in _objects(name, read_file(path)):
        conversation = _native(node) if "conversation" in node.value else _canonical(node)
        if conversation.id in known:
            raise InvalidValueError(f"{node.where}: another conversation has the id {conversation.id!r}")
        known.add(conversation.id)
        conversations.append(conversation)
    if not conversations:
        raise InvalidValueError(f"{name} holds no conversations")
    return conversations


def with_categories(conversations: Iterable[Conversation], categories: Collection[str]) -> list[Conversation]:
    """Return the conversations with the questions of these categories alone.

    Raises InvalidValueError if there are none.
    """
    given = list(conversations)
    there = {question.category for one in given for question in one.questions} - {None}
    if there.isdisjoint(categories):
        wanted, found = ", ".join(categories), ", ".join(sorted(map(str, there))) or "none"
        raise InvalidValueError(f"no question has a category among {wanted}; there are: {found}")
    return [replace(one, questions=[q for q in one.questions if q.category in categories]) for one in given]


def evaluate(
    memory: Memory,
    conversations: Sequence[Conversation],
    *,
    compare: Sequence[str] = (),
    keep: bool = False,
    progress: Callable[[int], object] = bool,
) -> Report:
    """Store the conversations, ask their questions with the default settings, and return the figures.

    `compare` asks again with one signal alone for each name in it, or several joined by '+'. What was
    stored is erased again unless `keep` is true. `progress` is told of each turn that was stored and
    each question that was asked. Raises InvalidValueError if there are no questions, ConflictError
    if the memory has sessions where the conversations would go.
    """
    if not any(conversation.questions for conversation in conversations):
        raise InvalidValueError("there are no questions with evidence to ask")
    ways: dict[str, dict[str, Any]] = {"": {}} | {name: {"signals": name.split("+")} for name in compare}
    answers: dict[str, list[Answer]] = {name: [] for name in ways}
    written: list[Space] = []
    seconds = 0.0
    try:
        for conversation in conversations:
            space = _vacant(memory, conversation)
            for session, messages in conversation.sessions.items():
                written.append(space.scope(session))
                begun = perf_counter()
                space.session(session).add_many(messages)
                seconds += perf_counter() - begun
                progress(len(messages))
        for conversation in conversations:
            space = memory.scope(TENANT, conversation.id)
            for question in conversation.questions:
                for name, options in ways.items():
                    answers[name].append(_ask(space, question, options))
                    progress(1)
    finally:
        if not keep:
            for space in written:
                space.erase()
    reports = {name: _report(given, seconds) for name, given in answers.items()}
    return replace(reports.pop(""), compare=reports)


def measure(rankings: Sequence[tuple[Sequence[Item], Collection[Item]]]) -> Level:
    """Return the figures of rankings, best first, each with its evidence, which is never empty."""
    asked = len(rankings)
    found = [([item in evidence for item in ranking], len(evidence)) for ranking, evidence in rankings]

    def share(score: Callable[[list[bool], int], float]) -> float:
        return sum(score(marks, size) for marks, size in found) / asked

    return Level(
        any={str(k): share(lambda marks, size, k=k: any(marks[:k])) for k in CUTOFFS},
        all={str(k): share(lambda marks, size, k=k: sum(marks[:k]) == size) for k in CUTOFFS},
        mean={str(k): share(lambda marks, size, k=k: sum(marks[:k]) / size) for k in CUTOFFS},
        ndcg10=share(lambda marks, size: _gain(marks) / _gain([True] * size)),
        mrr=share(lambda marks, size: 1 / (marks.index(True) + 1) if any(marks) else 0),
    )


def _gain(marks: list[bool]) -> float:
    return sum(1 / math.log2(rank + 1) for rank, hit in enumerate(marks[:GAIN_CUTOFF], 1) if hit)


def _vacant(memory: Memory, conversation: Conversation) -> Space:
    """Return the scope of a conversation; raises ConflictError if there are sessions in it."""
    space = memory.scope(TENANT, conversation.id)
    if space.sessions():
        raise ConflictError(f"{space.home.path!r} has sessions already; erase it, or use another store")
    return space


def _ask(space: Space, question: Question, options: dict[str, Any]) -> Answer:
    begun = perf_counter()
    hits = space.recall(question.text, CUTOFFS[-1], kinds="message", **options)
    ms = (perf_counter() - begun) * 1000
    return Answer(question, [(hit.record.scope.name, hit.record.key) for hit in hits], ms)


def _report(answers: list[Answer], store_s: float) -> Report:
    by_category: dict[str, list[Answer]] = {}
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


def _breakdown(answers: list[Answer]) -> Breakdown:
    turn, session = ([answer.turns for answer in answers], [answer.sessions for answer in answers])
    return Breakdown(measure(turn), measure(session), len(answers))


def _latency(times: list[float]) -> Latency:
    ranked = sorted(times)
    p50, p95 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.95))
    return Latency(p50, p95)


class _Node(Struct, frozen=True):
    """A value in a recall set, and where it stands, which is what an error says first."""

    value: Any
    where: str
    path: str = ""

    @property
    def field(self) -> str:
        return f"{self.where}: {self.path}" if self.path else self.where

    def wrong(self, problem: str) -> InvalidValueError:
        return InvalidValueError(f"{self.field} {problem}: {shown(self.value)}")

    def get(self, name: str) -> _Node | None:
        """Return a member; None if it is not there or null. Raises InvalidValueError if this is no object."""
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        value = self.value.get(name)
        return None if value is None else _Node(value, self.where, f"{self.path}.{name}".lstrip("."))

    def __getitem__(self, name: str) -> _Node:
        if (found := self.get(name)) is None:
            raise InvalidValueError(f"{self.field} has no {name!r}")
        return found

    def items(self) -> list[_Node]:
        if not isinstance(self.value, list):
            raise self.wrong("must be a list")
        return [_Node(item, self.where, f"{self.path}[{place}]") for place, item in enumerate(self.value)]

    def segment(self) -> str:
        return check_segment(self._plain(), self.field)

    def name(self) -> str:
        return check_name(self._plain(), self.field)

    def text(self) -> str:
        return check_text(self.value, self.field)

    def time(self) -> datetime:
        """Return an ISO 8601 time, in UTC if it names no zone, so that every machine reads it alike."""
        try:
            time = datetime.fromisoformat(self.text())
        except ValueError:
            raise self.wrong("is not an ISO 8601 time") from None
        return check_time(time if time.tzinfo else time.replace(tzinfo=UTC), self.field)

    def _plain(self) -> Any:
        return str(self.value) if type(self.value) is int else self.value


def _objects(name: str, content: bytes) -> Iterator[_Node]:
    """Yield the JSON objects of a file, with the line or the place in the array where each stands."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidValueError(f"{name}, line {line} is not UTF-8: {error.reason}") from None
    if text.lstrip().startswith("["):
        yield from (
            _Node(value, f"{name}, item {place}") for place, value in enumerate(_decoded(text, name, 1), 1)
        )
    else:
        # Not splitlines: JSON strings may hold other characters that it takes for ends of lines.
        lines = enumerate(text.split("\n"), 1)
        yield from (
            _Node(_decoded(line, name, number), f"{name}, line {number}")
            for number, line in lines
            if line.strip()
        )


def _decoded(text: str, name: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"{name}, line {line + error.lineno - 1}, column {error.colno}"
        raise InvalidValueError(f"{at} is not JSON: {error.msg}; {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{name}, line {line} cannot be read as JSON: {error}") from None


_EXPECTED = "a recall set has one JSON object per line, or is one JSON array"


def _canonical(node: _Node) -> Conversation:
    id = node["id"].segment()
    sessions: dict[str, list[Message]] = {}
    for turn in node["turns"].items():
        role, name, time = turn.get("role"), turn.get("name"), turn.get("time")
        if role is not None and role.value not in ROLES:
            raise role.wrong(f"must be one of {', '.join(ROLES)}")
        message = Message(
            "user" if role is None else role.value,
            turn["text"].text(),
            turn["id"].name(),
            None if name is None else name.name(),
            **({} if time is None else {"timestamp": time.time()}),
        )
        sessions.setdefault(turn["session"].segment(), []).append(message)
    places = _places(node, sessions)
    questions = [
        Question(
            id=question["id"].name(),
            text=question["question"].text(),
            evidence=tuple(dict.fromkeys(_place(turn, places) for turn in question["evidence"].items())),
            category=_category(question),
        )
        for question in node["questions"].items()
    ]
    return _conversation(id, sessions, questions)


def _native(node: _Node) -> Conversation:
    """Return a conversation of LoCoMo; who speaks first is the user, and captions are left out."""
    id = node["sample_id"].segment()
    talk = node["conversation"]
    talk.get("speaker_a")
    numbers = sorted(int(found[1]) for key in talk.value if (found := _NATIVE_SESSION.fullmatch(key)))
    sessions: dict[str, list[Message]] = {}
    first: str | None = None
    for number in numbers:
        stamp = talk.get(f"session_{number}_date_time")
        time = {} if stamp is None else {"timestamp": _native_time(stamp)}
        for turn in talk[f"session_{number}"].items():
            name = turn["speaker"].name()
            first = first or name
            role = "user" if name == first else "assistant"
            message = Message(role, turn["text"].text(), turn["dia_id"].name(), name, **time)
            sessions.setdefault(str(number), []).append(message)
    places = _places(node, sessions)
    questions = []
    for place, question in enumerate(node["qa"].items()):
        found = question.get("evidence")
        texts = [] if found is None else [item.text() for item in found.items()]
        ids = [f"D{int(a)}:{int(b)}" for text in texts for a, b in _NATIVE_EVIDENCE.findall(text)]
        evidence = tuple(dict.fromkeys(places[turn][0] for turn in ids if turn in places))
        text, category = question["question"].text(), _category(question)
        questions.append(Question(id=f"{id}/{place}", text=text, evidence=evidence, category=category))
    return _conversation(id, sessions, questions)
