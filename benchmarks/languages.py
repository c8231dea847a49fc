"""`python -m benchmarks.languages`: recall@3 in other languages, and with every text taken for English.

Each of tests/language_sets has the two speakers in its first line, three sessions of their turns, alternating, and
questions, each after the number of the turn that answers it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import mnemic

SETS = Path(__file__).parent.parent / "tests" / "language_sets"
BEGAN = datetime(2023, 3, 6, tzinfo=UTC)


def store(scope: mnemic.Scope, path: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """Store the conversation of a file; return its turns, and its questions with the places of the answers."""
    head, *rest = path.read_text().strip().split("\n\n")
    names, *first = head.splitlines()
    turns: list[str] = []
    for number, session in enumerate((first, *(part.splitlines() for part in rest[:-1]))):
        for text in session:
            side = len(turns) % 2
            moment = BEGAN + timedelta(days=75 * number, minutes=len(turns))
            message = {"role": ("user", "assistant")[side], "content": text, "name": names.split()[side]}
            scope.session(f"s{number}").add({**message, "timestamp": moment})
            turns.append(text)
    questions = [line.partition(" ") for line in rest[-1].splitlines()]
    return turns, [(int(place) - 1, question) for place, _, question in questions]


def recall_at_3(path: Path, embedder: str) -> float:
    """Return the share of a file's questions that are answered by one of three hits."""
    with mnemic.open("memory://", embedder=embedder) as memory:
        scope = memory.scope(path.stem)
        turns, questions = store(scope, path)
        found = [turns[place] in [hit.text for hit in scope.recall(question, 3)] for place, question in questions]
    return sum(found) / len(found)


def as_english(path: Path, embedder: str) -> float:
    """Return the same with every text taken for English."""
    with (
        mock.patch("mnemic.recall.index_entry.language_of", return_value="en"),
        mock.patch("mnemic.recall.question.likely_language", return_value="en"),
    ):
        return recall_at_3(path, embedder)


def main() -> None:
    """Print a table."""
    print("| language | questions | static vectors | as English | without vectors | as English |")
    print("|---|--:|--:|--:|--:|--:|")
    for path in sorted(SETS.glob("*.txt")):
        count = len(path.read_text().strip().split("\n\n")[-1].splitlines())
        shares = [way(path, embedder) for embedder in ("static", "none") for way in (recall_at_3, as_english)]
        print(f"| {path.stem} | {count} |", " | ".join(f"{100 * share:.0f}" for share in shares), "|")


if __name__ == "__main__":
    main()
