"""LlamaIndex: its own buffer does the same, and its real agents and chat engines remember."""

from __future__ import annotations

import asyncio
import base64
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer

import mnemic
from mnemic.adapters.llama_index import MnemicMemory, MnemicMemoryBlock

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def said(text: str, role: str = "user", **kwargs: Any) -> ChatMessage:
    return ChatMessage(role=MessageRole(role), content=text, additional_kwargs=kwargs)


# ---------------------------------------------------------------- the same as LlamaIndex's own buffer

MESSAGES = st.builds(
    ChatMessage,
    role=st.sampled_from(MessageRole),
    blocks=st.lists(
        st.text(max_size=4).map(lambda text: TextBlock(text=text))
        | st.binary(min_size=1, max_size=4).map(lambda data: ImageBlock(image=data))
        | st.dictionaries(st.text(max_size=2), st.integers(), max_size=1).map(
            lambda kwargs: ToolCallBlock(tool_call_id="c", tool_name="f", tool_kwargs=kwargs)
        ),
        max_size=2,
    ),
    additional_kwargs=st.dictionaries(
        st.sampled_from(["tool_call_id", "name", "k\0"]), st.text(max_size=2) | st.none() | st.integers(), max_size=2
    ),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "aput"]), MESSAGES),
        st.tuples(st.sampled_from(["put_messages", "aput_messages", "set", "aset"]), st.lists(MESSAGES, max_size=3)),
        st.tuples(st.sampled_from(["get", "aget"]), st.none() | st.just("input")),
        st.tuples(st.sampled_from(["get_all", "aget_all", "reset", "areset"])),
    ),
    max_size=12,
)


@settings(max_examples=150)
@given(OPERATIONS)
def test_a_memory_is_that_of_llama_index(operations: list[tuple[Any, ...]]) -> None:
    ours, theirs = MnemicMemory(), ChatMemoryBuffer.from_defaults(token_limit=10**9)

    def play(memory: Any, name: str, *given: Any) -> Any:
        call = getattr(memory, name)
        found = asyncio.run(call(*given)) if name.startswith("a") else call(*given)
        return list(found) if isinstance(found, list) else found

    for name, *values in operations:
        # The buffer keeps the list that it is given, and adds to it.
        copies = [list(value) if isinstance(value, list) else value for value in values]
        assert play(ours, name, *values) == play(theirs, name, *copies), name


def test_a_history_over_the_limit_is_cut_between_turns() -> None:
    memory = MnemicMemory(token_limit=60)
    memory.put(said("be brief", "system"))
    for n in range(10):
        memory.put(said(f"question {n}"))
        memory.put(ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_call_id=f"c{n}", tool_name="f")]))
        memory.put(said("result", "tool", tool_call_id=f"c{n}"))
        memory.put(said(f"answer {n}", "assistant"))
    found = memory.get()
    assert found[0] == said("be brief", "system")
    assert found[-1] == said("answer 9", "assistant")
    assert 3 < len(found) < 41
    assert found[1:] == memory.get_all()[1 - len(found) :]
    assert found[1].role != MessageRole.TOOL
    assert len(memory.get(initial_token_count=30)) < len(found)
    with pytest.raises(ValueError, match="exceeds the limit"):
        memory.get(initial_token_count=61)
    long = said("much " * 100)
    memory.put(long)
    assert memory.get() == [long], "the model says that it is too long"


# ---------------------------------------------------------------- every message comes back as it was

