"""Data keys: one for each subject, wrapped by a master key from anywhere, and destroyed without loss for others."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import mnemic
from layered import KEY
from mnemic.backends.memory import MemoryStore
from mnemic.errors import ConflictError, DecryptionError, InvalidValueError, NewerSchemaError, StoreError
from mnemic.layers.auxiliary_stores import open_encrypted
from mnemic.layers.encryption import DATA_KEYS, EncryptLayer
from mnemic.layers.encryption_metadata import METADATA_REF
from mnemic.layers.layer import Layer
from mnemic.records import ENCRYPTION_KIND, FENCE_KIND, Record, Ref, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store
from mnemic.store.query import Condition, Delete, Derive, Expect, Limit, Purge, Put, Scan, StreamScan, Write
from servers import aws
from servers.stores import empty_store
from test_encryption import everything, run

ALICE, BOB = ScopePath("acme/alice"), ScopePath("acme/bob")


def put(scope: ScopePath, key: str, text: str = "tea", kind: str = "note", **fields: Any) -> Write:
    return Write((Put(Record(scope, kind, key, text=text, **fields)),))


async def texts(store: Store) -> set[str | None]:
    return {record.text for record in await everything(store)}


async def keys_destroyed(store: EncryptLayer, scope: ScopePath) -> int:
    """Destroy the keys of a scope; return how many there were."""
    return (await store.destroy(scope)).removed.get(DATA_KEYS, 0)


# ------------------------------------------------------------ hashed names


def test_keys_of_facts_cannot_be_guessed_and_differ_between_subjects(tmp_path: Path) -> None:
    file = tmp_path / "memory.db"
    words = ["Alice", "Bob", "likes", "works for", "tea", "milk", "the Hatter"]
    with mnemic.open(f"sqlite:///{file}", encryption_key=KEY, embedder=None) as memory:
        for name in ("alice", "bob"):
            facts = memory.scope("acme", name).facts
            facts.add("Alice", "likes", "tea")
            facts.add("Alice", "works for", "the Hatter", single=True)
        assert [fact.object for fact in memory.scope("acme", "bob").facts.ask("Alice")] == ["tea", "the Hatter"]
    with sqlite3.connect(file) as database:
        rows = database.execute(
            "SELECT s.scope, r.key FROM mnemic_records r JOIN mnemic_streams s ON s.id = r.stream_id "
            "WHERE s.kind IN ('fact', 'fact-guard')"
        ).fetchall()
        values = {row[0] for row in database.execute("SELECT value FROM mnemic_labels")}
    database.close()
    from mnemic.records import fact_key

    guesses = {fact_key(*names) for a in words for b in words for c in words for names in ((a, b), (a, b, c))}
    assert len(rows) == 6
    assert not guesses & {key for _, key in rows}
    assert not guesses & values
    alices, bobs = ({key for scope, key in rows if scope == f"acme/{name}"} for name in ("alice", "bob"))
    assert len(alices) == len(bobs) == 3
    assert not alices & bobs


def test_every_operation_names_keys_as_the_caller_does() -> None:
    async def work() -> None:
        store, plain = EncryptLayer(MemoryStore(), KEY), MemoryStore()
        both: tuple[Store, Store] = (store, plain)

        async def same(write: Write) -> None:
            found: list[Any] = []
            for one in both:
                try:
                    outcomes = await one.write(write)
                    found.append([(o.key, o.removed, o.count, o.version, o.seq) for o in outcomes])
                except ConflictError as error:
                    found.append((str(error), error.key, error.current))
            assert found[0] == found[1]

        refs = [Ref(ALICE, "fact", f"k{n}") for n in range(6)]
        await same(Write(tuple(Put(Record(*_fields(ref), text=ref.key), 0) for ref in refs), id="once"))
        await same(Write(tuple(Put(Record(*_fields(ref), text=ref.key), 0) for ref in refs), id="once"))
        await same(Write((Put(Record(*_fields(refs[0])), 0),)))
        await same(Write((Delete(refs[1], 99),)))
        await same(Write((Delete(refs[1]), Delete(Ref(ALICE, "fact", "none")))))
        await same(Write((Expect(ALICE, "fact", key="k1"), Put(Record(*_fields(refs[2]))))))
        await same(Write((Expect(ALICE, "fact", version=1, key="k2"),)))
        await same(Write((Derive(refs[2], "x", b"1"), Derive(refs[3], "x", b"2", 4), Derive(refs[4], "x", b"2", 9))))
        await same(Write((Limit(ALICE, "fact", max_count=4, evict=(("k2",), ("k3",))),)))
        await same(Write((Derive(refs[3], "x", None),)))
        for where in (
            (),
            (Condition("key", "eq", "k3"),),
            (Condition("key", "in", ("k4", "k5", "k9")),),
            (Condition("key", "ne", "k3"),),
            (Condition("key", "gt", "k3"),),
        ):
            for kinds in ((), ("fact",), ("fact", "note")):
                scan = Scan(scope=ALICE, kinds=kinds, where=where, derived=("x",))
                ours, theirs = [(await one.scan(scan)).items for one in both]
                assert [(r.key, r.seq, r.derived) for r in ours] == [(r.key, r.seq, r.derived) for r in theirs]
        assert [r and r.key for r in await store.read(refs)] == [r and r.key for r in await plain.read(refs)]
        await same(Write((Purge(ALICE, "fact", keep=("k5",)),)))
        assert [r.key for r in await everything(store)] == ["k5"]

    run(work())


def _fields(ref: Ref) -> tuple[ScopePath, str, str]:
    return ref.scope, ref.kind, ref.key


# ------------------------------------------------------------ subjects and their keys


def test_a_key_reads_only_its_subject() -> None:
    async def work() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        for scope in (ALICE, BOB, ALICE / "monday", ScopePath("acme"), ScopePath()):
            await store.write(put(scope, "n"))
        records = (await below.scan(Scan(scope=ScopePath(), kinds=(ENCRYPTION_KIND,)))).items
        assert len(records) == 1 + 4
        assert "alice" not in str(records)
        # The wrapped keys of one subject do not open another's.
        keys = [record for record in records if record.key != METADATA_REF.key]
        for one, other in pairwise(keys):
            await below.write(Write((Put(replace(one, data={**other.data, "sealed": one.data["sealed"]})),)))
        with pytest.raises(DecryptionError, match="those of another scope"):
            await everything(EncryptLayer(below, KEY))

    run(work())


@pytest.mark.parametrize(("level", "subjects"), [(0, 1), (1, 2), (2, 4), (3, 5)])
def test_the_level_of_subjects_is_fixed_when_the_store_is_created(level: int, subjects: int) -> None:
    async def work() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, mnemic.Encryption(KEY, subject_level=level))
        for scope in (ALICE, BOB, ALICE / "monday", ScopePath("acme"), ScopePath()):
            await store.write(put(scope, "n"))
        assert len((await below.scan(Scan(scope=ScopePath(), kinds=(ENCRYPTION_KIND,)))).items) == 1 + subjects
        assert len(await everything(EncryptLayer(below, KEY))) == 5
        other = EncryptLayer(below, mnemic.Encryption(KEY, subject_level=level + 1))
        with pytest.raises(InvalidValueError, match=f"created with subject_level={level}"):
            await other.prepare()

    run(work())


@pytest.mark.parametrize("level", [-1, 17, True, 1.5])
def test_an_invalid_level_is_refused(level: Any) -> None:
    with pytest.raises(InvalidValueError, match="subject_level"):
        mnemic.Encryption(KEY, subject_level=level)


def test_a_key_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, raw = tmp_path / "text.key", tmp_path / "raw.key"
    text.write_text(f"{b64encode(KEY).decode()}\n")
    raw.write_bytes(KEY)
    monkeypatch.setenv("MEMORY_KEY", b64encode(KEY).decode())
    url = f"sqlite:///{tmp_path}/memory.db"
    forms: list[Any] = [KEY, text, f"file:{raw}", "env:MEMORY_KEY", mnemic.Encryption([text]), [raw, bytes(32)]]
    for n, form in enumerate(forms):
        with mnemic.open(url, encryption_key=form) as memory:
            memory.scope("acme", "alice").remember("tea", id=f"{n}")
            assert len(memory.scope("acme", "alice").memories.list()) == n + 1
    monkeypatch.setenv("MEMORY_KEY", f" {b64encode(KEY).decode()}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for form in ("env:MEMORY_KEY", "file:~/text.key"):
        mnemic.open(url, encryption_key=form).close()
    monkeypatch.delenv("MEMORY_KEY")
    monkeypatch.setenv("EMPTY_KEY", "\n")
    monkeypatch.setenv("SHORT_KEY", "abc")
    (tmp_path / "short").write_text("abc")
    (tmp_path / "long").write_bytes(bytes(5000))
    for form, said in {
        "env:MEMORY_KEY": "MEMORY_KEY is not set",
        "env:EMPTY_KEY": "the environment variable EMPTY_KEY is empty",
        "env:SHORT_KEY": "the environment variable SHORT_KEY holds a value of .* length 3",
        f"file:{tmp_path}/short": f"the key file {tmp_path}/short holds a value of .* length 3",
        f"file:{tmp_path}/none": "cannot read the key file",
        f"file:{tmp_path}/long": "longer than 4,096 bytes",
    }.items():
        with pytest.raises(InvalidValueError, match=said):
            mnemic.open(url, encryption_key=form)


# ------------------------------------------------------------ a key management service


def kms_key() -> mnemic.MasterKey:
    """Return a key of a KMS in another process."""
    aws.moto()
    client = aws.client("kms", {"endpoint": aws.moto().endpoint})
    id = client.create_key()["KeyMetadata"]["KeyId"]
    return mnemic.MasterKey(
        name=id,
        wrap=lambda key: client.encrypt(KeyId=id, Plaintext=key)["CiphertextBlob"],
        unwrap=lambda wrapped: client.decrypt(KeyId=id, CiphertextBlob=wrapped)["Plaintext"],
    )


def test_the_master_key_stays_in_a_kms(tmp_path: Path) -> None:
    first, second, url = kms_key(), kms_key(), f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, encryption_key=first) as memory:
        memory.scope("acme", "alice").remember("Alice likes tea")
        memory.scope("acme", "alice").session("monday").add("user", "hello")
    with pytest.raises(DecryptionError, match=f"with the key {first.name}, which was not given"):
        mnemic.open(url, encryption_key=second)
    with mnemic.open(url, encryption_key=[second, first]) as memory:
        assert memory.rotate() == 3
    with mnemic.open(url, encryption_key=second) as memory:
        assert memory.scope("acme").recall("tea")[0].text == "Alice likes tea"
    with mnemic.open(url, encryption_key=[KEY, second]) as memory:
        assert memory.rotate() == 3
    with mnemic.open(url, encryption_key=KEY) as memory:
        assert len(memory.scope("acme", "alice").session("monday").messages()) == 1


def test_functions_of_a_master_key_may_be_async_and_fail(tmp_path: Path) -> None:
    calls: list[str] = []

    async def wrap(key: bytes) -> bytes:
        await asyncio.sleep(0)
        calls.append("wrap")
        return key[::-1]

    async def unwrap(wrapped: bytes) -> bytes:
        calls.append("unwrap")
        return wrapped[::-1]

    def fails(_: bytes) -> bytes:
        raise OSError("no route")

    master, url = mnemic.MasterKey(name="k", wrap=wrap, unwrap=unwrap), f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, encryption_key=master, embedder=None) as memory:
        for n in range(5):
            memory.scope("acme", "alice").remember(f"tea {n}")
    # The store's own keys, and those of the subject; each wrapped once, and unwrapped once in a process.
    assert (calls.count("wrap"), calls.count("unwrap")) == (2, 2)

    async def opened() -> None:
        async with mnemic.open_async(url, encryption_key=master, embedder=None) as memory:
            assert len(await memory.scope("acme", "alice").memories.list()) == 5

    run(opened())
    with pytest.raises(StoreError, match="the master key k failed: OSError: no route"):
        mnemic.open(url, encryption_key=mnemic.MasterKey(name="k", wrap=wrap, unwrap=fails))
    with pytest.raises(StoreError, match="returned str instead of bytes"):
        mnemic.open(url, encryption_key=mnemic.MasterKey(name="k", wrap=wrap, unwrap=str))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="must be functions"):
        mnemic.MasterKey(name="k", wrap=b"", unwrap=unwrap)  # type: ignore[arg-type]


# ------------------------------------------------------------ a key store


def test_keys_in_a_key_store_are_not_in_a_copy_of_the_data(tmp_path: Path) -> None:
    data, keys = f"sqlite:///{tmp_path}/data.db", f"sqlite:///{tmp_path}/keys.db"
    encryption = mnemic.Encryption(KEY, key_store=keys)
    archive, backup = f"sqlite:///{tmp_path}/archive.db", f"sqlite:///{tmp_path}/backup.db"
    with mnemic.open(data, encryption_key=encryption, audit=f"sqlite:///{tmp_path}/trail.db") as memory:
        for name in ("alice", "bob"):
            memory.scope("acme", name).remember(f"{name} likes tea", metadata={"old": True})
            memory.scope("acme", name).remember(f"{name} likes milk")
        assert memory.scope("acme").forget(metadata={"old": True}, archive=archive).archived == 2
    mnemic.copy(data, backup)
    with pytest.raises(DecryptionError, match="are in another store"):
        mnemic.open(backup, encryption_key=KEY)
    with mnemic.open(backup, encryption_key=encryption) as memory:
        assert len(memory.scope("acme").recall("milk")) == 2
    with mnemic.open(data, encryption_key=encryption) as memory:
        assert asyncio.run(_destroy(data, encryption, ALICE)) == 1
        assert memory.scope("acme", "bob").recall("milk")
    # What the key encrypted cannot be read anywhere, and counts as erased; all else can.
    for url in (backup, archive, data):
        with mnemic.open(url, encryption_key=encryption) as memory:
            assert {hit.scope.path for hit in memory.scope("acme").recall("likes")} == {"acme/bob"}
    # The log has the store's own key: what was done can still be read, which has no content.
    with mnemic.open(data, encryption_key=encryption, audit=f"sqlite:///{tmp_path}/trail.db") as memory:
        log = memory.audit_trail(ALICE)
        assert [(entry.operation, entry.kind) for entry in log[:2]] == [("put", "memory")] * 2
        assert "likes" not in str(log)
    assert b"alice likes" not in (tmp_path / "trail.db").read_bytes()
    stored = (tmp_path / "keys.db").read_bytes()
    assert b"alice" not in stored
    assert b"bob" not in stored
    with pytest.raises(InvalidValueError, match="is an encrypted store itself"):
        mnemic.open(f"sqlite:///{tmp_path}/new.db", encryption_key=mnemic.Encryption(KEY, key_store=data))
    plain = f"sqlite:///{tmp_path}/own.db"
    with mnemic.open(plain, encryption_key=KEY) as memory:
        memory.scope("a").remember("x")
    with pytest.raises(DecryptionError, match="keeps its data keys itself"):
        mnemic.open(plain, encryption_key=encryption)


async def _destroy(url: str, encryption: Any, scope: ScopePath) -> int:
    parsed, backend = registry.find(url)
    layer = await open_encrypted(await backend.open(parsed), encryption, url)
    try:
        return await keys_destroyed(layer, scope)
    finally:
        await layer.close()


# ------------------------------------------------------------ destroying keys


def test_destroy_follows_the_level_of_subjects() -> None:
    async def work() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        scopes = (ALICE, ALICE / "monday", BOB, ScopePath("acme"), ScopePath("other/carol"))
        for scope in scopes:
            await store.write(put(scope, "n", scope.path))
        assert await keys_destroyed(store, ALICE / "monday") == 0
        assert len(await everything(store)) == 5
        assert await keys_destroyed(store, ALICE) == 1
        assert await keys_destroyed(store, ALICE) == 0
        for reader in (store, EncryptLayer(below, KEY)):
            assert await texts(reader) == {"acme/bob", "acme", "other/carol"}
            assert (await reader.read([Ref(ALICE, "note", "n")])) == [None]
        assert await keys_destroyed(store, ScopePath("acme")) == 2
        assert await texts(EncryptLayer(below, KEY)) == {"other/carol"}
        assert not [s for s in (await below.streams(StreamScan(scope=ALICE, empty=True))).items if s.kind == FENCE_KIND]
        await store.write(put(ALICE, "n", "again"))
        assert await texts(EncryptLayer(below, KEY)) == {"other/carol", "again"}
        assert await keys_destroyed(store, ScopePath()) == 2
        assert await texts(EncryptLayer(below, KEY)) == set()

    run(work())


def test_another_process_with_the_destroyed_key_loses_nothing() -> None:
    async def work() -> None:
        below = MemoryStore()
        one, other = EncryptLayer(below, KEY), EncryptLayer(below, KEY)
        await one.write(put(ALICE, "a", "before", labels={"l": "1"}))
        assert len(await everything(other)) == 1
        await one.destroy(ALICE)
        await one.write(Write((Purge(ALICE, "note", drop=True),)))
        # It reads and finds by names what others wrote since, and what it writes can be read by all.
        await one.write(put(ALICE, "b", "after", labels={"l": "1"}))
        assert [r and r.text for r in await other.read([Ref(ALICE, "note", "b")])] == ["after"]
        await one.destroy(ALICE)
        await one.write(Write((Purge(ALICE, "note", drop=True),)))
        await one.write(put(ALICE, "c", "later", labels={"l": "1"}))
        found = await other.scan(Scan(scope=ALICE, kinds=("note",), where=(Condition("labels.l", "eq", "1"),)))
        assert [r.text for r in found.items] == ["later"]
        await one.destroy(ALICE)
        await other.write(put(ALICE, "d", "last"))
        assert await texts(EncryptLayer(below, KEY)) == {"last"}

    run(work())


WRITER = """
import os, sys, time, mnemic
url, folder, number = sys.argv[1:]
done = open(f"{folder}/{number}", "w")
with mnemic.open(url, encryption_key=bytes(range(32)), embedder=None) as memory:
    alice, left = memory.scope("acme", "alice"), 20
    for n in range(100000):
        left -= os.path.exists(f"{folder}/stop")
        began = time.monotonic()
        alice.session(f"s{n % 7}").add("user", f"{number}-{n}")
        print(began, n, file=done, flush=True)
        if n == 10 or not left:
            print(n, flush=True)
        if not left:
            break
