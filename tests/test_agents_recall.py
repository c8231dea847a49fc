"""What an agent's recall finds: never its own traffic, nor the turn that is being answered; and how much."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ToolReturnPart

import mnemic
from agent_script import Script, call
from mnemic.agents import Agent, Budget, Runtime
from mnemic.agents.tools import as_text, limited_result, text_page
from mnemic.tokens import encoding

FLIGHT = "I'd like to fly to Lisbon on Tuesday with my sister Ana"
QUESTION = "When do I want to fly to Lisbon, and with whom?"


def answers(script: Script, tool: str) -> list[Any]:
    """Return what a tool answered in the last run that a model saw, in order."""
    return [
        part.content
        for message in script.seen[-1]
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_name == tool
    ]


def test_ten_asks_of_one_question_do_not_feed_on_themselves(alice: mnemic.Scope) -> None:
    alice.session("monday").add("user", FLIGHT)
    for n in range(12):
        alice.session("monday").add("user", f"Thing {n} of that day was of no matter at all")
    script = Script()
    sizes, found = [], []
    with Agent("Bot", "Help.", model=script, memory=alice, budget=Budget(recall=0)) as bot:
        for n in range(10):
            script.steps = [call("recall", f"c{n}", query=QUESTION, k=5), "You fly to Lisbon with Ana."]
            bot.run_sync(QUESTION)
            found.append(answers(script, "recall")[-1])
            sizes.append(len(as_text(found[-1])))
    for hits in found:
        texts = [hit["text"] for hit in hits]
        assert FLIGHT in texts
        assert not [text for text in texts if "recall(" in text or '"kind"' in text]
        assert len(set(texts)) == len(texts)
    assert max(sizes) <= sizes[0] + 2 * len(as_text([{"text": QUESTION, "said_by": "assistant"}])) + 300
    assert sizes[9] <= max(sizes[2:9])


def test_the_turn_that_is_being_answered_is_no_hit(alice: mnemic.Scope) -> None:
    script = Script([call("recall", "c1", query="zebra crossing")], "I do not know.")
    with Agent("Bot", "Help.", model=script, memory=alice) as bot:
        bot.run_sync("Do you know of a zebra crossing?")
        assert answers(script, "recall") == [[]]
        script.steps = [[call("recall", "c2", query="zebra crossing")], "You asked before."]
        bot.run_sync("And now, a zebra crossing?")
        assert [hit["text"] for hit in answers(script, "recall")[-1]] == ["Do you know of a zebra crossing?"]


def test_what_a_caller_is_asked_is_no_memory_of_the_agent_it_asks(memory: mnemic.Memory) -> None:
    seen: list[str] = []

    def passing(messages: list[ModelMessage]) -> Any:
        return call("call_agent", "c1", name="Finder", request="find the zebra")

    def looked(messages: list[ModelMessage]) -> str:
        seen.append(as_text(answers(finder, "recall")[-1]))
        return "none"

    finder = Script(call("recall", "c2", query="zebra"), looked)
    agents = [Agent("Asker", "Ask.", model=Script(passing, "There is none.")), Agent("Finder", "Find.", model=finder)]
    with Runtime(agents, memory=memory.scope("team")) as team:
        team.call_sync("Asker", "Is there a zebra?")
    assert seen == ["[]"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("recall", {"query": "harbour"}), ("list_notes", {}), ("read_note", {"key": "long"}), ("ask_facts", {})],
)
def test_no_answer_of_a_tool_is_longer_than_the_budget_says(
    alice: mnemic.Scope, tool: str, arguments: dict[str, Any]
) -> None:
    for n in range(40):
        alice.remember(f"{n} ships of the harbour " + f'carried grain {n} and \n"salt" ' * 60)
        alice.notes.write(f"note {n}", "x", description=f"about {n} " + "ships " * 40)
        alice.facts.add(f"ship {n}", "carries", "grain and salt " * 20)
    alice.notes.write("long", {"cargo": ["grain and salt"] * 3000})
    script = Script(call(tool, "c1", **arguments), "Well.")
    with Agent("Bot", "Help.", model=script, memory=alice, budget=Budget(answer=300)) as bot:
        bot.run_sync("What is in the harbour?")
    (answer,) = answers(script, tool)
    assert 150 < encoding("o200k_base").count(as_text(answer)) <= 300


def test_a_long_note_is_read_to_its_end(alice: mnemic.Scope) -> None:
    text = " ".join(f"word{n}" for n in range(600))
    alice.notes.write("long", text)
    read, start = "", 0
    with Agent("Bot", "Help.", model=Script(), memory=alice, budget=Budget(answer=500)) as bot:
        for _ in range(20):
            script = bot.inner.model
            assert isinstance(script, Script)
            script.steps = [call("read_note", "c1", key="long", start=start), "Yes."]
            bot.run_sync("Go on.")
            shown, _, rest = answers(script, "read_note")[-1].partition("\n[cut: ")
            read += shown
            if not rest:
                break
            start = int(rest.rpartition("start=")[2].rstrip("]"))
    assert read == text


@pytest.mark.parametrize("answer", [[], "", "short", [{"a": 1}], {"a": 1}, None, 7])
def test_what_is_short_enough_stays_as_it_is(answer: Any) -> None:
    assert limited_result(answer, encoding("o200k_base"), 100) is answer


@pytest.mark.parametrize("most", [100, 150, 1000])
@pytest.mark.parametrize("text", ["word " * 9000, '"\n' * 9000, "語" * 9000, "x" * 9000])
def test_any_answer_can_be_cut(text: str, most: int) -> None:
    tokens = encoding("o200k_base")
    for answer in (text, {"text": text}, [text], [{"text": text, "n": 1}] * 30, [[text]]):
        assert 0 < tokens.count(as_text(limited_result(answer, tokens, most))) <= most
    assert tokens.count(text_page(text, 100, tokens, most)) <= most
