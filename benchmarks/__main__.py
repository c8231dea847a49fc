"""`python -m benchmarks [NAME …]`: run the benchmarks; all of them write results.md and the README."""

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
README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- results -->", "<!-- /results -->")


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
        show(sections[0].partition("\n\n")[2])
    return int(missed)


def show(text: str) -> None:
    """Put a table into the README, between its marks."""
    before, _, rest = README.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    README.write_text(f"{before}{MARKS[0]}\n{text.strip()}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
