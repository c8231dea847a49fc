"""Strands: its own repository of files does the same, and its real agent remembers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.memory import MemoryManager
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.content import ContentBlock, Message, Messages
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType, decode_bytes_values
from strands.types.streaming import StreamEvent
from strands.vended_memory_stores.test_memory_store import TestMemoryStore

import mnemic
from mnemic.adapters.strands import MnemicMemoryStore, MnemicSessionRepository


def session(id: str) -> Session:
    return Session(session_id=id, session_type=SessionType.AGENT)


def said(n: int, text: str = "hello", role: Any = "user") -> SessionMessage:
    return SessionMessage({"role": role, "content": [{"text": text}]}, n)


@pytest.fixture
def repository(file_url: str) -> Iterator[MnemicSessionRepository]:
    opened = MnemicSessionRepository(file_url)
    yield opened
    opened.close()


# ---------------------------------------------------------------- the same as Strands' own repository of files

# Most operations are on one session and agent, so that they meet.
SESSIONS = st.sampled_from(["s1", "s1", "s1", "s 2"])
AGENTS = st.sampled_from(["a", "a", "a", "b.c"])
STATES = st.dictionaries(
    st.text(alphabet="aé", max_size=2), st.integers() | st.binary(max_size=2) | st.none(), max_size=2
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create_session"), SESSIONS),
        st.tuples(st.just("read_session"), SESSIONS),
        st.tuples(st.just("delete_session"), SESSIONS),
        st.tuples(st.just("create_agent"), SESSIONS, AGENTS, STATES),
        st.tuples(st.just("update_agent"), SESSIONS, AGENTS, STATES),
        st.tuples(st.just("read_agent"), SESSIONS, AGENTS),
        st.tuples(st.just("create_message"), SESSIONS, AGENTS, st.text(alphabet="aé\0 ", max_size=3)),
        st.tuples(st.just("update_message"), SESSIONS, AGENTS, st.integers(0, 3)),
        st.tuples(st.just("read_message"), SESSIONS, AGENTS, st.integers(0, 3)),
        st.tuples(st.just("list_messages"), SESSIONS, AGENTS, st.none() | st.integers(0, 3), st.integers(0, 3)),
    ),
    max_size=20,
)


class Player:
    """Plays operations on a repository; a message has the next number of its agent."""

    def __init__(self, repository: Any) -> None:
        self.repository = repository
        self.numbers: dict[tuple[str, str], int] = {}
        self.known: set[str] = set()

    def play(self, name: str, *given: Any) -> Any:
        # Strands calls the rest only for a session, and an agent, that it has created.
        if name.endswith(("agent", "message", "messages")) and given[0] not in self.known:
            return None
        try:
            return self._play(name, *given)
        except SessionException as error:
            return type(error)

    def _play(self, name: str, id: str, *rest: Any) -> Any:
        call = getattr(self.repository, name)
        match name:
            case "create_session":
                made = session(id)
                made.created_at = made.updated_at = "2026-01-01T00:00:00+00:00"
                self.known.add(id)
                return call(made)
            case "delete_session":
                self.known.discard(id)
                self.numbers = {key: n for key, n in self.numbers.items() if key[0] != id}
                return call(id)
            case "create_agent" | "update_agent":
                made_at = f"2026-01-0{1 if name == 'create_agent' else 2}"
                agent = SessionAgent(rest[0], rest[1], {"removed": 1}, {"x": b"\xff"}, made_at, made_at)
                call(id, agent)
                return agent
            case "create_message":
                n = self.numbers.setdefault((id, rest[0]), 0)
                self.numbers[id, rest[0]] += 1
                message = said(n, rest[1])
                message.created_at = message.updated_at = f"2026-01-01T00:00:0{n % 10}+00:00"
                return call(id, rest[0], message)
            case "update_message":
                message = said(rest[1], "secret")
                message.created_at = message.updated_at = "2027-01-01T00:00:00+00:00"
                message.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
                call(id, rest[0], message)
                return message
            case "list_messages":
                return call(id, rest[0], limit=rest[1], offset=rest[2])
        return call(id, *rest)


@settings(max_examples=150)
@given(OPERATIONS)
def test_sessions_are_those_of_strands(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours = Player(MnemicSessionRepository())
        theirs = Player(FileSessionManager("first", storage_dir=folder))
        for operation in [("create_session", "s1"), ("create_agent", "s1", "a", {}), *operations]:
            assert ours.play(*operation) == theirs.play(*operation), operation


# ---------------------------------------------------------------- every message comes back as it was

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
BLOCKS: dict[str, Any] = {
    "text": {"text": "two\nlines é"},
    "empty text": {"text": ""},
    "NUL": {"text": "a\0b"},
    "image": {"image": {"format": "png", "source": {"bytes": PNG}}},
    "image elsewhere": {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://b/k"}}}},
    "document": {
        "document": {
            "format": "pdf",
            "name": "d",
            "source": {"bytes": b"%PDF"},
            "citations": {"enabled": True},
            "context": "c",
        }
    },
    "video": {"video": {"format": "mp4", "source": {"bytes": b"\x00"}}},
    "audio": {"audio": {"format": "wav", "source": {"bytes": b"RIFF"}}},
    "guard": {"guardContent": {"text": {"text": "g", "qualifiers": ["query"]}}},
    "cache": {"cachePoint": {"type": "default", "ttl": "5m"}},
    "reasoning": {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
    "redacted reasoning": {"reasoningContent": {"redactedContent": b"\xff\xfe"}},
    "citations": {
        "citationsContent": {
            "content": [{"text": "cited"}],
            "citations": [{"title": "t", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}],
        }
    },
    "tool use": {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": [1.5, None]}, "reasoningSignature": "r"}},
    "tool result": {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "done"}]}},
    "json result": {"toolResult": {"toolUseId": "c2", "status": "success", "content": [{"json": {"x": [None]}}]}},
    "media result": {
        "toolResult": {
            "toolUseId": "c3",
            "status": "error",
            "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}, {"text": "see"}],
        }
    },
}
MESSAGES: dict[str, Any] = {
    **{name: {"role": "user", "content": [block]} for name, block in BLOCKS.items()},
    "all": {"role": "assistant", "content": list(BLOCKS.values())},
    "none": {"role": "assistant", "content": []},
    "metadata": {
        "role": "assistant",
        "content": [{"text": "x"}],
        "tracking_id": "t",
        "metadata": {
            "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
            "metrics": {"latencyMs": 1},
            "custom": {"a": None},
        },
    },
}


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_every_message_comes_back(url: str, file_url: str) -> None:
    repository = MnemicSessionRepository(file_url if url == "file" else url)
    repository.create_session(session("s"))
    given = [SessionMessage(message, n) for n, message in enumerate(MESSAGES.values())]
    for one in given:
        repository.create_message("s", "a", one)
    for name, one, back in zip(MESSAGES, given, repository.list_messages("s", "a"), strict=True):
        assert back == one, name
        assert repository.read_message("s", "a", one.message_id) == one, name
    repository.close()


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=4) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=5).map(lambda text: {"text": text}),
            JSONS.map(lambda value: {"document": {"source": value}}),
            JSONS.filter(lambda value: b"" not in [value]).map(
                lambda value: {
                    "toolResult": {"toolUseId": "c", "status": "success", "content": [{"text": "x"}, {"later": value}]}
                }
            ),
        ),
        max_size=3,
    )
)
def test_any_message_comes_back(blocks: list[ContentBlock]) -> None:
    repository = MnemicSessionRepository()
    message = SessionMessage({"role": "user", "content": blocks}, 0)
    repository.create_message("s", "a", message)
    assert repository.list_messages("s", "a") == [message]


# ---------------------------------------------------------------- what one gains: the same data in Mnemic


def test_messages_are_those_of_a_session_that_recall_finds(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        repository = MnemicSessionRepository(alice)
        for n, name in enumerate(("tool use", "tool result", "all")):
            repository.create_message("monday", "bot", SessionMessage(MESSAGES[name], n))
        repository.create_message("monday", "bot", said(3, "My cat is called Mia"))
        use, result, _, text = alice.scope("monday").session("bot").messages()
        assert [(call.id, call.name, json.loads(call.arguments)) for call in use.tool_calls] == [
            ("c1", "f", {"a": [1.5, None]})
        ]
        assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", "done")
        assert (text.role, text.content) == ("user", "My cat is called Mia")
        assert "Mia" not in str(text.metadata), "the text is stored once"
        assert alice.recall("name of the cat")[0].text == "My cat is called Mia"
        assert memory.scope("bob").recall("name of the cat") == []
        assert MnemicSessionRepository(memory.scope("bob")).read_message("monday", "bot", 3) is None
        redacted = said(3, "My cat is called Mia")
        redacted.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
        repository.update_message("monday", "bot", redacted)
        assert "Mia" not in str([hit.text for hit in alice.recall("name of the cat")])


def test_messages_of_mnemic_are_those_of_strands(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice", "monday").session("bot")
        chat.add("user", "hello", images=["data:image/png;base64,iVBORw0KGgo="])
        chat.add("assistant", "hi", tool_calls=[mnemic.ToolCall("c1", "f", '{"a": 1}')])
        chat.add("tool", "done", tool_call_id="c1")
        repository = MnemicSessionRepository(memory.scope("alice"))
        repository.create_message("monday", "bot", said(3, "more"))
        listed = repository.list_messages("monday", "bot")
        assert [one.message_id for one in listed] == [0, 1, 2, 3]
        assert [one.message["role"] for one in listed] == ["user", "assistant", "user", "user"]
        assert [one.message["content"] for one in listed] == [
            [{"text": "hello"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG\r\n\x1a\n"}}}],
            [{"text": "hi"}, {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}}],
            [{"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "done"}]}}],
            [{"text": "more"}],
        ]


# ---------------------------------------------------------------- the memory store


def test_a_store_finds_what_strands_finds() -> None:
    texts = ["The cat sleeps", "A garden with roses", "Python code", "She plays the violin", "The cat sleeps"]

    async def play(store: Any) -> list[Any]:
        for n, text in enumerate(texts):
            await store.add(text, {"n": n})
        found = []
        for query in ("cat", "garden", "violin", "tax invoice", ""):
            entries = await store.search(query, {"max_search_results": 2})
            found.append([(entry.content, entry.metadata["n"]) for entry in entries])
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="max_search_results"):
                await store.search("cat", {"max_search_results": wrong})
        return found

    ours = asyncio.run(play(MnemicMemoryStore(name="m")))
    assert ours == asyncio.run(play(TestMemoryStore(name="m", persist=False)))


def test_messages_are_remembered_once_each(file_url: str) -> None:
    async def main() -> None:
        store = MnemicMemoryStore(file_url, name="m", max_search_results=3)
        await store.initialize()
        messages: Messages = [
            {"role": "user", "content": [{"text": "I play the violin"}], "tracking_id": "1"},
            {"role": "assistant", "content": [BLOCKS["tool use"]], "tracking_id": "2"},
        ]
        for _ in range(2):
            await store.add_messages(messages)
        await store.add("\0 the tuba")
        await store.add_messages([{"role": "user", "content": [{"text": "my \0 drum"}], "tracking_id": "3"}])
        assert [(await store.search(word))[0].content for word in ("tuba", "drum")] == [
            "\ufffd the tuba",
            "my \ufffd drum",
        ]
        (entry,) = await store.search("violin")
        assert (entry.content, entry.metadata and entry.metadata["role"]) == ("I play the violin", "user")
        assert entry.metadata is not None
        assert {"id", "kind", "score", "created"} <= entry.metadata.keys()
        await store.close()

    asyncio.run(main())


# ---------------------------------------------------------------- the real agent


class Scripted(Model):
    """A model that uses a tool once when asked to, and otherwise says how much it was told, and by whom."""

    def update_config(self, **config: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *given: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Messages, *given: Any, **kwargs: Any) -> AsyncIterable[StreamEvent]:
        last = messages[-1]["content"]
        yield {"messageStart": {"role": "assistant"}}
        if "use the tool" in last[-1].get("text", ""):
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "shout", "toolUseId": "c1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"text": "hey"}'}}}}
            reason: Any = "tool_use"
        else:
            known = "Mia" if "Mia" in str(messages) else "nothing"
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"{len(messages)} messages, {known}"}}}
            reason = "end_turn"
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


@tool
def shout(text: str) -> str:
    """Shout.

    Args:
        text: what to shout
    """
    return text.upper()


def agent(url: str, session_id: str, **kwargs: Any) -> tuple[Agent, MnemicSessionRepository]:
    repository = MnemicSessionRepository(url)
    manager = RepositorySessionManager(session_id, session_repository=repository)
    return (
        Agent(
            model=Scripted(), agent_id="bot", session_manager=manager, tools=[shout], callback_handler=None, **kwargs
        ),
        repository,
    )


def test_an_agent_continues_its_session(file_url: str) -> None:
    first, repository = agent(file_url, "monday", state={"seen": 1})
    assert str(first("My cat is Mia")).strip() == "1 messages, Mia"
    first("use the tool")
    first.state.set("seen", 2)
    first("and so")
    told = first.messages
    repository.close()

    second, repository = agent(file_url, "monday")
    assert second.messages == told
    assert second.state.get("seen") == 2
    assert str(second("Who?")).strip() == f"{len(told) + 1} messages, Mia"
    repository.close()

    other, repository = agent(file_url, "tuesday")
    assert str(other("Who?")).strip() == "1 messages, nothing"
    repository.close()


def test_a_window_of_the_conversation_is_restored(file_url: str) -> None:
    window: Any = {"conversation_manager": SlidingWindowConversationManager(window_size=2)}
    first, repository = agent(file_url, "monday", **window)
    for n in range(4):
        first(f"turn {n}")
    told = first.messages
    repository.close()
    second, repository = agent(file_url, "monday", **window)
    assert second.messages == told
    assert len(repository.list_messages("monday", "bot")) == 8
    repository.close()


def test_an_agent_remembers_other_sessions(file_url: str) -> None:
    def remembering() -> tuple[Agent, MnemicMemoryStore]:
        store = MnemicMemoryStore(file_url, name="facts", extraction=True)
        return Agent(model=Scripted(), memory_manager=MemoryManager([store]), callback_handler=None), store

    first, store = remembering()
    first("My cat is called Mia")
    assert first.memory_manager is not None
    asyncio.run(first.memory_manager.flush())
    asyncio.run(store.close())
    second, store = remembering()
    assert str(second("What is my cat called?")).strip() == "1 messages, Mia"
    asyncio.run(store.close())


@pytest.mark.filterwarnings("ignore:graph has no")
def test_a_graph_of_agents_continues_as_from_files(file_url: str, tmp_path: Path) -> None:
    def graph(manager: RepositorySessionManager) -> Any:
        builder = GraphBuilder()
        builder.add_node(Agent(model=Scripted(), name="one", callback_handler=None), "one")
        builder.set_session_manager(manager)
        builder.set_graph_id("g")
        return builder.build()

    def played(repository: Any) -> Any:
        graph(RepositorySessionManager("s", session_repository=repository))("hello")
        stored = repository.read_multi_agent("s", "g")
        again = graph(RepositorySessionManager("s", session_repository=repository))
        states = [stored, again.serialize_state()]
        assert repository.read_multi_agent("s", "other") is None
        with pytest.raises(SessionException, match="does not exist"):
            repository.update_multi_agent("other", again)
        return [{name: state[name] for name in ("type", "id", "status", "completed_nodes")} for state in states]

    repository = MnemicSessionRepository(file_url)
    assert played(repository) == played(FileSessionManager("s", storage_dir=str(tmp_path)))
    repository.close()


# ---------------------------------------------------------------- several at once, and bad input

WRITER = """
import sys
from strands.types.session import SessionMessage
from mnemic.adapters.strands import MnemicSessionRepository

