"""What is learned from conversations: summaries, facts, insights and titles, with a model and without."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mnemic
from agent_script import Script
from mnemic import Message, ToolCall
from mnemic.agents import Agent, AsyncLearner, extractive
from mnemic.event_loop import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    """An event loop for what is async."""
    made = Portal()
    yield made
    made.close()


def talk(chat: mnemic.Session, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        chat.add("user" if n % 2 == 0 else "assistant", f"Turn {n} about the trip to Lisbon")


def answering(*answers: Any) -> Callable[[list[Message]], str]:
    """Return a model that answers with one after the other, and keeps what it was asked."""
    rest = list(answers)

    def model(messages: list[Message]) -> str:
        model.asked.append(messages)  # type: ignore[attr-defined]
        answer = rest.pop(0) if len(rest) > 1 else rest[0]
        return answer if isinstance(answer, str) else json.dumps(answer)

    model.asked = []  # type: ignore[attr-defined]
    return model


# ------------------------------------------------------------ summaries


def test_a_summary_covers_a_range_and_rolls_on(alice: mnemic.Scope, chat: mnemic.Session, portal: Portal) -> None:
    model = answering("They plan a trip.", "They plan a trip, by train.")
    learner = AsyncLearner(alice, model)
    talk(chat, 10)
    assert portal.run(learner.summarize("monday", keep=20)) is None
    talk(chat, 20, 10)
    first = portal.run(learner.summarize("monday", keep=20))
    assert first is not None
    assert (first.text, first.first_seq, first.last_seq, first.messages) == ("They plan a trip.", 1, 10, 10)
    assert len(chat.messages()) == 30, "the log is kept"
    assert chat.summary() == "They plan a trip."
    again = portal.run(learner.summarize("monday", keep=20))
    assert again == first, "there was nothing new, so nobody was asked"
    talk(chat, 5, 30)
    second = portal.run(learner.summarize("monday", keep=20))
    assert second is not None
    assert (second.text, second.last_seq, second.messages) == ("They plan a trip, by train.", 15, 15)
    assert model.asked[1][1].text == "Summary so far: They plan a trip."  # type: ignore[attr-defined]
    assert "Summary of the earlier conversation: They plan a trip, by train." in (chat.window(200)[0].text or "")


def test_messages_that_come_while_the_model_thinks_are_not_lost(
    alice: mnemic.Scope, chat: mnemic.Session, portal: Portal
) -> None:
    talk(chat, 30)

    def model(messages: list[Message]) -> str:
        talk(chat, 3, 100)
        return f"Summary of {len(messages) - 1}."

    summary = portal.run(AsyncLearner(alice, model).summarize(chat, keep=10))
    assert summary is not None
    assert summary.last_seq == 20
    assert [m.text for m in chat.messages()][-3:] == [f"Turn {n} about the trip to Lisbon" for n in (100, 101, 102)]


def test_two_who_summarise_at_once_carry_on_each_others(
    alice: mnemic.Scope, chat: mnemic.Session, portal: Portal
) -> None:
    talk(chat, 60)

    async def slow(messages: list[Message]) -> str:
        await asyncio.sleep(0.01)
        return f"{sum(m.role != 'system' for m in messages)} more"

    async def both() -> list[Any]:
        learners = [AsyncLearner(alice, slow) for _ in range(2)]
        return await asyncio.gather(*(learner.summarize(chat, keep=10) for learner in learners))

    for summary in portal.run(both()):
        assert (summary.first_seq, summary.last_seq, summary.messages) == (1, 50, 50)


def test_calls_and_answers_are_summarised_together(alice: mnemic.Scope, chat: mnemic.Session, portal: Portal) -> None:
    chat.add("user", "Look.")
    chat.add(Message("assistant", tool_calls=[ToolCall("c1", "look")]))
    chat.add(Message("tool", "here", tool_call_id="c1"))
    chat.add("assistant", "Here.")
    summary = portal.run(AsyncLearner(alice).summarize(chat, keep=2))
    assert summary is not None
    assert summary.last_seq == 1, "the call stays, since its answer does"


def test_without_a_model_a_summary_is_made_of_the_conversations_own_sentences(
    alice: mnemic.Scope, chat: mnemic.Session, portal: Portal
) -> None:
    chat.add("user", "Hi! I'm off to Lisbon in May. My sister Ana is allergic to shellfish.", name="Alice")
    chat.add("assistant", "Okay.")
    for n in range(30):
        chat.add("user", f"And what about item {n} of the list?")
        chat.add("assistant", "Sure.")
    learner = AsyncLearner(alice)
    summary = portal.run(learner.summarize(chat, keep=10))
    assert summary is not None
    assert "Alice: My sister Ana is allergic to shellfish." in summary.text
    assert len(summary.text.splitlines()) <= 12
    talk(chat, 40)
    later = portal.run(learner.summarize(chat, keep=10))
    assert later is not None
    assert "allergic to shellfish" in later.text, "what was told before is not told away"
    assert portal.run(learner.title(chat)) == "I'm off to Lisbon in May"


def test_what_overflows_can_be_summarised_without_a_model(alice: mnemic.Scope) -> None:
    chat = alice.session("short", max_messages=10, overflow=mnemic.Summarize(extractive))
    chat.add("user", "My sister Ana is allergic to shellfish.")
    talk(chat, 30)
    assert "allergic to shellfish" in (chat.summary() or "")
    assert len(chat.archived()) + len(chat.messages()) == 31


# ------------------------------------------------------------ facts

FOUND = {
    "facts": [
        {"text": "Ana is allergic to shellfish", "message": 1, "confidence": 0.9},
        {"text": "Nobody said this", "message": 99},
    ],
    "triples": [
        {"subject": "Alice", "predicate": "lives_in", "object": "Oslo", "single": True, "message": 2, "confidence": 2},
        {"subject": "", "predicate": "is", "object": "nothing", "message": 1},
    ],
}


def test_facts_are_kept_with_source_and_confidence(alice: mnemic.Scope, chat: mnemic.Session, portal: Portal) -> None:
    first = chat.add("user", "My sister Ana is allergic to shellfish.")
    chat.add(Message("tool", "noise", tool_call_id="c1"))
    second = chat.add("user", "I live in Oslo now.")
    model = answering("```json\n" + json.dumps(FOUND) + "\n```", {"facts": [], "triples": []})
    learner = AsyncLearner(alice, model)
    found = portal.run(learner.extract("monday"))
    assert found.skipped == 2
    (fact,) = found.facts
    assert fact.text == "Ana is allergic to shellfish"
    assert fact.source == first.id
    assert fact.metadata["confidence"] == 0.9
    assert alice.memories.get(fact.id).metadata["written_by"]["message"] == first.id
    (link,) = alice.facts.ask("Alice")
    assert (link.object, link.source, link.confidence) == ("Oslo", second.id, 1.0)
    assert link.valid_from == second.timestamp
    assert link.metadata["written_by"]["agent"] == "learner"
    asked = model.asked[0][1].text  # type: ignore[attr-defined]
    assert "noise" not in asked
    assert portal.run(learner.extract("monday")).facts == [], "nothing is learned twice"
    assert len(model.asked) == 1  # type: ignore[attr-defined]
    chat.add("user", "Thanks!")
    portal.run(learner.extract("monday"))
    assert "Thanks!" in model.asked[1][1].text  # type: ignore[attr-defined]
    assert "Oslo" not in model.asked[1][1].text  # type: ignore[attr-defined]


def test_an_answer_that_cannot_be_read_is_asked_for_again_and_then_said(
    alice: mnemic.Scope, chat: mnemic.Session, portal: Portal
) -> None:
    chat.add("user", "I live in Oslo.")
    model = answering("Sure! Here you are.", FOUND)
    assert len(portal.run(AsyncLearner(alice, model).extract(chat)).facts) == 1
    chat.add("user", "And in Bergen.")
    with pytest.raises(mnemic.InvalidValueError, match="did not answer with the JSON"):
        portal.run(AsyncLearner(alice, answering("No.")).extract(chat))
    assert portal.run(AsyncLearner(alice, answering(FOUND)).extract(chat)).skipped > 0, "nothing was passed over"


def test_what_needs_a_model_says_so(alice: mnemic.Scope, portal: Portal) -> None:
    learner = AsyncLearner(alice)
    with pytest.raises(mnemic.InvalidValueError, match="extract needs a model"):
        portal.run(learner.extract("monday"))
    with pytest.raises(mnemic.InvalidValueError, match="reflect needs a model"):
        portal.run(learner.reflect())
    with pytest.raises(mnemic.InvalidValueError, match="there is no lesson 'fly'"):
        portal.run(learner.later("monday", "fly"))  # type: ignore[arg-type]


# ------------------------------------------------------------ insights and titles


def test_insights_are_remembered_with_their_sources(alice: mnemic.Scope, portal: Portal) -> None:
    one = alice.session("monday").add("user", "I could not sleep again.")
    two = alice.remember("Alice drinks coffee at ten in the evening")
    alice.remember("long ago", created=datetime(2020, 1, 1, tzinfo=UTC))
    insight = {"text": "Alice sleeps badly because of late coffee", "sources": [1, 2, 77], "importance": 5}
    model = answering({"insights": [insight, {"text": "baseless", "sources": [99]}]})
    (kept,) = portal.run(AsyncLearner(alice, model).reflect(timedelta(days=1)))
    assert kept.text == insight["text"]
    assert kept.importance == 5
    assert {source[2] for source in kept.metadata["sources"]} == {one.id, two.id}
    assert "long ago" not in model.asked[0][1].text  # type: ignore[attr-defined]
    assert alice.recall("why does Alice sleep badly?")[0].id == kept.id
    again = answering({"insights": []})
    assert portal.run(AsyncLearner(alice, again).reflect((datetime(2019, 1, 1, tzinfo=UTC), datetime.now(UTC)))) == []
    assert "late coffee" not in again.asked[0][1].text, "insights are not made of insights"  # type: ignore[attr-defined]
    past = (datetime(2018, 1, 1, tzinfo=UTC), datetime(2018, 2, 1, tzinfo=UTC))
    assert portal.run(AsyncLearner(alice, again).reflect(past)) == []
    with pytest.raises(mnemic.InvalidValueError, match="ends after it begins"):
        portal.run(AsyncLearner(alice, again).reflect((past[1], past[0])))


def test_a_title_is_made_once(alice: mnemic.Scope, chat: mnemic.Session, portal: Portal) -> None:
    model = answering('"A trip to Lisbon"\n', "Something else")
    learner = AsyncLearner(alice, model)
    assert portal.run(learner.title("monday")) is None
    talk(chat, 2)
    assert portal.run(learner.title("monday")) == "A trip to Lisbon"
    assert portal.run(learner.title("monday")) == "A trip to Lisbon"
    assert portal.run(learner.title("monday", renew=True)) == "Something else"


def test_a_model_of_pydantic_ai_and_one_that_takes_a_prompt(
    alice: mnemic.Scope, chat: mnemic.Session, portal: Portal
) -> None:
    talk(chat, 2)
    assert portal.run(AsyncLearner(alice, Script("From a model")).title(chat)) == "From a model"

    def prompted(prompt: str) -> str:
        return f"{len(prompt.splitlines())} lines"

    assert portal.run(AsyncLearner(alice, prompted).title(chat, renew=True)).endswith("lines")  # type: ignore[union-attr]


# ------------------------------------------------------------ in the background


def test_an_agent_learns_in_the_background_and_before_it_closes(
    alice: mnemic.Scope, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def model(messages: list[Message]) -> str:
        tries.append(messages)
        if len(tries) == 1:
            raise RuntimeError("the model is down")
        return json.dumps(FOUND)

    agent = Agent("Bot", model=lambda messages: "Noted.", memory=alice, learn=["extract"], learn_with=model)
    with agent, caplog.at_level(logging.CRITICAL):
        agent.run_sync("My sister Ana is allergic to shellfish.")
        assert agent.learner is not None
        agent.drive(agent.learner.drain())
        assert [str(error) for error in agent.learner.errors] == ["the model is down"]
        assert alice.memories.list() == []
        agent.run_sync("I live in Oslo.")
    assert [record.text for record in alice.memories.list()] == ["Ana is allergic to shellfish"]
    assert len(alice.facts.ask("Alice")) == 1


def test_a_turn_does_not_wait_for_what_is_learned(alice: mnemic.Scope) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def slow(messages: list[Message]) -> str:
            await go.wait()
            return "A title"

        async with Agent("Bot", model=lambda messages: "x", memory=alice, learn=["title"], learn_with=slow) as agent:
            await asyncio.wait_for(agent.run("My sister Ana is allergic to shellfish."), 60)
            await asyncio.wait_for(agent.run("And to nuts."), 60)
            go.set()
        assert agent.learner is not None
        assert await agent.learner.title("main") == "A title"

    asyncio.run(main())


def test_what_a_loop_that_ends_leaves_undone_is_done_later(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    talk(chat, 40)
    learner = AsyncLearner(alice)

    async def leave() -> None:
        await learner.later("monday")

    asyncio.run(leave())
    asyncio.run(learner.close())
    assert chat.summary() is not None
    assert learner.waiting == 0
