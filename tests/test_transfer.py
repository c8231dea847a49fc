"""Files of other tools: each format is read; again changes nothing, a newer one adds what is new, a bad one nothing."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from click.testing import CliRunner

import mnemic
from mnemic.cli import main
from mnemic.transfer import inputs
from mnemic.transfer.fence import SQLITE
from mnemic.transfer.formats import FORMATS
from mnemic.transfer.json_stream import CHUNK, JsonStream
from servers import valkey

AT = "2025-01-01T10:00:0{}+00:00"


def node(id: str, role: str, text: str | None, parent: str | None, *children: str, **about: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [] if text is None else [text]}
    message = {
        "id": id,
        "author": {"role": role},
        "create_time": 1_735_725_600.5,
        "content": content,
        "metadata": about,
    }
    return {"id": id, "message": message if text is not None else None, "parent": parent, "children": list(children)}


def chatgpt(*more: dict[str, Any]) -> list[dict[str, Any]]:
    nodes = [
        node("root", "system", None, None, "hidden"),
        node("hidden", "system", "rules", "root", "q", is_visually_hidden_from_conversation=True),
        node("q", "user", "Where to go?", "hidden", "a1", "a2"),
        node("a1", "assistant", "Lisbon", "q", "thanks", model_slug="gpt-4o"),
        node("a2", "assistant", "Porto", "q"),
        node("thanks", "user", "Thanks", "a1"),
        *more,
    ]
    mapping = {one["id"]: one for one in nodes}
    return [{"title": "Travel", "create_time": 1_735_725_600, "conversation_id": "c1", "mapping": mapping}]


def claude() -> list[dict[str, Any]]:
    used = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "tea"}},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]},
        {"type": "text", "text": "Here."},
    ]
    asked = {"uuid": "m1", "sender": "human", "text": "Find tea", "content": [], "created_at": AT.format(1)}
    answered = {"uuid": "m2", "sender": "assistant", "text": "", "content": used, "created_at": AT.format(2)}
    return [{"uuid": "c2", "name": "Tea", "created_at": AT.format(0), "chat_messages": [asked, answered]}]


LETTA = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Sam",
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "rules"}], "created_at": AT.format(0)},
                {"role": "user", "content": '{"type": "user_message", "message": "hello"}', "created_at": AT.format(1)},
                {
                    "role": "assistant",
                    "content": [],
                    "created_at": AT.format(2),
                    "tool_calls": [
                        {"id": "s1", "function": {"name": "send_message", "arguments": '{"message": "Hi!"}'}}
                    ],
                },
                {"role": "tool", "content": [], "tool_call_id": "s1", "created_at": AT.format(3)},
            ],
        }
    ],
    "blocks": [{"id": "block-0", "label": "human", "value": "Likes tea", "description": "The user"}],
    "tools": [{"id": "tool-0", "name": "send_message"}],
}
LANGCHAIN = [
    {"type": "human", "data": {"content": "Weather?", "id": "h1", "type": "human"}},
    {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "look", "args": {"a": 1}, "id": "k"}]}},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "ToolMessage"],
     "kwargs": {"content": "rain", "tool_call_id": "k"}},
]  # fmt: skip
MEM0 = {
    "results": [
        {"id": "m1", "memory": "Likes tea", "user_id": "alice", "created_at": AT.format(1), "metadata": {"a": 1}}
    ],
    "relations": [{"source": "alice", "relationship": "likes", "destination": "tea"}],
    "history": [
        {"id": "h1", "memory_id": "m1", "old_memory": None, "new_memory": "Likes coffee", "event": "ADD"},
        {"id": "h2", "memory_id": "m1", "old_memory": "Likes coffee", "event": "UPDATE", "updated_at": AT.format(1)},
    ],
}
MARSYS = {
    "memory_type": "managed_conversation",
    "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "name": "helper", "tool_calls": [
            {"id": "k", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "k", "name": "weather"},
        {"role": "error", "content": "LLM call failed"},
    ],
    "timestamp": 1735725600.5,
    "additional_state": {"planning": {}},
}  # fmt: skip
LINES = {
    "fence": [
        '{"Item":{"PK":{"S":"ana/1"},"SK":{"S":"None#s1#2025-01-01T10:00:00+00:00"},"Role":{"S":"user"},'
        '"Message":{"M":{"type":{"S":"text"},"text":{"S":"I live in Oslo."}}},"Meta":{"NULL":true},"team":{"N":"1"}}}',
        '{"Item":{"PK":{"S":"ana/1"},"SK":{"S":"None#s1#2025-01-01T10:00:01+00:00"},"Role":{"S":"robot"},'
        '"Message":{"M":{}}}}',
    ],
    "opper": ['{"key":"diet","value":"no peanuts"}', '{"key":"city","value":"Oslo"}'],
    "mcp-memory": [
        '{"type":"entity","name":"Alice","entityType":"person","observations":["likes tea"]}',
        '{"type":"relation","from":"Alice","to":"Oslo","relationType":"lives_in"}',
        '{"type":"ent',
    ],
    "openai": [
        '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}',
        '{"id":"x","messages":[{"role":"user","content":"hey","timestamp":1735725600}]}',
    ],
    "claude-code": [
        '{"type":"summary","summary":"…","leafUuid":"1"}',
        '{"type":"user","sessionId":"s1","uuid":"u1","timestamp":"2025-01-01T10:00:00Z",'
        '"message":{"role":"user","content":"fix it"}}',
    ],
}
JSONS = {
    "chatgpt": chatgpt(),
    "claude": claude(),
    "letta": LETTA,
    "langchain": LANGCHAIN,
    "marsys": MARSYS,
    "mem0": MEM0,
}


@pytest.fixture
def scope() -> Iterator[mnemic.Scope]:
    with mnemic.open("memory://", embedder=None) as memory:
        yield memory.scope("acme", "alice")


@pytest.fixture(params=FORMATS)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return a format, and a file or folder of it."""
    name = request.param
    if name == "markdown":
        (tmp_path / "notes" / "deep").mkdir(parents=True)
        (tmp_path / "notes" / "plan.md").write_text("# The plan\n\nBook a train.")
        (tmp_path / "notes" / "deep" / "idea.md").write_text("Take a boat.")
        (tmp_path / "notes" / "picture.png").write_bytes(b"\x89PNG")
        return name, tmp_path / "notes"
    path = tmp_path / f"file.{'jsonl' if name in LINES else 'json'}"
    path.write_text("\n".join(LINES[name]) if name in LINES else json.dumps(JSONS[name], indent=1))
    return name, path


