"""Redis: errors, lost answers, restarts, expiry by the server, and key names."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import ssl
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import mnemic
from mnemic.backends.redis import client as redis_client
from mnemic.backends.redis.client import NotSentError, explain
from mnemic.backends.redis.codec import WRITE, RedisKeys
from mnemic.errors import (
    InvalidValueError,
    NewerSchemaError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from mnemic.records import Ref, ScopePath
from mnemic.store import registry
from mnemic.store.query import Delete, Limit, Purge, Put, Scan, Touch, Write
from mnemic.testing.harness import KIND, SCOPE, Harness, record
from servers import valkey
from servers.keyserver import KeyServer
from servers.processes import HOST, PATIENCE
from servers.stores import empty_store


@contextmanager
def own_server(*options: str) -> Iterator[KeyServer]:
    server = KeyServer(valkey.program(), *options)
    try:
        yield server
    finally:
        server.process.stop()


@pytest.fixture
def harness() -> Iterator[Harness]:
    with valkey.empty_keyspace() as url, Harness(url, on_loop=True) as opened:
        yield opened


def open_and_close(text: str) -> None:
    async def work() -> None:
        url, backend = registry.find(text)
        await (await backend.open(url)).close()

    asyncio.run(work())


def commands(server: KeyServer) -> dict[str, int]:
    """Return how often each command has run, also within scripts."""
    stats = server.ask("INFO", "commandstats")
    return {name.removeprefix("cmdstat_"): count["calls"] for name, count in stats.items()}


def prefix(harness: Harness) -> str:
    return harness.url.partition("prefix=")[2]


DRIVER_ERRORS = [
    cls
    for cls in vars(redis.exceptions).values()
    if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == "redis.exceptions"
]


@pytest.mark.parametrize("cls", [*DRIVER_ERRORS, NotSentError, OSError, AttributeError])
def test_every_driver_error_is_mapped(cls: type[Exception]) -> None:
    message = "1 host:1" if issubclass(cls, redis.exceptions.AskError) else "why"
    for lost in (False, True):
        error = explain("redis://me:***@host/0", cls(message), lost=lost)
        assert isinstance(error, StoreError)
        assert "redis://me:***@host/0" in str(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.exceptions.ResponseError("MISCONF Redis is configured to save snapshots"), StoreFullError),
        (redis.exceptions.OutOfMemoryError("command not allowed"), StoreFullError),
        (redis.exceptions.ResponseError("BUSY Redis is busy running a script"), StoreBusyError),
        (redis.exceptions.MaxConnectionsError(), StoreBusyError),
        (redis.exceptions.ConnectionError("max number of clients reached"), StoreBusyError),
        (redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailableError),
        (redis.exceptions.BusyLoadingError("Redis is loading"), StoreUnavailableError),
        (redis.exceptions.ClusterDownError("The cluster is down"), StoreUnavailableError),
        (redis.exceptions.ReadOnlyError("You can't write"), StoreUnavailableError),
        (redis.exceptions.TimeoutError("Timeout reading"), StoreUnavailableError),
        (redis.exceptions.InvalidResponse("Protocol Error: HTTP"), UnreadableStoreError),
        (redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), UnreadableStoreError),
        (redis.exceptions.AuthenticationError("invalid"), StorePermissionError),
        (redis.exceptions.NoPermissionError("no"), StorePermissionError),
        (redis.exceptions.ResponseError("ERR something else"), StoreError),
    ],
)
def test_driver_errors_are_mapped_by_their_meaning(error: Exception, kind: type[StoreError]) -> None:
    assert type(explain("redis://", error)) is kind


def test_the_cause_of_a_cluster_error_is_reported() -> None:
    error = redis.exceptions.RedisClusterException("Redis Cluster cannot be connected")
    error.__cause__ = redis.exceptions.AuthenticationError("invalid password")
    assert isinstance(explain("redis+cluster://", error), StorePermissionError)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis://127.0.0.1:1/0", StoreUnavailableError),
        ("redis+cluster://127.0.0.1:1,127.0.0.1:2", StoreUnavailableError),
        ("redis://localhost/nought", InvalidValueError),
        ("redis://localhost:high", InvalidValueError),
        ("redis://one:1,two:2", InvalidValueError),
        ("redis+cluster://localhost/7", InvalidValueError),
        ("redis://localhost?no=1", InvalidValueError),
        ("redis://localhost?timeout=0", InvalidValueError),
        ("redis://localhost?max_connections=-1", InvalidValueError),
        ("redis://localhost?prefix=a%7Bb%7D", InvalidValueError),
        ("redis://localhost?ssl_cert_reqs=none", InvalidValueError),
        ("rediss://localhost?ssl_ca_certs=/no/such/file", InvalidValueError),
    ],
)
def test_invalid_and_unreachable_urls(url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "RETRIES", 0)
    with pytest.raises(error):
        open_and_close(url)


def test_cluster_url_of_a_single_server_and_vice_versa() -> None:
    alone, node = valkey.server().port, valkey.cluster()[0].port
    for url, hint in (
        (f"redis+cluster://{HOST}:{alone}", "use redis:// instead"),
        (f"redis://{HOST}:{node}?prefix=a", r"use redis\+cluster:// instead"),
        (f"redis://{HOST}:{alone}/99", "no database of this number"),
    ):
        with pytest.raises(UnreadableStoreError, match=hint):
            open_and_close(url)


def test_passwords_and_permissions() -> None:
    with own_server() as server:
        server.ask("ACL", "SETUSER", "reader", "on", ">re:ad/er", "~mnemic{*", "+@read", "+@connection")
        server.ask("ACL", "SETUSER", "reader", "+evalsha", "+eval")
        rights = ("~mnemic{*", "+@read", "+@write", "+@scripting", "+@connection")
        server.ask("ACL", "SETUSER", "writer", "on", ">secret", *rights)
        server.ask("ACL", "SETUSER", "default", ">other")
        at = f"{HOST}:{server.port}"
        with Harness(f"redis://writer:secret@{at}", on_loop=True) as harness:
            harness.put("a", text="here")
            harness.write(Purge(SCOPE, "note", drop=True), id="w")
        with Harness(f"redis://reader:re%3Aad%2Fer@{at}", on_loop=True) as harness:
            assert [harness.keys(), harness.keys(scope=ScopePath(), below=True)] == [["a"], ["a"]]
            with pytest.raises(StorePermissionError, match=r"redis://\*\*\*@"):
                harness.put("b")
        for url in (f"redis://{at}", f"redis://writer:wrong@{at}", f"redis://writer:secret@{at}?prefix=other"):
            with pytest.raises(StorePermissionError) as caught:
                open_and_close(url)
            assert "wrong@" not in str(caught.value)


def test_a_full_server_rejects_writes_but_allows_deletes() -> None:
    with own_server("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        with Harness(server.url, on_loop=True) as harness:

            def fill() -> None:
                for n in range(100):
                    harness.put(f"k{n}", if_version=0, text="x" * 100_000)

            with pytest.raises(StoreFullError):
                fill()
            kept = len(harness.keys())
            stream = harness.stream()
            assert 0 < kept == stream.count
            harness.write(Delete(Ref(SCOPE, KIND, "k0")))
            harness.write(Purge(SCOPE, KIND, drop=True))
            assert harness.keys() == []
            harness.put("new")


def test_a_replica_is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "RETRIES", 1)
    with own_server("--repl-diskless-sync-delay", "0") as primary, own_server() as replica:
        with Harness(primary.url, on_loop=True) as harness:
            harness.put("a")
        replica.ask("REPLICAOF", HOST, str(primary.port))
        until = time.monotonic() + PATIENCE
        while not replica.ask("DBSIZE") and time.monotonic() < until:
            time.sleep(0.05)
        with Harness(replica.url, on_loop=True) as harness:
            assert harness.keys() == ["a"]
            with pytest.raises(StoreUnavailableError, match="replica"):
                harness.put("b")
            replica.ask("REPLICAOF", "NO", "ONE")
            harness.put("b")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_acknowledged_writes_survive_a_restart_and_the_next_call_reconnects(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server("--appendonly", "yes", "--appendfsync", "always") as server:
        with Harness(server.url, on_loop=True) as harness:
            harness.write(Put(record("a", labels={"x": "y"}, derived={"v": b"1"})))
            harness.put("b", scope=ScopePath("c"))
            getattr(server.process, end)()
            with monkeypatch.context() as patch:
                patch.setattr(redis_client, "RETRIES", 0)
                for call in (lambda: harness.put("c"), lambda: harness.keys(), lambda: harness.get("a")):
                    with pytest.raises(StoreUnavailableError):
                        call()
            server.process.start()
            assert harness.put("c").seq == 2
            assert harness.keys() == ["a", "c"]
            getattr(server.process, end)()
            server.process.start()
            assert [s.scope.path for s in harness.streams()] == [SCOPE.path, "c"]


def test_scripts_are_sent_again_after_a_flush(harness: Harness) -> None:
    harness.put("a")
    valkey.server().ask("SCRIPT", "FLUSH")
    harness.put("b", if_version=0)
    valkey.server().ask("SCRIPT", "FLUSH")
    for n in range(3):
        harness.put("c", scope=ScopePath(f"s/{n}"))
    assert harness.get("b") is not None
    assert len(harness.keys(scope=ScopePath(), below=True)) == 5


def test_a_connection_lost_during_a_write(harness: Harness) -> None:
    server = valkey.server()
    harness.put("a")

    async def cut() -> Any:
        server.ask("CLIENT", "PAUSE", "20000", "WRITE")
        try:
            writing = asyncio.create_task(harness.store.write(Write((Put(record("b"), 0),), id="once")))
            while "flags=b" not in server.ask("CLIENT", "LIST"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.ask("CLIENT", "KILL", "TYPE", "normal")
        finally:
            server.ask("CLIENT", "UNPAUSE")
        return await writing

    with pytest.raises(StoreUnavailableError, match="may or may not have been done"):
        harness.run(cut())
    harness.write(Put(record("b"), 0), id="once")
    assert harness.keys() == ["a", "b"]


@asynccontextmanager
async def proxy(port: int, secure: ssl.SSLContext | None = None) -> AsyncGenerator[tuple[int, list[bytes]]]:
    """Run a proxy that loses the answers to commands in the list; yield its port and the list."""
    lost: list[bytes] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: list[bool]) -> None:
        try:
            while data := await reader.read(65536):
                if lost and lost[0] in data:
                    lost.pop(0)
                    deaf.append(True)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: list[bool]) -> None:
        try:
            while (data := await reader.read(65536)) and not deaf:
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        deaf: list[bool] = []
        await asyncio.gather(pass_on(reader, far_writer, deaf), answer(far_reader, writer, deaf))

    server = await asyncio.start_server(serve, HOST, 0, ssl=secure)
    async with server:
        yield server.sockets[0].getsockname()[1], lost


def test_after_a_lost_answer_reads_are_retried_and_writes_are_not() -> None:
    async def lose() -> None:
        async with proxy(valkey.server().port) as (port, lost):
            url, backend = registry.find(f"redis://{HOST}:{port}?prefix={prefix}")
            store = await backend.open(url)
            await store.write(Write((Put(record("a"), 0),)))
            for write in (Write((Put(record("b"), 0),)), Write((Put(record("c"), 0),), id="once")):
                lost.append(WRITE.sha.encode())
                with pytest.raises(StoreUnavailableError, match="may or may not have been done"):
                    await store.write(write)
            assert [did.seq for did in await store.write(write)] == [3]
            lost += [b"ZRANGEBYSCORE"] * 2
            page = await store.scan(Scan(scope=SCOPE, kinds=(KIND,)))
            assert [(item.seq, item.key) for item in page.items] == [(1, "a"), (2, "b"), (3, "c")]
            assert not lost
            await store.close()

    with valkey.empty_keyspace() as text:
        prefix = text.partition("prefix=")[2]
        asyncio.run(lose())


def test_over_tls(tmp_path: Path) -> None:
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate(tmp_path), tmp_path / "key.pem")

    async def talk() -> None:
        async with proxy(valkey.server().port, secure) as (port, _):
            url, backend = registry.find(f"rediss://{HOST}:{port}?prefix={prefix}&ssl_ca_certs={tmp_path / 'cert.pem'}")
            store = await backend.open(url)
            await store.write(Write((Put(record("a"), 0),)))
            assert len((await store.scan(Scan(scope=SCOPE, kinds=(KIND,)))).items) == 1
            await store.close()
            url, backend = registry.find(f"rediss://{HOST}:{port}?prefix={prefix}")
            with pytest.raises(StorePermissionError, match="not trusted"):
                await backend.open(url)

    with valkey.empty_keyspace() as text:
        prefix = text.partition("prefix=")[2]
        asyncio.run(talk())


def certificate(folder: Path) -> Path:
    """Create a self-signed certificate for localhost; return its file."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem"


