"""Processes and servers that are killed under load: what was acknowledged is there once and in order, nothing twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import mnemic
from attack import seeds
from faults import DURABLE, Writer
from killed_writers import KilledWriter
from servers import mnemic_server, postgres, valkey
from servers.keyserver import KeyServer, new_cluster
from servers.processes import HOST, Process
from servers.stores import empty_store


def said_by(memory: mnemic.Memory, writer: str) -> list[int]:
    """Return the numbers that a writer has added, in the order in which they stand."""
    texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
    return [int(text.partition("-")[2]) for text in texts if text.startswith(f"{writer}-")]


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize(("name", "kills"), [("sqlite", 25), *((name, 2) for name in DURABLE)])
def test_killed_writers_go_on_where_they_were(tmp_path: Path, name: str, kills: int, seed: int) -> None:
    """Two processes append as fast as they can, are killed at a random moment, and send the last one again."""
    rng = random.Random(seed)
    acknowledged = {0: -1, 1: -1}
    with empty_store(name, tmp_path) as url:
        mnemic.open(url, embedder=None).close()
        for _ in range(kills):
            writers = {n: KilledWriter(url, str(n), last + 1) for n, last in acknowledged.items()}
            for n, writer in writers.items():
                acknowledged[n] = writer.first()
            for writer in writers.values():
                writer.go_on()
            time.sleep(rng.random() * 0.03)
            for writer in writers.values():
                writer.kill()
            for n, writer in writers.items():
                acknowledged[n] = writer.last() or acknowledged[n]
        with mnemic.open(url, embedder=None) as memory:
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
        yield server.process, f"{server.address}/store/?breaker=0&timeout=10"
    finally:
        server.process.kill()


@contextmanager
def own_cluster() -> Iterator[tuple[Process, str]]:
    nodes = new_cluster(valkey.program(), "--appendonly", "yes", "--appendfsync", "always")
    try:
        # A node that was away for a moment is not replaced, as none has a replica, and has its slots when it is back.
        yield nodes[1].process, f"redis+cluster://{HOST}:{nodes[0].port}"
    finally:
        for node in nodes:
            node.process.kill()


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("own_server", [own_postgresql, own_valkey, own_cluster, own_mnemic])
def test_a_killed_server_keeps_what_it_has_acknowledged(
    own_server: Callable[[], AbstractContextManager[tuple[Process, str]]], seed: int
) -> None:
    rng = random.Random(seed)
    with own_server() as (process, url), mnemic.open(url, embedder=None) as memory:
        homes = [memory.scope("acme"), memory.scope("bmce"), memory.scope("acme"), memory.scope("zeta")]
        writers = [Writer(home, f"w{n}", sure=n % 2 == 0) for n, home in enumerate(homes)]
        for writer in writers:
            writer.start()
        for _ in range(5):
            time.sleep(rng.random() * 0.25)
            process.kill()
            process.start()
        before = [writer.acknowledged for writer in writers]
        until = time.monotonic() + 120
        while any(writer.acknowledged == n for writer, n in zip(writers, before, strict=True)):
            assert time.monotonic() < until, "writers do not come back"
            time.sleep(0.05)
        for writer, home in zip(writers, homes, strict=True):
            writer.end()
            writer.check(home)
            assert all(error.retry for error in writer.errors), writer.errors
