"""A helper process that stops the test servers and removes their files after the test run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

PATIENCE = 5.0
"""Seconds that a server has to stop by itself."""


def main(folder: str) -> None:
    """Track processes, named line by line on stdin, and stop them when stdin closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    held: dict[int, int] = {}
    for line in sys.stdin:
        word, pid, how = line.split()
        if word == "hold":
            held[int(pid)] = int(how)
        else:
            held.pop(int(pid), None)
    for pid, how in held.items():
        _send(pid, how)
    until = time.monotonic() + PATIENCE
    while held and time.monotonic() < until:
        time.sleep(0.02)
        held = {pid: how for pid, how in held.items() if _send(pid, 0)}
    for pid in held:
        _send(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _send(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
