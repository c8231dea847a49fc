"""The command `mnemic audit`: show, verify with its exit status, checkpoints and certificates."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mnemic
from mnemic import SigningKey
from mnemic.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store that was signed with the key in a file, and a certificate of an erasure."""
    (tmp_path / "signing.key").write_text(SigningKey.generate().secret_text())
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with mnemic.open(url, audit=True, signing_key=tmp_path / "signing.key", embedder=None) as memory:
        for name in ("alice", "bob"):
            with memory.acting(actor=f"{name}-app", address="10.0.0.7"):
                for n in range(3):
                    memory.scope("acme", name).notes.write(f"note {n}", n)
        with memory.acting(actor="officer"):
            memory.scope("acme", "alice").erase().save(tmp_path / "certificate.json")
    return tmp_path


def run(folder: Path, *arguments: str, code: int = 0, key: bool = True) -> Result:
    signing = ["--signing-key-file", str(folder / "signing.key")] if key else []
    result = CliRunner().invoke(main, ["audit", *arguments, "--store", str(folder / "a.db"), *signing])
    assert result.exit_code == code, result.output
    return result


def test_show_has_the_newest_entries_and_filters(folder: Path) -> None:
    lines = run(folder, "show", "acme/bob", "--limit", "2").stdout.splitlines()
    assert [line.split()[2:6] for line in lines[1:]] == [
        ["acme/bob", "3", "put", "note"],
        ["acme/bob", "2", "put", "note"],
    ]
    assert "bob-app from 10.0.0.7" in lines[1]
    found: Any = json.loads(run(folder, "show", "--actor", "bob-app", "--key", "note 1", "--json").stdout)
    assert [(entry["number"], entry["scope"]) for entry in found] == [(2, "acme/bob")]
    assert run(folder, "show", "--actor", "nobody").stdout == ""
    assert "operation" in run(folder, "show", "--operation", "nothing", code=1).output


def test_verify_and_its_exit_status(folder: Path) -> None:
    assert run(folder, "verify").stdout.endswith(": intact\n")
    run(folder, "checkpoint", str(folder / "checkpoint.json"))
    assert "alice" not in (folder / "checkpoint.json").read_text()
    assert run(folder, "verify", "--checkpoint", str(folder / "checkpoint.json")).stdout.endswith(": intact\n")
    assert "not known here" in run(folder, "verify", code=1, key=False).stdout
    connection = sqlite3.connect(folder / "a.db", isolation_level=None)
    connection.execute("DELETE FROM mnemic_records WHERE key = '0000000002' AND data LIKE '%note 1%'")
    connection.close()
    told = run(folder, "verify", code=1).stdout
    assert told.splitlines()[0] == "PROBLEM  acme/bob: entry 2 is missing"
    assert told.endswith(": 1 problem\n")
    found = json.loads(run(folder, "verify", "--json", "--scope", "acme/bob", code=1).stdout)
    assert found["intact"] is False
    assert found["problems"] == [{"scope": "acme/bob", "number": 2, "message": "is missing"}]
    assert "no audit log of the scope 'elsewhere'" in run(folder, "verify", "--scope", "elsewhere", code=1).output


def test_a_store_without_a_log_is_not_intact(tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_text(SigningKey.generate().secret_text())
    with mnemic.open(f"sqlite:///{tmp_path / 'a.db'}", embedder=None) as memory:
        memory.scope("acme").notes.write("note", 1)
    assert "there is no audit log here" in run(tmp_path, "verify", code=1).output
    (tmp_path / "checkpoint.json").write_text("[]")
    assert (
        "not a JSON object" in run(tmp_path, "verify", "--checkpoint", str(tmp_path / "checkpoint.json"), code=1).output
    )


def test_certificates_are_verified(folder: Path) -> None:
    certificate = folder / "certificate.json"
    told = run(folder, "verify", str(certificate)).stdout
    assert ": valid: 3 records of the scope acme/alice erased" in told
    assert "by officer" in told
    fingerprint = SigningKey.from_file(folder / "signing.key").fingerprint
    run(folder, "verify", str(certificate), "--trust", fingerprint)
    assert "not trusted" in run(folder, "verify", str(certificate), "--trust", "0" * 64, code=1).stdout
    changed = json.loads(certificate.read_text())
    (folder / "changed.json").write_text(json.dumps(changed | {"records": 4}))
    found = json.loads(run(folder, "verify", str(certificate), str(folder / "changed.json"), "--json", code=1).stdout)
    assert [one["valid"] for one in found] == [True, False]
    assert "changed after it was signed" in found[1]["message"]


def test_other_commands_continue_the_log_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "carol")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    for options in ({"audit": True}, {"audit": True, "signing_key": SigningKey.generate()}, {}):
        (tmp_path / "a.db").unlink(missing_ok=True)
        with mnemic.open(url, embedder=None, **options) as memory:
            memory.scope("acme").notes.write("note", 1)
        for command in (["remember", "acme", "tea"], ["erase", "acme", "--yes"]):
            result = CliRunner().invoke(main, [*command, "--store", str(tmp_path / "a.db")])
            assert result.exit_code == 0, result.output
        with mnemic.open(url, embedder=None, **(options or {"audit": True})) as memory:
            actors = {(entry.operation, entry.actor) for entry in memory.audit_trail() if entry.actor}
            assert actors == ({("purge", "cli:carol")} if len(options) == 1 else set()), "no key, or no log"
            assert memory.audit_verify().intact
