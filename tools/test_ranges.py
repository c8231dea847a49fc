"""Run the tests of agents and of the MCP server with the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RANGES = {
    "agents": (("pydantic-ai-slim", "pydantic-graph"), "test_agents*.py"),
    "mcp": (("mcp", "mcp-types"), "test_mcp*.py"),
}
"""By extra: its package and others of the same version, and the tests to run."""


def lowest(extra: str, package: str) -> str:
    """Return the version at the lower bound of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (range,) = project["optional-dependencies"][extra]
    found = re.fullmatch(rf"{package}>=([\d.]+),<\d+", range)
    if found is None:
        raise SystemExit(f"the extra {extra!r} must be {package}>=VERSION,<MAJOR: {range}")
    return found[1]


def run_tests(extra: str) -> int:
    """Install the version beside the environment's own, and run the tests with it."""
    packages, tests = RANGES[extra]
    version = lowest(extra, packages[0])
    beside = ROOT / ".venv" / f"{packages[0]}-{version}"
    if not beside.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = [f"{package}=={version}" for package in packages]
        subprocess.run([*command, "--no-deps", "--target", str(beside), *pinned], check=True)  # noqa: S603
    print(f"The tests of {extra} with {packages[0]} {version}", flush=True)
    paths = os.pathsep.join(filter(None, [str(beside), os.environ.get("PYTHONPATH")]))
    files = sorted(str(path) for path in (ROOT / "tests").glob(tests))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *files]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(max([run_tests(extra) for extra in sys.argv[1:] or RANGES]))
