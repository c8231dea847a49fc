"""`python -m benchmarks.mixed [EMBEDDER …]`: recall where messages, memories, notes and facts are stored together.

One user's scope is written by rule, the same every time: statements about 320 people, 30 projects and 30 things, each
as a message of a chat, a memory, a line of a note, or a fact. Many differ in one word alone, some replace older ones,
and questions use other words than statements. Printed is recall@10 by the kind of record that answers, and how well the
score tells questions with an answer from questions about what was never stated.
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field

import mnemic
from mnemic.evaluate import Breakdown, evaluate
from mnemic.messages import Message, Role
from mnemic.recallset import Conversation, Question
from mnemic.records import ScopePath
from mnemic.sync import Memory, Scope

from .mixed_templates import ATTRIBUTES, CHATTER, PEOPLE, PROJECTS, REPLIES, SURNAMES, THINGS, Attribute

KINDS = {"message": 5, "memory": 6, "note": 5, "fact": 4}
"""How often statements are records of each kind."""
ASKED = 1_500
"""How many statements are asked for, and as many that were never made."""
SCOPE = "mixed/sam"
START = datetime(2025, 1, 6, 9, tzinfo=UTC)
SUPERSEDED = 0.15
"""Share of statements that replace an older one."""


class Statement(Struct):
    """That an entity has a value for an attribute, stored as a record of a kind."""

    entity: str
    attribute: Attribute
    value: str
    kind: str
    old: str | None = None
    """The value that it replaces."""
    place: tuple[str, str] = ("", "")
    """Scope and `kind/id` of its record."""


class MixedSet(Struct):
    """Statements, and questions with and without an answer."""

    statements: list[Statement] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)


def entities(group: str) -> list[str]:
    """Return the entities of a group, by the names that statements give them."""
    if group == "person":
        size = len(SURNAMES)
        return [f"{first} {SURNAMES[(n + step) % size]}" for n, first in enumerate(PEOPLE) for step in (0, 3, 5, 8)]
    return list(PROJECTS if group == "project" else THINGS)


def drawn(random_: random.Random, share: float) -> MixedSet:
    """Return what is to be stated, and what is asked; `share` of all combinations are stated."""
    found = MixedSet()
    for attribute in ATTRIBUTES:
        for entity in entities(attribute.group):
            question = random_.choice(attribute.questions).format(e=entity)
            if random_.random() > share:
                found.unanswered.append(question)
                continue
            value, other = random_.sample(attribute.values, 2)
            old = other if random_.random() < SUPERSEDED else None
            (kind,) = random_.choices(list(KINDS), list(KINDS.values()))
            found.statements.append(Statement(entity, attribute, value, kind, old))
    random_.shuffle(found.statements)
    return found


class Writer:
    """Writes statements into a scope, as time goes by."""

    def __init__(self, space: Scope, random_: random.Random) -> None:
        self.space = space
        self.random = random_
        self.moment = START
        self.chat: list[Message] = []
        self.chats: list[list[Message]] = []
        self.note: list[tuple[Statement, str]] = []
        self.counts: dict[str, int] = {}

    def state(self, statement: Statement) -> None:
        """Write one statement, and what it replaces before it."""
        if statement.old is not None:
            old = Statement(statement.entity, statement.attribute, statement.old, statement.kind)
            self._write(old)
            self.moment += timedelta(days=1)
        self._write(statement)
        self.moment += timedelta(minutes=self.random.randint(5, 90))

    def finish(self) -> None:
        """Write what is not written yet."""
        self._end_note()
        self._end_chat()
        for number, messages in enumerate(self.chats):
            self.space.session(f"chat-{number}").add_many(messages)

    def _write(self, statement: Statement) -> None:
        texts = statement.attribute.said if statement.kind == "message" else statement.attribute.noted
        text = self.random.choice(texts).format(e=statement.entity, v=statement.value)
        getattr(self, f"_{statement.kind}")(statement, text)

    def _next(self, kind: str) -> str:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return f"{kind}-{self.counts[kind]}"

    def _message(self, statement: Statement, text: str) -> None:
        for _ in range(self.random.randint(0, 1)):
            self._say("user", self.random.choice(CHATTER))
            self._say("assistant", self.random.choice(REPLIES))
        id = self._say("user", text)
        self._say("assistant", self.random.choice(REPLIES))
        statement.place = (f"{SCOPE}/chat-{len(self.chats)}", f"message/{id}")
        if len(self.chat) > 36:
            self._end_chat()

    def _say(self, role: Role, text: str) -> str:
        id = self._next("turn")
        self.chat.append(Message(role=role, content=text, id=id, timestamp=self.moment))
        return id

    def _end_chat(self) -> None:
        if self.chat:
            self.chats.append(self.chat)
        self.chat = []

    def _memory(self, statement: Statement, text: str) -> None:
        id = self._next("memory")
        self.space.remember(text, id=id, created=self.moment, importance=self.random.choice((0.5, 1.0, 1.0, 2.0)))
        statement.place = (SCOPE, f"memory/{id}")

    def _note(self, statement: Statement, text: str) -> None:
        self.note.append((statement, text))
        if len(self.note) >= self.random.randint(1, 6):
            self._end_note()

    def _end_note(self) -> None:
        if self.note:
            key = self._next("note")
            self.space.notes.write(key, "\n".join(f"- {text}" for _, text in self.note))
            for statement, _ in self.note:
                statement.place = (SCOPE, f"note/{key}")
        self.note = []

    def _fact(self, statement: Statement, text: str) -> None:
        fact = self.space.facts.add(
            statement.entity, statement.attribute.predicate, statement.value, single=True, valid_from=self.moment
        )
        statement.place = (SCOPE, f"fact/{fact.id}")


def build(memory: Memory, *, share: float = 0.75, asked: int = ASKED) -> MixedSet:
    """Write the set into a memory, and return it with so many questions; `share` is that of `drawn`."""
    random_ = random.Random(7)
    found = drawn(random_, share)
    writer = Writer(memory.scope(*SCOPE.split("/")), random_)
    for statement in found.statements:
        writer.state(statement)
    writer.finish()
    found.unanswered = random_.sample(found.unanswered, min(asked, len(found.unanswered)))
    for number, statement in enumerate(random_.sample(found.statements, min(asked, len(found.statements)))):
        text = random_.choice(statement.attribute.questions).format(e=statement.entity)
        category = statement.kind + (", replaced" if statement.old is not None else "")
        found.asked.append(Question(id=str(number), text=text, evidence=(statement.place,), category=category))
    return found


def kind_rows(categories: dict[str, Breakdown]) -> list[str]:
    """Return recall by the kind of record that answers, as rows of a Markdown table."""
    rows = []
    for name, part in categories.items():
        turn = part.turn
        rows.append(f"| {name} | {part.questions} | {100 * turn.any['1']:.1f} | {100 * turn.any['10']:.1f} |")
    return rows


def main(embedders: list[str]) -> None:
    """Measure and print."""
    from .unanswered import area

    for embedder in embedders or ["static"]:
        with mnemic.open("memory://", embedder=embedder) as memory:
            found = build(memory)
            space = memory.scope(*SCOPE.split("/"))
            whole = Conversation(id="mixed", sessions={}, questions=found.asked, scope=ScopePath(SCOPE))
            report = evaluate(memory, [whole])
            scores = [
                [max((hit.score for hit in space.recall(text, 1, uses=False)), default=0.0) for text in some]
                for some in ([question.text for question in found.asked], found.unanswered)
            ]
        print(f"{embedder}: {len(found.asked)} questions, area under the curve {area(*scores):.3f}\n")
        print("| answered by a | questions | first | among 10 |\n|---|--:|--:|--:|")
        print("\n".join(kind_rows(report.categories)))
        print(f"| any | {report.questions} | {100 * report.turn.any['1']:.1f} | {100 * report.turn.any['10']:.1f} |\n")


if __name__ == "__main__":
    main(sys.argv[1:])
