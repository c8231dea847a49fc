"""A person can look: scopes, counts, health."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import mnemic
from mnemic.backends.sql.statements import Reach, Statements
from mnemic.backends.sqlite.client import FLAVOR
from mnemic.records import TITLE, Record, Ref, ScopePath
from mnemic.store.query import Put, Write
from servers.stores import empty_store


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


@pytest.mark.parametrize("store", ["memory", "sqlite", "valkey", "postgresql"])
def test_sessions_are_listed_with_their_titles_which_are_read_at_once(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with empty_store(store, tmp_path) as url, mnemic.open(url, embedder=None) as memory:
        inner, reads = memory._async._store, list[int]()
        read = inner.read

        async def counted(refs: Sequence[Ref]) -> Sequence[Record | None]:
            reads.append(len(refs))
            return await read(refs)

        for n in range(4):
            memory.scope("me").session(f"s{n}").add("user", "hello")
        monkeypatch.setattr(inner, "read", counted)
        assert {info.title for info in memory.scope("me").sessions.list()} == {None}
        assert reads == []
        for n in (0, 2):
            title = Record(ScopePath(f"me/s{n}"), TITLE, TITLE, title=f"Title {n}")
            memory._driver.run(inner.write(Write((Put(title),))))
        listed = memory.scope("me").sessions.list()
        assert [info.title for info in listed] == ["Title 0", None, "Title 2", None]
        assert [info.messages for info in listed] == [1, 1, 1, 1]
        assert reads == [2]
        assert memory.scope("me").sessions.get("s2") == listed[2] == memory.scope("me").session("s2").info()


def test_ping_tells_how_long_the_store_takes_to_answer(memory: mnemic.Memory) -> None:
    assert timedelta(0) <= memory.ping() < timedelta(minutes=1)
    memory.close()
    with pytest.raises(mnemic.ClosedError):
        memory.ping()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("onward", [False, True])
@pytest.mark.parametrize("where", ["here", "below", "everywhere"])
def test_a_page_of_streams_is_read_from_the_index_and_not_sorted(
    where: Reach, onward: bool, reverse: bool, tmp_path: Path
) -> None:
    mnemic.open(f"sqlite:///{tmp_path / 'memory.db'}").close()
    statement = Statements(FLAVOR).reach(where, 0, reverse, onward)
    names = dict.fromkeys(("scope", "first", "beyond", "at_scope", "at_kind"), "a") | {"limit": 10}
    with closing(sqlite3.connect(tmp_path / "memory.db")) as raw:
        plan = [step for *_, step in raw.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.arguments(names))]
    assert not any("TEMP B-TREE" in step for step in plan)
    entered = [step for step in plan if step.startswith("SEARCH")]
    assert entered or (where == "everywhere" and not onward)
    assert all("INDEX sqlite_autoindex_mnemic_streams_1 (scope" in step for step in entered)


def test_many_sessions_are_listed_in_order_across_pages(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice = memory.scope("acme", "alice")
        names = [f"s{n}" for n in range(1100)]
        for name in names:
            alice.session(name).add("user", name)
        memory.scope("acme", "alice-2").session("s5").add("user", "of somebody else")
        assert sorted(info.name for info in alice.sessions.list()) == sorted(names)
        assert alice.stats().messages == 1100
        assert [hit.text for hit in alice.recall("s777", k=1)] == ["s777"]
