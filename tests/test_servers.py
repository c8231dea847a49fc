"""The servers of the contract suite start, answer, and keep what a trial stores apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
import redis

from mnemic.testing.servers import postgres, valkey


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
            assert connection.execute("INSERT INTO t VALUES (8) RETURNING (SELECT n FROM t)").fetchone() == (
                7,
            )


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
    assert server.ask("DBSIZE") == 0


def test_the_valkey_cluster_serves_all_slots(tmp_path: Path) -> None:
    with valkey.empty_cluster_keyspace(tmp_path) as url:
        where, _, prefix = url.replace("redis+cluster", "redis").partition("?prefix=")
        with redis.RedisCluster.from_url(where) as client:
            for n in range(50):
                client.set(f"{prefix}:{n}", n)
            assert len(client.get_primaries()) == 3
    assert [node.ask("DBSIZE") for node in valkey.cluster()] == [0, 0, 0]


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"])
def test_no_server_outlives_its_process(end: str) -> None:
    code = f"""
import os
from mnemic.testing.servers import valkey
server = valkey.server()
print(server.process.pid, server.process.folder, flush=True)
{end}
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid, folder = told.stdout.split()
    until = time.monotonic() + 20
    while Path(folder).exists() and time.monotonic() < until:  # removed when all processes are gone
        time.sleep(0.02)
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
