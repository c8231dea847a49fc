"""What our back-ends can do is pinned, and no contract test of ours skips itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mnemic.testing.benches import benches
from mnemic.testing.capabilities import PINNED, pinned

SKIPPING = """
import pytest

from mnemic.store.protocol import Capability
from mnemic.testing.capabilities import needs


def test_that_skips(lab):
    pytest.skip("for no good reason")


@needs(Capability.DURABLE)
def test_that_needs_a_disk(lab):
    assert Capability.DURABLE in lab.can
"""


def test_every_trial_of_ours_is_pinned() -> None:
    assert [bench for bench in benches() if pinned(bench) is None] == []


def test_the_table_says_what_is_documented() -> None:
    told = {name: sorted(capability.value for capability in can) for name, can in PINNED.items()}
    server = ["atomic", "durable", "shared"]
    nearest = ["atomic", "durable", "nearest", "shared"]
    shipped = {
        "memory": ["atomic"], "sqlite": server,
        "postgresql": nearest, "postgresql-plain": server,
        "redis7": server, "redis8": nearest, "valkey": server, "valkey-cluster": server,
        "dynamodb": server, "dynamodb-hash": server, "dynamodb-moto": server,
        "s3": server, "s3-moto": server,
        "agentcore": ["durable", "shared"],
    }  # fmt: skip
    layered = {"encrypted+memory": ["atomic"], "audited+memory": ["atomic"], "layered+sqlite": server}
    assert told == shipped | layered


@pytest.mark.parametrize(("bench", "ended"), [("memory-inline", "1 failed"), ("sqlite-inline", "1 failed, 1 passed")])
def test_a_contract_test_that_skips_itself_fails(tmp_path: Path, bench: str, ended: str) -> None:
    file = tmp_path / "test_skipping.py"
    file.write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text("from mnemic.testing.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", bench, str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"= {ended}" in done.stdout, done.stdout
    assert "skipped itself" in done.stdout
