"""What an agent writes says who wrote it and why, and a person can list it and take it back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai.messages import ToolReturnPart

import mnemic
from agent_script import Script, call
from mnemic.agents import Act, Agent, AsyncJournal, Provenance
from mnemic.event_loop import Portal


class Told:
    """An agent that does as it is told, and what it did."""

    def __init__(self, space: mnemic.Scope) -> None:
        self.space = space
        self.script = Script()
        self.agent = Agent("Bot", model=self.script, memory=space, session="monday")
        self.n = 0

    def do(self, tool: str, **arguments: Any) -> Any:
        """Let the agent call a tool, and return what the tool answered."""
        self.n += 1
        self.script.steps = [call(tool, f"call-{self.n}", **arguments), "Done."]
        self.agent.run_sync(f"Do {self.n}.")
        answers = [p for m in self.script.seen[-1] for p in m.parts if isinstance(p, ToolReturnPart)]
        return answers[-1].content

    def history(self, *arguments: Any, **options: Any) -> list[Act]:
        return self.agent.drive(self.journal().history(*arguments, **options))

    def journal(self) -> AsyncJournal:
        return AsyncJournal(self.agent.drive(self.agent.memory.open()))

    def run(self, work: Any) -> Any:
        return self.agent.drive(work)


@pytest.fixture
def told(alice: mnemic.Scope) -> Iterator[Told]:
    made = Told(alice)
    yield made
    made.agent.close_sync()


# ------------------------------------------------------------ the tools


def test_the_catalogue(told: Told, alice: mnemic.Scope) -> None:
    assert told.do("list_notes") == []
    assert told.do("write_note", key="plan", value=["book"], description="What to do") == "Noted under 'plan'."
    assert told.do("list_notes") == [{"key": "plan", "description": "What to do", "size": 8}]
    assert told.do("read_note", key="plan") == ["book"]
    assert "has no note 'nothing'" in told.do("read_note", key="nothing")
    assert told.do("delete_note", key="plan") == "Deleted 'plan'."
    assert told.do("delete_note", key="plan") == "There is no note 'plan'."
    assert alice.notes.list() == []


def test_memories_and_facts(told: Told, alice: mnemic.Scope) -> None:
    key = told.do("remember", text="Alice likes trains", importance=3).rpartition(" ")[2].rstrip(".")
    found = told.do("recall", query="what does Alice like?", k=1)
    assert found[0]["text"] == "Alice likes trains"
    assert found[0]["key"] == key
    assert found[0]["written_by"] == "Bot"
    assert alice.memories.get(key).importance == 3
    assert told.do("remember", text="Alice likes trains.") == f"Remembered, under the key {key}."
    assert told.do("forget", key=key) == "Forgotten."
    assert told.do("forget", key=key) == f"Nothing is remembered under {key!r}."
    told.do("assert_fact", subject="Alice", predicate="lives_in", object="Oslo", single=True)
    told.do("assert_fact", subject="Alice", predicate="lives_in", object="Bergen", single=True)
    (fact,) = told.do("ask_facts", subject="Alice")
    assert (fact["object"], fact["confidence"]) == ("Bergen", 1.0)
    assert "subject is empty" in told.do("assert_fact", subject="", predicate="is", object="x")


# ------------------------------------------------------------ provenance


def test_every_record_says_who_wrote_it_and_why(told: Told, alice: mnemic.Scope) -> None:
    told.do("write_note", key="plan", value="x")
    told.do("remember", text="Alice likes trains")
    told.do("assert_fact", subject="Alice", predicate="likes", object="trains")
    log = alice.session("monday").messages()
    (link,) = alice.facts.ask("Alice")
    records = [alice.notes.get("plan").metadata, alice.memories.list()[0].metadata, link.metadata]
    for n, meta in enumerate(records):
        by = meta["written_by"]
        assert by["agent"] == "Bot"
        assert by["session"] == "monday"
        assert by["model"] == "script"
        assert by["tool_call"] == f"call-{n + 1}"
        assert by["tool"] in ("write_note", "remember", "assert_fact")
        prompt = next(m for m in log if m.id == by["prompt"])
        asking = next(m for m in log if m.id == by["message"])
        assert prompt.content == f"Do {n + 1}."
        assert asking.tool_calls[0].id == by["tool_call"]
        assert by["at"]
    sources = {alice.memories.list()[0].source, link.source}
    assert sources == {m.id for m in log if m.content in ("Do 2.", "Do 3.")}


def test_the_journal_is_not_recalled(told: Told, alice: mnemic.Scope) -> None:
    told.do("write_note", key="plan", value="zebra crossing")
    told.do("write_note", key="plan", value="something else")
    assert all(hit.record.kind != "journal" for hit in alice.recall("zebra crossing", 20))


# ------------------------------------------------------------ history and undo


def test_a_note_has_its_former_value_again(told: Told, alice: mnemic.Scope) -> None:
    alice.notes.write("plan", "by hand", description="mine", metadata={"topic": "travel"})
    told.do("write_note", key="plan", value="by agent", description="its")
    (act,) = told.history("plan")
    assert (act.what, act.by.agent, act.by.tool_call) == ("write_note", "Bot", "call-1")
    undo = told.run(told.journal().undo(act, by="Alice"))
    entry = alice.notes.get("plan")
    assert (entry.value, entry.description, entry.metadata) == ("by hand", "mine", {"topic": "travel"})
    assert undo.undoes == act.id
    assert [(a.what, a.by.agent, a.undone) for a in told.history("plan")] == [
        ("write_note", "Bot", True),
        ("undo", "Alice", False),
    ]
    told.run(told.journal().undo(undo))
    assert alice.notes.read("plan") == "by agent", "an undo can be undone"


def test_an_agent_tells_and_takes_back_what_it_did(told: Told, alice: mnemic.Scope) -> None:
    agent = told.agent
    with pytest.raises(mnemic.NotFoundError, match="nothing that could be undone"):
        agent.drive(agent.undo())
    told.do("write_note", key="a", value="1")
    told.do("write_note", key="b", value="2")
    assert len(agent.drive(agent.history())) == 2
    (act,) = agent.drive(agent.history("a"))
    agent.drive(agent.undo())
    assert alice.notes.read_all() == {"a": "1"}
    agent.drive(agent.undo(act))
    assert alice.notes.read_all() == {}


def test_deleting_is_undone_and_what_was_new_goes(told: Told, alice: mnemic.Scope) -> None:
    alice.notes.write("plan", "x")
    told.do("delete_note", key="plan")
    told.do("write_note", key="new", value="y")
    told.do("remember", text="Alice likes trains")
    told.run(told.journal().undo_last(3))
    assert alice.notes.read_all() == {"plan": "x"}
    assert alice.memories.list() == []
    assert alice.recall("trains", kinds="memory") == []


def test_what_was_forgotten_is_found_again(told: Told, alice: mnemic.Scope) -> None:
    alice.remember("Alice likes trains", id="k", importance=4, metadata={"a": 1}, pinned=True)
    before = alice.memories.get("k")
    told.do("forget", key="k")
    told.run(told.journal().undo_last())
    after = alice.memories.get("k")
    assert (after.text, after.importance, after.metadata, after.pinned) == (before.text, 4, {"a": 1}, True)
    assert after.created == before.created
    assert alice.recall("what does Alice like?", kinds="memory")[0].record.key == "k"


def test_a_fact_that_was_stated_ends_and_the_one_before_goes_on(told: Told, alice: mnemic.Scope) -> None:
    facts = alice.facts
    facts.add("Alice", "lives_in", "Oslo", single=True)
    told.do("assert_fact", subject="Alice", predicate="lives_in", object="Bergen", single=True)
    (act,) = told.history("Bergen")
    told.run(told.journal().undo(act))
    assert [link.object for link in facts.ask("Alice", "lives_in")] == ["Oslo"]
    history = facts.ask("Alice", "lives_in", history=True)
    assert [(link.object, link.valid_to is None) for link in history] == [("Oslo", True), ("Bergen", False)]


def test_what_was_changed_since_is_not_undone_unasked(told: Told, alice: mnemic.Scope) -> None:
    told.do("write_note", key="plan", value="one")
    alice.notes.write("plan", "two")
    (act,) = told.history("plan")
    with pytest.raises(mnemic.ConflictError, match="changed again since"):
        told.run(told.journal().undo(act))
    assert alice.notes.read("plan") == "two"
    told.run(told.journal().undo(act, force=True))
    assert alice.notes.list() == []
    with pytest.raises(mnemic.ConflictError, match="undone already"):
        told.run(told.journal().undo(act))
    with pytest.raises(mnemic.NotFoundError, match="no act 'nothing'"):
        told.run(told.journal().undo("nothing"))


def test_history_is_by_key_agent_session_and_kind(told: Told) -> None:
    told.do("write_note", key="a", value="1")
    told.do("write_note", key="b", value="2")
    told.do("assert_fact", subject="Alice", predicate="likes", object="tea")
    assert [act.changes[0].key for act in told.history(kind="note")] == ["a", "b"]
    assert len(told.history()) == len(told.history(agent="Bot")) == len(told.history(session="monday")) == 3
    assert told.history(agent="Else") == told.history("c") == told.history(session="tuesday") == []
    assert [act.what for act in told.history(limit=2)] == ["write_note", "assert_fact"]
    assert told.history(limit=0) == []
    assert len(told.history("Alice")) == 1


def test_the_journal_is_bounded(alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.agents.journal.MAX_ACTS", 20)
    portal = Portal()
    book = AsyncJournal(alice._async)
    for n in range(60):
        portal.run(book.writer("write_note", Provenance(agent="Bot")).notes.write("plan", n))
    acts = portal.run(book.history())
    assert 15 <= len(acts) <= 20
    portal.run(book.undo(acts[-1]))
    assert alice.notes.read("plan") == 58
    portal.close()


def test_a_value_that_is_too_large_to_keep_is_said_to_be_lost(
    alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemic.agents.journal.MAX_BEFORE", 100)
    portal = Portal()
    book = AsyncJournal(alice._async)
    alice.notes.write("plan", "x" * 1000)
    portal.run(book.writer("write_note", Provenance()).notes.write("plan", "short"))
    (act,) = portal.run(book.history("plan"))
    with pytest.raises(mnemic.InvalidValueError, match="too large"):
        portal.run(book.undo(act))
    portal.close()


def test_writers_at_once_leave_a_journal_that_is_true(alice: mnemic.Scope) -> None:
    async def main() -> list[Act]:
        book = AsyncJournal(alice._async)

        async def write(n: int) -> None:
            await book.writer("write_note", Provenance(agent=f"a{n}")).notes.write("plan", n)

        await asyncio.gather(*(write(n) for n in range(10)))
        return await book.history("plan")

    acts = asyncio.run(main())
    assert len(acts) == 10
    values = [act.changes[0].before and act.changes[0].before.get("data", 0) for act in acts]
    assert values[0] is None
    order = [*values[1:], alice.notes.read("plan")]
    assert sorted(order) == list(range(10)), "each found what the one before it wrote"
