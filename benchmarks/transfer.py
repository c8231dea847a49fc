"""Imports: our JSON lines against `add_many`, and the memory that a large export of ChatGPT takes, on Linux.

`python -m benchmarks.transfer MEGABYTES` imports one file of that size, and prints its time and peak memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import mnemic

from .embedded import text
from .measuring import Result, in_turns, rate_share

MESSAGES = 10_000
AT_ONCE = 1000
RUN_IMPORT = textwrap.dedent("""
    import re, sys, time
    import mnemic
    start = time.perf_counter()
    with mnemic.open(sys.argv[2]) as memory:
        done = memory.scope("me").import_from(sys.argv[1])
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())  # of this program alone
    print(done.records, int(peak[1]) // 1024, time.perf_counter() - start)
""")


def run(folder: Path) -> list[Result]:
    """Measure imports; the files are written to the folder."""
    return [*rates(folder), bounded(folder)]


def rates(folder: Path) -> Iterator[Result]:
    """Yield how fast our own export is imported into a new SQLite file, against add_many into another."""
    messages = [mnemic.Message("user" if n % 2 else "assistant", text(n)) for n in range(MESSAGES)]
    numbers = count()
    exported = folder / "export.jsonl"

    def add() -> None:
        with mnemic.open(f"sqlite:///{folder}/add{next(numbers)}.db") as memory:
            chat = memory.scope("acme").session("long")
            for start in range(0, MESSAGES, AT_ONCE):
                chat.add_many(messages[start : start + AT_ONCE])
            if not exported.exists():
                memory.export_to(exported)

    def import_() -> None:
        with mnemic.open(f"sqlite:///{folder}/import{next(numbers)}.db") as memory:
            assert memory.import_from(exported).written == MESSAGES

    add()
    ours, baseline = in_turns(import_, add, calls=1, rounds=5)
    what = f"import {MESSAGES:,} messages from our JSON lines into SQLite, against `add_many` of {AT_ONCE:,} at once"
    yield rate_share(what, 0.6, ours / MESSAGES, baseline / MESSAGES)
    yield Result("the same, messages a second", "at least 10,000", f"{MESSAGES / ours:,.0f}", MESSAGES / ours >= 10_000)


def bounded(folder: Path) -> Result:
    """Return how the peak memory grows with the size of ChatGPT's export."""
    small, large = (import_conversations(folder, size)[1] for size in (8, 64))
    reached = f"{large / small:.2f}× ({large:,} against {small:,} MB)"
    return Result("peak memory: a ChatGPT export of 64 MB, against 8 MB", "at most 1.5×", reached, large <= 1.5 * small)


def import_conversations(folder: Path, megabytes: int) -> tuple[int, int, float]:
    """Import a generated export of ChatGPT in a process of its own; return its records, megabytes and seconds."""
    path = folder / f"conversations-{megabytes}.json"
    write_conversations(path, megabytes * 1024 * 1024)
    command = [sys.executable, "-c", RUN_IMPORT, str(path), f"sqlite:///{folder}/chats{megabytes}.db"]
    records, peak, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(records), int(peak), float(seconds)


def write_conversations(path: Path, size: int) -> None:
    """Write an export of ChatGPT of about this many bytes: conversations of 100 messages."""
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        n = 0
        while file.tell() < size:
            nodes = {str(m): _node(n, m) for m in range(100)}
            file.write("," * bool(n) + json.dumps({"conversation_id": f"c{n}", "title": f"Chat {n}", "mapping": nodes}))
            n += 1
        file.write("]")


def _node(n: int, m: int) -> dict[str, object]:
    message = {
        "author": {"role": "user" if m % 2 == 0 else "assistant"},
        "create_time": 1_700_000_000 + n * 100 + m,
        "content": {"content_type": "text", "parts": [4 * text(n * 100 + m)]},
    }
    children = [str(m + 1)] if m < 99 else []
    return {"message": message, "parent": str(m - 1) if m else None, "children": children}


if __name__ == "__main__":
    found = import_conversations(Path(sys.argv[2] if len(sys.argv) > 2 else "."), int(sys.argv[1]))
    print(f"{found[0]:,} records, peak memory {found[1]:,} MB, {found[2]:,.0f} s")
