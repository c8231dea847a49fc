"""The hash chain of the audit log under attack: whatever is removed, changed, reordered or inserted is found."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import mnemic
from layered import KEY, with_audit
from mnemic import SigningKey
from mnemic.backends.memory import MemoryStore
from mnemic.checks import from_microseconds
from mnemic.errors import (
    ConflictError,
    InvalidValueError,
    SettingsChangedError,
    SignatureError,
    StoreBusyError,
    StoreUnavailableError,
)
from mnemic.layers import audit_chain
from mnemic.layers.audit_entry import SIGNED, ChainKey, Head, link_of
from mnemic.layers.audit_names import drop_names
from mnemic.layers.audit_verify import AuditVerification, AuditVerifier
from mnemic.layers.layer import Layer
from mnemic.records import AUDIT_KIND, CHAINS_KIND, Record, Ref, ScopePath
from mnemic.store.query import Delete, Outcome, Purge, Put, Scan, Write, place_of
from servers.stores import STORES

OTHER = bytes(range(1, 33))


def fill(memory: mnemic.Memory) -> None:
    for name in ("alice", "bob"):
        with memory.acting(actor=f"{name}'s app"):
            for n in range(5):
                memory.scope("acme", name).notes.write(f"note {n}", n)


def found(verification: AuditVerification) -> list[tuple[str, int | None]]:
    return [(problem.scope.path, problem.number) for problem in verification.problems]


@contextmanager
def rows(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def stream_id(connection: sqlite3.Connection, scope: str, kind: str = AUDIT_KIND) -> int:
    (found,) = connection.execute(
        "SELECT id FROM mnemic_streams WHERE scope = ? AND kind = ?", (scope, kind)
    ).fetchone()
    return int(found)


@pytest.fixture(params=["same", "separate"])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[..., mnemic.Memory]]:
    """The file of an audit log, and how its memory is opened."""
    data, trail = tmp_path / "data.db", tmp_path / "trail.db"
    audit: Any = True if request.param == "same" else f"sqlite:///{trail}"

    def opened(**options: Any) -> mnemic.Memory:
        return mnemic.open(f"sqlite:///{data}", audit=audit, signing_key=KEY, embedder=None, **options)

    with opened() as memory:
        fill(memory)
        assert memory.audit_verify().intact
    return (data if request.param == "same" else trail), opened


def change_field(connection: sqlite3.Connection, scope: str, number: int, change: Callable[[Any], object]) -> None:
    where = (stream_id(connection, scope), number)
    (text,) = connection.execute("SELECT data FROM mnemic_records WHERE stream_id = ? AND seq = ?", where).fetchone()
    data = json.loads(text)
    change(data)
    connection.execute("UPDATE mnemic_records SET data = ? WHERE stream_id = ? AND seq = ?", (json.dumps(data), *where))


def delete(connection: sqlite3.Connection, scope: str, numbers: str, kind: str = AUDIT_KIND) -> None:
    connection.execute(
        f"DELETE FROM mnemic_records WHERE stream_id = ? AND seq {numbers}", (stream_id(connection, scope, kind),)
    )


def delete_log(connection: sqlite3.Connection, scope: str, kind: str) -> None:
    delete(connection, scope, "> 0", kind)
    connection.execute("DELETE FROM mnemic_streams WHERE id = ?", (stream_id(connection, scope, kind),))


ATTACKS: dict[str, tuple[Callable[[sqlite3.Connection], object], list[tuple[str, int | None]]]] = {
    "remove one": (lambda db: delete(db, "acme/bob", "= 3"), [("acme/bob", 3)]),
    "remove the first": (lambda db: delete(db, "acme/bob", "= 1"), [("acme/bob", 1)]),
    "remove the last": (lambda db: delete(db, "acme/bob", "= 5"), [("acme/bob", 5)]),
    "remove several": (lambda db: delete(db, "acme/bob", "IN (2, 3)"), [("acme/bob", 2)]),
    "change a field": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(operation="delete")),
        [("acme/alice", 2)],
    ),
    "change a name": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(actor="mallory")),
        [("acme/alice", 2)],
    ),
    "add a field": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(unsure=True)),
        [("acme/alice", 2)],
    ),
    "remove the names": (
        lambda db: change_field(db, "acme/alice", 4, lambda data: [data.pop(n) for n in ("key", "actor", "salt")]),
        [("acme/alice", 4)],
    ),
    "change a time": (
        lambda db: db.execute(
            "UPDATE mnemic_records SET created = created + 1 WHERE stream_id = ? AND seq = 2",
            (stream_id(db, "acme/alice"),),
        ),
        [("acme/alice", 2)],
    ),
    "reorder": (
        lambda db: db.executescript(
            "UPDATE mnemic_records SET seq = -seq WHERE stream_id = {0} AND seq IN (2, 3);"
            "UPDATE mnemic_records SET seq = 5 + seq WHERE stream_id = {0} AND seq < 0;".format(
                stream_id(db, "acme/alice")
            )
        ),
        [("acme/alice", 2), ("acme/alice", 2)],
    ),
    "insert": (
        lambda db: db.execute(
            "UPDATE mnemic_records SET stream_id = ?, seq = 6, key = '0000000006' WHERE stream_id = ? AND seq = 5",
            (stream_id(db, "acme/alice"), stream_id(db, "acme/bob")),
        ),
        [("acme/alice", 6), ("acme/alice", 6), ("acme/bob", 5)],
    ),
    "swap two logs": (
        lambda db: db.executescript(
            "UPDATE mnemic_streams SET scope = 'x' WHERE scope = 'acme/alice' AND kind = 'audit';"
            "UPDATE mnemic_streams SET scope = 'acme/alice' WHERE scope = 'acme/bob' AND kind = 'audit';"
            "UPDATE mnemic_streams SET scope = 'acme/bob' WHERE scope = 'x' AND kind = 'audit';"
        ),
        [(scope, n) for scope in ("acme/alice", "acme/bob") for n in (1, 2, 3, 4, 5, None)],
    ),
    "remove a whole log": (lambda db: delete_log(db, "acme/bob", AUDIT_KIND), [("acme/bob", 1)]),
    "remove the register": (lambda db: delete_log(db, "", CHAINS_KIND), [("acme/alice", None), ("acme/bob", None)]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_the_database_is_found(attack: str, attacked: tuple[Path, Callable[..., mnemic.Memory]]) -> None:
    path, opened = attacked
    change, expected = ATTACKS[attack]
    with rows(path) as connection:
        change(connection)
    with opened() as memory:
        assert found(memory.audit_verify()) == expected


# ------------------------------------------------------------ cut tails, checkpoints, keys


def cut_tail(connection: sqlite3.Connection, scope: str, last: int, kind: str = AUDIT_KIND) -> None:
    """Remove the entries after one, and put the head back, as an attacker does who knows the format."""
    id_ = stream_id(connection, scope, kind)
    connection.execute("DELETE FROM mnemic_records WHERE stream_id = ? AND seq > ?", (id_, last))
    (data,) = connection.execute(
        "SELECT data FROM mnemic_records WHERE stream_id = ? AND seq = ?", (id_, last)
    ).fetchone()
    (settings,) = connection.execute("SELECT settings FROM mnemic_streams WHERE id = ?", (id_,)).fetchone()
    _, chain, _, begun = settings.split(" ")
    head = f"{last} {chain} {json.loads(data)['link']} {begun}"
    connection.execute("UPDATE mnemic_streams SET settings = ?, last_seq = ? WHERE id = ?", (head, last, id_))


def test_a_cut_tail_is_found_with_a_checkpoint(attacked: tuple[Path, Callable[..., mnemic.Memory]]) -> None:
    path, opened = attacked
    with opened() as memory:
        early = memory.audit_checkpoint()
        memory.scope("acme", "bob").notes.write("later", 1)
        memory.scope("acme", "bob").notes.write("even later", 1)
        late = json.loads(json.dumps(memory.audit_checkpoint()))
        memory.scope("acme", "bob").notes.write("latest", 1)
    with rows(path) as connection:
        cut_tail(connection, "acme/bob", 7)
    with opened() as memory:
        assert memory.audit_verify(checkpoint=late).intact, "what came after the checkpoint cannot be known"
    with rows(path) as connection:
        cut_tail(connection, "acme/bob", 6)
    with opened() as memory:
        assert found(memory.audit_verify()) == [("acme/bob", 7)], "the register has the checkpoint"
    with rows(path) as connection:
        (noted,) = connection.execute(
            "SELECT max(seq) FROM mnemic_records WHERE stream_id = ?", (stream_id(connection, "", CHAINS_KIND),)
        ).fetchone()
        cut_tail(connection, "", noted - 1, CHAINS_KIND)
    with opened() as memory:
        assert memory.audit_verify().intact, "the register is cut as well"
        assert memory.audit_verify(checkpoint=early).intact
        verified = memory.audit_verify(checkpoint=late)
        assert found(verified) == [("", noted), ("acme/bob", 7)]
        assert "of the register of chains is missing" in str(verified.problems[0].message)
        with pytest.raises(SignatureError):
            memory.audit_verify(checkpoint=late | {"heads": []})
        with pytest.raises(InvalidValueError, match="not a checkpoint"):
            memory.audit_verify(checkpoint={"format": "another"})
        with pytest.raises(SignatureError, match="is not signed"):
            memory.audit_verify(checkpoint=unsigned(late) | {"heads": [], "register": None})
    with rows(path) as connection:
        connection.executescript("DELETE FROM mnemic_records; DELETE FROM mnemic_streams;")
    with opened() as memory:
        assert memory.audit_verify().intact, "nothing is left that could tell"
        assert len(memory.audit_verify(checkpoint=late).problems) == 3


def unsigned(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in checkpoint.items() if name != "signature"}


def test_an_unsigned_checkpoint_is_noted_where_the_key_is_in_the_store() -> None:
    with mnemic.open("memory://", audit=True, embedder=None) as memory:
        fill(memory)
        checkpoint = unsigned(memory.audit_checkpoint())
        verified = memory.audit_verify(checkpoint=checkpoint)
        assert verified.intact
        assert "the checkpoint is not signed" in verified.notes[0].message
        for missing in ("heads", "register", "time"):
            with pytest.raises(InvalidValueError, match=f"not a checkpoint.*{missing}"):
                memory.audit_verify(checkpoint={name: checkpoint[name] for name in checkpoint if name != missing})


def rewrite(path: Path, secret: SigningKey, *, pretending: bool) -> None:
    """Remove an entry, and compute all links again with another key, which may pretend to be the real one."""
    key = ChainKey(secret)
    with rows(path) as connection:
        id_ = stream_id(connection, "acme/bob")
        connection.execute("DELETE FROM mnemic_records WHERE stream_id = ? AND seq = 2", (id_,))
        (settings,) = connection.execute("SELECT settings FROM mnemic_streams WHERE id = ?", (id_,)).fetchone()
        head = Head(0, settings.split(" ")[1], "", 0)
        select = "SELECT seq, created, data FROM mnemic_records WHERE stream_id = ? ORDER BY seq"
        for seq, created, text in connection.execute(select, (id_,)).fetchall():
            data = json.loads(text)
            number = head.number + 1
            data[SIGNED] = data[SIGNED] if pretending else key.id
            link = link_of(key.secret, head, number, from_microseconds(created), data)
            head = Head(number, head.chain, link, 1)
            connection.execute(
                "UPDATE mnemic_records SET seq = ?, key = ?, data = ? WHERE stream_id = ? AND seq = ?",
                (number, f"{number:010d}", json.dumps(data | {"link": link}), id_, seq),
            )
        connection.execute("UPDATE mnemic_streams SET settings = ? WHERE id = ?", (head.text, id_))


@pytest.mark.parametrize("pretending", [False, True])
def test_a_chain_that_is_computed_again_is_found_if_its_key_is_not_in_the_store(
    attacked: tuple[Path, Callable[..., mnemic.Memory]], pretending: bool
) -> None:
    path, opened = attacked
    rewrite(path, SigningKey(OTHER), pretending=pretending)
    with opened() as memory:
        problems = memory.audit_verify().problems
        assert {problem.number for problem in problems} == ({1, 2, 3, 4} if pretending else {1})
        assert ("which is not known" in problems[0].message) == (not pretending)


def test_a_chain_cannot_be_verified_with_another_key_and_can_with_several(
    attacked: tuple[Path, Callable[..., mnemic.Memory]], tmp_path: Path
) -> None:
    _, opened = attacked
    with opened() as memory:
        url = memory.url
        audit: Any = f"sqlite:///{tmp_path / 'trail.db'}" if (tmp_path / "trail.db").exists() else True
    with mnemic.open(url, audit=audit, signing_key=OTHER, embedder=None) as memory:
        assert not memory.audit_verify().intact
    with mnemic.open(url, audit=audit, signing_key=[OTHER, KEY], embedder=None) as memory:
        memory.scope("acme", "bob").notes.write("with the new key", 1)
        verified = memory.audit_verify()
        assert verified.intact
        assert verified.keyed


def test_an_encrypted_log_is_verified_and_survives_rotation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data.db'}"
    with mnemic.open(url, audit=True, encryption_key=KEY, embedder=None) as memory:
        fill(memory)
        assert memory.audit_verify().intact
    with mnemic.open(url, audit=True, encryption_key=[OTHER, KEY], embedder=None) as memory:
        memory.rotate()
    with mnemic.open(url, audit=True, encryption_key=OTHER, embedder=None) as memory:
        fill(memory)
        assert memory.audit_verify().intact
    with rows(tmp_path / "data.db") as connection:
        delete(connection, "acme/bob", "= 3")
    with mnemic.open(url, audit=True, encryption_key=OTHER, embedder=None) as memory:
        assert found(memory.audit_verify()) == [("acme/bob", 3)]


def test_a_copy_of_a_store_verifies(tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    with mnemic.open(source, audit=True, embedder=None) as memory:
        fill(memory)
    mnemic.copy(source, target)
    with mnemic.open(target, audit=True, embedder=None) as memory:
        assert memory.audit_verify().intact
        fill(memory)
        assert memory.audit_verify().entries == 20
        assert memory.audit_verify().intact


def test_long_chains_have_checkpoints_in_the_register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_chain, "CHECKPOINT_EVERY", 4)
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with mnemic.open(url, audit=True, embedder=None) as memory:
        fill(memory)
    with rows(tmp_path / "a.db") as connection:
        cut_tail(connection, "acme/bob", 3)
    with mnemic.open(url, audit=True, embedder=None) as memory:
        assert found(memory.audit_verify()) == [("acme/bob", 4)]


@pytest.mark.parametrize("name", ["memory", "postgresql", "valkey", "dynamodb", "s3"])
def test_concurrent_writers_and_attacks_on_every_back_end(name: str, tmp_path: Path) -> None:
    """Two memories write to one scope; then records are changed through the back-end's own interface."""

    async def main(url: str) -> None:
        scope = ScopePath("acme/alice")
        options: dict[str, Any] = {"audit": True, "signing_key": KEY, "embedder": None}
        async with mnemic.open_async(url, **options) as one, mnemic.open_async(url, **options) as two:
            # Stores in memory are not shared between openings.
            both = (one, one if name == "memory" else two)
            writes = [both[n % 2].scope("acme", "alice").notes.write(f"{n}", n) for n in range(12)]
            await asyncio.gather(*writes)
            below = one._backend
            verified = await one.audit_verify()
            assert (verified.problems, verified.notes, verified.entries) == ([], [], 12)
            keys = [record.key for record in (await below.scan(Scan(scope=scope, kinds=("note",)))).items]
            trail = sorted(await one.audit_trail(scope), key=lambda entry: entry.number)
            assert [entry.key for entry in trail] == keys, "entries are in the order of the changes"
            (entry,) = await below.read([Ref(scope, AUDIT_KIND, "0000000003")])
            assert entry is not None
            assert isinstance(entry.data, dict)
            await below.write(Write((Put(replace(entry, data=entry.data | {"kind": "message"})),)))
            assert found(await one.audit_verify()) == [("acme/alice", 3)]
            await below.write(Write((Put(entry),)))
            assert (await one.audit_verify()).intact
            await below.write(Write((Delete(entry.ref),)))
            assert found(await one.audit_verify()) == [("acme/alice", 3)]
            await below.write(Write((Purge(scope, AUDIT_KIND, drop=True),)))
            assert found(await one.audit_verify()) == [("acme/alice", 1)]

    with STORES[name].empty(tmp_path) as url:
        asyncio.run(main(url))


