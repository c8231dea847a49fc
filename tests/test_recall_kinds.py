"""Recall where messages, memories, notes and facts are stored together, in long sessions, and among many speakers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.mixed import SCOPE, build

import mnemic
from mnemic.evaluate import evaluate
from mnemic.recall.document_table import STRETCH
from mnemic.recallset import Conversation
from mnemic.records import ScopePath


@pytest.fixture
def alice() -> Iterator[mnemic.Scope]:
    with mnemic.open("memory://") as memory:
        yield memory.scope("alice")


def test_no_kind_drowns_another() -> None:
    with mnemic.open("memory://") as memory:
        found = build(memory, share=0.3, asked=300)
        asked = Conversation(id="mixed", sessions={}, questions=found.asked, scope=ScopePath(SCOPE))
        categories = evaluate(memory, [asked]).categories
    reached = {kind: categories[kind].turn.any["10"] for kind in ("message", "memory", "note", "fact")}
    assert min(reached.values()) >= 0.8, reached


def test_a_line_of_a_long_note_is_found_by_its_meaning(alice: mnemic.Scope) -> None:
    lines = [
        "The boiler was serviced in October.",
        "The kayak hangs in the garage.",
        "Rosa keeps two dachshunds.",
        "The tax adviser wants all receipts by May.",
        "Piano lessons are on Wednesday.",
        "The neighbours water the tomatoes.",
    ]
    alice.notes.write("house", "\n".join(lines))
    for n in range(30):
        alice.remember(f"The committee discussed agenda item {n} about the harbour budget")
    assert alice.recall("Which dogs does she have?", 1)[0].kind == "note"


def test_what_is_noted_is_about_the_user_as_much_as_what_the_user_says(alice: mnemic.Scope) -> None:
    alice.session("monday").add("user", "I parked the car near the gate.")
    alice.session("monday").add("assistant", "Did you lock the car?")
    alice.remember("car parked in the basement")
    by_kind = {hit.text: hit.why for hit in alice.recall("Where is my car parked?")}
    assert by_kind["car parked in the basement"]["speaker"] == by_kind["I parked the car near the gate."]["speaker"]
    assert "speaker" not in by_kind["Did you lock the car?"]


def test_a_stretch_of_a_long_session_counts_as_one(alice: mnemic.Scope) -> None:
    chat = alice.session("meeting")
    for topic in ("budget of the harbour", "new office printer", "summer party"):
        chat.add_many([mnemic.Message("user", f"About the {topic}, point {n}.") for n in range(STRETCH)])
    hits = alice.recall("Who comes to the summer party?", 5)
    assert all("session" in hit.why for hit in hits)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("We bought a sofa.", "What did they buy?"),
        ("He taught Latin at the school.", "Who teaches here?"),
        ("The children are ill.", "Which child?"),
        ("She has flown to Oslo.", "Where does she fly?"),
    ],
)
def test_irregular_forms_are_one_word(said: str, asked: str) -> None:
    with mnemic.open("memory://", embedder="none") as memory:
        alice = memory.scope("alice")
        alice.remember_many([said, "The bus was late.", "Tea is ready."])
        assert [hit.text for hit in alice.recall(asked)] == [said]


def test_whom_a_scene_of_many_is_about_counts_less_than_what_it_is_about(alice: mnemic.Scope) -> None:
    names = ["Ann", "Ben", "Cid", "Dot", "Eve"]
    for scene, topic in enumerate(["the stolen bicycle", "the burnt cake", "the lost ring", "the broken lamp"]):
        chat = alice.session(f"scene-{scene}")
        for n in range(15):
            chat.add("user", f"{names[n % 5]} here, number {n}, and no other news.", name=names[n % 5])
        chat.add("user", f"It was the postman who took {topic}!", name=names[scene])
    best = alice.recall("What did Eve hear about the lost ring?", 1)[0]
    assert best.text == "It was the postman who took the lost ring!"
