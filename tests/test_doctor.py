"""Doctor: real stores, broken in every way that it knows; it says what is wrong, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import mnemic
from layered import KEY
from mnemic.backends.sqlite import diagnosis
from mnemic.cli import main
from mnemic.doctor import Examination, examine
from mnemic.store import registry
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
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


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


def other_file(path: Path) -> None:
    path.write_text("no database " * 100)
    path.chmod(0o644)


def other_database(path: Path) -> None:
    path.unlink()
    run_sql(path, "PRAGMA journal_mode = WAL", "CREATE TABLE mine (a)")


BROKEN_FILES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a corrupt page": (damage_page, {"corrupt"}),
    "a corrupt schema": (damage_schema, {"corrupt"}),
    "a missing index": (damage_index, {"missing_index", "corrupt"}),
    "a dropped table": (lambda path: run_sql(path, "DROP TABLE mnemic_labels"), {"missing_table"}),
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
    if name not in ("an open file", "a text", "another database"):  # what is not ours must not be changed
        path.chmod(mode)
    before = contents(path.parent)
    found = examined(f"sqlite:///{path}")
    assert found.problems[0].code in expected
    assert {problem.code for problem in found.problems} <= expected
    assert found.healthy == (expected == {"permissions"})
    assert contents(path.parent) == before


def test_what_the_doctor_says_of_the_journal_mode_repairs_it(path: Path) -> None:
    run_sql(path, "PRAGMA journal_mode = DELETE")
    (problem,) = examined(f"sqlite:///{path}").problems
    run_sql(path, problem.repair.partition("'")[2].rstrip("'"))
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
    assert "200 memory" in healthy.output
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
