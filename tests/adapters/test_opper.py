"""Opper's agent SDK: its agents on our memory, and its own memory as the oracle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opper_agents import Agent
from opper_agents.memory import Memory

import mnemic
from mnemic.adapters.opper import MnemicMemory


class ScriptedOpper:
    """A client of Opper that answers with the given thoughts, one after the other, and keeps what was asked."""

    def __init__(self, *thoughts: dict[str, Any]) -> None:
        self.thoughts = list(thoughts)
        self.inputs: list[Any] = []
        self.spans = SimpleNamespace(create_async=self._span, update_async=self._span)

    async def _span(self, **_: Any) -> Any:
        return SimpleNamespace(id=str(uuid4()))

    async def call_async(self, *, input: Any, **_: Any) -> Any:
        self.inputs.append(input)
        return SimpleNamespace(json_payload=self.thoughts.pop(0), span_id=None, usage=None)


def agent_with(memory: Memory, *thoughts: dict[str, Any]) -> tuple[Agent, ScriptedOpper]:
    opper = ScriptedOpper(*thoughts)
    agent = Agent(name="helper", opper_api_key="-", enable_memory=True, verbose=False)
    agent.opper, agent.memory = opper, memory  # type: ignore[assignment]
    return agent, opper


def done(text: str, **more: Any) -> dict[str, Any]:
    return {"reasoning": "Done.", "is_complete": True, "final_result": text, **more}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
KEY = st.sampled_from(["budget", "city", "fråga/1"])
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.lists(inner, max_size=3))
META = st.none() | st.dictionaries(st.sampled_from("abc"), JSON, max_size=2)
STEPS = st.lists(
    st.tuples(st.just("write"), KEY, JSON, st.none() | TEXT, META)
    | st.tuples(st.just("read"), st.none() | st.lists(KEY | st.just("unknown"), max_size=4))
    | st.tuples(st.sampled_from(["list_entries", "clear"])),
    max_size=10,
)


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mnemic.Memory]:
    file = tmp_path_factory.mktemp("notes") / "notes.db"
    with mnemic.open("memory://" if request.param == "memory" else f"sqlite:///{file}?synchronous=normal") as memory:
        yield memory


@given(steps=STEPS)
def test_it_does_what_its_own_memory_does(opened: mnemic.Memory, steps: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        ours, theirs = MnemicMemory(opened, scope=uuid4().hex), Memory()
        for name, *arguments in steps:
            results = [await getattr(memory, name)(*arguments) for memory in (ours, theirs)]
            assert results[0] == results[1]
            if isinstance(results[0], dict):
                assert list(results[0]) == list(results[1])
            assert ours.has_entries() == theirs.has_entries()
            assert list(ours.store) == list(theirs.store)
            for key, entry in ours.store.items():
                own = {"last_accessed"}
                assert entry.model_dump(exclude=own) == theirs.store[key].model_dump(exclude=own)

    asyncio.run(play())


def test_an_agent_remembers(file_url: str) -> None:
    writes = {"diet": {"value": "allergic to peanuts", "description": "What Ana eats", "metadata": {"sure": True}}}
    agent, opper = agent_with(MnemicMemory(file_url, scope="ana"), done("Noted.", memory_updates=writes))
    assert asyncio.run(agent.process("I am allergic to peanuts.")) == "Noted."
    assert opper.inputs[0]["memory_catalog"] is None

    look = {"reasoning": "Look.", "memory_reads": ["diet"]}
    agent, opper = agent_with(MnemicMemory(file_url, scope="ana"), look, done("Without peanuts."))
    assert asyncio.run(agent.process("Which cake?")) == "Without peanuts."
    assert opper.inputs[0]["memory_catalog"] == [
        {"key": "diet", "description": "What Ana eats", "metadata": {"sure": True}}
    ]
    assert opper.inputs[1]["loaded_memory"] == {"diet": "allergic to peanuts"}

    with mnemic.open(file_url) as memory:
        assert "allergic to peanuts" in str(memory.scope("ana").recall("allergy")[0].text)
        assert not MnemicMemory(memory, scope="bob").has_entries()


def test_an_async_memory_is_used_on_its_loop() -> None:
    async def talk() -> Any:
        async with await mnemic.open_async("memory://") as memory:
            writes = {"diet": {"value": "no peanuts"}}
            answers = done("Noted.", memory_updates=writes), done("Without peanuts.")
            agent, opper = agent_with(MnemicMemory(memory.scope("ana")), *answers)
            await agent.process("I am allergic to peanuts.")
            await agent.process("Which cake?")
            return [asked["memory_catalog"] for asked in opper.inputs]

    assert asyncio.run(talk()) == [[], [{"key": "diet", "description": "diet", "metadata": {}}]]


WRITER = """
import asyncio, sys
from mnemic.adapters.opper import MnemicMemory

async def write():
    memory = MnemicMemory(sys.argv[1])
    for number in range(20):
        await memory.write("shared", number, metadata={f"{sys.argv[2]}{number}": number})

asyncio.run(write())
"""


def test_two_processes_lose_no_metadata(file_url: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    ((entry,),) = [MnemicMemory(file_url).store.values()]
    assert entry.metadata == {f"{name}{number}": number for name in "ab" for number in range(20)}


def test_bad_input_has_a_clear_error() -> None:
    async def play() -> None:
        memory = MnemicMemory()
        with pytest.raises(mnemic.InvalidValueError, match="value"):
            await memory.write("key", object())
        with pytest.raises(mnemic.InvalidValueError, match="key"):
            await memory.write("", 1)
        with pytest.raises(TypeError, match="does not support item assignment"):
            memory.store["key"] = 1  # type: ignore[assignment]
        assert not memory.has_entries()

    asyncio.run(play())


@pytest.mark.parametrize("wrong", ["x", [("a", 1)], 5])
def test_metadata_that_is_no_object_is_refused(wrong: Any) -> None:
    memory = MnemicMemory("memory://")
    with pytest.raises(mnemic.InvalidValueError, match="metadata must be an object"):
        asyncio.run(memory.write("k", 1, metadata=wrong))
    assert asyncio.run(memory.read()) == {}