def stored(scope: mnemic.Scope) -> dict[str, Any]:
    found: dict[str, Any] = {
        info.name: [message.text for message in scope.session(info).messages()] for info in scope.sessions.list()
    }
    found |= {f"note {key}": value for key, value in scope.notes.read_all().items()}
    for stats in scope.scopes():
        below = scope.scope(*stats.scope.segments[len(scope.path.segments) :])
        found |= {f"memory {item.id}": item.text for item in below.memories.list()}
    return found | {f"fact {fact.predicate}": [fact.subject, fact.object] for fact in scope.facts.ask()}


EXPECTED: dict[str, dict[str, Any]] = {
    "chatgpt": {"c1": ["Where to go?", "Lisbon", "Thanks"], "c1.a2": ["Where to go?", "Porto"]},
    "claude": {"c2": ["Find tea", "I look.", "found", "Here."]},
    "letta": {"Sam": ["hello", "Hi!"], "note human": "Likes tea"},
    "langchain": {"file": ["Weather?", "", "rain"]},
    "mem0": {"memory m1": "Likes tea", "memory h2": "Likes coffee", "fact likes": ["alice", "tea"]},
    "mcp-memory": {
        "note Alice": {"entityType": "person", "observations": ["likes tea"]},
        "fact lives_in": ["Alice", "Oslo"],
    },
    "fence": {"s1": ["I live in Oslo."]},
    "marsys": {"file": ["Weather?", "weather({})", "rain"]},
    "opper": {"note diet": "no peanuts", "note city": "Oslo"},
    "openai": {"file-1": ["hi", "yo"], "x": ["hey"]},
    "claude-code": {"s1": ["fix it"]},
    "markdown": {"note plan": "# The plan\n\nBook a train.", "note deep/idea": "Take a boat."},
}
SKIPPED = {
    "chatgpt": ["a message that ChatGPT hides, such as its instructions"],
    "claude": ["a block of the type 'thinking' in a message"],
    "letta": ["a system prompt", "one of the agent's tools", "the result of send_message"],
    "langchain": [],
    "mem0": ["an entry of the history without an earlier text"],
    "mcp-memory": ["a damaged line, or neither an entity nor a relation"],
    "fence": ["a message of the role 'robot'"],
    "marsys": ["a message of the role 'error'", "state of the agent that is no memory"],
    "opper": [],
    "openai": [],
    "claude-code": ["not a message"],
    "markdown": ["a file that is not of the format, or a link"],
}


def test_each_format_is_recognized_and_read_and_again_changes_nothing(
    scope: mnemic.Scope, example: tuple[str, Path]
) -> None:
    name, path = example
    tried = scope.import_from(path, dry_run=True)
    assert stored(scope) == {}
    done = scope.import_from(path)
    assert (done.format, stored(scope)) == (name, EXPECTED[name])
    assert sorted(one.reason for one in done.skipped) == SKIPPED[name]
    assert done == tried
    again = scope.import_from(path, format=name)
    assert (again.records, again.written, again.skipped) == (done.records, 0, done.skipped)
    assert stored(scope) == EXPECTED[name]


