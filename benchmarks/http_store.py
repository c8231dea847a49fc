"""A memory at http:// on `mnemic serve`, against the same calls in this process, on files that are alike."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import mnemic

from .measuring import Result, Work, in_turns, time_ratio
from .recalling import QUESTIONS, Texts, fill

MEMORIES = 10_000
AT_ONCE = 100
"""How many messages are added in one call."""


@contextmanager
def served(url: str) -> Iterator[str]:
    """Run `mnemic serve` on a store, without limits and audit log; give its address."""
    argv = [sys.executable, "-m", "mnemic", "serve", "--store", url, "--port", "0", "--rate", "0", "--no-audit"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if (found := re.search(r"http://127\.0\.0\.1:\d+", line)) is not None:
                break
        else:
            raise RuntimeError(f"mnemic serve did not start: {said}")
        try:
            yield found[0]
        finally:
            process.terminate()
            process.stdout.read()


def works(memory: mnemic.Memory) -> dict[str, tuple[Work, int]]:
    """Return what is measured, and how many calls of it make a round."""
    alice = memory.scope("acme", "alice")
    chat = memory.scope("acme", "bob").session("s")
    questions, numbers = count(), count()
    many = [mnemic.Message("user", f"message {n} about tea") for n in range(AT_ONCE)]
    return {
        "add one message": (lambda: chat.add("user", f"message {next(numbers)} about tea"), 50),
        f"add {AT_ONCE} messages at once": (lambda: chat.add_many(many), 5),
        f"recall 10 of {MEMORIES:,} memories": (
            lambda: alice.recall(QUESTIONS[next(questions) % len(QUESTIONS)], 10),
            50,
        ),
        "read the newest 20 messages": (lambda: chat.messages(limit=20), 50),
    }


def run(folder: Path) -> list[Result]:
    """Return what was measured."""
    texts = Texts().some(MEMORIES)
    files = [f"sqlite:///{folder / name}" for name in ("served.db", "here.db")]
    for url in files:
        with mnemic.open(url) as memory:
            fill(memory.scope("acme", "alice"), texts)
    with served(files[0]) as address, mnemic.open(address) as there, mnemic.open(files[1]) as here:
        ours, theirs = works(there), works(here)
        return [
            time_ratio(
                f"{name}, through http:// against in process", None, *in_turns(work, theirs[name][0], calls=calls)
            )
            for name, (work, calls) in ours.items()
        ]
