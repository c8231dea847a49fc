"""Doctor: real stores, broken in every way that it knows; it says what is wrong, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from click.testing import CliRunner, Result

import mnemic
from layered import KEY
from mnemic.backends.sqlite import diagnosis
from mnemic.cli import main
from mnemic.doctor import Examination, examine
from mnemic.records import FACT, MESSAGE, Record, ScopePath
from mnemic.salvage import salvage
from mnemic.store import registry
from mnemic.store.query import Put, Write
from mnemic.store.registry import Backend


def filled(url: str, **options: Any) -> str:
    with mnemic.open(url, **options) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember_many([f"{n}: Alice drinks green tea in Lisbon" for n in range(200)])
        alice.session("monday").add("user", "Which tram goes to the harbour?", metadata={"channel": "mail"})
    return url


def examined(url: str, key: bytes | None = None) -> Examination:
    return asyncio.run(examine(url, key))


def codes(url: str, key: bytes | None = None) -> list[str]:
    found = examined(url, key)
    assert all(problem.text and problem.repair for problem in found.problems)
    return [problem.code for problem in found.problems]


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


# ---------------------------------------------------------------- SQLite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    filled(f"sqlite:///{tmp_path}/memory.db")
    return tmp_path / "memory.db"


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for statement in statements:
            raw.execute(statement)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.suffix != ".db-shm"}


def test_a_healthy_file(path: Path) -> None:
    before = contents(path.parent)
    found = examined(f"sqlite:///{path}")
    assert found.problems == []
    assert found.healthy
    assert (found.durable, found.shared, found.encrypted) == (True, True, False)
    assert found.records == {"memory": 200, "message": 1}
    assert (found.scopes, found.without_vectors) == (2, 1)
    assert found.engine == f"SQLite {sqlite3.sqlite_version}"
    assert found.facts["bytes"] == path.stat().st_size
    assert contents(path.parent) == before


def test_a_file_in_use_is_not_changed_and_its_log_is_read(path: Path) -> None:
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("acme").notes.write("plan", "tea")
        before = contents(path.parent)
        found = examined(f"sqlite:///{path}")
        assert found.problems == []
        assert found.records == {"memory": 200, "message": 1, "note": 1}
        assert found.facts["wal_bytes"] > 0
        assert contents(path.parent) == before


def killed_while_in_use(path: Path) -> Path:
    """Store 50 notes in a process that is killed; return the log that it leaves."""
    script = f"""
        import os, mnemic
        memory = mnemic.open({f"sqlite:///{path}"!r})
        for n in range(50):
            memory.scope("acme").notes.write(f"n{{n}}", "tea")
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    return path.with_name("memory.db-wal")


