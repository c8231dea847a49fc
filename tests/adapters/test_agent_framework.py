"""Microsoft Agent Framework: its own in-memory provider does the same, and its real agent remembers."""

from __future__ import annotations

import asyncio
import base64
import inspect
import subprocess
import sys
from collections.abc import AsyncIterable, Awaitable, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    SessionContext,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.agent_framework import MnemicContextProvider, MnemicHistoryProvider

PNG = "data:image/png;base64,iVBORw0KGgo="


def forms(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.to_dict() for message in messages]


# ---------------------------------------------------------------- the same as the framework's own provider in memory

SESSIONS = st.sampled_from(["s1", "s/2", "default", None])
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool", "system", "developer", "critic"]),
    contents=st.lists(
        st.sampled_from(["a", "b\0", ""]).map(Content.from_text)
        | st.just("c").map(lambda call: Content.from_function_call(call, "f", arguments={"a": None}))
        | st.just("c").map(lambda call: Content.from_function_result(call, result="r")),
        max_size=2,
    ),
    message_id=st.sampled_from([None, None, "m1", "m2"]),
    author_name=st.sampled_from([None, "al", "\n"]),
    additional_properties=st.dictionaries(st.sampled_from(["k", "_excluded"]), st.booleans() | st.none(), max_size=1),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), SESSIONS, st.lists(MESSAGES, max_size=3)),
        st.tuples(st.just("save again"), SESSIONS, st.lists(MESSAGES, max_size=2)),
        st.tuples(st.just("get"), SESSIONS, st.none()),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(OPERATIONS, st.booleans())
def test_a_history_is_that_of_the_framework(operations: list[tuple[str, str | None, Any]], skip: bool) -> None:
    async def main() -> None:
        ours = MnemicHistoryProvider(skip_excluded=skip)
        theirs = InMemoryHistoryProvider(skip_excluded=skip)
        states: dict[str, dict[str, Any]] = {}
        for name, session, messages in operations:
            state = states.setdefault(session or "default", {})
            if name == "save again":
                # Some callers give the whole conversation each time.
                messages = [*state.get("messages", []), *messages]
            if name != "get":
                await ours.save_messages(session, messages)
                await theirs.save_messages(session, messages, state=state)
            found = await ours.get_messages(session)
            assert forms(found) == forms(await theirs.get_messages(session, state=state))

    asyncio.run(main())


# ---------------------------------------------------------------- every message comes back as it was

