"""Calls through an adapter and the same through our API: `python -m benchmarks.adapter_cases FRAMEWORK FOLDER`.

It runs in the environment of the framework, and prints the results as JSON. Both calls do the same work on the same
data: an async adapter is compared with the async API on the same event loop, a sync one with the sync API. Objects of
a framework that say more than a message of ours are dumped into its metadata, and validated again when they are read,
by our own calls too; and what a framework asks for around a message, such as a summary, is done by both.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec.json import encode

import mnemic

from .measuring import Result, in_turns

CALLS, ROUNDS = 10, 31
"""How many calls are one turn, and how many turns each has."""
RATIO, MORE = 1.3, 100e-6
"""An adapter may take this many times as long, or this many seconds longer."""
QUESTION = "When do we land in Lisbon?"
PLACES = ("Lisbon", "Porto", "Faro", "Braga", "Evora", "Coimbra", "Aveiro")
NAMES = ("Ana", "Rui", "Ines", "Tiago", "Marta", "Pedro", "Sofia", "Joana", "Luis", "Clara", "Duarte")
THINGS = ("the keys of the house", "a tuba", "the tickets", "cheese and bread", "an umbrella")

Case: TypeAlias = tuple[str, Callable[[], Any], Callable[[], Any]]
"""What is done, through the adapter, and through our API."""


def text_of(n: int) -> str:
    """Return a text that only this number has."""
    place, name, thing = PLACES[n % len(PLACES)], NAMES[n % len(NAMES)], THINGS[n % len(THINGS)]
    return f"We land in {place} on day {n} at noon, {name} brings {thing}, and the tram number {n} takes us home."


class Bench:
    """A memory in a file, with a scope for the adapter, `theirs`, and one for our own calls, `ours`."""

    def __init__(self, folder: Path) -> None:
        self.url: str = f"sqlite:///{folder / 'adapters.db'}?synchronous=normal"
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()

    @cached_property
    def memory(self) -> mnemic.Memory:
        """A memory with sync calls."""
        return mnemic.open(self.url)

    @cached_property
    def async_memory(self) -> mnemic.AsyncMemory:
        """A memory with async calls, on the event loop of the bench."""

        async def opened() -> mnemic.AsyncMemory:
            return await mnemic.open_async(self.url)

        return self.loop.run_until_complete(opened())

    def scopes(self) -> tuple[mnemic.Scope, mnemic.Scope]:
        """Return the scope for the adapter and that for our own calls."""
        return self.memory.scope("theirs"), self.memory.scope("ours")

    def async_scopes(self) -> tuple[mnemic.AsyncScope, mnemic.AsyncScope]:
        """Return the two scopes of the async memory."""
        return self.async_memory.scope("theirs"), self.async_memory.scope("ours")

    def fill(self, scope: mnemic.Scope | mnemic.AsyncScope, memories: int = 300) -> None:
        """Remember as many texts."""
        done = scope.remember_many([text_of(n) for n in range(memories)])
        if inspect.isawaitable(done):
            self.run(done)

    def run(self, work: Any) -> Any:
        """Wait for a call on the event loop of the bench."""
        return self.loop.run_until_complete(work)

    def turn(self, work: Callable[[], Any]) -> Callable[[], object]:
        """Return one turn of a call: several, for an async one within the same run of the loop."""
        found = work()
        if not inspect.isawaitable(found):
            return lambda: [work() for _ in range(CALLS)]
        self.run(found)

        async def several() -> None:
            for _ in range(CALLS):
                await work()

        return lambda: self.loop.run_until_complete(several())


# ---------------------------------------------------------------- conversations


def openai_agents(bench: Bench) -> Iterator[Case]:
    """Yield the cases of sessions of the OpenAI Agents SDK."""
    from mnemic.adapters.openai_agents import MnemicSession

    theirs = MnemicSession("s", bench.async_memory, user="theirs")
    ours = bench.async_scopes()[1].session("s")
    one, two = count(), count()
    yield (
        "add an item",
        lambda: theirs.add_items([{"role": "user", "content": text_of(next(one))}]),
        lambda: ours.add("user", text_of(next(two))),
    )
    yield "read 20 items", lambda: theirs.get_items(20), lambda: ours.messages(20)

    def answer(n: int) -> Any:
        said = [{"type": "output_text", "text": text_of(n), "annotations": []}]
        return {"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed", "content": said}

    yield (
        "add a model's answer",
        lambda: theirs.add_items([answer(next(one))]),
        lambda: ours.add("assistant", text_of(n := next(two)), metadata=answer(n)),
    )


def claude_agent_sdk(bench: Bench) -> Iterator[Case]:
    """Yield the cases of the session store of the Claude Agent SDK."""
    from claude_agent_sdk import fold_session_summary

    from mnemic.adapters.claude_agent_sdk import MnemicSessionStore

    scopes = bench.async_scopes()
    store, key = MnemicSessionStore(scopes[0]), {"project_key": "p", "session_id": "s"}
    one, two = count(), count()

    def entry(n: int) -> Any:
        said = {"role": "user", "content": text_of(n)}
        fields = {"timestamp": "2026-11-16T19:00:00.000Z", "sessionId": "s", "isSidechain": False, "cwd": "/home/ana"}
        return {"type": "user", "uuid": str(uuid4()), "message": said, **fields}

    async def add() -> None:
        given = entry(next(two))
        project = scopes[1].scope("p")
        await project.session("s").add("user", given["message"]["content"], id=given["uuid"], metadata=given)
        stored = await project.state.get("summary/s")
        before: Any = None if stored is None else {"session_id": "s", "mtime": 0, "data": stored.value}
        after = fold_session_summary(before, key, [given])
        await project.state.set("summary/s", after["data"], if_version=0 if stored is None else stored.version)

    yield "append an entry", lambda: store.append(key, [entry(next(one))]), add
    short = {**key, "session_id": "short"}
    bench.run(store.append(short, [entry(n) for n in range(20)]))
    chat = scopes[1].session("short")
    bench.run(chat.add_many([{"role": "user", "content": text_of(n), "metadata": entry(n)} for n in range(20)]))
    yield "load 20 entries", lambda: store.load(short), lambda: chat.messages()


def pydantic_ai(bench: Bench) -> Iterator[Case]:
    """Yield the cases of pydantic-ai's conversation store."""
    from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart

    from mnemic.adapters.pydantic_ai import _RECORD, MnemicConversationStore

    scopes = bench.async_scopes()
    store, session, state = MnemicConversationStore(scopes[0]), scopes[1].session("c"), scopes[1].state
    one, two = count(), count()
    last: list[Any] = [None, None]

    def made(n: int, name: str = "c") -> Any:
        parent, revision = last
        said = ModelRequest([UserPromptPart(text_of(n))])
        entry = ConversationEntry(parent_id=parent, message=said)
        return ConversationRecord(conversation_id=name, head_id=entry.id), entry, revision

    def dumped(entry: ConversationEntry) -> dict[str, Any]:
        (message,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
        return {"parent": entry.parent_id, "message": message}

    async def write() -> None:
        record, entry, revision = made(next(one))
        await store.write_record(record, new_entries=[entry], expected_revision=revision)
        last[:] = entry.id, record.revision

    async def add() -> None:
        record, entry, _ = made(next(two))
        stored = await state.get("record")
        await session.add("user", entry.message.parts[0].content, id=entry.id, metadata=dumped(entry))
        await state.set_many({f"entry/{entry.id}": {"session": "c", "parent": entry.parent_id}})
        version = 0 if stored is None else stored.version
        await state.set("record", _RECORD.dump_python(record, mode="json"), if_version=version)

    yield "save a record with an entry", write, add
    last[:] = None, None
    chat = scopes[1].session("short")
    for n in range(20):
        record, entry, revision = made(n, "short")
        bench.run(chat.add("user", text_of(n), metadata=dumped(entry)))
        bench.run(store.write_record(record, new_entries=[entry], expected_revision=revision))
        last[:] = entry.id, record.revision
    head = last[0]

    async def read() -> list[ConversationEntry]:
        stored = await chat.messages()
        found = ModelMessagesTypeAdapter.validate_python([one.metadata["message"] for one in stored])
        return [
            ConversationEntry(id=one.id, parent_id=one.metadata["parent"], message=said)
            for one, said in zip(stored, found, strict=True)
        ]

    yield "read a history of 20 entries", lambda: store.read_history(head), read


def google_adk(bench: Bench) -> Iterator[Case]:
    """Yield the cases of ADK's sessions and long-term memory."""
    from google.adk.events import Event
    from google.adk.memory.base_memory_service import SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.genai import types

    from mnemic.adapters.google_adk import MnemicMemoryService, MnemicSessionService

    theirs, ours = bench.async_scopes()
    service, one, two = MnemicSessionService(theirs), count(), count()
    ids: Any = {"app_name": "app", "user_id": "ana"}
    session = bench.run(service.create_session(**ids, session_id="s"))
    chat, newest = ours.session("s"), GetSessionConfig(num_recent_events=20)

    def event(n: int) -> Event:
        content = types.Content(role="user", parts=[types.Part(text=text_of(n))])
        return Event(author="user", content=content, id=str(uuid4()))

    async def append() -> None:
        session.events.clear()
        await service.append_event(session, event(next(one)))

    async def add() -> None:
        made = event(n := next(two))
        await ours.state.get("session/s")  # there must be one
        await chat.add("user", text_of(n), id=made.id, metadata=made.model_dump(mode="json", exclude_defaults=True))

    async def read() -> Session:
        own, app = await ours.state.get_many(["session/s", "user"]), await ours.scope("app").state.get("app")
        events = [Event.model_validate(message.metadata) for message in await chat.messages(20)]
        state = {item.key: item.value for item in (*own.values(), app) if item is not None}
        info = await chat.info()
        updated = 0.0 if info is None else info.last_activity.timestamp()
        return Session(**ids, id="s", state=state, events=events, last_update_time=updated)

    yield "append an event", append, add
    yield "read 20 events", lambda: service.get_session(**ids, session_id="s", config=newest), read
    memories, kinds = MnemicMemoryService(theirs), ("memory", "note", "fact")
    bench.fill(theirs.scope("app", "ana"))
    bench.fill(ours)

    def entry(hit: mnemic.Hit) -> MemoryEntry:
        said = types.Content(role="user", parts=[types.Part(text=hit.text)])
        return MemoryEntry(content=said, id=hit.id, timestamp=None if hit.created is None else hit.created.isoformat())

    async def search() -> SearchMemoryResponse:
        hits = await ours.recall(QUESTION, 10, kinds=kinds, min_score=0.1)
        return SearchMemoryResponse(memories=[entry(hit) for hit in hits])

    yield "search", lambda: memories.search_memory(**ids, query=QUESTION), search


def strands(bench: Bench) -> Iterator[Case]:
    """Yield the cases of Strands' sessions."""
    from strands.types.session import Session, SessionMessage, SessionType

    from mnemic.adapters.strands import MnemicSessionRepository

    theirs, ours = bench.scopes()
    repository, one, two = MnemicSessionRepository(theirs), count(), count()
    repository.create_session(Session(session_id="s", session_type=SessionType.AGENT))
    chat = ours.scope("s").session("a")

    def message(n: int) -> SessionMessage:
        return SessionMessage({"role": "user", "content": [{"text": text_of(n)}]}, n)

    yield (
        "create a message",
        lambda: repository.create_message("s", "a", message(next(one))),
        lambda: chat.add("user", text_of(n := next(two)), id=str(n), metadata=message(n).to_dict()),
    )
    short = ours.scope("s").session("short")
    for n in range(20):
        repository.create_message("s", "short", message(n))
        short.add("user", text_of(n), metadata=message(n).to_dict())
    yield (
        "list 20 messages",
        lambda: repository.list_messages("s", "short"),
        lambda: [SessionMessage.from_dict(stored.metadata) for stored in short.messages()],
    )


def strands_store(bench: Bench) -> Iterator[Case]:
    """Yield the cases of Strands' memory stores."""
    from mnemic.adapters.strands import MnemicMemoryStore

    theirs, ours = bench.async_scopes()
    store, one, two = MnemicMemoryStore(theirs), count(1000), count(1000)
    bench.fill(theirs)
    bench.fill(ours)
    kinds = ("memory", "note", "fact")
    yield ("search", lambda: store.search(QUESTION), lambda: ours.recall(QUESTION, 10, kinds=kinds, min_score=0.1))
    yield ("add", lambda: store.add(text_of(next(one))), lambda: ours.remember(text_of(next(two)), duplicates="skip"))


def llama_index(bench: Bench) -> Iterator[Case]:
    """Yield the cases of LlamaIndex's chat memory."""
    from llama_index.core.base.llms.types import ChatMessage

    from mnemic.adapters.llama_index import MnemicMemory

    theirs, ours = bench.scopes()
    memory, chat, one, two = MnemicMemory(theirs, "s"), ours.session("s"), count(), count()

    def dumped(n: int) -> dict[str, Any]:
        return ChatMessage(role="user", content=text_of(n)).model_dump(mode="json", exclude_none=True)

    yield (
        "put a message",
        lambda: memory.put(ChatMessage(role="user", content=text_of(next(one)))),
        lambda: chat.add("user", text_of(n := next(two)), metadata=dumped(n)),
    )
    brief, short = MnemicMemory(theirs, "short"), ours.session("short")
    for n in range(20):
        brief.put(ChatMessage(role="user", content=text_of(n)))
        short.add("user", text_of(n), metadata=dumped(n))
    yield (
        "get 20 messages",
        lambda: brief.get(),
        lambda: [ChatMessage.model_validate(stored.metadata) for stored in short.window(30_000)],
    )


def llama_index_block(bench: Bench) -> Iterator[Case]:
    """Yield the cases of LlamaIndex's memory block."""
    from llama_index.core.base.llms.types import ChatMessage

    from mnemic.adapters.llama_index import MnemicMemoryBlock

    theirs, ours = bench.async_scopes()
    bench.fill(theirs)
    bench.fill(ours)
    block, asked = MnemicMemoryBlock(theirs), [ChatMessage(role="user", content=QUESTION)]
    yield "search", lambda: block.aget(asked), lambda: ours.recall(QUESTION, 5, min_score=0.1)


def agent_framework(bench: Bench) -> Iterator[Case]:
    """Yield the cases of the providers of Microsoft's Agent Framework."""
    from agent_framework import AgentSession, Message, SessionContext

    from mnemic.adapters.agent_framework import MnemicContextProvider, MnemicHistoryProvider

    theirs, ours = bench.async_scopes()
    history, chat, one, two = MnemicHistoryProvider(theirs), ours.session("s"), count(), count()

    async def add() -> None:
        known = [Message.from_dict(stored.metadata) for stored in await chat.messages(2)]
        new = Message("user", [text_of(n := next(two))])
        if new not in known:
            await chat.add("user", text_of(n), metadata=new.to_dict())

    async def read() -> list[Message]:
        return [Message.from_dict(stored.metadata) for stored in await short.messages()]

    yield "save a message", lambda: history.save_messages("s", [Message("user", [text_of(next(one))])]), add
    short = ours.session("short")
    for n in range(20):
        said = Message("user", [text_of(n)])
        bench.run(history.save_messages("short", [said]))
        bench.run(short.add("user", text_of(n), metadata=said.to_dict()))
    yield "get 20 messages", lambda: history.get_messages("short"), read
    bench.fill(theirs)
    bench.fill(ours)
    provider, session, agent = MnemicContextProvider(theirs), AgentSession(), Any

    def search() -> Any:
        context = SessionContext(session_id="s", input_messages=[Message("user", [QUESTION])])
        return provider.before_run(agent=agent, session=session, context=context, state={})

    yield "search before a run", search, lambda: ours.recall(QUESTION, 6, min_score=0.1)


def fence(bench: Bench) -> Iterator[Case]:
    """Yield the cases of Fence's memory."""
    from fence.templates.models import Message, TextContent

    from mnemic.adapters.fence import MnemicMemory

    theirs, ours = bench.scopes()
    memory, chat, one, two = MnemicMemory(theirs, "s"), ours.session("s"), count(), count()
    yield (
        "add a message",
        lambda: memory.add_message("user", text_of(next(one))),
        lambda: chat.add("user", text_of(next(two))),
    )
    brief, short = MnemicMemory(theirs, "short"), ours.session("short")
    for n in range(20):
        brief.add_message("user", text_of(n))
        short.add("user", text_of(n))
    yield (
        "get 20 messages",
        lambda: brief.get_messages(),
        lambda: [Message(role=one.role, content=[TextContent(text=one.text)]) for one in short.messages()],
    )


def tframex(bench: Bench) -> Iterator[Case]:
    """Yield the cases of TFrameX's memory stores."""
    from tframex.models.primitives import Message

    from mnemic.adapters.tframex import MnemicMemoryStore

    theirs, ours = bench.async_scopes()
    store, chat, one, two = MnemicMemoryStore(theirs, "s"), ours.session("s"), count(), count()
    yield (
        "add a message",
        lambda: store.add_message(Message(role="user", content=text_of(next(one)))),
        lambda: chat.add("user", text_of(next(two))),
    )

    async def read() -> list[Message]:
        return [Message(role=stored.role, content=stored.text) for stored in await chat.messages(20)]

    yield "read 20 messages", lambda: store.get_history(20), read


def marsys(bench: Bench) -> Iterator[Case]:
    """Yield the cases of MARSYS's conversations."""
    from marsys.agents.memory import Message

    from mnemic.adapters.marsys import ConversationMemory

    theirs, ours = bench.scopes()
    memory, chat, one, two = ConversationMemory(memory=theirs, session="s"), ours.session("s"), count(), count()

    def add() -> None:
        said = Message("user", text_of(next(two)))
        chat.add("user", said.content, id=said.message_id)

    def read() -> list[dict[str, Any]]:
        return [Message(stored.role, stored.content, stored.id).to_llm_dict() for stored in chat.messages(20)]

    yield "add a message", lambda: memory.add(role="user", content=text_of(next(one))), add
    yield "read 20 messages", lambda: memory.retrieve_recent(20), read


def hermes(bench: Bench) -> Iterator[Case]:
    """Yield the cases of Hermes' memory provider."""
    from mnemic.adapters.hermes import MnemicMemoryProvider

    ours = bench.scopes()[1]
    provider, chat, one, two = MnemicMemoryProvider(bench.memory, "theirs"), ours.session("s"), count(), count()
    provider.initialize("s", hermes_home=str(Path(sys.argv[2])))
    bench.fill(bench.scopes()[0])
    bench.fill(ours)

    def add() -> object:
        said = {"role": "user", "content": text_of(next(two))}
        return chat.add_many([said, {"role": "assistant", "content": "I will remember that."}])

    yield "store a turn", lambda: provider.sync_turn(text_of(next(one)), "I will remember that."), add
    yield "search before a turn", lambda: provider.prefetch(QUESTION), lambda: ours.recall(QUESTION, 18)


# ---------------------------------------------------------------- memories


def mem0(bench: Bench) -> Iterator[Case]:
    """Yield the cases of mem0's Memory."""
    from mnemic.adapters.mem0 import Memory

    theirs, ours = Memory(memory=bench.memory), bench.scopes()[1]
    one, two, user = count(), count(), {"user_id": "theirs"}
    yield (
        "add",
        lambda: theirs.add(text_of(next(one)), **user, infer=False),
        lambda: ours.remember(text_of(next(two)), metadata={"role": "user"}, source="mem0"),
    )
    yield (
        "search",
        lambda: theirs.search(QUESTION, filters=user, top_k=5),
        lambda: ours.recall(QUESTION, 5, kinds="memory", min_score=0.1, diverse=False),
    )
    id = theirs.add("Ana plays the tuba", **user, infer=False)["results"][0]["id"]
    ours.remember("Ana plays the tuba", id="tuba")
    yield "get", lambda: theirs.get(id), lambda: ours.memories.get("tuba")


def langgraph(bench: Bench) -> Iterator[Case]:
    """Yield the cases of LangGraph's store and checkpointer."""
    from langgraph.checkpoint.base import empty_checkpoint

    from mnemic.adapters.langgraph import MnemicSaver, MnemicStore

    ours = bench.scopes()[1]
    store, one, two = MnemicStore(bench.memory), count(), count()
    yield (
        "put an item",
        lambda: store.put(("theirs",), f"k{(n := next(one)) % 300}", {"memory": text_of(n)}),
        lambda: ours.remember(text_of(n := next(two)), id=f"k{n % 300}", source="langgraph"),
    )
    yield "get an item", lambda: store.get(("theirs",), "k7"), lambda: ours.memories.get("k7")
    yield (
        "search",
        lambda: store.search(("theirs",), query=QUESTION, limit=10),
        lambda: ours.recall(QUESTION, 10, kinds="memory", diverse=False),
    )
    saver, state = MnemicSaver(bench.memory), ours.scope("thread").state
    config: Any = {"configurable": {"thread_id": "theirs", "checkpoint_ns": ""}}
    meta: Any = {"source": "loop", "step": 1, "parents": {}}

    def checkpoint(n: int) -> tuple[Any, Any]:
        version = saver.get_next_version(f"{n}.0", None)
        filled: Any = {"channel_values": {"messages": [text_of(n)]}, "channel_versions": {"messages": version}}
        return {**empty_checkpoint(), **filled}, {"messages": version}

    def put() -> None:
        made, versions = checkpoint(next(one))
        saver.put(config, made, meta, versions)

    def packed(value: Any) -> Any:
        type, data = saver.serde.dumps_typed(value)
        return {"type": type, "data": b64encode(data).decode()}

    def set_many() -> None:
        made, versions = checkpoint(next(two))
        latest = state.get("latest")
        assert latest is None or latest.value < made["id"]
        values = made.pop("channel_values")
        key, version = f"checkpoint/{made['id']}", f"channel/messages/{versions['messages']}"
        state.set_many({version: packed(values["messages"]), key: packed([made, meta]), "latest": made["id"]})

    yield "put a checkpoint", put, set_many

    def loaded(value: Any) -> Any:
        return saver.serde.loads_typed((value["type"], b64decode(value["data"])))

    def read() -> Any:
        latest = state.get("latest")
        assert latest is not None
        item = state.get(f"checkpoint/{latest.value}")
        assert item is not None
        found, _ = loaded(item.value)
        versions = [f"channel/{name}/{version}" for name, version in found["channel_versions"].items()]
        values = [loaded(one.value) for one in state.get_many(versions).values()]
        return found, values, state.list(f"write/{latest.value}/")

    yield "get the newest checkpoint", lambda: saver.get_tuple(config), read


def langchain(bench: Bench) -> Iterator[Case]:
    """Yield the cases of LangChain's retriever and middleware."""
    from langchain_core.messages import AIMessage, HumanMessage, message_to_dict
    from langgraph.runtime import Runtime

    from mnemic.adapters.langchain import MnemicRetriever
    from mnemic.adapters.langchain_middleware import MnemicMiddleware

    theirs, ours = bench.scopes()
    bench.fill(theirs)
    bench.fill(ours)
    retriever = MnemicRetriever(memory=theirs)
    yield "retrieve", lambda: retriever.invoke(QUESTION), lambda: ours.recall(QUESTION)
    middleware, chat, two = MnemicMiddleware(theirs, user=None, session="s"), ours.session("s"), count()
    runtime: Any = Runtime()

    def begin() -> object:
        return middleware.before_agent({"messages": [HumanMessage(QUESTION, id=str(uuid4()))]}, runtime)

    def own() -> object:
        found = ours.context(QUESTION, 1000, k=8, min_score=0.1)
        said = HumanMessage(QUESTION, id=str(uuid4()))
        return found, chat.add("user", QUESTION, id=said.id, metadata=message_to_dict(said))

    yield "begin a turn: recall, and store the question", begin, own
    one, asked = count(), HumanMessage(QUESTION)

    def after() -> None:
        said: list[Any] = [asked, AIMessage(text_of(next(one)), id=str(uuid4()))]
        middleware.after_model({"messages": said}, runtime)

    def add() -> None:
        said = AIMessage(text_of(next(two)), id=str(uuid4()))
        chat.add("assistant", said.text, id=said.id, metadata=message_to_dict(said))

    yield "store an answer", after, add


def crewai(bench: Bench) -> Iterator[Case]:
    """Yield the cases of CrewAI's memory, without the thread and the events of CrewAI itself around them."""
    from crewai.memory.types import MemoryMatch, MemoryRecord

    from mnemic.adapters.crewai import MnemicMemory

    theirs, ours = bench.scopes()
    bench.fill(theirs)
    bench.fill(ours)
    memory, one, two = MnemicMemory(theirs), count(1000), count(1000)
    yield (
        "save a memory",
        lambda: memory._encode_batch([text_of(next(one))], "/", [], {}, 0.5),
        lambda: ours.remember(text_of(next(two)), importance=0.5, duplicates="skip"),
    )

    def search() -> list[MemoryMatch]:
        hits = [(hit, hit.memory) for hit in ours.recall(QUESTION, 10, kinds="memory") if hit.memory is not None]
        records = [MemoryRecord(id=one.id, content=one.text, importance=one.importance) for _, one in hits]
        return [MemoryMatch(record=record, score=hit.score) for record, (hit, _) in zip(records, hits, strict=True)]

    yield "search", lambda: memory._memories.recall(QUESTION, None, None, 10, (None,), uses=True), search


# ---------------------------------------------------------------- notes


def anthropic(bench: Bench) -> Iterator[Case]:
    """Yield the cases of the Anthropic SDK's memory tool."""
    from mnemic.adapters.anthropic import MnemicMemoryTool

    theirs, ours = bench.scopes()
    tool, one, two = MnemicMemoryTool(theirs), count(), count()
    yield (
        "create a file",
        lambda: tool.call({"command": "create", "path": f"/memories/{(n := next(one))}.md", "file_text": text_of(n)}),
        lambda: ours.notes.write(f"/memories/{(n := next(two))}.md", text_of(n), source="anthropic"),
    )
    view = {"command": "view", "path": "/memories/7.md"}
    yield "view a file", lambda: tool.call(view), lambda: ours.notes.read("/memories/7.md")


def opper(bench: Bench) -> Iterator[Case]:
    """Yield the cases of Opper's memory."""
    from mnemic.adapters.opper import MnemicMemory

    theirs, ours = bench.async_scopes()
    memory, one, two = MnemicMemory(theirs), count(), count()

    async def write() -> None:
        key = f"k{(n := next(two)) % 20}"
        known = {} if n < 20 else (await ours.notes.get(key)).metadata
        await ours.notes.write(key, text_of(n), description="a plan", metadata={**known, "n": n})

    yield ("write a value", lambda: memory.write(f"k{(n := next(one)) % 20}", text_of(n), "a plan", {"n": n}), write)
    yield "read a value", lambda: memory.read(["k7"]), lambda: ours.notes.read_many(["k7"])


CASES: dict[str, tuple[Callable[[Bench], Iterator[Case]], ...]] = {
    "agent_framework": (agent_framework,),
    "anthropic": (anthropic,),
    "claude_agent_sdk": (claude_agent_sdk,),
    "crewai": (crewai,),
    "fence": (fence,),
    "google_adk": (google_adk,),
    "hermes": (hermes,),
    "langchain": (langchain,),
    "langgraph": (langgraph,),
    "llama_index": (llama_index, llama_index_block),
    "marsys": (marsys,),
    "mem0": (mem0,),
    "openai_agents": (openai_agents,),
    "opper": (opper,),
    "pydantic_ai": (pydantic_ai,),
    "strands": (strands, strands_store),
    "tframex": (tframex,),
}
"""By framework: its cases."""


def measure(name: str, folder: Path) -> Iterator[Result]:
    """Yield the results of one framework."""
    for number, cases in enumerate(CASES[name]):
        place = folder / str(number)
        place.mkdir()
        bench = Bench(place)
        for what, theirs, ours in cases(bench):
            turns = bench.turn(theirs), bench.turn(ours)
            # Processor time: other programs on the machine do not change it.
            taken = in_turns(*turns, calls=1, rounds=ROUNDS, clock=time.process_time)
            adapter, own = (seconds / CALLS for seconds in taken)
            ratio, more = adapter / own, adapter - own
            reached = f"{ratio:.2f}×, {more * 1e6:+,.0f} µs ({adapter * 1e6:,.0f} against {own * 1e6:,.0f} µs)"
            yield Result(f"{name}: {what}", "at most 1.3×, or 100 µs more", reached, ratio <= RATIO or more <= MORE)


if __name__ == "__main__":
    sys.stdout.write(encode(list(measure(sys.argv[1], Path(sys.argv[2])))).decode())
