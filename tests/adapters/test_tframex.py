"""TFrameX: its agents on our memory, and its own store as the oracle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tframex import TFrameXApp
from tframex.models.primitives import FunctionCall, Message, MessageChunk, ToolCall
from tframex.util.llms import BaseLLMWrapper
from tframex.util.memory import InMemoryMemoryStore

import mnemic
from mnemic.adapters.tframex import MnemicMemoryStore, to_message, to_tframex


class ScriptedLLM(BaseLLMWrapper):
    """Answers with the given messages, one after the other, and keeps the prompts."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("scripted")
        self.answers = list(answers)
        self.prompts: list[list[Message]] = []

    async def chat_completion(self, messages: list[Message], stream: bool = False, **_: Any) -> Any:
        self.prompts.append(messages)
        answer = self.answers.pop(0)
        return self._pieces(answer) if stream else answer

    async def _pieces(self, answer: Message) -> AsyncIterator[MessageChunk]:
        for word in (answer.content or "").split(" "):
            yield MessageChunk(role="assistant", content=f"{word} ")


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


TEXT = st.text(max_size=20) | st.just("half a \ud83d")  # with NUL, as tools return it
NAME = st.text("abcXYZ_-é", min_size=1, max_size=8) | st.text(max_size=4) | st.just("long" * 200)
CALL = st.builds(ToolCall, id=NAME, function=st.builds(FunctionCall, name=NAME, arguments=TEXT))
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.none() | TEXT,
    tool_calls=st.none() | st.lists(CALL, max_size=3),
    tool_call_id=st.none() | st.just("") | NAME,
    name=st.none() | st.just("") | NAME,
)


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mnemic.Memory]:
    file = tmp_path_factory.mktemp("chat") / "chat.db"
    with mnemic.open("memory://" if request.param == "memory" else f"sqlite:///{file}?synchronous=normal") as memory:
        yield memory


@given(MESSAGE)
def test_every_message_is_unchanged(message: Message) -> None:
    assert to_tframex(to_message(message)) == message


def test_messages_of_other_ways_become_messages_of_tframex() -> None:
    blocks = mnemic.Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    call = mnemic.Message("assistant", None, tool_calls=[mnemic.ToolCall("1", "weather", '{"city": "Oslo"}')])
    result = mnemic.Message("tool", {"rain": True}, tool_call_id="1", name="weather")
    assert to_tframex(blocks) == Message(role="user", content="a\nb")
    function = FunctionCall(name="weather", arguments='{"city": "Oslo"}')
    assert to_tframex(call) == Message(role="assistant", tool_calls=[ToolCall(id="1", function=function)])
    assert to_tframex(result).tool_call_id == "1"


@given(
    messages=st.lists(MESSAGE, max_size=8),
    limit=st.none() | st.integers(0, 9),
    offset=st.integers(0, 9),
    roles=st.none() | st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=2),
)
def test_it_does_what_its_own_store_does(
    opened: mnemic.Memory, messages: list[Message], limit: int | None, offset: int, roles: list[str] | None
) -> None:
    async def play() -> None:
        ours, theirs = MnemicMemoryStore(opened, uuid4().hex), InMemoryMemoryStore()
        for message in messages:
            await ours.add_message(message)
            await theirs.add_message(message)
        assert await ours.get_history() == await theirs.get_history()
        every = await theirs.get_history(roles=roles)
        assert await ours.get_history(roles=roles) == every
        # Its own store counts from the oldest message, so that an agent never sees what is newer than the first ten.
        end = max(len(every) - offset, 0)
        expected = every[:end] if limit is None else every[max(end - limit, 0) : end]
        while limit is not None and not roles and expected and expected[0].role == "tool":
            expected = expected[1:]
        assert await ours.get_history(limit, offset, roles) == expected
        await ours.clear()
        await theirs.clear()
        assert await ours.get_history() == await theirs.get_history() == []

    asyncio.run(play())


@given(st.lists(TEXT, max_size=9), st.integers(1, 4))
def test_a_limited_history_rolls(opened: mnemic.Memory, texts: list[str], size: int) -> None:
    async def play() -> None:
        ours = MnemicMemoryStore(opened, uuid4().hex, max_history_size=size)
        theirs = InMemoryMemoryStore(size)
        for text in texts:
            await ours.add_message(Message(role="user", content=text))
            await theirs.add_message(Message(role="user", content=text))
        assert await ours.get_history() == await theirs.get_history()

    asyncio.run(play())


