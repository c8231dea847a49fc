"""Run the agents' tests with the oldest version of pydantic-ai that pyproject.toml allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "pydantic-ai-slim"


def lowest() -> str:
    """Return the version at the lower bound of the extra `agents`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (range,) = project["optional-dependencies"]["agents"]
    found = re.fullmatch(rf"{PACKAGE}>=([\d.]+),<\d+", range)
    if found is None:
        raise SystemExit(f"the extra 'agents' must be {PACKAGE}>=VERSION,<MAJOR: {range}")
    return found[1]


def main() -> int:
    """Install that version beside the environment's own, and run the tests with it."""
    version = lowest()
    beside = ROOT / ".venv" / f"{PACKAGE}-{version}"
    if not beside.exists():
        packages = [f"{PACKAGE}=={version}", f"pydantic-graph=={version}"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--no-deps", "--target", str(beside), *packages], check=True)  # noqa: S603
    print(f"The agents' tests with {PACKAGE} {version}")
    paths = os.pathsep.join(filter(None, [str(beside), os.environ.get("PYTHONPATH")]))
    tests = sorted(str(path) for path in (ROOT / "tests").glob("test_agents*.py"))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *tests]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
