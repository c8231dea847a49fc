"""Processes that append to a session as fast as they can, and are killed; a fork server makes them in no time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import mnemic

_CONTEXT = multiprocessing.get_context("forkserver")
_DRIVERS = [
    f"mnemic.backends.{name}.store" for name in ("agentcore", "dynamodb", "http", "postgres", "redis", "s3", "sqlite")
]
_CONTEXT.set_forkserver_preload(["__main__", "mnemic.api", *_DRIVERS, "mnemic.backends.http.client", __name__])


class KilledWriter:
    """A process that adds the messages "name-0", "name-1" … each under a name for the call, from `first` on."""

    def __init__(self, url: str, name: str, first: int) -> None:
        self._acknowledged, theirs = _CONTEXT.Pipe(duplex=False)
        going, self._going = _CONTEXT.Pipe(duplex=False)
        arguments = (url, name, first, theirs, going, dict(os.environ))
        self._process = _CONTEXT.Process(target=_append, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        going.close()

    def first(self) -> int:
        """Wait until the first message is acknowledged; return its number; raises EOFError if it fails."""
        return int(self._acknowledged.recv())

    def go_on(self) -> None:
        """Let it add the others.

        It waits for that, since one that needs no read before it appends leaves another no gap for its first.
        """
        self._going.send(None)

    def kill(self) -> None:
        """Kill it as a power cut would."""
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def last(self) -> int | None:
        """Return the number of the last message that was acknowledged; None if it is the first."""
        found = None
        try:
            while True:
                found = int(self._acknowledged.recv())
        except EOFError:
            return found
        finally:
            self._acknowledged.close()
            self._going.close()
            self._process.join()
            self._process.close()


def _append(
    url: str, name: str, first: int, acknowledged: Connection, going: Connection, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # the fork server has that of the first test
    with mnemic.open(url, embedder=None) as memory:
        chat = memory.scope("acme").session("shared")
        for n in range(first, 1_000_000):
            chat.add("user", f"{name}-{n}", once=f"{name}-{n}")
            acknowledged.send(n)
            if n == first:
                going.recv()