def test_an_append_is_one_round_trip_and_the_last_ten_are_one_command() -> None:
    with own_server() as server, Harness(server.url, on_loop=True) as harness:
        for n in range(20):
            harness.put(f"k{n}", if_version=0)
        before = commands(server)
        harness.put("new", if_version=0)
        after = commands(server)
        assert after["evalsha"] == before["evalsha"] + 1
        # The rest ran within the script, except for our own question.
        changed = {name for name in after if after[name] != before.get(name)}
        assert changed <= {"evalsha", "get", "hmget", "zadd", "hset", "set", "info", "hello", "client|setinfo"}
        harness.page(reverse=True, limit=10)
        last = commands(server)
        assert last["zrevrangebyscore"] == after.get("zrevrangebyscore", 0) + 1
        assert last["evalsha"] == after["evalsha"]


def test_no_command_scans_all_keys() -> None:
    with own_server() as server, Harness(server.url, on_loop=True) as harness:
        for n in range(5):
            harness.put("k", scope=ScopePath(f"t{n}/u"), labels={"a": "b"}, derived={"x": b"1"})
        harness.scan(scope=ScopePath(), below=True, kinds=())
        harness.streams(scope=ScopePath("t1"))
        harness.write(Limit(ScopePath("t1/u"), KIND, 0, None, (("k",),)))
        harness.write(Purge(ScopePath("t2/u"), KIND, drop=True))
        assert not {"keys", "scan", "hscan", "zscan", "sscan", "flushdb"} & commands(server).keys()