# ------------------------------------------------------------ concurrent writers


def test_concurrent_tasks_keep_one_chain_and_share_commits() -> None:
    async def main() -> None:
        class Counting(Layer):
            writes = 0

            async def write(self, write: Write) -> list[Outcome]:
                self.writes += 1
                await asyncio.sleep(0)
                return await super().write(write)

        store = Counting(MemoryStore())
        layer = with_audit(store)
        scope = ScopePath("acme")
        await layer.write(Write((Put(Record(scope, "note", "first")),)))
        store.writes = 0
        await asyncio.gather(*(layer.write(Write((Put(Record(scope, "note", f"{n}")),))) for n in range(100)))
        assert store.writes == 100, "each continues the head of the one before, without waiting for it"
        trail = await layer.trail(scope)
        assert [entry.number for entry in trail] == list(range(1, 102))
        records = (await layer.scan(Scan(scope=scope))).items
        assert [entry.key for entry in trail] == [record.key for record in records], "in the order of the changes"
        assert (await AuditVerifier(layer.chain, ScopePath()).run()).intact

    asyncio.run(main())


def test_a_failed_write_does_not_fail_those_that_continued_it() -> None:
    async def main() -> None:
        layer = with_audit(MemoryStore())
        scope = ScopePath("acme")
        await layer.write(Write((Put(Record(scope, "note", "a")),)))
        writes = [Write((Put(Record(scope, "note", f"{n}"), 7 if n % 3 == 0 else None),)) for n in range(30)]
        done = await asyncio.gather(*map(layer.write, writes), return_exceptions=True)
        assert [isinstance(one, ConflictError) for one in done] == [n % 3 == 0 for n in range(30)]
        assert [e.key for e in await layer.trail(scope)] == ["a", *(f"{n}" for n in range(30) if n % 3)]
        assert (await AuditVerifier(layer.chain, ScopePath()).run()).intact

    asyncio.run(main())


