"""A process that appends to sessions, reads them, and compares and sets notes, and prints what was answered when.

    python history_script.py URL SEED CALLS

Its threads share one memory. Before the first call and in the middle it prints "ready" and waits for a line. A call
that fails is left out, unless it may have been done nevertheless: then it has no end. CLOCK_MONOTONIC is the same for
all processes of a machine.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

import mnemic
from mnemic import ConflictError, NotFoundError, StoreError

THREADS = 2
SESSIONS = ("monday", "tuesday")
NOTES = ("x", "y")


class Client:
    """One thread: what it does next is drawn from its seed."""

    def __init__(self, memory: mnemic.Memory, seed: str) -> None:
        self._home = memory.scope("acme")
        self._rng = random.Random(seed)
        self._seed = seed
        self._seen: dict[str, int] = {}
        self.history: list[dict[str, Any]] = []

    def run(self, first: int, end: int) -> None:
        """Make the calls with these numbers."""
        for n in range(first, end):
            if self._rng.random() < 0.5:
                self._use_session(self._rng.choice(SESSIONS), f"{self._seed}-{n}")
            else:
                self._use_note(self._rng.choice(NOTES), f"{self._seed}-{n}")

    def _use_session(self, name: str, text: str) -> None:
        chat = self._home.session(name)
        began = time.monotonic_ns()
        appends = self._rng.random() < 0.6
        try:
            if appends:
                chat.add("user", text)
                self._note(name, began, ("append", text), None)
            else:
                self._note(name, began, ("read",), [message.text for message in chat.messages()])
        except StoreError as error:
            if appends and error.unsure:
                self._note(name, began, ("append", text), None, ended=None)

    def _use_note(self, key: str, value: str) -> None:
        began = time.monotonic_ns()
        if self._rng.random() < 0.6 and key in self._seen:
            expected = self._seen[key]
            try:
                version = self._home.notes.write(key, value, if_version=expected).version
            except ConflictError as error:
                self._note(key, began, ("set", value, expected), None)
                self._seen[key] = error.current
            except StoreError as error:
                del self._seen[key]
                if error.unsure:
                    self._note(key, began, ("set", value, expected), None, ended=None)
            else:
                self._note(key, began, ("set", value, expected), version)
                self._seen[key] = version
            return
        try:
            note = self._home.notes.get(key)
        except NotFoundError:
            self._note(key, began, ("read",), (None, 0))
            self._seen[key] = 0
        except StoreError:
            return
        else:
            self._note(key, began, ("read",), (note.value, note.version))
            self._seen[key] = note.version

    def _note(self, thing: str, began: int, asked: tuple[Any, ...], answer: Any, ended: int | None = 0) -> None:
        ended = time.monotonic_ns() if ended == 0 else ended
        self.history.append({"thing": thing, "began": began, "ended": ended, "asked": asked, "answer": answer})


def main(url: str, seed: str, calls: int) -> None:
    """Make the calls of all threads, and print them."""
    with mnemic.open(url, embedder=None) as memory:
        clients = [Client(memory, f"{seed}.{n}") for n in range(THREADS)]
        for part in ((0, calls // 2), (calls // 2, calls)):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.readline()
            threads = [threading.Thread(target=client.run, args=part) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    json.dump([call for client in clients for call in client.history], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
