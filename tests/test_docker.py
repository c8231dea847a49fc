"""The Dockerfile and the compose file are valid, and agree with the settings; no container is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mnemic.server.settings import Settings, load

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()


def check(*command: str) -> None:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_linters_find_nothing() -> None:
    programs = Path(sys.executable).parent
    check(str(programs / "hadolint"), "Dockerfile")
    check(str(programs / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml")


def test_the_variables_are_settings() -> None:
    (line,) = re.findall(r"^ENV (.*)$", DOCKERFILE, re.M)
    given = dict(pair.split("=", 1) for pair in line.split())
    given |= dict(re.findall(r"^      (MNEMIC_\w+): (?:\$\{\w+:-)?([^\s}]+)", COMPOSE, re.M))
    found = load({}, given).settings
    assert (found.port, found.exposed, found.log_format) == (Settings().port, True, "json")
    assert f"  {found.allowed_hosts[0]}:\n    build: ." in COMPOSE, "other services can use its name"


def test_temporary_files_are_on_the_volume_and_the_rest_is_small() -> None:
    assert " TMPDIR=/data " in DOCKERFILE
    assert "VOLUME /data\n" in DOCKERFILE
    assert "- /tmp:size=" in COMPOSE


def test_the_server_is_no_root_and_answers_the_health_check_on_its_port() -> None:
    port = Settings().port
    assert re.search(r"^USER [1-9]\d+$", DOCKERFILE, re.M)
    assert 'CMD ["mnemic", "serve", "--check"]' in DOCKERFILE
    assert re.search(r"^FROM python:3\.\d+-slim-[a-z]+$", DOCKERFILE, re.M)
    assert f"EXPOSE {port}\n" in DOCKERFILE
    assert f'"127.0.0.1:{port}:{port}"' in COMPOSE
    seconds = re.search(r"stop_grace_period: (\d+)s", COMPOSE)
    assert seconds is not None
    assert int(seconds[1]) > Settings().stop_seconds, "the server has time to finish what it accepted"


def test_the_context_has_what_the_build_copies() -> None:
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for name in line.split()]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