def test_a_writer_that_is_always_overtaken_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overtaken(Layer):
        """A store in which the head of a log has always just changed."""

        async def write(self, write: Write) -> list[Outcome]:
            if any(isinstance(op, Put) and op.record.key == "b" for op in write.ops):
                raise SettingsChangedError("changed", settings="7 chain link 1")
            return await super().write(write)

    async def main() -> None:
        layer = with_audit(Overtaken(MemoryStore()))
        scope = ScopePath("acme")
        await layer.write(Write((Put(Record(scope, "note", "a")),)))
        with pytest.raises(StoreBusyError, match="audit log: gave up after 4 attempts"):
            await layer.write(Write((Put(Record(scope, "note", "b")),)))

    monkeypatch.setattr(audit_chain, "ATTEMPTS", 4)
    asyncio.run(main())


def test_two_layers_on_one_store_continue_one_chain() -> None:
    async def main() -> None:
        store = MemoryStore()
        layers = [with_audit(store) for _ in range(3)]
        scope = ScopePath("acme")
        writes = [layers[n % 3].write(Write((Put(Record(scope, "note", f"{n}")),))) for n in range(60)]
        await asyncio.gather(*writes)
        assert len(await layers[0].trail(scope)) == 60
        verified = await AuditVerifier(layers[0].chain, ScopePath()).run()
        assert (verified.problems, verified.notes, verified.entries) == ([], [], 60)

    asyncio.run(main())


