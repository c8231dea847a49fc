"""Stores that are full, throttled, failing or slow: the error says what to do, and nothing is lost or doubled."""

from __future__ import annotations

import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from botocore.retries.standard import ExponentialBackoff

import mnemic
from faults import DURABLE, Ledger, Network, network, said
from faulty_proxy import Pass, Refuse, Slow, http_answer
from mnemic import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from mnemic.backends.dynamodb import client as dynamodb_client
from mnemic.backends.redis import client as redis_client
from server_process import served
from servers import postgres, valkey
from servers.keyserver import KeyServer

Fault = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers give up soon."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)
    monkeypatch.setattr(dynamodb_client, "TRIES", 3)
    monkeypatch.setattr(redis_client, "RETRIES", 1)


def fails_and_comes_back(
    memory: mnemic.Memory, fault: Fault, kind: type[StoreError], *, retry: bool, unsure: bool | None = False
) -> None:
    """Check the errors during a fault, and that the store is as before it afterwards."""
    ledger = Ledger("w")
    chat = memory.scope("acme").session("s")
    ledger.add_surely(chat, 0)
    with fault():
        for n in (1, 2):
            error = ledger.add(chat, n, once=n == 2)
            assert type(error) is kind, repr(error)
            assert error.retry == retry
            if unsure is not None:
                assert error.unsure == unsure, error
    for _ in range(20):
        if ledger.add(chat, 2, once=True) is None:
            break
    ledger.add_surely(chat, 3)
    assert ledger.acknowledged == [0, 2, 3]
    ledger.check(said(chat))


# ------------------------------------------------------------ throttled, failing and full services


def aws_json(status: int, code: str) -> bytes:
    """Return a refusal of DynamoDB or AgentCore."""
    body = f'{{"__type": "com.amazonaws#{code}", "message": "no"}}'.encode()
    return http_answer(status, body, "Content-Type: application/x-amz-json-1.0", f"x-amzn-ErrorType: {code}")


