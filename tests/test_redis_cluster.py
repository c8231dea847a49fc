"""Redis clusters: slots of sessions, the list of streams, and failover."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.backends.redis import client as redis_client
from mnemic.backends.redis import store as redis_store
from mnemic.backends.redis.client import RedisConnection
from mnemic.backends.redis.store import RedisEngine
from mnemic.errors import StoreUnavailableError
from mnemic.records import Ref, ScopePath
from mnemic.store.protocol import Store
from mnemic.store.query import Delete, Purge, Put, Scan, StreamScan, Write
from mnemic.testing.harness import KIND, SCOPE, Harness, record
from servers import valkey
from servers.keyserver import KeyServer, new_cluster
from servers.processes import HOST, PATIENCE


@pytest.fixture
def harness() -> Iterator[Harness]:
    with valkey.empty_cluster_keyspace() as url, Harness(url, on_loop=True) as opened:
        yield opened


@pytest.fixture
def client() -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster(host=HOST, port=valkey.cluster()[0].port) as opened:
        yield opened


def engine_of(store: Store) -> RedisEngine:
    assert isinstance(store, KeyValueStore)
    assert isinstance(store._engine, RedisEngine)
    return store._engine


def stored(harness: Harness, client: redis.RedisCluster) -> list[bytes]:
    """Return all keys of a store."""
    prefix = harness.url.partition("prefix=")[2]
    return sorted(client.scan_iter(f"{prefix}{{*"))


def test_a_session_is_in_one_slot_and_sessions_are_on_all_nodes(harness: Harness, client: redis.RedisCluster) -> None:
    for n in range(30):
        scope = ScopePath(f"acme/user{n}/{{x}}")
        harness.put("a", scope=scope, labels={"x": "y"}, derived={"v": b"1"})
        harness.put("b", scope=scope, kind="note")
    find: Any = client.get_node_from_key
    nodes = {find(key).port for key in stored(harness, client) if b":records" in key}
    assert nodes == {node.port for node in valkey.cluster()}
    for n in range(30):
        tag = b"{/acme/user%d/%%7Bx%%7D}" % n
        own = {key_slot(key) for key in stored(harness, client) if tag in key}
        assert len(own) == 1
    assert len(harness.keys(scope=ScopePath(), below=True, kinds=())) == 60


def test_an_append_is_one_round_trip(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.put("a", if_version=0)
    sent: list[bytes] = []
    send = RedisConnection.send_packed_command

    async def counted(connection: RedisConnection, command: Any, check_health: bool = True) -> None:
        sent.append(b"".join(command).split(b"\r\n")[2])
        await send(connection, command, check_health)

    monkeypatch.setattr(RedisConnection, "send_packed_command", counted)
    harness.put("b", if_version=0)
    harness.page(reverse=True, limit=10)
    assert sent == [b"EVALSHA", b"ZREVRANGEBYSCORE"]


def test_dropped_streams_are_unlisted(harness: Harness, client: redis.RedisCluster) -> None:
    before = stored(harness, client)
    scopes = [ScopePath(), ScopePath("secret"), ScopePath("secret/name"), ScopePath("secret/name/deep")]
    for scope in scopes:
        harness.put("a", scope=scope, labels={"x": "y"}, derived={"v": b"1"})
    for scope in scopes:
        harness.write(Purge(scope, KIND, drop=True))
    left = set(stored(harness, client)) - set(before)
    # What tells others that a name was taken off goes by itself.
    assert all(key.endswith(b":unlisted") and client.pttl(key) > 0 for key in left)


def test_the_list_is_right_after_concurrent_creates_and_drops(harness: Harness, client: redis.RedisCluster) -> None:
    stores = [harness.store, harness.open(), harness.open()]
    scopes = [ScopePath(f"t/{n}") for n in range(3)]
    rng = random.Random(5)

    async def trouble(store: Store) -> None:
        for _ in range(25):
            scope = rng.choice(scopes)
            drop = Purge(scope, KIND, drop=True)
            await store.write(Write((drop,) if rng.random() < 0.5 else (Put(record("a", scope=scope)),)))
            if rng.random() < 0.2:
                await store.streams(StreamScan(scope=ScopePath()))

    async def all_at_once() -> None:
        await asyncio.gather(*(trouble(store) for store in stores for _ in range(2)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_store, "LISTED_IN_VAIN", 0)  # so that those who list join in
        harness.run(all_at_once())
    heads = [key for key in stored(harness, client) if key.endswith(b"message:state")]
    assert len(heads) == len(harness.streams())
    assert len(heads) == len(harness.keys(scope=ScopePath(), below=True))


def test_a_stream_unlisted_during_its_creation(harness: Harness) -> None:
    """Between the listing of a new stream and its first write, another process unlists it."""
    other = harness.open()
    listing, others = engine_of(harness.store).list, engine_of(other).list
    announce = listing.announce
    times: list[Any] = []

    async def disturbed(step: Any, names: Any) -> None:
        await announce(step, names)
        if len(times) < 2:
            times.append(names)
            await others.retract(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "announce", disturbed)
        harness.put("a")
    assert len(times) == 2
    assert [stream.scope for stream in harness.streams()] == [SCOPE]


def test_a_stream_created_while_it_is_unlisted(harness: Harness) -> None:
    """Another process has seen that a stream is gone; before it unlists it, the stream is created again."""
    other = harness.open()
    harness.put("a")
    server = engine_of(other).client
    write = server.write
    calls: list[Any] = []

    async def slowly(*arguments: Any, **options: Any) -> bool:
        done = await write(*arguments, **options)
        calls.append(done)
        if len(calls) == 2:  # the drop, and that the stream is seen to be gone
            await harness.store.write(Write((Put(record("b")),)))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "write", slowly)
        harness.run(other.write(Write((Purge(SCOPE, KIND, drop=True),))))
    assert calls == [True, True, False]
    assert harness.keys(scope=ScopePath(), below=True) == ["b"]


def test_a_listed_name_without_a_stream_is_unlisted(
    harness: Harness, client: redis.RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = engine_of(harness.store)

    async def announce() -> None:
        from mnemic.backends.redis.codec import WriteArguments

        await own.list.announce(WriteArguments(), [("ghost", KIND)])

    harness.put("a")
    harness.run(announce())
    shelves = [key for key in stored(harness, client) if key.endswith(b":list")]
    assert sum(client.zcard(key) for key in shelves) == 2
    assert len(harness.streams()) == 1
    assert sum(client.zcard(key) for key in shelves) == 2  # it may be about to be made
    monkeypatch.setattr(redis_store, "LISTED_IN_VAIN", 0)
    assert len(harness.streams()) == 1
    assert sum(client.zcard(key) for key in shelves) == 1


def test_ids_of_writes_cannot_collide_with_streams(harness: Harness) -> None:
    harness.write(Put(record("a")), id="}:head{/")
    harness.write(Delete(Ref(SCOPE, KIND, "no")), id="nothing changes")
    harness.put("no")
    assert harness.write(Delete(Ref(SCOPE, KIND, "no")), id="nothing changes")[0].removed == ()
    assert harness.write(id="no streams at all") == harness.write(id="no streams at all") == []
    assert harness.keys() == ["a", "no"]


@pytest.fixture
def own_cluster() -> Iterator[list[KeyServer]]:
    nodes = list(new_cluster(valkey.program()))
    yield nodes
    for node in nodes:
        node.process.stop()


def test_failover_and_recovery_of_a_node(own_cluster: list[KeyServer], monkeypatch: pytest.MonkeyPatch) -> None:
    replica = KeyServer(valkey.program(), "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", bus=True)
    first = own_cluster[0]
    try:
        replica.ask("CLUSTER", "MEET", HOST, str(first.port))
        primary = first.ask("CLUSTER", "MYID")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                replica.ask("CLUSTER", "REPLICATE", primary)
                break
            except redis.ResponseError:  # it does not know that node yet
                time.sleep(0.05)
        scopes = [ScopePath(f"s{n}") for n in range(40)]
        with Harness(f"redis+cluster://{HOST}:{own_cluster[1].port},{HOST}:{first.port}", on_loop=True) as harness:
            client: Any = engine_of(harness.store).client._calls.client
            nodes = client.get_nodes()
            assert all(node.connection_class is RedisConnection for node in nodes)
            for scope in scopes:
                harness.put("a", scope=scope)
            while "master_link_status:up" not in str(replica.ask("INFO", "replication")).replace("': '", ":"):
                assert time.monotonic() < until
                time.sleep(0.05)
            replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
            for scope in scopes:
                assert harness.put("b", scope=scope).seq == 2
            assert len(harness.keys(scope=ScopePath(), below=True)) == 80
            first.process.kill()
            assert len(harness.keys(scope=ScopePath(), below=True)) == 80
            own_cluster[1].process.kill()
            with monkeypatch.context() as patch:
                patch.setattr(redis_client, "RETRIES", 1)
                with pytest.raises(StoreUnavailableError):
                    harness.keys(scope=ScopePath(), below=True)
            own_cluster[1].process.start()
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    for scope in scopes:
                        harness.put("c", scope=scope)
                    break
                except StoreUnavailableError:
                    assert time.monotonic() < until
    finally:
        replica.process.stop()


def test_many_concurrent_callers(harness: Harness) -> None:
    async def crowd() -> None:
        scopes = [ScopePath(f"u{n}") for n in range(60)]
        await asyncio.gather(*(harness.store.write(Write((Put(record("a", scope=s), 0),))) for s in scopes))
        pages = await asyncio.gather(*(harness.store.scan(Scan(scope=s, kinds=(KIND,))) for s in scopes))
        assert all(len(page.items) == 1 for page in pages)

    harness.run(crowd())