def test_ten_thousand_records_in_one_write(harness: Harness) -> None:
    many = 10_000
    harness.write(*(Put(record(f"k{n}", labels={"n": str(n % 2)}, derived={"v": b"%d" % n}), 0) for n in range(many)))
    stream = harness.stream()
    assert (stream.count, stream.last_seq) == (many, many)
    assert harness.page(derived=("v",), limit=3, reverse=True).items[0].derived == {"v": b"9999"}
    harness.write(*(Put(record(f"k{n}", text="again")) for n in range(many)))
    assert harness.write(Purge(SCOPE, KIND, keep=("k7",)))[0].count == many - 1
    assert harness.keys() == ["k7"]
    with redis.Redis(port=valkey.server().port) as client:
        keys = RedisKeys(prefix(harness)).stream((SCOPE.path, KIND))
        assert (client.zcard(keys.records), client.hlen(keys.slots), client.hlen(keys.derived)) == (1, 1, 1)
        assert client.zcard(keys.labels) == 0


def test_a_write_that_is_too_large_is_rejected_before_it_is_sent(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "LARGEST", 100_000)
    with pytest.raises(TooLargeError):
        harness.write(*(Put(record(f"k{n}", text="x" * 1000)) for n in range(100)))
    assert harness.keys() == []


def test_more_callers_than_connections() -> None:
    with valkey.empty_keyspace() as url, Harness(f"{url}&max_connections=2&timeout=60", on_loop=True) as harness:
        harness.put("a")

        async def crowd() -> list[Any]:
            scans = (harness.store.scan(Scan(scope=SCOPE, kinds=(KIND,))) for _ in range(100))
            return await asyncio.gather(*scans)

        assert all(len(page.items) == 1 for page in harness.run(crowd()))


