"""A person can look: scopes, counts, health."""

from __future__ import annotations

from datetime import timedelta

import pytest

import mnemic


@pytest.fixture
def memory() -> mnemic.Memory:
    memory = mnemic.open("memory://")
    alice = memory.scope("acme", "alice")
    chat = alice.session("monday", max_messages=2, overflow="archive")
    for n in range(4):
        chat.add("user", f"message {n}")
    alice.session("tuesday").add("user", "hello")
    alice.remember("Alice likes tea")
    alice.notes.write("plan", [1, 2])
    alice.facts.add("Alice", "likes", "tea")
    memory.scope("acme").notes.write("rules", "be kind")
    memory.scope("other", "bob").remember("Bob likes tea")
    return memory


def test_a_scope_is_counted_with_all_below_it(memory: mnemic.Memory) -> None:
    stats = memory.scope("acme").stats()
    assert (stats.scope.path, stats.sessions, stats.memories, stats.notes, stats.facts) == ("acme", 2, 1, 2, 1)
    assert stats.messages + stats.archived == 5
    assert stats.tokens > 0
    assert stats.note_bytes == len("[1,2]") + len('"be kind"')
    assert stats.first_activity is not None
    assert stats.last_activity is not None
    assert stats.first_activity <= stats.last_activity
    assert memory.stats().memories == 2
    assert memory.scope("nobody").stats() == mnemic.Stats(scope=mnemic.ScopePath("nobody"))


def test_scopes_are_listed_with_their_own_counts(memory: mnemic.Memory) -> None:
    listed = memory.scopes()
    assert [(found.scope.path, found.sessions, found.notes) for found in listed] == [
        ("acme", 0, 1),
        ("acme/alice", 2, 1),
        ("other/bob", 0, 0),
    ]
    assert [found.scope.path for found in memory.scope("acme").scopes()] == ["acme", "acme/alice"]
    assert len(memory.scopes(limit=1)) == 1
    with pytest.raises(mnemic.InvalidValueError):
        memory.scopes(limit=-1)


def test_what_is_counted_prints_shortly_and_turns_into_a_dict(memory: mnemic.Memory) -> None:
    stats = memory.scope("other").stats()
    assert "memories=1" in repr(stats)
    assert "sessions" not in repr(stats)
    assert stats.to_dict()["scope"] == "other"


def test_ping_tells_how_long_the_store_takes_to_answer(memory: mnemic.Memory) -> None:
    assert timedelta(0) <= memory.ping() < timedelta(minutes=1)
    memory.close()
    with pytest.raises(mnemic.ClosedError):
        memory.ping()
