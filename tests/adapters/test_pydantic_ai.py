"""Conversations of pydantic-ai in a memory, beside its own in-memory store."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, DeferredToolRequests, ModelMessage, ModelRequest, ModelResponse
from pydantic_ai import messages as parts
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.function import AgentInfo, FunctionModel

import mnemic
from mnemic.adapters import pydantic_ai as adapter
from mnemic.adapters.pydantic_ai import MemoryCapability, MnemicConversationStore

Result = TypeVar("Result")
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n0000"


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def asked(*items: Any) -> ModelRequest:
    return ModelRequest([parts.UserPromptPart(items[0] if len(items) == 1 else items, timestamp=AT)], timestamp=AT)


def said(*given: Any, **fields: Any) -> ModelResponse:
    return ModelResponse(list(given), timestamp=AT, **fields)


CONTENTS: list[Any] = [
    "Which tram is this?",
    parts.TextContent("text", metadata={"a": 1}),
    parts.StructuredContent({"n": 1}),
    parts.ImageUrl("https://example.org/a.png"),
    parts.AudioUrl("https://example.org/a.mp3"),
    parts.DocumentUrl("https://example.org/a.pdf", force_download=True),
    parts.VideoUrl("https://example.org/a.mp4"),
    parts.BinaryContent(PNG, media_type="image/png"),
    parts.BinaryContent(b"%PDF", media_type="application/pdf", vendor_metadata={"p": 2}),
    parts.UploadedFile("file-1", provider_name="openai"),
    parts.CachePoint(),
]
MESSAGES: list[ModelMessage] = [
    ModelRequest(
        [
            parts.SystemPromptPart("Be kind.", timestamp=AT),
            parts.UserPromptPart("My sister Ines is allergic to shellfish.", timestamp=AT),
        ],
        timestamp=AT,
        instructions="Be brief.",
        run_id="r1",
        metadata={"a": [1]},
    ),
    said(
        parts.ThinkingPart("hm", signature="s", provider_name="p"),
        parts.TextPart("I look.", id="t1"),
        parts.ToolCallPart("find", {"line": 28}, "c1"),
        parts.ToolCallPart("find", '{"line": 12', "c2"),
        model_name="m",
        provider_name="p",
        finish_reason="tool_call",
    ),
    ModelRequest(
        [
            parts.ToolReturnPart("find", {"found": [1, None]}, "c1", timestamp=AT, metadata={"x": 1}),
            parts.ToolReturnPart("find", "no such tram", "c2", timestamp=AT, outcome="failed"),
            parts.UserPromptPart("And now?", timestamp=AT),
        ],
        timestamp=AT,
    ),
    said(parts.TextPart("Tram 28 goes to the harbour.")),
    asked(*CONTENTS),
    said(),
    ModelRequest([], timestamp=AT),
    ModelRequest(
        [parts.RetryFeedbackPart("Once more.", retry=parts.RetryInfo("model_retry"), timestamp=AT)], timestamp=AT
    ),
    ModelRequest([parts.ToolReturnPart("", "a tool without a name", "", timestamp=AT)], timestamp=AT),
    ModelRequest([parts.ToolReturnPart("read", "\x00ELF", "c4", timestamp=AT)], timestamp=AT),
    said(
        parts.NativeToolCallPart("web_search", {"query": "tram"}, "n1", provider_name="p"),
        parts.NativeToolReturnPart("web_search", {"hits": 1}, "n1", timestamp=AT, provider_name="p"),
        parts.CompactionPart("A summary", id="cm", provider_name="p"),
        parts.FilePart(parts.BinaryContent(PNG, media_type="image/png")),
    ),
    said(parts.SpeechPart(speaker="assistant", transcript="Hello aloud")),
    ModelRequest([parts.SpeechPart(speaker="user", transcript="Hi")], timestamp=AT),
]


def _classes(union: Any) -> Iterator[type]:
    for part in get_args(union):
        if inspect.isclass(part):
            yield part
        else:
            yield from _classes(part)


def test_every_message_comes_back_as_pydantic_ai_reads_it_back(file_url: str) -> None:
    with pytest.warns(Warning, match="deprecated"):
        retry = parts.RetryPromptPart("Again.", tool_name="find", tool_call_id="c3", timestamp=AT)
    messages = [*MESSAGES, ModelRequest([retry], timestamp=AT)]
    expected = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))

    async def use() -> list[ModelMessage]:
        store = MnemicConversationStore(file_url)
        await store.save(Conversation(messages=messages, conversation_id="all"))
        loaded = await store.load("all")
        await store.close()
        assert loaded is not None
        return loaded.messages

    assert run(use()) == expected
    used = {type(part) for message in messages for part in message.parts}
    # Parts that only differ by name from one that is there, or that pydantic-ai itself makes for a provider.
    missing = {kind.__name__ for kind in _classes(parts.ModelRequestPart) if kind not in used} | {
        kind.__name__ for kind in _classes(parts.ModelResponsePart) if kind not in used
    }
    assert {name for name in missing if "Delta" not in name and "ToolSearch" not in name} <= {
        "InstructionBaselinePart",
        "LoadCapabilityCallPart",
        "LoadCapabilityReturnPart",
    }


def test_what_was_said_is_found_and_nothing_else(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        run(MnemicConversationStore(alice).save(Conversation(messages=MESSAGES, conversation_id="trip")))
        hit = alice.recall("who has an allergy?", k=1)[0]
        assert (hit.text, hit.scope.path) == ("My sister Ines is allergic to shellfish.", "alice/trip")
        messages = alice.session("trip").messages()
        call = next(message for message in messages if message.tool_calls)
        assert [one.id for one in call.tool_calls] == ["c1", "c2"]
        assert [m.text for m in messages if m.tool_call_id in ("c1", "c2")] == ['{"found":[1,null]}', "no such tram"]
        texts = {one.text for one in alice.recall("kind brief shellfish harbour summary", k=50)}
        assert texts.isdisjoint({"Be kind.", "Be brief.", "hm", "A summary"})
        kept = "".join(str(message.metadata) for message in messages)
        assert "My sister" not in kept
        assert "no such tram" not in kept
        assert len(mnemic.to_openai(alice.session("trip").window(10_000))) > 5


TEXTS = st.text("abc", max_size=2)
TURN = st.lists(st.builds(asked, TEXTS) | st.builds(lambda text: said(parts.TextPart(text)), TEXTS), max_size=3)
NAMES = st.sampled_from(["a", "b/c", ""])
SCOPES = st.sampled_from([None, None, "alice", "bob"])
CALLS = st.one_of(
    st.tuples(st.just("save"), NAMES, TURN, SCOPES),
    st.tuples(st.just("rewrite"), NAMES, TURN, SCOPES),
    st.tuples(st.just("new"), NAMES, TURN, SCOPES),
    st.tuples(st.just("branch"), NAMES, st.integers(0, 3), SCOPES),
    st.tuples(st.just("back"), NAMES, st.integers(0, 3), SCOPES),
    st.tuples(st.just("fork"), NAMES, NAMES, SCOPES),
    st.tuples(st.just("delete"), NAMES, st.none(), SCOPES),
    st.tuples(st.just("load"), NAMES, st.integers(-1, 4), SCOPES),
)


async def _step(store: ConversationStore, name: str, id: str, value: Any, scope: str | None) -> Any:
    if name == "new":
        return len(await store.save(Conversation(messages=value, conversation_id=id), scope=scope))
    if name == "delete":
        return await store.delete(id, scope=scope)
    if name == "fork":
        return (await store.fork(id, new_conversation_id=value, scope=scope)).messages
    found = await store.load(id, limit=value if name == "load" else None, scope=scope)
    if found is None or name == "load":
        return None if found is None else found.messages
    if name == "branch":
        return (await store.branch(id, at=value, expected_revision=found.revision, scope=scope)).messages
    if name == "back":
        record = await store.read_record(id)
        tip = (record.branches if record is not None else [])[value : value + 1]
        entry = tip[0] if tip else "none"
        return (await store.branch(id, from_entry=entry, expected_revision=found.revision)).messages
    found.messages = [*value, *found.messages[:1]] if name == "rewrite" else [*found.messages, *value]
    return len(await store.save(found, scope=scope))


@given(st.lists(CALLS, max_size=12))
def test_it_does_what_the_in_memory_store_does(calls: list[tuple[str, str, Any, str | None]]) -> None:
    async def play(store: ConversationStore) -> list[Any]:
        results: list[Any] = []
        for call in calls:
            try:
                results.append(await _step(store, *call))
            except UserError as error:
                results.append(f"{type(error).__name__}: {str(error)[:20]}")
            for scope in (None, "alice"):
                for record in await store.list_conversations(scope=scope):
                    entries = await store.load_entries(record.conversation_id) or []
                    shown = (record.conversation_id, record.scope, record.forked_from, len(record.branches))
                    results.append([*shown, [entry.message for entry in entries]])
            results.append([record.conversation_id for record in await store.list_conversations(limit=1)])
        return results

    assert run(play(MnemicConversationStore())) == run(play(InMemoryConversationStore()))


async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for a model: it calls a tool, and then says how many messages it was given."""
    last = messages[-1].parts[-1]
    if isinstance(last, parts.UserPromptPart) and "tram" in str(last.content):
        return ModelResponse([parts.ToolCallPart("find_tram", {"line": 28}, f"c{len(messages)}")])
    return ModelResponse([parts.TextPart(f"I was given {len(messages)} messages.")])


