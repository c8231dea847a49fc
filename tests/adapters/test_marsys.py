"""MARSYS: its agents on our memory, its own memories as the oracle, and every field that its messages have."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import marsys.agents.memory as theirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marsys.agents import Agent
from marsys.agents.exceptions import AgentConfigurationError
from marsys.agents.memory import AgentCallMsg, ManagedMemoryConfig, Message, ToolCallMsg
from marsys.agents.registry import AgentRegistry
from marsys.models import ModelConfig
from marsys.models.response_models import HarmonizedResponse, ResponseMetadata, ToolCall

import mnemic
from mnemic.adapters.marsys import (
    ConversationMemory,
    ManagedConversationMemory,
    MemoryManager,
    to_marsys,
    to_message,
    use_memory,
)


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mnemic.Memory]:
    file = tmp_path_factory.mktemp("chat") / "chat.db"
    with mnemic.open("memory://" if request.param == "memory" else f"sqlite:///{file}?synchronous=normal") as memory:
        yield memory


# ---------------------------------------------------------------- messages

TEXT = st.text(max_size=20) | st.just("half a \ud83d")  # with NUL, as tools return it
NAME = st.text("abcXYZ_-é", min_size=1, max_size=8) | st.text(min_size=1, max_size=4) | st.just("long" * 200)
JSON = st.dictionaries(
    st.text(max_size=9), st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, st.lists), max_size=3
)
BLOCKS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(["system", "user", "assistant", "tool", "error", ""]),
    "content": st.none() | TEXT | JSON | BLOCKS,
    "message_id": st.builds(lambda: str(uuid4())),
    "name": st.none() | st.just("") | NAME,
    "tool_calls": st.none()
    | st.lists(st.builds(ToolCallMsg, id=NAME, call_id=NAME, type=NAME, name=NAME, arguments=TEXT), max_size=2),
    "agent_calls": st.none() | st.lists(st.builds(AgentCallMsg, agent_name=NAME, request=TEXT | JSON), max_size=2),
    "structured_data": st.none() | JSON,
    "images": st.none() | st.lists(st.just("/not/there.png") | st.just("https://example.com/a.png"), max_size=2),
    "tool_call_id": st.none() | st.just("") | NAME,
    "reasoning_details": st.none() | st.lists(JSON, max_size=2),
}
MESSAGE = st.builds(Message, **FIELDS)


def test_every_field_has_a_strategy() -> None:
    assert {field.name for field in fields(Message)} == set(FIELDS)


@settings(max_examples=150)
@given(MESSAGE)
def test_every_message_is_unchanged(message: Message) -> None:
    assert to_marsys(to_message(message)) == message


def test_messages_of_other_ways_become_messages_of_marsys() -> None:
    call = mnemic.Message(
        "assistant", None, tool_calls=[mnemic.ToolCall("1", "weather", "{}")], agent_calls=[mnemic.AgentCall("expert")]
    )
    made = to_marsys(call)
    assert made.tool_calls == [ToolCallMsg(id="1", call_id="1", type="function", name="weather", arguments="{}")]
    assert made.agent_calls == [AgentCallMsg(agent_name="expert", request="")]
    assert to_marsys(mnemic.Message("user", "Hi", id="m1")) == Message(role="user", content="Hi", message_id="m1")


# ---------------------------------------------------------------- its own memories as the oracle

PLACE = st.integers(-1, 6)
SAID = st.one_of(TEXT, JSON)
STEPS = st.lists(
    st.tuples(st.just("message"), MESSAGE)
    | st.tuples(st.just("add"), st.sampled_from(["user", "assistant", "tool"]), SAID)
    | st.tuples(st.just("update"), PLACE, SAID)
    | st.tuples(st.just("replace"), PLACE, SAID)
    | st.tuples(st.sampled_from(["delete", "remove"]), PLACE)
    | st.tuples(st.just("reset")),
    max_size=12,
)


def messages_of(memory: Any) -> list[Message]:
    return list(memory.memory if hasattr(memory, "memory") else memory.raw_messages)


def play(memory: Any, step: tuple[Any, ...]) -> Any:
    ids = [message.message_id for message in messages_of(memory)]
    match step:
        case ("message", message):
            return memory.add(message)
        case ("add", role, content):
            memory.add(role=role, content=content, tool_call_id="1", name="n")
        case ("update", place, content):
            memory.update(ids[place], content=content, name="changed")
        case ("replace", place, content):
            memory.replace_memory(place, role="user", content=content)
        case ("delete", place):
            memory.delete_memory(place)
        case ("remove", place):
            return memory.remove_by_id(ids[place]), memory.remove_by_id("unknown")
        case _:
            memory.reset_memory()
    return None


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except IndexError:
        return IndexError


def same(ours: Any, oracle: Any) -> None:
    assert ours.get_messages() == oracle.get_messages()
    assert ours.retrieve_all() == oracle.retrieve_all()
    for count in (0, 1, 3):
        assert ours.retrieve_recent(count) == oracle.retrieve_recent(count)
        assert ours.retrieve_by_role("user", count) == oracle.retrieve_by_role("user", count)
    for mine, other in zip(messages_of(ours), messages_of(oracle), strict=True):
        assert ours.retrieve_by_id(mine.message_id) == oracle.retrieve_by_id(other.message_id)
    assert ours.retrieve_by_id("unknown") is None


@given(steps=STEPS, description=st.none() | TEXT)
def test_it_does_what_its_own_conversation_does(
    opened: mnemic.Memory, steps: list[tuple[Any, ...]], description: str | None
) -> None:
    ours = ConversationMemory(description, memory=opened, session=uuid4().hex)
    oracle = theirs.ConversationMemory(description)
    for step in steps:
        assert outcome(lambda: play(ours, step)) == outcome(lambda: play(oracle, step))  # noqa: B023
        same(ours, oracle)


@given(steps=STEPS, sliding=st.booleans())
def test_it_does_what_its_own_managed_conversation_does(
    opened: mnemic.Memory, steps: list[tuple[Any, ...]], sliding: bool
) -> None:
    config = ManagedMemoryConfig(threshold_tokens=60)
    config.active_context.mode = "sliding_window" if sliding else "compaction"
    ours = ManagedConversationMemory(config, memory=opened, session=uuid4().hex)
    oracle = theirs.ManagedConversationMemory(config)

    async def every() -> None:
        for step in steps:
            assert outcome(lambda: play(ours, step)) == outcome(lambda: play(oracle, step))  # noqa: B023
            await ours._run_compaction()
            await oracle._run_compaction()
            same(ours, oracle)
            assert ours.get_cache_stats() == oracle.get_cache_stats()

    asyncio.run(every())


def test_a_manager_saves_and_loads_as_its_own_does(tmp_path: Path) -> None:
    file = str(tmp_path / "saved.json")
    for kind in ("conversation_history", "managed_conversation"):
        ours, oracle = MemoryManager(kind), theirs.MemoryManager(kind)
        for manager in (ours, oracle):
            manager.add(role="user", content="I live in Oslo.")
            manager.add(role="assistant", content="Noted.")
        oracle.save_to_file(file, {"plan": 1})
        ours.reset_memory()
        assert ours.load_from_file(file) == {"plan": 1}
        assert ours.get_messages() == oracle.get_messages()
        assert ours.memory_module.memory_type == oracle.memory_module.memory_type
    with pytest.raises(AgentConfigurationError):
        MemoryManager("unknown")


def test_what_its_manager_has_saved_is_imported(tmp_path: Path) -> None:
    oracle = theirs.MemoryManager("conversation_history", "Be kind.")
    oracle.add(role="user", content="Weather?")
    call = ToolCallMsg(id="1", call_id="1", type="function", name="weather", arguments="{}")
    oracle.add(role="assistant", tool_calls=[call], name="helper")
    oracle.add(role="tool", content="rain", tool_call_id="1", name="weather")
    oracle.save_to_file(str(tmp_path / "helper.json"))
    with mnemic.open("memory://") as memory:
        assert memory.scope("ana").import_from(tmp_path / "helper.json").format == "marsys"
        ours = ConversationMemory(memory=memory.scope("ana"), session="helper")
        assert ours.retrieve_all() == oracle.retrieve_all()


# ---------------------------------------------------------------- agents


class ScriptedModel:
    """Answers with the given responses, one after the other, and keeps the prompts."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.prompts: list[list[dict[str, Any]]] = []

    async def arun(self, messages: list[dict[str, Any]], **_: Any) -> HarmonizedResponse:
        self.prompts.append(messages)
        return HarmonizedResponse(metadata=ResponseMetadata(provider="-", model="-"), **self.answers.pop(0))


