"""Rotation: master keys without writing a record, and data keys while the store is in use."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet
from msgspec.structs import replace

import mnemic
from mnemic.backends.memory import MemoryStore
from mnemic.cli import main
from mnemic.errors import ConflictError, DecryptionError, InvalidValueError
from mnemic.layers.encryption import EncryptLayer
from mnemic.layers.layer import Layer
from mnemic.models.static import StaticEmbedder
from mnemic.recall.index_entry import entry_name
from mnemic.records import ENCRYPTION_KIND, Record
from mnemic.store import registry
from mnemic.store.protocol import Store
from mnemic.store.query import Derive, Outcome, Put, Write, place_of
from test_encryption import NEW, OLD, SCOPE, everything, filled, run

__all__ = ["filled"]


class Counted(Layer):
    """A store that keeps what is written to it."""

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        self.kinds: list[str] = []

    async def write(self, write: Write) -> list[Outcome]:
        self.kinds += [place_of(op)[1] for op in write.ops]
        return await super().write(write)


def test_rotation_of_the_master_key_writes_no_record() -> None:
    async def work() -> None:
        counted = Counted(MemoryStore())
        old = EncryptLayer(counted, OLD)
        for name in ("alice", "bob", "carol"):
            puts = [Put(Record(SCOPE.parent / name / "s", "message", f"m{n}", text="tea")) for n in range(50)]
            await old.write(Write(tuple(puts)))
        before = [r for r in await everything(counted) if r.kind == "message"]
        counted.kinds = []
        seen: list[tuple[int, int]] = []
        assert await EncryptLayer(counted, [NEW, OLD]).rotate(lambda *now: seen.append(now)) == 4
        assert counted.kinds == [ENCRYPTION_KIND] * 4
        assert seen[-1] == (3, 3)
        assert [r for r in before if r.kind == "message"] == [
            r for r in await everything(counted) if r.kind == "message"
        ]
        assert len(await everything(EncryptLayer(counted, NEW))) == 150
        assert await EncryptLayer(counted, [NEW, OLD]).rotate() == 0
        with pytest.raises(DecryptionError, match="which was not given"):
            await EncryptLayer(counted, OLD).prepare()
        # A process that had the old key goes on with the data keys that it knows.
        await old.write(Write((Put(Record(SCOPE.parent / "bob" / "s", "message", "late", text="milk")),)))
        assert {r.text for r in await everything(EncryptLayer(counted, NEW))} == {"tea", "milk"}

    run(work())


def test_a_killed_rotation_of_the_master_key_is_finished_by_the_next() -> None:
    async def work() -> None:
        below = MemoryStore()
        for name in ("alice", "bob", "carol"):
            await EncryptLayer(below, OLD).write(Write((Put(Record(SCOPE.parent / name, "note", "n", text=name)),)))
        for writes in range(4):
            with pytest.raises(KeyboardInterrupt):
                await EncryptLayer(Breaking(below, min(writes, 1)), [NEW, OLD]).rotate()
            for keys in ([NEW, OLD], [OLD, NEW]):
                assert len(await everything(EncryptLayer(below, keys))) == 3
        assert await EncryptLayer(below, [NEW, OLD]).rotate() == 1
        assert len(await everything(EncryptLayer(below, NEW))) == 3

    run(work())


def contents(memory: mnemic.Memory) -> Any:
    alice = memory.scope("acme", "alice")
    return (
        [(r.id, r.text, r.metadata, r.source, r.importance, r.created, r.updated) for r in alice.memories.list()],
        [message.to_dict() for message in alice.session("monday").messages()],
        [message.to_dict() for message in alice.session("long").messages()],
        [(e.key, e.description, e.metadata, e.created, e.updated) for e in alice.notes.list()],
        alice.notes.read_all(),
        alice.facts.ask(object="the Hatter"),
        [(hit.record.text, round(hit.score, 3)) for hit in alice.recall("velvet teapot", uses=False)],
        [(faded.record.key, faded.uses, faded.used) for faded in alice.memories.fading()],
    )


def test_rotation_keeps_the_content_and_retires_the_old_key(filled: str) -> None:
    with mnemic.open(filled, encryption_key=[OLD]) as memory:
        before = contents(memory)
    seen: list[tuple[int, int]] = []
    with mnemic.open(filled, encryption_key=[NEW, OLD]) as memory:
        changed = memory.rotate(data_keys=True, progress=lambda done, total: seen.append((done, total)))
        assert changed >= 457
        assert seen[-1] == (changed, changed)
        assert contents(memory) == before
        assert memory.rotate() == 0
    with mnemic.open(filled, encryption_key=NEW) as memory:
        assert contents(memory) == before
    with pytest.raises(DecryptionError):
        mnemic.open(filled, encryption_key=OLD)


class Breaking(Layer):
    """A store that breaks after some writes."""

    def __init__(self, below: Store, writes: int) -> None:
        super().__init__(below)
        self.left = writes

    async def write(self, write: Write) -> list[Outcome]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return await super().write(write)


def test_an_interrupted_rotation_resumes(filled: str) -> None:
    async def work() -> None:
        parsed, backend = registry.find(filled)
        store = await backend.open(parsed)
        names = ("use", entry_name(StaticEmbedder.id))
        before = {(r.scope, r.kind, r.key): r for r in await everything(EncryptLayer(store, OLD), *names)}
        assert {name for r in before.values() for name in r.derived} == set(names)
        breaks = 0
        for writes in range(0, 30, 2):
            try:
                await EncryptLayer(Breaking(store, writes), [NEW, OLD]).rotate(data_keys=True)
                break
            except KeyboardInterrupt:
                breaks += 1
            # Half done, it is read by whoever has both keys.
            for keys in ([NEW, OLD], [OLD, NEW]):
                assert len(await everything(EncryptLayer(store, keys))) == len(before)
        assert breaks > 2
        after = {(r.scope, r.kind, r.key): r for r in await everything(EncryptLayer(store, NEW), *names)}
        assert {at: replace(r, version=0) for at, r in after.items()} == {
            at: replace(r, version=0) for at, r in before.items()
        }
        # Each record was written once: the version of a stream grows by one with each.
        messages = [at for at in before if at[1] == "message"]
        grown = {(at[0], after[at].version - before[at].version) for at in messages}
        assert grown == set(Counter(at[0] for at in messages).items())
        await store.close()

    run(work())


def test_others_read_and_write_during_a_rotation(filled: str) -> None:
    with (
        mnemic.open(filled, encryption_key=[OLD, NEW]) as other,
        mnemic.open(filled, encryption_key=[NEW, OLD]) as memory,
    ):
        chat = other.scope("acme", "alice").session("long")

        def meanwhile(done: int, total: int) -> None:
            chat.add("user", f"meanwhile {done}")
            assert other.scope("acme", "alice").facts.ask("Alice")

        memory.rotate(data_keys=True, progress=meanwhile)
        assert other.scope("acme", "alice").recall("teapot")
    with mnemic.open(filled, encryption_key=NEW) as memory:
        texts = [message.text for message in memory.scope("acme", "alice").session("long").messages()]
        assert len([text for text in texts if text and text.startswith("meanwhile")]) > 3
        assert len(texts) > 453


def test_a_change_during_a_rotation_is_kept() -> None:
    async def work() -> None:
        below = MemoryStore()
        old = EncryptLayer(below, OLD)
        puts = [Put(Record(SCOPE, "note", f"k{n}", text="before", derived={"x": b"1"})) for n in range(9)]
        await old.write(Write((*puts, *(Derive(put.record.ref, "use", b"2") for put in puts))))

        class Racing(Layer):
            """A store in which others are faster, once."""

            raced = False

            async def write(self, write: Write) -> list[Outcome]:
                if not self.raced:
                    self.raced = True
                    await old.write(Write((Put(Record(SCOPE, "note", "k4", text="after")),)))
                return await super().write(write)

        await EncryptLayer(Racing(below), [NEW, OLD]).rotate(data_keys=True)
        found = {record.key: record for record in await everything(EncryptLayer(below, NEW), "x", "use")}
        assert {key: record.text for key, record in found.items()} == {
            f"k{n}": "after" if n == 4 else "before" for n in range(9)
        }
        assert found["k4"].derived == {"use": b"2"}
        assert found["k3"].derived == {"use": b"2", "x": b"1"}
        # What lasts still lasts, and what is of a version still goes with it.
        store = EncryptLayer(below, NEW)
        await store.write(Write((Put(Record(SCOPE, "note", "k3", text="new")),)))
        found = {record.key: record for record in await everything(store, "x", "use")}
        assert found["k3"].derived == {"use": b"2"}

    run(work())


def test_rotation_without_a_key_or_records() -> None:
    with mnemic.open("memory://") as memory, pytest.raises(InvalidValueError, match="opened with encryption_key"):
        memory.rotate()
    with mnemic.open("memory://", encryption_key=[NEW, OLD]) as memory:
        assert memory.rotate() == 0


def test_rotation_keeps_the_time_of_the_last_change(filled: str) -> None:
    with mnemic.open(filled, encryption_key=[NEW, OLD]) as memory:
        notes = memory.scope("acme", "alice").notes
        (before,) = notes.list()
        memory.rotate(data_keys=True)
        (after,) = notes.list()
        assert after.updated == before.updated
        age = datetime.now(UTC) - before.updated
        assert [entry.key for entry in notes.stale(age - timedelta(milliseconds=1))] == ["note"]
        with pytest.raises(ConflictError):
            notes.write("note", 1, if_version=before.version)


def opened_with_all(folder: Path, *keys: bytes) -> mnemic.Memory:
    return mnemic.open(f"sqlite:///{folder}/main.db", encryption_key=list(keys), audit=f"sqlite:///{folder}/trail.db")


def test_rotation_covers_an_audit_trail_and_archives_elsewhere(tmp_path: Path) -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    archive = f"sqlite:///{tmp_path}/archive.db"
    with opened_with_all(tmp_path, old) as memory, memory.acting(actor="alice"):
        alice = memory.scope("acme")
        alice.remember("The teapot is blue", metadata={"old": True})
        alice.remember("The kettle is red")
        assert alice.forget(metadata={"old": True}, archive=archive).deleted == 1
    with opened_with_all(tmp_path, new, old) as memory:
        assert memory.rotate(archives=[archive]) >= 4
        assert memory.rotate(archives=[archive]) == 0
    with opened_with_all(tmp_path, new) as memory:
        assert {entry.actor for entry in memory.audit_trail()} == {"alice"}
        assert [record.text for record in memory.scope("acme").memories.list()] == ["The kettle is red"]
    with mnemic.open(archive, encryption_key=new) as memory:
        assert [record.text for record in memory.scope("acme").memories.list()] == ["The teapot is blue"]
    for name in ("main", "trail", "archive"):
        with pytest.raises(DecryptionError):
            mnemic.open(f"sqlite:///{tmp_path}/{name}.db", encryption_key=old)


def test_rotation_of_a_missing_archive_fails(filled: str, tmp_path: Path) -> None:
    with mnemic.open(filled, encryption_key=[NEW, OLD]) as memory:
        with pytest.raises(mnemic.NotFoundError, match="nothing encrypted at"):
            memory.rotate(archives=[f"sqlite:///{tmp_path}/mistyped.db"])
        with pytest.raises(InvalidValueError, match="archives must be a list"):
            memory.rotate(archives="sqlite:///archive.db")


def test_rotation_on_the_command_line(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", b64encode(OLD).decode())
    monkeypatch.setenv("NEW", NEW.decode())
    shown = CliRunner().invoke(main, ["rotate", "--store", filled, "--key-env", "NEW", "--key-env", "OLD"])
    assert shown.exit_code == 0, shown.output
    assert "again; only the first key is needed for sqlite" in shown.output
    with mnemic.open(filled, encryption_key=NEW) as memory:
        assert memory.scope("acme", "alice").recall("teapot")
    shown = CliRunner().invoke(main, ["rotate", "--store", filled, "--key-env", "UNSET"])
    assert shown.exit_code == 1
    assert "the environment variable UNSET is not set" in shown.output


@pytest.mark.parametrize("data_keys", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_a_process_with_only_the_old_key_notices_a_rotation(tmp_path: Path, data_keys: bool, apart: bool) -> None:
    url, keys = f"sqlite:///{tmp_path}/memory.db", f"sqlite:///{tmp_path}/keys.db" if apart else None
    with mnemic.open(url, encryption_key=mnemic.Encryption(OLD, key_store=keys)) as late:
        late.scope("acme", "alice").remember("Alice likes tea")
        assert late.scope("acme", "alice").recall("tea")
        with mnemic.open(url, encryption_key=mnemic.Encryption([NEW, OLD], key_store=keys)) as memory:
            memory.rotate(data_keys=data_keys)
        with pytest.raises(DecryptionError, match="If keys were rotated, open it with the new key"):
            late.scope("acme", "bob").remember("Bob likes tea")
    with mnemic.open(url, encryption_key=mnemic.Encryption(NEW, key_store=keys)) as memory:
        assert len(memory.scope("acme").recall("likes tea")) == 1


def test_rotation_covers_the_store_of_the_vault(tmp_path: Path) -> None:
    def opened(*keys: bytes) -> mnemic.Memory:
        vault = mnemic.Vault(bytes(range(32)), store=f"sqlite:///{tmp_path}/vault.db")
        redact = mnemic.Redaction(action="hash", key=bytes(32), vault=vault)
        return mnemic.open(f"sqlite:///{tmp_path}/m.db", encryption_key=list(keys), redact=redact, embedder=None)

    with opened(OLD) as memory:
        item = memory.scope("acme").remember("Write to ann@example.com")
    with opened(NEW, OLD) as memory:
        memory.rotate()
    with opened(NEW) as memory:
        assert memory.reveal(memory.scope("acme").memories.get(item.id).text) == "Write to ann@example.com"
