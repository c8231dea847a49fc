"""The systems, one after another, each in processes of its own; and the table that they make."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from . import environment, recall_set
from .measure import SYSTEMS, TIMED_ADDS

CONVERSATIONS = 3
ROUNDS = 3
PATIENCE = 1800  # seconds for one step of one system
OURS = "Mnemic"
NOTES = (
    "No model is called. Each peer embeds `Name: text` with the static vectors that Mnemic "
    "brings along (256 dimensions) and uses itself; Mnemic is given name, session and time as the fields that it "
    "has for them. Of mem0, what needs a download (lemmas, entities, BM25) is off. LlamaIndex's block is "
    f"used without the `Memory` around it. Adds are single and durable, {TIMED_ADDS} in a new store. "
    f"For Mnemic, which embeds messages only when they are first searched, that is counted in. "
    f"Medians of {ROUNDS} rounds, in turns."
)


class Row(Struct, frozen=True, kw_only=True):
    """What one system reached, or why it did not run."""

    system: str
    version: str = "–"
    adds_per_second: float = 0.0
    recall_ms: float = 0.0
    recall: float = 0.0
    failure: str | None = None


def run(folder: Path, source: Path | None = None, conversations: int = CONVERSATIONS) -> list[Row]:
    """Measure every system over the first conversations of a recall set; raise LookupError without one."""
    source = source or recall_set.find()
    measured = [Measured(name, folder / str(number)) for number, name in enumerate(SYSTEMS)]
    try:
        theirs = environment.prepare()
    except RuntimeError as error:
        theirs = None
        for one in measured:
            one.failure = str(error) if one.system != OURS else None
    # In turns, so that what else the machine does disturbs all of them alike.
    for number, step in enumerate(["add"] * ROUNDS + ["fill"] + ["ask"] * ROUNDS):
        for one in measured:
            python = sys.executable if one.system == OURS else str(theirs)
            if one.failure is None:
                one.take(step, f"add-{number}" if step == "add" else "kept", python, source, conversations)
    return [one.row() for one in measured]


class Measured:
    """One system, and what its steps have given so far."""

    def __init__(self, system: str, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.version = "–"
        self.failure: str | None = None
        self.figures: dict[str, list[float]] = {}

    def take(self, step: str, place: str, python: str, source: Path, conversations: int) -> None:
        """Run one step in a process of its own, and note what it gave or why it failed."""
        folder = self.folder / place
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [self.system, step, str(folder), str(source), str(conversations)]
        try:
            done = subprocess.run(
                [python, "-m", "benchmarks.peers.measure", *arguments],
                cwd=environment.ROOT,
                env={
                    **os.environ,
                    **environment.QUIET,
                    "MEM0_DIR": str(folder),
                    "PYTHONPATH": str(environment.ROOT / "src"),  # for the common embedder
                },
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.failure = f"{step}: not done after {PATIENCE} seconds"
            return
        if done.returncode:
            self.failure = f"{step}: {environment.last_line(done.stderr)}"
            return
        result = json.loads(environment.last_line(done.stdout))
        self.version = result["version"]
        for name, figure in result["figures"].items():
            self.figures.setdefault(name, []).append(figure)

    def row(self) -> Row:
        """Return the median of each figure, or the failure alone."""
        if self.failure is not None:
            return Row(system=self.system, version=self.version, failure=self.failure)
        medians = {name: statistics.median(figures) for name, figures in self.figures.items()}
        return Row(
            system=self.system,
            version=self.version,
            adds_per_second=medians["adds_per_second"],
            recall_ms=medians["recall_ms"],
            recall=medians["recall"],
        )


def as_markdown(rows: list[Row]) -> str:
    """Return the rows as a Markdown table, with notes; what did not run is there, with the reason."""
    lines = ["| system | version | adds/s | recall p50, ms | recall@10 |", "|---|---|--:|--:|--:|"]
    for row in rows:
        if row.failure is None:
            reached = f"{row.adds_per_second:,.0f} | {row.recall_ms:.1f} | {row.recall:.3f}"
        else:
            reached = f"failed: {row.failure.replace('|', '/')} | – | –"
        lines.append(f"| {row.system} | {row.version} | {reached} |")
    return "\n".join([*lines, "", NOTES])


def table(source: Path | None = None, conversations: int = CONVERSATIONS) -> str:
    """Measure every system in a folder that goes away again, and return the table."""
    with tempfile.TemporaryDirectory() as folder:
        return as_markdown(run(Path(folder), source, conversations))
