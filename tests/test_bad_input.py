"""Bad input gets one clear error of ours, and what was stored before is still there."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

import mnemic
import mnemic.api
from mnemic import Message, ScopePath, ToolCall


@pytest.fixture
def kept(chat: mnemic.Session) -> mnemic.Session:
    """A session that already holds something."""
    chat.add("user", "kept")
    return chat


def assert_kept(chat: mnemic.Session) -> None:
    assert [message.text for message in chat.messages()] == ["kept"]


@pytest.mark.parametrize(
    ("segment", "named"),
    [
        ("", "empty"),
        ("a/b", "'/'"),
        ("/", "'/'"),
        ("a\x00b", "NUL"),
        ("a\nb", "control character"),
        ("\x7f", "control character"),
        ("\ud800", "lone surrogate"),
        ("x" * 201, "201 characters"),
        (None, "must be a string"),
        (7, "must be a string"),
        (b"a", "must be a string"),
    ],
)
def test_a_segment_that_is_none_is_refused(memory: mnemic.Memory, segment: Any, named: str) -> None:
    for use in (
        lambda: memory.scope(segment),
        lambda: memory.scope("acme", segment),
        lambda: memory.scope("acme").session(segment),
        lambda: ScopePath("a") / segment,
    ):
        with pytest.raises(mnemic.InvalidValueError, match=named):
            use()


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", "/", "a/" * 17 + "b"])
def test_a_path_with_an_empty_segment_or_too_many_is_refused(path: str) -> None:
    with pytest.raises(mnemic.InvalidValueError):
        ScopePath(path)


@pytest.mark.parametrize("segment", ["..", ".", "C:", "~", "$HOME", "%2e", "*", "con", " "])
def test_a_name_is_never_a_path(memory: mnemic.Memory, segment: str) -> None:
    chat = memory.scope(segment).session(segment)
    chat.add("user", "hi")
    assert [message.text for message in chat.messages()] == ["hi"]
    assert [info.name for info in memory.scope(segment).sessions.list()] == [segment]


@pytest.mark.parametrize("role", ["", "User", "human", "function", None, 1])
def test_an_unknown_role_is_refused(kept: mnemic.Session, role: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="system, user, assistant, tool"):
        kept.add(role, "hi")
    assert_kept(kept)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "a\x00b"},
        {"content": "\ud800"},
        {"content": 3},
        {"content": {"a": math.nan}},
        {"content": {"a": {1: 2}}},
        {"content": [object()]},
        {"id": ""},
        {"id": "x" * 501},
        {"metadata": {"a": math.inf}},
        {"metadata": {"a": {1, 2}}},
        {"metadata": {"a": b"bytes"}},
        {"metadata": {"a": datetime.now(UTC)}},
        {"metadata": {3: "a"}},
        {"metadata": {"a": "\udfff"}},
        {"metadata": [1]},
        {"structured_data": {"a": math.nan}},
        {"tool_calls": [{"id": "a"}]},
        {"tool_calls": "x"},
        {"images": [1]},
        {"timestamp": "yesterday"},
        {"name": 5},
        {"name": "\ud800"},
        {"tool_call_id": 5},
        {"structured_data": [1]},
        {"metadata": {"n": 2**2000}},
        {"ttl": timedelta.max},
        {"ttl": timedelta(0)},
        {"ttl": 5},
    ],
)
def test_what_cannot_be_kept_whole_is_refused(kept: mnemic.Session, fields: dict[str, Any]) -> None:
    def send() -> None:
        given = dict(fields)
        kept.add("user", given.pop("content", "hi"), **given)

    with pytest.raises(mnemic.InvalidValueError):
        send()
    assert_kept(kept)


def test_anything_odd_gets_an_error_of_ours(alice: mnemic.Scope, kept: mnemic.Session) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    odd: list[Callable[[], object]] = [
        lambda: kept.add_many([{"rôle": "user"}]),
        lambda: kept.prefill([5]),  # type: ignore[list-item]
        lambda: kept.add(Message("user", "a"), "b"),
        lambda: kept.get("\ud800"),
        lambda: kept.get(5),  # type: ignore[arg-type]
        lambda: kept.messages(metadata="x"),  # type: ignore[arg-type]
        lambda: kept.messages(metadata={"a": list(range(2000))}),
        lambda: kept.messages(metadata={"a": deep}),
        lambda: kept.messages(metadata={"a": 10**5000}),
        lambda: kept.messages(roles=5),  # type: ignore[arg-type]
        lambda: kept.messages(limit=2**70),
        lambda: kept.messages(since="yesterday"),  # type: ignore[arg-type]
        lambda: Message.from_dict(None),  # type: ignore[arg-type]
        lambda: Message.from_dict({"role": "user", "tool_calls": 5}),
        lambda: mnemic.to_openai([{"role": "user"}]),  # type: ignore[list-item]
        lambda: alice.remember("x", ttl=5),  # type: ignore[arg-type]
        lambda: alice.remember("x", ttl=-timedelta(days=1)),
        lambda: alice.remember("x", metadata=[1]),  # type: ignore[arg-type]
        lambda: alice.remember_many("abc"),
        lambda: alice.recall("x", kinds=5),  # type: ignore[arg-type]
        lambda: alice.recall("x", min_importance="high"),  # type: ignore[arg-type]
        lambda: alice.notes.write("k", 1, description=5),  # type: ignore[arg-type]
        lambda: alice.notes.stale(timedelta(days=10**6)),
        lambda: alice.facts.neighbors("a", predicates=5),  # type: ignore[arg-type]
        lambda: alice.session("x", overflow=5),  # type: ignore[arg-type]
        lambda: mnemic.open("memory://", tokens="nonsense"),
        lambda: mnemic.open("memory://", tokens=partial(len)),
    ]
    for call in odd:
        with pytest.raises(mnemic.InvalidValueError):
            call()
    assert str(Message("user", [{"a": deep}]).text or "") == ""
    assert len(kept.messages(limit=2**53)) == 1
    with mnemic.open("memory://", tokens=lambda _: None) as memory, pytest.raises(mnemic.InvalidValueError):  # type: ignore[arg-type,return-value]
        memory.scope("a").session("s").add("user", "hi")
    assert_kept(kept)


def test_one_name_does_where_several_may_be_given(alice: mnemic.Scope, kept: mnemic.Session) -> None:
    assert len(alice.recall("kept", kinds="message")) == 1
    assert len(kept.messages(roles="user")) == 1
    alice.facts.add("a", "likes", "b")
    assert alice.facts.neighbors("a", predicates="likes").distances == {"a": 0, "b": 1}


def test_an_unknown_field_is_refused(kept: mnemic.Session) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="colour"):
        kept.add("user", "hi", colour="red")
    assert_kept(kept)


def test_the_error_names_the_path_to_the_value(kept: mnemic.Session) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=r"metadata\.a\[1\]\.b must be finite"):
        kept.add("user", "hi", metadata={"a": [1, {"b": math.nan}]})


def test_what_holds_itself_is_refused(kept: mnemic.Session) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    looped: list[dict[str, Any]] = [{"metadata": loop}, {"structured_data": loop}]
    for fields in looped:
        with pytest.raises(mnemic.InvalidValueError, match="nested more than"):
            kept.add("user", "hi", **fields)
    with pytest.raises(mnemic.InvalidValueError, match="nested more than"):
        kept.add("user", loop)
    assert_kept(kept)


@pytest.mark.parametrize("memory", ["sqlite"], indirect=True)
def test_a_message_of_50_megabytes_is_refused(kept: mnemic.Session) -> None:
    huge = "x" * 50_000_000
    for content in (huge, {"text": huge}, [{"type": "text", "text": huge}]):
        with pytest.raises(mnemic.TooLargeError, match="50,000,0"):
            kept.add("user", content)
    with pytest.raises(mnemic.TooLargeError):
        kept.add("user", {"parts": ["x" * 1_000_000] * 20})
    assert_kept(kept)


def test_one_bad_message_of_many_stores_none(kept: mnemic.Session) -> None:
    with pytest.raises(mnemic.InvalidValueError):
        kept.add_many([Message("user", "a"), Message("user", "b", metadata={"x": math.nan})])
    assert_kept(kept)


@pytest.mark.parametrize("importance", [math.nan, math.inf, -math.inf, -1, "high", None, True, 10**400])
def test_an_importance_that_is_none_is_refused(alice: mnemic.Scope, importance: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="importance"):
        alice.remember("x", importance=importance)
    record = alice.remember("kept")
    with pytest.raises(mnemic.InvalidValueError, match="importance"):
        alice.update(record.id, importance=importance)
    assert [found.text for found in alice.memories.list()] == ["kept"]


@pytest.mark.parametrize("text", [None, 3, b"x", "\x00", "\ud800"])
def test_a_text_that_is_none_is_refused(alice: mnemic.Scope, text: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="text"):
        alice.remember(text)
    assert alice.memories.list() == []


@pytest.mark.parametrize("query", [None, 3, b"x"])
def test_a_question_that_is_no_text_is_refused(alice: mnemic.Scope, query: Any) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="query"):
        alice.recall(query)


def test_validity_that_ends_before_it_begins_is_refused(alice: mnemic.Scope) -> None:
    now = datetime.now(UTC)
    with pytest.raises(mnemic.InvalidValueError, match="valid_to"):
        alice.remember("x", valid_from=now, valid_to=now - timedelta(days=1))


def test_times_of_any_zone_are_the_same_moment(chat: mnemic.Session) -> None:
    east = timezone(timedelta(hours=9))
    chat.add("user", "a", timestamp=datetime(2026, 1, 1, 9, tzinfo=east))
    (found,) = chat.messages(since=datetime(2026, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 1, tzinfo=UTC))
    assert found.timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    naive = datetime(2026, 6, 1, 12)  # noqa: DTZ001
    chat.add("user", "b", timestamp=naive)
    assert chat.messages()[1].timestamp == naive.astimezone(UTC)


def test_a_tool_call_that_is_none_is_refused() -> None:
    for id, name in (("", "f"), ("c", ""), (None, "f")):
        with pytest.raises(mnemic.InvalidValueError, match="tool call"):
            ToolCall(id, name)  # type: ignore[arg-type]


def test_our_errors_are_also_those_that_people_catch() -> None:
    assert issubclass(mnemic.InvalidValueError, ValueError)
    assert issubclass(mnemic.NotFoundError, LookupError)
    assert issubclass(mnemic.StorePermissionError, PermissionError)
    assert issubclass(mnemic.StoreBusyError, TimeoutError)
    assert issubclass(mnemic.StoreUnavailableError, ConnectionError)
    assert issubclass(mnemic.MissingExtraError, ImportError)
    names = [name for name in mnemic.api.__all__ if name.endswith("Error")]
    assert all(issubclass(getattr(mnemic, name), mnemic.MnemicError) for name in names)


KINDS = "message, archived, summary, title, memory, note, fact"


@pytest.mark.parametrize(
    ("ask", "known"),
    [
        (lambda m: m.scope("a").recall("x", kinds="messages"), KINDS),
        (lambda m: m.scope("a").recall("x", kinds=["message", "lease"]), KINDS),
        (lambda m: m.scope("a").context("x", kinds="messages"), KINDS),
        (lambda m: m.scope("a").forget(metadata={"a": 1}, kinds="messages"), KINDS),
        (lambda m: m.scope("a").forget(metadata={"a": 1}, kinds="audit"), KINDS),
        (lambda m: m.audit_trail(kind="messages"), KINDS),
        (lambda m: m.audit_trail(operation="add"), "put, delete, purge, limit, expire, touch"),
        (lambda m: m.scope("a").recall("x", signals="words"), "lexical, dense, session"),
        (lambda m: m.scope("a").recall("x", roles="human"), "system, user, assistant, tool"),
        (lambda m: m.scope("a").session("s").messages(roles="users"), "system, user, assistant, tool"),
        (lambda m: m.scope("a").session("s").add("user", "x", speaker="Ann"), "role, content, id, name"),
        (lambda m: Message.from_dict({"role": "user", "text": "x"}), "role, content, id, name"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(ask: Callable[[mnemic.Memory], object], known: str) -> None:
    with mnemic.open("memory://", audit=True) as memory, pytest.raises(mnemic.InvalidValueError, match=known):
        ask(memory)


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: ScopePath(5),  # type: ignore[arg-type]
        lambda m: ScopePath(None),  # type: ignore[arg-type]
        lambda m: m.audit_trail(5),
        lambda m: m.audit_trail(0),
        lambda m: m.scope("a").session("s").add("user", ["a", None]),
        lambda m: m.scope("a").session("s").add("user", [["a"]]),
        lambda m: m.scope("a").session("s").delete(""),
        lambda m: m.scope("a").session("s").delete(None),
        lambda m: m.scope("a").session("s").delete(["m1"]),
        lambda m: m.scope("a").session("s").add_many(None),
        lambda m: m.scope("a").session("s").add_many(Message("user", "x")),
        lambda m: m.scope("a").session("s").prefill("abc"),
        lambda m: m.scope("a").remember_many(None),
    ],
)
def test_a_value_of_another_type_is_refused(ask: Callable[[Any], object]) -> None:
    with mnemic.open("memory://", audit=True) as memory, pytest.raises(mnemic.InvalidValueError):
        ask(memory)
