"""A network that fails at random between client and server: only errors of ours, nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import mnemic
from attack import seeds
from faulty_proxy import Cut, FaultyProxy, Garbage, Mode, Pass, Slow, Stall, proxy_for
from mnemic import StoreError
from servers.stores import REMOTE, empty_store

WRITERS = 3
SECONDS = 4.0
"""How long the network fails."""


def any_fault(rng: random.Random) -> Mode:
    """Return something that goes wrong on networks."""
    after = rng.choice([0, 1, 7, 60, 200, rng.randrange(2000)])
    data = rng.choice(
        [
            rng.randbytes(rng.randrange(1, 200)),
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 500 \xff\r\nContent-Length: 5\r\n\r\n\xff\xfe<!\x00",
            b"$-1\r\n*3\r\n:1\r\n",
        ]
    )
    faults: list[Mode] = [
        Cut(after),
        Cut(after, times=1),
        Garbage(data, after),
        Stall(),
        Stall(requests=True),
        Slow(37, 0.001),
    ]
    return rng.choice(faults)


def spoil(proxy: FaultyProxy, rng: random.Random, seconds: float) -> None:
    """Let the network fail in one way after another, with a little time between in which it works."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        proxy.mode = any_fault(rng)
        time.sleep(rng.random() * 0.2)
        proxy.mode = Pass()
        if rng.random() < 0.3:
            proxy.drop()
        time.sleep(rng.random() * 0.2)


class Writer(threading.Thread):
    """Adds messages, memories and notes; one that is `sure` sends each again, by name, until it is acknowledged."""

    def __init__(self, memory: mnemic.Memory, number: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.sure = number % 2 == 0
        self.scope = f"writer-{number}"
        self._home = memory.scope(self.scope)
        self._ended = ended
        self.acknowledged: list[str] = []
        self.escaped: list[BaseException] = []

    def run(self) -> None:
        n = 0
        while not self._ended.is_set():
            text = f"{self.scope}-{n}"
            once = text if self.sure else None
            try:
                if n % 3:
                    self._home.session("s").add("user", text, once=once)
                else:
                    self._home.remember(text, once=once)
                self.acknowledged.append(text)
                n += 1
                self._home.session("s").messages(limit=3)
            except StoreError:
                n += not self.sure and text not in self.acknowledged
            except BaseException as error:
                self.escaped.append(error)
                return


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("name", REMOTE)
def test_a_network_that_fails_at_random_loses_and_doubles_nothing(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    ended = threading.Event()
    with empty_store(name, tmp_path) as url, proxy_for(url) as proxy:
        mnemic.open(url, embedder=None).close()  # what takes long, such as making a table, is not attacked
        through = proxy.url(url)
        with mnemic.open(f"{through}{'&' if '?' in through else '?'}timeout=3", embedder=None) as memory:
            writers = [Writer(memory, n, ended) for n in range(WRITERS)]
            for writer in writers:
                writer.start()
            connected = proxy.accepted
            spoil(proxy, rng, SECONDS)
            ended.set()
            for writer in writers:
                writer.join(30)
                assert not writer.is_alive(), "a call does not end"
                assert not writer.escaped, writer.escaped
        assert proxy.accepted > connected, "no connection was lost: nothing was shown"
        assert sum(len(writer.acknowledged) for writer in writers)
        with mnemic.open(url, embedder=None) as memory:
            for writer in writers:
                check(memory.scope(writer.scope), writer)


def check(home: mnemic.Scope, writer: Writer) -> None:
    """Compare what is stored with what a writer was told."""
    said = [message.text or "" for message in home.session("s").messages()]
    remembered = [memory.text for memory in home.memories.list()]
    for found in (said, remembered):
        numbers = [int(text.rpartition("-")[2]) for text in found]
        assert numbers == sorted(set(numbers)), "out of order, or twice"
    assert set(writer.acknowledged) <= {*said, *remembered}
    assert home.stats().messages == len(said)
    if writer.sure:
        assert len(said) + len(remembered) <= len(writer.acknowledged) + 1
