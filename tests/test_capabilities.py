"""The contract suite: which tests run for which store, and how a stranger names a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mnemic
from mnemic.testing.harness import URL
from servers.stores import STORES

SKIPPING = """
import pytest

from mnemic.store.protocol import Capability
from mnemic.testing.harness import needs


def test_that_skips(harness):
    pytest.skip("for no good reason")


@needs(Capability.DURABLE)
def test_that_needs_a_disk(harness):
    assert Capability.DURABLE in harness.store.capabilities
"""

STRANGER = """
from contextlib import nullcontext

from mnemic.store.protocol import Capability
from mnemic.testing import Target


def pytest_mnemic_stores():
    return [Target("mine", lambda folder: nullcontext(f"memory://{folder.name}"), frozenset({Capability.ATOMIC}))]
"""


def test_the_table_says_what_is_documented() -> None:
    declared = {name: sorted(has.value for has in target.capabilities) for name, target in STORES.items()}
    server = ["atomic", "durable", "records", "shared"]
    nearest = ["atomic", "durable", "nearest", "records", "shared"]
    assert declared == {
        "memory": ["atomic", "records"], "sqlite": server,
        "postgresql": nearest, "postgresql-confined": nearest, "postgresql-plain": server,
        "redis7": server, "redis8": nearest, "valkey": server, "valkey-cluster": server,
        "dynamodb": server, "dynamodb-hash": server, "dynamodb-moto": server,
        "s3": server, "s3-moto": server,
        "http": ["atomic", "durable", "records", "search", "shared"],
        "agentcore": ["durable", "shared"],
    }  # fmt: skip


def suite(folder: Path, *arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest as in another project, without the conftest.py of this one."""
    installed = Path(mnemic.__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--confcutdir={installed}", *arguments]
    environment = {**os.environ, URL: url}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("url", "ended"), [("memory://{name}", "2 failed"), ("sqlite:///{folder}/a.db", "2 failed, 2 passed")]
)
def test_a_contract_test_that_skips_itself_fails(tmp_path: Path, url: str, ended: str) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text("from mnemic.testing.conftest import *\n")
    done = suite(tmp_path, "test_skipping.py", url=url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"= {ended}" in done.stdout, done.stdout
    assert "skipped itself" in done.stdout


def test_a_stranger_gives_a_url(tmp_path: Path) -> None:
    done = suite(tmp_path, "--pyargs", "mnemic.testing", "-k", "test_versions", url="memory://{name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout, done.stdout


def test_a_stranger_gives_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "my_stores.py").write_text(STRANGER)
    done = suite(tmp_path, "-p", "my_stores", "--pyargs", "mnemic.testing", "-k", "test_versions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout, done.stdout


def test_without_a_store_it_says_how_to_give_one(tmp_path: Path) -> None:
    done = suite(tmp_path, "--pyargs", "mnemic.testing")
    assert done.returncode != 0
    assert URL in done.stdout + done.stderr
