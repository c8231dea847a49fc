"""Google ADK: its own in-memory services do the same, and its real runner remembers."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.load_memory_tool import load_memory_tool as load_memory
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.google_adk import MnemicMemoryService, MnemicSessionService

Result = TypeVar("Result")


def said(text: str, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    return Event(author=author, content=types.Content(role=role, parts=[types.Part(text=text)]), **fields)


def text_of(one: Event | MemoryEntry) -> str | None:
    """Return the text of the first part."""
    assert one.content is not None
    assert one.content.parts
    return one.content.parts[0].text


def with_sessions(url: str, work: Callable[[MnemicSessionService], Coroutine[Any, Any, Result]]) -> Result:
    async def main() -> Result:
        service = MnemicSessionService(url)
        try:
            return await work(service)
        finally:
            await service.close()

    return asyncio.run(main())


# ---------------------------------------------------------------- the same as ADK's own sessions in memory

# Most operations are on one session, so that they meet.
APPS = st.sampled_from(["app", "app", "app", "other/app"])
USERS = st.sampled_from(["alice", "alice", "alice", "bob/1", " "])
IDS = st.sampled_from(["s1", "s1", "s1", " s1", "s/2", "%", ""])
KEYS = st.sampled_from(["k", "app:k", "user:k", "temp:k", "app:", "user:x", "k.2", ""])
VALUES = st.none() | st.integers(-9, 9) | st.text(alphabet="aé\n", max_size=3) | st.lists(st.booleans(), max_size=2)
STATES = st.dictionaries(KEYS, VALUES, max_size=4)
CONFIGS = st.none() | st.builds(
    GetSessionConfig,
    num_recent_events=st.none() | st.integers(0, 3),
    after_timestamp=st.none() | st.integers(0, 12).map(float),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), APPS, USERS, st.none() | IDS, STATES),
        st.tuples(st.just("get"), APPS, USERS, IDS, CONFIGS),
        st.tuples(st.just("append"), APPS, USERS, IDS, STATES, st.booleans()),
        st.tuples(st.just("append again"), APPS, USERS, IDS),
        st.tuples(st.just("append stale"), APPS, USERS, IDS, STATES),
        st.tuples(st.just("delete"), APPS, USERS, IDS),
        st.tuples(st.just("list"), APPS, st.none() | USERS),
        st.tuples(st.just("user state"), APPS, USERS),
    ),
    max_size=14,
)


class Player:
    """Plays operations on a service; generated ids are shown by their order, times of writing not at all."""

    def __init__(self, service: BaseSessionService) -> None:
        self.service = service
        self.names: dict[str, str] = {}
        self.opened: dict[tuple[str, str, str], Session] = {}
        self.clock = 0

    def shown(self, session: Session | None) -> Any:
        if session is None:
            return None
        dumped = session.model_dump(exclude={"last_update_time"})
        dumped["id"] = self.names.get(session.id, session.id)
        return dumped

    async def play(self, operation: tuple[Any, ...]) -> Any:
        try:
            return await self._play(*operation)
        except (AlreadyExistsError, SessionNotFoundError) as error:
            return type(error), str(error)

    async def _play(self, name: str, app: str, user: str | None, id: Any = None, *rest: Any) -> Any:
        place: Any = {"app_name": app, "user_id": user}
        match name:
            case "create":
                session = await self.service.create_session(**place, session_id=id, state=rest[0])
                if not (id or "").strip():
                    self.names[session.id] = f"new {len(self.names)}"
                return self.shown(session)
            case "get":
                return self.shown(await self.service.get_session(**place, session_id=id, config=rest[0]))
            case "delete":
                return await self.service.delete_session(**place, session_id=id)
            case "list":
                listed = await self.service.list_sessions(**place)
                return sorted((self.shown(one) for one in listed.sessions), key=lambda one: (one["user_id"], one["id"]))
            case "user state":
                return await self.service.get_user_state(**place)
        key = (app, user or "", id.strip())
        stale = self.opened.get(key) if name == "append stale" else None
        session = stale or await self.service.get_session(**place, session_id=id) or Session(id=key[2], **place)
        self.opened.setdefault(key, session)
        self.clock += 1
        if name == "append again":
            event = session.events[-1].model_copy(deep=True) if session.events else said("?", id="e", timestamp=0)
        else:
            event = said("hello", id=f"e{self.clock}", timestamp=float(self.clock))
            event.actions.state_delta = dict(rest[0])
            event.partial = True if len(rest) > 1 and rest[1] else None
        answer = await self.service.append_event(session, event)
        return answer.model_dump(), self.shown(session)


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_sessions_are_those_of_adk(kept: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=150 if kept == "memory" else 30)
    @given(OPERATIONS)
    def same(operations: list[tuple[Any, ...]]) -> None:
        url = "memory://" if kept == "memory" else f"sqlite:///{tmp_path_factory.mktemp('adk') / 'm.db'}"

        async def both(service: MnemicSessionService) -> None:
            ours, theirs = Player(service), Player(InMemorySessionService())
            for operation in [("create", "app", "alice", "s1", {}), *operations, ("list", "app", None)]:
                assert await ours.play(operation) == await theirs.play(operation), operation

        with_sessions(url, both)

    same()


def test_sessions_are_listed_by_their_last_update(file_url: str) -> None:
    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice"}
        first, second = [await service.create_session(**place, session_id=id) for id in ("b", "a")]
        await service.append_event(second, said("one"))
        await service.append_event(first, said("two"))
        listed = (await service.list_sessions(**place)).sessions
        assert [one.id for one in listed] == ["a", "b"]
        for one in listed:
            read = await service.get_session(**place, session_id=one.id)
            assert read is not None
            assert read.last_update_time == one.last_update_time > first.events[-1].timestamp - 60

    with_sessions(file_url, main)


# ---------------------------------------------------------------- every event comes back as it was

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PARTS: dict[str, types.Part] = {
    "text": types.Part(text="two\nlines é"),
    "empty text": types.Part(text=""),
    "thought": types.Part(text="hm", thought=True, thought_signature=b"\xff\xfb\x00"),
    "image": types.Part(inline_data=types.Blob(data=PNG, mime_type="image/png", display_name="dot")),
    "bytes": types.Part(inline_data=types.Blob(data=bytes(range(256)), mime_type="audio/pcm")),
    "no bytes": types.Part(inline_data=types.Blob(data=b"", mime_type="image/png")),
    "file": types.Part(file_data=types.FileData(file_uri="gs://bucket/a.png", mime_type="image/png")),
    "call": types.Part(function_call=types.FunctionCall(id="c1", name="f", args={"a": None, "b": [1.5, {"c": "é"}]})),
    "call without id": types.Part(function_call=types.FunctionCall(name="f")),
    "response": types.Part(function_response=types.FunctionResponse(id="c1", name="f", response={"result": {"x": 1}})),
    "response without id": types.Part(function_response=types.FunctionResponse(name="f")),
    "media response": types.Part(
        function_response=types.FunctionResponse(
            id="c2",
            name="f",
            response={"ok": True},
            parts=[types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(data=PNG, mime_type="image/png"))],
        )
    ),
    "code": types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)),
    "code result": types.Part(
        code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="2")
    ),
    "video": types.Part(
        file_data=types.FileData(file_uri="https://example.com/v.mp4", mime_type="video/mp4"),
        video_metadata=types.VideoMetadata(fps=1.0, start_offset="1s"),
    ),
    "metadata": types.Part(text="x", part_metadata={"a": None}),
    "server tool call": types.Part(
        tool_call=types.ToolCall(id="t1", tool_type=types.ToolType.URL_CONTEXT, args={"u": 1})
    ),
    "server tool response": types.Part(
        tool_response=types.ToolResponse(id="t1", tool_type=types.ToolType.URL_CONTEXT, response={"r": [1]})
    ),
}
EVENTS: dict[str, Event] = {
    **{name: Event(author="bot", content=types.Content(role="model", parts=[part])) for name, part in PARTS.items()},
    "all parts": Event(author="user", content=types.Content(role="user", parts=list(PARTS.values()))),
    "no content": Event(author="bot", invocation_id="i"),
    "no parts": Event(author="bot", content=types.Content(role="model", parts=[])),
    "no role": Event(author="user", content=types.Content(parts=[types.Part(text="a"), types.Part(text="b")])),
    "error": Event(author="bot", error_code="SAFETY", error_message="no", finish_reason=types.FinishReason.SAFETY),
    "live": said(
        "x",
        "bot",
        turn_complete=True,
        interrupted=False,
        input_transcription=types.Transcription(text="heard", finished=True),
        output_transcription=types.Transcription(text="spoken"),
    ),
    "usage": said(
        "x",
        "bot",
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=3),
        custom_metadata={"a": None, "b": [1]},
        grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
        citation_metadata=types.CitationMetadata(citations=[types.Citation(uri="u", start_index=1)]),
        avg_logprobs=-0.25,
        model_version="m-1",
        interaction_id="n",
        branch="a.b",
        isolation_scope="s",
        long_running_tool_ids={"c2", "c1"},
        output={"any": [None]},
    ),
    "actions": Event(
        author="bot",
        actions=EventActions(
            skip_summarization=True,
            state_delta={"k": None, "app:a": {"b": None}},
            artifact_delta={"f.txt": 2},
            transfer_to_agent="other",
            escalate=False,
            requested_tool_confirmations={"c1": ToolConfirmation(hint="sure?", payload={"p": 1})},
            compaction=EventCompaction(
                start_timestamp=1.5,
                end_timestamp=2.5,
                compacted_content=types.Content(role="model", parts=[PARTS["text"]]),
            ),
            end_of_agent=True,
            agent_state={"step": 1},
            rewind_before_invocation_id="i",
            route=["a", 1, True],
        ),
    ),
}


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_every_event_comes_back(url: str, file_url: str) -> None:
    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
        session = await service.create_session(**place)
        for event in EVENTS.values():
            await service.append_event(session, event.model_copy(deep=True))
        read = await service.get_session(**place)
        assert read is not None
        for (name, event), back in zip(EVENTS.items(), read.events, strict=True):
            assert back == event, name

    with_sessions("memory://" if url == "memory://" else file_url, main)


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=100)
@given(
    st.lists(
        st.builds(types.Part, text=st.text(max_size=5), thought=st.none() | st.booleans())
        | st.binary(max_size=9).map(lambda data: types.Part(inline_data=types.Blob(data=data, mime_type="image/png")))
        | st.dictionaries(st.text(max_size=3), JSONS, max_size=2).map(
            lambda value: types.Part(function_response=types.FunctionResponse(id="c", name="f", response=value))
        )
        | st.dictionaries(st.text(max_size=3), JSONS, max_size=2).map(
            lambda value: types.Part(function_call=types.FunctionCall(id="c", name="f", args=value))
        ),
        max_size=3,
    ),
    st.dictionaries(st.text(max_size=3), JSONS, max_size=2),
)
def test_any_event_comes_back(parts: list[types.Part], metadata: dict[str, Any]) -> None:
    event = Event(author="bot", content=types.Content(parts=parts), custom_metadata=metadata)

    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
        session = await service.create_session(**place)
        await service.append_event(session, event)
        read = await service.get_session(**place)
        assert read is not None
        assert read.events == [event]

    with_sessions("memory://", main)


def test_half_a_character_does_not_make_a_session_unreadable() -> None:
    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
        session = await service.create_session(**place)
        await service.append_event(session, said("cut \ud83d"))
        read = await service.get_session(**place)
        assert read is not None
        assert [text_of(event) for event in read.events] == ["cut \ufffd"]

    with_sessions("memory://", main)


# ---------------------------------------------------------------- what one gains: the same data in Mnemic


def test_events_are_messages_of_a_session_that_recall_finds(file_url: str) -> None:
    async def main(service: MnemicSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="alice", session_id="s")
        for part in ("call", "response"):
            await service.append_event(session, EVENTS[part].model_copy(deep=True))
        both = types.Content(role="user", parts=[PARTS["response"], PARTS["media response"]])
        await service.append_event(session, Event(author="bot", content=both))
        await service.append_event(session, said("My cat is called Mia"))
        await service.append_event(session, said("Nice", "bot"))

    with_sessions(file_url, main)
    with mnemic.open(file_url) as memory:
        alice = memory.scope("app", "alice")
        call, result, results, user, answer = alice.session("s").messages()
        assert [(c.id, c.name) for c in call.tool_calls] == [("c1", "f")]
        assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", {"result": {"x": 1}})
        assert [block["tool_use_id"] for block in results.content or []] == ["c1", "c2"]  # type: ignore[index]
        assert (user.role, user.content) == ("user", "My cat is called Mia")
        assert (answer.role, answer.name, answer.content) == ("assistant", "bot", "Nice")
        assert "Mia" not in str(user.metadata), "the text is stored once"
        assert alice.recall("the name of the cat")[0].text == "My cat is called Mia"
        assert memory.scope("app", "bob").recall("the name of the cat") == []


def test_a_session_of_mnemic_is_one_of_adk(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("app", "alice").session("s")
        chat.add("user", "hello")
        chat.add("assistant", "hi", tool_calls=[mnemic.ToolCall("c1", "f", '{"a": 1}')], name="bot")
        chat.add("tool", "done", tool_call_id="c1", name="f")
        chat.add("system", [{"type": "text", "text": "be brief"}])

    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice"}
        session = await service.get_session(**place, session_id="s")
        assert session is not None
        assert [one.id for one in (await service.list_sessions(app_name="app")).sessions] == ["s"]
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**place, session_id="s")
        _, answer, result, _ = session.events
        assert [one.author for one in session.events] == ["user", "bot", "f", "system"]
        assert [one.content and one.content.role for one in session.events] == ["user", "model", "user", "user"]
        assert answer.get_function_calls() == [types.FunctionCall(id="c1", name="f", args={"a": 1})]
        assert result.get_function_responses()[0].response == {"result": "done"}
        await service.append_event(session, said("more", actions=EventActions(state_delta={"k": 1})))
        read = await service.get_session(**place, session_id="s")
        assert read is not None
        assert (len(read.events), read.state) == (5, {"k": 1})

    with_sessions(file_url, main)


# ---------------------------------------------------------------- memory


def both_memories(work: Callable[[BaseMemoryService], Awaitable[Any]]) -> tuple[Any, Any]:
    async def main() -> tuple[Any, Any]:
        return await work(MnemicMemoryService()), await work(InMemoryMemoryService())

    return asyncio.run(main())


WORDS = ["cat", "garden", "python", "violin", "marathon", "telescope"]
MEMORY_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("session"), USERS, st.sampled_from(["s", "t"]), st.integers(1, 6)),
        st.tuples(st.just("events"), USERS, st.sampled_from(["s", "t"]), st.integers(0, 5)),
        st.tuples(st.just("delete"), USERS, st.sampled_from(["s", "t"]), st.integers(0, 6)),
    ),
    max_size=8,
)
TOPICS = [
    "my cat sleeps",
    "a garden with roses",
    "python code",
    "she plays violin",
    "marathon next week",
    "a telescope",
]


@given(MEMORY_OPERATIONS)
def test_memories_are_found_as_adk_finds_them(operations: list[tuple[str, str, str, int]]) -> None:
    """With one word that few texts have; with more, ours ranks by meaning."""

    async def play(service: BaseMemoryService) -> list[Any]:
        found: list[Any] = []
        searches = [("search", user, word, 0) for user in ("alice", "bob/1") for word in WORDS]
        for name, user, what, n in [("session", "alice", "s", 6), *operations, *searches]:
            place: Any = {"app_name": "app", "user_id": user}
            events = [said(text, id=f"{what}{i}", timestamp=i) for i, text in enumerate(TOPICS)]
            if name == "session":
                await service.add_session_to_memory(Session(id=what, **place, events=events))
            elif name == "events":
                await service.add_events_to_memory(**place, events=[events[n], Event(author="x")], session_id=what)
            elif name == "delete":
                await service.delete_memory(**place, memory_id=f"{what}{n}")
            else:
                answer = await service.search_memory(**place, query=what)
                found.append(sorted((one.id or "", one.author or "", str(one.content)) for one in answer.memories))
        return found

    ours, theirs = both_memories(play)
    for one, other in zip(ours, theirs, strict=True):
        # The same text in two sessions is found once.
        assert {text for _, _, text in one} == {text for _, _, text in other}
        assert set(one) <= set(other)


def test_memories_of_each_kind_come_back(file_url: str) -> None:
    async def main() -> None:
        service = MnemicMemoryService(file_url)
        place: Any = {"app_name": "app", "user_id": "alice"}
        content = types.Content(role="user", parts=[PARTS["image"], types.Part(text="the cat Mia"), PARTS["thought"]])
        entry = MemoryEntry(
            id="m1", content=content, author="alice", timestamp="last week", custom_metadata={"mood": "good"}
        )
        await service.add_memory(**place, memories=[entry], custom_metadata={"topic": "pets"})
        with pytest.raises(mnemic.InvalidValueError, match="needs text"):
            await service.add_memory(**place, memories=[MemoryEntry(content=types.Content(parts=[PARTS["image"]]))])
        await service.add_events_to_memory(**place, events=[said("the dog Rex", "bot", timestamp=0.5)])
        (found,) = (await service.search_memory(**place, query="Mia")).memories
        assert found == entry.model_copy(update={"custom_metadata": {"topic": "pets", "mood": "good"}})
        unstorable = said("the \0 parrot Polly", "bot")
        await service.add_events_to_memory(**place, events=[unstorable, said("the hamster Hugo")])
        for name, text in (("Polly", "the \0 parrot Polly"), ("Hugo", "the hamster Hugo")):
            (found,) = (await service.search_memory(**place, query=name)).memories
            assert text_of(found) == text
        (found,) = (await service.search_memory(**place, query="Rex")).memories
        assert (found.author, found.timestamp) == ("bot", "1970-01-01T00:00:00.500000+00:00")
        assert (await service.search_memory(app_name="app", user_id="bob", query="Mia")).memories == []
        await service.delete_memory(**place, memory_id="m1")
        await service.delete_memory(**place, memory_id="unknown")
        await service.delete_memory(**place)
        assert (await service.search_memory(**place, query="Mia")).memories == []
        await service.close()

    asyncio.run(main())
    with mnemic.open(file_url) as memory:
        memory.scope("app", "alice").remember("Alice plays the violin", metadata={"by": "us"})

    async def later() -> None:
        service = MnemicMemoryService(file_url)
        (found,) = (await service.search_memory(app_name="app", user_id="alice", query="violin")).memories
        assert found.content == types.Content(role="user", parts=[types.Part(text="Alice plays the violin")])
        assert (found.author, found.custom_metadata) == (None, {"by": "us"})
        await service.close()

    asyncio.run(later())


# ---------------------------------------------------------------- the real runner


class Scripted(BaseLlm):
    """A model that asks its memory once, and then says what it has heard."""

    async def generate_content_async(
        self, request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = request.contents[-1].parts or []
        heard = [part.text for content in request.contents for part in content.parts or [] if part.text]
        if answer := next((part.function_response for part in last if part.function_response), None):
            part = types.Part(text=f"memory: {'Mia' if 'Mia' in str(answer.response) else 'nothing'}")
        elif "remember" in str(heard[-1]):
            part = types.Part(function_call=types.FunctionCall(name="load_memory", args={"query": "name of the cat"}))
        else:
            part = types.Part(text=f"{len(heard)}: {heard[0]}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def ask(url: str, session: str, text: str, *, learn: bool = False) -> str:
    """Ask in a new process, as far as the services know."""
    sessions, memories = MnemicSessionService(url), MnemicMemoryService(url)
    agent = LlmAgent(name="bot", model=Scripted(model="scripted"), tools=[load_memory], output_key="answer")
    runner = Runner(
        app_name="app", agent=agent, session_service=sessions, memory_service=memories, auto_create_session=True
    )
    message = types.Content(role="user", parts=[types.Part(text=text)])
    answer = ""
    async for event in runner.run_async(user_id="alice", session_id=session, new_message=message):
        if event.is_final_response() and event.content and event.content.parts:
            answer = event.content.parts[0].text or ""
    read = await sessions.get_session(app_name="app", user_id="alice", session_id=session)
    assert read is not None
    assert read.state["answer"] == answer
    if learn:
        await memories.add_session_to_memory(read)
    await sessions.close()
    await memories.close()
    return answer


def test_an_agent_remembers(file_url: str) -> None:
    async def main() -> None:
        assert await ask(file_url, "monday", "My cat is Mia") == "1: My cat is Mia"
        assert await ask(file_url, "monday", "And now?", learn=True) == "3: My cat is Mia"
        assert await ask(file_url, "tuesday", "Do you remember my cat?") == "memory: Mia"

    asyncio.run(main())


# ---------------------------------------------------------------- several at once, and bad input

WRITER = """
import asyncio, sys
from google.adk.events import Event, EventActions
from google.genai import types
from mnemic.adapters.google_adk import MnemicSessionService

