"""A recall set: conversations, and questions that name the turns which answer them; one a line, as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

VARIABLE = "RECALL_SET"
UNANSWERABLE = "5"  # LoCoMo's name for questions that nothing in the conversation answers


@dataclass(frozen=True)
class Turn:
    """What one speaker said."""

    id: str
    session: str
    time: str
    role: str
    name: str
    text: str

    @property
    def said(self) -> str:
        """The turn as one text: what a peer is given that has no place for a name."""
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Question:
    """A question, and the ids of the turns that answer it."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """One conversation; its id is the user that every system keeps it under."""

    id: str
    turns: list[Turn]
    questions: list[Question]


def find(path: str | None = None) -> Path:
    """Return the file that was given, or that the environment names; raise LookupError if neither is."""
    given = path or os.environ.get(VARIABLE)
    if not given:
        raise LookupError(f"no recall set: give a JSONL file, or name one in {VARIABLE}")
    return Path(given).resolve()


def read(path: Path, conversations: int) -> list[Conversation]:
    """Return the first conversations, with the questions that something in them answers."""
    with path.open(encoding="utf-8") as lines:
        found = [json.loads(line) for line in islice(lines, conversations)]
    return [
        Conversation(
            one["id"],
            [Turn(**turn) for turn in one["turns"]],
            [
                Question(question["question"], frozenset(question["evidence"]))
                for question in one["questions"]
                if question["evidence"] and str(question["category"]) != UNANSWERABLE
            ],
        )
        for one in found
    ]
