"""Install each environment of agent frameworks, check the types of its adapters and run their tests.

`tools/test_adapters.py [ENVIRONMENT…]`, by default all of them; see tests/adapters/environments.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "adapters"
sys.path.insert(0, str(TESTS))

from environments import ENVIRONMENTS, WITHOUT_REQUIREMENTS, modules_of, tests_of  # noqa: E402


def installed(environment: str) -> str:
    """Return the Python of an environment, which is made again when its requirements change."""
    place = ROOT / ".venv" / f"adapters-{environment}"
    python, ready = str(place / "bin" / "python"), place / "ready"
    requirements = TESTS / f"{environment}.txt"
    if not ready.exists() or ready.read_text() != requirements.read_text():
        print(f"Installing the environment {environment} …", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*pip, "--requirement", str(requirements)], check=True)  # noqa: S603
        for package in WITHOUT_REQUIREMENTS.get(environment, ()):
            subprocess.run([*pip, "--no-deps", "--ignore-requires-python", package], check=True)  # noqa: S603
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)  # noqa: S603
        ready.write_text(requirements.read_text())
    return python


def run(environment: str) -> int:
    """Check the types of an environment's adapters and run their tests; return the exit status."""
    python = installed(environment)
    print(f"The adapters of {environment}", flush=True)
    tests = [str(path) for path in tests_of(environment)]
    modules = [str(path) for path in modules_of(environment)]
    names = [f"mnemic.adapters.{path.stem}" for path in modules_of(environment) if path.stem != "__init__"]
    commands = [
        ["-m", "mypy", "--follow-imports=silent", "--config-file", str(TESTS / "mypy.ini"), *modules, *tests],
        [str(ROOT / "tools" / "check_public_types.py"), *names],
        ["-m", "pytest", "-n", "2", "--dist", "worksteal", "--timeout", "300", *tests],
    ]
    variables = {**os.environ, "MNEMIC_ADAPTERS": environment, "MNEMIC_TEST_PYTHON": sys.executable, "PYTHONPATH": ""}
    return max([subprocess.run([python, *command], env=variables, cwd=ROOT).returncode for command in commands])  # noqa: S603


if __name__ == "__main__":
    sys.exit(max([run(environment) for environment in sys.argv[1:] or ENVIRONMENTS]))