def test_a_server_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "RETRIES", 1)
    with own_server() as server, Harness(f"{server.url}?timeout=1", on_loop=True) as harness:
        harness.put("a")
        assert server.process.pid is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        for call in (lambda: harness.put("b", if_version=0), lambda: harness.keys()):
            with pytest.raises(StoreUnavailableError, match="no answer within"):
                call()
        os.kill(server.process.pid, signal.SIGCONT)
        assert harness.keys()[0] == "a"


def test_close_closes_all_connections() -> None:
    with own_server() as server, Harness(server.url, on_loop=True) as harness:

        def connected() -> int:
            return int(server.ask("CLIENT", "LIST").count("\n"))

        harness.put("a")
        harness.wait_until(lambda: connected() == 2)  # the one of the harness, and the one that asks

        async def use() -> int:
            url, backend = registry.find(harness.url)
            store = await backend.open(url)
            await asyncio.gather(*(store.scan(Scan(scope=SCOPE, kinds=(KIND,))) for _ in range(20)))
            assert connected() > 2
            await store.close()
            return len(asyncio.all_tasks())

        assert harness.run(use()) == 1
        harness.wait_until(lambda: connected() == 2)


def test_prefixes_separate_stores() -> None:
    with valkey.empty_keyspace() as one, valkey.empty_keyspace() as two:
        with Harness(one, on_loop=True) as first, Harness(two, on_loop=True) as second:
            first.put("a")
            assert second.keys(scope=ScopePath(), below=True) == []
            assert second.is_empty()
            assert second.put("b").seq == 1
            assert first.keys() == ["a"]


