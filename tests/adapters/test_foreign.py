"""What all adapters share: messages without loss, and supported versions."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.foreign import (
    arguments_of,
    blocks_of,
    form_json,
    keep,
    message_of,
    original,
    require,
    take_original,
)
from mnemic.checks import from_segment, to_segment
from mnemic.memory_access import MemoryAccess
from mnemic.scope import AsyncScope

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), TEXTS)
def test_a_framework_gets_its_own_form_back(form: dict[str, Any], text: str) -> None:
    scope = mnemic.open("memory://").scope("a")
    form["nested"] = {"content": text, "again": [text]}
    added = scope.session("s").add(keep("x", mnemic.Message("user", text), form))
    assert added.content == text
    (stored,) = scope.session("s").messages()
    assert original("x", stored) == form
    assert original("y", stored) is take_original("y", stored) is None
    assert scope.session("s").messages() == [stored]
    assert take_original("x", stored) == form


def test_the_content_is_stored_once_and_can_be_changed() -> None:
    blocks = [{"type": "text", "text": "tea"}]
    kept = keep("x", mnemic.Message("user", blocks), {"data": {"content": blocks}, "n": 1})
    assert kept.metadata["x"] == {"original": {"data": {"content": None}, "n": 1}, "content_at": ["data", "content"]}
    assert original("x", mnemic.Message("user", "coffee", metadata=kept.metadata)) == {
        "data": {"content": "coffee"},
        "n": 1,
    }


def test_characters_that_no_store_holds_are_escaped() -> None:
    form: dict[str, Any] = {"output": "\x00ELF\ud800", "n": [1]}
    session = mnemic.open("memory://").scope("a").session("s")
    added = session.add(keep("x", mnemic.Message("tool", form["output"]), form))
    assert added.content == "\ufffdELF\ufffd"
    assert original("x", session.messages()[0]) == take_original("x", session.messages()[0]) == form
    with pytest.raises(mnemic.InvalidValueError, match="a message of x is not JSON"):
        keep("x", mnemic.Message("tool"), {**form, "set": {1}})


def test_arguments_and_names_that_no_store_holds_are_made_printable() -> None:
    form: dict[str, Any] = {"call": {"id": "a\nb", "name": "", "arguments": "\0\ud800"}}
    session = mnemic.open("memory://").scope("a").session("s")
    session.add(keep("x", message_of("assistant", None, [tuple(form["call"].values())]), form))
    (stored,) = session.messages()
    assert stored.tool_calls == [mnemic.ToolCall("a\ufffdb", "unnamed", "\ufffd\ufffd")]
    assert original("x", stored) == form


def test_a_message_that_came_another_way_has_no_original() -> None:
    for metadata in ({}, {"x": 1}, {"x": {"original": 1}}):
        message = mnemic.Message("user", "tea", metadata=metadata)
        assert original("x", message) is take_original("x", message) is None


def test_the_blocks_of_a_message_that_came_another_way() -> None:
    call = mnemic.ToolCall("c", "look", '{"at": 1}')
    picture = "data:image/png;base64,AAAA"
    made: dict[str, Any] = {
        "text": lambda text: text,
        "image": lambda kind, data: (kind, data),
        "call": lambda one, given: (one.id, given),
    }
    asked = mnemic.Message("assistant", "see", tool_calls=[call], images=[picture, "https://a.example/b.png"])
    assert blocks_of(asked, **made) == ["see", ("image/png", "AAAA"), ("c", {"at": 1})]
    answer = mnemic.Message("tool", "a cat", tool_call_id="c")
    assert blocks_of(answer, **made) == ["a cat"]
    assert blocks_of(answer, **made, result=lambda part: (part.tool_call_id, part.text)) == [("c", "a cat")]
    assert blocks_of(mnemic.Message("user", ""), **made) == []


def test_json_of_a_form_has_no_halves_of_characters() -> None:
    assert form_json({"a": "é", "b": [1]}) == '{"a":"é","b":[1]}'.encode()
    assert form_json(["\ud800"]) == '["\ufffd"]'.encode()


@given(TEXTS)
def test_every_id_is_a_segment(id: str) -> None:
    segment = to_segment(id)
    assert from_segment(segment) == id
    assert mnemic.ScopePath.of(segment).segments == (segment,)


def test_ids_that_differ_are_segments_that_differ() -> None:
    ids = ["", "%", "%25", "%%", "/", "%2F", "%2f", "a/b", "a%2Fb", "\n", "%0A", "100%"]
    assert len({to_segment(id) for id in ids}) == len(ids)


@pytest.mark.parametrize("id", [None, 1, b"a", "a" * 201, "\ud800"])
def test_an_id_that_cannot_be_a_segment_is_refused(id: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="user_id"):
        to_segment(id, "user_id")


def test_a_missing_or_unsupported_framework_is_told() -> None:
    with pytest.raises(ImportError, match=r"needs no-such-thing>=1,<2: pip install 'mnemic\[thing\]'"):
        require("no-such-thing", "1", "2", "thing")
    installed = version("pytest")
    with pytest.raises(ImportError, match=rf"needs pytest>=99,<100, and {installed} is installed"):
        require("pytest", "99", "100")
    with pytest.raises(ImportError, match="needs pytest>=1,<2"):
        require("pytest", "1", "2")
    require("pytest", "8", "100")


async def _say(scope: AsyncScope) -> int:
    session = scope.scope("alice").session("s")
    await session.add("user", "tea")
    return len(await session.messages())


def test_a_memory_is_used_from_threads_and_event_loops(file_url: str) -> None:
    access = MemoryAccess(file_url)
    assert access.call_sync(_say) == 1
    assert asyncio.run(access.call(_say)) == 2

    async def blocked() -> int:
        return access.call_sync(_say)

    assert asyncio.run(blocked()) == 3
    access.close_sync()
    with mnemic.open(file_url) as memory:
        for given in (memory, memory.scope(), memory.restricted(mnemic.ScopePath())):
            assert MemoryAccess(given).call_sync(_say) > 3
            assert asyncio.run(MemoryAccess(given).call(_say)) > 3


@pytest.mark.parametrize("memory", [None, 3, b"memory://"])
def test_what_is_no_memory_is_refused(memory: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=r"a URL, 'memory://' for one in this process: "):
        MemoryAccess(memory)


def test_an_async_memory_is_used_on_its_own_loop(file_url: str) -> None:
    async def blocked(access: MemoryAccess) -> int:
        return access.call_sync(_say)

    async def use() -> MemoryAccess:
        async with await mnemic.open_async(file_url) as memory:
            assert await MemoryAccess(memory).call(_say) == 1
            with pytest.raises(mnemic.EventLoopError, match="pass its URL"):
                MemoryAccess(memory).call_sync(_say)
            access = MemoryAccess(memory)  # a sync tool of an async agent runs in a thread
            assert await asyncio.to_thread(access.call_sync, _say) == 2
            assert await asyncio.to_thread(access.below("name").call_sync, _say) == 1
            assert await asyncio.to_thread(asyncio.run, blocked(access)) == 3
            return access

    access = asyncio.run(use())
    with pytest.raises(mnemic.EventLoopError, match="pass its URL"):
        access.call_sync(_say)


def test_a_message_is_made_of_text_calls_and_results() -> None:
    plain = message_of("assistant", "hi", [("c1", "f", {"a": 1}), (None, "", "{}")])
    assert [(call.id, call.name, call.arguments) for call in plain.tool_calls] == [
        ("c1", "f", '{"a": 1}'),
        ("unnamed", "unnamed", "{}"),
    ]
    one = message_of("user", None, results=[("c\n1" + "x" * 500, {"a": 1})])
    assert (one.role, one.content, one.tool_call_id) == ("tool", {"a": 1}, "c\ufffd1" + "x" * 497)
    two = message_of("user", "and", results=[("c1", "x"), ("c2", [1])])
    assert (two.role, two.tool_call_id) == ("tool", None)
    assert two.content == [
        {"type": "tool_result", "tool_use_id": "c1", "content": "x"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "[1]"},
        {"type": "text", "text": "and"},
    ]


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    found = [arguments_of(mnemic.ToolCall("c", "f", text)) for text in ('{"a": 1}', "", '{"a"', "[1]")]
    assert found == [{"a": 1}, {}, {"arguments": '{"a"'}, {"arguments": "[1]"}]
