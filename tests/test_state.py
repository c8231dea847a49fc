"""State: values of an application, found by key alone."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

import pytest

import mnemic
from clock import Clock


def test_values_are_found_by_key_prefix_and_metadata(memory: mnemic.Memory) -> None:
    state = memory.scope("a").state
    first = state.set("run/1", {"step": 1}, metadata={"thread": "x"})
    assert state.get("run/1") == first
    assert (first.value, first.metadata) == ({"step": 1}, {"thread": "x"})
    state.set_many({"run/2": [2], "run/3": None, "other": "text"})
    assert [item.key for item in state.list()] == ["run/1", "run/2", "run/3", "other"]
    assert [item.key for item in state.list("run/", reverse=True)] == ["run/3", "run/2", "run/1"]
    assert state.keys() == ["run/1", "run/2", "run/3", "other"]
    assert state.keys("run/") == ["run/1", "run/2", "run/3"]
    assert [item.key for item in state.list("run/", before="run/3", reverse=True, limit=1)] == ["run/2"]
    assert state.list(limit=0) == []
    assert [item.key for item in state.list(metadata={"thread": "x"})] == ["run/1"]
    assert {key: item.value for key, item in state.get_many(["run/2", "run/3", "no"]).items()} == {
        "run/2": [2],
        "run/3": None,
    }
    assert state.get("no") is None
    assert memory.scope("b").state.list() == []


@pytest.mark.parametrize("prefix", ["a", "~", "\U0010ffff", "\ud7ff", "aé/"])
def test_a_prefix_is_matched_by_characters(memory: mnemic.Memory, prefix: str) -> None:
    state = memory.scope("a").state
    state.set_many({prefix: 1, prefix + "b": 2, "b" + prefix: 3, "\U0010fffe": 4})
    assert [item.value for item in state.list(prefix)] == [1, 2]
    assert state.keys(prefix) == [prefix, prefix + "b"]


def test_versions_are_compared(memory: mnemic.Memory) -> None:
    state = memory.scope("a").state
    first = state.set("k", 1, if_version=0)
    second = state.set("k", 2, if_version=first.version)
    assert second.created == first.created
    for stale in (0, first.version):
        with pytest.raises(mnemic.ConflictError) as conflict:
            state.set("k", 3, if_version=stale)
        assert conflict.value.current == second.version
    with pytest.raises(mnemic.ConflictError):
        state.delete("k", if_version=first.version)
    assert state.get("k") == second
    assert state.delete("k", if_version=second.version)
    assert not state.delete("k")


def test_it_is_counted(memory: mnemic.Memory) -> None:
    memory.scope("a").state.set("k", {"n": 1})
    assert [(one.scope.path, one.state, one.state_bytes) for one in memory.scopes()] == [("a", 1, len('{"n":1}'))]
    assert memory.stats().items == 1


def test_several_changes_are_one_write(memory: mnemic.Memory) -> None:
    state = memory.scope("a").state
    state.set("old", 1)
    with pytest.raises(mnemic.InvalidValueError):
        state.set_many({"new": 1, "bad": object()}, delete=["old"])
    assert [item.key for item in state.list()] == ["old"]
    state.set_many({"new": 1}, delete=["old", "never"])
    assert [item.key for item in state.list()] == ["new"]
    state.set_many({})
    state.clear()
    assert state.list() == []


def test_several_changes_may_depend_on_versions(memory: mnemic.Memory) -> None:
    state = memory.scope("a").state
    old = state.set("old", 1)
    for versions in ({"new": 1}, {"old": old.version + 1}, {"old": 0}):
        with pytest.raises(mnemic.ConflictError):
            state.set_many({"new": 1, "free": 1}, delete=["old"], if_versions=versions)
        assert [item.key for item in state.list()] == ["old"]
    with pytest.raises(mnemic.InvalidValueError, match="if_versions"):
        state.set_many({"new": 1}, if_versions={"new": -1})
    state.set_many({"new": 1, "free": 1}, delete=["old"], if_versions={"old": old.version, "new": 0})
    assert [item.key for item in state.list()] == ["new", "free"]


def test_a_value_expires(memory: mnemic.Memory, clock: Clock) -> None:
    state = memory.scope("a").state
    state.set("short", 1, ttl=timedelta(minutes=1))
    state.set("long", 1)
    clock.advance(minutes=2)
    assert [item.key for item in state.list()] == ["long"]


def test_recall_redaction_and_forgetting_leave_it_alone(tmp_path: object) -> None:
    memory = mnemic.open("memory://", redact=True)
    scope = memory.scope("a")
    scope.state.set("k", {"mail": "alice@example.com"})
    assert scope.recall("alice@example.com") == []
    found = scope.state.get("k")
    assert found is not None
    assert found.value == {"mail": "alice@example.com"}


def test_it_is_erased_exported_and_imported_with_its_scope(memory: mnemic.Memory, tmp_path: object) -> None:
    scope = memory.scope("a")
    scope.state.set("k", {"n": 1}, metadata={"m": 2})
    scope.export_to(f"{tmp_path}/a.jsonl")
    assert scope.erase().records == 1
    assert scope.state.list() == []
    scope.import_from(f"{tmp_path}/a.jsonl")
    (item,) = scope.state.list()
    assert (item.key, item.value, item.metadata) == ("k", {"n": 1}, {"m": 2})


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 2000, 7])
def test_a_bad_key_is_refused(memory: mnemic.Memory, key: str) -> None:
    state = memory.scope("a").state
    for call in (state.get, state.delete, lambda key: state.set(key, 1), lambda key: state.set_many({key: 1})):
        with pytest.raises(mnemic.InvalidValueError):
            call(key)


def test_an_update_sees_the_current_value(memory: mnemic.Memory) -> None:
    state = memory.scope("a").state
    assert state.update("n", lambda old: [old]).value == [None]
    seen = []

    def change(old: object) -> object:
        seen.append(old)
        if len(seen) == 1:
            state.set("n", "theirs", metadata={"by": "them"})
        return "ours"

    changed = state.update("n", change)
    assert (seen, changed.value, changed.metadata) == ([[None], "theirs"], "ours", {"by": "them"})
    with pytest.raises(mnemic.InvalidValueError):
        state.update("n", lambda old: object())
    assert state.get("n") == changed


def test_a_list_may_cover_the_scopes_below(memory: mnemic.Memory) -> None:
    memory.scope("a").state.set("x", 1)
    memory.scope("a", "b").state.set_many({"x": 2, "y": 3})
    memory.scope("c").state.set("x", 4)
    found = memory.scope("a").state.list("x", below=True)
    assert [(item.scope.path, item.value) for item in found] == [("a", 1), ("a/b", 2)]


def test_a_string_of_an_enum_is_its_value(memory: mnemic.Memory) -> None:
    class Kind(str, Enum):  # noqa: UP042 -- as frameworks still write it
        AGENT = "agent"

    state = memory.scope(Kind.AGENT).state
    state.set(Kind.AGENT, {Kind.AGENT: Kind.AGENT})
    (item,) = memory.scope("agent").state.list()
    assert (item.key, item.value) == ("agent", {"agent": "agent"})
