"""What an adapter costs over the same call of our own API, each measured in the environment of its framework.

The environments are those of `make test-adapters`; or, if the environment variable ADAPTER_ENVIRONMENTS names a folder,
`adapters-frameworks` and so on in it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from msgspec.json import decode

from environments import ENVIRONMENTS, environment_of

from .adapter_cases import CASES
from .measuring import Result

ROOT = Path(__file__).parent.parent


def run(folder: Path) -> list[Result]:
    """Return the results of all frameworks; ADAPTERS, an environment variable, names some instead."""
    chosen = os.environ.get("ADAPTERS", "").split() or list(CASES)
    return [result for name in chosen for result in measured(name, folder / name)]


def installed() -> bool:
    """Return whether there are all environments."""
    return all(python_of(environment).exists() for environment in ENVIRONMENTS)


def python_of(environment: str) -> Path:
    """Return the Python of an environment."""
    return Path(os.environ.get("ADAPTER_ENVIRONMENTS", ROOT / ".venv"), f"adapters-{environment}", "bin", "python")


def measured(name: str, folder: Path) -> list[Result]:
    """Return the results of one framework."""
    python = python_of(environment_of(name))
    if not python.exists():
        raise SystemExit(f"the environment of {name} is not installed: run make test-adapters first")
    folder.mkdir()
    command = [str(python), "-m", "benchmarks.adapter_cases", name, str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=variables)
    return decode(ran.stdout.splitlines()[-1], type=list[Result])
