"""Fuzzes the parsers with atheris, which follows what code the input reaches: `make fuzz TARGET="store URL"`.

    python tools/fuzz.py [TARGET] [SECONDS]

Without a target, all of them in turn, each for so many seconds. What atheris finds is in .venv/fuzz; the targets are
those of tests/test_fuzz.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which atheris ends."""
    atheris = import_module("atheris")  # which has no types, and is not installed by make setup
    with atheris.instrument_imports(include=["mnemic"]):
        from fuzzing import TARGETS, load_targets

        load_targets()
    target = TARGETS[name]
    folder = ROOT / ".venv" / "fuzz" / name.replace(" ", "-")
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(target.examples):
        (folder / "corpus" / f"example-{number}").write_bytes(example)
    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], target)
    atheris.Fuzz()


def main(wanted: str = "", seconds: str = "60") -> None:
    """Fuzz one target, or each of them in a process of its own."""
    if wanted:
        fuzz(wanted, int(seconds))
        return
    from fuzzing import TARGETS, load_targets

    load_targets()
    failed = []
    for name in TARGETS:
        command = [sys.executable, __file__, name, seconds]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own
        sys.stdout.write(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}{os.linesep}")
        if done.returncode != 0:
            failed.append(name)
            sys.stderr.write(done.stderr[-3000:])
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
