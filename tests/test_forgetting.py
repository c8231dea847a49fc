"""Cleaning up: what goes lies in the archive first, verified, and what changed meanwhile stays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from layered import KEY
from mnemic.backends.memory import MemoryStore
from mnemic.errors import DecryptionError, InvalidValueError, StoreError, StoreFullError
from mnemic.features.forgetting import ForgetFilters, Forgetting
from mnemic.layers.layer import Layer
from mnemic.messages import Message, ToolCall
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, scan_all
from mnemic.store.query import Delete, Outcome, Put, Scan, Write

SCOPE = ScopePath("acme/alice")
MONTH = timedelta(days=30)


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def said(chat: mnemic.Session) -> list[Any]:
    return [message.content for message in chat.messages()]


def old_and_new(memory: mnemic.Memory, count: int = 3) -> mnemic.Scope:
    alice = memory.scope("acme", "alice")
    chat = alice.session("monday")
    chat.set_system("be kind")
    chat.add_many([Message("user", f"old {n}", timestamp=ago(40)) for n in range(count)])
    chat.add_many([Message("user", f"new {n}", timestamp=ago(2)) for n in range(3)])
    alice.remember("an old text", id="old", created=ago(50), metadata={"project": "x"})
    alice.remember("an old text that is pinned", id="pinned", created=ago(50), pinned=True)
    alice.remember("a new text", id="new", metadata={"project": "x"})
    alice.notes.write("note", 1, metadata={"project": "x"})
    alice.facts.add("Alice", "knows", "Bob")
    return alice


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'archive.db'}?synchronous=normal"


# ------------------------------------------------------------ what goes


def test_what_is_old_goes_and_lies_in_the_archive(memory: mnemic.Memory, archive: str) -> None:
    alice = old_and_new(memory)
    before = [message.to_dict() for message in alice.session("monday").messages()]
    assert alice.forget(older_than=MONTH, dry_run=True) == mnemic.Forgotten(matched=4)
    assert len(said(alice.session("monday"))) == 7
    done = alice.forget(older_than=MONTH, archive=archive)
    assert done == mnemic.Forgotten(matched=4, archived=4, deleted=4)
    assert said(alice.session("monday")) == ["be kind", "new 0", "new 1", "new 2"]
    assert sorted(record.id for record in alice.memories.list()) == ["new", "pinned"]
    assert [hit.record.text for hit in alice.recall("old text")] != []
    assert all(hit.record.key != "old" for hit in alice.recall("old text", k=20))
    assert alice.forget(older_than=MONTH, archive=archive) == mnemic.Forgotten(matched=0)
    key = KEY if "encryption" in _kinds(archive) else None
    with mnemic.open(archive, encryption_key=key) as kept:
        away = kept.scope("acme", "alice")
        assert [m.to_dict() for m in away.session("monday").messages()] == before[1:4]
        assert away.memories.get("old").metadata == {"project": "x"}
        assert away.recall("old text")


def _kinds(url: str) -> set[str]:
    import sqlite3

    database = sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])
    try:
        return {row[0] for row in database.execute("SELECT kind FROM mnemic_streams")}
    finally:
        database.close()


def test_filters_and_kinds_say_what_goes(memory: mnemic.Memory) -> None:
    alice = old_and_new(memory)
    assert alice.forget(metadata={"project": "x"}, dry_run=True).matched == 3
    assert alice.forget(metadata={"project": ["x", "y"]}, kinds="note", dry_run=True).matched == 1
    assert alice.forget(older_than=MONTH, metadata={"project": "x"}).deleted == 1
    assert alice.forget(older_than=MONTH, kinds=["memory", "fact"], dry_run=True).matched == 0
    assert memory.scope("acme", "bob").forget(older_than=MONTH, dry_run=True).matched == 0
    assert memory.scope("acme").forget(older_than=MONTH).deleted == 3


def test_it_never_removes_all_unasked(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    nothing: list[dict[str, Any]] = [{}, {"metadata": {}}, {"kinds": "message"}]
    for filters in nothing:
        with pytest.raises(InvalidValueError, match="or a filter"):
            alice.forget(**filters)
    wrong: list[dict[str, Any]] = [{"older_than": timedelta(0)}, {"older_than": 30}, {"metadata": 7}]
    for filters in wrong:
        with pytest.raises(InvalidValueError):
            alice.forget(**filters)
    for kind in ("audit", "encryption", "embedder", "lease"):
        with pytest.raises(InvalidValueError, match="message, archived"):
            alice.forget(older_than=MONTH, kinds=kind)


def test_notes_and_summaries_are_as_old_as_their_last_change() -> None:
    async def main() -> None:
        moment = ago(40)
        store = MemoryStore(clock=lambda: moment)
        records = [Record(SCOPE, kind, "a", created=ago(60)) for kind in ("note", "summary", "memory")]
        await store.write(Write(tuple(map(Put, records))))
        moment = ago(10)
        await store.write(Write(tuple(map(Put, records))))
        assert (await forgetting(store).delete()).deleted == 1
        assert [r.kind async for r in scan_all(store, Scan(scope=SCOPE))] == ["note", "summary"]

    asyncio.run(main())


def test_a_tools_call_goes_with_its_answers_or_not_at_all(memory: mnemic.Memory) -> None:
    chat = memory.scope("acme").session("s")

    def call(id: str, days: float) -> Message:
        return Message("assistant", None, tool_calls=[ToolCall(id, "look")], timestamp=ago(days))

    def answer(id: str, days: float) -> Message:
        return Message("tool", f"answer {id}", tool_call_id=id, timestamp=ago(days))

    chat.add_many([call("never", 50), Message("user", "and?", timestamp=ago(49))])
    chat.add_many([call("both", 40), answer("both", 39)])
    chat.add_many([call("split", 31), answer("split", 29)])
    assert memory.scope("acme").forget(older_than=MONTH).deleted == 4
    assert [message.role for message in chat.messages()] == ["assistant", "tool"]


def test_pages_of_calls_are_kept_together(memory: mnemic.Memory) -> None:
    chat = memory.scope("acme").session("s")
    asked = [ToolCall(f"c{n}", "look") for n in range(205)]
    chat.add_many([Message("assistant", None, tool_calls=[call], timestamp=ago(40)) for call in asked])
    chat.add_many([Message("tool", "x", tool_call_id=call.id, timestamp=ago(40)) for call in asked])
    assert memory.scope("acme").forget(older_than=MONTH).deleted == 410


# ------------------------------------------------------------ the archive comes first


class Flawed(Layer):
    """A store that fails, or forgets, after some writes."""

    def __init__(self, below: Store, writes: int, *, forgets: bool = False) -> None:
        super().__init__(below)
        self.left = writes
        self.forgets = forgets

    async def write(self, write: Write) -> list[Outcome]:
        self.left -= 1
        if self.left < 0 and not self.forgets:
            raise StoreFullError("the archive is full")
        done = await super().write(write)
        if self.left < 0:
            puts = [op.record.ref for op in write.ops if isinstance(op, Put)]
            await super().write(Write((Delete(puts[-1]),)))
        return done


async def filled(count: int = 450) -> MemoryStore:
    store = MemoryStore()
    await store.write(
        Write(tuple(Put(Record(SCOPE, "fact", f"k{n}", text=f"{n}", created=ago(40))) for n in range(count)))
    )
    return store


def forgetting(store: Store) -> Forgetting:
    return Forgetting(store, SCOPE, ForgetFilters(older_than=MONTH))


async def keys(store: Store) -> list[str]:
    return [record.key async for record in scan_all(store, Scan(scope=SCOPE, kinds=("fact",)))]


@pytest.mark.parametrize(("writes", "forgets"), [*((n, False) for n in range(5)), *((n, True) for n in range(2, 5))])
def test_nothing_is_removed_if_the_archive_fails_at_any_point(writes: int, forgets: bool) -> None:
    async def main() -> None:
        store, archive = await filled(), MemoryStore()
        flawed = Flawed(archive, writes, forgets=forgets)
        with pytest.raises(StoreError, match="nothing was deleted" if forgets else "full"):
            await forgetting(store).archive_to(flawed)
        assert len(await keys(store)) == 450
        # Called again, it goes on.
        done = await forgetting(store).archive_to(archive)
        assert done.deleted == 450
        assert done.archived == 450 - 200 * max(0, writes - 2) if not forgets else done.archived > 0
        assert await keys(store) == []
        assert sorted(await keys(archive)) == sorted(f"k{n}" for n in range(450))

    asyncio.run(main())


def test_what_changes_meanwhile_stays() -> None:
    async def main() -> None:
        store, archive = await filled(9), MemoryStore()
        raced: list[str] = []

        class Racing(Layer):
            """A store in which others write between the archive and the end."""

            async def write(self, write: Write) -> list[Outcome]:
                if not raced:
                    raced.append("k4")
                    await self._below.write(Write((Put(Record(SCOPE, "fact", "k4", text="changed")),)))
                return await super().write(write)

        done = await forgetting(Racing(store)).archive_to(archive)
        assert (done.archived, done.deleted) == (9, 8)
        assert await keys(store) == ["k4"]

        # A change before it is removed, but after it was archived, is seen as well.
        store, archive = await filled(3), MemoryStore()
        await forgetting(store)._archive(archive, (await store.scan(Scan(scope=SCOPE))).items)
        await store.write(Write((Put(Record(SCOPE, "fact", "k1", text="new", created=ago(40))),)))
        found = (await store.scan(Scan(scope=SCOPE))).items
        assert [record.key for record in await forgetting(store)._archived(archive, found)] == ["k0", "k2"]

    asyncio.run(main())


def test_an_archive_loses_nothing() -> None:
    async def main() -> None:
        archive, moment = MemoryStore(), ago(40)
        for text in ("first", "second", "second", "third"):
            store = MemoryStore()
            await store.write(Write((Put(Record(SCOPE, "fact", "k", text=text, created=moment)),)))
            assert (await forgetting(store).archive_to(archive)).deleted == 1
        texts = [r.text async for r in scan_all(archive, Scan(scope=SCOPE, kinds=("fact",)))]
        assert sorted(filter(None, texts)) == ["first", "second", "third"]
        (newest,) = await archive.read([Ref(SCOPE, "fact", "k")])
        assert newest is not None
        assert newest.text == "third"

    asyncio.run(main())


def test_a_store_is_not_its_own_archive(file_url: str, tmp_path: Path) -> None:
    with mnemic.open(file_url) as memory:
        alice = old_and_new(memory)
        for url in (file_url, file_url.partition("?")[0]):
            with pytest.raises(InvalidValueError, match="nothing was deleted"):
                alice.forget(older_than=MONTH, archive=url)
        assert len(said(alice.session("monday"))) == 7
        with pytest.raises(mnemic.UnknownSchemeError):
            alice.forget(older_than=MONTH, archive="nosuch://archive")


PROGRAM = """
import os, sys
from datetime import timedelta
import mnemic
from mnemic.store.retry import write_each
from mnemic.features import forgetting

