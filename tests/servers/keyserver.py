"""A Redis-compatible server, alone or as a cluster of three, with a key prefix for each test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from .processes import HOST, PATIENCE, Process, free_port, needed, new_folder

_SLOTS = 16384


class KeyServer:
    """A Redis-compatible server that keeps its port across restarts."""

    def __init__(
        self, program: Path, *options: str, environment: dict[str, str] | None = None, bus: bool = False
    ) -> None:
        needed("redis")
        self.port: int = free_port(10000) if bus else free_port()
        folder = new_folder("keys")
        flags = ["--port", str(self.port), "--bind", HOST, "--save", "", "--dir", str(folder), *options]
        self.process: Process = Process([program, *flags], folder=folder, ready=self._is_ready, environment=environment)
        self.process.start()

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://{HOST}:{self.port}/0"

    def ask(self, *command: str) -> Any:
        """Send one command and return its answer."""
        with self.connection() as client:
            return client.execute_command(*command)

    def connection(self) -> Any:
        """Return a client of one connection, to be closed."""
        import redis

        return redis.Redis(port=self.port, decode_responses=True, single_connection_client=True)

    def _is_ready(self) -> bool:
        import redis

        try:
            return bool(self.ask("PING"))
        except redis.ConnectionError:  # which includes "loading"
            return False


def new_cluster(program: Path, *more: str, environment: dict[str, str] | None = None) -> Sequence[KeyServer]:
    """Return the three nodes of a new cluster, once they agree on the slots."""
    options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *more]
    nodes = [KeyServer(program, *options, environment=environment, bus=True) for _ in range(3)]
    for number, node in enumerate(nodes):
        first, end = (_SLOTS * n // len(nodes) for n in (number, number + 1))
        node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
        nodes[0].ask("CLUSTER", "MEET", HOST, str(node.port))
    until = time.monotonic() + PATIENCE
    while not all(_is_joined(node, len(nodes)) for node in nodes):
        if time.monotonic() > until:
            raise TimeoutError("the nodes of the cluster do not find one another")
        time.sleep(0.02)
    return nodes


@contextmanager
def own_prefix(url: str) -> Iterator[str]:
    """Provide a server's URL with a new prefix; its keys are deleted afterwards."""
    needed("redis")
    prefix = f"mnemic-trial-{uuid4().hex[:12]}"
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, f"prefix={prefix}") if part)
    try:
        yield urlunsplit(parts._replace(query=query))
    finally:
        with connected(url) as client:
            for pattern in (f"{prefix}*", f"{{{prefix}*"):  # also as a hash tag, so that keys share a slot
                for key in client.scan_iter(pattern, count=1000):
                    client.unlink(key)


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Provide a client of a server or a cluster, whose connections are closed afterwards."""
    import redis

    parts = urlsplit(url)
    plain = urlunsplit(parts._replace(scheme=parts.scheme.partition("+")[0]))
    if "cluster" not in parts.scheme:
        with redis.Redis.from_url(plain) as client:
            yield client
        return
    with redis.RedisCluster.from_url(plain) as cluster:
        try:
            yield cluster
        finally:
            for node in cluster.get_nodes():  # the driver leaves the pools of a client from a URL open
                node.redis_connection.connection_pool.disconnect()


def _is_joined(node: KeyServer, size: int) -> bool:
    told = node.ask("CLUSTER", "INFO").split()
    return {"cluster_state:ok", f"cluster_known_nodes:{size}"} <= set(told)


def add_replica(nodes: Sequence[KeyServer], primary: KeyServer, program: Path) -> KeyServer:
    """Return a new node of a cluster that has all data of a primary, and follows it."""
    import redis

    replica = KeyServer(program, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", bus=True)
    replica.ask("CLUSTER", "MEET", HOST, str(nodes[0].port))
    known = primary.ask("CLUSTER", "MYID")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            replica.ask("CLUSTER", "REPLICATE", known)
            break
        except redis.ResponseError:  # it does not know that node yet
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    wait_until_replicated(replica)
    return replica


def wait_until_replicated(replica: KeyServer) -> None:
    """Wait until a replica has the data of its primary, and follows it."""
    until = time.monotonic() + PATIENCE
    while replica.ask("INFO", "replication").get("master_link_status") != "up":
        if time.monotonic() > until:
            raise TimeoutError("the replica does not find its primary")
        time.sleep(0.02)