@pytest.mark.parametrize("place", ["header", "salt", "middle", "end"])
def test_a_damaged_log_is_found_before_opening_cuts_it_off(place: str, path: Path) -> None:
    log = killed_while_in_use(path)
    assert examined(f"sqlite:///{path}").problems == []
    data = bytearray(log.read_bytes())
    at = {"header": 10, "salt": 32 + (len(data) // 2 // 4120) * 4120 + 12, "middle": len(data) // 2, "end": -100}[place]
    data[at] ^= 255
    log.write_bytes(data)
    before = contents(path.parent)
    (problem,) = examined(f"sqlite:///{path}").problems
    assert problem.code == "damaged_log"
    assert f"mnemic doctor --store {path} --salvage saved.db" in problem.repair
    assert contents(path.parent) == before


def test_what_an_unfinished_write_leaves_in_the_log_is_no_damage(path: Path) -> None:
    log = killed_while_in_use(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA cache_size = 5")
        raw.execute("BEGIN")
        raw.execute("UPDATE mnemic_records SET title = hex(randomblob(3000))")  # more than the cache takes
        held = path.read_bytes(), log.read_bytes()
        raw.execute("ROLLBACK")
        raw.execute("UPDATE mnemic_streams SET settings = NULL")
        later = log.read_bytes()
    assert len(held[1]) == len(later) > 500_000
    for data in (held[1], held[1][:-1000], later):
        path.write_bytes(held[0])
        log.write_bytes(data)
        path.with_name("memory.db-shm").unlink(missing_ok=True)
        assert examined(f"sqlite:///{path}").problems == []


def damage_page(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * (size // 4096 // 2))
        file.write(b"\xff" * 4096)


def damage_schema(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 400)


def damage_index(path: Path) -> None:
    run_sql(
        path,
        "PRAGMA writable_schema = ON",
        "DELETE FROM sqlite_master WHERE name = 'sqlite_autoindex_mnemic_streams_1'",
    )


def drop_everything(path: Path) -> None:
    tables = ("records", "streams", "labels", "derived", "schema")
    run_sql(path, *(f"DROP TABLE mnemic_{table}" for table in tables))


def without_constraint(path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE other AS SELECT * FROM mnemic_streams",
        "DROP TABLE mnemic_streams",
        "ALTER TABLE other RENAME TO mnemic_streams",
    )


def damage_records(path: Path) -> None:
    run_sql(path, "UPDATE mnemic_records SET data = 'not json' WHERE seq % 20 = 7")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir(0o755)


def other_file(path: Path) -> None:
    path.write_text("no database " * 100)
    path.chmod(0o644)


def other_database(path: Path) -> None:
    path.unlink()
    run_sql(path, "CREATE TABLE mine (a)")
    path.chmod(0o644)


BROKEN_FILES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a corrupt page": (damage_page, {"corrupt"}),
    "a corrupt schema": (damage_schema, {"corrupt"}),
    "an index that the schema has lost": (damage_index, {"corrupt"}),
    "a missing index": (without_constraint, {"missing_index"}),
    "a dropped table": (lambda path: run_sql(path, "DROP TABLE mnemic_labels"), {"missing_table"}),
    "no tables": (drop_everything, {"not_a_store"}),
    "no revision": (lambda path: run_sql(path, "DELETE FROM mnemic_schema"), {"half_migrated"}),
    "an impossible schema": (
        lambda path: run_sql(path, "UPDATE mnemic_schema SET version_num = '0000'"),
        {"unknown_schema"},
    ),
    "damaged records": (damage_records, {"unreadable"}),
    "no file": (lambda path: path.unlink(), {"no_store"}),
    "an empty file": (lambda path: path.write_text(""), {"no_store"}),
    "a folder": (folder, {"not_a_database"}),
    "half a restore": (lambda path: run_sql(path, "DROP TABLE mnemic_schema"), {"half_migrated"}),
    "a newer schema": (lambda path: run_sql(path, "UPDATE mnemic_schema SET version_num = '9999'"), {"newer_schema"}),
    "another journal mode": (lambda path: run_sql(path, "PRAGMA journal_mode = DELETE"), {"journal_mode"}),
    "an open file": (lambda path: path.chmod(0o644), {"permissions"}),
    "a text": (other_file, {"not_a_database"}),
    "a few bytes": (lambda path: path.write_text("no"), {"not_a_database"}),
    "another database": (other_database, {"not_a_store"}),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file(name: str, path: Path) -> None:
    damage, expected = BROKEN_FILES[name]
    mode = path.stat().st_mode
    damage(path)
    if path.is_file() and name not in ("an open file", "a text", "another database"):  # of those the mode is no matter
        path.chmod(mode)
    before = contents(path.parent)
    found = examined(f"sqlite:///{path}")
    assert {problem.code for problem in found.problems} == expected
    assert len(found.problems) == 1
    assert found.healthy == (expected == {"permissions"})
    assert contents(path.parent) == before
    shown = doctor("--store", f"sqlite:///{path}", "--json")
    assert json.loads(shown.stdout)["problems"][0]["code"] in expected
    assert shown.exit_code == (0 if found.healthy else 1)


REPAIRED: dict[str, Callable[[Path], object]] = {
    "a missing index": without_constraint,
    "labels": lambda path: run_sql(path, "DROP TABLE mnemic_labels"),
    "derived values": lambda path: run_sql(path, "DROP TABLE mnemic_derived"),
    "no revision": lambda path: run_sql(path, "DELETE FROM mnemic_schema"),
    "no table of the revision": lambda path: run_sql(path, "DROP TABLE mnemic_schema", "DROP TABLE mnemic_labels"),
    "the journal mode": lambda path: run_sql(path, "PRAGMA journal_mode = DELETE"),
}


def labels_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("SELECT * FROM mnemic_labels ORDER BY 1, 2, 3, 4").fetchall()


@pytest.mark.parametrize("name", REPAIRED)
def test_what_the_doctor_says_repairs_the_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "with a space; and 'quotes'.db"
    url = f"sqlite:///{quote(str(path))}"
    filled(url)
    with mnemic.open(url) as memory:
        memory.scope("acme").facts.add("Alice", "drinks", "tea")
    labels = labels_of(path)
    assert labels
    REPAIRED[name](path)
    (problem,) = examined(url).problems
    program, file, statements = shlex.split(problem.repair)
    assert (program, file) == ("sqlite3", str(path))
    run_sql(path, *statements.split("; "))
    assert codes(url) == []
    assert labels_of(path) == labels
    with mnemic.open(url) as memory:
        assert memory.scope("acme", "alice").recall("green tea")
        memory.scope("acme", "alice").remember("Alice has moved to Porto")
    assert codes(url) == []


def test_a_unique_index_that_is_missing(path: Path) -> None:
    without_constraint(path)
    (problem,) = examined(f"sqlite:///{path}").problems
    assert "nothing prevents that two rows have the same key" in problem.text


@pytest.mark.parametrize("damage", [damage_page, damage_index], ids=["a page", "an index"])
def test_what_is_readable_in_a_damaged_file_can_be_saved(
    damage: Callable[[Path], object], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    (problem,) = examined(f"sqlite:///{path}").problems
    assert problem.text.count("damaged") == 1
    assert len(problem.text) < 500
    before, _, repair = problem.repair.partition(": ")
    assert before.startswith("restore the newest backup; ")
    monkeypatch.chdir(path.parent)
    program, *command = shlex.split(repair)
    assert program == "mnemic"
    done = CliRunner().invoke(main, command)
    assert " saved in sqlite:///saved.db: " in done.stdout
    with mnemic.open(f"sqlite:///{path.parent}/saved.db") as memory:
        assert len(list(memory.scope("acme", "alice").memories.list())) > 100
    assert codes(f"sqlite:///{path.parent}/saved.db") == []


def test_damaged_records_are_counted_and_named(path: Path) -> None:
    run_sql(path, "UPDATE mnemic_records SET text = 'secret', data = '{secret' WHERE seq BETWEEN 3 AND 60")
    run_sql(path, "UPDATE mnemic_records SET meta = 'secret' WHERE seq = 177")
    found = examined(f"sqlite:///{path}")
    (problem,) = found.problems
    assert problem.text.startswith("59 of the records cannot be read: the record ")
    assert "secret" not in problem.text
    assert found.read == 201
    assert found.embedder is not None


def test_records_that_are_not_what_their_kind_says(path: Path) -> None:
    url = filled(f"sqlite:///{path}")
    bad = [
        Record(ScopePath("acme/alice/monday"), MESSAGE, "m1", text="Hi", data={"channel": "mail"}),
        Record(ScopePath("acme/alice/monday"), MESSAGE, "m2", text="Hi", data={"role": "user", "tool_calls": 5}),
        Record(ScopePath("acme/alice"), FACT, "f1", text="Ana lives in Lisbon", data={}),
    ]
    parsed, backend = registry.find(url)

    async def write() -> None:
        store = await backend.open(parsed)
        for record in bad:
            await store.write(Write((Put(record),)))
        await store.close()

    asyncio.run(write())
    (problem,) = examined(url).problems
    assert problem.code == "malformed"
    assert problem.text.startswith("3 of the records are not what their kind says: the fact 'f1' in 'acme/alice' (")
    assert all(f"the message '{id}' in 'acme/alice/monday' (" in problem.text for id in ("m1", "m2"))
    for record in bad:
        done = CliRunner().invoke(main, ["forget", record.scope.path, record.key, "--store", str(path)])
        assert done.exit_code == 0, done.output
    assert codes(url) == []


def test_records_that_are_lost(path: Path) -> None:
    run_sql(path, "DELETE FROM mnemic_records WHERE seq BETWEEN 10 AND 15")
    (problem,) = examined(f"sqlite:///{path}").problems
    assert problem.code == "lost_records"
    assert problem.text.startswith("6 of the records")
    other = path.with_name("other.db")
    assert CliRunner().invoke(main, ["copy", str(path), str(other)]).exit_code == 0
    assert codes(f"sqlite:///{other}") == []


def test_records_that_expire_are_not_lost(path: Path) -> None:
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("acme", "alice").remember("a parcel comes", ttl=timedelta(milliseconds=1))
        memory.scope("acme", "bob").remember("a parcel comes", ttl=timedelta(hours=1))
    found = examined(f"sqlite:///{path}")
    assert found.problems == []
    assert found.records == {"memory": 201, "message": 1}


def test_a_large_store_is_read_to_the_end_only_if_wanted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.doctor.READ", 50)
    monkeypatch.setattr("mnemic.doctor.READ_AT_ONCE", 10)
    run_sql(path, "UPDATE mnemic_records SET data = 'not json' WHERE seq = 190")
    brief, deep = doctor("--store", str(path)), doctor("--store", str(path), "--deep")
    assert brief.exit_code == 0
    assert "; 50 of them were read, --deep reads all" in brief.output
    assert deep.exit_code == 1
    assert "1 of the records cannot be read" in deep.output


WITHOUT_RIGHTS = """
    import ctypes, sys
    from mnemic.cli import main
    import mnemic.doctor, mnemic.backends.sqlite.diagnosis

    # Without capabilities, root has only the rights that the mode of a file gives.
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if sys.platform == "linux":
        assert ctypes.CDLL(None).capset(header, none) == 0
    main(["doctor", "--json", "--store", sys.argv[1]])
"""


@pytest.mark.parametrize("closed", ["memory.db", "memory.db-wal", "."])
def test_what_this_user_may_not_read(closed: str, path: Path) -> None:
    place = path.parent / closed
    place.touch(0o600)
    mode = place.stat().st_mode
    place.chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(WITHOUT_RIGHTS), str(path)], capture_output=True, check=False
        )
        assert done.returncode == 1, done.stderr
        (problem,) = json.loads(done.stdout)["problems"]
        assert problem["code"] == "no_permission"
        assert str(place) in problem["text"]
        subprocess.run(shlex.split(problem["repair"]), check=True)
        assert place.stat().st_mode & 0o700 == mode & 0o700
    finally:
        place.chmod(mode)
    assert codes(f"sqlite:///{path}") == []


KILLED = """
    import os, signal, sys
    from alembic.operations import Operations
    import mnemic

    create_table = Operations.create_table

    def killed(self, name, *rest, **options):
        if name == "mnemic_labels":
            os.kill(os.getpid(), signal.SIGKILL)
        return create_table(self, name, *rest, **options)

    Operations.create_table = killed
    mnemic.open(sys.argv[1])
"""


def test_a_migration_that_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), url], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert codes(url) == ["half_migrated"]
    assert doctor("--store", url).exit_code == 1
    assert CliRunner().invoke(main, ["migrate", "--store", url]).exit_code == 0
    assert codes(url) == []


def test_a_network_file_system(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = path.with_name("mounts")
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/home {path.parent.resolve()} nfs4 rw 0 0\n")
    monkeypatch.setattr(diagnosis, "MOUNTS", mounts)
    assert codes(f"sqlite:///{path}") == ["network_file_system"]


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5, 5))
    assert codes(f"sqlite:///{path}") == ["disk_full"]


def test_a_file_that_this_user_may_not_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, flags: place != path or flags == os.R_OK)
    assert codes(f"sqlite:///{path}") == ["read_only"]


