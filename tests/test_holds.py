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
from mnemic.features import erasure, purging
from mnemic.features import holds as holds_feature
from mnemic.layers import hold as hold_layer
from mnemic.layers.layer import Layer
from mnemic.records import ERASURE_KIND, Record, ScopePath
from mnemic.store.protocol import Store
from mnemic.store.query import Op, Outcome, Put, Scan, Write
from mnemic.store.retry import write_each
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
    alice.remember("later", id="later")
    clock.advance(days=1)
    assert alice.holds() == []
    assert [one.id for one in alice.memories.list()] == ["later"]
    assert alice.forget("later").deleted == 1
    memory.compact()
    assert not memory._driver.run(memory._async._backend.scan(Scan(scope=ScopePath(), kinds=("hold",)))).items


def test_after_the_end_of_a_hold_everything_expires_by_itself(memory: mnemic.Memory, clock: Clock) -> None:
    alice = memory.scope("acme", "alice")
    hour, end = timedelta(hours=1), clock() + timedelta(days=28)
    alice.remember("before", id="before", ttl=hour)
    alice.remember("long", id="long", ttl=timedelta(days=30))
    alice.session("before", ttl=hour).add("user", "before")
    alice.hold("case 4711", until=end)
    alice.remember("during", id="during", ttl=hour)
    alice.session("during", ttl=hour).add("user", "during")
    clock.advance(days=28, hours=-1)
    alice.session("during").add("user", "later")
    assert {one.id for one in alice.memories.list()} == {"before", "during", "long"}
    assert len(alice.session("before").messages()) == 1
    clock.advance(hours=1)
    assert [one.id for one in alice.memories.list()] == ["long"]
    assert alice.session("before").messages() == alice.session("during").messages() == []
    clock.advance(days=2)
    assert alice.memories.list() == []


def test_of_several_holds_the_longest_counts(clock: Clock) -> None:
    with mnemic.open("memory://", clock=clock) as memory:
        alice, day = memory.scope("acme", "alice"), timedelta(days=1)
        alice.remember("tea", id="tea", ttl=day)
        alice.session("chat", ttl=day).add("user", "tea")
        ends = [None, clock() + 3 * day, clock() + 5 * day]
        holds = [
            space.hold("case", until=end) for space, end in zip((alice, alice, memory.scope("acme")), ends, strict=True)
        ]
        assert alice.memories.get("tea").expires is None
        alice.release(holds[0])
        assert alice.memories.get("tea").expires == ends[2]
        memory.scope("acme").release(holds[2])
        assert alice.memories.get("tea").expires == ends[1]
        clock.advance(days=2)
        assert alice.session("chat").messages()
        clock.advance(days=1)
        assert (alice.memories.list(), alice.session("chat").messages()) == ([], [])


def test_an_interrupted_release_suspends_nothing_for_good(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://", clock=clock) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea", id="tea", ttl=timedelta(hours=1))
        hold = alice.hold("case 4711")
        for name in ("unrestricted", "_apply"):

            def dies(*_: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(holds_feature, name, dies)
                with pytest.raises(KeyboardInterrupt):
                    alice.release(hold)
        alice.release(hold)
        clock.advance(hours=1)
        assert alice.memories.list() == []


def test_a_scope_below_one_that_is_being_erased_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        with monkeypatch.context() as patch:
            patch.setattr(erasure, "purge", interrupted)
            with pytest.raises(KeyboardInterrupt):
                memory.scope("acme").erase()
        with pytest.raises(InvalidValueError, match="is being erased"):
            alice.hold("case 4711")
        assert memory.scope("acme").erase().complete
        alice.hold("case 4711")


async def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_of_an_erasure_and_a_hold_at_once_the_erasure_finds_the_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        held = []

        async def meanwhile(store: Store, scope: ScopePath, **options: bool) -> purging.Streams:
            held.append(await memory._async.scope("acme", "alice").hold("case 4711"))
            return await purging.streams_of(store, scope, **options)

        with monkeypatch.context() as patch:
            patch.setattr(erasure, "streams_of", meanwhile)
            with pytest.raises(HeldError, match="case 4711"):
                alice.erase()
        assert len(alice.memories.list()) == 1
        alice.release(held[0])
        assert alice.erase().interrupted == []


def test_of_an_erasure_and_a_hold_at_once_the_hold_finds_the_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Meanwhile(Layer):
        async def write(self, write: Write) -> list[Outcome]:
            await self._below.write(Write((Put(Record(ScopePath("acme"), ERASURE_KIND, "other")),)))
            return await super().write(write)

    with mnemic.open("memory://") as memory:
        with monkeypatch.context() as patch:
            patch.setattr(holds_feature, "unrestricted", Meanwhile)
            with pytest.raises(InvalidValueError, match="is being erased"):
                memory.scope("acme", "alice").hold("case 4711")
        assert memory.scope("acme").holds() == []


def test_a_hold_changes_a_page_of_records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    async def counted(store: Store, batch: list[tuple[Op, ...]]) -> list[bool]:
        sizes.append(len(batch))
        return await write_each(store, batch)

    monkeypatch.setattr(holds_feature, "write_each", counted)
    monkeypatch.setattr(holds_feature, "PAGE", 10)
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        for n in range(25):
            alice.remember(f"tea {n}", id=f"{n}", ttl=timedelta(days=1))
        alice.release(alice.hold("case 4711"))
        assert sizes[:6] == [10, 10, 5] * 2
        assert all(one.expires is not None for one in alice.memories.list())


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
