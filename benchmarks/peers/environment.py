"""The environment that the peers run in, apart from Mnemic's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
FOLDER = ROOT / ".venv-peers"
QUIET = {  # nothing is reported to anyone, and nothing is downloaded
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "MEM0_TELEMETRY": "False",
}


def prepare() -> Path:
    """Return the peers' Python, with what they need installed; raise RuntimeError with pip's reason."""
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    python = FOLDER / scripts / "python"
    ready = FOLDER / "ready"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"Installing the peers into {FOLDER.name} …", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(str(python), *install, "-r", str(REQUIREMENTS))
        ready.write_text(wanted, encoding="utf-8")
    return python


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"not installed: {last_line(done.stderr or done.stdout)}")