repository = MnemicSessionRepository(sys.argv[1])
for n in range(20):
    message = {"role": "user", "content": [{"text": f"{sys.argv[2]} {n}"}], "tracking_id": f"{sys.argv[2]}{n}"}
    repository.create_message("s", "a", SessionMessage(message, n))
repository.close()
"""


def test_two_processes_and_many_threads_lose_nothing(repository: MnemicSessionRepository, file_url: str) -> None:
    """The numbers of their messages are the same, since neither knows of the other."""
    repository.create_session(session("s"))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file_url, name]) for name in ("a", "b")]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: repository.create_message("s", "a", said(n, f"c {n}")), range(20)))
    assert [writer.wait(240) for writer in writers] == [0, 0]
    texts = [one.message["content"][0]["text"] for one in repository.list_messages("s", "a")]
    assert sorted(texts) == sorted(f"{name} {n}" for name in "abc" for n in range(20))
    for name in ("a", "b"):
        mine: Message = {"role": "user", "content": [{"text": f"{name} 7"}], "tracking_id": f"{name}7"}
        redacted = SessionMessage(mine, 7, redact_message={"role": "user", "content": [{"text": "[redacted]"}]})
        repository.update_message("s", "a", redacted)
    left = [one.to_message()["content"][0]["text"] for one in repository.list_messages("s", "a")]
    assert sorted(set(texts) - set(left)) in (["a 7", "b 7"], ["a 7", "c 7"], ["b 7", "c 7"])


def test_the_writer_of_a_message_redacts_it_though_others_have_its_number(repository: MnemicSessionRepository) -> None:
    mine, other = said(0, "a secret"), said(0, "hello")
    for one in (other, mine):
        repository.create_message("s", "a", one)
    mine.redact_message = {"role": "user", "content": [{"text": "[redacted]"}]}
    repository.update_message("s", "a", mine)
    left = [one.to_message()["content"][0]["text"] for one in repository.list_messages("s", "a")]
    assert left == ["hello", "[redacted]"]


def test_bad_input_is_named(repository: MnemicSessionRepository, tmp_path: Path) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="session_id"):
        repository.read_session(None)  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="message_id"):
        repository.read_message("s", "a", "1")  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="message_id"):
        repository.create_message("s", "a", said(-1))
    with pytest.raises(mnemic.InvalidValueError, match="cannot be kept as JSON"):
        repository.create_agent("s", SessionAgent("a", {"f": print}, {}))
    with pytest.raises(SessionException, match="does not exist"):
        repository.list_messages("s", "a")

    async def on_a_loop() -> None:
        async with mnemic.open_async("memory://") as memory:
            MnemicSessionRepository(memory).read_session("s")

    with pytest.raises(mnemic.EventLoopError):
        asyncio.run(on_a_loop())
    with pytest.raises(mnemic.UnknownSchemeError):
        asyncio.run(MnemicMemoryStore("nothing://x").initialize())
    for content in ("", " \n", None):
        with pytest.raises(mnemic.InvalidValueError, match="needs text"):
            asyncio.run(MnemicMemoryStore().add(content))  # type: ignore[arg-type]


def test_bytes_in_the_state_of_a_group_are_kept(file_url: str) -> None:
    class Group:
        id = "g"

        def serialize_state(self) -> dict[str, Any]:
            return {"task": [{"image": {"source": {"bytes": PNG}}}]}

    repository, group = MnemicSessionRepository(file_url), Group()
    for write in (repository.create_multi_agent, repository.update_multi_agent):
        write("s", group)  # type: ignore[arg-type]
        stored = repository.read_multi_agent("s", "g")
        assert decode_bytes_values(stored) == group.serialize_state()
    repository.close()