def final(text: str) -> dict[str, Any]:
    return {"content": json.dumps({"next_action": "final_response", "action_input": {"response": text}})}


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The city.
    """
    return f"It rains in {city}."


@pytest.fixture
def new_agent() -> Iterator[Callable[..., Any]]:
    def made(*answers: dict[str, Any], **options: Any) -> Any:
        AgentRegistry.clear()
        config = ModelConfig(type="api", name="gpt-4o", provider="openai", api_key="-")
        tools = {"weather": weather}
        agent = Agent(config, "Help.", "Be kind.", tools, name="helper", plan_config=False, **options)
        agent.model = ScriptedModel(*answers)
        return agent

    yield made
    AgentRegistry.clear()


@pytest.mark.parametrize("kind", ["conversation_history", "managed_conversation"])
def test_an_agent_remembers(new_agent: Callable[..., Any], kind: str, file_url: str) -> None:
    call = ToolCall(id="c1", function={"name": "weather", "arguments": '{"city": "Oslo"}'})

    def ask(text: str, *answers: dict[str, Any]) -> tuple[Any, list[Any]]:
        agent = new_agent(*answers, memory_type=kind)  # a run ends with the clean-up of its agent
        manager = use_memory(agent, file_url, scope="ana")
        answer = asyncio.run(agent.auto_run(text, max_steps=5, verbosity=0))
        manager.close()
        return answer, [
            message["content"] for message in agent.model.prompts[-1] if message["role"] in ("user", "tool")
        ]

    first, second = "I am allergic to peanuts.", "What is the weather in Oslo?"
    assert ask(first, final("Noted.")) == ("Noted.", [first])
    assert ask(second, {"tool_calls": [call]}, final("Rain.")) == ("Rain.", [first, second, "It rains in Oslo."])
    answer, seen = ask("Which cake?", final("Without peanuts."))
    assert (answer, seen) == ("Without peanuts.", [first, second, "It rains in Oslo.", "Which cake?"])
    with mnemic.open(file_url) as memory:
        assert memory.scope("ana").recall("allergy")[0].text == "I am allergic to peanuts."
        assert memory.scope("bob").session("helper").messages() == []


def test_the_instruction_of_an_agent_replaces_the_one_before(file_url: str) -> None:
    first = ConversationMemory("Be kind.", memory=file_url)
    first.add(role="user", content="Hi")
    first.close()
    later = ConversationMemory("Be brief.", memory=file_url)
    assert [message.content for message in later.memory] == ["Be brief.", "Hi"]


# ---------------------------------------------------------------- compaction

SUMMARY = {"summary": "They talked about Oslo.", "user_request_summary": "Weather.", "salient_facts": []}


def compacting(session: str, memory: mnemic.Memory, answer: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return a memory that is over its threshold, and how it is compacted by a model."""

    class Compactor:
        async def arun(self, messages: Any, **_: Any) -> HarmonizedResponse:
            answer()
            return HarmonizedResponse(content=json.dumps(SUMMARY), metadata=ResponseMetadata(provider="-", model="-"))

    config = ManagedMemoryConfig(threshold_tokens=300)
    config.active_context.min_reduction_ratio = 0.1
    ours = ManagedConversationMemory(config, memory=memory, session=session)
    for number in range(20):
        ours.add(role="user" if number % 2 == 0 else "assistant", content=f"Message {number} about boats. " * 8)
    return ours, {"compaction_model": Compactor(), "compaction_model_name": "-"}