def test_a_log_that_a_reader_keeps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "WAL_BYTES", 10_000)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, mnemic.open(f"sqlite:///{path}") as memory:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM mnemic_streams").fetchall()
        memory.scope("acme").notes.write("plan", "tea" * 10_000)
        assert codes(f"sqlite:///{path}") == ["large_log"]


# ---------------------------------------------------------------- every store


def test_an_encrypted_store(file_url: str) -> None:
    filled(file_url, encryption_key=KEY)
    without, inside = examined(file_url), examined(file_url, KEY)
    assert without.problems == inside.problems == []
    assert without.encrypted
    assert without.embedder is None
    assert inside.embedder is not None
    assert (without.read, inside.read) == (201, 201)
    assert "without the key, the content was not checked" in doctor("--store", file_url).output
    assert codes(file_url, bytes(32)) == ["wrong_key"]


class InterruptedMoveError(Exception):
    pass


class Own:
    """An embedder that is nowhere installed."""

    id = "own-3"
    dimension = 3

    def embed(self, texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 3), np.float32)

    def embed_query(self, text: str) -> Any:
        return np.ones(3, np.float32)


def test_records_whose_data_key_was_destroyed_are_erased_and_not_lost(tmp_path: Path) -> None:
    url, backup = f"sqlite:///{tmp_path}/memory.db", tmp_path / "backup.db"
    keys = mnemic.Encryption(KEY, key_store=f"sqlite:///{tmp_path}/keys.db")
    filled(url, encryption_key=keys)
    with mnemic.open(url, encryption_key=keys) as memory:
        memory.scope("acme", "bob").remember("Bob drinks coffee")
    shutil.copy(tmp_path / "memory.db", backup)
    with mnemic.open(url, encryption_key=keys) as memory:
        memory.scope("acme", "bob").erase()
    found = asyncio.run(examine(f"sqlite:///{backup}", keys))
    (problem,) = found.problems
    assert (problem.code, problem.severity) == ("erased_records", "warning")
    assert "1 more records were erased" in problem.text
    assert "'acme/bob'" in problem.text
    assert found.records == {"memory": 200, "message": 1}
    assert found.read == 201
    run_sql(backup, "DELETE FROM mnemic_records WHERE seq BETWEEN 10 AND 15")
    assert {problem.code for problem in asyncio.run(examine(f"sqlite:///{backup}", keys)).problems} == {
        "erased_records",
        "lost_records",
    }


