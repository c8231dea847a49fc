"""LangChain: the retriever passes its standard tests, messages lose nothing, and agents remember."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import tool
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, RetrieversIntegrationTests
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ValidationError

import mnemic
from mnemic import Message, ToolCall
from mnemic.adapters.foreign import require
from mnemic.adapters.langchain import MnemicEmbeddings, MnemicRetriever, from_langchain, to_langchain
from mnemic.adapters.langchain_middleware import MnemicMiddleware
from mnemic.errors import ConflictError, EmbedderError, EventLoopError, InvalidValueError

# ---------------------------------------------------------------- the standard tests


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio' but it is not an async function")
class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _filled(self, file_url: str) -> Iterator[None]:
        with mnemic.open(file_url) as memory:
            alice = memory.scope("alice")
            alice.remember_many([f"she likes to drink {what}" for what in ("tea", "coffee", "cocoa", "milk")])
            self.scope = alice
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MnemicRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.scope}

    @property
    def retriever_query_example(self) -> str:
        return "what does she drink"


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio' but it is not an async function")
class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return MnemicEmbeddings


# ---------------------------------------------------------------- the retriever and the embeddings


def test_documents_say_what_they_are_and_where_they_are_from(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        item = alice.remember("Alice is allergic to peanuts", metadata={"source": "doctor"})
        memory.scope("acme", "bert").remember("Bert is allergic to cats")
        (found,) = MnemicRetriever(memory=alice, k=1).invoke("allergic")
        assert (found.page_content, found.id) == ("Alice is allergic to peanuts", item.id)
        assert found.metadata.items() >= {"source": "doctor", "scope": "acme/alice", "kind": "memory"}.items()
        assert len(MnemicRetriever(memory=memory).invoke("allergic")) == 2
        assert MnemicRetriever(memory=alice, search_kwargs={"kinds": "fact"}).invoke("allergic") == []
        assert MnemicRetriever(memory=alice).invoke("allergic", metadata={"source": "x"}) == []
        chain: Any = {"known": MnemicRetriever(memory=alice), "asked": RunnablePassthrough()} | RunnablePassthrough()
        assert chain.invoke("allergic")["known"] == MnemicRetriever(memory=alice).invoke("allergic")
        with pytest.raises(InvalidValueError):
            MnemicRetriever(memory=alice).invoke("allergic", kinds="no such kind")


def test_a_retriever_opens_a_url_with_options_and_closes_it(file_url: str) -> None:
    retriever = MnemicRetriever(memory=file_url, options={"encryption_key": bytes(32)})
    assert retriever.invoke("tea") == []
    retriever.close()
    with mnemic.open(file_url, encryption_key=bytes(32)) as memory:
        memory.scope("alice").remember("tea in the garden")
        assert [one.page_content for one in asyncio.run(retriever.ainvoke("tea"))] == ["tea in the garden"]
    retriever.close()
    with pytest.raises(ValidationError, match="a memory is given as a scope, a memory or a URL"):
        MnemicRetriever(memory=7)


def test_a_memory_of_open_async_is_used_on_its_event_loop(file_url: str) -> None:
    async def use() -> None:
        async with mnemic.open_async(file_url) as memory:
            await memory.scope("alice").remember("tea in the garden")
            retriever = MnemicRetriever(memory=memory)
            assert len(await retriever.ainvoke("tea")) == 1
            with pytest.raises(EventLoopError):
                retriever.invoke("tea")
            assert len(await asyncio.to_thread(retriever.invoke, "tea")) == 1

    asyncio.run(use())


def test_embeddings_are_those_of_an_embedder() -> None:
    made = MnemicEmbeddings("static")
    assert any(made.embed_query("???")), "databases refuse vectors of zeros"
    assert made.embed_documents([]) == []
    with pytest.raises(EmbedderError):
        MnemicEmbeddings("none")
    with pytest.raises(InvalidValueError):
        MnemicEmbeddings("no such")


# ---------------------------------------------------------------- messages

IMAGE = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
CALL: Any = {"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}
BAD_CALL: Any = {"name": "weather", "args": "{bad", "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}
BLOCKS: list[str | dict[Any, Any]] = [
    {"type": "text", "text": "look"}, "raw", IMAGE, {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
    {"type": "audio", "base64": "aGk=", "mime_type": "audio/wav"}, {"type": "file", "file_id": "f1"},
    {"type": "video", "url": "https://a.b/c.mp4"}, {"type": "text-plain", "text": "hi", "mime_type": "text/plain"},
    {"type": "reasoning", "reasoning": "hm", "extras": {"signature": "x"}}, {"type": "server_tool_call", "id": "s"},
    {"type": "non_standard", "value": {"a": [1, None, 1.5]}},
]  # fmt: skip
MESSAGES: list[BaseMessage] = [
    HumanMessage("hello"), HumanMessage("", id=""), HumanMessage(BLOCKS, name="Bob", id="b"),
    AIMessage("", tool_calls=[CALL], invalid_tool_calls=[BAD_CALL], id="run--1"), AIMessage(BLOCKS),
    AIMessage("hi", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
              response_metadata={"model": "x"}, additional_kwargs={"refusal": None}),
    ToolMessage("sunny", tool_call_id="c1", name="weather", artifact={"degrees": [21.5]}, status="error"),
    ToolMessage(BLOCKS, tool_call_id="c1"), SystemMessage("be nice"), SystemMessage([{"type": "text", "text": "x"}]),
    ChatMessage(content="no", role="critic"), ChatMessage(content="yes", role="assistant"), RemoveMessage(id="r"),
    FunctionMessage(content="42", name="answer"), HumanMessageChunk(content="h"), SystemMessageChunk(content="s"),
    ChatMessageChunk(content="c", role="user"),
    AIMessageChunk(content="c", tool_call_chunks=[{"name": "f", "args": '{"a"', "id": "c9", "index": 0}]),
    ToolMessageChunk(content="t", tool_call_id="c"), FunctionMessageChunk(content="f", name="n"),
]  # fmt: skip


def subclasses(kind: type[BaseMessage]) -> set[type[BaseMessage]]:
    found = {one for one in kind.__subclasses__() if one.__module__.startswith("langchain_core.")}
    return found | {deeper for one in found for deeper in subclasses(one)}


def test_there_is_a_message_of_every_type() -> None:
    assert {type(one) for one in MESSAGES} == {
        one for one in subclasses(BaseMessage) if one.__name__ != "BaseMessageChunk"
    }


def test_every_message_comes_back_as_it_was(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("s")
        chat.add_many(map(from_langchain, MESSAGES), open_images=False)
        found = [made for one in chat.messages() for made in to_langchain(one)]
        assert found == MESSAGES
        assert [type(one) for one in found] == [type(one) for one in MESSAGES]
        assert chat.messages()[3].tool_calls[0] == ToolCall("c1", "weather", '{"city":"Oslo"}')
        assert chat.messages()[6].tool_call_id == "c1"


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("aé \n", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=3), inner),
    max_leaves=5,
)
CONTENTS = st.text("abc <é\n", max_size=20) | st.lists(
    st.text("abc", max_size=5) | st.fixed_dictionaries({"type": st.just("text"), "text": st.text("abc", max_size=5)}),
    max_size=3,
)
IDS = st.none() | st.text("ab/%\n é", max_size=8) | st.just("x" * 2000)


@given(CONTENTS, IDS, st.dictionaries(st.text("ab", max_size=3), JSONS, max_size=3), JSONS)
def test_any_message_comes_back_as_it_was(content: Any, id: str | None, extra: dict[str, Any], artifact: Any) -> None:
    call: Any = {"name": "f", "args": extra, "id": id, "type": "tool_call"}
    for message in (
        HumanMessage(content, id=id, additional_kwargs=extra, name=id),
        AIMessage(content, id=id, tool_calls=[call], response_metadata=extra),
        ToolMessage(content, id=id, tool_call_id=id or "", artifact=artifact),
    ):
        made = from_langchain(message)
        assert to_langchain(Message.from_dict(made.to_dict())) == [message]


def test_a_message_that_came_another_way_becomes_one_of_langchain() -> None:
    calls = [ToolCall("c1", "weather", '{"city":"Oslo"}'), ToolCall("c2", "weather", "{bad")]
    ai = to_langchain(Message("assistant", "let me see", id="m", tool_calls=calls))
    assert ai == [AIMessage("let me see", id="m", tool_calls=[CALL], invalid_tool_calls=[{**BAD_CALL, "error": None}])]
    assert to_langchain(Message("tool", "sunny", id="t", tool_call_id="c1")) == [
        ToolMessage("sunny", id="t", tool_call_id="c1")
    ]
    assert to_langchain(Message("tool", "lost", id="t")) == [ToolMessage("lost", id="t", tool_call_id="")]
    assert to_langchain(Message("user", "hi", id="u", name="Bob")) == [HumanMessage("hi", id="u", name="Bob")]
    assert to_langchain(Message("system", "be nice", id="s")) == [SystemMessage("be nice", id="s")]
    picture = to_langchain(Message("user", "look", id="p", images=["https://a.b/c.png"]))[0]
    assert picture.content_blocks[1]["type"] == "image"


def test_an_artifact_that_is_not_json_is_stored_as_text() -> None:
    (found,) = to_langchain(from_langchain(ToolMessage("x", tool_call_id="c", artifact=Path("/tmp/x"), id="i")))
    assert isinstance(found, ToolMessage)
    assert found.artifact == "/tmp/x"


# ---------------------------------------------------------------- agents


class Scripted(GenericFakeChatModel):
    """A model that gives these answers, and remembers what it was asked."""

    asked: list[list[BaseMessage]]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *arguments: Any, **named: Any) -> Any:
        self.asked.append(list(messages))
        return super()._generate(messages, *arguments, **named)


def scripted(*answers: str | AIMessage) -> Scripted:
    return Scripted(messages=iter(answers), asked=[])


@tool
def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


@tool(return_direct=True)
def lookup(person: str) -> str:
    """Look someone up."""
    return f"{person} is in the book"


def call(name: str, id: str = "c1", **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": id}])


def ask(agent: Any, text: str, user: str = "alice", session: str = "monday") -> list[AnyMessage]:
    config = {"configurable": {"user_id": user, "thread_id": session}}
    return agent.invoke({"messages": [HumanMessage(text)]}, config)["messages"]  # type: ignore[no-any-return]


def said(messages: Sequence[BaseMessage]) -> list[str]:
    return [one.text for one in messages]


def stored(url: str, user: str = "alice", session: str = "monday") -> list[tuple[str, str | None]]:
    with mnemic.open(url) as memory:
        return [(one.role, one.text) for one in memory.scope(user).session(session).messages()]


TURN = [
    ("user", "I am allergic to peanuts. Is it warm in Oslo?"),
    ("assistant", 'weather({"city":"Oslo"})'),
    ("tool", "sunny in Oslo"),
    ("assistant", "It is sunny."),
]


def test_an_agent_remembers_in_another_conversation(file_url: str) -> None:
    model = scripted(call("weather", city="Oslo"), "It is sunny.")
    with_memory = create_agent(model, [weather], middleware=[MnemicMiddleware(file_url)], system_prompt="be nice")
    result = ask(with_memory, "I am allergic to peanuts. Is it warm in Oslo?")
    assert [one.type for one in result] == ["human", "ai", "tool", "ai"]
    assert stored(file_url) == TURN
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("monday")
        assert [made for one in chat.messages() for made in to_langchain(one)] == result
        assert memory.scope("alice").recall("peanuts")[0].record.text == TURN[0][1]

    model = scripted("Peanuts.", "I do not know.")
    later = create_agent(model, [weather], middleware=[MnemicMiddleware(file_url)], system_prompt="be nice")
    assert said(ask(later, "what am I allergic to?", session="tuesday")) == ["what am I allergic to?", "Peanuts."]
    system, memory_block, question = model.asked[0]
    assert (system.text, question.text) == ("be nice", "what am I allergic to?")
    assert memory_block.type == "human"
    assert memory_block.text.startswith("<memory>\nQuoted from memory.")
    assert "I am allergic to peanuts" in memory_block.text
    # Another user's memory is another one.
    ask(later, "what am I allergic to?", user="bert")
    assert said(model.asked[1]) == ["be nice", "what am I allergic to?"]


@pytest.mark.parametrize("odd", ["\0", "\x00\x7f\u2028", "🎉"])
def test_a_user_may_say_what_cannot_be_stored(file_url: str, odd: str) -> None:
    model = scripted("Noted.", "Peanuts.")
    agent = create_agent(model, middleware=[MnemicMiddleware(file_url)])
    heard = ask(agent, f"I am allergic to peanuts. {odd}")
    ask(agent, f"what {odd} am I allergic to?", session="tuesday")
    assert "allergic to peanuts" in model.asked[1][0].text
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("monday").messages()
        assert [made for one in chat for made in to_langchain(one)] == heard


def test_the_async_agent_does_the_same(file_url: str) -> None:
    model = scripted(call("weather", city="Oslo"), "It is sunny.")
    agent: Any = create_agent(model, [weather], middleware=[MnemicMiddleware(file_url)])
    config: Any = {"configurable": {"user_id": "alice", "thread_id": "monday"}}

    async def run() -> Any:
        return await agent.ainvoke({"messages": [HumanMessage(str(TURN[0][1]))]}, config)

    assert len(asyncio.run(run())["messages"]) == 4
    assert stored(file_url) == TURN
    assert "mnemic" not in str(asyncio.run(run_keys(agent)))


async def run_keys(agent: Any) -> list[str]:
    return list(agent.get_output_jsonschema()["properties"])


def test_each_tool_loop_step_sees_the_same_memory_once(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        memory.scope("alice").remember("Alice is allergic to peanuts")
    model = scripted(call("weather", city="Oslo"), "No peanuts.")
    ask(create_agent(model, [weather], middleware=[MnemicMiddleware(file_url)]), "what is Alice allergic to?")
    first, second = (said(messages) for messages in model.asked)
    assert len(first) == 2
    assert "peanuts" in first[0]
    assert second == [*first, "", "sunny in Oslo"]


def test_with_a_checkpointer_each_message_is_stored_once(file_url: str) -> None:
    model = scripted("one", "two", "three")
    agent = create_agent(model, middleware=[MnemicMiddleware(file_url)], checkpointer=InMemorySaver())
    for text in ("first", "second", "third"):
        ask(agent, text)
    assert [text for _, text in stored(file_url)] == ["first", "one", "second", "two", "third", "three"]
    assert said(model.asked[2]) == ["first", "one", "second", "two", "third"], "what it sees is not recalled as well"


@pytest.mark.parametrize("use_async", [False, True])
def test_a_run_that_goes_on_from_a_checkpoint_sees_the_memory_again(file_url: str, use_async: bool) -> None:
    @tool
    def book(city: str) -> str:
        """Book a journey."""
        return f"booked {city}: {interrupt('really?')}"

    with mnemic.open(file_url) as memory:
        memory.scope("alice").remember("Alice likes to travel to Oslo by train")
    model = scripted(call("book", city="Oslo"), "Done.")
    agent: Any = create_agent(
        model, [book], middleware=[MnemicMiddleware(file_url)], checkpointer=InMemorySaver()
    )  # fmt: skip
    config: Any = {"configurable": {"user_id": "alice", "thread_id": "monday"}}
    ask(agent, "how does Alice travel to Oslo? Book it.")
    assert "mnemic_recalled" not in agent.get_state(config).values
    if use_async:
        asyncio.run(agent.ainvoke(Command(resume="yes"), config))
    else:
        agent.invoke(Command(resume="yes"), config)
    assert "by train" in said(model.asked[0])[0]
    assert said(model.asked[1]) == [*said(model.asked[0]), "", "booked Oslo: yes"]
    assert [role for role, _ in stored(file_url)] == ["user", "assistant", "tool", "assistant"]


def test_a_message_that_has_left_the_session_is_not_stored_again(file_url: str) -> None:
    agent = create_agent(
        scripted("one", "two", "three"), middleware=[MnemicMiddleware(file_url)], checkpointer=InMemorySaver()
    )
    ask(agent, "first")
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("monday")
        chat.delete(chat.messages()[0])
        ask(agent, "second")
        assert [one.text for one in chat.messages()] == ["one", "second", "two"]
        chat.clear()
        chat.add("user", "said elsewhere")
        ask(agent, "third")
        assert [one.text for one in chat.messages()] == ["said elsewhere", "third", "three"]


def test_without_a_checkpointer_the_session_is_the_history(file_url: str) -> None:
    memory = MnemicMiddleware(file_url, history_tokens=1_000)
    ask(create_agent(scripted(call("weather", city="Oslo"), "It is sunny."), [weather], middleware=[memory]), "Oslo?")
    model = scripted("Still sunny.")
    ask(create_agent(model, [weather], middleware=[memory], system_prompt="be nice"), "and now?")
    assert said(model.asked[0]) == ["be nice", "Oslo?", "", "sunny in Oslo", "It is sunny.", "and now?"]
    assert [text for _, text in stored(file_url)][-2:] == ["and now?", "Still sunny."]
    # With a checkpointer too, it sees nothing twice.
    agent = create_agent(model := scripted("a", "b"), middleware=[memory], checkpointer=InMemorySaver())
    ask(agent, "first", session="other")
    ask(agent, "second", session="other")
    assert said(model.asked[1])[-3:] == ["first", "a", "second"]
    assert said(model.asked[1]).count("first") == 1


def test_a_given_conversation_is_stored_whole(file_url: str) -> None:
    agent: Any = create_agent(scripted("three"), middleware=[MnemicMiddleware(file_url, user=None, session="s")])
    agent.invoke({"messages": [("human", "one"), ("ai", "two"), ("human", "and?")]})
    with mnemic.open(file_url) as memory:
        assert [one.text for one in memory.scope().session("s").messages()] == ["one", "two", "and?", "three"]


def test_results_that_end_a_run_and_structured_answers_are_stored(file_url: str) -> None:
    class Answer(BaseModel):
        degrees: int

    ask(create_agent(scripted(call("lookup", person="Bob")), [lookup], middleware=[MnemicMiddleware(file_url)]), "Bob?")
    assert [role for role, _ in stored(file_url)] == ["user", "assistant", "tool"]
    agent = create_agent(
        scripted(call("Answer", degrees=21)), response_format=ToolStrategy(Answer),
        middleware=[MnemicMiddleware(file_url)],
    )  # fmt: skip
    assert len(ask(agent, "how warm?", session="s")) == 3
    assert [role for role, _ in stored(file_url, session="s")] == ["user", "assistant", "tool"]


def test_what_was_said_before_a_failure_is_stored(file_url: str) -> None:
    @tool
    def broken() -> str:
        """Fail."""
        raise RuntimeError("no luck")

    agent = create_agent(scripted(call("broken")), [broken], middleware=[MnemicMiddleware(file_url)])
    with pytest.raises(RuntimeError, match="no luck"):
        ask(agent, "try it")
    assert [role for role, _ in stored(file_url)] == ["user", "assistant"]
    model = scripted("It failed.")
    ask(create_agent(model, middleware=[MnemicMiddleware(file_url, history_tokens=500)]), "and?")
    assert said(model.asked[0]) == ["try it", "and?"], "a call without a result is not shown"


@dataclass
class Context:
    user_id: str
    session_id: str
    tenant: str = "acme"


def test_user_and_session_come_from_the_context(file_url: str) -> None:
    def agent(**options: Any) -> Any:
        return create_agent(
            scripted("hi"), middleware=[MnemicMiddleware(file_url, **options)], context_schema=Context
        )  # fmt: skip

    hello = {"messages": [HumanMessage("hello")]}
    agent().invoke(hello, context=Context("carol", "s1"))
    assert len(stored(file_url, "carol", "s1")) == 2
    of_tenant = agent(user=lambda runtime: (runtime.context.tenant, runtime.context.user_id))
    of_tenant.invoke(hello, context=Context("a/b", "s/1"))
    with mnemic.open(file_url) as memory:
        (found,) = memory.scope("acme").recall("hello", kinds="message", k=1)
        assert found.record.scope.segments == ("acme", "a%2Fb", "s%2F1")
    with pytest.raises(InvalidValueError, match="the run has no user_id: pass it in context="):
        agent().invoke(hello)
    with pytest.raises(InvalidValueError, match="the run has no session_id or thread_id"):
        agent(user=None).invoke(hello)
    with pytest.raises(InvalidValueError, match=r"the user of the run must be an id.*: ''"):
        agent().invoke(hello, context=Context("", "s"))
    for wrong in (lambda runtime: 7, lambda runtime: ("acme", None), lambda runtime: None):
        with pytest.raises(InvalidValueError, match="the user of the run must be an id"):
            agent(user=wrong).invoke(hello, context=Context("u", "s"))
    with pytest.raises(InvalidValueError, match="a session has one name, not 2"):
        agent(session=("a", "b")).invoke(hello, context=Context("u", "s"))
    with pytest.raises(InvalidValueError, match="a memory is given as a scope"):
        MnemicMiddleware(7)  # type: ignore[arg-type]


def test_other_middleware_works_beside_it(file_url: str) -> None:
    class Shout(AgentMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(messages=[HumanMessage(one.text.upper()) for one in request.messages]))

    model = scripted("ok")
    ask(create_agent(model, middleware=[Shout(), MnemicMiddleware(file_url)]), "hello")
    assert stored(file_url) == [("user", "hello"), ("assistant", "ok")]


RUN = """
import sys
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from mnemic.adapters.langchain_middleware import MnemicMiddleware
url, text = sys.argv[1:]
agent = create_agent(GenericFakeChatModel(messages=iter(["noted"])), middleware=[MnemicMiddleware(url)])
agent.invoke({"messages": [("human", text)]}, {"configurable": {"user_id": "alice", "thread_id": "monday"}})
"""


def test_processes_share_a_session(file_url: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", RUN, file_url, "I am allergic to peanuts"]
    subprocess.run(command, check=True, timeout=240)
    model = scripted("Peanuts.")
    ask(create_agent(model, middleware=[MnemicMiddleware(file_url, history_tokens=500)]), "what was it?")
    assert said(model.asked[0]) == ["I am allergic to peanuts", "noted", "what was it?"]


def test_writers_at_once_lose_nothing(file_url: str) -> None:
    memory = MnemicMiddleware(file_url)

    def run(n: int) -> None:
        ask(create_agent(scripted(f"answer {n}"), middleware=[memory]), f"question {n}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(8)))
    texts = {text for _, text in stored(file_url)}
    assert texts == {f"{kind} {n}" for kind in ("question", "answer") for n in range(8)}
    memory.close()
    ask(create_agent(scripted("again"), middleware=[memory]), "after close it opens again")
    assert len(stored(file_url)) == 18


def test_a_memory_that_is_open_is_used_as_it_is() -> None:
    with mnemic.open("memory://") as memory:
        ask(create_agent(scripted("hi"), middleware=[MnemicMiddleware(memory.scope("acme"))]), "hello")
        assert [one.text for one in memory.scope("acme", "alice").session("monday").messages()] == ["hello", "hi"]
    times = [one.timestamp for one in (from_langchain(HumanMessage("a")), from_langchain(HumanMessage("b")))]
    assert all(before <= after for before, after in pairwise(times))


def test_a_different_message_with_the_same_id_is_an_error(file_url: str) -> None:
    agent: Any = create_agent(scripted("a", "b"), middleware=[MnemicMiddleware(file_url, user=None, session="s")])
    agent.invoke({"messages": [HumanMessage("one", id="same")]})
    with mnemic.open(file_url) as memory:
        (first, *_) = memory.scope().session("s").messages()
        with pytest.raises(ConflictError):
            memory.scope().session("s").add_many([from_langchain(HumanMessage("two", id="same"))])
        assert first.id == "same"


def test_an_untested_version_is_refused() -> None:
    with pytest.raises(ImportError, match=r"mnemic\[langchain\]"):
        require("langchain-core", "0.1", "0.2", "langchain")
