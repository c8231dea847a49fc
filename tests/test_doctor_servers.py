"""Doctor: real servers and tables, broken in every way that it knows."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import redis
from click.testing import CliRunner

import mnemic
from mnemic.backends.redis.opening import connect
from mnemic.cli import main
from mnemic.doctor import Examination, examine
from mnemic.store.registry import StoreURL
from servers import aws, valkey
from servers.keyserver import KeyServer
from servers.postgres import execute
from servers.stores import empty_store
from small_s3 import SmallS3


def filled(url: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope("acme", "alice").remember_many([f"{n}: Alice drinks green tea" for n in range(20)])


def examined(url: str) -> Examination:
    return asyncio.run(examine(url))


def codes(url: str) -> list[str]:
    found = examined(url)
    assert all(problem.text and problem.repair for problem in found.problems)
    return [problem.code for problem in found.problems]


def client(service: str, url: str) -> Any:
    return aws.client(service, dict(parse_qsl(urlsplit(url).query)))


@pytest.fixture(scope="module")
def key_server() -> Iterator[KeyServer]:
    server = KeyServer(valkey.program(), "--appendonly", "yes")
    yield server
    server.process.kill()


def test_a_key_server(key_server: KeyServer) -> None:
    new = examined(key_server.url)
    assert [(problem.code, problem.severity) for problem in new.problems] == [("no_store", "warning")]
    assert new.engine.startswith("Valkey ")
    assert new.facts["appendonly"]
    filled(key_server.url)
    found = examined(key_server.url)
    assert found.problems == []
    assert found.durable
    assert found.engine.startswith("Valkey ")
    assert found.records == {"memory": 20}
    key_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    key_server.ask("CONFIG", "SET", "maxmemory", "100mb")
    (problem,) = examined(key_server.url).problems
    assert (problem.code, problem.severity) == ("evicts", "error")
    key_server.ask(*problem.repair.partition(",")[0].split())
    key_server.ask("CONFIG", "SET", "maxmemory", str(found.facts["used_memory_bytes"] + 1_000_000))
    assert codes(key_server.url) == []
    key_server.ask("CONFIG", "SET", "maxmemory", "0")
    key_server.ask("CONFIG", "SET", "appendonly", "no")
    found = examined(key_server.url)
    assert [problem.code for problem in found.problems] == ["not_persistent"]
    assert not found.durable
    assert found.healthy
    key_server.ask("SET", connect(StoreURL.parse(key_server.url))[1].format.decode(), "9")
    assert "newer_schema" in codes(key_server.url)
    key_server.ask("SET", connect(StoreURL.parse(key_server.url))[1].format.decode(), "0")
    assert "unknown_schema" in codes(key_server.url)
    key_server.process.kill()
    assert codes(f"{key_server.url}?timeout=2") == ["unavailable"]


def test_a_user_of_a_key_server_who_may_not_ask() -> None:
    server = KeyServer(valkey.program())
    try:
        filled(server.url)
        rules = ["on", ">secret", "~mnemic*", "+@read", "+@write", "+@scripting", "+@connection"]
        server.ask("ACL", "SETUSER", "app", *rules)
        url = server.url.replace("redis://", "redis://app:secret@")
        assert codes(url) == ["unknown_settings"]
        assert codes(url.replace("secret", "wrong")) == ["no_permission"]
    finally:
        server.process.kill()


@pytest.mark.parametrize(("scheme", "code"), [("redis", "not_a_store"), ("postgresql", "unavailable")])
def test_a_server_of_another_kind(scheme: str, code: str) -> None:
    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener])
        thread.start()
        try:
            (problem,) = examined(f"{scheme}://localhost:{listener.getsockname()[1]}/0").problems
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert problem.code == code
    assert "check host, port" in problem.repair


def test_damaged_records_on_a_key_server() -> None:
    server = KeyServer(valkey.program())
    try:
        filled(server.url)
        assert codes(server.url) == ["not_persistent"]
        with redis.Redis(port=server.port) as raw:
            key = connect(StoreURL.parse(server.url))[1].stream(("acme/alice", "memory")).records
            assert raw.zremrangebyscore(key, 6, 6) == 1
            raw.zadd(key, {'["broken': 6})
        assert codes(server.url) == ["not_persistent", "unreadable"]
    finally:
        server.process.kill()


POSTGRES = {
    "an index": ("DROP INDEX mnemic_records_meta", "missing_index"),
    "a constraint": ("ALTER TABLE mnemic_records DROP CONSTRAINT mnemic_records_key", "missing_index"),
    "a table": ("DROP TABLE mnemic_derived", "missing_table"),
    "the revision": ("DROP TABLE mnemic_schema", "half_migrated"),
    "labels": ("DROP TABLE mnemic_labels", "missing_table"),
    "the row of the revision": ("DELETE FROM mnemic_schema", "half_migrated"),
    "records": ("UPDATE mnemic_records SET data = 'not json' WHERE seq > 5", "unreadable"),
    "a newer schema": ("UPDATE mnemic_schema SET version_num = '9999'", "newer_schema"),
    "an invalid index": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'mnemic_records_meta'::regclass",
        "invalid_index",
    ),
    "pgvector": ("DROP EXTENSION vector CASCADE", "no_pgvector"),
}
SETTINGS = ["not_durable", "not_durable"]
"""The problems of the server that the tests share, which is set up to be fast."""


def test_a_postgresql_database(tmp_path: Path) -> None:
    with empty_store("postgresql", tmp_path) as url:
        assert codes(url) == ["no_store", *SETTINGS]
        assert examined(url).engine.startswith("PostgreSQL ")
        filled(url)
        found = examined(url)
        assert [problem.code for problem in found.problems] == SETTINGS
        assert found.records == {"memory": 20}
        assert found.facts["bytes"] > found.facts["index_bytes"] > 0
        assert codes(url.replace("postgres@", "nobody@")) == ["no_permission"]


@pytest.mark.parametrize("name", POSTGRES)
def test_a_broken_postgresql_database(name: str, tmp_path: Path) -> None:
    statement, code = POSTGRES[name]
    with empty_store("postgresql", tmp_path) as url:
        filled(url)
        execute(url, statement)
        (problem,) = [problem for problem in examined(url).problems if problem.code not in SETTINGS]
        assert problem.code == code
        if code == "unreadable":
            assert problem.text.startswith("15 of the records cannot be read: ")
        elif code != "newer_schema":
            for repair in problem.repair.split("; "):
                execute(url, repair)
            assert codes(url) == SETTINGS
            with mnemic.open(url) as memory:
                assert memory.scope("acme").recall("green tea")


def test_dead_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemic.backends.postgres.diagnosis.DEAD_ROWS", 5)
    with empty_store("postgresql", tmp_path) as url:
        filled(url)
        execute(url, "ALTER TABLE mnemic_records SET (autovacuum_enabled = off)")
        execute(url, "UPDATE mnemic_records SET weight = weight; SELECT pg_stat_force_next_flush()")
        (problem,) = [problem for problem in examined(url).problems if problem.code not in SETTINGS]
        assert (problem.code, problem.repair) == ("bloat", "VACUUM (ANALYZE) mnemic_records")


def test_a_dynamodb_table(tmp_path: Path) -> None:
    with empty_store("dynamodb", tmp_path) as url:
        assert codes(url) == ["missing_table"]
        filled(url)
        table, dynamodb = urlsplit(url).netloc, client("dynamodb", url)
        assert codes(url) == ["no_backups"]
        dynamodb.update_time_to_live(
            TableName=table, TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"}
        )
        assert codes(url) == ["ttl_off", "no_backups"]
        dynamodb.update_continuous_backups(
            TableName=table, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )
        assert CliRunner().invoke(main, ["migrate", "--store", url]).exit_code == 0
        assert codes(url) == []


def test_a_bucket(tmp_path: Path) -> None:
    with empty_store("s3", tmp_path) as url:
        assert codes(url) == ["no_store"]
        filled(url)
        assert codes(url) == []
        bucket, s3 = urlsplit(url).netloc, client("s3", url)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        try:
            assert codes(url) == ["keeps_versions"]
        finally:
            s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})


def test_a_bucket_that_ignores_conditions_or_refuses_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)

    async def work() -> list[str]:
        server = SmallS3()
        await server.start()
        try:
            async with mnemic.open_async(server.url) as memory:
                await memory.scope("acme").remember("a text")
            server.conditions = ()
            ignoring = await examine(server.url)
            server.refused = {"PUT": (403, "AccessDenied")}
            refusing = await examine(server.url)
            return [problem.code for found in (ignoring, refusing) for problem in found.problems]
        finally:
            await server.stop()

    assert asyncio.run(work()) == ["no_conditional_writes", "read_only"]


def test_an_agentcore_memory(tmp_path: Path) -> None:
    with empty_store("agentcore", tmp_path) as url:
        found = examined(url)
        assert found.problems == []
        assert found.facts["status"] == "ACTIVE"
        other = url.replace(urlsplit(url).netloc.partition("-")[0], "nothing")
        assert codes(other) == ["missing_memory"]