def app_with(llm: ScriptedLLM, store: MnemicMemoryStore) -> TFrameXApp:
    app = TFrameXApp(default_llm=llm, mcp_config_file=None)

    @app.tool(description="Tells the weather of a city.")
    async def weather(city: str) -> str:
        return f"It rains in {city}."

    @app.agent(system_prompt="Be kind.", tools=["weather"], memory_store=store)
    async def helper() -> None: ...

    return app


def test_an_agent_remembers(file_url: str) -> None:
    function = FunctionCall(name="weather", arguments='{"city": "Oslo"}')
    call = Message(role="assistant", tool_calls=[ToolCall(id="1", function=function)])

    async def talk(llm: ScriptedLLM, *texts: str) -> list[str | None]:
        store = MnemicMemoryStore(file_url, "monday", scope="ana")
        async with app_with(llm, store).run_context() as context:
            said = [(await context.call_agent("helper", text)).content for text in texts]
        await store.close()
        return said

    first = ScriptedLLM(says("Hello Ana!"), call, says("Rain."))
    assert asyncio.run(talk(first, "I am allergic to peanuts.", "Weather in Oslo?")) == ["Hello Ana!", "Rain."]
    second = ScriptedLLM(*[says(f"Answer {n}") for n in range(6)])
    asyncio.run(talk(second, *[f"Question {n}" for n in range(6)]))
    assert [message.role for message in second.prompts[0]] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert second.prompts[-1][-1].content == "Question 5"  # of its own store, an agent has only the first ten messages
    with mnemic.open(file_url) as memory:
        assert memory.scope("ana").recall("allergy")[0].text == "I am allergic to peanuts."
        assert memory.scope("bob").session("monday").messages() == []


def test_a_streaming_agent_remembers() -> None:
    async def talk() -> list[Message]:
        store = MnemicMemoryStore()
        async with app_with(ScriptedLLM(says("Hello Ana!")), store).run_context() as context:
            async for _ in context.call_agent_stream("helper", "I am Ana."):
                pass
        return await store.get_history()

    assert [(message.role, message.content) for message in asyncio.run(talk())] == [
        ("user", "I am Ana."),
        ("assistant", "Hello Ana! "),
    ]


def test_a_limited_history_begins_with_no_orphaned_result() -> None:
    async def play() -> list[Message]:
        store = MnemicMemoryStore()
        function = FunctionCall(name="weather", arguments="{}")
        await store.add_message(Message(role="user", content="Weather?"))
        await store.add_message(Message(role="assistant", tool_calls=[ToolCall(id="1", function=function)]))
        await store.add_message(Message(role="tool", content="Rain.", tool_call_id="1", name="weather"))
        await store.add_message(says("It rains."))
        return await store.get_history(2)

    assert asyncio.run(play()) == [says("It rains.")]


WRITER = """
import asyncio, sys
from tframex.models.primitives import Message
from mnemic.adapters.tframex import MnemicMemoryStore

async def write():
    store = MnemicMemoryStore(sys.argv[1])
    await asyncio.gather(*[store.add_message(Message(role="user", content=f"{sys.argv[2]} {n}")) for n in range(20)])

asyncio.run(write())
"""


def test_two_processes_share_a_history(file_url: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = asyncio.run(MnemicMemoryStore(file_url).get_history())
    assert sorted(str(message.content) for message in found) == sorted(
        f"{name} {n}" for name in "ab" for n in range(20)
    )


def test_bad_input_has_a_clear_error() -> None:
    async def play() -> None:
        store = MnemicMemoryStore()
        with pytest.raises(mnemic.InvalidValueError, match="a TFrameX Message is stored, not dict"):
            await store.add_message({"role": "user", "content": "hi"})
        with pytest.raises(mnemic.InvalidValueError, match="limit"):
            await store.get_history(-1)
        with pytest.raises(mnemic.InvalidValueError, match="role must be one of"):
            await store.get_history(roles=["human"])
        with pytest.raises(mnemic.InvalidValueError, match="max_history_size"):
            MnemicMemoryStore(max_history_size=-1)

    asyncio.run(play())


@pytest.mark.parametrize("content", [[{"type": "text", "text": "hi"}], {"a": 1}, 5])
def test_content_that_could_not_be_read_again_is_refused(content: Any) -> None:
    store = MnemicMemoryStore("memory://")
    message = Message(role="user", content="hi")
    asyncio.run(store.add_message(message))
    message.content = content
    with pytest.raises(mnemic.InvalidValueError, match="content of a TFrameX Message is text"):
        asyncio.run(store.add_message(message))
    assert asyncio.run(store.get_history()) == [Message(role="user", content="hi")]


def test_a_history_of_no_messages_is_refused() -> None:
    with pytest.raises(mnemic.InvalidValueError, match="max_history_size must be from 1"):
        MnemicMemoryStore("memory://", max_history_size=0)
