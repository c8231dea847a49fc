"""Histories of concurrent calls on a Redis Cluster, in which a replica takes over in the middle.

Told to, a primary hands over without losing anything: the history is linearizable. If it is killed, what it had not
replicated is lost, as documented, and nothing else: the history is linearizable with a failover in it that takes the
newest changes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

import history_script
from attack import seeds
from linearizability import Call, is_linearizable, log, register
from mnemic.backends.redis.codec import RedisKeys
from servers import valkey
from servers.keyserver import KeyServer, add_replica, new_cluster, wait_until_replicated
from servers.processes import HOST, PATIENCE
from test_attack_histories import record

CALLS = 60
MODELS = {**dict.fromkeys(history_script.SESSIONS, log), **dict.fromkeys(history_script.NOTES, register)}


class Pair:
    """The primary of a cluster that has the first session, and its replica."""

    def __init__(self, nodes: Sequence[KeyServer]) -> None:
        # The slot depends on the scope alone.
        key = RedisKeys("any").stream((f"acme/{history_script.SESSIONS[0]}", "message")).state.decode()
        slot = int(nodes[0].ask("CLUSTER", "KEYSLOT", key))
        first = next(node for node in nodes if slot in slots(node))
        self.nodes = [first, add_replica(nodes, first, valkey.program())]
        self.url = f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in (*nodes, self.nodes[1]))}"

    def primary_and_replica(self) -> list[KeyServer]:
        """Return the nodes by their roles."""
        return sorted(self.nodes, key=lambda node: not is_primary(node))


def is_primary(node: KeyServer) -> bool:
    return str(node.ask("ROLE")[0]) == "master"


def wait_until_primary(node: KeyServer) -> None:
    """Wait until a replica has taken over."""
    until = time.monotonic() + PATIENCE
    while not is_primary(node):
        assert time.monotonic() < until, "the replica does not take over"
        time.sleep(0.05)


def slots(node: KeyServer) -> range:
    """Return the slots of a node, of which a new cluster gives each one range."""
    own = node.ask("CLUSTER", "MYID")
    for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS"):
        if own in map(str, primary):
            return range(int(first), int(last) + 1)
    return range(0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    nodes = list(new_cluster(valkey.program()))
    try:
        found = Pair(nodes)
        nodes.append(found.nodes[1])
        yield found
    finally:
        for node in nodes:
            node.process.kill()


def histories(pair: Pair, name: str, seed: int, at_half: Callable[[], object]) -> dict[str, list[Call]]:
    found = record(f"{pair.url}?prefix={name}{seed}", seed, CALLS, at_half)
    assert found.keys() == MODELS.keys()
    return found


@pytest.mark.parametrize("seed", seeds())
def test_a_primary_that_hands_over_loses_nothing(pair: Pair, seed: int) -> None:
    before, replica = pair.primary_and_replica()
    found = histories(pair, "handed", seed, lambda: replica.ask("CLUSTER", "FAILOVER"))
    for thing, history in found.items():
        assert is_linearizable(history, MODELS[thing])
    wait_until_primary(replica)
    wait_until_replicated(before)


@pytest.mark.parametrize("seed", seeds())
def test_a_primary_that_is_killed_loses_only_the_newest(pair: Pair, seed: int) -> None:
    primary, replica = pair.primary_and_replica()
    killed: list[int] = []

    def kill() -> None:
        killed.append(time.monotonic_ns())
        primary.process.kill()

    found = histories(pair, "killed", seed, kill)
    wait_until_primary(replica)
    for thing, history in found.items():
        after = min((call.ended for call in history if call.began > killed[0]), default=killed[0] + 1)
        assert is_linearizable([*history, Call(killed[0], after, ("failover",))], MODELS[thing])
    primary.process.start()
    wait_until_replicated(primary)