def test_a_key_store_that_is_not_given_or_not_there(tmp_path: Path) -> None:
    url = filled(
        f"sqlite:///{tmp_path}/memory.db",
        encryption_key=mnemic.Encryption(KEY, key_store=f"sqlite:///{tmp_path}/keys.db"),
    )
    before = contents(tmp_path)
    for given in (KEY, mnemic.Encryption(KEY, key_store=f"sqlite:///{tmp_path}/other.db")):
        (problem,) = asyncio.run(examine(url, given)).problems
        assert problem.code == "no_key_store"
        assert "--key-store" in problem.repair
    assert contents(tmp_path) == before


def test_records_that_were_written_with_the_old_key_after_a_rotation(path: Path) -> None:
    url, new = f"sqlite:///{path.with_name('encrypted.db')}", bytes(32)
    filled(url, encryption_key=KEY)
    before = key_records(url)
    with mnemic.open(url, encryption_key=KEY) as memory:
        memory.scope("acme", "bob").remember_many(["one", "two"])
    (bob,) = key_records(url).items() - before.items()
    with mnemic.open(url, encryption_key=[new, KEY]) as memory:
        memory.rotate()
    with closing(sqlite3.connect(path.with_name("encrypted.db"), isolation_level=None)) as raw:
        raw.execute("UPDATE mnemic_records SET data = ? WHERE key = ?", [bob[1], bob[0]])
    found = examined(url, new)
    (problem,) = found.problems
    assert problem.code == "unknown_key"
    assert "mnemic rotate --key-file NEW --key-file OTHER" in problem.repair
    assert found.read == 203
    with pytest.raises(mnemic.DecryptionError, match="give that key too"):
        asyncio.run(salvage(url, f"sqlite:///{path.with_name('saved.db')}", new))
    assert not path.with_name("saved.db").exists()
    with mnemic.open(url, encryption_key=[new, KEY]) as memory:
        memory.rotate()
    assert codes(url, new) == []