async def main(url, name):
    service = MnemicSessionService(url)
    session = await service.get_session(app_name="app", user_id="alice", session_id="s")
    for n in range(20):
        content = types.Content(role="user", parts=[types.Part(text=f"{name} {n}")])
        actions = EventActions(state_delta={f"{name}{n}": n, f"user:{name}{n}": n, f"app:{name}{n}": n})
        await service.append_event(session, Event(author="user", content=content, actions=actions))
    await service.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_two_processes_and_many_tasks_lose_nothing(file_url: str) -> None:
    place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
    with_sessions(file_url, lambda service: service.create_session(**place))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]

    async def main(service: MnemicSessionService) -> None:
        session = await service.get_session(**place)
        assert session is not None
        copies = [session.model_copy(deep=True) for _ in range(10)]
        adding = [
            service.append_event(one, said(f"c {n}", actions=EventActions(state_delta={f"c{n}": n})))
            for n, one in enumerate(copies)
        ]
        await asyncio.gather(*adding)
        assert [writer.wait(240) for writer in writers] == [0, 0]
        read = await service.get_session(**place)
        assert read is not None
        texts = [event.content.parts[0].text for event in read.events if event.content and event.content.parts]
        for name, count in (("a", 20), ("b", 20), ("c", 10)):
            mine = [text for text in texts if text and text.startswith(name)]
            assert sorted(mine) == sorted(f"{name} {n}" for n in range(count))
            assert all(read.state[f"{name}{n}"] == n for n in range(count))
        assert all(
            read.state[f"{where}{name}{n}"] == n for where in ("user:", "app:") for name in "ab" for n in range(20)
        )

    with_sessions(file_url, main)