def test_a_newer_file_adds_only_what_is_new_in_the_branch_where_it_belongs(scope: mnemic.Scope) -> None:
    def given(conversations: Any) -> io.BytesIO:
        return io.BytesIO(json.dumps(conversations).encode())

    scope.import_from(given(chatgpt()))
    newer = chatgpt(node("more", "user", "And then?", "a2"), node("q2", "user", "Elsewhere?", "hidden"))
    newer[0]["mapping"]["a2"]["children"].append("more")
    newer[0]["mapping"]["hidden"]["children"].append("q2")
    done = scope.import_from(given(newer))
    assert done.written == 2
    assert stored(scope) == {
        "c1": ["Where to go?", "Lisbon", "Thanks"],
        "c1.a2": ["Where to go?", "Porto", "And then?"],
        "c1.q2": ["Elsewhere?"],
    }


def test_the_times_of_the_source_are_kept(scope: mnemic.Scope) -> None:
    scope.import_from(io.BytesIO(json.dumps([*claude()]).encode()))
    (info,) = scope.sessions.list()
    assert (info.started, info.last_activity) == (
        datetime(2025, 1, 1, 10, 0, 1, tzinfo=UTC),
        datetime(2025, 1, 1, 10, 0, 2, tzinfo=UTC),
    )
    call = scope.session("c2").messages()[1]
    assert [one.name for one in call.tool_calls] == ["search"]


def test_what_differs_is_left_alone_and_reported_unless_it_may_be_overwritten(
    scope: mnemic.Scope, tmp_path: Path
) -> None:
    (tmp_path / "plan.md").write_text("one")
    scope.import_from(tmp_path)
    (tmp_path / "plan.md").write_text("two")
    done = scope.import_from(tmp_path)
    assert [(one.count, one.first) for one in done.skipped] == [(1, "plan")]
    assert scope.notes.read("plan") == "one"
    assert scope.import_from(tmp_path, overwrite=True).written == 1
    assert scope.notes.read("plan") == "two"


def turns(count: int, name: str = "s") -> io.BytesIO:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"m{n}", "id": f"m{n}"} for n in range(count)]
    return io.BytesIO(json.dumps({"id": name, "messages": said}).encode())


def ids(session: mnemic.Session) -> list[str]:
    return [message.id for message in session.messages()]


@pytest.mark.parametrize("overflow", ["archive", "drop"])
def test_messages_that_a_limit_has_removed_do_not_come_back(scope: mnemic.Scope, overflow: Any) -> None:
    scope.import_from(turns(6))
    session = scope.session("s", max_messages=4, overflow=overflow)
    session.add("user", "new", id="new")
    kept = ["m3", "m4", "m5", "new"]
    archived = ["m0", "m1", "m2"] if overflow == "archive" else []
    for _ in range(2):
        dry = scope.import_from(turns(6), dry_run=True)
        done = scope.import_from(turns(6))
        assert (done.written, ids(session), [one.id for one in session.archived()]) == (0, kept, archived)
        removed = [(3, "m0")] if overflow == "drop" else []
        assert [(one.count, one.first) for one in done.skipped] == removed
        assert dry == done
    assert scope.import_from(turns(8)).written == 2
    assert ids(session) == ["m5", "new", "m6", "m7"]


def test_a_deleted_message_stays_deleted_unless_overwriting(scope: mnemic.Scope) -> None:
    scope.import_from(turns(3))
    session = scope.session("s")
    session.delete("m1")
    done = scope.import_from(turns(4))
    assert (done.written, ids(session)) == (1, ["m0", "m2", "m3"])
    assert [one.reason for one in done.skipped] == [
        "a message that was removed here: newer ones are still stored (overwrite appends it)"
    ]
    assert scope.import_from(turns(4), overwrite=True).written == 1
    assert ids(session) == ["m0", "m2", "m3", "m1"]


@pytest.mark.parametrize("overflow", ["archive", "drop"])
def test_an_import_obeys_the_limits_of_a_session(scope: mnemic.Scope, overflow: Any) -> None:
    session = scope.session("s", max_messages=3, overflow=overflow)
    session.add("user", "first", id="first")
    assert scope.import_from(turns(2500)).written == 2500
    assert ids(session) == ["m2497", "m2498", "m2499"]
    assert len(session.archived()) == (2498 if overflow == "archive" else 0)


