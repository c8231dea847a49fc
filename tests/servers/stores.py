"""Empty stores and companion indexes for the tests, by name: embedded ones, and on real servers and emulators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import mnemic
from mnemic.store.protocol import Capability
from mnemic.testing.harness import Empty, Target

from . import aws, mnemic_server, postgres, redis, valkey

REMOTE = ["valkey", "postgresql", "dynamodb", "s3", "http"]
"""One store of each back-end across a network that all of the API can use."""

_SERVER = frozenset({Capability.DURABLE, Capability.SHARED, Capability.ATOMIC, Capability.RECORDS})
_WITH_INDEX = _SERVER | {Capability.NEAREST}


def _memory(folder: Path) -> AbstractContextManager[str]:
    return nullcontext(f"memory://{folder.name}")


def _file(scheme: str, name: str) -> Empty:
    return lambda folder: nullcontext(f"{scheme}:///{folder}/{name}")


def empty_file(folder: Path) -> AbstractContextManager[str]:
    """Provide the URL of an empty SQLite store, a copy of one that was created once."""
    path = folder / "memory.db"
    path.write_bytes(_empty_file())
    path.chmod(0o600)
    return nullcontext(f"sqlite:///{path}?synchronous=normal")


@cache
def _empty_file() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        mnemic.open(f"sqlite:///{path}").close()
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        return path.read_bytes()


@contextmanager
def _qdrant(folder: Path) -> Iterator[str]:
    # Each point is a transaction of its own, which takes milliseconds on disk.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else folder) as made:
        yield f"qdrant:///{made}/qdrant"


STORES: dict[str, Target] = {
    target.name: target
    for target in [
        Target("memory", _memory, frozenset({Capability.ATOMIC, Capability.RECORDS}), inline=True),
        Target("sqlite", empty_file, _SERVER, inline=True),
        Target("postgresql", postgres.empty_database, _WITH_INDEX),
        Target("postgresql-confined", postgres.confined_database, _WITH_INDEX),
        Target("postgresql-plain", partial(postgres.empty_database, extensions=False), _SERVER),
        Target("redis7", redis.empty_keyspace, _SERVER),
        Target("redis8", partial(redis.empty_keyspace, server=redis.server8), _WITH_INDEX),
        Target("valkey", valkey.empty_keyspace, _SERVER),
        Target("valkey-cluster", valkey.empty_cluster_keyspace, _SERVER),
        Target("dynamodb", aws.empty_table, _SERVER),
        Target("dynamodb-hash", partial(aws.empty_table, layout="hash"), _SERVER),
        Target("dynamodb-moto", partial(aws.empty_table, emulator=aws.moto), _SERVER),
        Target("s3", aws.empty_prefix, _SERVER),
        Target("s3-moto", partial(aws.empty_prefix, emulator=aws.moto), _SERVER),
        Target("http", mnemic_server.empty_served_store, _SERVER | {Capability.SEARCH}),
        Target("agentcore", aws.empty_memory, frozenset({Capability.DURABLE, Capability.SHARED})),
    ]
}
"""Stores by name, with what they must be able to do: losing a capability is a failure."""

INDEXES: dict[str, Target] = {
    target.name: target
    for target in [
        Target("lancedb", _file("lancedb", "lance")),
        Target("milvus", _file("milvus", "milvus.db")),
        Target("qdrant", _qdrant),
    ]
}


def empty_store(name: str, folder: Path) -> AbstractContextManager[str]:
    """Provide the URL of an empty store."""
    return STORES[name].empty(folder)
