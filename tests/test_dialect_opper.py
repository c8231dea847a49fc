"""The examples of Opper's memory, with their imports changed and scripted models, and what they promise."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.dialects.opper import Agent, MemoryBackend, RedisMemory, UrlMemory
from mnemic.dialects.prompting import PromptAgent
from scripted import says, tool
from servers import valkey


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that writes down what it is told to remember, and reads it when it is asked."""

    def answer(question: str, shown: str, since: str) -> Any:
        done = re.search(r"Written under|Deleted", since)
        if match := re.search(r"Add '(.+)' to my task list", question):
            held = re.search(r"tasks: (.*)", since)
            if "- tasks" in shown and not held:
                return [tool("read_memory", key="tasks")]
            tasks = [*filter(None, (held.group(1) if held else "").split("; ")), match.group(1)]
            return "Added." if done else [tool("write_memory", key="tasks", value=f"tasks: {'; '.join(tasks)}")]
        if "I'm Alice" in question:
            return "Hi Alice." if done else [tool("write_memory", key="user", value="Alice, celsius")]
        if "Forget" in question:
            return "Forgotten." if done else [tool("delete_memory", key="user")]
        if found := re.search(r"^- (\w+)$", shown, re.M):
            read = re.search(r"Alice, celsius|tasks: .*", since)
            return read.group(0) if read else [tool("read_memory", key=found.group(1))]
        return "I remember nothing."

    monkeypatch.setattr(PromptAgent, "default_model", says(answer))


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def search_web(query: str) -> str:
    """Search the web."""
    return "nothing"


my_tools = [get_weather]


def test_an_agent_remembers_preferences() -> None:
    async def main() -> None:
        agent = Agent(
            name="PersonalAssistant",
            instructions="Help the user. Remember their name and preferences for future interactions.",
            tools=[get_weather, search_web],
            enable_memory=True,
        )
        result = await agent.process("Hi, I'm Alice. I prefer Celsius for temperatures.")
        assert result == "Hi Alice."
        assert agent.memory is not None
        assert await agent.memory.list_keys() == ["user"]
        result = await agent.process("What's the weather in Paris?")
        assert result == "Alice, celsius"
        await agent.process("Forget me")
        assert await agent.memory.list_keys() == []

    asyncio.run(main())


def test_memory_lasts_across_calls() -> None:
    async def main() -> str:
        agent = Agent(
            name="TaskTracker",
            instructions="Track tasks for the user. Remember completed and pending tasks.",
            enable_memory=True,
        )
        await agent.process("Add 'buy groceries' to my task list")
        await agent.process("Add 'call dentist' to my task list")
        answer: str = await agent.process("What's on my task list?")
        return answer

    assert asyncio.run(main()) == "tasks: buy groceries; call dentist"


def test_without_memory_there_are_no_tools_for_it() -> None:
    agent = Agent(name="AssistantBot", instructions="Help the user.", tools=[my_tools])
    assert agent.memory is None
    assert asyncio.run(agent.process("What do you remember?")) == "I remember nothing."


def test_without_memory_no_call_knows_of_another() -> None:
    shown: list[str] = []

    def answer(question: str, everything: str) -> str:
        shown.append(everything)
        return "ok"

    agent = Agent(name="Kiosk", instructions="Help.", model=says(answer), enable_memory=False)

    async def main() -> None:
        await agent.process("I am user A, my PIN is 4711")
        await asyncio.gather(agent.process("I am user B"), agent.process("I am user C"))

    asyncio.run(main())
    assert "4711" in shown[0]
    assert [one for one in shown[1:] if "user A" in one or "4711" in one] == []
    assert not any("user B" in one and "user C" in one for one in shown)


def test_what_an_agent_is_shown_is_bounded() -> None:
    shown: list[str] = []

    def answer(question: str, everything: str) -> str:
        shown.append(everything)
        return "word " * 3000

    def sizes(agent: Agent) -> list[int]:
        shown.clear()
        for n in range(9):
            asyncio.run(agent.process(f"question {n}"))
        return [len(one.split()) for one in shown]

    by_default = sizes(Agent("Wordy", model=says(answer), enable_memory=True))
    assert 12_000 < max(by_default) < 18_000
    assert max(sizes(Agent("Terse", model=says(answer), enable_memory=True, max_context_tokens=100))) < 100


class Dictionary(MemoryBackend):
    """A back-end of one's own."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    async def list_keys(self) -> list[str]:
        return list(self.held)

    async def read(self, key: str) -> str | None:
        return self.held.get(key)

    async def write(self, key: str, value: str) -> None:
        self.held[key] = value

    async def delete(self, key: str) -> None:
        self.held.pop(key, None)


def test_a_back_end_of_ones_own_is_used() -> None:
    backend = Dictionary()
    agent = Agent(name="AssistantBot", instructions="Help.", memory=backend)
    asyncio.run(agent.process("Hi, I'm Alice."))
    assert backend.held == {"user": "Alice, celsius"}
    assert asyncio.run(agent.process("Who am I?")) == "Alice, celsius"


def test_an_empty_back_end_is_not_replaced() -> None:
    class Empty(Dictionary):
        def __len__(self) -> int:
            return 0

    backend = Empty()
    assert Agent("a", memory=backend, enable_memory=True).memory is backend


def test_redis(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        memory = RedisMemory(url)
        assert memory.prefix == "agent_memory"
        assert await memory.read("user_preferences") is None
        await memory.write("user_preferences", "celsius*[?]")
        await memory.write("empty", "")
        assert await memory.list_keys() == ["user_preferences", "empty"]
        assert await memory.read("empty") == ""
        other = RedisMemory(url, prefix="agent")
        assert await other.list_keys() == []
        await memory.delete("empty")
        await memory.delete("nothing")
        assert await RedisMemory.read(memory, "user_preferences") == "celsius*[?]"
        await memory.close()
        await other.close()

    with valkey.empty_keyspace(tmp_path) as url:
        asyncio.run(main(url))


def test_any_url_will_do(tmp_path: Path) -> None:
    async def main() -> str | None:
        first = UrlMemory(f"sqlite:///{tmp_path / 'agent.db'}")
        await first.write("a", "1")
        await first.close()
        second = UrlMemory(f"sqlite:///{tmp_path / 'agent.db'}")
        found = await second.read("a")
        await second.close()
        return found

    assert asyncio.run(main()) == "1"


def test_entries_are_encrypted(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path / 'agent.db'}", bytes(range(32))

    async def main() -> None:
        memory = UrlMemory(url, encryption_key=key)
        await memory.write("place", "under the oak")
        await memory.close()
        with pytest.raises(mnemic.DecryptionError):
            await UrlMemory(url).read("place")
        again = UrlMemory(url, encryption_key=key)
        assert await again.read("place") == "under the oak"
        await again.close()

    asyncio.run(main())
    assert not [file for file in tmp_path.iterdir() if b"oak" in file.read_bytes()]