def s3_xml(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return http_answer(status, body, "Content-Type: application/xml")


def problem(status: int, name: str, more: str = "") -> bytes:
    return http_answer(status, f'{{"type": "#{name}"{more}}}'.encode(), "Retry-After: 0")


REFUSALS: list[tuple[str, str, bytes, type[StoreError], bool, bool | None]] = [
    ("dynamodb", "throttled", aws_json(400, "ProvisionedThroughputExceededException"), StoreBusyError, True, False),
    ("dynamodb", "failing", aws_json(500, "InternalServerError"), StoreUnavailableError, True, True),
    ("dynamodb", "full", aws_json(400, "LimitExceededException"), StoreFullError, False, False),
    # A put whose answer was lost may have been repeated by the HTTP client, unseen.
    ("s3", "throttled", s3_xml(503, "SlowDown"), StoreBusyError, True, True),
    ("s3", "failing", s3_xml(500, "InternalError"), StoreUnavailableError, True, True),
    ("s3", "full", s3_xml(507, "XMinioStorageFull"), StoreFullError, False, False),
    ("agentcore", "throttled", aws_json(429, "ThrottledException"), StoreBusyError, True, False),
    # It depends on the time since the last write whether a read comes first.
    ("agentcore", "failing", aws_json(500, "ServiceException"), StoreUnavailableError, True, None),
    ("agentcore", "full", aws_json(402, "ServiceQuotaExceededException"), StoreFullError, False, False),
    ("http", "throttled", problem(429, "too-many-requests"), StoreBusyError, True, False),
    ("http", "busy", problem(503, "store-busy", ', "retry": true'), StoreBusyError, True, False),
    ("http", "failing", problem(503, "store-unavailable", ', "retry": true, "unsure": true'), StoreUnavailableError,
        True, True),
    ("http", "bad gateway", http_answer(502), StoreUnavailableError, True, True),
    ("http", "full", problem(507, "store-full"), StoreFullError, False, False),
    ("valkey", "loading", b"-LOADING the server is loading\r\n", StoreUnavailableError, True, False),
    ("valkey", "busy", b"-BUSY running a script\r\n", StoreBusyError, True, False),
    ("valkey", "full", b"-MISCONF errors writing to the AOF file: No space left on device\r\n", StoreFullError, False,
        False),
    # The driver tries until the deadline, at which nothing is sure.
    ("valkey-cluster", "down", b"-CLUSTERDOWN The cluster is down\r\n", StoreUnavailableError, True, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer", "kind", "retry", "unsure"),
    [pytest.param(name, *rest, id=f"{name}-{what}") for name, what, *rest in REFUSALS],
)
def test_a_service_that_refuses(
    name: str, answer: bytes, kind: type[StoreError], retry: bool, unsure: bool | None, tmp_path: Path
) -> None:
    with network(name, tmp_path) as net, net.open("timeout=5") as memory:
        fails_and_comes_back(memory, lambda: refusing(net, answer), kind, retry=retry, unsure=unsure)


@pytest.mark.parametrize(
    ("answer", "kind", "hint"),
    [
        (b"-CLUSTERDOWN The cluster is down\r\n", StoreUnavailableError, "is down"),
        (b"-LOADING the server is loading\r\n", StoreUnavailableError, "still loading"),
        (b"-NOPERM this user has no permissions\r\n", StorePermissionError, "may not do this"),
        (b"-ERR This instance has cluster support disabled\r\n", UnreadableStoreError, "not a cluster"),
    ],
    ids=["down", "loading", "forbidden", "no cluster"],
)
def test_a_cluster_that_refuses_to_tell_its_nodes(
    answer: bytes, kind: type[StoreError], hint: str, tmp_path: Path
) -> None:
    with network("valkey-cluster", tmp_path) as net:
        net.set(Refuse(answer))
        with pytest.raises(kind, match=hint), net.open("timeout=5") as memory:
            memory.scope("acme").notes.list()
        net.set(Pass())
        with net.open("timeout=5") as memory:
            assert memory.scope("acme").notes.list() == []


@contextmanager
def refusing(net: Network, answer: bytes) -> Iterator[None]:
    net.set(Refuse(answer))
    yield
    net.set(Pass())


# ------------------------------------------------------------ servers that are full, or have too many clients


def test_a_redis_server_without_memory_or_room_for_clients(tmp_path: Path) -> None:
    server = KeyServer(valkey.program())

    @contextmanager
    def setting(name: str, value: str, usual: str) -> Iterator[None]:
        server.ask("CONFIG", "SET", name, value)
        yield
        server.ask("CONFIG", "SET", name, usual)

    try:
        with mnemic.open(server.url, embedder=None) as memory:
            fails_and_comes_back(memory, lambda: setting("maxmemory", "1", "0"), StoreFullError, retry=False)
        with server.connection() as admin:  # who else could connect?
            admin.execute_command("CONFIG", "SET", "maxclients", "1")
            with pytest.raises(StoreBusyError, match="too many clients") as caught:
                mnemic.open(server.url)
            assert (caught.value.retry, caught.value.unsure) == (True, False)
    finally:
        server.process.kill()


def test_a_postgresql_server_whose_disk_is_full(tmp_path: Path) -> None:
    with postgres.empty_database() as url, mnemic.open(url, embedder=None) as memory:

        @contextmanager
        def full() -> Iterator[None]:
            # What a server raises when it cannot extend a file.
            raising = "BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END"
            postgres.execute(url, f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $${raising}$$")
            postgres.execute(
                url, "CREATE TRIGGER full_disk BEFORE INSERT ON mnemic_records EXECUTE FUNCTION full_disk()"
            )
            yield
            postgres.execute(url, "DROP TRIGGER full_disk ON mnemic_records")

        fails_and_comes_back(memory, full, StoreFullError, retry=False)


def test_a_postgresql_server_with_too_many_connections(tmp_path: Path) -> None:
    with postgres.empty_database() as url, closing(psycopg.connect(url, autocommit=True)) as admin:
        mnemic.open(url, embedder=None).close()
        admin.execute("DROP ROLE IF EXISTS crowd")
        admin.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 1")
        admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO crowd")
        own = url.replace("postgres@", "crowd@")
        with closing(psycopg.connect(own)), pytest.raises(StoreBusyError, match="too many connections") as caught:
            mnemic.open(f"{own}?timeout=5")
        assert (caught.value.retry, caught.value.unsure) == (True, False)
        admin.execute("DROP OWNED BY crowd")
        admin.execute("DROP ROLE crowd")


# ------------------------------------------------------------ files


def test_a_file_that_another_process_has_locked(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{path}?busy_timeout=0.05", embedder=None) as memory:

        @contextmanager
        def locked() -> Iterator[None]:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                yield
                other.execute("ROLLBACK")

        fails_and_comes_back(memory, locked, StoreBusyError, retry=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_mnemic_server_whose_disk_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with served(f"sqlite:///{path}") as server:

        @contextmanager
        def limited() -> Iterator[None]:
            assert server.process.pid is not None
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            yield
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)

        with mnemic.open(f"http://127.0.0.1:{server.port}/?breaker=0", embedder=None) as memory:
            fails_and_comes_back(memory, limited, StoreError, retry=False, unsure=True)


# ------------------------------------------------------------ slow answers


@pytest.mark.parametrize("name", DURABLE)
def test_an_answer_that_comes_after_the_deadline(name: str, tmp_path: Path) -> None:
    ledger = Ledger("w")
    with network(name, tmp_path) as net, net.open("timeout=2") as memory:
        chat = memory.scope("acme").session("s")
        ledger.add_surely(chat, 0)
        net.set(Slow(piece=1, pause=1.0))
        for n in (1, 2):
            error = ledger.add(chat, n, once=n == 2)
            assert isinstance(error, StoreUnavailableError)
            assert error.retry
        net.set(Pass())
        net.drop()
        ledger.add_surely(chat, 2)
        ledger.add_surely(chat, 3)
        ledger.check(said(chat))
