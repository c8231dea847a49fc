"""`python -m benchmarks [NAME …]`: run the benchmarks and write benchmarks/results.md."""

from __future__ import annotations

import platform
import sqlite3
import sys
import tempfile
from pathlib import Path

from . import embedded
from .measuring import table

BENCHMARKS = {"embedded": embedded.run}
TARGET = Path(__file__).parent / "results.md"


def main(names: list[str]) -> int:
    """Run the benchmarks that are named, or all; return 1 if a target is missed."""
    sections = []
    missed = False
    for name in names or list(BENCHMARKS):
        with tempfile.TemporaryDirectory() as folder:
            results = BENCHMARKS[name](Path(folder))
        missed |= not all(result.holds for result in results)
        sections.append(f"## {name}\n\n{table(results)}\n")
        print(sections[-1])
    if not names:
        machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.machine()}"
        TARGET.write_text(
            f"# Results\n\nWritten by `make bench`. {machine}.\n\n" + "\n".join(sections), encoding="utf-8"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
