"""The best hit's score tells a question that the scope answers from one that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.unanswered import area, exchanged, measure

import mnemic
from mnemic.models.static import StaticEmbedder
from mnemic.recall import document_view
from mnemic.recallset import read_recall_set

LOCOMO = Path(__file__).parents[2] / "shared" / "recall" / "locomo.jsonl"
GOOD = 0.5
TALK = [
    ("user", "My sister Ana moved to Lisbon last week, she starts at a bakery there."),
    ("assistant", "How does she like the new job?"),
    ("user", "She loves the bakery, apart from getting up at four."),
    ("user", "I adopted a grey cat called Pepper from the shelter."),
    ("assistant", "What does Pepper like to eat?"),
    ("user", "Only salmon, she refuses chicken."),
    ("user", "My dentist appointment is on Thursday at nine."),
    ("user", "I am allergic to peanuts and to penicillin."),
    ("user", "We painted the kitchen yellow in March."),
    ("assistant", "Yellow must look cheerful in a kitchen."),
    ("user", "My bike was stolen in front of the library."),
    ("user", "The insurance paid 400 euros for the stolen bike."),
]
ANSWERED = [
    "Where did my sister Ana move?",
    "What is the name of my cat?",
    "When is my dentist appointment?",
    "What am I allergic to?",
    "Which color did we paint the kitchen?",
    "Where was my bike stolen?",
    "How much did the insurance pay for the bike?",
    "Where does Ana's bakery job start?",
]
UNANSWERED = [
    "Which university did my brother graduate from?",
    "What is the capital of Mongolia?",
    "How tall is the tower that we climbed in Paris?",
    "Which guitar did I buy for the concert?",
    "Who won the chess tournament?",
    "What is my blood pressure?",
    "Which novel am I reading at the moment?",
    "When does my passport expire?",
]


class Narrow:
    """Static vectors with a large part in common, so that unrelated texts have a cosine of about 0.8."""

    id = "narrow"
    trust = 1.0
    inner = StaticEmbedder()

    def embed(self, texts: Sequence[str]) -> Any:
        rows = self.inner.embed(texts)
        return np.concatenate((rows, np.full((len(rows), 1), 2, dtype=np.float32)), axis=1)

    def embed_query(self, query: str) -> Any:
        return self.embed([query])[0]


@pytest.mark.parametrize("embedder", ["static", "none", Narrow()], ids=["static", "none", "narrow"])
def test_a_threshold_tells_an_answer_from_none(embedder: Any) -> None:
    with mnemic.open("memory://", embedder=embedder) as opened:
        alice = opened.scope("alice")
        for role, text in TALK:
            alice.session("s").add(role, text)  # type: ignore[arg-type]
        best = [
            [max((hit.score for hit in alice.recall(q)), default=0.0) for q in some] for some in (ANSWERED, UNANSWERED)
        ]
        assert area(best[0], best[1]) >= 0.95
        assert sum(score >= GOOD for score in best[0]) >= 7
        assert sum(bool(alice.recall(q, min_score=GOOD)) for q in UNANSWERED) <= 2


@pytest.mark.skipif(not LOCOMO.exists(), reason="needs a recall set that is not in the repository")
def test_questions_of_another_conversation_score_lower() -> None:
    found = measure(read_recall_set(LOCOMO)[:2], "static")
    assert area(found.answered, found.unanswered) >= 0.88


def test_names_are_exchanged_whole() -> None:
    assert exchanged("Did Ana meet Bo's Anabel?", ["Ana", "Bo"], ["Bo", "Cy"]) == "Did Bo meet Cy's Anabel?"
    assert exchanged("nobody", [], []) == "nobody"


def test_a_growing_scope_scores_as_one_that_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_view, "SAMPLE", 8)
    compared: list[int] = []
    compare = document_view._typical_cosine

    def counting(units: Any, *, related: bool) -> tuple[float, float]:
        compared.append(len(units))
        return compare(units, related=related)

    monkeypatch.setattr(document_view, "_typical_cosine", counting)
    with mnemic.open("memory://growing") as growing:
        alice = growing.scope("alice")
        for n, (role, text) in enumerate(TALK * 3):
            alice.session("talk").add({"role": role, "content": f"{text} {n}"})
            grown = alice.recall(ANSWERED[0])
        assert len(compared) < len(TALK) * 3
        with mnemic.open("memory://growing") as at_once:
            read = at_once.scope("alice").recall(ANSWERED[0])
    assert [(hit.id, hit.score) for hit in read] == [(hit.id, hit.score) for hit in grown]