BLOCKS: dict[str, ContentBlock] = {
    "text": TextBlock(text="two\nlines é"),
    "empty text": TextBlock(text=""),
    "NUL": TextBlock(text="a\0b"),
    "image": ImageBlock(image=PNG, detail="low"),
    "image at a URL": ImageBlock(url="https://example.com/a.png"),
    "audio": AudioBlock(audio=b"RIFFxx", format="wav"),
    "video": VideoBlock(video=b"\x00\x01", fps=2),
    "document": DocumentBlock(data=b"%PDF-1.4 x", title="t"),
    "document at a URL": DocumentBlock(url="https://example.com/b.pdf"),
    "cache": CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h")),
    "citable": CitableBlock(title="t", source="s", content=[TextBlock(text="x"), ImageBlock(image=PNG)]),
    "citation": CitationBlock(
        cited_content=TextBlock(text="c"), source="s", title="t", additional_location_info={"page": 1}
    ),
    "thinking": ThinkingBlock(content="hm", num_tokens=3, additional_information={"signature": "s"}),
    "tool call": ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={"a": [None, 1.5]}),
    "tool call as text": ToolCallBlock(tool_name="f", tool_kwargs='{"a"'),
}


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_every_message_comes_back(url: str, file_url: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    given = [ChatMessage(role=role, content="x") for role in MessageRole]
    given += [ChatMessage(role="assistant", blocks=[block]) for block in BLOCKS.values()]
    given += [
        ChatMessage(role="user", blocks=list(BLOCKS.values()), additional_kwargs={"a": {"b": [None, 1.5]}}),
        ChatMessage(role="user", blocks=[]),
        ChatMessage(role="user", blocks=[ImageBlock(path=tmp_path / "a.png")]),
        said(
            "", "assistant", tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        ),
        said("done", "tool", tool_call_id="c1", name="f"),
    ]
    memory = MnemicMemory(file_url if url == "file" else url)
    memory.put_messages(given)
    for one, back in zip(given, memory.get_all(), strict=True):
        assert back == one
    memory.close()


# ---------------------------------------------------------------- what one gains: the same data in Mnemic


def test_messages_are_those_of_a_session_that_recall_finds(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        chat = MnemicMemory(alice, "monday")
        chat.put(ChatMessage(role="assistant", blocks=[BLOCKS["tool call"]]))
        older = [{"id": "c2", "type": "function", "function": {"name": "g", "arguments": '{"b": 2}'}}]
        chat.put(said("", "assistant", tool_calls=older))
        chat.put(said("done", "tool", tool_call_id="c1"))
        chat.put(said("My cat is called Mia"))
        call, second, result, user = alice.session("monday").messages()
        assert [(one.id, one.name) for one in call.tool_calls + second.tool_calls] == [("c1", "f"), ("c2", "g")]
        assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", "done")
        assert "Mia" not in str(user.metadata), "the text is stored once"
        assert alice.recall("name of the cat")[0].text == "My cat is called Mia"
        assert memory.scope("bob").recall("name of the cat") == []
        assert MnemicMemory(memory.scope("bob"), "monday").get_all() == []


def test_messages_of_mnemic_are_those_of_llama_index(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("monday")
        chat.add("user", "hello", images=["data:image/png;base64," + base64.b64encode(PNG).decode()], name="al")
        chat.add("assistant", "hi", tool_calls=[mnemic.ToolCall("c1", "f", '{"a": 1}')])
        chat.add("tool", "done", tool_call_id="c1")
        assert MnemicMemory(memory.scope("alice"), "monday").get_all() == [
            ChatMessage(
                role="user", blocks=[TextBlock(text="hello"), ImageBlock(image=PNG)], additional_kwargs={"name": "al"}
            ),
            ChatMessage(
                role="assistant",
                blocks=[TextBlock(text="hi"), ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={"a": 1})],
            ),
            said("done", "tool", tool_call_id="c1"),
        ]


def test_unchanged_messages_are_not_written_again(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = MnemicMemory(memory, "s")
        chat.set([said("a"), said("b")])
        before = memory.scope().session("s").messages()
        chat.set([said("a"), said("c"), said("d")])
        after = memory.scope().session("s").messages()
        assert [message.content for message in after] == ["a", "c", "d"]
        assert after[0] == before[0]


def test_other_conversations_are_recalled(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        MnemicMemory(alice, "monday").put(said("My cat is called Mia"))
        chat = MnemicMemory(alice, "tuesday", recall=3)
        question = said("What is the name of my cat?")
        chat.put(question)
        for found in (chat.get(), chat.get("my cat"), asyncio.run(chat.aget())):
            assert found[-1] == question
            assert "Mia" in str(found[0].content)
            assert found[0].role == MessageRole.USER
        assert chat.get_all() == [question]


# ---------------------------------------------------------------- the real agents and chat engines


def answering(messages: Sequence[ChatMessage], *args: Any, **kwargs: Any) -> ChatMessage:
    """Use a tool once when asked to, and otherwise say how much was told, and whether Mia is in it."""
    last = messages[-1]
    if last.role == MessageRole.USER and "tool" in str(last.content):
        call = ToolCallBlock(tool_call_id="c1", tool_name="shout", tool_kwargs={"text": "hey"})
        return ChatMessage(role="assistant", blocks=[call])
    return said(f"{len(messages)} messages, {'Mia' if 'Mia' in str(messages) else 'nothing'}", "assistant")


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


async def ask(memory: Any, text: str) -> str:
    agent = FunctionAgent(tools=[shout], llm=MockFunctionCallingLLM(response_generator=answering), streaming=False)
    return str(await agent.run(user_msg=text, memory=memory))


def test_an_agent_remembers(file_url: str) -> None:
    def new(session: str, **kwargs: Any) -> MnemicMemory:
        return MnemicMemory(file_url, session, **kwargs)

    async def main() -> None:
        memory = new("monday")
        assert await ask(memory, "My cat is Mia") == "1 messages, Mia"
        assert await ask(memory, "use the tool") == "5 messages, Mia"
        told = memory.get_all()
        assert [message.role.value for message in told] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        memory.close()
        memory = new("monday")
        assert memory.get_all() == told
        assert await ask(memory, "Who?") == "7 messages, Mia"
        memory.close()
        memory = new("tuesday", recall=3)
        assert await ask(memory, "What is my cat called?") == "2 messages, Mia"
        memory.close()

    asyncio.run(main())


def test_a_chat_engine_remembers(file_url: str) -> None:
    for turn in ("My cat is Mia", "And now?"):
        memory = MnemicMemory.from_defaults(memory=file_url, session_id="monday")
        engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
        answer = str(engine.chat(turn))
        memory.close()
    assert "My cat is Mia" in answer
    memory = MnemicMemory(file_url, "monday")
    assert len(memory.get_all()) == 4
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
    engine.reset()
    assert memory.get_all() == []
    memory.close()


def test_a_block_stores_and_recalls_what_leaves_the_short_term_memory(file_url: str) -> None:
    def new(session: str) -> tuple[Memory, MnemicMemoryBlock]:
        block = MnemicMemoryBlock(file_url)
        return Memory.from_defaults(session, token_limit=60, token_flush_size=20, memory_blocks=[block]), block

    async def main() -> None:
        memory, block = new("monday")
        await memory.aput(said("My cat is called Mia"))
        for n in range(12):
            await memory.aput(said(f"The weather report of day {n}", "user" if n % 2 else "assistant"))
        found = await memory.aget("What is the name of my cat?")
        assert found[0].role == MessageRole.SYSTEM
        assert "Mia" in str(found[0].content)
        assert "Mia" not in str(found[1:])
        await block.aclose()
        memory, block = new("tuesday")
        assert await memory.aget() == []
        assert "Mia" in str(await ask(memory, "What is the name of my cat?"))
        await block.aclose()

    asyncio.run(main())
    with mnemic.open(file_url) as opened:
        first = opened.scope().session("monday").messages()[0]
        assert first.content == "My cat is called Mia"
        assert "session_id" not in str(first.metadata)


# ---------------------------------------------------------------- several at once, and bad input

WRITER = """
import sys
from llama_index.core.base.llms.types import ChatMessage
from mnemic.adapters.llama_index import MnemicMemory

memory = MnemicMemory(sys.argv[1], "s")
for n in range(20):
    memory.put(ChatMessage(role="user", content=f"{sys.argv[2]} {n}"))
memory.close()
"""


def test_two_processes_and_many_threads_lose_nothing(file_url: str) -> None:
    memory = MnemicMemory(file_url, "s")
    memory.put(said("first"))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: memory.put(said(f"c {n}")), range(20)))
    assert [writer.wait(240) for writer in writers] == [0, 0]
    texts = [message.content for message in memory.get_all()]
    assert sorted(map(str, texts)) == sorted(["first", *(f"{name} {n}" for name in "abc" for n in range(20))])
    memory.close()


def test_a_memory_is_restored_by_its_url(file_url: str) -> None:
    memory = MnemicMemory(file_url, "s", token_limit=5)
    memory.put(said("hello"))
    again = MnemicMemory.from_dict(memory.to_dict())
    assert (again.get_all(), again.token_limit) == ([said("hello")], 5)
    again.close()
    memory.close()


def test_a_memory_that_a_url_does_not_restore_is_not_serialized(file_url: str) -> None:
    secret = MnemicMemory("postgresql://me:secret@localhost/db", "s")
    redacting = MnemicMemory(file_url, "s", redact=True)
    with mnemic.open("memory://") as opened:
        for memory in (secret, redacting, MnemicMemory(opened.scope("alice"), "s"), MnemicMemory()):
            assert "secret" not in str(memory.model_dump())
            for serialize in (memory.to_dict, lambda one=memory: pickle.dumps(one)):
                with pytest.raises(mnemic.InvalidValueError, match="pass this one again"):
                    serialize()
            with pytest.raises(mnemic.InvalidValueError, match="pass this one again"):
                MnemicMemory.from_dict(memory.model_dump())
    kept = MnemicMemory(file_url, "s")
    kept.put(said("hello"))
    again = pickle.loads(pickle.dumps(kept))
    assert again.get_all() == [said("hello")]
    again.close()
    kept.close()


@pytest.mark.parametrize("serializer", [JsonSerializer(), JsonPickleSerializer()])
def test_a_context_is_restored_with_the_memory_passed_again(serializer: JsonSerializer) -> None:
    agent = FunctionAgent(llm=MockFunctionCallingLLM(), streaming=False)

    async def main() -> None:
        with mnemic.open("memory://") as opened:
            memory, context = MnemicMemory(opened.scope("alice"), "s"), Context(agent)
            await agent.run(user_msg="My cat is called Mia.", ctx=context, memory=memory)
            with pytest.warns(Warning, match="memory"):
                form = context.to_dict(serializer=serializer)
            restored = Context.from_dict(agent, form, serializer=serializer)
            await agent.run(user_msg="What is my cat called?", ctx=restored, memory=memory)
            assert len(memory.get_all()) == 4

    asyncio.run(main())


def test_a_block_opens_its_memory_with_options(file_url: str) -> None:
    async def main() -> None:
        block = MnemicMemoryBlock(file_url, redact=True)
        await block.aput([said("I am ann@example.com")], session_id="s")
        await block.aclose()
        with pytest.raises(TypeError, match="reedact"):
            await MnemicMemoryBlock(file_url, reedact=True).aget([said("x")])  # type: ignore[call-arg]

    asyncio.run(main())
    with mnemic.open(file_url) as memory:
        assert [message.text for message in memory.scope().session("s").messages()] == ["I am [EMAIL]"]


def test_a_copy_shares_the_memory(file_url: str) -> None:
    memory = MnemicMemory(file_url, "s")
    memory.put(ChatMessage(role="user", content="I live in Oslo"))
    copy = memory.model_copy(deep=True)
    copy.put(ChatMessage(role="assistant", content="Noted"))
    assert len(memory.get_all()) == len(copy.get_all()) == 2
    memory.close()


def test_bad_input_is_named() -> None:
    with pytest.raises(mnemic.InvalidValueError, match="ChatMessage"):
        MnemicMemory().put("hello")  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="session_id"):
        MnemicMemory(None, "x" * 201)
    with pytest.raises(ValueError, match="token_limit"):
        MnemicMemory(token_limit=0)
    memory = MnemicMemory()
    with pytest.raises(ValueError, match="serialize"):
        memory.put(said("x", value=object()))
    assert memory.get_all() == []
