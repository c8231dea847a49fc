"""Processes and servers that are killed under load: what was acknowledged is there once and in order, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import mnemic
from attack import seeds
from killed_writers import KilledWriter
from mnemic import StoreError
from servers import mnemic_server, postgres, valkey
from servers.keyserver import KeyServer
from servers.processes import Process


def said_by(memory: mnemic.Memory, writer: str) -> list[int]:
    """Return the numbers that a writer has added, in the order in which they stand."""
    texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
    return [int(text.partition("-")[2]) for text in texts if text.startswith(f"{writer}-")]


@pytest.mark.parametrize("seed", seeds())
def test_killed_writers_go_on_where_they_were(tmp_path: Path, seed: int) -> None:
    """Two processes append as fast as they can, are killed at a random moment, and send the last one again."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    rng = random.Random(seed)
    acknowledged = {0: -1, 1: -1}
    for _ in range(25):
        writers = {n: KilledWriter(url, str(n), last + 1) for n, last in acknowledged.items()}
        for n, writer in writers.items():
            acknowledged[n] = writer.first()
        time.sleep(rng.random() * 0.03)
        for writer in writers.values():
            writer.kill()
        for n, writer in writers.items():
            acknowledged[n] = writer.last() or acknowledged[n]
    with mnemic.open(url) as memory:
        for n, last in acknowledged.items():
            found = said_by(memory, str(n))
            assert found == list(range(len(found)))
            assert last + 1 <= len(found) <= last + 2, "at most one was stored and not acknowledged"
        info = memory.scope("acme").session("shared").info()
        assert info is not None
        assert info.messages == len(memory.scope("acme").session("shared").messages())


# ------------------------------------------------------------ servers


@contextmanager
def own_postgresql() -> Iterator[tuple[Process, str]]:
    server = postgres.Postgres()
    try:
        yield server.process, server.url()
    finally:
        server.remove()


@contextmanager
def own_valkey() -> Iterator[tuple[Process, str]]:
    server = KeyServer(valkey.program(), "--appendonly", "yes", "--appendfsync", "always")
    try:
        yield server.process, server.url
    finally:
        server.process.kill()


@contextmanager
def own_mnemic() -> Iterator[tuple[Process, str]]:
    server = mnemic_server.HttpServer()
    try:
        yield server.process, f"{server.address}/store/?breaker=0"
    finally:
        server.process.kill()


class Writer(threading.Thread):
    """Appends until it is told to stop; one that is `sure` sends each message again until it is acknowledged."""

    def __init__(self, memory: mnemic.Memory, name: str, *, sure: bool, ended: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._chat = memory.scope("acme").session("shared")
        self._sure = sure
        self._ended = ended
        self.acknowledged: list[int] = []
        self.escaped: list[BaseException] = []

    def run(self) -> None:
        n = 0
        while not self._ended.is_set():
            try:
                self._chat.add("user", f"{self.name}-{n}", once=f"{self.name}-{n}" if self._sure else None)
                self.acknowledged.append(n)
                n += 1
            except StoreError:
                n += not self._sure
            except BaseException as error:
                self.escaped.append(error)
                return


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("own_server", [own_postgresql, own_valkey, own_mnemic])
def test_a_killed_server_keeps_what_it_has_acknowledged(
    own_server: Callable[[], AbstractContextManager[tuple[Process, str]]], seed: int
) -> None:
    rng = random.Random(seed)
    ended = threading.Event()
    with own_server() as (process, url), mnemic.open(url, embedder=None) as memory:
        writers = [Writer(memory, f"w{n}", sure=n % 2 == 0, ended=ended) for n in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(5):
            time.sleep(0.2 + rng.random() * 0.3)
            process.kill()
            process.start()
        before = [len(writer.acknowledged) for writer in writers]
        until = time.monotonic() + 30
        while any(len(w.acknowledged) == n for w, n in zip(writers, before, strict=True)):
            assert time.monotonic() < until, "writers do not come back"
            time.sleep(0.05)
        ended.set()
        for writer in writers:
            writer.join(30)
            assert not writer.escaped
        for writer in writers:
            found = said_by(memory, writer.name)
            assert found == sorted(set(found)), "out of order, or twice"
            assert set(writer.acknowledged) <= set(found)
            if writer.name in ("w0", "w2"):
                assert found[: len(writer.acknowledged)] == list(range(len(writer.acknowledged)))
