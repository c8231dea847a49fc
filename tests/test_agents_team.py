"""Agents that call one another by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import mnemic
from agent_script import Script, call
from mnemic import AgentCall
from mnemic.agents import Agent, Runtime, open_learner


def test_agents_call_one_another_and_share_a_memory(alice: mnemic.Scope) -> None:
    writer = Script("A poem.", "Another poem.")
    lead = Script(call("call_agent", name="Writer", request="A poem, please."), "Here: A poem.")
    team = Runtime(
        [Agent("Lead", "You lead.", model=lead), Agent("Writer", "You write.\nWell.", model=writer)], memory=alice
    )
    with team:
        assert team.call_sync("Lead", "I want a poem.") == "Here: A poem."
        assert team.call_sync("Writer", "One more.") == "Another poem."
    told = lead.told[0].instructions or ""
    assert "Agents that you can call:\n- Writer: You write." in told
    assert "Lead" not in told

    stored = alice.session("main").messages()
    assert [(m.role, m.name) for m in stored] == [
        ("user", None),
        ("assistant", "Lead"),
        ("user", "Lead"),
        ("assistant", "Writer"),
        ("tool", "call_agent"),
        ("assistant", "Lead"),
        ("user", None),
        ("assistant", "Writer"),
    ]
    assert stored[0].agent_calls == [AgentCall("Lead", "I want a poem.")]
    assert stored[1].agent_calls == stored[2].agent_calls == [AgentCall("Writer", "A poem, please.")]
    assert stored[4].content == "A poem."
    # The writer sees the lead's words as the lead's, and the call under way with something for its answer.
    assert "Lead: A poem, please." not in str(writer.seen[0]), "it is what it is asked, not what was before"
    assert "still under way" in str(writer.seen[0])
    assert "[Lead] Here: A poem." in str(writer.seen[1])


def test_private_memories_are_apart(alice: mnemic.Scope) -> None:
    lead = Script(call("call_agent", name="Writer", request="A poem."), "Done.", "Yes.")
    writer = Script(call("write_note", key="style", value="short"), "Poem.")
    with Runtime(memory=alice, private=True) as team:
        team.agent("Lead", model=lead)
        team.agent("Writer", model=writer)
        team.call_sync("Lead", "Go.")
        team.call_sync("Lead", "Again.", session="tuesday")
    assert [m.role for m in alice.scope("Writer").session("main").messages()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert alice.scope("Writer").notes.read("style") == "short"
    assert alice.scope("Lead").notes.list() == []
    assert len(alice.scope("Lead").session("tuesday").messages()) == 2


def test_a_runtime_gives_its_model_and_agents_may_bring_a_memory(alice: mnemic.Scope, file_url: str) -> None:
    with Runtime(model=lambda messages: "shared", memory=alice) as team:
        own = team.add(Agent("Own", model=lambda messages: "own", memory=alice.scope("elsewhere")))
        team.agent("Plain")
        assert team.call_sync("Plain", "hi") == "shared"
        assert team.call_sync("Own", "hi") == "own"
        assert "Own" in team
        assert team["Own"] is own
    assert len(alice.scope("elsewhere").session("main").messages()) == 2


def test_what_is_wrong_is_said(alice: mnemic.Scope) -> None:
    lead = Script(call("call_agent", name="Nobody", request="?"), "Fine.")
    with Runtime(memory=alice) as team:
        team.agent("Lead", model=lead)
        team.agent("Writer", model=lead)
        with pytest.raises(mnemic.NotFoundError, match="no agent 'Poet'; there are Lead, Writer"):
            team.call_sync("Poet", "hi")
        with pytest.raises(mnemic.InvalidValueError, match="already"):
            team.agent("Lead")
        assert team.call_sync("Lead", "Go.") == "Fine."
    assert "no agent 'Nobody' to call. There are: Writer" in str(lead.seen[-1])
    used = Agent("Used", model=lambda messages: "x", memory=alice)
    used.run_sync("hi")
    with pytest.raises(mnemic.InvalidValueError, match="has run already"):
        team.add(used)
    used.close_sync()


def test_agents_may_be_kept_from_calling_others(alice: mnemic.Scope) -> None:
    script = Script("x")
    with Runtime(memory=alice) as team:
        team.add(Agent("Lead", model=script), calls=())
        team.agent("Writer", model=script)
        team.call_sync("Lead", "hi")
    assert "call_agent" not in [tool.name for tool in script.told[0].function_tools]


def test_agents_that_call_one_another_for_ever_come_to_an_end(alice: mnemic.Scope) -> None:
    def passes_on_to(name: str) -> Script:
        def pass_on(messages: Any) -> Any:
            answered = messages[-1].parts[-1].part_kind == "tool-return"
            asks = call("call_agent", f"c{len(messages)}", name=name, request="Go on.")
            return "Enough." if answered else asks

        return Script(*[pass_on] * 100)

    with Runtime(memory=alice, private=True, max_depth=4) as team:
        team.agent("Ping", model=passes_on_to("Pong"))
        team.agent("Pong", model=passes_on_to("Ping"))
        assert team.call_sync("Ping", "Go.") == "Enough."
    assert "no deeper than 4" in str([m.content for n in ("Ping", "Pong") for m in _log(alice, n)])


def _log(alice: mnemic.Scope, name: str) -> list[mnemic.Message]:
    return alice.scope(name).session("main").messages()


def test_a_team_streams_and_runs_at_once(alice: mnemic.Scope) -> None:
    async def main() -> tuple[str, list[Any]]:
        async with Runtime(model=lambda messages: "a b c", memory=alice) as team:
            team.agent("One")
            team.agent("Two")
            text = "".join([piece async for piece in team.stream("One", "hi")])
            return text, await asyncio.gather(*(team.call(name, "hi", session=name) for name in ("One", "Two")))

    text, answers = asyncio.run(main())
    assert text == "a b c"
    assert answers == ["a b c", "a b c"]


def test_a_team_learns_all_before_its_memory_is_closed(file_url: str) -> None:
    with Runtime(memory=file_url, model=lambda messages: "Noted.") as team:
        for name in ("One", "Two", "Three"):
            team.agent(name, learn=["title"])
            team.call_sync(name, f"I'm {name} and off to Lisbon in May.", session=name)
        learners = [agent.learner for agent in team.agents.values()]
    assert all(learner is not None and not learner.waiting and not learner.errors for learner in learners)
    with mnemic.open(file_url) as memory, open_learner(memory.scope("team")) as learner:
        assert learner.title("Three") == "I'm Three and off to Lisbon in May"