CALL = Content.from_function_call("c1", "f", arguments={"a": [None, 1.5]}, id="o1", status="completed")
CONTENTS: dict[str, Content] = {
    "text": Content.from_text(
        "two\nlines é",
        annotations=[
            {"type": "citation", "title": "t", "annotated_regions": [{"type": "text_span", "start_index": 0}]}
        ],
        additional_properties={"a": None},
    ),
    "empty text": Content.from_text(""),
    "text_reasoning": Content.from_text_reasoning(id="r", text="hm", protected_data="s"),
    "data": Content.from_data(base64.b64decode(PNG.partition(",")[2]), "image/png", name="dot"),
    "uri": Content.from_uri("https://example.com/a.png", media_type="image/png"),
    "error": Content.from_error(message="no", error_code="E1", error_details="d"),
    "function_call": CALL,
    "function_call as text": Content.from_function_call("c2", "f", arguments='{"a"', hosted=True, server_name="s"),
    "function_result": Content.from_function_result("c1", result="done", id="o1"),
    "function_result of contents": Content.from_function_result(
        "c1", result=[Content.from_text("x"), Content.from_uri(PNG)]
    ),
    "usage": Content.from_usage({"input_token_count": 1, "total_token_count": 2}),
    "hosted_file": Content.from_hosted_file("f1", media_type="text/csv", name="n"),
    "hosted_vector_store": Content.from_hosted_vector_store("v1"),
    "code_interpreter_tool_call": Content.from_code_interpreter_tool_call(
        call_id="c", inputs=[Content.from_text("1+1")]
    ),
    "code_interpreter_tool_result": Content.from_code_interpreter_tool_result(
        call_id="c", outputs=[Content.from_text("2"), Content.from_hosted_file("f2")]
    ),
    "image_generation_tool_call": Content.from_image_generation_tool_call(image_id="i"),
    "image_generation_tool_result": Content.from_image_generation_tool_result(
        image_id="i", outputs=Content.from_uri(PNG)
    ),
    "mcp_server_tool_call": Content.from_mcp_server_tool_call("c", "t", server_name="s", arguments={"q": 1}),
    "mcp_server_tool_result": Content.from_mcp_server_tool_result("c", output=[Content.from_text("x"), {"k": None}]),
    "search_tool_call": Content.from_search_tool_call("c", tool_name="web", arguments={"q": "x"}, status="done"),
    "search_tool_result": Content.from_search_tool_result("c", tool_name="web", result={"r": [1]}),
    "shell_tool_call": Content.from_shell_tool_call(call_id="c", commands=["ls"], timeout_ms=5, max_output_length=9),
    "shell_tool_result": Content.from_shell_tool_result(
        call_id="c", outputs=[Content.from_shell_command_output(stdout="o", exit_code=0)]
    ),
    "shell_command_output": Content.from_shell_command_output(stdout="o", stderr="e", exit_code=1, timed_out=False),
    "computer_tool_call": Content.from_computer_tool_call(
        id="i", call_id="c", actions=[{"type": "click", "x": 1}], pending_safety_checks=[{"id": "p"}]
    ),
    "computer_tool_result": Content.from_computer_tool_result(call_id="c", screenshot=Content.from_uri(PNG)),
    "function_approval_request": Content.from_function_approval_request("a", CALL),
    "function_approval_response": Content.from_function_approval_response(True, "a", CALL),
    "oauth_consent_request": Content.from_oauth_consent_request("https://example.com/consent"),
}


def test_the_contents_are_complete() -> None:
    made = {name for name, _ in inspect.getmembers(Content) if name.startswith("from_") and name != "from_dict"}
    assert {f"from_{content.type}" for content in CONTENTS.values()} == made


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_every_message_comes_back(url: str, file_url: str) -> None:
    given = [Message("assistant", [content]) for content in CONTENTS.values()]
    given.append(Message("assistant", list(CONTENTS.values()), author_name="al", message_id="m"))
    given.append(Message("user", [], additional_properties={"a": {"b": [None]}}))

    async def main() -> None:
        provider = MnemicHistoryProvider(file_url if url == "file" else url)
        await provider.save_messages("s", given)
        back = await provider.get_messages("s")
        assert forms(back) == forms(given)
        assert [message.contents for message in back] == [message.contents for message in given]
        await provider.close()

    asyncio.run(main())


# ---------------------------------------------------------------- what one gains: the same data in Mnemic