def test_foreign_keys_and_newer_formats_are_rejected(harness: Harness) -> None:
    keys = RedisKeys(prefix(harness))
    stream = keys.stream((SCOPE.path, KIND))
    with redis.Redis(port=valkey.server().port) as client:
        client.set(stream.state, "not ours")
        for call in (lambda: harness.put("a"), lambda: harness.stream()):
            with pytest.raises(UnreadableStoreError):
                call()
        assert client.get(stream.state) == b"not ours"
        client.delete(stream.state)
        client.set(stream.records, "text")
        with pytest.raises(UnreadableStoreError):
            harness.keys()
        client.set(keys.format, "2")
        with pytest.raises(NewerSchemaError):
            open_and_close(harness.url)


NAMES = ["a", "a/b", "a}b", "a{b}", "{a}", "}{", "%7D", "%257D", "a%7Db", "é", "漢/字", "", "streams-1", "*?[a]"]


def test_names_cannot_collide_with_other_keys_or_slots() -> None:
    keys = RedisKeys("p")
    seen: dict[bytes, tuple[str, str]] = {}
    for scope in NAMES:
        own = {key_slot(key) for kind in ("k", "l") for key in keys.stream((scope, kind))}
        assert own == {key_slot(keys.unlisted(scope))}
        assert len(own) == 1
        for kind in ("k", "l"):
            for key in keys.stream((scope, kind)):
                assert key not in seen
                seen[key] = (scope, kind)
    assert len({key_slot(keys.stream((scope, "k")).state) for scope in NAMES}) > len(NAMES) - 2
    assert not seen.keys() & {keys.list_part(1), keys.list_times(1), keys.format}


def test_the_server_expires_records_and_seqs_continue(harness: Harness) -> None:
    keys = RedisKeys(prefix(harness)).stream((SCOPE.path, KIND))
    harness.write(
        Put(record("a", labels={"x": "y"}, derived={"v": b"1"}, weight=3)), Touch(SCOPE, KIND, timedelta(seconds=60))
    )
    with redis.Redis(port=valkey.server().port) as client:
        assert all(0 < int(client.pttl(key)) <= 60_001 for key in keys[1:])
        assert client.pttl(keys.state) == -1
        harness.write(Touch(SCOPE, KIND, timedelta(seconds=0.2)))
        harness.wait_until(lambda: client.exists(*keys) == 1)
        assert (harness.keys(), harness.is_empty()) == ([], True)
        assert harness.put("b", weight=2).seq == 2
        stream = harness.stream()
        assert (stream.count, stream.weight, stream.version) == (1, 2, 3)
        assert client.pttl(keys.records) == -1


