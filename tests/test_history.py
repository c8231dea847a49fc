"""History: earlier versions of items and sessions, restoring them, and reading a scope as of a moment."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import mnemic
from clock import START, Steps
from http_server import make_key, serving
from mnemic.cli.commands import main
from mnemic.errors import InvalidValueError, NotFoundError, StorePermissionError
from mnemic.features.memory_history import memory_history, update_memory
from mnemic.records import MEMORY, VERSION, Ref, ScopePath
from mnemic.store.protocol import scan_all
from mnemic.store.query import Scan

MONTH = timedelta(days=30)


@pytest.fixture
def clock() -> Steps:
    return Steps()


@pytest.fixture(params=["memory://", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: Steps) -> Iterator[mnemic.Memory]:
    url = f"sqlite:///{tmp_path}/history.db" if request.param == "sqlite" else request.param
    with mnemic.open(url, history=MONTH, clock=clock, embedder=None) as memory:
        yield memory


def kept(memory: mnemic.Memory, scope: str = "") -> int:
    """Return the number of records of versions in a scope and below."""

    async def count() -> int:
        scan = Scan(scope=ScopePath(scope), kinds=(VERSION,), below=True)
        return sum([1 async for _ in scan_all(memory._async._store, scan)])

    return memory._driver.run(count())


def test_the_versions_of_an_item_are_listed_newest_first(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember("Alice likes tea", id="drink")
    first = clock.move()
    with memory.acting(actor="bob"):
        alice.memories.update("drink", text="Alice likes coffee")
    second = clock.move()
    with memory.acting(actor="carol"):
        alice.memories.delete("drink")

    new, old = memory.scope("acme").history("drink")
    assert (new.item.text, new.version, new.written, new.by) == ("Alice likes coffee", 2, second, "bob")  # type: ignore[union-attr]
    assert (new.ended, new.ended_by, new.deleted, new.current) == (clock.time, "carol", True, False)
    assert (old.item.text, old.version, old.written, old.by) == ("Alice likes tea", 1, first, None)  # type: ignore[union-attr]
    assert (old.ended, old.ended_by, old.deleted) == (second, "bob", False)
    assert new.kind == "memory"
    assert new.scope == ScopePath("acme/alice")


@pytest.mark.parametrize("kind", ["message", "note", "memory", "fact"])
def test_every_kind_of_item_has_versions_and_comes_back(memory: mnemic.Memory, clock: Steps, kind: str) -> None:
    alice = memory.scope("alice")
    chat = alice.session("monday")
    if kind == "message":
        id = chat.add("user", "one").id
        chat.edit({"id": id, "role": "user", "content": "two"})
        chat.delete(id)
    elif kind == "note":
        id = alice.notes.write("id", "one").key
        alice.notes.write("id", "two")
        alice.notes.delete("id")
    elif kind == "memory":
        id = alice.remember("one").id
        alice.memories.update(id, text="two")
        alice.memories.delete(id)
    else:
        alice.facts.add("Alice", "likes", "tea", confidence=0.5)
        alice.facts.add("Alice", "likes", "tea", confidence=1.0)
        id = alice.facts.ask()[0].id
        alice.facts.delete("Alice", "likes")
    clock.move()

    two, one = alice.history(id)
    assert (two.deleted, one.deleted, two.current) == (True, False, False)
    assert alice.restore(id, one.version) == alice.get(id)
    again, *before = alice.history(id)
    assert again.current
    assert [version.version for version in before] == [two.version, one.version]
    alice.restore(id, two)
    assert _content(alice.get(id)) == _content(two.item) != _content(one.item)
    assert len(alice.history(id)) == 4


@pytest.mark.parametrize("single", [False, True])
def test_a_restored_fact_is_as_it_was(memory: mnemic.Memory, clock: Steps, single: bool) -> None:
    facts = memory.scope("acme", "alice").facts
    for place in ("Oslo", "Rome"):
        facts.add("Alice", "lives in", place, single=single)
        (fact,) = facts.ask(object=place)
        memory.scope("acme", "alice").update(fact.id, importance=5.0, pinned=True, metadata={"seen": place})
        clock.move()
    first = memory.scope("acme", "alice").history(fact.id)[0]
    earlier = None if single else fact.valid_from - timedelta(days=1)
    facts.add("Alice", "lives in", "Rome", single=single, valid_from=earlier, confidence=0.5)
    assert facts.ask(object="Rome")[0].valid_from == (earlier or fact.valid_from)
    kept = memory.scope("acme", "alice").history(fact.id)[0].record
    assert (kept.importance, kept.pinned, kept.meta) == (5.0, True, {})
    for undo in (lambda: None, lambda: facts.delete("Alice", "lives in", "Rome")):
        undo()
        assert memory.scope("acme", "alice").restore(first) == first.item
        now = memory.scope("acme", "alice").history(fact.id)[0].record
        assert (now.importance, now.pinned, now.meta) == (5.0, True, {"seen": "Rome"})
    if single:  # what has ended keeps all that was said of it
        (oslo,) = facts.ask(object="Oslo", history=True)
        ended = memory.scope("acme", "alice").history(oslo.id)[0].record
        assert (ended.valid_to is None, ended.importance, ended.pinned) == (False, 5.0, True)


def _content(item: mnemic.Item) -> Any:
    if isinstance(item, mnemic.Note):
        return item.value
    if isinstance(item, mnemic.Fact):
        return item.confidence
    return item.text if not isinstance(item, str) else item


def test_what_cannot_be_restored_is_said(memory: mnemic.Memory) -> None:
    alice = memory.scope("alice")
    with pytest.raises(NotFoundError, match="nothing in its history"):
        alice.history("nothing")
    alice.notes.write("note", 1)
    with pytest.raises(NotFoundError, match="'note' in 'alice' has no earlier version"):
        alice.restore("note")
    alice.notes.write("note", 2)
    with pytest.raises(NotFoundError, match="no version 7; earlier ones: 1"):
        alice.restore("note", 7)
    for scope in ("bob", "carol"):
        memory.scope(scope).notes.write("same", 1)
        memory.scope(scope).notes.delete("same")
    with pytest.raises(
        InvalidValueError,
        match=r"2 records have or had the key 'same' \(deleted note in 'bob', deleted note in 'carol'\)",
    ):
        memory.scope().history("same")
    with pytest.raises(InvalidValueError, match="version must be a whole number, not str: '1'"):
        alice.restore("note", "1")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="session 'alice/monday' was not cleared or deleted"):
        alice.session("monday").restore()


@pytest.mark.parametrize("deleted", ["memory", "note", "neither"])
def test_a_note_and_a_memory_of_the_same_id_are_told_apart(memory: mnemic.Memory, deleted: str) -> None:
    alice = memory.scope("alice")
    for text in ("one", "two"):
        alice.notes.write("plan", f"note {text}")
        alice.remember(f"memory {text}", id="plan")
    if deleted == "memory":
        alice.memories.delete("plan")
    elif deleted == "note":
        alice.notes.delete("plan")

    for call in (alice.restore, alice.history):
        with pytest.raises(InvalidValueError, match=r"2 records have or had the key 'plan'.*give the kind"):
            call("plan")
    assert [version.kind for version in alice.history("plan", kind="note")] == ["note"] * 2
    with pytest.raises(InvalidValueError, match="'plan' in 'alice' is a note, not a memory"):
        alice.restore(alice.history("plan", kind="note")[0], kind="memory")
    with pytest.raises(InvalidValueError, match="kind"):
        alice.history("plan", kind="nothing")

    if deleted == "memory":
        alice.restore("plan", kind="memory")
    elif deleted == "note":
        alice.restore(alice.history("plan", kind="note")[0])
    assert (alice.notes.read("plan"), alice.memories.get("plan").text) == ("note two", "memory two")
    alice.restore("plan", alice.history("plan", kind="memory")[-1])  # a version tells them apart, too
    assert (alice.notes.read("plan"), alice.memories.get("plan").text) == ("note two", "memory one")
    with pytest.raises(InvalidValueError, match="version 1 of 'plan' is not one of 'other'"):
        alice.restore("other", alice.history("plan", kind="note")[-1])
    with pytest.raises(InvalidValueError, match="not two versions"):
        alice.restore(alice.history("plan", kind="note")[-1], 1)


def test_an_id_of_two_scopes_stays_ambiguous_after_a_deletion(memory: mnemic.Memory) -> None:
    above = memory.scope("a")
    for name in ("x", "y"):
        for text in ("one", "two"):
            above.scope(name).remember(f"{name} {text}", id="i")
    above.scope("x").memories.delete("i")
    with pytest.raises(InvalidValueError, match=r"deleted memory in 'a/x', memory in 'a/y'"):
        above.restore("i")
    above.remember("here", id="i")
    above.memories.delete("i")
    with pytest.raises(InvalidValueError, match="3 records have or had the key 'i'"):
        above.restore("i")
    assert above.scope("x").restore("i").text == "x two"  # type: ignore[union-attr]
    assert above.scope("y").get("i").text == "y two"  # type: ignore[union-attr]
    above.remember("here again", id="i")
    assert [version.scope.path for version in above.history("i")] == ["a"] * 2


def test_an_archived_message_is_the_same_item(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    chat = alice.session("monday", max_messages=1)
    id = chat.add("user", "first").id
    with memory.acting(actor="bob"):
        chat.edit({"id": id, "role": "user", "content": "FIRST"})
    clock.move()
    before, first = alice.history(id)
    chat.add("user", "two")
    (archived,) = chat.archived()
    assert archived.id == id

    def texts(item: Any) -> list[Any]:
        return [_content(version.item) for version in alice.history(item)]

    for item in (id, before, first):  # a version, too, tells which message it is about
        assert texts(item) == ["FIRST", "first"]
    now, old = alice.history(id, kind="message")
    assert (now.current, now.by, old.deleted, old.ended_by) == (True, "bob", False, "bob")
    for version, text in ((None, "first"), (before, "FIRST"), (first, "first")):
        alice.restore(id, version)  # where it is now
        assert [message.text for message in chat.archived()] == [text]
        assert [message.text for message in chat.messages()] == ["two"]
    alice.sessions.delete("monday")
    deleted = alice.history(id)
    assert [version.deleted for version in deleted] == [True, False, False, False, False]
    assert [_content(version.item) for version in deleted] == ["first", "FIRST", "first", "FIRST", "first"]


def test_a_cleared_and_a_deleted_session_come_back(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    chat = alice.session("monday", max_messages=3)
    for n in range(5):
        chat.add("user", f"message {n}")
    before, archive = chat.messages(), chat.archived()
    assert (len(before), len(archive)) == (3, 2)

    chat.clear()
    assert chat.restore() == 3
    assert (chat.messages(), chat.archived()) == (before, archive)
    assert chat.restore() == 0

    assert alice.sessions.delete("monday")
    again = alice.session("monday")
    later = again.add("user", "later")
    alice.session("monday").configure(max_messages=10)
    assert again.restore() == 3
    assert again.messages() == [*before, later]

    assert alice.sessions.delete("monday")
    fresh = alice.session("monday")
    assert fresh.restore() == 4
    assert fresh.settings().max_messages == 10
    assert [version.deleted for version in fresh.history(limit=4)] == [True] * 4


@pytest.mark.parametrize("overflow", ["drop", "archive"])
def test_a_restored_session_is_within_its_limits(memory: mnemic.Memory, overflow: Literal["drop", "archive"]) -> None:
    alice = memory.scope("alice")
    chat = alice.session("monday", max_messages=5, overflow=overflow)
    for n in range(5):
        chat.add("user", f"message {n}")
    chat.clear()
    chat.add("user", "later")
    for handle, restored in ((chat, 4), (alice.session("monday"), 0), (chat, 0)):
        assert handle.restore() == restored
        assert [message.text for message in handle.messages()] == [*(f"message {n}" for n in range(1, 5)), "later"]
    assert [message.text for message in chat.archived()] == (["message 0"] if overflow == "archive" else [])
    before = kept(memory)
    chat.restore()
    assert kept(memory) == before


def test_history_true_is_as_before_or_a_month(tmp_path: Path, clock: Steps) -> None:
    def versions(store: str, history: timedelta | bool | Literal["recorded"] | None) -> int:
        with mnemic.open(f"sqlite:///{tmp_path}/{store}.db", history=history, clock=clock, embedder=None) as memory:
            memory.scope("alice").notes.write("note", clock.move().isoformat())
            memory.scope("alice").notes.write("note", clock.move().isoformat())
            return len(memory.scope("alice").history("note"))

    assert versions("none", "recorded") == versions("none", False) == versions("none", None) == 1
    assert versions("new", True) == 2
    clock.move(timedelta(days=29).total_seconds())
    assert versions("new", "recorded") == 4
    clock.move(timedelta(days=1).total_seconds())
    assert versions("new", "recorded") == 5  # without the first
    assert versions("week", timedelta(days=7)) == 2
    clock.move(timedelta(days=7).total_seconds())
    assert versions("week", True) == 3
    with pytest.raises(InvalidValueError, match="history must be a timedelta, a bool or 'recorded': 'month'"):
        mnemic.open("memory://", history="month")  # type: ignore[arg-type]


def test_appending_keeps_nothing(memory: mnemic.Memory) -> None:
    alice = memory.scope("alice")
    chat = alice.session("monday")
    chat.add("user", "one")
    chat.add_many([{"role": "user", "content": "two"}])
    alice.remember("three")
    alice.notes.write("four", 4)
    assert kept(memory, "alice") == 0


def test_versions_are_neither_counted_nor_found_nor_exported(memory: mnemic.Memory, tmp_path: Path) -> None:
    alice = memory.scope("alice")
    for n in range(3):
        alice.notes.write("note", f"secret{n} " * 10)
    chat = alice.session("monday", max_messages=2, overflow="drop")
    for n in range(4):
        chat.add("user", f"hello {n}")
    assert kept(memory) >= 4
    assert (alice.stats().notes, alice.stats().messages, alice.stats().tokens) == (1, 2, chat.info().tokens)  # type: ignore[union-attr]
    assert [scope.scope.path for scope in memory.scopes()] == ["alice"]
    assert (alice.recall("secret0"), len(alice.recall("secret2"))) == ([], 1)
    assert alice.export_to(tmp_path / "all.jsonl").records == 3
    assert VERSION not in (tmp_path / "all.jsonl").read_text()
    assert "secret0" not in (tmp_path / "all.jsonl").read_text()
    assert memory.stats().items == 3


def test_versions_expire(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    alice.notes.write("note", 1)
    clock.move()
    alice.notes.write("note", 2)
    assert len(alice.history("note")) == 2
    clock.move(MONTH.total_seconds() - 1)
    assert len(alice.history("note")) == 2
    clock.move(1)
    (current,) = alice.history("note")
    assert current.current
    assert memory.compact() == 0  # versions are not counted
    assert kept(memory, "alice") == 0


def test_a_version_expires_no_later_than_its_record(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    alice.remember("for an hour", id="short", ttl=timedelta(hours=1))
    alice.memories.delete("short")
    assert len(alice.history("short")) == 1
    clock.move(3600)
    with pytest.raises(NotFoundError):
        alice.history("short")


@pytest.mark.parametrize("change", ["edit", "delete", "limit", "clear"])
def test_a_version_expires_no_later_than_its_session(memory: mnemic.Memory, clock: Steps, change: str) -> None:
    chat = memory.scope("alice").session("short", ttl=timedelta(hours=1), max_messages=2, overflow="drop")
    first, _ = chat.add("user", "one"), chat.add("user", "two")
    if change == "edit":
        chat.edit({"id": first.id, "role": "user", "content": "changed"})
    elif change == "delete":
        chat.delete(first)
    elif change == "limit":
        chat.add("user", "three")
    else:
        chat.clear()
    assert len(chat.history()) == (2 if change == "clear" else 1)
    clock.move(3600)
    assert chat.history() == []


def test_erasing_leaves_no_version(memory: mnemic.Memory, tmp_path: Path) -> None:
    alice = memory.scope("acme", "alice")
    alice.notes.write("note", "first")
    alice.notes.write("note", "second")
    alice.session("monday").add("user", "hello")
    alice.sessions.delete("monday")
    memory.scope("acme", "bob").notes.write("note", 1)
    memory.scope("acme", "bob").notes.write("note", 2)
    assert kept(memory, "acme/alice") > 1
    alice.erase()
    assert kept(memory, "acme/alice") == 0
    assert len(memory.scope("acme", "bob").history("note")) == 2
    memory.scope().erase()
    assert kept(memory) == 0
    memory.scope("bob").notes.write("note", 1)
    assert memory.scope("bob").as_of(memory._async._store.clock()).notes.read("note") == 1


def test_a_restricted_memory_sees_its_own_versions_alone(memory: mnemic.Memory) -> None:
    for name in ("alice", "bob"):
        memory.scope("acme", name).notes.write("note", "old")
        memory.scope("acme", name).notes.write("note", "new")
    now = memory._async._store.clock()
    alice = memory.restricted("acme/alice")
    assert len(alice.scope("acme", "alice").history("note")) == 2
    assert {version.scope.path for version in alice.scope().history("note")} == {"acme/alice"}
    with pytest.raises(NotFoundError):
        alice.scope("acme", "bob").history("note")
    assert alice.scope("acme", "bob").as_of(now).notes.list() == []
    assert alice.scope("acme", "alice").as_of(now).notes.read("note") == "new"
    reader = memory.restricted("acme/alice", ["read"]).scope("acme", "alice")
    with pytest.raises(mnemic.AccessDeniedError):
        reader.restore("note")


def test_the_audit_log_has_no_entries_for_versions(tmp_path: Path) -> None:
    with mnemic.open("memory://", history=MONTH, audit=True, embedder=None) as memory:
        memory.scope("a").notes.write("note", 1)
        memory.scope("a").notes.write("note", 2)
        memory.scope("a").restore("note")
        assert [(entry.kind, entry.key) for entry in memory.audit_trail()] == [("note", "note")] * 3


def test_what_is_encrypted_is_encrypted_in_its_versions(tmp_path: Path) -> None:
    path = tmp_path / "sealed.db"
    with mnemic.open(f"sqlite:///{path}", history=MONTH, encryption_key=bytes(32), embedder=None) as memory:
        memory.scope("a").notes.write("plan", "attack at dawn")
        memory.scope("a").notes.write("plan", "retreat at noon")
        new, old = memory.scope("a").history("plan")
        assert isinstance(old.item, mnemic.Note)
        assert old.item.value == "attack at dawn"
        assert memory.scope("a").as_of(new.written).notes.read("plan") == "retreat at noon"
    for file in tmp_path.iterdir():
        assert b"attack at dawn" not in file.read_bytes()


# ---------------------------------------------------------------- as of a moment


def test_a_scope_reads_as_it_was(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("acme", "alice")
    chat = alice.session("monday")
    said = [chat.add("user", "What is the wifi password?"), chat.add("assistant", "It is hunter2")]
    alice.remember("Alice lives in Berlin", id="home")
    alice.facts.add("Alice", "works at", "Acme")
    alice.notes.write("plan", "first")
    stats, sessions, window = alice.stats(), alice.sessions.list(), chat.window(1000)
    scopes = memory.scope("acme").scopes()
    then = clock.move()
    chat.edit({"id": said[1].id, "role": "assistant", "content": "It was changed"})
    chat.add("user", "Thanks")
    alice.memories.update("home", text="Alice lives in Paris")
    alice.facts.delete("Alice", "works at")
    alice.notes.clear()
    alice.sessions.delete("monday")
    alice.scope("deeper").remember("Later")
    clock.move()

    past = alice.as_of(then)
    assert past.session("monday").messages() == said
    assert past.session("monday").window(1000) == window
    assert past.stats() == stats
    assert past.sessions.list() == sessions
    assert past.memories.get("home").text == "Alice lives in Berlin"
    assert [fact.object for fact in past.facts.ask("Alice")] == ["Acme"]
    assert past.notes.read("plan") == "first"
    assert [hit.text for hit in past.recall("Where does Alice live?", 1)] == ["Alice lives in Berlin"]
    assert [hit.text for hit in past.recall("hunter2", 1)] == ["It is hunter2"]
    assert past.recall("Paris", min_score=0.6) == []
    assert past.get("home") == past.memories.get("home")
    assert memory.scope("acme").as_of(then).scopes() == scopes
    assert "hunter2" in str(past.context("password?", session="monday").text)
    for change in (
        lambda: past.remember("now"),
        lambda: past.session("monday").add("user", "now"),
        lambda: past.notes.write("plan", "now"),
        lambda: past.erase(),
        lambda: past.memories.delete("home"),
    ):
        with pytest.raises(StorePermissionError, match="cannot be changed"):
            change()


def test_a_moment_outside_of_the_history_is_refused(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    with pytest.raises(InvalidValueError, match="this store has no history"):
        alice.as_of(clock.time)
    alice.notes.write("note", 1)
    with pytest.raises(InvalidValueError, match="begins at 2026-01-01T00:00:00"):
        alice.as_of(START - timedelta(seconds=1))
    with pytest.raises(InvalidValueError, match="a moment in the past"):
        alice.as_of(START + timedelta(seconds=1))
    clock.move(MONTH.total_seconds() + 10)
    with pytest.raises(InvalidValueError, match="begins at 2026-01-01T00:00:10"):
        alice.as_of(START)
    assert alice.as_of(START + timedelta(seconds=10)).notes.read("note") == 1


def test_a_longer_history_does_not_begin_earlier(tmp_path: Path, clock: Steps) -> None:
    url = f"sqlite:///{tmp_path}/longer.db"
    with mnemic.open(url, history=timedelta(hours=1), clock=clock, embedder=None) as memory:
        memory.scope("a").notes.write("note", 1)
    clock.move(7200)
    with mnemic.open(url, history=MONTH, clock=clock, embedder=None) as memory:
        memory.scope("a").notes.write("note", 2)
        with pytest.raises(InvalidValueError, match="begins at 2026-01-01T01:00:00"):
            memory.scope("a").as_of(START)
    with mnemic.open(url, clock=clock, embedder=None) as memory:  # it can be read without keeping one
        assert len(memory.scope("a").history("note")) == 2


def test_history_must_be_a_positive_time() -> None:
    for wrong in (timedelta(0), 30, "30 days"):
        with pytest.raises(InvalidValueError, match="history"):
            mnemic.open("memory://", history=wrong)  # type: ignore[arg-type]


def test_a_copy_takes_the_history_along(tmp_path: Path, clock: Steps) -> None:
    clock.time = datetime.now(UTC)  # that of the copy
    url = f"sqlite:///{tmp_path}/original.db"
    with mnemic.open(url, history=MONTH, clock=clock, embedder=None) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday")
        said = chat.add_many([{"role": "user", "content": f"message {n}"} for n in range(10)])
        alice.notes.write("plan", "first")
        then = clock.move(0.000001)
        chat.delete(said[0], said[4], said[9])
        chat.edit({"id": said[5].id, "role": "user", "content": "edited"})
        alice.notes.write("plan", "second")
    keys = {"plain": (None, None), "sealed": (None, bytes(32)), "again": (bytes(32), None)}
    for name, (source, target) in keys.items():
        copy = f"sqlite:///{tmp_path}/{name}.db"
        assert mnemic.copy(url, copy, source_key=source, target_key=target).written > 7
        assert mnemic.copy(url, copy, source_key=source, target_key=target).written == 0
        url = copy
        with mnemic.open(url, clock=clock, encryption_key=target, embedder=None) as copied:
            there = copied.scope("acme", "alice")
            assert there.as_of(then).session("monday").messages() == said
            assert there.as_of(then).notes.read("plan") == "first"
            assert [version.written for version in there.history("plan")] == [clock.time, then]
            assert len(there.session("monday").messages()) == 7


def test_a_scope_as_of_a_moment_is_read_only(memory: mnemic.Memory, clock: Steps) -> None:
    alice = memory.scope("alice")
    alice.remember("Alice drinks tea", id="drink")
    alice.session("monday").add("user", "What does Alice drink?")
    past = alice.as_of(clock.move())
    alice.remember("Alice drinks coffee", id="drink")

    assert "Alice drinks tea" in past.context("Alice drinks").text
    assert "Alice drinks tea" in past.context(session="monday").text
    assert len(past.recall("Alice drinks")) == 2
    for change in (
        lambda: past.hold("a case"),
        lambda: past.release("a case"),
        lambda: past.used("drink"),
        lambda: past.remember("Alice drinks milk"),
        past.erase,
    ):
        with pytest.raises(StorePermissionError, match=r"what was stored at 2026-01-01T00:00:00.* cannot be changed"):
            change()
    for read in (past.holds, lambda: past.history("drink"), lambda: past.restore("drink"), past.session("x").history):
        with pytest.raises(InvalidValueError, match=r"as of 2026-01-01T00:00:00.* are not known: ask the scope itself"):
            read()
    with pytest.raises(InvalidValueError, match="is as of a moment already"):
        past.as_of(START)


# ---------------------------------------------------------------- a server, and the command line


def test_a_server_keeps_the_history_of_its_clients(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/served.db", history=MONTH, embedder=None) as client:
        url = str(client.base_url)
        for given in (MONTH, True):
            with pytest.raises(InvalidValueError, match="is kept by the server"):
                mnemic.open(url, history=given)
        with mnemic.open(url, history="recorded") as memory:
            alice = memory.scope("acme", "alice")
            alice.notes.write("plan", "first")
            alice.session("monday").add("user", "hello")
            moment = alice.notes.get("plan").updated
            alice.notes.write("plan", "second")
            alice.sessions.delete("monday")
            assert [version.item.value for version in alice.history("plan")] == ["second", "first"]  # type: ignore[union-attr]
            assert alice.as_of(moment).notes.read("plan") == "first"
            assert alice.session("monday").restore() == 1
        place = {"scope": "acme/alice"}
        found = client.get("/api/v1/history", params={**place, "id": "plan"}).json()["versions"]
        assert [(one["version"], one["deleted"], one["item"]["data"]) for one in found] == [
            (2, False, "second"),
            (1, False, "first"),
        ]
        restored = client.post("/api/v1/restore", params=place, json={"id": "plan", "version": 1}).json()["versions"]
        assert [one["item"]["data"] for one in restored] == ["first", "second", "first"]
        assert client.post("/api/v1/restore", params=place, json={"id": "none"}).status_code == 404
        client.post("/api/v1/sessions/monday/clear", params=place, json={}).raise_for_status()
        assert client.post("/api/v1/sessions/monday/restore", params=place).json() == {"messages": 1}
        gone = client.get("/api/v1/sessions/monday/history", params=place).json()["versions"]
        assert [one["item"]["text"] for one in gone] == ["hello", "hello"]


def test_a_moment_outside_of_the_history_of_a_server_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/served.db"
    key = make_key(url, "acme", "read", "write")
    for history, message in ((None, "this store has no history"), (MONTH, "the history of this store begins at")):
        with serving(url, history=history, embedder=None) as client:
            server = str(client.base_url)
            with mnemic.open(server.replace("://", f"://:{key}@"), embedder=None) as memory:
                alice = memory.scope("acme", "alice")
                alice.notes.write("plan", "first")
                before = alice.notes.get("plan").updated
                alice.notes.write("plan", "second")
                with pytest.raises(InvalidValueError, match=message):
                    alice.as_of(before - timedelta(days=1) if history else before)


@pytest.mark.parametrize("clock", [None, lambda: START])
def test_the_history_of_mem0_has_the_texts_of_the_versions(tmp_path: Path, clock: Any) -> None:
    with serving(f"sqlite:///{tmp_path}/mem0.db", history=MONTH, embedder=None, clock=clock) as client:
        body = {"messages": [{"role": "user", "content": "Alice likes tea"}], "user_id": "alice", "infer": False}
        id = client.post("/memories", json=body).json()["results"][0]["id"]
        client.put(f"/memories/{id}", json={"text": "Alice likes milk"}).raise_for_status()
        changes = {"text": "Alice likes coffee"}
        client.patch(f"/api/v1/memories/{id}", params={"scope": "alice"}, json=changes).raise_for_status()
        client.delete(f"/memories/{id}").raise_for_status()
        events = client.get(f"/memories/{id}/history").json()
        assert [(one["event"], one["old_memory"], one["new_memory"]) for one in events] == [
            ("ADD", None, "Alice likes tea"),
            ("UPDATE", "Alice likes tea", "Alice likes milk"),
            ("UPDATE", "Alice likes milk", "Alice likes coffee"),
            ("DELETE", "Alice likes coffee", None),
        ]
        assert len({one["id"] for one in events}) == 4


def test_the_history_of_a_memory_does_not_mix_those_of_two_scopes(memory: mnemic.Memory) -> None:
    store = memory._async._store
    for name in ("alice", "bob"):
        scope = memory.scope("acme", name)
        scope.remember(f"{name} likes tea", id="drink")
        ref = Ref(scope.path, MEMORY, "drink")
        memory._driver.run(update_memory(store, ref, lambda old: replace(old, text=f"{old.text} no more")))
    (current,) = memory._driver.run(store.read([ref]))
    found = memory._driver.run(memory_history(store, ScopePath("acme"), "drink", current))
    assert [(one.scope.name, one.old, one.new) for one in found if one.event == "UPDATE"] == [
        ("alice", "alice likes tea", None),  # of another memory than the current one, whose text is not asked for
        ("bob", "bob likes tea", "bob likes tea no more"),
    ]


def test_the_command_line_keeps_and_shows_the_history_of_a_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shown.db"
    with mnemic.open(url, history=MONTH, embedder=None) as memory:
        memory.scope("alice").notes.write("plan", "first")
        moment = memory.scope("alice").notes.get("plan").updated
        memory.scope("alice").notes.write("plan", "second")
        memory.scope("alice").session("monday").add("user", "hello")
        memory.scope("alice").session("monday").clear()

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, "--store", url])
        assert done.exit_code == 0, done.output
        return done.output

    assert run("forget", "alice", "plan") == "1 record forgotten\n"
    head, second, first = run("history", "alice", "plan").splitlines()
    assert (head.split()[0], "deleted" in second, second.split()[-1], first.split()[-1]) == (
        "version",
        True,
        "second",
        "first",
    )
    assert run("show", "alice", "plan", "--at", moment.isoformat()).endswith("first\n")
    assert "1 note" in run("ls", "alice", "--at", moment.isoformat())
    assert run("restore", "alice", "plan", "--version", "1") == "plan in alice is as it was\n"
    assert run("show", "alice", "plan").endswith("first\n")
    assert '"deleted": true' in run("history", "alice", "plan", "--json")
    assert "hello" in run("history", "alice", "monday", "--session")
    assert run("restore", "alice", "monday", "--session") == "1 message restored\n"