def test_messages_are_those_of_a_session_that_recall_finds(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        provider = MnemicHistoryProvider(alice)
        messages = [
            Message("assistant", [CALL], author_name="bot"),
            Message("tool", [CONTENTS["function_result"]]),
            Message("tool", [CONTENTS["function_result"], Content.from_function_result("c2", result="x")]),
            Message("user", ["My cat is called Mia"]),
        ]
        asyncio.run(provider.save_messages("monday", messages))
        call, result, results, user = alice.session("monday").messages()
        assert ([(one.id, one.name) for one in call.tool_calls], call.name) == ([("c1", "f")], "bot")
        assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", "done")
        assert [block["tool_use_id"] for block in results.content or []] == ["c1", "c2"]  # type: ignore[index]
        assert "Mia" not in str(user.metadata), "the text is stored once"
        assert alice.recall("name of the cat")[0].text == "My cat is called Mia"
        assert memory.scope("bob").recall("name of the cat") == []
        assert asyncio.run(MnemicHistoryProvider(memory.scope("bob")).get_messages("monday")) == []


def test_messages_of_mnemic_are_those_of_the_framework(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("monday")
        chat.add("user", "hello", images=[PNG, "https://example.com/a.png"], name="al")
        chat.add("assistant", "hi", tool_calls=[mnemic.ToolCall("c1", "f", '{"a": 1}')])
        chat.add("tool", "done", tool_call_id="c1")
        user, answer, result = asyncio.run(MnemicHistoryProvider(memory.scope("alice")).get_messages("monday"))
        assert (user.text, user.author_name, user.contents[1].uri) == ("hello", "al", PNG)
        assert [content.type for content in user.contents] == ["text", "data", "uri"]
        assert (answer.text, answer.contents[1].parse_arguments()) == ("hi", {"a": 1})
        assert result.contents == [Content.from_function_result("c1", result="done")]


def test_a_long_history_is_cut_between_turns() -> None:
    async def main() -> None:
        provider = MnemicHistoryProvider(max_tokens=40)
        for n in range(10):
            await provider.save_messages(
                "s", [Message("user", [f"question {n}"]), Message("assistant", [f"answer {n}"])]
            )
        found = [message.text for message in await provider.get_messages("s")]
        assert 2 <= len(found) < 20
        assert found[-1] == "answer 9"
        await provider.save_messages("s", [Message("user", ["much " * 100])])
        assert len(await provider.get_messages("s")) == 1

    asyncio.run(main())


# ---------------------------------------------------------------- the real agent


class Scripted(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """A model that uses a tool once when asked to, and otherwise says how much was told, and whether Mia is in it."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]] | ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        last = messages[-1]
        if last.role == "user" and "tool" in last.text:
            contents = [Content.from_function_call("c1", "shout", arguments={"text": "hey"})]
        else:
            known = "Mia" if any("Mia" in message.text for message in messages) else "nothing"
            contents = [Content.from_text(f"{len(messages)} messages, {known}")]

        async def whole() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", contents)])

        async def parts() -> AsyncIterable[ChatResponseUpdate]:
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return self._build_response_stream(parts()) if stream else whole()


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def agent(*providers: Any) -> Agent[Any]:
    return Agent(Scripted(), tools=[shout], context_providers=providers)


def test_an_agent_continues_its_session(file_url: str) -> None:
    async def main() -> None:
        for stream in (False, True):
            id = f"monday {stream}"
            provider = MnemicHistoryProvider(file_url)
            first, session = agent(provider), AgentSession(session_id=id)
            assert (await first.run("My cat is Mia", session=session)).text == "1 messages, Mia"
            if stream:
                await first.run("use the tool", session=session, stream=True).get_final_response()
            else:
                await first.run("use the tool", session=session)
            told = await provider.get_messages(id)
            assert [message.role for message in told] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
            await provider.close()
            provider = MnemicHistoryProvider(file_url)
            again = AgentSession(session_id=id)
            assert (await agent(provider).run("Who?", session=again)).text == "7 messages, Mia"
            other = AgentSession(session_id=f"tuesday {stream}")
            assert (await agent(provider).run("Who?", session=other)).text == "1 messages, nothing"
            await provider.close()

    asyncio.run(main())


@pytest.mark.parametrize("history", ["ours", "theirs"])
def test_an_agent_remembers_other_sessions(history: str, file_url: str) -> None:
    async def main() -> None:
        with mnemic.open(file_url) as memory:
            alice = memory.scope("alice")
            first = MnemicHistoryProvider(alice) if history == "ours" else InMemoryHistoryProvider()
            remembering = agent(first, MnemicContextProvider(alice))
            await remembering.run("My cat is called Mia", session=AgentSession(session_id="monday"))
            session = AgentSession(session_id="tuesday")
            for asked in (2, 4):
                answer = await remembering.run("What is the name of my cat?", session=session)
                assert answer.text == f"{asked} messages, Mia"
            stored = alice.session("tuesday").messages()
            assert [message.role for message in stored] == ["user", "assistant", "user", "assistant"]
            assert "earlier conversations" not in str(stored)
            stranger = agent(MnemicContextProvider(memory.scope("bob")))
            assert "nothing" in (await stranger.run("What is the name of my cat?")).text

    asyncio.run(main())


def test_what_the_history_of_the_framework_has_is_not_recalled(file_url: str) -> None:
    async def main() -> None:
        with mnemic.open(file_url) as memory:
            remembering = agent(MnemicContextProvider(memory.scope("alice")))
            session = AgentSession(session_id="monday")
            for told in (1, 3):
                answer = await remembering.run("My cat is called Mia", session=session)
                assert answer.text == f"{told} messages, Mia"

    asyncio.run(main())


def test_the_context_says_where_it_comes_from() -> None:
    async def main() -> None:
        with mnemic.open("memory://") as memory:
            memory.scope().session("mon/day".replace("/", "%2F")).add("user", "My cat is called Mia")
            memory.scope().remember("The cat Mia likes fish")
            provider = MnemicContextProvider(memory, k=2, store=False)
            context = SessionContext(session_id="s", input_messages=[Message("user", ["the cat"])])
            session = AgentSession(session_id="s")
            await provider.before_run(agent=agent(), session=session, context=context, state={})
            (message,) = context.get_messages()
            assert (message.role, message.text.count("\n- ")) == ("user", 2)
            assert message.additional_properties["_attribution"] == {
                "source_id": "mnemic_context",
                "source_type": "MnemicContextProvider",
                "origin_session_ids": ["mon/day"],
            }
            await provider.after_run(agent=agent(), session=session, context=context, state={})
            assert memory.scope().session("s").messages() == []
            empty = SessionContext(session_id="s", input_messages=[Message("user", [])])
            await provider.before_run(agent=agent(), session=session, context=empty, state={})
            assert empty.get_messages() == []

    asyncio.run(main())


# ---------------------------------------------------------------- several at once, and bad input

WRITER = """
import asyncio, sys
from agent_framework import Message
from mnemic.adapters.agent_framework import MnemicHistoryProvider

async def main(url, name):
    provider = MnemicHistoryProvider(url)
    for n in range(20):
        await provider.save_messages("s", [Message("user", [f"{name} {n}"])])
    await provider.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_two_processes_and_many_tasks_lose_nothing(file_url: str) -> None:
    async def main() -> None:
        provider = MnemicHistoryProvider(file_url)
        await provider.save_messages("s", [Message("user", ["first"])])
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]  # noqa: ASYNC220
        await asyncio.gather(*[provider.save_messages("s", [Message("user", [f"c {n}"])]) for n in range(20)])
        assert [await asyncio.to_thread(writer.wait, 60) for writer in writers] == [0, 0]
        texts = [message.text for message in await provider.get_messages("s")]
        assert sorted(texts) == sorted(["first", *(f"{name} {n}" for name in "abc" for n in range(20))])
        await provider.close()

    asyncio.run(main())


def test_bad_input_is_named() -> None:
    async def main() -> None:
        provider = MnemicHistoryProvider()
        with pytest.raises(mnemic.InvalidValueError, match="not 'hello'"):
            await provider.save_messages("s", ["hello"])  # type: ignore[list-item]
        with pytest.raises(mnemic.InvalidValueError, match="session_id"):
            await provider.get_messages("x" * 201)
        with pytest.raises(mnemic.InvalidValueError):
            await provider.save_messages("s", [Message("user", ["x"], additional_properties={"f": float("nan")})])
        assert await provider.get_messages("s") == []

    asyncio.run(main())
    with pytest.raises(mnemic.InvalidValueError, match="max_tokens"):
        MnemicHistoryProvider(max_tokens=0)
    with pytest.raises(mnemic.InvalidValueError, match="scope, a memory or a URL"):
        MnemicContextProvider(5)  # type: ignore[arg-type]