def test_an_agent_continues_a_conversation(file_url: str) -> None:
    agent = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def find_tram(line: int) -> dict[str, int]:
        return {"line": line, "minutes": 4}

    async def talk(*stores: ConversationStore) -> list[Any]:
        outputs: list[Any] = []
        for store, prompt in zip(stores, ["When does the tram come?", "And after that?"], strict=True):
            conversation = await store.load("trip") or Conversation(conversation_id="trip")
            result = await agent.run(prompt, conversation=conversation)
            await store.save(result)
            outputs.append(result.output)
        loaded = await stores[-1].load("trip")
        assert loaded is not None
        return [
            outputs,
            [message.parts for message in loaded.messages if message.kind == "response"],
            loaded.usage.requests,
        ]

    own = InMemoryConversationStore()
    expected = run(talk(own, own))
    found = run(talk(MnemicConversationStore(file_url), MnemicConversationStore(file_url)))
    assert (found[0], found[2], len(found[1])) == (expected[0], expected[2], len(expected[1]))
    assert expected[0] == ["I was given 3 messages.", "I was given 5 messages."]
    with mnemic.open(file_url) as memory:
        assert memory.scope().recall("when does the tram come?", k=1)[0].text == "When does the tram come?"


def test_a_paused_conversation_keeps_what_it_waits_for(file_url: str) -> None:
    agent = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def find_tram(line: int) -> str:
        return f"tram {line}"

    async def use() -> str:
        result = await agent.run("tram?", conversation=Conversation(conversation_id="trip"))
        await MnemicConversationStore(file_url).save(result)
        loaded = await MnemicConversationStore(file_url).load("trip")
        assert loaded is not None
        assert loaded.deferred_tool_requests is not None
        answers = loaded.deferred_tool_requests.build_results(approve_all=True)
        done = await agent.run(conversation=loaded, deferred_tool_results=answers)
        await MnemicConversationStore(file_url).save(done)
        return str(done.output)

    assert run(use()) == "I was given 3 messages."


