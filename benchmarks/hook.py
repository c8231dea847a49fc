"""`mnemic hook`, from the start of its process to its end: recall for a prompt, and storing a turn.

Bytecode is cached, as in an installed package. Processor time is shown beside the time on the clock, since on a machine
that does other work only the latter grows.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import mnemic

from .embedded import text
from .measuring import Result

SESSIONS, MESSAGES = 20, 100
RUNS = 21
MOST = 0.4


def run(folder: Path) -> list[Result]:
    """Measure hooks on a store of 2,000 messages, in turns with a process that only loads numpy."""
    store = f"sqlite:///{folder}/memory.db"
    transcript = folder / "transcript.jsonl"
    with mnemic.open(store) as memory:
        scope = memory.scope("project")
        for session in range(SESSIONS):
            scope.session(f"s{session}").add_many(
                [mnemic.Message("user", text(session * MESSAGES + number)) for number in range(MESSAGES)]
            )
        memory.warm("project")
    given = {"session_id": "now", "transcript_path": str(transcript), "cwd": str(folder), "prompt": text(77)}
    options = ["--store", store, "--scope", "project", "--timeout", "60", "--log", str(folder / "hooks.log")]
    hook = [sys.executable, "-m", "mnemic", "hook"]
    commands = {
        "recall": [*hook, "UserPromptSubmit", *options],
        "store": [*hook, "Stop", *options],
        "numpy": [sys.executable, "-c", "import numpy"],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "XDG_DATA_HOME": str(folder / "data")}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(RUNS + 1):
        said = {"role": "user", "content": f"turn {number}"}
        line = {"type": "user", "uuid": f"u{number}", "sessionId": "now", "message": said}
        with transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")
        for name, command in commands.items():
            measured = _timed(command, json.dumps(given), environment, answers=name == "recall")
            if number:  # the first run compiles
                times[name].append(measured)
    assert not (folder / "hooks.log").exists(), "no hook failed"
    wall, processor = _medians(times["recall"])
    base_wall, base_processor = _medians(times["numpy"])
    stored_wall, stored_processor = _medians(times["store"])
    return [
        Result(
            "`mnemic hook UserPromptSubmit`, from process start to answer, p50, in a store of 2,000 messages",
            f"at most {MOST * 1000:.0f} ms",
            f"{wall * 1000:.0f} ms ({processor * 1000:.0f} ms of processor time)",
            wall <= MOST,
        ),
        Result(
            "a process that only imports numpy",
            "(to compare)",
            f"{base_wall * 1000:.0f} ms ({base_processor * 1000:.0f} ms of processor time)",
            True,
        ),
        Result(
            "`mnemic hook Stop`, which stores a turn and indexes it",
            "(to compare)",
            f"{stored_wall * 1000:.0f} ms ({stored_processor * 1000:.0f} ms of processor time)",
            True,
        ),
    ]


def _timed(command: list[str], given: str, environment: dict[str, str], *, answers: bool) -> tuple[float, float]:
    """Return how long a process took, on the clock and of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert bool(run.stdout) is answers, run.stderr
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(one[0] for one in times), statistics.median(one[1] for one in times)