def test_temporary_state_is_any_object() -> None:
    async def main(service: MnemicSessionService) -> None:
        client = object()
        place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
        session = await service.create_session(**place, state={"temp:client": client})
        event = said("hello", actions=EventActions(state_delta={"temp:client": client, "k": 1}))
        for _ in range(2):
            await service.append_event(session, event)
        assert session.state == {"temp:client": client, "k": 1}
        read = await service.get_session(**place)
        assert read is not None
        assert (read.events, read.state) == ([event], {"k": 1})

    with_sessions("memory://", main)


def test_a_session_is_created_once(file_url: str) -> None:
    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice", "session_id": "s"}
        found = await asyncio.gather(*[service.create_session(**place) for _ in range(5)], return_exceptions=True)
        assert sorted(type(one).__name__ for one in found) == ["AlreadyExistsError"] * 4 + ["Session"]

    with_sessions(file_url, main)


def test_bad_input_is_named() -> None:
    async def main(service: MnemicSessionService) -> None:
        place: Any = {"app_name": "app", "user_id": "alice"}
        with pytest.raises(mnemic.InvalidValueError, match="user_id"):
            await service.create_session(app_name="app", user_id=None)  # type: ignore[arg-type]
        with pytest.raises(mnemic.InvalidValueError, match="session_id has 201"):
            await service.create_session(**place, session_id="x" * 201)
        with pytest.raises(mnemic.InvalidValueError, match=r"state\.f cannot be kept as JSON: Unable to serialize"):
            await service.create_session(**place, state={"f": print})
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(mnemic.InvalidValueError, match=r"state\.user:c cannot be kept as JSON: Circular"):
            await service.create_session(**place, state={"user:c": circle})
        with pytest.raises(mnemic.InvalidValueError, match=r"state\.app:f\[0\] must be finite"):
            await service.create_session(**place, state={"k": 1, "user:k": 1, "app:f": [float("nan")]})
        assert (await service.list_sessions(**place)).sessions == []
        assert await service.get_user_state(**place) == {}
        session = await service.create_session(**place)
        await service.append_event(session, said("one", id="e"))
        with pytest.raises(mnemic.ConflictError):
            await service.append_event(session, said("two", id="e"))
        with pytest.raises(mnemic.InvalidValueError, match=r"state\.k must be finite"):
            await service.append_event(
                session, said("three", actions=EventActions(state_delta={"user:k": 1, "k": float("inf")}))
            )
        assert len(session.events) == 1
        assert await service.get_user_state(**place) == {}

    with_sessions("memory://", main)
    with pytest.raises(mnemic.InvalidValueError, match="scope, a memory or a URL"):
        MnemicSessionService(5)  # type: ignore[arg-type]


def test_an_open_memory_and_a_scope_are_used() -> None:
    async def main() -> None:
        async with mnemic.open_async("memory://") as memory:
            service = MnemicSessionService(memory.scope("tenant"))
            session = await service.create_session(app_name="app", user_id="alice", session_id="s")
            await service.append_event(session, said("hello"))
            assert [m.content for m in await memory.scope("tenant", "app", "alice").session("s").messages()] == [
                "hello"
            ]

    asyncio.run(main())