def test_the_capability_reads_the_same_session(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        run(MnemicConversationStore(memory).save(Conversation(messages=MESSAGES[:4], conversation_id="trip")))
        agent = Agent(FunctionModel(model), capabilities=[MemoryCapability(memory.scope(), "trip", tools=False)])
        assert run(agent.run("Hello")).output == "I was given 5 messages."
        loaded = run(MnemicConversationStore(memory).load("trip"))
        assert loaded is not None
        assert len(loaded.messages) == 4  # what others add to the session is not part of the conversation


def test_a_conversation_of_another_process_is_shared(file_url: str) -> None:
    code = (
        "import asyncio; from mnemic.adapters.pydantic_ai import MnemicConversationStore\n"
        f"loaded = asyncio.run(MnemicConversationStore({file_url!r}).load('trip'))\n"
        "print(len(loaded.messages))\n"
    )
    run(MnemicConversationStore(file_url).save(Conversation(messages=MESSAGES, conversation_id="trip")))
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "13\n"


def test_of_two_writers_at_once_one_is_told(file_url: str) -> None:
    async def use() -> None:
        stores = [MnemicConversationStore(file_url), MnemicConversationStore(file_url)]
        await stores[0].save(Conversation(messages=[asked("start")], conversation_id="trip"))

        async def add(n: int) -> None:
            while True:
                loaded = await stores[n % 2].load("trip")
                assert loaded is not None
                loaded.messages.append(asked(f"message {n}"))
                try:
                    await stores[n % 2].save(loaded)
                except ConversationConflict:
                    continue
                return

        await asyncio.gather(*[add(n) for n in range(8)])
        loaded = await stores[0].load("trip")
        assert loaded is not None
        texts = sorted(str(cast("Any", message.parts[0]).content) for message in loaded.messages)
        assert texts == sorted(["start", *[f"message {n}" for n in range(8)]])

    run(use())
    with mnemic.open(file_url) as memory:
        assert len(memory.scope().session("trip").messages()) == 9  # nothing of a save that failed


def test_a_conflict_between_the_check_and_the_write_leaves_nothing(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        store, rival = MnemicConversationStore(file_url), MnemicConversationStore(file_url)
        await store.save(Conversation(messages=[asked("one")], conversation_id="trip"))
        ours, theirs = await store.load("trip"), await rival.load("trip")
        assert ours is not None
        assert theirs is not None
        record = await store.read_record("trip")
        assert record is not None
        ours.messages.append(asked("mine"))
        theirs.messages.append(asked("theirs"))
        add_many = mnemic.AsyncSession.add_many

        async def overtaken(self: Any, messages: Any, **options: Any) -> Any:
            monkeypatch.setattr(mnemic.AsyncSession, "add_many", add_many)
            added = await self.add_many(messages, **options)
            with ThreadPoolExecutor() as pool:
                pool.submit(run, rival.save(theirs)).result()
            return added

        monkeypatch.setattr(mnemic.AsyncSession, "add_many", overtaken)
        with pytest.raises(ConversationConflict):
            await store.save(ours)

    run(use())
    with mnemic.open(file_url) as memory:
        assert [m.text for m in memory.scope().session("trip").messages()] == ["one", "theirs"]
        assert len(memory.scope().state.list("pydantic_ai/entry/")) == 2


def test_users_do_not_see_each_other(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        store = MnemicConversationStore(memory.scope("alice"))
        run(store.save(Conversation(messages=[asked("My door code is 4410.")], conversation_id="trip")))
        bob = MnemicConversationStore(memory.scope("bob"))
        assert run(bob.load("trip")) is None
        assert run(bob.list_conversations()) == []
        assert memory.scope("bob").recall("door code") == []
        run(store.delete("trip"))
        assert memory.scope("alice").recall("door code") == []
        assert memory.scope("alice").state.list() == []


def test_permission_to_download_from_private_addresses_is_not_restored() -> None:
    store = MnemicConversationStore()
    local = parts.ImageUrl("http://10.0.0.1/a.png", force_download="allow-local")
    run(store.save(Conversation(messages=[asked("look", local)], conversation_id="trip")))
    loaded = run(store.load("trip"))
    assert loaded is not None
    assert cast("Any", loaded.messages[0].parts[0]).content[1].force_download is True


def two_parts(text: str) -> ModelRequest:
    return ModelRequest([parts.UserPromptPart(f"{text} {n}", timestamp=AT) for n in (1, 2)], timestamp=AT)


def test_what_is_left_of_a_conversation_is_loaded(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        store, own = MnemicConversationStore(memory), InMemoryConversationStore()
        session = memory.scope().session("c")
        session.configure(max_messages=4)
        for n in range(3):
            conversation = run(store.load("c")) or Conversation(conversation_id="c")
            conversation.messages += [two_parts(f"question {n}"), said(parts.TextPart(f"answer {n}"))]
            run(store.save(conversation))
        kept = run(store.load("c"))
        assert kept is not None
        assert kept.messages == [said(parts.TextPart("answer 1")), *conversation.messages[-2:]]
        fork = run(store.fork("c", new_conversation_id="fork"))
        fork.messages.append(asked("and then?"))
        run(store.save(fork))
        for message in session.messages()[:-1]:  # by a person, in the dashboard
            session.delete(message)
        shorter = run(store.load("fork"))
        assert shorter is not None
        assert shorter.messages == [said(parts.TextPart("answer 2")), asked("and then?")]
        entries = run(store.load_entries("fork")) or []
        memory.scope().sessions.delete("c")
        assert [entry.message for entry in run(store.read_history(entries[-1].id))] == [asked("and then?")]
        with pytest.raises(LookupError, match="were deleted"):
            run(store.read_entry(entries[0].id))
        empty = run(store.load("c"))
        assert empty is not None
        assert empty.messages == []
        empty.messages.append(asked("still there?"))
        run(store.save(empty))
        assert run(store.load("c")) == empty
        run(store.delete("c"))
        assert run(store.load("c")) is run(own.load("c")) is None


def test_a_window_reads_only_the_newest_messages(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = MnemicConversationStore(file_url), []

    def count(messages: list[mnemic.Message]) -> Any:
        read.append(len(messages))
        return to_entries(messages)

    to_entries = adapter._to_entries
    monkeypatch.setattr(adapter, "_to_entries", count)
    conversation = Conversation(conversation_id="long", messages=[two_parts(str(n)) for n in range(300)])
    entries = run(store.save(conversation))
    window = run(store.load("long", limit=10))
    assert window is not None
    assert window.messages == conversation.messages[-10:]
    assert read == [40]
    assert run(store.read_history(entries[30].id, limit=3)) == entries[28:31]
    assert len(run(store.load_entries("long", limit=250)) or ()) == 250
    run(store.close())


def test_bad_input_is_told(file_url: str) -> None:
    store = MnemicConversationStore(file_url)
    with pytest.raises(mnemic.InvalidValueError, match="conversation_id"):
        run(store.load("x" * 300))
    with pytest.raises(LookupError, match="no entry with the id 'none'"):
        run(store.read_entry("none"))
    with pytest.raises(mnemic.InvalidValueError):
        MnemicConversationStore(cast("Any", 5))
