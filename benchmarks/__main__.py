"""`python -m benchmarks [NAME …]`: run the benchmarks, and write their tables to results.md, the README and the docs.

Those that need a recall set are run if the environment variable RECALL_SET names one, that of the adapters if their
frameworks are installed.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import (
    adapters,
    agents,
    auditing,
    dashboard,
    embedded,
    encrypted,
    footprint,
    history,
    hook,
    http_store,
    mcp_stdio,
    million,
    quality,
    recalling,
    redaction,
    servers,
    serving,
    telemetry,
    transfer,
)
from .measuring import Result, table
from .peers import comparison

TARGET = Path(__file__).parent / "results.md"
ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def measured(run: Callable[[Path], list[Result]]) -> Callable[[Path], tuple[str, bool]]:
    """Return what runs a benchmark and gives its table, and whether its targets are met."""

    def ran(folder: Path) -> tuple[str, bool]:
        results = run(folder)
        return table(results), all(result.holds for result in results)

    return ran


BENCHMARKS: dict[str, Callable[[Path], tuple[str, bool]]] = {
    "embedded": measured(embedded.run),
    "encrypted": measured(encrypted.run),
    "audit": measured(auditing.run),
    "recall": measured(recalling.run),
    "agents": measured(agents.run),
    "dashboard": measured(dashboard.run),
    "hook": measured(hook.run),
    "http": measured(http_store.run),
    "mcp": measured(mcp_stdio.run),
    "serve": measured(serving.run),
    "servers": measured(servers.run),
    "million": measured(million.run),
    "transfer": measured(transfer.run),
    "telemetry": measured(telemetry.run),
    "history": measured(history.run),
    "redaction": redaction.run,
    "footprint": footprint.run,
    "adapters": measured(adapters.run),
    "quality": quality.run,
    "peers": lambda folder: (comparison.as_markdown(comparison.run(folder)), True),
}
NEEDS_A_SET = ("quality", "peers")
NEEDS_FRAMEWORKS = "adapters"


def main(names: list[str]) -> int:
    """Run the benchmarks that are named, or all; return 1 if a target is missed."""
    sections = {}
    missed = False
    for name in names or list(BENCHMARKS):
        if name in NEEDS_A_SET and not os.environ.get("RECALL_SET"):
            print(f"{name}: left out, since RECALL_SET names no recall set", file=sys.stderr)
            continue
        if name == NEEDS_FRAMEWORKS and not names and not adapters.installed():
            print(f"{name}: left out, since make test-adapters has not installed the frameworks", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            text, holds = BENCHMARKS[name](Path(folder))
        missed |= not holds
        sections[name] = text
        print(f"## {name}\n\n{text}\n", flush=True)
    keep(sections)
    for name, text in sections.items():
        show(name, text)
    return int(missed)


def keep(sections: dict[str, str]) -> None:
    """Write sections to the file of results, in place of those of their names that are there."""
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.machine()}"
    known = TARGET.read_text(encoding="utf-8").split("\n## ")[1:] if TARGET.exists() else []
    kept = {name: text.strip() for name, _, text in (part.partition("\n") for part in known)}
    kept |= {name: text.strip() for name, text in sections.items()}
    body = "\n".join(f"## {name}\n\n{kept[name]}\n" for name in BENCHMARKS if name in kept)
    TARGET.write_text(f"# Results\n\nWritten by `make bench`. {machine}.\n\n{body}", encoding="utf-8")


def show(name: str, text: str) -> None:
    """Put a table into the README and the docs, where they have marks for it."""
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        if first in content:
            before, _, rest = content.partition(first)
            after = rest.partition(last)[2]
            page.write_text(f"{before}{first}\n{text.strip()}\n{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