def key_records(url: str) -> dict[str, str]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        kind = "SELECT id FROM mnemic_streams WHERE kind = 'encryption'"
        return dict(raw.execute(f"SELECT key, data FROM mnemic_records WHERE stream_id IN ({kind})").fetchall())


def test_a_move_to_another_embedder_that_was_interrupted(file_url: str) -> None:
    filled(file_url)

    def stop(done: int, total: int) -> None:
        raise InterruptedMoveError

    with mnemic.open(file_url) as memory, pytest.raises(InterruptedMoveError):
        memory.reembed(Own(), progress=stop)
    assert codes(file_url) == ["half_reembedded"]


def test_an_embedder_that_is_not_installed(file_url: str) -> None:
    filled(file_url, embedder=Own())
    assert codes(file_url) == ["no_embedder"]


def test_a_store_of_a_back_end_without_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    _, memory = registry.find("memory://")
    monkeypatch.setitem(registry._registered, "plain", Backend(open=memory.open))
    found = examined("plain://")
    assert (found.engine, found.durable, found.problems) == ("plain", False, [])


def test_the_command_line(path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{path}"
    healthy = doctor("--store", url)
    assert healthy.exit_code == 0
    assert "no problems found" in healthy.output
    assert ": 200 memories, 1 message\n" in healthy.output
    path.chmod(0o644)
    warned = doctor("--store", url)
    assert warned.exit_code == 0
    assert "warning permissions: other users of this machine" in warned.output
    assert f"repair: chmod 600 {path}" in warned.output
    damage_page(path)
    broken = doctor("--store", url, "--json")
    assert broken.exit_code == 1
    found = json.loads(broken.stdout)
    assert {problem["code"] for problem in found["problems"]} == {"permissions", "corrupt"}
    missing = doctor("--store", f"{tmp_path}/nothing.db")
    assert missing.exit_code == 1
    assert "there is no store at" in missing.output
    assert not (tmp_path / "nothing.db").exists()
    assert doctor("--store", url, "--nonsense").exit_code == 2
