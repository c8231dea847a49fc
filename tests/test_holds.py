"""Legal holds: nothing is deleted, evicted or expires, in this process or another; without one nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mnemic
from clock import Clock
from http_server import serving
from layered import KEY
from mnemic import HeldError, Message, OpenOptions
from mnemic.errors import AccessDeniedError, InvalidValueError, NotFoundError
from mnemic.layers import hold as hold_layer
from servers.stores import STORES


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process read the holds before each write, so that tests need not wait."""
    monkeypatch.setattr(hold_layer, "FRESH", 0.0)


def fill(alice: mnemic.Scope) -> None:
    alice.session("monday").add_many([Message("user", f"message {n}") for n in range(3)])
    alice.remember("likes tea", id="tea")
    alice.notes.write("plan", "go home")
    alice.facts.add("alice", "lives_in", "Rome", single=True)


def test_every_call_that_deletes_is_refused(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    fill(alice)
    hold = alice.hold("case 4711")
    below, beside = alice.scope("work"), memory.scope("acme", "bob")
    below.remember("at work", id="w")
    beside.remember("of another", id="b")
    calls: dict[str, Callable[[], object]] = {
        "erase": alice.erase,
        "erase above": memory.scope("acme").erase,
        "erase below": below.erase,
        "forget": lambda: alice.forget("tea"),
        "forget below": lambda: below.forget("w"),
        "forget by filter": lambda: memory.scope("acme").forget(since=datetime(2020, 1, 1, tzinfo=UTC)),
        "memories.delete": lambda: alice.memories.delete("tea"),
        "notes.delete": lambda: alice.notes.delete("plan"),
        "notes.clear": alice.notes.clear,
        "facts.delete": lambda: alice.facts.delete("alice", "lives_in"),
        "session.clear": alice.session("monday").clear,
        "sessions.delete": lambda: alice.sessions.delete("monday"),
        "session.replace": lambda: alice.session("monday").replace([Message("user", "another")]),
    }
    before = alice.stats()
    for call in calls.values():
        with pytest.raises(HeldError, match=r"under the legal hold '\w+' of 'acme/alice': case 4711"):
            call()
    assert alice.stats() == before
    assert beside.forget("b").deleted == 1
    assert alice.holds() == memory.scope().holds() == [hold]
    assert beside.holds() == []
    assert alice.release(hold).reason == "case 4711"
    assert alice.erase().complete


def test_writing_goes_on_under_a_hold(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    fill(alice)
    alice.hold("case 4711")
    alice.remember("likes coffee", id="tea")
    alice.notes.write("plan", "stay")
    alice.facts.add("alice", "lives_in", "Oslo", single=True)
    assert [fact.object for fact in alice.facts.ask(history=True)] == ["Rome", "Oslo"]
    kept = alice.session("kept", max_messages=2)
    dropped = alice.session("dropped", max_messages=2, overflow="drop")
    given: list[Message] = []
    handed = alice.session("handed", max_messages=2, overflow=given.extend)
    for session in (kept, dropped, handed):
        for n in range(5):
            session.add("user", f"message {n}")
        assert len(session.messages()) + len(session.archived()) == 5
    assert given == []


def test_nothing_expires_under_a_hold_and_does_after_it(memory: mnemic.Memory, clock: Clock) -> None:
    alice = memory.scope("acme", "alice")
    hour = timedelta(hours=1)
    alice.session("short", ttl=hour).add("user", "before")
    alice.remember("before", id="before", ttl=hour)
    hold = alice.hold("case 4711")
    alice.session("later", ttl=hour).add("user", "during")
    alice.remember("during", id="during", ttl=hour)
    clock.advance(hours=2)
    memory.compact()
    alice.session("short").add("user", "again")
    assert [message.content for message in alice.session("short").messages()] == ["before", "again"]
    assert [message.content for message in alice.session("later").messages()] == ["during"]
    assert {one.id for one in alice.memories.list()} == {"before", "during"}
    alice.release(hold)
    assert alice.memories.list() == []
    clock.advance(hours=2)
    assert alice.session("short").messages() == alice.session("later").messages() == []


def test_a_hold_ends_by_itself(memory: mnemic.Memory, clock: Clock) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember("soon", id="soon", ttl=timedelta(hours=1))
    alice.hold("case 4711", until=clock() + timedelta(days=1))
    with pytest.raises(HeldError, match="until "):
        alice.forget("soon")
    clock.advance(days=1)
    assert alice.holds() == []
    assert alice.forget("soon").deleted == 1
    alice.remember("later", id="later")
    memory.compact()
    assert [one.id for one in alice.memories.list()] == ["later"]


def test_another_process_obeys_a_hold(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url) as one, mnemic.open(url) as other:
        other.scope("acme", "alice").remember("tea", id="tea")
        hold = one.scope("acme").hold("case 4711")
        with pytest.raises(HeldError, match="case 4711"):
            other.scope("acme", "alice").forget("tea")
        other.scope("acme").release(hold.id)
        assert one.scope("acme", "alice").forget("tea").deleted == 1


def test_a_hold_is_in_the_audit_log() -> None:
    with mnemic.open("memory://", audit=True) as memory:
        with memory.acting(actor="officer"):
            hold = memory.scope("acme").hold("case 4711")
            memory.scope("acme").release(hold)
        assert hold.actor == "officer"
        logged = [(one.operation, one.kind, one.key, one.actor) for one in memory.audit_trail(kind="hold")]
        assert logged == [("put", "hold", hold.id, "officer"), ("delete", "hold", hold.id, "officer")]


def test_what_is_not_a_hold_is_refused(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    with pytest.raises(InvalidValueError, match="needs a reason"):
        alice.hold(" ")
    with pytest.raises(InvalidValueError, match="ends later than now"):
        alice.hold("case", until=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(NotFoundError, match="no hold 'x'"):
        alice.release("x")
    hold = memory.scope("acme", "bob").hold("case")
    with pytest.raises(NotFoundError):
        alice.release(hold)


def test_a_restricted_memory_needs_the_right_to_administer(memory: mnemic.Memory) -> None:
    mine = memory.restricted("acme/alice")
    with pytest.raises(AccessDeniedError, match="needs the right 'admin'"):
        mine.scope("acme", "alice").hold("case")
    admin = memory.restricted("acme/alice", ["read", "write", "erase", "admin"])
    with pytest.raises(AccessDeniedError, match="is not within"):
        admin.scope("acme").hold("case")
    hold = admin.scope("acme", "alice").hold("case")
    assert memory.scope("acme").holds() == [hold]
    with pytest.raises(AccessDeniedError):
        mine.scope("acme", "alice").release(hold)
    with pytest.raises(HeldError):
        mine.scope("acme", "alice").erase()
    assert admin.scope("acme", "alice").release(hold) == hold


def test_versions_under_a_hold_are_kept_as_long_as_it_lasts(clock: Clock) -> None:
    day = timedelta(days=1)
    with mnemic.open("memory://", history=day, clock=clock) as memory:
        alice = memory.scope("acme", "alice")
        alice.notes.write("plan", "first")
        alice.notes.write("plan", "second")
        hold = alice.hold("case 4711")
        alice.notes.write("plan", "third")
        clock.advance(days=2)
        assert [one.item.value for one in alice.history("plan")] == ["third", "second", "first"]  # type: ignore[union-attr]
        alice.release(hold)
        assert len(alice.history("plan")) < 3


def test_a_session_that_is_cleared_by_itself_is_not_under_a_hold(alice: mnemic.Scope) -> None:
    alice.hold("case 4711")
    with alice.session("chat", retention="session") as chat:
        chat.add("user", "kept")
    assert [message.content for message in alice.session("chat").messages()] == ["kept"]


def test_a_hold_of_a_store_on_a_server_is_kept_there(tmp_path: Path) -> None:
    with STORES["http"].empty(tmp_path) as url, mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea", id="tea")
        hold = alice.hold("case 4711")
        assert alice.holds() == [hold]
        for call in (alice.erase, lambda: alice.forget("tea")):
            with pytest.raises(HeldError, match="case 4711"):
                call()
        assert alice.release(hold) == hold
        assert alice.erase().records == 1


def test_a_hold_on_a_scope_with_a_redacted_name_is_in_force() -> None:
    with mnemic.open("memory://", redact=True) as memory:
        bob = memory.scope("bob@example.com")
        bob.remember("tea")
        hold = bob.hold("case 4711")
        assert bob.holds() == [hold]
        with pytest.raises(HeldError, match="case 4711"):
            bob.erase()


@pytest.mark.parametrize("options", [{"embedder": None}, {"encryption_key": KEY}], ids=["embedder", "encrypted"])
def test_a_client_with_layers_of_its_own_leaves_holds_to_the_server(options: OpenOptions) -> None:
    with serving() as client, mnemic.open(str(client.base_url), **options) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea", id="tea")
        hold = alice.hold("case 4711")
        assert alice.holds() == [hold]
        for call in (alice.erase, lambda: alice.forget("tea")):
            with pytest.raises(HeldError, match="case 4711"):
                call()
        assert alice.release(hold) == hold
        assert alice.forget("tea").deleted == 1