def test_derived_values_expire_with_the_stream(harness: Harness) -> None:
    from mnemic.store.query import Derive

    keys = RedisKeys(prefix(harness)).stream((SCOPE.path, KIND))
    harness.write(Put(record("a")), Touch(SCOPE, KIND, timedelta(hours=1)))
    harness.write(Derive(Ref(SCOPE, KIND, "a"), "v", b"1"))
    with redis.Redis(port=valkey.server().port) as client:
        assert int(client.pttl(keys.derived)) > 3_500_000
        harness.write(Touch(SCOPE, KIND, None))
        assert [client.pttl(key) for key in (keys.records, keys.slots, keys.derived)] == [-1, -1, -1]


def test_totals_are_right_despite_a_slow_clock(harness: Harness) -> None:
    """The server has expired a stream that, by another writer's clock, has not expired."""
    other = harness.open()
    late: Callable[[], datetime] = lambda: datetime.now(UTC) - timedelta(seconds=60)  # noqa: E731
    other.clock = late
    harness.write(Put(record("a", weight=3)), Touch(SCOPE, KIND, timedelta(seconds=0.3)))
    harness.wait_until(lambda: harness.keys() == [])
    harness.run(other.write(Write((Put(record("b", weight=2), 0),))))
    harness.put("c", if_version=0, weight=2)
    stream = harness.stream()
    assert (harness.keys(), stream.count, stream.weight, stream.last_seq) == (["b", "c"], 2, 4, 3)


def test_a_wrong_clock_does_not_change_the_time_to_live(harness: Harness) -> None:
    early: Callable[[], datetime] = lambda: datetime.now(UTC) + timedelta(days=1)  # noqa: E731
    harness.store.clock = early
    harness.write(Put(record("a")), Touch(SCOPE, KIND, timedelta(seconds=60)))
    assert harness.keys() == ["a"]
    harness.write(Touch(SCOPE, KIND, timedelta(seconds=0.2)))
    harness.wait_until(lambda: harness.keys() == [])


APPEND = textwrap.dedent("""
    import sys
    import mnemic
    url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("shared")
        for n in range(count):
            chat.add("user", f"{writer}-{n}")
            print(n, flush=True)
""")


def test_several_processes_append_to_one_session_and_one_is_killed(harness: Harness) -> None:
    import mnemic

    def start(writer: str, count: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", APPEND, harness.url, writer, str(count)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    writers = [start(str(number), 60) for number in range(3)]
    victim = start("victim", 100_000)
    assert victim.stdout is not None
    acknowledged = [victim.stdout.readline() for _ in range(5)]
    os.kill(victim.pid, signal.SIGKILL)
    acknowledged += victim.communicate()[0].split("\n")[:-1]
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    with mnemic.open(harness.url) as memory:
        chat = memory.scope("acme").session("shared")
        texts = [message.text or "" for message in chat.messages()]
        info = chat.info()
    for number in range(3):
        own = [text for text in texts if text.startswith(f"{number}-")]
        assert own == [f"{number}-{n}" for n in range(60)]
    dead = [text for text in texts if text.startswith("victim-")]
    assert dead == [f"victim-{n}" for n in range(len(dead))]
    assert len(dead) >= len(acknowledged)
    assert info is not None
    assert info.messages == len(texts)


def test_the_driver_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, mnemic; mnemic.open('memory://').close(); assert 'redis' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["valkey", "redis8"])
def test_several_open_a_new_store_at_once(name: str, tmp_path: Path) -> None:
    async def test(url: str) -> None:
        opened = await asyncio.gather(*(mnemic.open_async(url) for _ in range(8)))
        await asyncio.gather(*(memory.close() for memory in opened))

    for _ in range(3):
        with empty_store(name, tmp_path) as url:
            asyncio.run(test(url))
