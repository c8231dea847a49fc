"""A process of the soak: mixed calls on a store for some seconds; prints, as JSON, what it did and what it used.

    python soak_process.py URL NAME SECONDS FOLDER

What it adds is bounded, except for messages, so that its memory must be bounded, too.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mnemic
from mnemic import ConflictError, NotFoundError

SESSION_SIZE = 500
"""How many messages of a process go into one of the shared sessions."""
LIMIT = 30
"""Maximum number of messages of the limited session that all processes share."""
MEMORIES = 40
"""How many memories a process keeps."""
COUNTERS = 3
"""How many notes all processes count in."""
WARM = 0.4
"""Share of the time after which memory and handles are measured for the first time."""


class Load:
    """Calls drawn at random; `counts` says how many of each were acknowledged."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self._url, self._name, self._folder = url, name, folder
        self._rng = random.Random(name)
        self._memory = mnemic.open(url)
        self._home = self._memory.scope("soak", name)
        self._shared = self._memory.scope("soak", "shared")
        self._remembered: list[str] = []
        self.said = 0
        self.limited = 0
        self.increments = [0] * COUNTERS
        self.remembered = 0
        self.counts: Counter[str] = Counter()
        self._kinds: list[tuple[Any, int]] = [
            (self.add, 40), (self.add_limited, 10), (self.increment, 15), (self.remember, 10), (self.recall, 10),
            (self.state, 5), (self.read, 9), (self.export, 1), (self.reopen, 1),
        ]  # fmt: skip

    def run(self, seconds: float) -> dict[str, Any]:
        """Make calls for so long; return what was done and used."""
        calls, weights = zip(*self._kinds, strict=True)
        start = time.monotonic()
        early: dict[str, int] = {}
        while (passed := time.monotonic() - start) < seconds:
            if not early and passed > WARM * seconds:
                early = used()
            call = self._rng.choices(calls, weights)[0]
            call()
            self.counts[call.__name__] += 1
        late = used()
        self._memory.close()
        return {
            "said": self.said, "limited": self.limited, "increments": self.increments, "kept": self._remembered,
            "counts": self.counts, "early": early, "late": late, "closed": used(),
        }  # fmt: skip

    def add(self) -> None:
        chat = self._shared.session(f"s{self.said // SESSION_SIZE}")
        text = f"{self._name}-{self.said}"
        chat.add("user", text, once=text if self._rng.random() < 0.3 else None)
        self.said += 1

    def add_limited(self) -> None:
        chat = self._shared.session("limited", max_messages=LIMIT, overflow="drop")
        chat.add("user", f"{self._name}-{self.limited}")
        self.limited += 1
        assert len(chat.messages()) <= LIMIT

    def increment(self) -> None:
        number = self._rng.randrange(COUNTERS)
        while True:
            try:
                note = self._shared.notes.get(f"counter-{number}")
                value, version = int(note.value), note.version
            except NotFoundError:
                value, version = 0, 0
            try:
                self._shared.notes.write(f"counter-{number}", str(value + 1), if_version=version)
            except ConflictError:
                continue
            self.increments[number] += 1
            return

    def remember(self) -> None:
        id = f"{self._name}-m{self.remembered}"
        self._home.remember(f"On day {self.remembered} {self._name} saw {self._rng.randrange(10**6)} birds.", id=id)
        self.remembered += 1
        self._remembered.append(id)
        if len(self._remembered) > MEMORIES:
            half = len(self._remembered) // 2
            gone, self._remembered = self._remembered[:half], self._remembered[half:]
            assert self._home.forget(*gone).matched == len(gone)

    def recall(self) -> None:
        if self._remembered:
            assert self._home.recall("How many birds were seen?", k=3)

    def state(self) -> None:
        self._home.facts.add(self._name, "counts", self._rng.choice(["birds", "stars", "waves"]))
        assert self._home.facts.ask(self._name, "counts")

    def read(self) -> None:
        number = self._rng.randrange(self.said // SESSION_SIZE + 1)
        texts = [message.text or "" for message in self._shared.session(f"s{number}").messages(limit=20)]
        own = [int(text.rpartition("-")[2]) for text in texts if text.startswith(f"{self._name}-")]
        assert own == sorted(set(own)), own

    def export(self) -> None:
        exported = self._home.export_to(self._folder / f"{self._name}.jsonl")
        assert exported.records >= len(self._remembered)

    def reopen(self) -> None:
        with mnemic.open(self._url) as other:
            other.scope("soak", "shared").session("limited").info()


def used(pid: int | None = None) -> dict[str, int]:
    """Return the memory, file handles and threads of a process, by default this one."""
    gc.collect()
    process = Path(f"/proc/{pid or os.getpid()}")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
        "handles": len(list((process / "fd").iterdir())),
        "threads": threading.active_count() if pid is None else len(list((process / "task").iterdir())),
    }


if __name__ == "__main__":
    _, url, name, seconds, folder = sys.argv
    sys.stdout.write(json.dumps(Load(url, name, Path(folder)).run(float(seconds))))