@pytest.mark.parametrize("overflow", ["archive", "drop"])
def test_an_export_restored_into_its_own_store_brings_nothing_back(
    scope: mnemic.Scope, tmp_path: Path, overflow: Any
) -> None:
    session = scope.session("s")
    session.add_many([{"role": "user", "content": f"m{n}", "id": f"m{n}"} for n in range(6)])
    scope.export_to(tmp_path / "before.jsonl")
    session.configure(max_messages=3, overflow=overflow)
    session.add("user", "new", id="new")
    scope.export_to(tmp_path / "after.jsonl")
    archived = session.archived()
    assert len(archived) == (4 if overflow == "archive" else 0)
    for name in ("before", "after"):
        assert scope.import_from(tmp_path / f"{name}.jsonl").written == 0
        assert (ids(session), session.archived()) == (["m4", "m5", "new"], archived)


def test_a_message_that_is_archived_with_other_content_is_reported(scope: mnemic.Scope) -> None:
    scope.import_from(turns(6))
    session = scope.session("s", max_messages=4)
    session.add("user", "new", id="new")
    changed = turns(6).getvalue().replace(b'"m0", "id"', b'"changed", "id"')
    assert [(one.count, one.first) for one in scope.import_from(io.BytesIO(changed)).skipped] == [(1, "m0")]
    assert scope.import_from(io.BytesIO(changed), overwrite=True).written == 1
    assert ([one.text for one in session.archived()], len(session.messages())) == (["changed", "m1", "m2"], 4)


def test_two_of_a_file_with_one_id_are_reported_as_such(scope: mnemic.Scope) -> None:
    same = [{"role": "user", "content": text, "id": "same"} for text in ("one", "two")]
    done = scope.import_from(io.BytesIO(json.dumps(same).encode()))
    assert [one.reason for one in done.skipped] == ["a message with an id that another one in the file has"]
    assert stored(scope) == {"stdin": ["one"]}


def imported(scope: mnemic.Scope, value: Any, **options: Any) -> mnemic.Imported:
    return scope.import_from(io.BytesIO(json.dumps(value).encode()), **options)


def test_a_message_without_a_time_has_that_of_the_one_before(scope: mnemic.Scope) -> None:
    conversations = chatgpt()
    for id in ("q", "thanks"):
        conversations[0]["mapping"][id]["message"]["create_time"] = None
    imported(scope, conversations)
    times = [message.timestamp.timestamp() for message in scope.session("c1").messages()]
    assert times == [1_735_725_600, 1_735_725_600.5, 1_735_725_600.5]
    said = [{"role": "user", "content": "hi", "timestamp": 1_735_725_600}, {"role": "assistant", "content": "yo"}]
    for _ in range(2):
        imported(scope, {"id": "x", "messages": said})
        assert [message.timestamp.timestamp() for message in scope.session("x").messages()] == [1_735_725_600] * 2
    imported(scope, {"id": "y", "messages": said[::-1]})
    first, second = scope.session("y").messages()
    assert first.timestamp > second.timestamp


def test_the_tools_of_chatgpt_are_calls_with_their_results(scope: mnemic.Scope) -> None:
    conversations = chatgpt(
        node("call", "assistant", "print(1)", "thanks", "out"),
        node("out", "tool", "1", "call", "more"),
        node("more", "tool", "plot", "out", "alone"),
        node("alone", "assistant", "remember this", "more", "end"),
        node("end", "assistant", "Done", "alone"),
    )
    mapping = conversations[0]["mapping"]
    mapping["thanks"]["children"] = ["call"]
    mapping["call"]["message"]["recipient"] = "python"
    mapping["alone"]["message"]["recipient"] = "bio"
    mapping["end"]["message"]["recipient"] = "all"
    imported(scope, conversations)
    session = scope.session("c1")
    call, out, more, alone, _ = session.messages()[3:]
    assert call.tool_calls == [mnemic.ToolCall("call", "python", "print(1)"), mnemic.ToolCall("more", "python")]
    assert [(one.role, one.text, one.tool_call_id) for one in (out, more)] == [
        ("tool", "1", "call"), ("tool", "plot", "more"),
    ]  # fmt: skip
    assert (alone.text, alone.tool_calls, alone.metadata["recipient"]) == ("remember this", [], "bio")
    assert [one.id for one in session.window(10_000)][-5:] == ["call", "out", "more", "alone", "end"]
    assert imported(scope, conversations).written == 0


