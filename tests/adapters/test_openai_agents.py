"""Sessions of the OpenAI Agents SDK in a memory, beside its own SQLiteSession."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import pytest
from agents.extensions.memory import EncryptedSession
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam

import mnemic
from agents import Agent, RunConfig, RunContextWrapper, Runner, SQLiteSession, function_tool
from mnemic.adapters.openai_agents import MnemicSession

Result = TypeVar("Result")
IMAGE = "data:image/png;base64,iVBORw0KGgo="
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Which tram goes to the harbour?"},
    {"role": "developer", "content": "Be brief.", "type": "message"},
    {
        "role": "system",
        "content": [{"type": "input_text", "text": "Be kind."}],
        "type": "message",
        "status": "completed",
    },
    {"role": "assistant", "content": "Tram 28.", "phase": "final_answer"},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "And this one?"},
            {"type": "input_image", "image_url": IMAGE, "detail": "low"},
            {"type": "input_file", "filename": "map.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        ],
    },
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "Tram 28 stops there.", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "I cannot see the rest."},
        ],
    },
    {
        "id": "msg_2",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "refusal", "refusal": "No."}],
    },
    {"type": "file_search_call", "id": "fs_1", "queries": ["tram"], "status": "completed", "results": None},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c1",
        "status": "completed",
        "pending_safety_checks": [],
        "action": {"type": "click", "button": "left", "x": 1, "y": 2},
    },
    {
        "type": "computer_call_output",
        "call_id": "c1",
        "output": {"type": "computer_screenshot", "image_url": IMAGE},
        "acknowledged_safety_checks": [],
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "tram 28"}},
    {"type": "function_call", "id": "fc_1", "call_id": "c2", "name": "find", "arguments": '{"line": 28}'},
    {"type": "function_call_output", "call_id": "c2", "output": "every 10 minutes"},
    {"type": "function_call", "call_id": "c3", "name": "find", "arguments": "", "status": "completed"},
    {
        "type": "function_call_output",
        "call_id": "c3",
        "output": [{"type": "input_text", "text": "a map"}, {"type": "input_image", "image_url": IMAGE}],
    },
    {"type": "tool_search_call", "call_id": None, "arguments": {"query": "tram"}, "execution": "server"},
    {"type": "tool_search_output", "call_id": None, "tools": [], "execution": "server", "status": "completed"},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "trams"}],
        "encrypted_content": "gAAAA",
    },
    {"type": "compaction", "encrypted_content": "gAAAA"},
    {"type": "compaction_trigger"},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "k", "status": "completed"},
    {"type": "local_shell_call", "id": "ls_1", "call_id": "c4", "status": "completed", "action": {"type": "exec"}},
    {"type": "local_shell_call_output", "id": "c4", "output": "ok"},
    {"type": "shell_call", "call_id": "c5", "action": {"commands": ["ls"]}, "caller": {"type": "direct"}},
    {
        "type": "shell_call_output",
        "call_id": "c5",
        "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {
        "type": "apply_patch_call",
        "call_id": "c6",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a.txt"},
    },
    {"type": "apply_patch_call_output", "call_id": "c6", "status": "failed", "output": "no such file"},
    {"type": "mcp_list_tools", "id": "ml_1", "server_label": "trams", "tools": [{"name": "find", "input_schema": {}}]},
    {"type": "mcp_approval_request", "id": "ma_1", "server_label": "trams", "name": "find", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "ma_1", "approve": True, "reason": None},
    {"type": "mcp_call", "id": "mc_1", "server_label": "trams", "name": "find", "arguments": "{}", "output": "28"},
    {"type": "custom_tool_call", "call_id": "c7", "name": "grep", "input": "tram", "namespace": "files"},
    {"type": "custom_tool_call_output", "call_id": "c7", "output": "line 28"},
    {"type": "item_reference", "id": "msg_1"},
    {"id": "msg_1"},
    {"type": "program", "id": "p_1", "call_id": "c8", "code": "print(28)", "fingerprint": "f"},
    {"type": "program_output", "id": "po_1", "call_id": "c8", "result": "28", "status": "completed"},
]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def _types() -> set[str]:
    """Return the types of all items that the API has."""
    found: set[str] = set()
    for kind in get_args(ResponseInputItemParam):
        hint = get_type_hints(kind)["type"]
        for part in [hint, *get_args(hint)]:
            if get_origin(part) is Literal:
                found |= set(get_args(part))
    return found


def test_every_type_of_item_comes_back_unchanged(file_url: str) -> None:
    assert {item.get("type", "message") for item in ITEMS} - {"id"} >= _types()

    async def use() -> list[Any]:
        for item in ITEMS:
            await MnemicSession("one by one", memory).add_items([cast("Any", item)])
        await MnemicSession("at once", memory).add_items(cast("Any", ITEMS))
        assert await MnemicSession("one by one", memory).get_items() == ITEMS
        return await MnemicSession("at once", memory).get_items()

    with mnemic.open(file_url) as memory:
        assert run(use()) == ITEMS


def test_texts_and_tool_calls_are_where_recall_and_windows_find_them(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("alice")
        run(MnemicSession("trip", alice).add_items(cast("Any", ITEMS)))
        messages = alice.session("trip").messages()
        assert alice.recall("where does tram 28 stop?", k=1)[0].text == "Tram 28 stops there."
        by_call = {message.tool_calls[0].id: message for message in messages if message.tool_calls}
        assert (by_call["c2"].tool_calls[0].name, by_call["c2"].tool_calls[0].arguments) == ("find", '{"line": 28}')
        assert [message.text for message in messages if message.tool_call_id == "c2"] == ["every 10 minutes"]
        assert len(mnemic.to_openai(alice.session("trip").window(10_000))) > 10
        # Nothing that a message has a field for is stored a second time.
        kept = [str(message.metadata) for message in messages]
        assert not any("every 10 minutes" in text or '"line": 28' in text or "stops there" in text for text in kept)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["role", "type", "content", "call_id", "name", "arguments", "input", "output", "code", "id"])
VALUES = (
    st.sampled_from(["user", "assistant", "developer", "tool", "message", "function_call", "x_output", "c1"]) | JSON
)
ITEM = st.sampled_from(ITEMS) | st.dictionaries(FIELDS | TEXTS, VALUES, max_size=5)
LIMITS = st.none() | st.integers(-1, 6)
CALLS = st.one_of(
    st.tuples(st.just("add"), st.lists(ITEM, max_size=4)),
    st.tuples(st.just("get"), LIMITS),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("clear"), st.none()),
)


@given(st.lists(CALLS, max_size=12), LIMITS)
def test_it_does_what_sqlite_session_does(calls: list[tuple[str, Any]], limit: int | None) -> None:
    async def play(session: Session) -> list[Any]:
        results: list[Any] = []
        for name, value in calls:
            match name:
                case "add":
                    await session.add_items(value)
                case "get":
                    results.append(await session.get_items(value))
                case "pop":
                    results.append(await session.pop_item())
                case _:
                    await session.clear_session()
            results.append(await session.get_items())
        return results

    settings = SessionSettings(limit=limit)
    theirs = SQLiteSession("s", session_settings=settings)
    ours = MnemicSession("s", session_settings=settings)
    assert run(play(ours)) == run(play(theirs))
    theirs.close()
    ours.close()


@dataclass
class Caller:
    tenant: str
    user: str


@function_tool
def find_tram(line: int) -> str:
    """Find a tram."""
    return f"tram {line} comes in 4 minutes"


def _team() -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel(
        [
            [function_call("transfer_to_trams", {}, call_id="h1")],
            [
                function_call("find_tram", {"line": 28}, call_id="c1"),
                function_call("find_tram", {"line": 12}, call_id="c2"),
            ],
            [assistant_message("Tram 28 comes in 4 minutes.")],
            [assistant_message("Yes, line 12 too.")],
        ]
    )
    trams = Agent[Any](name="trams", model=model, tools=[find_tram])
    return Agent[Any](name="desk", model=model, handoffs=[trams]), model


async def _talk(first: Session, second: Session, context: Any = None) -> list[Any]:
    """Talk twice, and return what the model was given, and what is stored."""
    desk, model = _team()
    quiet = RunConfig(tracing_disabled=True)
    await Runner.run(desk, "When does tram 28 come?", session=first, run_config=quiet, context=context)
    streamed = Runner.run_streamed(desk, "And 12?", session=second, run_config=quiet, context=context)
    async for _ in streamed.stream_events():
        pass
    model.assert_complete()
    return [[call.input for call in model.calls], await _stored(second, context)]


async def _stored(session: Session, context: Any) -> list[Any]:
    if isinstance(session, MnemicSession):
        return await session.get_items(wrapper=RunContextWrapper(context))
    return await session.get_items()


def test_agents_with_tools_and_handoffs_remember(file_url: str, tmp_path: Any) -> None:
    own = str(tmp_path / "own.db")
    expected = run(_talk(SQLiteSession("trip", own), SQLiteSession("trip", own)))
    assert run(_talk(MnemicSession("trip", file_url), MnemicSession("trip", file_url))) == expected
    assert "tram 12 comes" in str(expected[0][-1])
    with mnemic.open(file_url) as memory:
        assert run(_talk(MnemicSession("again", memory), MnemicSession("again", memory.scope()))) == expected
        assert memory.scope().recall("when does tram 28 come?", k=1)[0].scope.path in ("trip", "again")


def test_the_user_comes_from_the_context_of_a_run(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        session = MnemicSession("trip", memory, user=lambda context: (context.tenant, context.user))
        alice, bob = Caller("acme", "alice"), Caller("acme", "a/b")
        run(_talk(session, session, alice))
        assert run(session.get_items(wrapper=RunContextWrapper(bob))) == []
        run(session.add_items([{"role": "user", "content": "I am Bob."}], wrapper=RunContextWrapper(bob)))
        assert memory.scope("acme", "alice").recall("tram 28")[0].scope.path == "acme/alice/trip"
        assert memory.scope("acme", "alice").recall("Bob", min_score=0.5) == []
        assert run(session.pop_item(wrapper=RunContextWrapper(bob))) == {"role": "user", "content": "I am Bob."}
        run(session.clear_session(wrapper=RunContextWrapper(alice)))
        assert memory.scope("acme", "alice").sessions.list() == []
        with pytest.raises(mnemic.InvalidValueError, match="pass wrapper="):
            run(session.get_items())
        with pytest.raises(mnemic.InvalidValueError, match="returned None"):
            run(MnemicSession("s", memory, user=lambda context: context).get_items(wrapper=RunContextWrapper(None)))


def test_users_do_not_see_each_other(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        run(MnemicSession("s", memory, user="alice").add_items([{"role": "user", "content": "My door code is 4410."}]))
        assert run(MnemicSession("s", memory, user="bob").get_items()) == []
        assert memory.scope("bob").recall("door code") == []
        assert memory.scope("alice").recall("door code")[0].text == "My door code is 4410."


def test_a_session_of_another_process_is_shared(file_url: str) -> None:
    code = (
        "import asyncio; from mnemic.adapters.openai_agents import MnemicSession\n"
        f"session = MnemicSession('s', {file_url!r})\n"
        "asyncio.run(session.add_items([{'role': 'user', 'content': 'from afar'}]))\n"
        "print(len(asyncio.run(session.get_items())))\n"
    )
    ours = MnemicSession("s", file_url)
    run(ours.add_items([{"role": "user", "content": "from here"}]))
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "2\n"
    assert [cast("Any", item)["content"] for item in run(ours.get_items())] == ["from here", "from afar"]
    ours.close()


def test_writers_at_once_lose_nothing(file_url: str) -> None:
    async def write(sessions: list[MnemicSession]) -> list[Any]:
        added = [{"role": "user", "content": f"{n}"} for n in range(30)]
        await asyncio.gather(*[sessions[n % 2].add_items([cast("Any", item)]) for n, item in enumerate(added)])
        popped = await asyncio.gather(*[sessions[n % 2].pop_item() for n in range(10)])
        return [*popped, *await sessions[0].get_items()]

    found = run(write([MnemicSession("s", file_url), MnemicSession("s", file_url)]))
    assert sorted(int(item["content"]) for item in found) == list(range(30))


def test_messages_that_others_stored_become_items(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        chat = memory.scope("alice").session("s")
        chat.add("system", "Be brief.")
        chat.add("user", "Look", images=[IMAGE])
        calls = [mnemic.ToolCall("c1", "find", '{"n": 1}'), mnemic.ToolCall("c2", "grep", "x", "custom")]
        chat.add("assistant", "Looking.", tool_calls=calls)
        chat.add("tool", {"found": 28}, tool_call_id="c1")
        session = MnemicSession("s", memory, user="alice")
        call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"n": 1}'}
        items: list[Any] = [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
                ],
            },
            {"role": "assistant", "content": "Looking."},
            call,
            {"type": "custom_tool_call", "call_id": "c2", "name": "grep", "input": "x"},
            {"type": "function_call_output", "call_id": "c1", "output": '{"found":28}'},
        ]
        assert run(session.get_items()) == items
        assert run(session.get_items(3)) == items[-3:]
        for item in reversed(items[1:]):
            assert run(session.pop_item()) == item
            assert run(session.get_items()) == items[: items.index(item)]
        chat.add_many(mnemic.from_anthropic([{"role": "user", "content": [{"type": "audio", "source": {}}, "hm"]}]))
        chat.add_many([mnemic.Message("user", "A path", images=["/etc/passwd"])], open_images=False)
        assert [cast("Any", item)["content"] for item in run(session.get_items(2))][-1] == "A path"


def test_a_run_sees_what_fits_a_budget(file_url: str) -> None:
    session = MnemicSession("s", file_url, max_tokens=60)
    long: list[Any] = [{"role": "user", "content": f"number {n} of a long list of things"} for n in range(20)]
    call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "28"}
    turn: list[Any] = [{"type": "reasoning", "id": "rs_1", "summary": []}, call, result]
    run(session.add_items([*long, *turn]))
    items = run(session.get_items())
    assert 3 < len(items) < 8
    assert items == [*long[-len(items) + 3 :], *turn]
    assert run(session.get_items(23)) == items  # within the limit and within the budget
    assert run(session.get_items(2)) == turn[-2:]
    assert run(session.get_items(0)) == []
    run(session.add_items([{"role": "user", "content": "long " * 100}, *turn]))
    assert len(run(session.get_items())) == 4  # the last turn, although it does not fit
    assert run(MnemicSession("empty", file_url, max_tokens=60).get_items()) == []


def test_the_settings_limit_what_a_run_sees(file_url: str) -> None:
    session = MnemicSession("s", file_url, session_settings={"limit": 2})
    assert isinstance(session, Session)
    assert session.session_settings == SessionSettings(limit=2)
    run(session.add_items([{"role": "user", "content": f"{n}"} for n in range(5)]))
    assert [cast("Any", item)["content"] for item in run(session.get_items())] == ["3", "4"]
    assert len(run(session.get_items(4))) == 4
    for wrong in ({"limits": 2}, 2):
        for make in (SQLiteSession, MnemicSession):
            with pytest.raises(TypeError):
                make("s", session_settings=cast("Any", wrong))


def test_it_can_be_wrapped_by_the_sdk(file_url: str) -> None:
    inner = MnemicSession("s", file_url)
    wrapped = EncryptedSession(session_id="s", underlying_session=cast("Any", inner), encryption_key="secret", ttl=600)
    run(wrapped.add_items(cast("Any", ITEMS)))
    assert run(wrapped.get_items()) == ITEMS
    assert "harbour" not in str(run(inner.get_items()))


def test_bad_input_is_told(file_url: str) -> None:
    for items, said in (
        (["hello"], "an item is a JSON object, not 'hello'"),
        ([{"role": "user", "content": {1, 2}}], "cannot be kept as JSON: set"),
        ([{"role": "user", "content": float("nan")}], "must be finite"),
    ):
        with pytest.raises(mnemic.InvalidValueError, match=said):
            run(MnemicSession("s", file_url).add_items([{"role": "user", "content": "not alone"}, *items]))
    assert run(MnemicSession("s", file_url).get_items()) == []
    with pytest.raises(mnemic.InvalidValueError, match="session_id"):
        MnemicSession(cast("Any", None), file_url)
    for user in (1, "", (), ("acme", ""), ("acme", None)):
        with pytest.raises(mnemic.InvalidValueError, match="user must be an id, or ids from the outermost scope down"):
            MnemicSession("s", file_url, user=cast("Any", user))
        of_run = MnemicSession("s", file_url, user=cast("Any", lambda context: context))
        with pytest.raises(mnemic.InvalidValueError, match="user"):
            run(of_run.get_items(wrapper=RunContextWrapper(user)))
    with pytest.raises(mnemic.MnemicError):
        run(MnemicSession("s", "no-such-scheme://").get_items())


def test_text_that_no_store_can_hold_is_kept_all_the_same(file_url: str) -> None:
    item: Any = {"type": "function_call_output", "call_id": "c1", "output": "\x00ELF\x01\ud800"}
    session = MnemicSession("s", file_url)
    run(session.add_items([item]))
    assert run(session.get_items()) == [item]
