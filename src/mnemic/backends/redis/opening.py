"""Opens stores on Redis 7.0 or newer, or Valkey, by their URL; docs/backends.md lists the options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ...errors import InvalidValueError, MnemicError, NewerSchemaError
from ...store.diagnosis import diagnosed_by
from ...store.registry import Backend, StoreURL, closed_on_error
from ..calls import LARGE, TIMEOUT, bounded_number, recall_size, seconds
from .client import RedisClient, RedisConnection, SecureRedisConnection, explain
from .codec import RedisKeys
from .store import RedisEngine
from .vector_index import RedisStore

FORMAT = b"1"
"""Version of the key format; other versions cannot be read."""

_PREFIX = re.compile(r"[\w.:/-]{1,100}", re.ASCII)


async def open_store(url: StoreURL) -> RedisStore:
    """Connect and return the store; raises InvalidValueError, or a StoreError."""
    client, keys, large = connect(url)
    store = RedisStore(RedisEngine(client, keys))
    async with closed_on_error(client):
        await _check_format(client, keys)
        await store.find_index(large)
    return store


def connect(url: StoreURL) -> tuple[RedisClient, RedisKeys, int]:
    """Return a client, the keys, and the size from which a scope is searched by the server."""
    secure = url.scheme.startswith("rediss")
    given: dict[str, Any] = url.take(
        prefix=_prefix,
        timeout=seconds,
        connect_timeout=seconds,
        max_connections=bounded_number(1, 10_000),
        recall=recall_size,
        **(_SSL if secure else {}),
    )
    keys = RedisKeys(given.pop("prefix", "mnemic"))
    connections = given.pop("max_connections", 50)
    large = given.pop("recall", LARGE)
    timeout = given.pop("timeout", TIMEOUT)
    settings = {
        "username": unquote(url.split.username or "") or None,
        "password": unquote(url.split.password or "") or None,
        "socket_timeout": timeout,
        "socket_connect_timeout": given.pop("connect_timeout", timeout / 2),
        "health_check_interval": 30,
        "max_connections": connections,
        "protocol": 2,
        # Retries are handled by Mnemic, which knows what may be sent twice.
        "retry": Retry(NoBackoff(), 0),
        **given,
    }
    connection_class = SecureRedisConnection if secure else RedisConnection

    def new_client() -> Redis | RedisCluster:
        try:
            return (_cluster if "cluster" in url.scheme else _single)(url, connection_class, settings)
        except MnemicError:
            raise
        except Exception as error:  # such as a missing TLS file
            raise explain(str(url), error) from error

    return RedisClient(str(url), new_client, connections, timeout), keys, large


def _single(url: StoreURL, connection_class: type[RedisConnection], settings: dict[str, Any]) -> Redis:
    ((host, port),) = _hosts(url, most=1)
    path = url.split.path.strip("/")
    if not (path.isdecimal() or not path):
        raise InvalidValueError(f"{url} names no database: it is a number, as in redis://localhost:6379/0")
    pool = ConnectionPool(connection_class=connection_class, host=host, port=port, db=int(path or 0), **settings)
    return Redis.from_pool(pool)


def _cluster(url: StoreURL, connection_class: type[RedisConnection], settings: dict[str, Any]) -> RedisCluster:
    if url.split.path.strip("/") not in ("", "0"):
        raise InvalidValueError(f"{url} names a database, but a cluster has only one")
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in _hosts(url)],
        ssl=issubclass(connection_class, SecureRedisConnection),
        require_full_coverage=False,
        # Reloading the whole map would interrupt concurrent calls.
        reinitialize_steps=0,
        **settings,
    )
    client.connection_kwargs["connection_class"] = connection_class
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = connection_class
    return client


def _hosts(url: StoreURL, most: int | None = None) -> list[tuple[str, int]]:
    listed = url.split.netloc.rpartition("@")[2].split(",")
    try:
        parts = [urlsplit(f"//{host}") for host in listed]
        hosts = [(part.hostname or "localhost", part.port or 6379) for part in parts]
    except ValueError:
        raise InvalidValueError(f"{url} names no host and port: a port is a number up to 65535") from None
    if most is not None and len(hosts) > most:
        raise InvalidValueError(f"{url} names several hosts; use redis+cluster:// for a cluster")
    return hosts


async def _check_format(client: RedisClient, keys: RedisKeys) -> None:
    """Check that the store's format is readable, and record it in an empty one."""
    found = await client.read("GET", keys.format)
    if found is None:
        # Another process may do the same at this moment; SET with GET would not tell what it wrote through redis-py.
        await client.read("SET", keys.format, FORMAT, "NX")
        found = await client.read("GET", keys.format)
    if found != FORMAT:
        raise NewerSchemaError(
            f"{client.url} was written by a newer version of Mnemic, in format {found!r}; install that one"
        )


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(text)
    return text


def _file(text: str) -> str:
    if not os.path.isfile(text):  # noqa: PTH113 - which, unlike Path, never raises
        raise ValueError(text)
    return text


_SSL: dict[str, Callable[[str], object]] = {
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_cert_reqs": lambda text: {"required": "required", "none": "none"}[text],
}

BACKEND = Backend(open=open_store, diagnose=diagnosed_by(__package__))
