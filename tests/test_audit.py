"""The audit trail: who changed what, complete, and only ever added to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from layered import KEY, with_audit
from mnemic.backends.memory import MemoryStore
from mnemic.errors import (
    AuditError,
    ConflictError,
    InvalidValueError,
    LimitError,
    StorePermissionError,
    StoreUnavailableError,
)
from mnemic.layers.audit_entry import AuditEntry
from mnemic.layers.audit_settings import Audit
from mnemic.layers.layer import Layer
from mnemic.layers.restricted import RestrictedLayer
from mnemic.messages import Message
from mnemic.records import AUDIT_KIND, Record, Ref, ScopePath
from mnemic.store.confinement import confinement
from mnemic.store.protocol import Store
from mnemic.store.query import (
    Delete,
    Derive,
    Expect,
    Limit,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    StreamScan,
    Touch,
    Write,
    place_of,
)

SCOPE = ScopePath("acme/alice")
A = Ref(SCOPE, "note", "a")


def said(entries: Sequence[AuditEntry]) -> list[tuple[str, str, str | None]]:
    return [(entry.operation, entry.kind, entry.key) for entry in entries]


def audited(url: str = "memory://", **fields: Any) -> mnemic.Memory:
    return mnemic.open(url, audit=mnemic.Audit(**fields) if fields else True)


def put(key: str = "a", if_version: int | None = None, **fields: Any) -> Put:
    return Put(Record(SCOPE, "note", key, **fields), if_version)


# ------------------------------------------------------------ what is told


def test_every_change_is_logged_with_its_actor() -> None:
    with audited(flags=lambda record: ["personal"] if "@" in (record.text or "") else []) as memory:
        begun = datetime.now(UTC)
        alice = memory.scope("acme", "alice")
        with memory.acting(actor="bob", session="s-1", address="10.0.0.7"):
            alice.remember("write to alice@example.com", id="k", importance=1)
            alice.update("k", importance=2)
        alice.forget("k")
        first, second, third = memory.audit_trail()
        assert said([first, second, third]) == [
            ("put", "memory", "k"), ("put", "memory", "k"), ("delete", "memory", "k"),
        ]  # fmt: skip
        assert (first.actor, first.session, first.address) == ("bob", "s-1", "10.0.0.7")
        assert (first.scope, first.flags, first.before) == (SCOPE, ["personal"], None)
        assert begun <= first.time <= second.time <= third.time <= datetime.now(UTC)
        assert second.before
        assert second.flags == ["personal"]
        assert (third.actor, third.session, third.address, third.flags) == (None, None, None, [])


def test_each_operation_has_an_entry_and_reads_have_none() -> None:
    async def main() -> None:
        layer = with_audit(MemoryStore())
        await layer.write(Write((put("a", 0), put("b"), Touch(SCOPE, "note", timedelta(days=1)))))
        await layer.write(Write((Derive(A, "x", b"1"), Expect(SCOPE, "note", key="a"))))
        await layer.write(Write((Touch(SCOPE, "note", None),)))
        await layer.write(Write((Limit(SCOPE, "note", max_count=5, evict=(("a",),)),)))
        await layer.write(Write((Limit(SCOPE, "note", max_count=1, evict=(("a",),)),)))
        await layer.write(Write((Purge(SCOPE, "note", expired_only=True),)))
        await layer.write(Write((put("c", expires=datetime.now(UTC) - timedelta(seconds=1)),)))
        await layer.write(Write((Purge(SCOPE, "note", expired_only=True),)))
        await layer.write(Write((Delete(Ref(SCOPE, "note", "b")), Purge(SCOPE, "note"))))
        await layer.read([A])
        await layer.scan(Scan(scope=SCOPE))
        entries = await layer.trail(ScopePath())
        assert said(entries) == [
            ("put", "note", "a"),
            ("put", "note", "b"),
            ("touch", "note", None),
            ("limit", "note", None),
            ("put", "note", "c"),
            ("expire", "note", None),
            ("delete", "note", "b"),
            ("purge", "note", None),
        ]
        assert entries[3].removed == ["a"]
        assert entries[5].count == 1
        assert entries[0].before == 0

    asyncio.run(main())


def test_a_failed_change_is_not_logged() -> None:
    async def main() -> None:
        layer = with_audit(MemoryStore())
        await layer.write(Write((put("a"),)))
        for ops, error in (
            ((put("b"), put("a", 0)), ConflictError),
            ((put("b"), Limit(SCOPE, "note", max_count=1)), LimitError),
        ):
            with pytest.raises(error):
                await layer.write(Write(ops))
        assert said(await layer.trail(ScopePath())) == [("put", "note", "a")]

    asyncio.run(main())


def test_a_retried_write_is_logged_once() -> None:
    async def main() -> None:
        for separate in (None, MemoryStore()):
            layer = with_audit(MemoryStore(), separate=separate)
            limited: tuple[Op, ...] = (put("a"), put("b"), Limit(SCOPE, "note", max_count=1, evict=(("a",),)))
            first = await layer.write(Write(limited, "once"))
            assert await layer.write(Write(limited, "once")) == first
            assert len(first) == 3
            assert sorted(said(await layer.trail(ScopePath())), key=str) == [
                ("limit", "note", None), ("put", "note", "a"), ("put", "note", "b"),
            ]  # fmt: skip

    asyncio.run(main())


def test_arguments_are_not_modified() -> None:
    def flags(record: Record) -> list[str]:
        record.meta["seen"] = True
        record.labels["seen"] = "yes"
        assert isinstance(record.data, dict)
        record.data["role"] = "seen"
        return ["seen"]

    message = Message("user", "hello", metadata={"a": {"b": [1]}}, id="m")
    before = message.to_dict()
    with audited(flags=flags) as memory:
        chat = memory.scope("acme").session("s")
        assert chat.add(message) is message
        assert message.to_dict() == before
        assert chat.get("m").to_dict() == before
        assert memory.audit_trail()[0].flags == ["seen"]


@pytest.mark.parametrize("flags", ["text", [1], None])
def test_invalid_flags_are_refused_before_the_write(flags: Any) -> None:
    with audited(flags=lambda record: flags) as memory:
        with pytest.raises((InvalidValueError, TypeError)):
            memory.scope("a").remember("tea")
        assert memory.scope("a").memories.list() == []
    with pytest.raises(InvalidValueError, match="function"):
        Audit(flags="text")  # type: ignore[arg-type]


# ------------------------------------------------------------ who acts


def test_the_innermost_actor_counts_and_otherwise_the_default() -> None:
    with audited(actor="service", address="host") as memory:
        space = memory.scope("a")
        space.remember("1")
        with memory.acting(actor="bob"):
            space.remember("2")
            with memory.acting(session="s"), memory.acting(address="10.0.0.1"):
                space.remember("3")
            space.remember("4")
        space.remember("5")
        assert [(e.actor, e.session, e.address) for e in memory.audit_trail()] == [
            ("service", None, "host"),
            ("bob", None, "host"),
            ("bob", "s", "10.0.0.1"),
            ("bob", None, "host"),
            ("service", None, "host"),
        ]
    with pytest.raises(InvalidValueError, match="actor"):
        memory.acting(actor="")
    with pytest.raises(InvalidValueError, match="address"):
        Audit(address="\n")


def test_an_actor_belongs_to_one_task_or_thread() -> None:
    async def main() -> None:
        async with mnemic.open_async("memory://", audit=True) as memory:

            async def work(name: str) -> None:
                async with memory.acting(actor=name):
                    for n in range(3):
                        await asyncio.sleep(0)
                        await memory.scope(name).remember(f"{n}")

            await asyncio.gather(*(work(name) for name in ("alice", "bob", "carol")))
            assert all(entry.actor == entry.scope.path for entry in await memory.audit_trail())
            assert len(await memory.audit_trail(actor="bob")) == 3

    asyncio.run(main())
    with audited() as memory:

        def act(name: str) -> None:
            with memory.acting(actor=name):
                memory.scope(name).remember("tea")

        with memory.acting(actor="main"):
            threads = [threading.Thread(target=act, args=(name,)) for name in ("alice", "bob")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted((e.scope.path, e.actor) for e in memory.audit_trail()) == [
            ("alice", "alice"), ("bob", "bob"),
        ]  # fmt: skip


def test_the_actor_reaches_the_event_loop_of_a_remote_store(tmp_path: Path) -> None:
    with audited(f"waiting://{tmp_path.name}") as memory, memory.acting(actor="bob"):
        memory.scope("a").remember("tea")
        assert [entry.actor for entry in memory.audit_trail()] == ["bob"]


# ------------------------------------------------------------ only ever added to


def test_the_audit_log_cannot_be_written_or_deleted() -> None:
    async def main() -> None:
        layer = with_audit(MemoryStore())
        await layer.write(Write((put("a"),)))
        (entry,) = (await layer._below.scan(Scan(scope=SCOPE, kinds=(AUDIT_KIND,)))).items
        for op in (
            Put(entry),
            Put(Record(SCOPE, AUDIT_KIND, "forged", data={"operation": "put"})),
            Delete(entry.ref),
            Derive(entry.ref, "x", b"1"),
            Limit(SCOPE, AUDIT_KIND, max_count=0, evict=((entry.key,),)),
            Purge(SCOPE, AUDIT_KIND, drop=True),
            Touch(SCOPE, AUDIT_KIND, timedelta(seconds=1)),
        ):
            with pytest.raises(StorePermissionError, match="append-only"):
                await layer.write(Write((put("b"), op)))
        assert said(await layer.trail(ScopePath())) == [("put", "note", "a")]
        assert await layer.read([entry.ref, A, entry.ref]) == [None, (await layer.read([A]))[0], None]
        assert [s.kind for s in (await layer.streams(StreamScan(scope=ScopePath(), empty=True))).items] == ["note"]
        for kinds in ((), (AUDIT_KIND,), (AUDIT_KIND, "note")):
            found = (await layer.scan(Scan(scope=ScopePath(), below=True, kinds=kinds))).items
            assert {record.kind for record in found} <= {"note"}

    asyncio.run(main())


def test_erase_and_compact_keep_the_audit_log(file_url: str) -> None:
    with audited(file_url) as memory:
        with memory.acting(actor="bob"):
            memory.scope("acme", "alice").remember("tea")
            memory.scope("acme", "alice").session("s").add("user", "hello")
            assert memory.scope().erase(keep_audit_names=True).records == 2
        memory.compact()
        assert [e.operation for e in memory.audit_trail("acme/alice")] == ["put", "put", "purge", "purge"]
    # Nor does who opens the store without an audit remove it unawares.
    with mnemic.open(file_url) as memory:
        memory.scope("acme").remember("more tea")
        assert memory.scope().erase().records == 1
    with audited(file_url) as memory:
        assert len(memory.audit_trail("acme")) == 4
        assert memory.scope().sessions.list() == []


def test_recall_does_not_read_the_audit_log() -> None:
    with audited() as memory:
        space = memory.scope("acme")
        for n in range(5):
            space.remember(f"tea {n}")
        assert memory.warm() == 5
        assert len(space.recall("tea", k=20)) == 5


# ------------------------------------------------------------ reading it


def test_the_audit_log_is_filtered_and_complete() -> None:
    with audited() as memory:
        start = datetime.now(UTC)
        for name in ("alice", "bob"):
            chat = memory.scope("acme", name).session("s")
            with memory.acting(actor=name, session="web"):
                for _ in range(13):
                    chat.add_many([Message("user", "hi", id=f"{name}-{n}-{_}") for n in range(100)])
        middle = datetime.now(UTC)
        memory.scope("acme", "alice").notes.write("note", 1)
        assert len(memory.audit_trail()) == 2601
        assert len(memory.audit_trail(ScopePath("acme/alice"))) == 1301
        assert len(memory.audit_trail("acme/al")) == 0
        assert len(memory.audit_trail(actor="bob")) == len(memory.audit_trail("acme/bob/s")) == 1300
        assert len(memory.audit_trail(session="web", since=start, until=middle)) == 2600
        assert said(memory.audit_trail(since=middle)) == [("put", "note", "note")]
        assert said(memory.audit_trail(key="note")) == [("put", "note", "note")]
        assert len(memory.audit_trail(kind="message", operation="put", key="bob-7-7")) == 1
        assert memory.audit_trail(operation="delete") == []
        assert memory.audit_trail(flag="personal") == []
        times = [entry.time for entry in memory.audit_trail()]
        assert times == sorted(times)
    with mnemic.open("memory://") as memory, pytest.raises(InvalidValueError, match="no audit log"):
        memory.audit_trail()


# ------------------------------------------------------------ a separate store


def test_a_separate_audit_log_has_the_outcomes(tmp_path: Path) -> None:
    for encryption_key in (None, KEY):
        name = "sealed" if encryption_key else "plain"
        trail = tmp_path / f"trail-{name}.db"
        with mnemic.open(
            f"sqlite:///{tmp_path / name}.db", encryption_key=encryption_key, audit=f"sqlite:///{trail}"
        ) as memory:
            notes = memory.scope("acme").notes
            with memory.acting(actor="bob-the-builder"):
                version = notes.write("note", 1).version
                notes.write("note", 2)
                notes.delete("note")
                notes.delete("note")
            first, second, third = memory.audit_trail()
            assert (first.before, first.after) == (0, version)
            assert second.before == version
            assert second.after is not None
            assert second.after > version
            assert third.operation == "delete"
        assert (b"bob-the-builder" in trail.read_bytes()) == (encryption_key is None)
        assert b"bob-the-builder" not in (tmp_path / f"{name}.db").read_bytes()


def test_a_separate_audit_log_can_be_a_store() -> None:
    separate = MemoryStore()
    with mnemic.open("memory://", audit=separate) as memory:
        memory.scope("acme").remember("tea")
        assert said(memory.audit_trail())[0][:2] == ("put", "memory")
    with mnemic.open("memory://", audit=False) as memory, pytest.raises(InvalidValueError):
        memory.audit_trail()


def test_an_audit_log_in_a_remote_store(tmp_path: Path) -> None:
    with mnemic.open("memory://", audit=f"waiting://{tmp_path.name}") as memory:
        with memory.acting(actor="bob"):
            memory.scope("acme").remember("tea")
        assert [entry.actor for entry in memory.audit_trail()] == ["bob"]


class Failing(Layer):
    """A store that cannot be written while it is told so."""

    failing = False
    answers = True

    async def write(self, write: Write) -> list[Outcome]:
        if self.failing:
            raise StoreUnavailableError("the trail is away")
        done = await super().write(write)
        if not self.answers:
            raise StoreUnavailableError("the answer was lost")
        return done


def test_no_change_is_made_while_the_audit_log_is_unavailable() -> None:
    async def main() -> None:
        store, separate = MemoryStore(), Failing(MemoryStore())
        layer = with_audit(store, separate=separate)
        await layer.write(Write((put("a"),)))
        separate.failing = True
        with pytest.raises(AuditError, match=r"the change was made.*the trail is away"):
            await layer.write(Write((put("b"),)))
        for _ in range(2):
            with pytest.raises(AuditError, match="nothing was changed"):
                await layer.write(Write((put("c"),)))
        assert [record.key for record in (await layer.scan(Scan(scope=SCOPE))).items] == ["a", "b"]
        separate.failing = False
        await layer.write(Write((put("d"),)))
        assert [entry.key for entry in await layer.trail(ScopePath())] == ["a", "b", "d"]

    asyncio.run(main())


def test_entries_of_one_tenant_are_written_on_behalf_of_another() -> None:
    class Enforcing(Failing):
        async def write(self, write: Write) -> list[Outcome]:
            if not all(confinement().contains(place_of(op)[0]) for op in write.ops):
                raise StorePermissionError("outside of the scope")
            return await super().write(write)

    async def main() -> None:
        separate = Enforcing(MemoryStore())
        layer = with_audit(MemoryStore(), separate=separate)
        tenants = [RestrictedLayer(layer, ScopePath(name)) for name in ("a", "b")]
        separate.failing = True
        with pytest.raises(AuditError, match="the change was made"):
            await tenants[0].write(Write((Put(Record(ScopePath("a"), "note", "n")),)))
        separate.failing = False
        await tenants[1].write(Write((Put(Record(ScopePath("b"), "note", "n")),)))
        assert [entry.scope.path for entry in await layer.trail(ScopePath())] == ["a", "b"]

    asyncio.run(main())


def test_an_entry_whose_answer_was_lost_is_not_written_twice() -> None:
    async def main() -> None:
        store, separate = MemoryStore(), Failing(MemoryStore())
        layer = with_audit(store, separate=separate)
        for id in (None, "once"):
            separate.answers = False
            with pytest.raises(AuditError):
                await layer.write(Write((put("a"), put("b")), id))
            separate.answers = True
            if id is not None:
                await layer.write(Write((put("a"), put("b")), id))
        assert [entry.key for entry in await layer.trail(ScopePath())] == ["a", "b", "a", "b"]

    asyncio.run(main())


def test_buffered_entries_are_written_on_close_or_raise() -> None:
    async def held_back(away: bool) -> Store:
        store, separate = MemoryStore(), Failing(MemoryStore())
        layer = with_audit(store, separate=separate)
        separate.failing = True
        with pytest.raises(AuditError):
            await layer.write(Write((put("a"),)))
        separate.failing = away
        await layer.close()
        await layer.close()
        return separate

    with pytest.raises(AuditError):
        asyncio.run(held_back(True))
    asyncio.run(held_back(False))


def test_the_entry_of_a_cancelled_caller_is_written_later() -> None:
    async def main() -> None:
        reached = asyncio.Event()

        class Slow(Layer):
            """A store that takes its time, the first time."""

            async def write(self, write: Write) -> list[Outcome]:
                if not reached.is_set():
                    reached.set()
                    await asyncio.sleep(60)
                return await super().write(write)

        layer = with_audit(MemoryStore(), separate=Slow(MemoryStore()))
        task = asyncio.create_task(layer.write(Write((put("a"),))))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await layer.write(Write((put("b"),)))
        assert [entry.key for entry in await layer.trail(ScopePath())] == ["a", "b"]

    asyncio.run(main())


def test_a_change_whose_answer_was_lost_is_logged_as_unsure() -> None:
    async def main() -> None:
        store = Failing(MemoryStore())
        layer = with_audit(store, separate=MemoryStore())
        store.answers = False
        for id in (None, "once"):
            with pytest.raises(StoreUnavailableError):
                await layer.write(Write((put("a"), Touch(SCOPE, "note", None)), id))
        store.answers = True
        with pytest.raises(ConflictError):
            await layer.write(Write((put("a", 7),)))
        await layer.write(Write((put("a"), Touch(SCOPE, "note", None)), "once"))
        await layer.write(Write((put("b"),)))
        told = [(entry.key, entry.unsure) for entry in await layer.trail(ScopePath())]
        assert told == [("a", True), ("a", True), ("b", False)]

    asyncio.run(main())


def test_the_store_of_an_audit_log_is_closed_if_the_memory_cannot_be_opened(file_url: str, tmp_path: Path) -> None:
    with mnemic.open(file_url, encryption_key=KEY) as memory:
        memory.scope("a").remember("tea")
    with pytest.raises(mnemic.DecryptionError):
        mnemic.open(file_url, audit=f"sqlite:///{tmp_path / 'trail.db'}")
    with pytest.raises(mnemic.UnknownSchemeError):
        mnemic.open("memory://", audit="nosuch://trail")


# ------------------------------------------------------------ pages


def pages(memory: mnemic.Memory, limit: int, **filters: Any) -> list[AuditEntry]:
    """Return the entries of all pages; none but the last is short."""
    found: list[AuditEntry] = []
    cursor = None
    while True:
        page = memory.audit_page(limit=limit, cursor=cursor, **filters)
        found += page.entries
        if page.cursor is None:
            return found
        assert len(page.entries) == limit
        cursor = page.cursor


@pytest.mark.parametrize("kind", ["memory", "sqlite", "encrypted"])
def test_pages_have_every_entry_once_newest_first(kind: str, file_url: str) -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n**3) for n in (1, 5, 2, 9, 9, 3, 20, 20, 4, 60)]
    times = iter(moments)
    url, keys = ("memory://", None) if kind == "memory" else (file_url, KEY if kind == "encrypted" else None)
    # The clocks of two writers differ, so the order of writing is not that of time.
    now = [moments[0]]
    with mnemic.open(url, audit=True, encryption_key=keys, clock=lambda: now[0]) as memory:
        for n in range(len(moments)):
            now[0] = next(times)
            with memory.acting(actor=f"actor {n % 2}"):
                memory.scope("acme", f"user {n % 3}").notes.write(f"note {n}", n)
        now[0] = max(moments)
        trail = memory.audit_trail()
        for limit in (1, 3, 10, 100):
            paged = pages(memory, limit)
            assert [entry.time for entry in paged] == sorted(moments, reverse=True)
            assert sorted(said(paged), key=str) == sorted(said(trail), key=str)
        assert said(pages(memory, 2, actor="actor 1", scope="acme/user 2")) == [("put", "note", "note 5")]
        assert said(pages(memory, 2, since=max(moments))) == [("put", "note", "note 9")]
        assert memory.audit_page("nobody") == mnemic.AuditPage(entries=[], cursor=None)


def test_a_page_has_a_flag_in_common_and_refuses_a_bad_cursor() -> None:
    with audited(flags=lambda record: ["personal"] if record.key == "a" else []) as memory:
        for key in "abcabc":
            memory.scope("acme").notes.write(key, 1)
        assert [entry.flags for entry in pages(memory, 1, flag="personal")] == [["personal"]] * 2
        for cursor in ("", "x", "W10=", memory.audit_page(limit=1).cursor[::-1]):  # type: ignore[index]
            with pytest.raises(InvalidValueError, match="invalid cursor"):
                memory.audit_page(cursor=cursor)
        with pytest.raises(InvalidValueError, match="limit"):
            memory.audit_page(limit=0)
    with mnemic.open("memory://") as memory, pytest.raises(InvalidValueError, match="no audit log"):
        memory.audit_page()
