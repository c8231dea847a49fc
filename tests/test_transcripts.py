"""Transcripts of Claude Code: which lines are messages, and what is left out."""

import json
from typing import Any

import pytest

from mnemic.transfer.agent_transcripts import TranscriptReader

SESSION = "6f0a3c1e-0000-4000-8000-000000000001"


def entry(uuid: str, role: str, content: Any, **fields: Any) -> bytes:
    """Return a line as Claude Code writes it."""
    message = {"role": role, "content": content}
    known = {"parentUuid": None, "isSidechain": False, "userType": "external", "cwd": "/work", "version": "2.1.17"}
    stamp = {"sessionId": SESSION, "uuid": uuid, "timestamp": "2026-05-26T12:00:00.000Z"}
    return json.dumps({**known, **stamp, "type": role, "message": message, **fields}).encode()


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


def test_the_users_and_the_assistants_texts_are_messages() -> None:
    reader = TranscriptReader()
    (said,) = reader.read(entry("u1", "user", "Which port does the tests' server use?")).messages
    assert (said.role, said.id, said.content) == ("user", "u1", "Which port does the tests' server use?")
    assert said.timestamp.isoformat() == "2026-05-26T12:00:00+00:00"
    assert said.metadata == {"source": "claude-code"}
    line = reader.read(entry("a1", "assistant", text("It uses 5433.")))
    assert (line.session, [message.content for message in line.messages]) == (SESSION, ["It uses 5433."])


def test_a_prompt_given_while_the_agent_works_is_the_users() -> None:
    queued = {"type": "queued_command", "commandMode": "prompt", "prompt": "Use pytest, not unittest."}
    line = {"type": "attachment", "attachment": queued, "sessionId": SESSION, "uuid": "q1"}
    (said,) = TranscriptReader().read(json.dumps(line).encode()).messages
    assert (said.role, said.content) == ("user", "Use pytest, not unittest.")


@pytest.mark.parametrize(
    "line",
    [
        entry("u1", "user", "task", isSidechain=True),
        entry("u1", "user", "This session is being continued", isCompactSummary=True),
        entry("u1", "user", "Caveat", isMeta=True),
        entry("u1", "user", "<command-name>/clear</command-name>"),
        entry("u1", "user", "<local-command-stdout>x</local-command-stdout>"),
        entry("u1", "user", text("[Request interrupted by user]")),
        entry("u1", "user", "<system-reminder>Todo list is empty.</system-reminder>"),
        entry("a1", "assistant", text("API error"), message={"role": "assistant", "model": "<synthetic>"}),
        entry("a1", "assistant", text("API Error: 529 overloaded"), isApiErrorMessage=True),
        entry("a1", "assistant", [{"type": "thinking", "thinking": "hm", "signature": "x"}]),
        entry("a1", "assistant", [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]),
        b'{"type":"summary","summary":"Ports","leafUuid":"x"}',
        b'{"type":"attachment","attachment":{"type":"hook_additional_context","content":["x"]},"uuid":"h"}',
    ],
)
def test_what_is_not_said_in_the_conversation_is_left_out(line: bytes) -> None:
    found = TranscriptReader().read(line)
    assert found.messages == ()
    assert found.skipped


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[1]",
        b'{"type":"user","message":{"role":"user","content":"half',
        b'{"type":"user","message":{"role":"user"},"sessionId":"s","uuid":"u"}',
        b"[" * 1_000_000,
        entry("u1", "oracle", "x", type="user"),
        entry("u1", "user", "x", sessionId="../../etc"),
        entry("u1", "user", "x", sessionId=None),
        entry("", "user", "x"),
        entry("u1", "user", [1, 2]),
        entry("u1", "user", "x", timestamp="yesterday"),
        entry("u1", "user", "x" * 8_400_000),
        b"\xff\xfe\x00",
    ],
)
def test_a_line_that_is_no_message_never_raises(line: bytes) -> None:
    assert TranscriptReader(text_only=False).read(line).messages == ()


def test_reminders_within_a_prompt_are_cut_out() -> None:
    prompt = "<system-reminder>a</system-reminder>Fix the build.<system-reminder>b</system-reminder>"
    assert TranscriptReader().read(entry("u1", "user", prompt)).messages[0].content == "Fix the build."
    editor = "<ide_opened_file>a.py</ide_opened_file><ide_selection>secret</ide_selection>"
    assert TranscriptReader().read(entry("u1", "user", f"{editor}Why?")).messages[0].content == "Why?"
    assert TranscriptReader().read(entry("u1", "user", [*text(editor), *text("Why?")])).messages[0].content == "Why?"
    open_only = "Why <system-reminder>" * 100_000
    assert TranscriptReader().read(entry("u1", "user", open_only)).messages[0].content == open_only


def test_what_cannot_be_stored_is_replaced() -> None:
    (said,) = TranscriptReader().read(entry("u1", "user", "cut \ud83d and \0")).messages
    assert said.content == "cut \ufffd and \ufffd"


def test_tool_traffic_is_kept_on_request_but_never_that_of_our_own_tools() -> None:
    reader = TranscriptReader(text_only=False)
    for call, tool, kept in (
        ("t1", "Bash", 1),
        ("t2", "mcp__mnemic__recall", 0),
        ("t3", "mcp__plugin_x_mnemic__note", 0),
    ):
        use = {"type": "tool_use", "id": call, "name": tool, "input": {}}
        answer = {"type": "tool_result", "tool_use_id": call, "content": "done"}
        calls = reader.read(entry(f"a-{call}", "assistant", [use])).messages
        results = reader.read(entry(f"u-{call}", "user", [answer])).messages
        assert [len(calls), len(results)] == [kept, kept]
    assert reader.own_calls == set()
