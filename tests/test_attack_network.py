"""A network that fails at random between client and server: only errors of ours, nothing lost, nothing twice."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from attack import seeds
from faults import DURABLE, Network, Writer, network, said
from faulty_proxy import Cut, Garbage, Mode, Pass, Slow, Stall
from layered import KEY

WRITERS = 3
FAULTS = 8
"""How often the network fails."""


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
        Cut(after, requests=True),
        Cut(after, times=1, requests=True),
        Garbage(data, after),
        Stall(),
        Stall(requests=True),
        Slow(37, 0.001),
    ]
    return rng.choice(faults)


def spoil(net: Network, rng: random.Random) -> None:
    """Let the network fail in one way after another, with a little time between in which it works."""
    for _ in range(FAULTS):
        net.set(any_fault(rng))
        time.sleep(rng.random() * 0.2)
        net.set(Pass())
        if rng.random() < 0.3:
            net.drop()
        time.sleep(rng.random() * 0.2)


LAYERS: dict[str, Any] = {
    "encryption_key": KEY, "audit": True, "history": timedelta(days=1), "redact": True,
}  # fmt: skip


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize(
    ("name", "layers"), [*((name, {}) for name in DURABLE), ("postgresql", LAYERS), ("valkey", LAYERS)]
)
def test_a_network_that_fails_at_random_loses_and_doubles_nothing(
    name: str, layers: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    with network(name, tmp_path) as net:
        with mnemic.open(net.url, embedder=None, **layers) as memory:
            memory.scope("w0").session("shared").info()
        with net.open("timeout=3", **layers) as memory:
            writers = [Writer(memory.scope(f"w{n}"), f"w{n}", sure=n % 2 == 0, memories=True) for n in range(WRITERS)]
            for writer in writers:
                writer.start()
            connected = net.accepted
            spoil(net, rng)
            for writer in writers:
                writer.end()
        assert net.accepted > connected, "no connection was lost: nothing was shown"
        assert sum(writer.acknowledged for writer in writers)
        with mnemic.open(net.url, embedder=None, **layers) as memory:
            for writer in writers:
                home = memory.scope(writer.name)
                writer.check(home)
                assert home.stats().messages == len(said(home.session("shared")))