left = int(sys.argv[3])

async def killed(store, batch):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return await write_each(store, batch)

archive = forgetting.Forgetting._archive

async def archived(self, store, records):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return await archive(self, store, records)

forgetting.write_each = killed
forgetting.Forgetting._archive = archived
with mnemic.open(sys.argv[1], embedder=None) as memory:
    print(memory.scope("acme").forget(older_than=timedelta(days=30), archive=sys.argv[2]).deleted)
"""


def test_a_forget_that_is_killed_anywhere_loses_nothing_and_goes_on(file_url: str, archive: str) -> None:
    with mnemic.open(file_url, embedder=None) as memory:
        old_and_new(memory, 500)
    everything = {f"old {n}" for n in range(500)}
    codes = []
    for steps in range(8):
        program = [sys.executable, "-c", PROGRAM, file_url, archive, str(steps)]
        codes.append(subprocess.run(program, capture_output=True, check=False).returncode)
        found = set()
        for url in (file_url, archive):
            with mnemic.open(url, embedder=None) as memory:
                found |= set(said(memory.scope("acme", "alice").session("monday")))
        assert everything <= found
        if codes[-1] == 0:
            break
    assert codes[-1] == 0
    assert codes.count(9) > 3
    with mnemic.open(file_url, embedder=None) as memory:
        assert said(memory.scope("acme", "alice").session("monday")) == ["be kind", "new 0", "new 1", "new 2"]


# ------------------------------------------------------------ under layers


def test_the_archive_of_an_encrypted_memory_is_encrypted(file_url: str, tmp_path: Path) -> None:
    with mnemic.open(file_url, encryption_key=KEY, audit=True) as memory:
        alice = old_and_new(memory)
        with memory.acting(actor="janitor"):
            alice.forget(older_than=MONTH, archive=f"sqlite:///{tmp_path / 'archive.db'}")
        gone = memory.audit_trail(actor="janitor")
        assert [(entry.operation, entry.kind) for entry in gone] == [
            ("delete", "memory"), ("delete", "message"), ("delete", "message"), ("delete", "message"),
        ]  # fmt: skip
    assert b"old 1" not in (tmp_path / "archive.db").read_bytes()
    with pytest.raises(DecryptionError):
        mnemic.open(f"sqlite:///{tmp_path / 'archive.db'}")
    with mnemic.open(f"sqlite:///{tmp_path / 'archive.db'}", encryption_key=KEY) as kept:
        assert said(kept.scope("acme", "alice").session("monday")) == ["old 0", "old 1", "old 2"]
    with mnemic.open("memory://") as memory, pytest.raises(DecryptionError):
        old_and_new(memory).forget(older_than=MONTH, archive=f"sqlite:///{tmp_path / 'archive.db'}")


def test_an_archive_across_a_network(file_url: str, tmp_path: Path) -> None:
    url = f"waiting://{tmp_path.name}-archive"
    with mnemic.open(file_url) as memory:
        assert old_and_new(memory).forget(older_than=MONTH, archive=url).deleted == 4
    with mnemic.open(url) as kept:
        assert said(kept.scope("acme", "alice").session("monday")) == ["old 0", "old 1", "old 2"]

    async def main() -> None:
        async with mnemic.open_async(url) as memory:
            done = await memory.scope("acme").forget(older_than=MONTH, archive=url + "-2")
            assert done.deleted == 4

    asyncio.run(main())
