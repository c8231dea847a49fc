"""Schemathesis sends what the OpenAPI document allows, and what it does not, to a real server, and finds nothing.

It has 40 seconds; MNEMIC_TEST_FUZZ_SECONDS gives it another time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from http_server import serving
from mnemic.server.settings import Settings

SECONDS = os.environ.get("MNEMIC_TEST_FUZZ_SECONDS", "40")
CONFIGURATION = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "412", "422"]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "409", "412", "413", "415", "422"]
"""
"""Beyond the usual: 422 is a value that the library refuses, 412 another version than the expected one."""


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    with serving(audit=True, settings=Settings(rate=0)) as client:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"]
        command += [f"{client.base_url}openapi.json".replace("//openapi", "/openapi"), "--max-time", SECONDS]
        command += ["--exclude-checks", "ignored_auth", "--generation-database", "none", "--seed", "1", "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=int(SECONDS) + 300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