"""


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "valkey"])
def test_no_acknowledged_write_is_lost_when_keys_are_destroyed(name: str, tmp_path: Path) -> None:
    """One process erases while others write: what they store after the last erasure can be read by another."""
    with empty_store(name, tmp_path) as url:
        command = [sys.executable, "-c", WRITER, url, str(tmp_path)]
        writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(2)]
        try:
            assert [writer.stdout and writer.stdout.readline() for writer in writers] == ["10\n", "10\n"]
            with mnemic.open(url, encryption_key=KEY, embedder=None) as memory:
                for _ in range(5):
                    memory.scope("acme", "alice").erase()
            erased = time.monotonic()
            (tmp_path / "stop").touch()
            for writer in writers:
                writer.communicate(timeout=240)
                assert writer.returncode == 0
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        with mnemic.open(url, encryption_key=KEY, embedder=None) as memory:
            alice = memory.scope("acme", "alice")
            stored = {message.text for n in range(7) for message in alice.session(f"s{n}").messages()}
            assert memory.stats().messages == len(stored), "nothing is left that cannot be read"
        for number in range(2):
            lines = [line.split() for line in (tmp_path / str(number)).read_text().splitlines()]
            later = {f"{number}-{n}" for began, n in lines if float(began) > erased}
            assert len(later) >= 19
            assert later <= stored


# ------------------------------------------------------------ the metadata record


def test_a_changed_metadata_record_is_noticed() -> None:
    async def work() -> None:
        below = MemoryStore()
        await EncryptLayer(below, KEY).write(put(ALICE, "n", derived={"x": b"1"}))
        (stored,) = await below.read([METADATA_REF])
        assert stored is not None
        data: Any = stored.data
        later = below.clock()
        for changed, error, said in (
            ({**data, "format": 1}, DecryptionError, "an earlier format of encryption"),
            ({**data, "format": 3}, NewerSchemaError, "a newer version of Mnemic"),
            ({**data, "format": "2"}, DecryptionError, "is damaged"),
            ({**data, "id": "0" * 16}, DecryptionError, "was modified"),
            ({**data, "sealed": data["sealed"][:-8] + "AAAAAAA="}, DecryptionError, "modified in the store"),
            ({**data, "sealed": data["store"]["value"]}, DecryptionError, "metadata|keys|damaged|modified"),
            ({**data, "store": {"key": data["store"]["key"], "value": "AAAA"}}, DecryptionError, "were modified"),
            ({**data, "store": None}, DecryptionError, "damaged"),
            ({"format": 1, "labels": "AAAA", "derived": []}, DecryptionError, "an earlier format"),
        ):
            await below.write(Write((Put(replace(stored, data=changed), updated=later),)))
            with pytest.raises(error, match=said):
                await EncryptLayer(below, KEY).prepare()
        await below.write(Write((Put(stored),)))
        assert len(await everything(EncryptLayer(below, KEY), "x")) == 1

    run(work())


# ------------------------------------------------------------ lost keys, and key stores that are none


def files(folder: Path) -> dict[str, str]:
    return {name: f"sqlite:///{folder}/{name}.db" for name in ("data", "keys", "plain")}


def copied(folder: Path, source: str, target: str) -> None:
    with sqlite3.connect(folder / f"{source}.db") as one, sqlite3.connect(folder / f"{target}.db") as other:
        one.backup(other)


def test_an_older_key_store_is_refused_by_reads_and_writes(tmp_path: Path) -> None:
    url = files(tmp_path)
    encryption = mnemic.Encryption(KEY, key_store=url["keys"])
    with mnemic.open(url["data"], encryption_key=encryption) as memory:
        memory.scope("acme", "bob").notes.write("plan", "tea")
        copied(tmp_path, "keys", "old")
        memory.scope("acme", "alice").notes.write("plan", "milk")
        memory.scope("acme", "bob").erase()
        memory.scope("acme", "bob").notes.write("plan", "more tea")
        copied(tmp_path, "keys", "new")
    copied(tmp_path, "old", "keys")
    missing = r"the data key [0-9a-f]{8} of scope '{}' is missing in the key store: restore the newest copy"
    with mnemic.open(url["data"], encryption_key=encryption) as memory:
        for name in ("acme/alice", "acme/bob"):
            scope, error = memory.scope(*name.split("/")), missing.replace("{}", name)
            with pytest.raises(DecryptionError, match=error):
                scope.notes.write("other", "x")
            with pytest.raises(DecryptionError, match=error):
                scope.session("monday").add("user", "hello")
        with pytest.raises(DecryptionError, match=missing.replace("{}", "acme/alice")):
            memory.scope("acme", "alice").notes.read("plan")
        memory.scope("acme", "carol").notes.write("plan", "new")
    copied(tmp_path, "new", "keys")
    with mnemic.open(url["data"], encryption_key=encryption) as memory:
        assert memory.scope("acme", "alice").notes.read("plan") == "milk"
        assert memory.scope("acme", "bob").notes.read("plan") == "more tea"


def test_a_lost_key_record_is_not_replaced() -> None:
    async def work() -> None:
        below = MemoryStore()
        await EncryptLayer(below, KEY).write(put(ALICE, "n"))
        for record in (await below.scan(Scan(scope=ScopePath(), kinds=(ENCRYPTION_KIND,)))).items:
            if record.key != METADATA_REF.key:
                await below.write(Write((Delete(record.ref),)))
        for fences in (True, False):
            store = EncryptLayer(below, KEY)
            if not fences:
                await store.drop_fences(ScopePath())
            with pytest.raises(DecryptionError, match="of scope 'acme/alice' is missing in the store"):
                await store.write(put(ALICE, "m"))
            with pytest.raises(DecryptionError, match="is missing in the store"):
                await store.read([Ref(ALICE, "note", "n")])
            assert await store.read([Ref(BOB, "note", "n")]) == [None]

    run(work())


class _Late(Layer):
    """Lets another writer go first, once, when data keys of a subject are about to be created."""

    other: Any = None

    async def streams(self, scan: StreamScan) -> Any:
        if self.other is not None and scan.kinds == (FENCE_KIND,):
            other, self.other = self.other, None
            await other
        return await super().streams(scan)


def test_a_key_that_another_made_meanwhile_is_not_overwritten() -> None:
    async def work() -> None:
        below = MemoryStore()
        late = _Late(below)
        store = EncryptLayer(late, KEY)
        await store.write(put(ALICE, "n", "first"))
        await store.destroy(ALICE)
        other = EncryptLayer(below, KEY)
        late.other = other.write(put(ALICE, "o", "other"))
        await store.write(put(ALICE, "m", "mine"))
        assert await texts(EncryptLayer(below, KEY)) == {"other", "mine"}

    run(work())


def test_what_cannot_be_a_key_store_is_refused_and_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = files(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "data.db")
    for spelling in (url["data"], "sqlite:///./data.db", "sqlite:///link.db"):
        for _ in range(2):
            with pytest.raises(InvalidValueError, match="is a key store itself"):
                mnemic.open(url["data"], encryption_key=mnemic.Encryption(KEY, key_store=spelling))
    with mnemic.open(url["plain"]) as memory:
        memory.scope("a").remember("x")
    with pytest.raises(InvalidValueError, match="holds records, which are no data keys"):
        mnemic.open(url["data"], encryption_key=mnemic.Encryption(KEY, key_store=url["plain"]))
    with pytest.raises(DecryptionError, match="holds records that are not encrypted"):
        mnemic.open(url["plain"], encryption_key=mnemic.Encryption(KEY, key_store=url["keys"]))
    assert not (tmp_path / "keys.db").exists()
    encryption = mnemic.Encryption(KEY, key_store=url["keys"])
    with mnemic.open(url["data"], encryption_key=encryption) as memory:
        memory.scope("a", "b").remember("x")
    with pytest.raises(InvalidValueError, match="is a key store: it cannot hold encrypted records"):
        mnemic.open(url["keys"], encryption_key=KEY)
    with pytest.raises(DecryptionError, match="there is no key store at"):
        mnemic.open(url["data"], encryption_key=mnemic.Encryption(KEY, key_store="sqlite:///typo.db"))
    assert not (tmp_path / "typo.db").exists()
    (tmp_path / "keys.db").unlink()
    with pytest.raises(DecryptionError, match="there is no key store at"):
        mnemic.open(url["data"], encryption_key=encryption)
    assert not (tmp_path / "keys.db").exists()
    with mnemic.open(url["keys"]):
        pass
    with pytest.raises(DecryptionError, match="the key store does not have the keys of"):
        mnemic.open(url["data"], encryption_key=encryption)
