"""Encryption: nothing readable below, everything as ever above, and keys that can be changed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet
from msgspec.structs import replace

import mnemic
from layered import KEY
from mnemic.backends.memory import MemoryStore
from mnemic.cli import main
from mnemic.errors import DecryptionError, InvalidValueError, MissingExtraError
from mnemic.layers.cipher import HEAD
from mnemic.layers.encryption import EncryptLayer
from mnemic.layers.encryption_metadata import METADATA_REF
from mnemic.layers.layer import Layer
from mnemic.models.static import StaticEmbedder
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Capability, Page, Store, scan_all
from mnemic.store.query import Condition, Delete, Derive, Put, Scan, StreamScan, Write

OLD, NEW = bytes(range(100, 132)), Fernet.generate_key()
SCOPE = ScopePath("acme/alice")
EMBEDDER = StaticEmbedder.id.encode()
A = Ref(SCOPE, "note", "a")

SECRETS = [
    "teapot", "Earl Grey", "beverage", "favourite", "confidential", "Wonderland", "Hatter", "works for", "chat-7",
    "velvet", "description", "helpful",
]  # fmt: skip
"""What must not be found in ciphertext: words so long that chance does not write them."""


def fill(memory: mnemic.Memory) -> mnemic.Scope:
    """Remember something of every kind."""
    alice = memory.scope("acme", "alice")
    alice.remember("Alice has a velvet teapot", metadata={"favourite": "beverage"}, source="chat-7", importance=2.0)
    alice.remember("She drinks Earl Grey every morning", metadata={"level": "confidential"})
    chat = alice.session("monday")
    chat.set_system("You are a helpful teapot")
    chat.add("user", "Where is the Hatter?", metadata={"mood": "velvet"})
    chat.add("assistant", {"answer": "in Wonderland"}, name="Hatter")
    alice.notes.write("note", {"place": "Wonderland"}, description="a velvet description")
    alice.facts.add("Alice", "works for", "the Hatter", source="chat-7")
    return alice


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def stored_notes(below: Store, scope: ScopePath = SCOPE, *derived: str) -> list[Record]:
    return list((await below.scan(Scan(scope=scope, kinds=("note",), derived=derived))).items)


async def everything(store: Store, *derived: str) -> list[Record]:
    return [r async for r in scan_all(store, Scan(scope=ScopePath(), below=True, derived=derived))]


# ------------------------------------------------------------ what the store sees


def test_no_plain_text_is_in_the_file(tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder, key in ((plain, None), (sealed, KEY)):
        folder.mkdir()
        with mnemic.open(f"sqlite:///{folder / 'memory.db'}", encryption_key=key) as memory:
            alice = fill(memory)
            assert alice.recall("velvet teapot")[0].record.text == "Alice has a velvet teapot"
            alice.used(alice.recall("velvet teapot")[0])
    for secret in SECRETS:
        assert secret.encode() in bytes_of(plain), secret
        assert secret.encode().lower() not in bytes_of(sealed).lower(), secret
    # What recall keeps of a text, its words and its vectors, is not in there either.
    with sqlite3.connect(plain / "memory.db") as database:
        entries = [row[0] for row in database.execute("SELECT value FROM mnemic_derived")]
    database.close()
    assert len(entries) > 4
    for entry in entries:
        assert entry in bytes_of(plain)
        assert all(entry[n : n + 12] not in bytes_of(sealed) for n in range(0, len(entry) - 12, 12))


def test_the_name_of_the_embedder_is_encrypted(tmp_path: Path) -> None:
    for key in (None, KEY):
        with mnemic.open(f"sqlite:///{tmp_path}/{key is None}.db", encryption_key=key) as memory:
            memory.scope("a").remember("tea")
        with mnemic.open(f"sqlite:///{tmp_path}/{key is None}.db", encryption_key=key) as memory:
            assert memory.scope("a").recall("tea")[0].record.text == "tea"
    assert EMBEDDER in (tmp_path / "True.db").read_bytes()
    assert EMBEDDER not in (tmp_path / "False.db").read_bytes()


def test_only_fields_that_the_store_needs_are_in_clear(tmp_path: Path) -> None:
    async def main() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        record = Record(
            SCOPE, "note", "a", text="t", title="u", data={"d": 1}, meta={"m": 1}, labels={"l": "v"},
            importance=2.5, weight=7, pinned=True, created=moment, expires=moment, valid_from=moment,
            valid_to=moment,
        )  # fmt: skip
        await store.write(Write((Put(replace(record, derived={"x": b"secret"})),)))
        (stored,) = (await below.scan(Scan(scope=SCOPE, derived=("x",)))).items
        for name in ("scope", "kind", "importance", "weight", "pinned", "created", "expires"):
            assert getattr(stored, name) == getattr(record, name)
        assert (stored.valid_from, stored.valid_to) == (moment, moment)
        assert (stored.text, stored.title) == (None, None)
        assert len(stored.key) == 32
        assert set(stored.meta) == {HEAD}
        assert isinstance(stored.data, str)
        assert not {"l", "v"} & {*stored.labels, *stored.labels.values()}
        assert b"secret" not in stored.derived["x"]

    run(main())


def test_equal_content_has_different_ciphertexts(tmp_path: Path) -> None:
    async def main() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        seen = set()
        for key in ("a", "b", "a", "a"):
            await store.write(Write((Put(Record(SCOPE, "note", key, text="same", derived={"x": b"1"})),)))
            seen |= {r.data for r in await stored_notes(below)} | {r.meta[HEAD] for r in await stored_notes(below)}
        assert len(seen) == 8

    run(main())


def test_equal_labels_and_keys_have_equal_hashes_only_within_a_subject() -> None:
    async def main() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        scopes = [*map(ScopePath, ("acme/alice", "acme/alice/x", "acme/bob", "acme")), ScopePath()]
        for scope in scopes:
            await store.write(Write((Put(Record(scope, "note", "k", labels={"role": "system"})),)))
        stored = [(record.key, str(record.labels)) for s in scopes for record in await stored_notes(below, s)]
        assert stored[0] == stored[1]
        assert len(stored) == 5
        assert (len({key for key, _ in stored}), len({labels for _, labels in stored})) == (4, 4)
        role = (Condition("labels.role", "eq", "system"),)
        for scope, count in ((ScopePath(), 5), (ScopePath("acme"), 4), (ScopePath("acme/alice"), 2)):
            page = await store.scan(Scan(scope=scope, below=True, where=role))
            assert [record.labels for record in page.items] == [{"role": "system"}] * count

    run(main())


class Watched(Layer):
    """A store that tells what it was asked."""

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        self.scans: list[Scan] = []

    async def scan(self, scan: Scan) -> Page[Record]:
        self.scans.append(scan)
        return await super().scan(scan)


def test_conditions_on_clear_fields_go_to_the_store() -> None:
    async def main() -> None:
        watched = Watched(MemoryStore())
        store = EncryptLayer(watched, KEY)
        puts = [Put(Record(SCOPE, "note", f"k{n}", labels={"n": str(n)}, meta={"n": n}, weight=n)) for n in range(500)]
        await store.write(Write(tuple(puts)))

        async def asked(*where: Condition, **fields: Any) -> tuple[list[str], list[Scan]]:
            watched.scans = []
            page = await store.scan(Scan(scope=SCOPE, kinds=("note",), where=where, **fields))
            return [record.key for record in page.items], watched.scans

        keys, scans = await asked(Condition("labels.n", "in", ("7", "499")), Condition("weight", "gt", 7))
        assert keys == ["k499"]
        assert [test.field.partition(".")[0] for test in scans[0].where] == ["labels", "weight"]
        assert all(value not in str(scans) for value in ("'7'", "'499'", "labels.n"))
        for test in (Condition("labels.n", "eq", "3"), Condition("labels.n", "ne", "3")):
            keys, scans = await asked(test, bodies=False, limit=600)
            assert (len(keys), len(scans), len(scans[0].where)) == (1 if test.op == "eq" else 499, 1, 1)
            assert not scans[0].bodies
        keys, scans = await asked(Condition("meta.n", "ge", 490), limit=3, skip=2)
        assert keys == ["k492", "k493", "k494"]
        assert not any(scan.where for scan in scans)
        keys, scans = await asked(limit=2, skip=3, reverse=True)
        assert keys == ["k496", "k495"]
        assert (scans[0].skip, scans[0].limit) == (3, 2)

    run(main())


# ------------------------------------------------------------ what callers see


def test_recall_finds_the_same_with_encryption(tmp_path: Path) -> None:
    plain, sealed = (f"sqlite:///{tmp_path / name}.db" for name in ("plain", "sealed"))
    with mnemic.open(plain) as memory:
        chat = fill(memory).session("tuesday")
        start = datetime(2025, 1, 1, tzinfo=UTC)
        for n in range(40):
            text = f"On day {n} we spoke of {['tea', 'hats', 'time', 'cards'][n % 4]} again"
            chat.add(mnemic.Message("user", text, timestamp=start + n * timedelta(days=3)))
    # The very same records, since how long ago something was said counts.
    mnemic.copy(plain, sealed, target_key=KEY)
    queries = ("teapot", "what does she drink?", "where is the Hatter", "hats on day 17", "time")
    answers: list[list[list[mnemic.Hit]]] = []
    for url, key in ((plain, None), (sealed, KEY)):
        with mnemic.open(url, encryption_key=key) as memory:
            alice = memory.scope("acme", "alice")
            found = [alice.recall(query, k=10, neighbors=1, uses=False) for query in queries]
            found.append(alice.recall("teapot", metadata={"favourite": "beverage"}, uses=False))
            answers.append(found)
    assert all(answers[0])
    for without, within in zip(*answers, strict=True):
        assert [_hit(hit) for hit in within] == [_hit(hit) for hit in without]
        scores = [hit.score for hit in without]
        assert [hit.score for hit in within] == pytest.approx(scores, abs=1e-3)


def _hit(hit: mnemic.Hit) -> Any:
    return hit.record.ref, hit.record.text, [[r.text for r in side] for side in (hit.before, hit.after)]


def test_another_handle_finds_by_label_what_this_one_wrote(file_url: str) -> None:
    with mnemic.open(file_url, encryption_key=KEY) as one, mnemic.open(file_url, encryption_key=KEY) as two:
        for memory, name in ((one, "Alice"), (two, "Bob")):
            memory.scope("acme").facts.add(name, "knows", "the Hatter")
        for memory in (one, two):
            found = memory.scope("acme").facts.ask(object="the Hatter")
            assert [link.subject for link in found] == ["Alice", "Bob"]


def test_many_threads_may_be_the_first_to_write(file_url: str) -> None:
    with mnemic.open(file_url, encryption_key=KEY) as memory:
        graph = memory.scope("acme").facts
        threads = [threading.Thread(target=graph.add, args=(f"s{n}", "is", "here")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(graph.ask(predicate="is")) == 8


def test_many_first_writers_read_the_metadata_once() -> None:
    class Counted(Layer):
        """A store across a network, that counts how often it is asked."""

        asked = 0

        async def read(self, refs: Any) -> Any:
            self.asked += 1
            await asyncio.sleep(0.005)
            return await super().read(refs)

    async def main() -> None:
        counted = Counted(MemoryStore())
        store = EncryptLayer(counted, KEY)
        writes = [Write((Put(Record(SCOPE, "note", f"k{n}", labels={"n": "1"})),)) for n in range(300)]
        await asyncio.gather(*map(store.write, writes))
        assert counted.asked < 10
        page = await store.scan(Scan(scope=SCOPE, where=(Condition("labels.n", "eq", "1"),)))
        assert len(page.items) == 300

    run(main())


def test_a_record_of_the_largest_size_is_stored() -> None:
    text = "é" * (8 * 1024 * 1024)

    async def main() -> None:
        store = EncryptLayer(MemoryStore(), KEY)
        await store.write(Write((Put(Record(SCOPE, "note", "a", text=text)),)))
        (found,) = await store.read([A])
        assert found is not None
        assert found.text == text

    run(main())


def test_the_metadata_record_is_hidden_and_protected(file_url: str) -> None:
    async def main() -> None:
        store = EncryptLayer(MemoryStore(), KEY)
        await store.write(Write((Put(Record(ScopePath(), "note", "a")),)))
        assert await store.read([METADATA_REF, Ref(ScopePath(), "note", "a"), METADATA_REF]) == [
            None, (await everything(store))[0], None,
        ]  # fmt: skip
        assert [s.kind for s in (await store.streams(StreamScan(scope=ScopePath(), empty=True))).items] == ["note"]
        assert (await store.scan(Scan(scope=ScopePath(), kinds=(METADATA_REF.kind,)))).items == ()
        for op in (
            Put(Record(METADATA_REF.scope, METADATA_REF.kind, "x")),
            Delete(METADATA_REF),
            Derive(METADATA_REF, "x", b""),
        ):
            with pytest.raises(InvalidValueError, match="reserved for encryption"):
                await store.write(Write((op,)))
        await store.write(Write((Put(Record(ScopePath("a"), METADATA_REF.kind, "x")),)))

    run(main())
    with mnemic.open(file_url, encryption_key=KEY) as memory:
        fill(memory)
        memory.scope().erase()
        fill(memory)
        assert memory.scope("acme", "alice").facts.ask("Alice")
    with pytest.raises(DecryptionError):
        mnemic.open(file_url)


def test_the_store_below_does_not_search() -> None:
    class Searching(MemoryStore):
        capabilities = frozenset(Capability)

    store = EncryptLayer(Searching(), KEY)
    assert store.capabilities == frozenset(Capability) - {Capability.NEAREST, Capability.SEARCH}


def test_a_companion_index_is_refused(file_url: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be used with an encrypted store"):
        mnemic.open(file_url, encryption_key=KEY, index="nosuch://index")


# ------------------------------------------------------------ keys


@pytest.mark.parametrize(
    "key",
    [KEY, bytearray(KEY), b64encode(KEY), b64encode(KEY).decode(), [KEY]],
    ids=["bytes", "bytearray", "base64", "text", "list"],
)
def test_the_forms_of_a_key(file_url: str, key: Any) -> None:
    with mnemic.open(file_url, encryption_key=KEY) as memory:
        memory.scope("a").remember("tea", id="k")
    with mnemic.open(file_url, encryption_key=key) as memory:
        assert memory.scope("a").memories.get("k").text == "tea"


def test_a_fernet_key_is_accepted(file_url: str) -> None:
    key = Fernet.generate_key()
    with mnemic.open(file_url, encryption_key=key) as memory:
        memory.scope("a").remember("tea", id="k")
    for same in (key.decode(), b64decode(key, altchars=b"-_")):
        with mnemic.open(file_url, encryption_key=same) as memory:
            assert memory.scope("a").memories.get("k").text == "tea"


@pytest.mark.parametrize(
    "key",
    [b"", "", b"x" * 31, b"x" * 33, "x" * 32, "x" * 43, "?" * 44, "é" * 44, 7, [], [KEY, "secret"], [None]],
    ids=repr,
)
def test_an_invalid_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidValueError, match="key") as caught:
        mnemic.open("memory://", encryption_key=key)
    assert "secret" not in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_a_wrong_key_raises_on_opening(file_url: str) -> None:
    with mnemic.open(file_url, encryption_key=OLD) as memory:
        fill(memory)
    with pytest.raises(DecryptionError, match=r"memory\.db.* is encrypted with the key"):
        mnemic.open(file_url, encryption_key=NEW)
    with pytest.raises(DecryptionError, match="is encrypted: open it with encryption_key"):
        mnemic.open(file_url)
    with mnemic.open(file_url, encryption_key=[NEW, OLD]) as memory:
        assert memory.scope("acme", "alice").recall("teapot")


def test_a_key_is_refused_for_a_store_in_clear(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        fill(memory)
    with pytest.raises(DecryptionError, match="not encrypted"):
        mnemic.open(file_url, encryption_key=KEY)

    async def main() -> None:
        below = MemoryStore()
        await below.write(Write((Put(Record(SCOPE, "note", "a", text="plain")),)))
        store = EncryptLayer(below, KEY)
        with pytest.raises(DecryptionError, match="not encrypted"):
            await store.write(Write((Put(Record(SCOPE, "note", "b")),)))
        with pytest.raises(DecryptionError, match="no longer the record of its encryption"):
            await store.read([A])

    run(main())


def test_a_missing_package_raises_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic import checks

    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mnemic\[encryption\]'"):
        mnemic.open("memory://", encryption_key=KEY)


def test_the_package_is_loaded_only_where_it_is_used() -> None:
    program = "import sys, mnemic; mnemic.open('memory://').close(); print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ------------------------------------------------------------ tampering

RECORD = Record(
    SCOPE, "note", "a", text="first", data={"x": 1}, meta={"m": 1}, labels={"l": "1"}, importance=1.0,
    weight=3, valid_from=datetime(2020, 1, 1, tzinfo=UTC), derived={"x": b"one", "y": b"two"},
)  # fmt: skip


def _flipped(text: str, at: int) -> str:
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


TAMPERED: dict[str, Callable[[Record, Record], Record]] = {
    "body": lambda one, _: replace(one, data=_flipped(one.data, 40)),
    "end of body": lambda one, _: replace(one, data=_flipped(one.data, len(one.data) - 6)),
    "head": lambda one, _: replace(one, meta={HEAD: _flipped(one.meta[HEAD], 40)}),
    "key's name": lambda one, _: replace(one, data=_flipped(one.data, 4)),
    "nonce": lambda one, _: replace(one, data=_flipped(one.data, 12)),
    "cut": lambda one, _: replace(one, data=one.data[:-8]),
    "gone": lambda one, _: replace(one, data=None),
    "emptied": lambda one, _: replace(one, meta={}),
    "plain": lambda one, _: replace(one, data={"x": 2}, meta={"m": 1}),
    "body of another": lambda one, other: replace(one, data=other.data),
    "head of another": lambda one, other: replace(one, meta=other.meta),
    "all of another": lambda one, other: replace(one, data=other.data, meta=other.meta),
    "as head": lambda one, _: replace(one, meta={HEAD: one.data}),
    "importance": lambda one, _: replace(one, importance=9.0),
    "weight": lambda one, _: replace(one, weight=4),
    "pin": lambda one, _: replace(one, pinned=True),
    "validity": lambda one, _: replace(one, valid_to=datetime(2021, 1, 1, tzinfo=UTC)),
    "expiry": lambda one, _: replace(one, expires=datetime(2921, 1, 1, tzinfo=UTC)),
    "other scope": lambda one, _: replace(one, scope=ScopePath("acme/bob")),
    "other kind": lambda one, _: replace(one, kind="fact"),
    "other key": lambda one, _: replace(one, key="c"),
}
TAMPERED_BESIDE: dict[str, Callable[[Record, Record], Record]] = {
    "derived of another": lambda one, other: replace(one, derived={**one.derived, "x": other.derived["x"]}),
    "derived by another name": lambda one, _: replace(one, derived={**one.derived, "x": one.derived["y"]}),
    "derived cut": lambda one, _: replace(one, derived={"x": one.derived["x"][:10]}),
    "derived that lasts": lambda one, _: replace(one, derived={"x": b"\x02" + one.derived["x"][1:]}),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_modified_or_moved_ciphertext_raises(name: str) -> None:
    async def main() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        await store.write(Write((Put(RECORD), Put(replace(RECORD, key="b", text="second")))))
        one, other = (await below.scan(Scan(scope=SCOPE, derived=("x", "y")))).items
        changed = TAMPERED[name](one, other)
        await below.write(Write((Put(changed),)))
        with pytest.raises(DecryptionError, match=f"{changed.kind} '{changed.key}' in scope"):
            await everything(store, "x", "y")

    run(main())


@pytest.mark.parametrize("name", TAMPERED_BESIDE)
def test_a_modified_derived_value_is_recomputed(name: str) -> None:
    async def main() -> None:
        below = MemoryStore()
        store = EncryptLayer(below, KEY)
        await store.write(Write((Put(RECORD), Put(replace(RECORD, key="b", text="second")))))
        one, other = (await below.scan(Scan(scope=SCOPE, derived=("x", "y")))).items
        changed = TAMPERED_BESIDE[name](one, other)
        await below.write(Write((Put(changed),)))
        told = {r.key: r for r in await everything(store, "x", "y")}
        assert told["a"].text == "first"
        assert "x" not in told["a"].derived
        assert told["b"].derived == {"x": b"one", "y": b"two"}

    run(main())


# ------------------------------------------------------------ copying


@pytest.fixture
def filled(file_url: str) -> str:
    with mnemic.open(file_url, encryption_key=OLD) as memory:
        alice = fill(memory)
        alice.used(*alice.recall("velvet teapot"))
        chat = alice.session("long")
        chat.add_many([mnemic.Message("user", f"teapot number {n}") for n in range(450)])
        assert chat.recent(1)
        memory.warm()
    return file_url


def test_a_store_is_encrypted_and_decrypted_by_copying(tmp_path: Path) -> None:
    plain, sealed, again = (f"sqlite:///{tmp_path / name}.db" for name in ("plain", "sealed", "again"))
    with mnemic.open(plain) as memory:
        fill(memory)
        memory.warm()
    first = mnemic.copy(plain, sealed, target_key=KEY)
    second = mnemic.copy(sealed, again, source_key=KEY)
    assert first.digest == second.digest
    with mnemic.open(sealed, encryption_key=KEY) as memory:
        assert memory.scope("acme", "alice").recall("teapot")
        assert memory.scope("acme", "alice").facts.ask("Alice")
    with mnemic.open(again) as memory:
        assert memory.scope("acme", "alice").facts.ask("Alice")


def test_an_encrypted_store_is_copied_without_its_key(filled: str, tmp_path: Path) -> None:
    for scope in (None, "acme"):
        target = f"sqlite:///{tmp_path / str(scope)}.db"
        mnemic.copy(filled, target, scope=scope)
        assert mnemic.copy(filled, target, scope=scope).written == 0
        with mnemic.open(target, encryption_key=OLD) as memory:
            assert memory.scope("acme", "alice").facts.ask("Alice")
            assert memory.scope("acme", "alice").recall("teapot")


def test_encrypted_and_plain_records_are_never_mixed(filled: str, tmp_path: Path) -> None:
    plain, other = (f"sqlite:///{tmp_path / name}.db" for name in ("plain", "other"))
    for url, key in ((plain, None), (other, NEW)):
        with mnemic.open(url, encryption_key=key) as memory:
            memory.scope("other").remember("tea")
    for source, target in ((plain, filled), (filled, plain), (filled, other)):
        with pytest.raises(DecryptionError):
            mnemic.copy(source, target, merge=True)
    with pytest.raises(DecryptionError):
        mnemic.copy(filled, other, target_key=NEW, merge=True)
    with pytest.raises(DecryptionError):
        mnemic.copy(filled, other, source_key=NEW, target_key=NEW, merge=True)
    assert mnemic.copy(filled, other, source_key=OLD, target_key=NEW, merge=True).written


def test_keys_for_copies_come_from_the_environment(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW", NEW.decode())
    monkeypatch.setenv("OLD", Fernet.generate_key().decode())
    target = f"sqlite:///{tmp_path / 'target.db'}"
    command = ["copy", filled, target, "--source-key-env", "OLD", "--target-key-env", "NEW"]
    assert CliRunner().invoke(main, command).exit_code == 1
    monkeypatch.setenv("OLD", b64encode(OLD).decode())
    assert CliRunner().invoke(main, command).exit_code == 0
    with mnemic.open(target, encryption_key=NEW) as memory:
        assert memory.scope("acme", "alice").recall("teapot")


def test_two_processes_agree_on_the_labels_of_an_empty_store(tmp_path: Path) -> None:
    program = (
        "import sys, mnemic\n"
        "with mnemic.open(sys.argv[1], encryption_key=bytes(range(32)), embedder=None) as memory:\n"
        "    graph = memory.scope('acme').facts\n"
        "    for n in range(20): graph.add(f'{sys.argv[2]}-{n}', 'knows', 'Hatter')\n"
    )
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    running = [subprocess.Popen([sys.executable, "-c", program, url, str(n)], env=os.environ) for n in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    with mnemic.open(url, encryption_key=KEY) as memory:
        assert len(memory.scope("acme").facts.ask(object="Hatter")) == 60


# ------------------------------------------------------------ files


def test_a_saved_session_of_an_encrypted_memory_is_encrypted(tmp_path: Path) -> None:
    saved, plain = tmp_path / "saved.json", tmp_path / "plain.json"
    with mnemic.open("memory://", encryption_key=KEY) as memory:
        chat = memory.scope("acme", "alice").session("monday")
        chat.add("user", "The teapot is velvet")
        assert (chat.save(saved), chat.save(plain, plain=True)) == (1, 1)
    assert b"velvet" in plain.read_bytes()
    assert b"velvet" not in saved.read_bytes()
    assert saved.stat().st_mode & 0o777 == 0o600
    for options in ({"encryption_key": KEY}, {"encryption_key": [NEW, KEY]}):
        with mnemic.open("memory://", **options) as memory:
            chat = memory.scope("acme").session("again")
            assert (chat.load(saved), chat.load(plain)) == (1, 1)
            assert chat.messages()[0].text == "The teapot is velvet"
    wrong: list[tuple[Any, str]] = [(None, "is encrypted: open the memory with"), (NEW, "which was not given")]
    for key, said in wrong:
        with mnemic.open("memory://", encryption_key=key) as memory:
            chat = memory.scope("acme").session("again")
            chat.add("user", "here")
            with pytest.raises(DecryptionError, match=said):
                chat.load(saved)
            assert [message.text for message in chat.messages()] == ["here"]
            assert chat.load(plain) == 1
    content = saved.read_bytes()
    for changed in (content[:-20] + b"AAAA" + content[-16:], content[:-1], content.replace(b'"keys"', b'"kays"')):
        saved.write_bytes(changed)
        with mnemic.open("memory://", encryption_key=KEY) as memory, pytest.raises(DecryptionError):
            memory.scope("acme").session("again").load(saved)
