"""Recall sets: files of conversations, or names of scopes, and of questions with what answers them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from os import PathLike
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from .checks import check_choice, check_name, check_segment, check_text, check_time, shown
from .errors import InvalidValueError
from .files import read_file
from .messages import ROLES, Message
from .records import ARCHIVED, RECALLED, ScopePath, now

__all__ = ["Conversation", "Question", "TurnId", "read_recall_set", "with_categories"]

TurnId: TypeAlias = tuple[str, str]
"""A turn's session and id; in a scope of a store, a record's scope and `kind/id`."""

HIT_KINDS = tuple(kind for kind in RECALLED if kind != ARCHIVED)
"""Kinds of hits: archived messages are messages."""
_SESSION = re.compile(r"session_([0-9]{1,9})")
_EVIDENCE = re.compile(r"D:?([0-9]{1,9}):([0-9]{1,9})")
_TIME = "%I:%M %p on %d %B, %Y"


class Question(Struct, frozen=True, kw_only=True):
    """A question, and the turns that answer it."""

    id: str
    text: str
    evidence: tuple[TurnId, ...]
    category: str | None = None


class Conversation(Struct, frozen=True, kw_only=True):
    """One user's sessions, and questions about them; `left_out` counts questions without evidence.

    With a `scope`, the questions are about what a store holds there, and there are no sessions.
    """

    id: str
    sessions: dict[str, list[Message]]
    questions: list[Question]
    left_out: int = 0
    scope: ScopePath | None = None

    @property
    def turns(self) -> int:
        """Number of turns in all sessions."""
        return sum(map(len, self.sessions.values()))


def read_recall_set(path: str | PathLike[str]) -> list[Conversation]:
    """Return the conversations of a recall set: one JSON object per line, or a JSON array of them.

    Each is in Mnemic's format or in LoCoMo's. Raises InvalidValueError naming the line and the field,
    NotFoundError if the file does not exist, StorePermissionError if it cannot be read.
    """
    name = os.fspath(path)
    conversations: dict[str, Conversation] = {}
    for node in _objects(name, read_file(path)):
        conversation = _read_conversation(node)
        if conversation.id in conversations:
            raise InvalidValueError(f"{node.where}: another conversation has the id {conversation.id!r}")
        conversations[conversation.id] = conversation
    if not conversations:
        raise InvalidValueError(f"{name} holds no conversations")
    return list(conversations.values())


def with_categories(conversations: Iterable[Conversation], categories: Collection[str]) -> list[Conversation]:
    """Return the conversations with only the questions of these categories.

    Raises InvalidValueError if there are none.
    """
    given = list(conversations)
    there = {q.category for one in given for q in one.questions if q.category is not None}
    if there.isdisjoint(categories):
        found = ", ".join(sorted(there)) or "none"
        raise InvalidValueError(f"no question has a category of {', '.join(categories)}; there are: {found}")
    return [replace(one, questions=[q for q in one.questions if q.category in categories]) for one in given]


class _Node(Struct, frozen=True):
    """A value in a recall set, with its position for error messages."""

    value: Any
    where: str
    path: str = ""

    @property
    def field(self) -> str:
        return f"{self.where}: {self.path}" if self.path else self.where

    def wrong(self, problem: str) -> InvalidValueError:
        return InvalidValueError(f"{self.field} {problem}: {shown(self.value)}")

    def members(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        return self.value

    def get(self, name: str) -> _Node | None:
        """Return a member; None if it is missing or null."""
        value = self.members().get(name)
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
        # A path is a valid id, but here it becomes one scope segment.
        text = self._as_text()
        return check_segment(text.replace("/", "_") if isinstance(text, str) else text, self.field)

    def name(self) -> str:
        return check_name(self._as_text(), self.field)

    def text(self) -> str:
        return check_text(self.value, self.field)

    def scope(self) -> ScopePath:
        """Return the path of a scope; "/" is the whole store."""
        text = self.text()
        try:
            return ScopePath("" if text == "/" else text)
        except InvalidValueError as error:
            raise InvalidValueError(f"{self.field}: {error}") from None

    def time(self) -> datetime:
        """Return an ISO 8601 time, in UTC if it has no zone, so that every machine reads it the same."""
        text = self.text()
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong("is not an ISO 8601 time") from None
        return check_time(time if time.tzinfo else time.replace(tzinfo=UTC), self.field)

    def _as_text(self) -> Any:
        return str(self.value) if type(self.value) is int else self.value


def _objects(name: str, content: bytes) -> Iterator[_Node]:
    """Yield the values of a file, each with its line, or its index in the array."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidValueError(f"{name}, line {line} is not UTF-8: {error.reason}") from None
    if text.lstrip().startswith("["):
        for place, value in enumerate(_decoded(text, name, 1), 1):
            yield _Node(value, f"{name}, item {place}")
        return
    # JSON strings may contain characters that splitlines treats as line ends.
    for number, line_text in enumerate(text.split("\n"), 1):
        if line_text.strip():
            yield _Node(_decoded(line_text, name, number), f"{name}, line {number}")