def test_threads_keep_one_chain(file_url: str) -> None:
    with mnemic.open(file_url, audit=True, embedder=None) as memory:

        def work(name: int) -> None:
            for n in range(15):
                memory.scope("acme").session("s").add("user", f"{name} {n}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        contents = [message.id for message in memory.scope("acme").session("s").messages()]
        assert [entry.key for entry in sorted(memory.audit_trail(), key=lambda e: e.number)] == contents
        assert memory.audit_verify().intact


WRITER = """
import sys, mnemic
with mnemic.open(sys.argv[1], audit=True, embedder=None) as memory:
    chat = memory.scope("acme").session("s")
    for n in range(int(sys.argv[2])):
        with memory.acting(actor=sys.argv[3]):
            chat.add("user", f"{sys.argv[3]} {n}")
        memory.scope("acme", f"{sys.argv[3]}-{n % 7}").notes.write("note", n)
        print(n, flush=True)
"""


def started(url: str, count: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_keep_one_chain_and_one_that_is_killed_leaves_an_intact_one(file_url: str) -> None:
    killed = started(file_url, 100_000, "killed")
    writers = [started(file_url, 15, f"w{n}") for n in range(2)]
    assert killed.stdout is not None
    for _ in range(10):
        last = int(killed.stdout.readline())
    killed.kill()
    for writer in writers:
        _, error = writer.communicate(timeout=240)
        assert writer.returncode == 0, error
    acknowledged = last + killed.communicate(timeout=240)[0].count("\n")
    with mnemic.open(file_url, audit=True, embedder=None) as memory:
        verified = memory.audit_verify()
        assert verified.problems == []
        told = sorted(memory.audit_trail("acme/s"), key=lambda entry: entry.number)
        kept = [message.id for message in memory.scope("acme").session("s").messages()]
        assert [entry.key for entry in told] == kept, "every change has its entry, in the order of the changes"
        assert len([entry for entry in told if entry.actor == "w1"]) == 15
        assert len([entry for entry in told if entry.actor == "killed"]) >= acknowledged
        memory.scope("acme", "killed-0").notes.write("note", "after")
        assert memory.audit_verify().problems == []


def test_a_chain_whose_writer_died_before_the_register_is_a_note_and_healed() -> None:
    class Dying(Layer):
        """Loses the process before the register is written."""

        dead = False

        async def write(self, write: Write) -> list[Outcome]:
            if self.dead and any(place_of(op)[1] == CHAINS_KIND for op in write.ops):
                raise StoreUnavailableError("gone")
            return await super().write(write)

    async def main() -> None:
        store = Dying(MemoryStore())
        layer = with_audit(store)
        await layer.write(Write((Put(Record(ScopePath("first"), "note", "a")),)))
        store.dead = True
        second = Put(Record(ScopePath("second"), "note", "a"))
        await layer.write(Write((second, Put(Record(ScopePath("second"), "note", "b")))))
        verified = await AuditVerifier(layer.chain, ScopePath()).run()
        assert (verified.problems, len(verified.notes)) == ([], 1)
        with pytest.raises(StoreUnavailableError):
            await layer.write(Write((second,)))
        store.dead = False
        await with_audit(store).write(Write((second,)))
        verified = await AuditVerifier(layer.chain, ScopePath()).run()
        assert (verified.problems, verified.notes, verified.entries) == ([], [], 4)

    asyncio.run(main())


def test_damaged_entries_are_problems_and_not_crashes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with mnemic.open(url, audit=True, embedder=None) as memory:
        fill(memory)
    for kind, scope in ((CHAINS_KIND, ""), (AUDIT_KIND, "acme/alice")):
        for value in ("[]", "7", "{}", '{"link": 3, "heads": 5}', '{"link": "x", "heads": 5, "operation": []}', "null"):
            with rows(tmp_path / "a.db") as connection:
                connection.execute("BEGIN")
                connection.execute(
                    "UPDATE mnemic_records SET data = ? WHERE stream_id = ? AND seq = 2",
                    (value, stream_id(connection, scope, kind)),
                )
                connection.execute("COMMIT")
            with mnemic.open(url, audit=True, embedder=None) as memory:
                assert not memory.audit_verify().intact
                assert len(memory.audit_trail()) == 9 + (kind == CHAINS_KIND)


# ------------------------------------------------------------ damaged entries


def damage(path: Path, change: str) -> None:
    with rows(path) as connection:
        id_ = stream_id(connection, "acme/alice")
        connection.execute(f"UPDATE mnemic_records SET {change} WHERE stream_id = ? AND seq = 3", (id_,))


@pytest.mark.parametrize("change", ["data = '{'", "data = '[]'", "data = '{}'", "meta = '7'", "labels = '[1]'"])
def test_a_damaged_entry_does_not_hide_the_others(
    change: str, attacked: tuple[Path, Callable[..., mnemic.Memory]]
) -> None:
    path, opened = attacked
    damage(path, change)
    with opened() as memory:
        verified = memory.audit_verify()
        assert ("acme/alice", 3) in found(verified)
        assert {problem.scope.path for problem in verified.problems} == {"acme/alice"}
        assert verified.entries == 10
        assert {entry.number for entry in memory.audit_trail("acme/alice")} >= {1, 2, 4, 5}
        assert len(memory.audit_trail("acme/bob", actor="bob's app")) == 5
        assert {entry.number for entry in memory.audit_trail(actor="alice's app")} >= {1, 2, 4, 5}
        assert {entry.number for entry in memory.audit_page("acme", limit=20).entries} == {1, 2, 3, 4, 5}
        memory.scope("acme", "alice").notes.write("the log goes on", 1)
        assert memory.audit_trail("acme/alice")[-1].number == 6


@pytest.mark.parametrize("erased", ["alice", "bob"])
def test_an_erasure_names_the_entries_that_it_cannot_read(
    erased: str, attacked: tuple[Path, Callable[..., mnemic.Memory]]
) -> None:
    path, opened = attacked
    damage(path, "data = '{'")
    with opened() as memory:
        with memory.acting(actor="officer", address="10.0.0.9"):
            certificate = memory.scope("acme", erased).erase(names=["alice's app"])
        assert [one.what for one in certificate.unreached if "audit log" in one.what] == [
            "entry 3 of acme/alice in the audit log, which cannot be read"
        ]
        entries = memory.audit_trail()
        assert "alice's app" not in {entry.actor for entry in entries}
        assert ("officer", "10.0.0.9") in {(entry.actor, entry.address) for entry in entries if entry.kind == "audit"}
        assert found(memory.audit_verify()) == [("acme/alice", 3)]


@pytest.mark.parametrize("settings", [None, "no head"])
def test_a_log_without_a_head_loses_its_names_in_its_place(
    settings: str | None, attacked: tuple[Path, Callable[..., mnemic.Memory]]
) -> None:
    path, opened = attacked
    with opened() as memory:
        memory.scope("acme", "alice").erase(keep_audit_names=True)
        entries = len(memory.audit_trail("acme/alice"))
    with rows(path) as connection:
        where = (settings, stream_id(connection, "acme/alice"))
        connection.execute("UPDATE mnemic_streams SET settings = ? WHERE id = ?", where)
    with opened() as memory:
        store, alice = memory._async._store, ScopePath("acme/alice")
        dropped = memory._driver.run(drop_names(store, alice))
        assert (dropped.entries, dropped.damaged, dropped.headless) == (entries, [], [alice])
        assert {entry.actor for entry in memory.audit_trail("acme/alice")} == {None}
        assert not any("names" in problem.message for problem in memory.audit_verify().problems)
        certificate = memory.scope("acme").erase()
        assert [one.what for one in certificate.unreached if "head" in one.what] == [
            "the name of acme/alice in its audit log, whose head is missing"
        ]
