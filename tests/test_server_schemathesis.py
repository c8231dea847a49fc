"""Schemathesis sends what the OpenAPI document allows, and what it does not, to a real server, and finds nothing.

Every boundary of every operation is tried, always the same ones. With MNEMIC_TEST_FUZZ_SECONDS, random requests and
sequences of requests follow for that long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mnemic
from http_server import serving
from mnemic.layers.restricted import RIGHTS
from mnemic.server.api_keys import ApiKeys
from mnemic.server.settings import Settings
from test_server_openapi import fill

SECONDS = int(os.environ.get("MNEMIC_TEST_FUZZ_SECONDS", "0"))
CONFIGURATION = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "412", "422"]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "409", "412", "413", "415", "422"]
"""
"""Beyond the usual: 422 is a value that the library refuses, 412 another version than the expected one."""


@pytest.mark.parametrize("phases", ["examples,coverage", *(["fuzzing,stateful"] if SECONDS else [])])
def test_schemathesis_finds_nothing(tmp_path: Path, phases: str) -> None:
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    url = f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"
    with mnemic.open(url) as memory:
        key = memory._driver.run(ApiKeys(memory._async).create("schemathesis", "", RIGHTS))
    with serving(url, audit=True, settings=Settings(rate=0, require_key=True)) as client:
        client.headers["Authorization"] = f"Bearer {key.secret}"
        fill(client)
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"]
        command += [str(client.base_url.join("/openapi.json")), "--header", f"Authorization: Bearer {key.secret}"]
        command += ["--phases", phases, "--generation-database", "none", "--seed", "1", "--no-color"]
        command += ["--exclude-operation-id", "revoke_key"]  # it would revoke its own
        command += ["--exclude-operation-id", "set_hold"]  # nothing could be deleted any more
        command += ["--exclude-operation-id", "follow_changes"]  # it does not end
        command += ["--max-time", str(SECONDS)] if phases.startswith("fuzzing") else []
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS + 600)
        served = client.get("/api/v1/stats")
    said = done.stdout[-8000:] + done.stderr[-2000:]
    assert done.returncode == 0, said
    # It is not refused everything, and not stopped before its end.
    assert served.status_code == 200, said
    tested = re.search(r"Selected: (\d+)/\d+\s+Tested: (\d+)", done.stdout)
    assert tested is not None, said
    assert tested[1] == tested[2], said