def test_what_is_compacted_is_archived(opened: mnemic.Memory) -> None:
    ours, runtime = compacting(uuid4().hex, opened, lambda: None)
    before = ours.session.messages()
    asyncio.run(ours._run_compaction(runtime))
    after = ours.session.messages()
    assert "They talked about Oslo." in str([message.content for message in after])
    assert len(after) < 10
    kept = {message.id for message in after} & {message.id for message in before}
    assert kept == {before[-1].id}  # an unchanged message stays the same message
    assert {message.id for message in ours.session.archived()} == {message.id for message in before[:-1]}


def test_a_compaction_keeps_what_is_added_meanwhile(opened: mnemic.Memory) -> None:
    session = uuid4().hex
    other = ManagedConversationMemory(memory=opened, session=session)
    ours, runtime = compacting(session, opened, lambda: other.add(role="user", content="Meanwhile."))
    asyncio.run(ours._run_compaction(runtime))
    assert ours.raw_messages[-1].content == "Meanwhile."
    assert ours._estimated_total_tokens == sum(map(ours.token_counter.count_message, ours.get_messages()))


def test_a_memory_that_is_opened_again_knows_its_tokens(file_url: str) -> None:
    first = ManagedConversationMemory(memory=file_url)
    first.add(role="user", content="I live in Oslo.")
    again = ManagedConversationMemory(memory=file_url)
    assert again._estimated_total_tokens == first._estimated_total_tokens > 0