def _decoded(text: str, name: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidValueError(
            f"{name}, line {line + error.lineno - 1}, column {error.colno} is not JSON: {error.msg}; "
            "a recall set has one object per line, or is one array"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{name}, line {line} cannot be read as JSON: {error}") from None


def _read_conversation(node: _Node) -> Conversation:
    if node.get("conversation") is not None:
        return _from_locomo(node)
    return _from_mnemic(node) if node.get("scope") is None else _from_scope(node)


def _from_scope(node: _Node) -> Conversation:
    """Return questions about a scope of a store, whose evidence are records."""
    questions = [
        Question(
            id=question["id"].name(),
            text=_question_text(question),
            evidence=tuple(dict.fromkeys(_record(one) for one in question["evidence"].items())),
            category=_category(question),
        )
        for question in node["questions"].items()
    ]
    whole = _conversation(node["id"].name(), {}, questions)
    return replace(whole, scope=node["scope"].scope())


def _record(node: _Node) -> TurnId:
    kind = check_choice(node["kind"].text(), f"{node.field}.kind", HIT_KINDS)
    return node["scope"].scope().path, f"{kind}/{node['id'].name()}"


def _from_mnemic(node: _Node) -> Conversation:
    """Return a conversation from Mnemic's format."""
    id = node["id"].segment()
    sessions: dict[str, list[Message]] = {}
    for turn in node["turns"].items():
        role, name, time = turn.get("role"), turn.get("name"), turn.get("time")
        if role is not None and role.value not in ROLES:
            raise role.wrong(f"must be one of {', '.join(ROLES)}")
        message = Message(
            role="user" if role is None else role.value,
            content=turn["text"].text(),
            id=turn["id"].name(),
            name=None if name is None else name.name(),
            timestamp=now() if time is None else time.time(),
        )
        sessions.setdefault(turn["session"].segment(), []).append(message)
    places = _places(node, sessions)
    questions = [
        Question(
            id=question["id"].name(),
            text=_question_text(question),
            evidence=tuple(dict.fromkeys(_place(turn, places) for turn in question["evidence"].items())),
            category=_category(question),
        )
        for question in node["questions"].items()
    ]
    return _conversation(id, sessions, questions)


def _from_locomo(node: _Node) -> Conversation:
    """Return a conversation from LoCoMo's format.

    The first speaker is the user; picture captions and missing evidence are skipped.
    """
    id, talk = node["sample_id"].segment(), node["conversation"]
    numbers = sorted(int(found[1]) for key in talk.members() if (found := _SESSION.fullmatch(key)))
    sessions: dict[str, list[Message]] = {}
    first: str | None = None
    for number in numbers:
        stamp = talk.get(f"session_{number}_date_time")
        time = now() if stamp is None else _locomo_time(stamp)
        for turn in talk[f"session_{number}"].items():
            name = turn["speaker"].name()
            first = first or name
            message = Message(
                role="user" if name == first else "assistant",
                content=turn["text"].text(),
                id=turn["dia_id"].name(),
                name=name,
                timestamp=time,
            )
            sessions.setdefault(str(number), []).append(message)
    places = _places(node, sessions)
    questions = []
    for number, question in enumerate(node["qa"].items()):
        given = question.get("evidence")
        texts = [] if given is None else [item.text() for item in given.items()]
        ids = [f"D{int(a)}:{int(b)}" for text in texts for a, b in _EVIDENCE.findall(text)]
        questions.append(
            Question(
                id=f"{id}/{number}",
                text=_question_text(question),
                evidence=tuple(dict.fromkeys(place for id in ids for place in places.get(id, ())[:1])),
                category=_category(question),
            )
        )
    return _conversation(id, sessions, questions)


def _conversation(id: str, sessions: dict[str, list[Message]], questions: list[Question]) -> Conversation:
    answerable = [question for question in questions if question.evidence]
    left_out = len(questions) - len(answerable)
    return Conversation(id=id, sessions=sessions, questions=answerable, left_out=left_out)


def _places(node: _Node, sessions: dict[str, list[Message]]) -> dict[str, list[TurnId]]:
    """Return the positions of each turn id, and of each 'session/id', which is unambiguous.

    Raises InvalidValueError if two turns of one session have the same id.
    """
    places: dict[str, list[TurnId]] = {}
    for session, messages in sessions.items():
        known: set[str] = set()
        for message in messages:
            if message.id in known:
                raise InvalidValueError(f"{node.field}: session {session!r} has two turns {message.id!r}")
            known.add(message.id)
            for spelling in (message.id, f"{session}/{message.id}"):
                places.setdefault(spelling, []).append((session, message.id))
    return places


def _place(turn: _Node, places: dict[str, list[TurnId]]) -> TurnId:
    found = places.get(turn.name(), [])
    if not found:
        raise turn.wrong("names no turn of this conversation")
    if len(found) > 1:
        raise turn.wrong("names turns of several sessions; write it as session/id")
    return found[0]


def _question_text(question: _Node) -> str:
    node = question["question"]
    if not node.text().strip():
        raise node.wrong("is empty")
    return node.text()


def _category(question: _Node) -> str | None:
    category = question.get("category")
    return None if category is None else category.name()


def _locomo_time(stamp: _Node) -> datetime:
    """Return a time such as '1:56 pm on 8 May, 2023', in UTC."""
    text = stamp.text()
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise stamp.wrong("is not a time such as '1:56 pm on 8 May, 2023'") from None