def test_images_and_files_are_named_in_the_text(scope: mnemic.Scope) -> None:
    conversations = chatgpt(node("picture", "user", "", "thanks"))
    mapping = conversations[0]["mapping"]
    mapping["q"]["message"]["metadata"] = {"attachments": [{"id": "f1", "name": "report.pdf"}]}
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f2"}
    files = [{"id": "f2", "name": "cat.png", "mime_type": "image/png"}]
    mapping["a1"]["message"] |= {"content": {"content_type": "multimodal_text", "parts": [image, "A cat"]}}
    mapping["a1"]["message"]["metadata"] = {"attachments": files}
    mapping["picture"]["message"]["content"] = {"content_type": "multimodal_text", "parts": [image]}
    imported(scope, conversations)
    assert stored(scope)["c1"] == [
        "Where to go?\n[file: report.pdf]", "[image: cat.png]\nA cat", "Thanks", "[image: f2]",
    ]  # fmt: skip
    chats = claude()
    asked, answered = chats[0]["chat_messages"]
    asked["files"] = [{"file_name": "photo.jpg"}, {"file_name": "plan.pdf"}]
    answered["content"] = [{"type": "image", "source": {}}]
    chats[0]["chat_messages"].append({"uuid": "m3", "sender": "human", "text": "", "files": [{"file_name": "a.pdf"}]})
    imported(scope, chats)
    assert stored(scope)["c2"] == ["Find tea\n[image: photo.jpg]\n[file: plan.pdf]", "[image]", "[file: a.pdf]"]
    said = {
        "type": "user",
        "sessionId": "s1",
        "uuid": "u1",
        "message": {"role": "user", "content": [{"type": "image"}]},
    }
    imported(scope, said)
    assert stored(scope)["s1"] == ["[image]"]


def test_what_cannot_be_stored_is_replaced_or_left_out(scope: mnemic.Scope, tmp_path: Path) -> None:
    conversations = chatgpt()
    conversations[0]["mapping"]["a1"]["message"]["content"]["parts"] = ["a\0b\ud800 \U0001f389"]
    conversations[0]["mapping"]["a2"]["message"]["content"] = {"content_type": "new", "foo": "bar"}
    done = imported(scope, conversations)
    reasons = {one.reason: one.first for one in done.skipped}
    assert reasons["characters that cannot be stored were replaced by U+FFFD"] == "item 1"
    assert reasons["a message of the type 'new'"] == "a2"
    assert stored(scope)["c1"] == ["Where to go?", "a\ufffdb\ufffd \U0001f389", "Thanks"]
    (tmp_path / "old.md").write_bytes(b"caf\xe9")
    (tmp_path / "nul.md").write_bytes(b"a\0b")
    skipped = {(one.reason, one.first) for one in scope.import_from(tmp_path).skipped}
    assert skipped == {
        ("a file that is not UTF-8", "old.md"), ("characters that cannot be stored were replaced by U+FFFD", "nul.md"),
    }  # fmt: skip
    assert scope.notes.read("nul") == "a\ufffdb"


def test_langchain_messages_of_any_role_are_read(scope: mnemic.Scope) -> None:
    about = {"model_name": "gpt-4o"}
    done = imported(
        scope,
        [
            {"type": "chat", "data": {"content": "hi", "role": "user"}},
            {"type": "ai", "data": {"content": "yo", "response_metadata": about}},
            {"type": "chat", "data": {"content": "hm", "role": "critic"}},
            {"type": "remove", "data": {"content": "", "id": "gone"}},
        ],
    )
    assert [(one.reason, one.first) for one in done.skipped] == [
        ("a message of the role 'critic'", "stdin:3"), ("an order to remove a message", "gone"),
    ]  # fmt: skip
    messages = scope.session("stdin").messages()
    assert [(one.role, one.text) for one in messages] == [("user", "hi"), ("assistant", "yo")]
    assert messages[1].metadata == {"source": "langchain", "model": "gpt-4o"}


