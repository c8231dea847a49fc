"""`once=`: a call that is sent again is done once, within its scope, and never swallows another."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import mnemic
from layered import KEY
from mnemic import ConflictError, Message
from mnemic.features.memory_items import Duplicates


def test_a_name_in_one_scope_says_nothing_of_another(memory: mnemic.Memory) -> None:
    for segments in (("acme", "alice"), ("acme", "bob"), ("other", "alice"), ("acme",)):
        space = memory.scope(*segments)
        space.remember(f"for {segments}", once="welcome")
        assert [record.text for record in space.memories.list()] == [f"for {segments}"]
        space.session("monday").add("user", f"hello {segments}", once="welcome")
        assert [message.text for message in space.session("monday").messages()] == [f"hello {segments}"]


def test_what_is_sent_again_returns_what_was_stored(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    first = alice.remember("likes tea", metadata={"a": 1}, once="r")
    assert alice.remember("likes tea", metadata={"a": 1}, once="r") == first
    assert alice.memories.get(first.id) == first
    many = alice.remember_many(["one", "two"], once="m")
    assert alice.remember_many(["one", "two"], once="m") == many
    said = chat.add("user", "hello", once="s")
    assert chat.add("user", "hello", once="s").id == said.id
    some = [Message("user", "a"), Message("assistant", "b")]
    chat.add_many(some, once="n")
    again = chat.add_many([Message("user", "a"), Message("assistant", "b")], once="n")
    assert [message.id for message in again] == [message.id for message in some]
    assert [message.text for message in chat.messages()] == ["hello", "a", "b"]
    assert len(alice.memories.list()) == 3


def test_other_words_under_a_name_are_refused(alice: mnemic.Scope, chat: mnemic.Session) -> None:
    alice.remember("likes tea", once="w")
    chat.add("user", "hello", once="w")
    with pytest.raises(ConflictError, match="'w'"):
        alice.remember("likes coffee", once="w")
    with pytest.raises(ConflictError, match="'w'"):
        alice.remember("likes tea", importance=2.0, once="w")
    with pytest.raises(ConflictError, match="'w'"):
        alice.remember_many(["likes tea", "and milk"], once="w")
    with pytest.raises(ConflictError, match="'w'"):
        alice.remember("likes coffee", once="w", duplicates="merge")
    with pytest.raises(ConflictError, match="'w'"):
        chat.add("assistant", "hello", once="w")
    with pytest.raises(ConflictError, match="'w'"):
        chat.add_many([Message("user", "hello"), Message("user", "hello")], once="w")
    assert [record.text for record in alice.memories.list()] == ["likes tea"]
    assert [message.text for message in chat.messages()] == ["hello"]


@pytest.mark.parametrize("policy", ["keep", "merge", "skip"])
def test_a_name_holds_with_every_policy_for_duplicates(alice: mnemic.Scope, policy: Duplicates) -> None:
    alice.remember("the train leaves at nine")
    first = alice.remember("the train leaves at nine", once="w", duplicates=policy)
    again = alice.remember("the train leaves at nine", once="w", duplicates=policy)
    assert again.id == first.id
    assert len(alice.memories.list()) == (2 if policy == "keep" else 1)


def test_a_limited_session_knows_what_it_has_dropped(alice: mnemic.Scope) -> None:
    chat = alice.session("short", max_messages=3, overflow="drop")
    for n in range(6):
        chat.add("user", f"m{n}", once=f"call-{n}")
    for n in range(6):
        chat.add("user", f"m{n}", once=f"call-{n}")
    assert [message.text for message in chat.messages()] == ["m3", "m4", "m5"]


def test_a_name_goes_with_its_scope(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember("old", once="w")
    alice.session("monday").add("user", "old", once="w")
    assert memory.scope("acme").erase().records == 2
    alice.remember("new", once="w")
    alice.session("monday").add("user", "new", once="w")
    assert [record.text for record in alice.memories.list()] == ["new"]
    assert [message.text for message in alice.session("monday").messages()] == ["new"]


def test_nothing_of_a_name_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with mnemic.open(f"sqlite:///{path}") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("a text", once="a-name-that-is-seen")
        alice.session("monday").add("user", "hello", once="another-that-is-seen")
        alice.erase()
    assert b"that-is-seen" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_an_encrypted_store_shows_no_digest_of_the_words(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        path = tmp_path / f"{name}.db"
        with mnemic.open(f"sqlite:///{path}", encryption_key=KEY) as memory:
            memory.scope("acme").remember("yes", once="w")
            assert len(memory.scope("acme").memories.list()) == 1
            memory.scope("acme").remember("yes", once="w")
            with pytest.raises(ConflictError):
                memory.scope("acme").remember("no", once="w")
        with sqlite3.connect(path) as raw:
            ((data,),) = raw.execute(
                "SELECT data FROM mnemic_records r JOIN mnemic_streams s ON s.id = r.stream_id WHERE s.kind = 'once'"
            ).fetchall()
        digests.add(data[:40])
    assert len(digests) == 2
