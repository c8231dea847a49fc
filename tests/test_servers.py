"""The test servers start, answer, and keep the stores of tests apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
import redis

from mnemic.errors import MissingExtraError
from servers import aws, postgres, processes, stores, valkey
from servers import redis as redis_servers
from servers.keyserver import connected

Emulators = Callable[[], aws.Emulator]


def test_postgresql_has_pgvector(tmp_path: Path) -> None:
    with postgres.empty_database(tmp_path) as url, psycopg.connect(url) as connection:
        connection.execute("CREATE EXTENSION vector")
        found = connection.execute("SELECT '[1,2]'::halfvec(2) <-> '[1,3]'").fetchone()
        assert found == (1.0,)


def test_a_plain_postgresql_has_no_pgvector(tmp_path: Path) -> None:
    with postgres.empty_database(tmp_path, extensions=False) as url, psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="not available"):
            connection.execute("CREATE EXTENSION vector")


def test_a_database_is_new_each_time_and_gone_afterwards(tmp_path: Path) -> None:
    with postgres.empty_database(tmp_path) as url, psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t (n int)")
    with postgres.empty_database(tmp_path) as other, psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_replica_takes_over() -> None:
    with postgres.primary_and_replica() as (primary, replica):
        url = postgres.either(primary, replica)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS n")
        primary.process.kill()
        replica.promote()
        with psycopg.connect(url, autocommit=True) as connection:
            assert connection.execute("INSERT INTO t VALUES (8) RETURNING (SELECT n FROM t)").fetchone() == (7,)


def test_a_stopped_postgresql_comes_back_on_its_port() -> None:
    with postgres.primary_and_replica() as (_, replica):
        replica.process.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(replica.url())
        replica.process.start()
        psycopg.connect(replica.url()).close()


def test_valkey_answers_and_its_prefix_is_emptied(tmp_path: Path) -> None:
    server = valkey.server()
    with valkey.empty_keyspace(tmp_path) as url:
        where, _, prefix = url.partition("?prefix=")
        with redis.Redis.from_url(where) as client:
            assert client.info("server")["server_name"] == "valkey"
            client.set(f"{prefix}:a", "1")
            client.set(f"{{{prefix}:a}}:b", "1")
    assert server.ask("KEYS", f"*{prefix}*") == []


def test_the_valkey_cluster_serves_all_slots(tmp_path: Path) -> None:
    with valkey.empty_cluster_keyspace(tmp_path) as url:
        where, _, prefix = url.partition("?prefix=")
        with connected(where) as client:
            for n in range(50):
                client.set(f"{prefix}:{n}", n)
            assert len(client.get_primaries()) == 3
    assert [node.ask("KEYS", f"*{prefix}*") for node in valkey.cluster()] == [[], [], []]


def test_redis_answers_and_its_prefix_is_emptied(tmp_path: Path) -> None:
    with redis_servers.empty_keyspace(tmp_path) as url:
        where, _, prefix = url.partition("?prefix=")
        with redis.Redis.from_url(where) as client:
            assert "redis_version" in client.info("server")
            client.set(f"{prefix}:a", "1")
    assert redis_servers.server7().ask("KEYS", f"*{prefix}*") == []


def test_redis_8_has_vector_sets(tmp_path: Path) -> None:
    with redis_servers.empty_keyspace(tmp_path, server=redis_servers.server8) as url:
        where, _, prefix = url.partition("?prefix=")
        with redis.Redis.from_url(where, decode_responses=True) as client:
            assert client.info("server")["redis_version"].startswith("8.")
            client.execute_command("VADD", f"{prefix}:v", "VALUES", 2, 1, 0, "a")
            assert client.execute_command("VSIM", f"{prefix}:v", "VALUES", 2, 1, 0) == ["a"]


@pytest.mark.parametrize("emulator", [aws.ministack, aws.moto])
def test_dynamodb_answers_and_the_table_is_deleted(emulator: Emulators, tmp_path: Path) -> None:
    with aws.empty_table(tmp_path, emulator=emulator, layout="hash") as url:
        table, options = urlsplit(url).netloc, dict(parse_qsl(urlsplit(url).query))
        assert (options["create"], options["layout"]) == ("1", "hash")
        client = aws.client("dynamodb", options)
        key = {"AttributeName": "k", "AttributeType": "S"}
        schema = [{"AttributeName": "k", "KeyType": "HASH"}]
        client.create_table(
            TableName=table, AttributeDefinitions=[key], KeySchema=schema, BillingMode="PAY_PER_REQUEST"
        )
        client.put_item(TableName=table, Item={"k": {"S": "a"}}, ConditionExpression="attribute_not_exists(k)")
        assert client.get_item(TableName=table, Key={"k": {"S": "a"}})["Item"] == {"k": {"S": "a"}}
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.describe_table(TableName=table)


@pytest.mark.parametrize("emulator", [aws.ministack, aws.moto])
def test_s3_writes_on_a_condition_and_the_prefix_is_emptied(emulator: Emulators, tmp_path: Path) -> None:
    with aws.empty_prefix(tmp_path, emulator=emulator) as url:
        parts = urlsplit(url)
        client = aws.client("s3", dict(parse_qsl(parts.query)))
        new = {"Bucket": parts.netloc, "Key": f"{parts.path[1:]}/a", "Body": b"1", "IfNoneMatch": "*"}
        client.put_object(**new)
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(**new)
    assert client.list_objects_v2(Bucket=parts.netloc, Prefix=parts.path[1:])["KeyCount"] == 0


def test_agentcore_keeps_events(tmp_path: Path) -> None:
    with aws.empty_memory(tmp_path) as url:
        parts = urlsplit(url)
        client = aws.client("bedrock-agentcore", dict(parse_qsl(parts.query)))
        where = {"memoryId": parts.netloc, "actorId": "alice", "sessionId": "monday"}
        said = {"conversational": {"content": {"text": "hello"}, "role": "USER"}}
        client.create_event(**where, eventTimestamp=datetime.now(UTC), payload=[said])
        (event,) = client.list_events(**where, includePayloads=True)["events"]
        assert event["payload"] == [said]


def test_a_server_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(postgres.VARIABLE, postgres.server().url() + "?application_name=own")
    with postgres.empty_database(tmp_path) as url, psycopg.connect(url) as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("own",)
    monkeypatch.setenv(redis_servers.VARIABLE, valkey.server().url)
    with redis_servers.empty_keyspace(tmp_path) as url:
        assert url.startswith(valkey.server().url)
    monkeypatch.setenv(aws.S3_VARIABLE, f"s3://own/below?endpoint={aws.ministack().endpoint}")
    aws.client("s3", {"endpoint": aws.ministack().endpoint}).create_bucket(Bucket="own")
    with aws.empty_prefix(tmp_path) as url:
        assert url.startswith("s3://own/below/trial-")


@pytest.mark.parametrize("name", ["valkey", "redis7", "redis8"])
def test_a_store_is_empty_and_on_its_own_server(name: str, tmp_path: Path) -> None:
    servers = {"valkey": valkey.server, "redis7": redis_servers.server7, "redis8": redis_servers.server8}
    with stores.empty_store(name, tmp_path) as url:
        assert url.startswith(servers[name]().url + "?prefix=")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(MissingExtraError, match="no_such_package"):
        processes.installed("no_such_package")


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"])
def test_no_server_outlives_its_process(end: str) -> None:
    code = f"""
import os
from servers import valkey
server = valkey.server()
print(server.process.pid, server.process.folder, flush=True)
{end}
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    pid, folder = told.stdout.split()
    until = time.monotonic() + 120
    while Path(folder).exists() and time.monotonic() < until:  # removed when all processes are gone
        time.sleep(0.02)
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
