"""Transcripts of the Claude Agent SDK in a memory, beside its own in-memory store."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    InMemorySessionStore,
    ResultMessage,
    SessionStore,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    get_subagent_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    query,
    rename_session_via_store,
    tag_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance
from claude_agent_sdk.types import SessionKey
from hypothesis import given
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.claude_agent_sdk import MnemicSessionStore

Result = TypeVar("Result")
MONDAY = "6b1f0e9c-0000-4000-8000-000000000001"
KEY: SessionKey = {"project_key": "-home-alice-trip", "session_id": MONDAY}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def line(n: int, type: str, **fields: Any) -> Any:
    uuid, time = f"00000000-0000-4000-8000-{n:012}", f"2026-11-16T19:00:{n:02}.000Z"
    return {"type": type, "uuid": uuid, "timestamp": time, "sessionId": MONDAY, "isSidechain": False, **fields}


def said(n: int, role: str, content: Any, **fields: Any) -> Any:
    return line(n, role, message={"role": role, "content": content, "model": "m"}, **fields)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
ENTRIES: list[Any] = [
    {"type": "queue-operation", "operation": "enqueue", "content": "Where is my sister?"},
    said(1, "user", "My sister Ines is allergic to shellfish."),
    line(2, "attachment", attachment={"type": "date", "date": "2026-11-16"}),
    said(3, "assistant", [{"type": "thinking", "thinking": "An allergy to shellfish.", "signature": "s"}]),
    said(4, "assistant", [{"type": "text", "text": "I will remember the allergy."}]),
    said(
        5, "assistant", [{"type": "tool_use", "id": "t1", "name": "Write", "input": {"path": "a", "n": [1, None, 2.5]}}]
    ),
    said(
        6,
        "user",
        [{"type": "tool_result", "tool_use_id": "t1", "content": "written", "is_error": False}],
        toolUseResult={"type": "create"},
    ),
    said(
        7,
        "assistant",
        [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Two at once."},
            {"type": "tool_use", "id": "t2", "name": "Read", "input": {}},
            {"type": "tool_use", "id": "t3", "name": "Read", "input": "not an object"},
        ],
    ),
    said(8, "user", [{"type": "tool_result", "tool_use_id": "t2"}, {"type": "text", "text": "Stop."}]),
    said(9, "user", [{"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "text", "text": "a"}, IMAGE]}]),
    said(10, "user", [IMAGE, {"type": "text", "text": "Which tram is this?"}]),
    said(11, "user", "<command-name>/compact</command-name>"),
    said(12, "user", "A summary about shellfish", isCompactSummary=True),
    line(13, "attachment", attachment={"type": "queued_command", "prompt": "Faster, please.", "commandMode": "prompt"}),
    line(14, "system", subtype="compact_boundary", content="Compacted"),
    {"type": "summary", "summary": "Allergies", "leafUuid": "x"},
    {"type": "custom-title", "customTitle": "Ines", "sessionId": MONDAY},
    {"type": "tag", "tag": "family", "sessionId": MONDAY},
    said(15, "assistant", [], isApiErrorMessage=True),
    said(16, "assistant", "\x00binary\ud800"),
    said(17, "tool", 1),
    {"type": "user", "message": "no message", "timestamp": 5, "uuid": ""},
]


def test_the_conformance_suite_of_the_sdk(tmp_path: Path) -> None:
    run(run_session_store_conformance(MnemicSessionStore))
    files = iter(range(100))
    run(run_session_store_conformance(lambda: MnemicSessionStore(f"sqlite:///{tmp_path}/{next(files)}.db")))


def test_every_type_of_entry_comes_back_unchanged(file_url: str) -> None:
    async def use() -> Any:
        store = MnemicSessionStore(file_url)
        await store.append(KEY, ENTRIES[:5])
        await store.append(KEY, ENTRIES[5:])
        found = await store.load(KEY)
        await store.close()
        assert await store.load({**KEY, "session_id": "other"}) is None
        return found

    assert run(use()) == ENTRIES


def test_what_was_said_is_found_and_nothing_else(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        run(MnemicSessionStore(alice).append(KEY, ENTRIES))
        hits = alice.recall("who has an allergy to shellfish?", k=20)
        assert hits[0].text == "My sister Ines is allergic to shellfish."
        assert hits[0].scope.path == f"alice/-home-alice-trip/{MONDAY}"
        texts = {hit.text for hit in alice.recall("a shellfish summary, written binary, with thinking", k=50)}
        assert texts >= {"My sister Ines is allergic to shellfish.", "\ufffdbinary\ufffd"}
        assert texts.isdisjoint({"written", "A summary about shellfish", "An allergy to shellfish."})
        session = alice.scope("-home-alice-trip").session(MONDAY)
        spoken = [one for one in session.messages(roles=["user", "assistant"]) if one.content]
        assert [message.text for message in spoken][:-2] == [
            "My sister Ines is allergic to shellfish.",
            "I will remember the allergy.",
            "Two at once.",
            "Stop.",
            "Which tram is this?",
        ]
        first = spoken[0]
        assert (first.id, first.timestamp.isoformat()) == (ENTRIES[1]["uuid"], "2026-11-16T19:00:01+00:00")
        call = next(message for message in session.messages() if message.tool_calls)
        assert (call.tool_calls[0].id, call.tool_calls[0].name) == ("t1", "Write")
        assert [message.text for message in session.messages() if message.tool_call_id == "t1"] == ["written"]
        window = mnemic.to_openai(session.window(10_000))
        assert all(one["content"] or one.get("tool_calls") or one.get("tool_call_id") for one in window)
        kept = [str(message.metadata) for message in session.messages(roles=["user", "assistant"])]
        assert not any("My sister" in text or "2.5" in text or "iVBOR" in text for text in kept)


TEXTS = st.text(max_size=5)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])},
    optional={
        "text": JSON,
        "id": TEXTS,
        "name": TEXTS,
        "input": JSON,
        "content": JSON,
        "tool_use_id": TEXTS,
        "source": JSON,
    },
)
ENTRY = st.sampled_from(ENTRIES) | st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "assistant", "tag", "x"])},
    optional={
        "message": st.fixed_dictionaries(
            {},
            optional={
                "role": st.sampled_from(["user", "assistant", "x"]),
                "content": st.lists(BLOCK | JSON, max_size=3) | JSON,
            },
        ),
        "timestamp": st.sampled_from(["2026-11-16T19:00:00Z", "yesterday", ""]),
        "tag": TEXTS,
        "customTitle": TEXTS,
        "isMeta": st.booleans(),
        "attachment": JSON,
    },
)
KEYS = st.fixed_dictionaries(
    {"project_key": st.sampled_from(["p", "q%2F", "long" * 52]), "session_id": st.sampled_from([MONDAY, "s", " %"])},
    optional={"subpath": st.sampled_from(["subagents/agent-1", "subagents/deep/agent-2"])},
)
CALLS = st.tuples(
    st.sampled_from(["append", "append", "append", "delete"]), KEYS, st.lists(ENTRY, min_size=1, max_size=4)
)


@given(st.lists(CALLS, max_size=8))
def test_it_does_what_the_in_memory_store_does(calls: list[tuple[str, Any, list[Any]]]) -> None:
    """Except that it keeps an entry with a known uuid once, as the interface asks for."""

    async def play(store: SessionStore) -> list[Any]:
        results: list[Any] = []
        known: set[tuple[Any, ...]] = set()
        for name, key, entries in calls:
            place = tuple(key.values())
            if name == "delete":
                await store.delete(key)
                known = {one for one in known if one[: len(place)] != place}
            else:
                new = [entry for entry in entries if not entry.get("uuid") or (*place, entry["uuid"]) not in known]
                new = [entry for n, entry in enumerate(new) if not entry.get("uuid") or entry not in new[:n]]
                known |= {(*place, entry["uuid"]) for entry in new if entry.get("uuid")}
                if new:
                    await store.append(key, new if isinstance(store, InMemorySessionStore) else entries)
                    results.append(await store.load(key))
            for project in ("p", "q%2F", "long" * 52):
                results.append(sorted(one["session_id"] for one in await store.list_sessions(project)))
                summaries = await store.list_session_summaries(project)
                results.append(sorted((one["session_id"], json.dumps(one["data"])) for one in summaries))
            results.append(
                sorted(await store.list_subkeys(cast("Any", {k: v for k, v in key.items() if k != "subpath"})))
            )
        return results

    assert run(play(MnemicSessionStore())) == run(play(InMemorySessionStore()))


class FakeApi(BaseHTTPRequestHandler):
    """Stands in for the model: it says how many messages it was given."""

    requests: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(asked)
        text = f"I was given {len(asked['messages'])} messages."
        message = {"id": "m", "type": "message", "role": "assistant", "model": asked["model"], "content": []}
        start = {
            **message,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        stop = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 9}}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", **stop},
            {"type": "message_stop"},
        ]
        body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApi)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_agent_resumes_a_transcript_on_another_machine(file_url: str, tmp_path: Path, api: str) -> None:
    """The command line of the package runs twice, each time without files of its own."""

    async def ask(prompt: str, home: str, resume: str | None = None) -> ResultMessage:
        (tmp_path / home).mkdir()
        env = {
            "ANTHROPIC_BASE_URL": api,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(tmp_path / home),
            "HOME": str(tmp_path / home),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        store = MnemicSessionStore(file_url)
        options = ClaudeAgentOptions(session_store=store, env=env, cwd=tmp_path, resume=resume, setting_sources=[])
        result = None
        async for message in query(prompt=prompt, options=options):
            result = message if isinstance(message, ResultMessage) else result
        await store.close()
        assert result is not None
        return result

    first = run(ask("My sister is allergic to shellfish.", "first"))
    second = run(ask("What should I not cook?", "second", first.session_id))
    assert second.session_id == first.session_id
    assert "allergic to shellfish" in json.dumps(FakeApi.requests[-1]["messages"])
    with mnemic.open(file_url) as memory:
        hit = memory.scope().recall("who has an allergy?", k=1)[0]
        assert hit.text == "My sister is allergic to shellfish."
        assert hit.scope.path == f"{project_key_for_directory(tmp_path)}/{first.session_id}"


def test_the_functions_of_the_sdk_work_on_it(file_url: str, tmp_path: Path) -> None:
    async def use(store: SessionStore) -> list[Any]:
        key: SessionKey = {"project_key": project_key_for_directory(tmp_path), "session_id": MONDAY}
        chain = [
            said(1, "user", "Hello", parentUuid=None),
            said(2, "assistant", "Hi", parentUuid=said(1, "", "")["uuid"]),
        ]
        await store.append(key, chain)
        agent = [said(3, "user", "Look", isSidechain=True, agentId="a1", parentUuid=None)]
        await store.append({**key, "subpath": "subagents/agent-a1"}, agent)
        where: Any = {"directory": str(tmp_path)}
        await rename_session_via_store(store, MONDAY, "Greeting", **where)
        await tag_session_via_store(store, MONDAY, "kind", **where)
        fork = await fork_session_via_store(store, MONDAY, **where)
        listed = await list_sessions_from_store(store, **where)
        messages = await get_session_messages_from_store(store, fork.session_id, **where)
        agents = await list_subagents_from_store(store, MONDAY, **where)
        seen = await get_subagent_messages_from_store(store, MONDAY, "a1", **where)
        await delete_session_via_store(store, MONDAY, **where)
        left = await list_sessions_from_store(store, **where)
        return [
            sorted((str(one.custom_title), str(one.tag), str(one.first_prompt)) for one in listed),
            [one.message for one in messages],
            agents,
            [one.message for one in seen],
            len(left),
        ]

    assert run(use(MnemicSessionStore(file_url))) == run(use(InMemorySessionStore()))


def test_a_store_of_another_process_is_shared(file_url: str) -> None:
    code = (
        "import asyncio; from mnemic.adapters.claude_agent_sdk import MnemicSessionStore\n"
        f"store, key = MnemicSessionStore({file_url!r}), {KEY!r}\n"
        "asyncio.run(store.append(key, [{'type': 'x', 'n': 2}]))\n"
        "print(len(asyncio.run(store.load(key))))\n"
    )
    store = MnemicSessionStore(file_url)
    run(store.append(KEY, [{"type": "x", "n": 1}]))  # type: ignore[typeddict-unknown-key]
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "2\n"
    assert run(store.load(KEY)) == [{"type": "x", "n": 1}, {"type": "x", "n": 2}]


def test_writers_at_once_lose_nothing(file_url: str) -> None:
    async def write() -> None:
        stores = [MnemicSessionStore(file_url), MnemicSessionStore(file_url)]
        tags = [cast("Any", {"type": "tag", "tag": f"{n}", "customTitle": f"{n}"}) for n in range(20)]
        await asyncio.gather(*[stores[n % 2].append(KEY, [tag]) for n, tag in enumerate(tags)])
        loaded = cast("list[Any]", await stores[0].load(KEY))
        assert sorted(int(tag["tag"]) for tag in loaded) == list(range(20))
        # The same batch again, as after a lost answer.
        await asyncio.gather(*[store.append(KEY, ENTRIES[1:5]) for store in stores])
        assert len(cast("list[Any]", await stores[1].load(KEY))) == 24
        (summary,) = await stores[0].list_session_summaries(KEY["project_key"])
        (listed,) = await stores[0].list_sessions(KEY["project_key"])
        assert summary["data"]["first_prompt"] == "My sister Ines is allergic to shellfish."
        assert summary["mtime"] >= listed["mtime"]

    run(write())


def test_users_do_not_see_each_other(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        run(MnemicSessionStore(memory.scope("alice")).append(KEY, ENTRIES))
        bob = MnemicSessionStore(memory.scope("bob"))
        assert run(bob.load(KEY)) is None
        assert run(bob.list_sessions(KEY["project_key"])) == []
        run(bob.delete(KEY))
        assert memory.scope("bob").recall("shellfish") == []
        assert run(MnemicSessionStore(memory.scope("alice")).load(KEY)) == ENTRIES


def test_a_redacted_memory_has_no_personal_data_anywhere(tmp_path: Path) -> None:
    """Neither in messages nor in the forms of entries, nor in the summary that the SDK makes."""
    mail = "ines@example.org"
    entries = [
        {"type": "queue-operation", "content": mail},
        said(1, "user", f"Write to {mail} \x00"),
        said(2, "assistant", [{"type": "tool_use", "id": "t1", "name": "Mail", "input": {"to": mail}}]),
        {"type": "last-prompt", "lastPrompt": mail},
    ]
    store = MnemicSessionStore(f"sqlite:///{tmp_path / 'agent.db'}", redact=True)
    run(store.append(KEY, cast("Any", entries)))
    run(store.append(KEY, cast("Any", entries[1:3])))
    assert run(store.load(KEY)) == json.loads(json.dumps(entries).replace(mail, "[EMAIL]"))
    (summary,) = run(store.list_session_summaries(KEY["project_key"]))
    assert summary["data"]["first_prompt"] == "Write to [EMAIL] \ufffd"
    run(store.close())
    assert all(mail.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_messages_that_others_stored_are_no_entries(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        memory.scope("-home-alice-trip").session(MONDAY).add("user", "Hello")
        assert run(MnemicSessionStore(memory).load(KEY)) is None
        run(MnemicSessionStore(memory).append(KEY, ENTRIES[:2]))
        assert run(MnemicSessionStore(memory).load(KEY)) == ENTRIES[:2]


def test_bad_input_is_told(file_url: str) -> None:
    store = MnemicSessionStore(file_url)
    with pytest.raises(mnemic.InvalidValueError, match="an entry is a JSON object, not 'x'"):
        run(store.append(KEY, cast("Any", [ENTRIES[0], "x"])))
    with pytest.raises(mnemic.InvalidValueError, match="must be finite"):
        run(store.append(KEY, cast("Any", [ENTRIES[0], {"type": "x", "n": float("nan")}])))
    with pytest.raises(mnemic.InvalidValueError, match="session_id"):
        run(store.load({"project_key": "p", "session_id": cast("Any", None)}))
    assert run(store.load(KEY)) is None


def test_an_entry_that_is_twice_in_a_call_is_stored_where_it_first_stands() -> None:
    entries: list[Any] = [{"type": "user", "uuid": "1"}, {"type": "x"}, {"type": "user", "uuid": "1"}]
    store = MnemicSessionStore()
    key: Any = {"project_key": "p", "session_id": "s"}

    async def stored() -> Any:
        await store.append(key, entries)
        return await store.load(key)

    assert run(stored()) == entries[:2]