# ---------------------------------------------------------------- sharing, and bad input

WRITER = """
import sys
from mnemic.adapters.marsys import ConversationMemory
memory = ConversationMemory(memory=sys.argv[1])
for number in range(20):
    memory.add(role="user", content=f"{sys.argv[2]} {number}")
"""


def test_two_processes_share_a_conversation(file_url: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    said = [message.content for message in ConversationMemory(memory=file_url).memory]
    for name in ("a", "b"):
        assert [text for text in said if text.startswith(name)] == [f"{name} {number}" for number in range(20)]


def test_bad_input_has_a_clear_error() -> None:
    memory = ConversationMemory()
    with pytest.raises(mnemic.InvalidValueError, match="a MARSYS Message is stored, not dict"):
        memory.memory.append({"role": "user"})
    with pytest.raises(mnemic.InvalidValueError, match="content"):
        memory.add(role="user", content={"file": object()})
    with pytest.raises(mnemic.InvalidValueError, match="only an agent with a conversation"):
        use_memory(object())
    assert memory.retrieve_all() == []


def test_a_description_replaces_one_with_characters_that_cannot_be_stored() -> None:
    with mnemic.open("memory://") as store:
        for text in ("a\x00b", "second", "\ud800x", "c\x00d", "last"):
            chat = ConversationMemory(text, memory=store, session="monday")
            assert [(one.role, one.content) for one in chat.memory] == [("system", text)]


def test_an_agent_keeps_the_strategies_of_its_memory() -> None:
    agent = SimpleNamespace(memory=theirs.MemoryManager("managed_conversation"), instruction="", name="baker")
    own = agent.memory.memory_module
    given = {name: object() for name in ("trigger_strategy", "process_strategy", "retrieval_strategy")}
    for name, strategy in given.items():
        setattr(own, name, strategy)
    made = use_memory(agent).memory_module
    assert {name: getattr(made, name) for name in given} == given
