"""What crowds recall, and must not: system prompts, tools' traffic, copies, and turns that say nothing."""

from __future__ import annotations

from typing import Any

import pytest

import mnemic
from mnemic import Message, ToolCall

PROMPT = (
    "You are a travel agent. You book flights, hotels and trains for the user. When the user wants to book "
    "a flight, ask for the date, the destination and what the user did book before."
)
FLIGHT = "I'd like to fly to Lisbon on Tuesday"
ASKED = "what flights did the user want to book?"


@pytest.fixture
def crowded(alice: mnemic.Scope) -> mnemic.Scope:
    """A scope with thirty sessions of one system prompt, in one of which a flight is asked for."""
    for n in range(30):
        session = alice.session(f"s{n}")
        session.set_system(PROMPT)
        session.add("user", f"hello number {n}")
        if n == 17:
            session.add("assistant", "Hello! What can I do for you?")
            session.add("user", FLIGHT)
    return alice


def texts(hits: list[mnemic.Hit]) -> list[str]:
    return [hit.record.text or "" for hit in hits]


def test_what_was_said_is_found_among_thirty_system_prompts(crowded: mnemic.Scope) -> None:
    found = texts(crowded.recall(ASKED))
    assert found[0] == FLIGHT
    assert PROMPT not in found
    assert not [text for text in found if text.startswith("hello number") and text != "hello number 17"]


def test_a_parameter_brings_system_messages_back_as_one_hit(crowded: mnemic.Scope) -> None:
    assert texts(crowded.recall(ASKED, k=40, traffic=True)).count(PROMPT) == 1
    assert texts(crowded.recall(ASKED, k=40, roles="system")) == [PROMPT]
    assert texts(crowded.recall(ASKED, k=40, roles="system", diverse=False)) == [PROMPT] * 30
    assert PROMPT not in texts(crowded.recall(ASKED, k=40, roles=("user", "assistant")))


def test_a_system_message_changes_no_score_of_what_was_said(memory: mnemic.Memory) -> None:
    scores = []
    for name, prompt in (("with", PROMPT), ("without", None)):
        for n in range(5):
            session = memory.scope(name).session(f"s{n}")
            if prompt is not None:
                session.set_system(prompt)
            session.add("user", "good morning, it rains")
            session.add("user", FLIGHT if n == 2 else f"the {n}th train to Porto was late")
        # Recency is left out, since it goes by the clock.
        hits = memory.scope(name).recall(ASKED, k=20, signals=("lexical", "dense", "session", "form"))
        scores.append({hit.record.text: hit.score for hit in hits})
    assert FLIGHT in scores[0]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def calling(n: int) -> list[Message]:
    """Return what one question about a flight leaves in a session: a call of a tool, and a long answer."""
    call = ToolCall(f"c{n}", "recall", '{"query": "flights the user wants to book"}')
    return [
        Message("assistant", None, tool_calls=[call]),
        Message("tool", f"flights the user did want to book: none, {n}", name="recall", tool_call_id=f"c{n}"),
    ]


def test_the_traffic_of_tools_is_no_hit_and_lends_nothing(alice: mnemic.Scope) -> None:
    session = alice.session("s")
    session.add("user", FLIGHT)
    for n in range(5):
        session.add_many([Message("user", f"nothing new, {n} o'clock"), *calling(n)])
        session.add("assistant", "all right then, see you")
    found = alice.recall(ASKED, k=50, diverse=False)
    assert found[0].record.text == FLIGHT
    assert {hit.record.data["role"] for hit in found} <= {"user", "assistant"}
    assert not [text for text in texts(found) if "recall(" in text]
    everything = alice.recall(ASKED, k=50, diverse=False, traffic=True)
    assert sum("recall(" in text for text in texts(everything)) == 5
    assert sum("did want" in text for text in texts(everything)) == 5
    assert all("did want" in text for text in texts(alice.recall(ASKED, k=50, roles="tool")))
    assert [r.text for r in alice.recall("none, 3", k=1, roles="tool", neighbors=1)[0].before] == [
        "nothing new, 3 o'clock"
    ]


def test_a_call_that_says_something_itself_is_a_hit(alice: mnemic.Scope) -> None:
    said = Message("assistant", "I look for flights to Lisbon", tool_calls=[ToolCall("c", "recall", "{}")])
    alice.session("s").add_many([said])
    assert texts(alice.recall("flights to Lisbon")) == ["I look for flights to Lisbon"]


@pytest.mark.parametrize("nothing", ["ok", "Sure.", "yes", "good morning", "I do not know.", "Hello!"])
def test_a_turn_that_says_nothing_is_no_hit_for_its_neighbours(alice: mnemic.Scope, nothing: str) -> None:
    session = alice.session("s")
    for turn in (FLIGHT, nothing, "and I booked the flight back for Friday"):
        session.add("user", turn)
    found = texts(alice.recall(ASKED, k=9))
    assert nothing not in found
    assert len(found) == 2


def test_a_short_answer_to_what_was_asked_is_a_hit(alice: mnemic.Scope) -> None:
    session = alice.session("s")
    session.add("assistant", "When is your appointment at the dentist?")
    session.add("user", "Tuesday!")
    assert "Tuesday!" in texts(alice.recall("when is the dentist's appointment?"))


def test_what_is_excluded_is_no_hit(alice: mnemic.Scope) -> None:
    record = alice.remember("tea is ready")
    message = alice.session("s").add("user", "the tea is cold by now")
    (hit,) = alice.recall("tea", exclude=[record])
    assert hit.record.key == message.id
    assert texts(alice.recall("tea", exclude=[hit])) == ["tea is ready"]
    assert alice.recall("tea", exclude=[record, hit]) == []


@pytest.mark.parametrize("wrong", [[7], [None]])
def test_what_cannot_be_excluded_is_refused(alice: mnemic.Scope, wrong: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="named by a hit"):
        alice.recall("tea", exclude=wrong)


def long_answer(topic: str) -> str:
    steps = [f"{n}. First look at how {topic} works, then change {topic} step by step." for n in range(1, 25)]
    return f"Certainly! Here is how to handle {topic}:\n" + "\n".join(steps)


def test_what_the_user_said_comes_before_long_answers_about_it(alice: mnemic.Scope) -> None:
    chat = alice.session("work")
    topics = ("the deployment deadline", "the login page", "the rate limit", "the database schema", "the unit tests")
    for topic in topics:
        chat.add("user", f"Can you help me with {topic}?")
        chat.add("assistant", long_answer(topic))
    chat.add("user", "We moved the deployment deadline.")
    chat.add("assistant", long_answer("the deployment deadline, the rate limit and the database schema"))
    found = texts(alice.recall("What happened with the deployment deadline?"))
    assert found[0] == "We moved the deployment deadline."


@pytest.mark.parametrize("request_", ["Can you tell me", "Could you list", "What would you suggest, given"])
def test_a_request_to_the_assistant_is_a_question_about_the_user(alice: mnemic.Scope, request_: str) -> None:
    chat = alice.session("work")
    chat.add("user", "I have three cats at home.")
    chat.add("assistant", "I think three cats at home are lovely.")
    (hit, *_) = alice.recall(f"{request_} how many cats I have at home?")
    assert hit.record.data["role"] == "user"
    assert hit.why["speaker"] > 0