def test_the_description_of_a_note_is_its_title_or_first_heading(scope: mnemic.Scope, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntags: [x]\ntitle: 'My plan'\n---\n# Other\n")
    (tmp_path / "b.md").write_text("```sh\n# a comment\n```\n## Heading ##\n")
    (tmp_path / "c.md").write_text("---\n# Not front matter")
    scope.import_from(tmp_path)
    described = {note.key: note.description for note in scope.notes.list()}
    assert described == {"a": "My plan", "b": "Heading", "c": "Not front matter"}


def test_a_memory_of_mem0_keeps_when_it_changed_and_when_it_expires(scope: mnemic.Scope) -> None:
    memories = [
        {"id": "m1", "memory": "Oslo", "created_at": AT.format(1), "updated_at": AT.format(2)},
        {"id": "m2", "memory": "Bern", "created_at": AT.format(1), "expiration_date": "2999-01-01"},
        {"id": "m3", "memory": "Rome", "created_at": AT.format(1), "expiration_date": "2020-01-01"},
    ]
    done = imported(scope, {"results": memories})
    assert [(one.reason, one.first) for one in done.skipped] == [("a memory that has expired", "m3")]
    found = {item.id: item for item in scope.memories.list()}
    assert found["m1"].valid_from == datetime.fromisoformat(AT.format(2))
    assert (found["m2"].valid_from, found["m2"].expires) == (None, datetime(2999, 1, 2, tzinfo=UTC))


def test_agents_of_letta_that_come_together_keep_their_blocks_apart(scope: mnemic.Scope) -> None:
    agents = [{"name": "Sam", "block_ids": ["b0", "b2"]}, {"name": "Eve", "block_ids": ["b1", "b2"]}]
    blocks = [{"id": f"b{n}", "label": label, "value": f"v{n}"} for n, label in enumerate(("human", "human", "rules"))]
    imported(scope, {"agents": agents, "blocks": blocks})
    assert scope.notes.read_all() == {"Sam/human": "v0", "Eve/human": "v1", "rules": "v2"}


def test_a_newer_graph_adds_its_observations(scope: mnemic.Scope) -> None:
    def entity(*observations: str, kind: str = "person") -> dict[str, Any]:
        return {"type": "entity", "name": "Alice", "entityType": kind, "observations": observations}

    imported(scope, entity("likes tea"))
    scope.notes.write("Alice", {"entityType": "person", "observations": ["likes tea", "has a cat"]})
    for written in (1, 0):
        done = imported(scope, entity("likes tea", "lives in Oslo"))
        assert (done.written, done.skipped) == (written, [])
        assert scope.notes.read("Alice")["observations"] == ["likes tea", "has a cat", "lives in Oslo"]
    assert [one.count for one in imported(scope, entity("purrs", kind="cat")).skipped] == [1]


def test_an_export_without_conversations_is_imported(scope: mnemic.Scope) -> None:
    assert (imported(scope, []).records, imported(scope, [], format="chatgpt").records) == (0, 0)


def test_two_exports_in_one_folder_are_one_clear_error(scope: mnemic.Scope, tmp_path: Path) -> None:
    for name, chats in (("a", chatgpt()), ("b", claude())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conversations.json").write_text(json.dumps(chats))
    with pytest.raises(mnemic.InvalidValueError) as raised:
        scope.import_from(tmp_path)
    assert "a/conversations.json is of chatgpt, b/conversations.json is of claude; import them" in str(raised.value)


def test_chats_are_read_from_the_archive_in_which_they_come(scope: mnemic.Scope, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(chatgpt()))
        archive.writestr("chat.html", "<html>")
    done = scope.import_from(tmp_path / "export.zip")
    assert (done.format, done.written) == ("chatgpt", 6)
    assert ("a file that is not of the format, or a link", "chat.html") in [(s.reason, s.first) for s in done.skipped]


def test_one_conversation_alone_and_an_agent_file_in_a_json_text_are_read(scope: mnemic.Scope) -> None:
    for value in (claude()[0], chatgpt()[0], json.dumps(LETTA)):
        scope.import_from(io.BytesIO(json.dumps(value).encode()))
    assert stored(scope).keys() == {"c1", "c1.a2", "c2", "Sam", "note human"}


def test_an_import_on_an_event_loop_tells_its_progress(example: tuple[str, Path]) -> None:
    name, path = example
    told: list[tuple[int, int]] = []

    async def imported() -> mnemic.Imported:
        async with mnemic.open_async("memory://", embedder=None) as memory:
            return await memory.scope("me").import_from(path, progress=lambda *at: told.append(at))

    assert asyncio.run(imported()).format == name
    assert told == sorted(told)
    assert 0 < told[-1][0] <= told[-1][1]


def test_a_link_in_a_folder_is_not_followed(scope: mnemic.Scope, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("mine")
    (tmp_path / "notes" / "link.md").symlink_to(tmp_path / "secret.md")
    scope.import_from(tmp_path / "notes")
    assert stored(scope) == {"note a": "mine"}


def named(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, json.dumps(chatgpt()))
    return file.getvalue()


def bomb() -> bytes:
    """Return an archive of a few hundred bytes whose file claims ten gigabytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", "[" + " " * 1000)
    content = bytearray(file.getvalue())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    return bytes(content)


def damaged() -> bytes:
    """Return an archive in whose compressed data one byte is another one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(chatgpt()))
    content = bytearray(file.getvalue())
    content[60] ^= 0xFF
    return bytes(content)


def spoiled(change: Any) -> bytes:
    conversations = chatgpt()
    change(conversations[0])
    return json.dumps(conversations).encode()


GOOD = json.dumps(chatgpt()[0])
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a bomb": (bomb(), "claims 4,294,967,280 bytes"),
    "a path in the archive": (named("../conversations.json"), "outside of itself: '../conversations.json'"),
    "a path of Windows": (named("C:\\conversations.json"), "outside of itself"),
    "no conversations": (named("other.json"), "no conversations.json"),
    "half an archive": (named("conversations.json")[:60], "not a .zip that can be read"),
    "a million levels": (b'[{"mapping":' + b"[" * 1_000_000, "nested too deeply"),
    "a million levels later": (f"[{GOOD},".encode() + b"[" * 1_000_000 + b"]", "nested too deeply"),
    "many levels of messages": (b'{"messages":' * 900 + b"1" + b"}" * 900, "format of stdin is not known"),
    "many levels of a content": (
        json.dumps({"agents": [{"name": "Sam", "messages": [{"role": "user", "content": []}]}], "blocks": []})
        .replace('"content": []', f'"content": {"[" * 900}{"]" * 900}')
        .encode(),
        "item 1: ",
    ),
    "Latin 1": (f"[{GOOD},".encode() + b'{"title": "caf\xe9"}]', "line 1: the text is not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "not UTF-8"),
    "NaN": (f'[{GOOD},{{"mapping": {{}}, "id": "b", "create_time": NaN}}]'.encode(), "NaN is not JSON"),
    "duplicate keys": (f'[{GOOD},{{"mapping": {{}}, "id": "a", "id": "b"}}]'.encode(), "the key 'id' twice"),
    "a huge number": (f'[{GOOD},{{"create_time": {"9" * 5000}}}]'.encode(), "too many digits"),
    "a huge float": (f'[{GOOD},{{"create_time": 1e999}}]'.encode(), "too large: '1e999'"),
    "a number that is no time": (spoiled(lambda c: c.update(create_time=1e300)), "create_time is not a time"),
    "cut": (f"[{GOOD},{GOOD[:100]}".encode(), "invalid JSON"),
    "another array": (f"[{GOOD}, 7]".encode(), "item 2: a conversation must be an object"),
    "a path as an id": (spoiled(lambda c: c.update(conversation_id="../up")), "holds '/': '../up'"),
    "gzip": (b"\x1f\x8b\x08\0", "stdin is compressed by gzip: unpack it first"),
    "a damaged archive": (damaged(), "conversations.json cannot be read from the archive"),
    "a circle": (spoiled(lambda c: c["mapping"]["q"].update(parent="thanks")), "'c1' is not a tree"),
    "nothing": (b"", "stdin is empty"),
    "text": (b"hello", "line 1: invalid JSON"),
}


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_clear_error_and_nothing_is_imported(
    scope: mnemic.Scope, content: bytes, said: str
) -> None:
    with pytest.raises((mnemic.InvalidValueError, mnemic.NotFoundError)) as raised:
        scope.import_from(io.BytesIO(content))
    assert said in str(raised.value)
    assert stored(scope) == {}


def test_branches_may_not_repeat_without_end(scope: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.transfer.conversation_tree.MAX_COPIES", 4)
    with pytest.raises(mnemic.InvalidValueError, match="repeat too many messages"):
        scope.import_from(io.BytesIO(json.dumps(chatgpt()).encode()))


def test_values_are_read_across_the_chunks_of_a_file() -> None:
    values = [{"a": ["é" * n, n, -n / 8]} for n in range(0, 3 * CHUNK, CHUNK // 3)]
    whole = json.dumps(values).encode()
    assert [value for _, value in JsonStream(io.BytesIO(whole)).elements()] == values
    lines = "\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode()
    assert list(JsonStream(io.BytesIO(lines)).values()) == values
    assert list(JsonStream(io.BytesIO(json.dumps({"a": [1, 2], "b": {}, "c": []}).encode())).elements()) == [
        ("a", 1),
        ("a", 2),
        ("b", {}),
        ("c", []),
    ]


def test_a_value_may_not_be_longer_than_any_conversation(scope: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.transfer.json_stream.MAX_VALUE", CHUNK)
    with pytest.raises(mnemic.InvalidValueError, match="a value is longer than"):
        scope.import_from(io.BytesIO(b'[{"mapping": {"a": "' + b"x" * 4 * CHUNK))
    with pytest.raises(mnemic.InvalidValueError, match="a value is longer than"):
        imported(scope, {"messages": [{"role": "user", "content": "x" * (CHUNK + 1)}]})


def test_the_sizes_that_an_archive_may_claim_are_those_of_text() -> None:
    assert inputs.MOST_DENSE * 1024 < 10 * 2**30


# Crashes, and two at once

IMPORTS = """
import os, signal, sys
import mnemic

def stop(done, total):
    if sys.argv[3] == "stop" and done > 0.7 * total:
        os.kill(os.getpid(), signal.SIGKILL)

with mnemic.open(sys.argv[2], embedder=None) as memory:
    print(memory.scope("me").import_from(sys.argv[1], progress=stop).written)
"""


def chats(path: Path) -> dict[str, list[str]]:
    said = {f"c{n}": [f"{n} {m}" for m in range(40)] for n in range(30)}
    path.write_text(
        "\n".join(
            json.dumps({"id": name, "messages": [{"role": "user", "content": text} for text in texts]})
            for name, texts in said.items()
        )
    )
    return said


def started(path: Path, store: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", IMPORTS, str(path), store, how], stdout=subprocess.PIPE, text=True)


def test_an_import_that_was_killed_completes_when_it_is_run_again(tmp_path: Path) -> None:
    path, store = tmp_path / "chats.jsonl", f"sqlite:///{tmp_path}/agent.db"
    said = chats(path)
    killed = started(path, store, "stop")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    with mnemic.open(store, embedder=None) as memory:
        scope = memory.scope("me")
        before = sum(len(texts) for texts in stored(scope).values())
        assert 0 < before < 1200
        assert scope.import_from(path).written == 1200 - before
        assert stored(scope) == said


def test_two_processes_import_one_file_at_once(tmp_path: Path) -> None:
    path, store = tmp_path / "chats.jsonl", f"sqlite:///{tmp_path}/agent.db"
    said = chats(path)
    both = [started(path, store, "go") for _ in range(2)]
    written = [int(one.communicate()[0]) for one in both]
    assert sum(written) == 1200
    with mnemic.open(store, embedder=None) as memory:
        assert stored(memory.scope("me")) == said


# The command line


def test_import_from_the_command_line_reports_what_it_skips(tmp_path: Path) -> None:
    path, store = tmp_path / "conversations.json", tmp_path / "new.db"
    path.write_text(json.dumps(chatgpt()))

    def run(*options: str, code: int = 0) -> str:
        ran = CliRunner().invoke(main, ["import", str(path), "--scope", "me", "--store", str(store), *options])
        assert ran.exit_code == code, ran.output
        return ran.stdout

    skipped = "skipped 1: a message that ChatGPT hides, such as its instructions; the first is hidden\n"
    assert run("--dry-run") == f"6 records read, 6 of them would be written\n{skipped}"
    assert not store.exists()
    assert run() == f"6 records read, 6 of them written\n{skipped}"
    assert json.loads(run("--json"))["written"] == 0
    assert (
        "format must be one of"
        in CliRunner().invoke(main, ["import", str(path), "--store", str(store), "--format", "word"]).stderr
    )
    path.write_text("[1")
    store.unlink()
    run(code=1)
    assert not store.exists()


def test_the_keys_of_a_redis_server_become_notes(scope: mnemic.Scope) -> None:
    server = valkey.server()
    with closing(redis.Redis.from_url(server.url)) as client:
        prefix = f"agent*{uuid4().hex}"
        client.set(f"{prefix}:diet", "no peanuts")
        client.set(f"{prefix}:a:b", "ø")
        client.lpush(f"{prefix}:list", "not a text")
        client.set(f"agentX{prefix[6:]}:other", "of another prefix")
        done = scope.import_from(f"{server.url}?prefix={prefix}")
        assert (done.format, done.written) == ("opper", 2)
        assert scope.notes.read_all() == {"a:b": "ø", "diet": "no peanuts"}
        assert scope.import_from(f"{server.url}?prefix={prefix}").written == 0
        with pytest.raises(mnemic.InvalidValueError, match="has nothing to import"):
            scope.import_from(f"{server.url}?prefix={uuid4().hex}")
    with pytest.raises(mnemic.StoreUnavailableError, match=r"redis://.* cannot be read"):
        scope.import_from("redis://:secret@127.0.0.1:1/")


def test_a_sqlite_file_of_another_program_is_refused(scope: mnemic.Scope, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE things (id)")
    with pytest.raises(mnemic.InvalidValueError, match="not a file of Fence's SQLiteMemory: no such table: messages"):
        scope.import_from(tmp_path / "other.db")
    (tmp_path / "damaged.db").write_bytes(SQLITE + b"x" * 1000)
    with pytest.raises(mnemic.InvalidValueError, match="not a file of Fence's SQLiteMemory"):
        scope.import_from(io.BytesIO((tmp_path / "damaged.db").read_bytes()))


def test_a_table_without_known_keys_is_refused(scope: mnemic.Scope) -> None:
    item = {"a": {"S": "x"}, "b": {"S": "y"}, "Role": {"S": "user"}, "Message": {"M": {"type": {"S": "text"}}}}
    with pytest.raises(mnemic.InvalidValueError, match="which attributes are the keys cannot be told"):
        scope.import_from(io.BytesIO(json.dumps({"Item": item}).encode()))
    item |= {"b": {"S": "None#s1#2025-01-01T10:00:00+00:00"}}
    with pytest.raises(mnemic.InvalidValueError, match="not a content of Fence"):
        scope.import_from(io.BytesIO(json.dumps({"Item": item}).encode()))
