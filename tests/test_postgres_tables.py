"""PostgreSQL's tables: which index answers what, tables in parts, large writes, many writers, failover."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import mnemic
from mnemic.backends.postgres.client import PostgresConnection
from mnemic.backends.postgres.store import COPY_FROM
from mnemic.records import Ref, ScopePath
from mnemic.store.query import Condition, Delete, Derive, Limit, Op, Purge, Put, Scan, Write
from mnemic.testing import test_scans, test_streams, test_writes
from mnemic.testing.harness import KIND, SCOPE, Harness, record
from portal_harness import PortalHarness
from servers import postgres


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    with postgres.empty_database(tmp_path) as lent:
        yield lent


@pytest.fixture(scope="module")
def parted() -> Iterator[str]:
    """The URL of a database whose tables are in parts."""
    with postgres.empty_database() as lent:
        yield f"{lent}?partitions=4"


TABLES = ("mnemic_streams", "mnemic_records", "mnemic_labels", "mnemic_derived")


# ------------------------------------------------------------ which index answers what


@pytest.fixture(scope="module")
def large() -> Iterator[Harness]:
    """A store with many short streams and a long one, of which PostgreSQL knows the average."""
    with postgres.empty_database() as lent, PortalHarness(lent) as harness:
        for scope in (SCOPE, *(ScopePath.of("acme", f"user{n}") for n in range(5))):
            harness.write(
                *(
                    Put(
                        record(
                            f"k{n}",
                            scope=scope,
                            text="some text " * 10,
                            meta={"n": n, "even": n % 2 == 0},
                            labels={"n": str(n % 1000)},
                            derived={"x": b"1"},
                        )
                    )
                    for n in range(9000 if scope == SCOPE else 500)
                )
            )
        for n in range(400):
            harness.write(*(Put(record(f"k{m}", scope=ScopePath.of("many", f"s{n}"))) for m in (1, 2)))
        with closing(psycopg.connect(lent, autocommit=True)) as connection:
            connection.execute("ANALYZE")
        yield harness


def plans(harness: Harness, monkeypatch: pytest.MonkeyPatch, work: Any) -> str:
    """Return how PostgreSQL goes about the statements that a call sends."""
    sent: list[tuple[str, Any]] = []
    original = PostgresConnection.each

    async def noted(self: PostgresConnection, queries: Any) -> Any:
        sent.extend((statement.text, statement.arguments(parameters)) for statement, parameters in queries)
        return await original(self, queries)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "each", noted)
        work()
    assert sent
    with closing(psycopg.connect(harness.url, autocommit=True, cursor_factory=psycopg.RawCursor)) as connection:
        return "\n".join(
            line
            for query, params in sent
            if query != "DISCARD PLANS"
            for (line,) in connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {query}", params)
        )


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({"limit": 10, "reverse": True}, "Index Scan Backward using mnemic_records_pkey"),
        ({"limit": 10}, "using mnemic_records_pkey"),
        ({"limit": 900, "reverse": True}, "Index Scan Backward using mnemic_records_pkey"),
        ({"where": (Condition("labels.n", "eq", "77"),)}, "using mnemic_labels_pkey"),
        ({"where": (Condition("labels.n", "in", ("77", "78")),)}, "using mnemic_labels_pkey"),
        ({"where": (Condition("meta.n", "eq", 77),)}, "Bitmap Index Scan on mnemic_records_meta"),
        ({"where": (Condition("meta.n", "in", (77, 78)),)}, "Bitmap Index Scan on mnemic_records_meta"),
        ({"derived": ("x",), "limit": 10}, "using mnemic_derived_pkey"),
    ],
    ids=str,
)
def test_scans_use_their_index(
    large: Harness, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], index: str
) -> None:
    told = plans(large, monkeypatch, lambda: large.page(**asked))
    assert index in told, told
    if "where" not in asked:
        assert "Sort" not in told, told
    assert "Seq Scan on mnemic_records" not in told


def test_keys_are_found_by_their_index(large: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    one = plans(large, monkeypatch, lambda: large.get("k77"))
    refs = [Ref(ScopePath.of("acme", f"user{n}"), KIND, f"k{n}") for n in range(5)]
    many = plans(large, monkeypatch, lambda: large.run(large.store.read(refs)))
    for told in (one, many):
        assert "using mnemic_records_key" in told
        assert "Seq Scan on mnemic_records" not in told


def test_a_plan_that_was_good_for_a_small_table_is_made_anew(url: str) -> None:
    with PortalHarness(url) as harness, closing(psycopg.connect(url, autocommit=True)) as connection:
        for n in range(20):
            harness.put(f"k{n}", meta={"n": n})
        connection.execute("ANALYZE")
        for n in range(20, 120):
            harness.put(f"k{n}")
            harness.page(limit=2)
        connection.execute("ALTER TABLE mnemic_records SET (autovacuum_enabled = off)")
        harness.write(*(Put(record(f"big{n}", text="x" * 500)) for n in range(3000)))
        count = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'mnemic_records'"
        for n in range(400):
            harness.put(f"l{n}")
        end_stats(harness)
        before = connection.execute(count).fetchone()
        for n in range(100):
            harness.put(f"m{n}")
        end_stats(harness)
        assert connection.execute(count).fetchone() == before


def end_stats(harness: Harness) -> None:
    """Have the server count what a store has done so far."""
    store: Any = harness.store

    async def work(connection: PostgresConnection) -> None:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("SELECT 1")

    harness.run(store._client.use(work))


# ------------------------------------------------------------ tables in parts


class TestInParts:
    """The contract of a store holds over tables in parts."""

    @pytest.fixture
    def harness(self, parted: str) -> Iterator[Harness]:
        with Harness(parted, on_loop=True) as harness:
            yield harness
        with closing(psycopg.connect(parted.partition("?")[0], autocommit=True)) as connection:
            connection.execute(f"TRUNCATE {', '.join(TABLES)}")


for suite in (test_writes, test_streams, test_scans):
    for title, function in vars(suite).items():
        if title.startswith("test_") and "harness" in inspect.signature(function).parameters:
            setattr(TestInParts, title, staticmethod(function))


def test_streams_lie_in_different_parts_and_each_in_one(parted: str) -> None:
    with PortalHarness(parted) as harness:
        for n in range(12):
            harness.write(*(Put(record(f"k{m}", scope=ScopePath(f"s{n}"), labels={"a": "b"})) for m in range(50)))
        with closing(psycopg.connect(parted.partition("?")[0], autocommit=True)) as connection:
            for table in ("mnemic_records", "mnemic_labels"):
                found = connection.execute(
                    f"SELECT tableoid::regclass::text, count(DISTINCT stream_id) FROM {table} GROUP BY 1"
                ).fetchall()
                assert len(found) > 1
                assert sum(count for _, count in found) == 12
            connection.execute("ANALYZE")
            (id,) = connection.execute("SELECT id FROM mnemic_streams LIMIT 1").fetchone() or (0,)
            plan = "\n".join(
                line
                for (line,) in connection.execute(
                    f"EXPLAIN SELECT * FROM mnemic_records WHERE stream_id = {id} ORDER BY seq DESC LIMIT 10"
                )
            )
            assert plan.count("mnemic_records_") - plan.count("_pkey") <= 2
            assert "Append" not in plan
            by_name = "\n".join(
                line
                for (line,) in connection.execute(
                    "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * FROM mnemic_records "
                    "WHERE stream_id = (SELECT id FROM mnemic_streams WHERE scope = 's1') ORDER BY seq"
                )
            )
            assert by_name.count("never executed") == 3
        for n in range(12):
            harness.write(Purge(ScopePath(f"s{n}"), KIND, drop=True))


# ------------------------------------------------------------ large writes


def test_a_large_write_is_all_or_nothing_and_leaves_nothing_out(url: str) -> None:
    with Harness(url, on_loop=True) as harness:
        harness.put("taken", labels={"n": "old"}, derived={"x": b"old"})
        puts = [
            Put(
                record(
                    f"k{n}",
                    text="tab\there, \\N and \\. and \r\n",
                    data={"n": n},
                    meta={"n": n},
                    labels={"n": str(n), 'q"\\': "\\t"},
                    derived={"x": bytes([0, 255, n % 256])},
                    importance=0.1,
                    pinned=n % 2 == 0,
                )
            )
            for n in range(10 * COPY_FROM)
        ]
        with pytest.raises(mnemic.ConflictError):
            harness.write(*puts, Put(record("taken"), 0))
        assert harness.keys() == ["taken"]
        ops: list[Op] = [*puts, Put(record("taken", labels={"n": "new"})), Delete(Ref(SCOPE, KIND, "k7"))]
        outcomes = harness.write(*ops, id="w")
        assert outcomes == harness.write(*ops, id="w")
        found = harness.scan(derived=("x",))
        assert len(found) == 10 * COPY_FROM
        assert found[1].text == "tab\there, \\N and \\. and \r\n"
        assert found[-1].derived == {"x": bytes([0, 255, (10 * COPY_FROM - 1) % 256])}
        assert found[-1].labels == {"n": str(10 * COPY_FROM - 1), 'q"\\': "\\t"}
        assert harness.keys(where=(Condition("labels.n", "in", ("3", "7", "old", "new")),)) == ["taken", "k3"]
        harness.write(*(Derive(item.ref, "y", b"\0") for item in found))
        assert all(item.derived == {"y": b"\0"} for item in harness.scan(derived=("y",)))
        harness.write(Limit(SCOPE, KIND, COPY_FROM, None, tuple((item.key,) for item in found)))
        assert harness.keys() == [item.key for item in found[-COPY_FROM:]]


# ------------------------------------------------------------ many writers

APPEND = """
import sys
import mnemic
url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with mnemic.open(url) as memory:
    chat = memory.scope("acme").session("shared", max_messages=10_000)
    for n in range(count):
        chat.add("user", f"{writer}-{n}")
"""


def test_processes_append_to_one_session_and_lose_nothing(url: str) -> None:
    running = [subprocess.Popen([sys.executable, "-c", APPEND, url, str(n), "100"]) for n in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("shared")
        texts = [message.text or "" for message in chat.messages()]
        info = chat.info()
    assert info is not None
    assert info.messages == len(texts) == 300
    for n in range(3):
        assert [text for text in texts if text.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(100)]


def test_stores_that_write_the_same_streams_in_any_order_do_not_block_one_another(url: str) -> None:
    """Each is a process of its own to the server: no two share a queue."""
    failed: list[Exception] = []

    def work(worker: int) -> None:
        try:
            with PortalHarness(url) as harness:
                for n in range(15):
                    kinds = [f"k{(worker * (n + 1) + m) % 4}" for m in range(4)]
                    kinds = kinds[::-1] if (worker + n) % 2 else kinds
                    harness.write(*(Put(record(f"{worker}-{n}", kind=kind)) for kind in kinds))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with PortalHarness(url) as harness:
        assert [stream.count for stream in harness.streams()] == [90] * 4
        for n in range(4):
            seqs = [item.seq for item in harness.scan(kinds=(f"k{n}",))]
            assert seqs == list(range(1, 91))


def test_what_one_write_adds_another_of_the_same_transaction_may_remove(url: str) -> None:
    with Harness(url, on_loop=True) as harness:
        labels, derived = {"a": "b"}, {"x": b"1"}

        async def together() -> Any:
            writes = [
                Write((Put(record("a", labels=labels, derived=derived)),)),
                Write((Delete(Ref(SCOPE, KIND, "a")),)),
                Write((Put(record("b", labels=labels, derived=derived)),)),
                Write((Purge(SCOPE, KIND, drop=True),)),
                Write((Put(record("c", labels=labels)),)),
                Write((Put(record("d", labels=labels)), Limit(SCOPE, KIND, 1, None, (("c",),)))),
            ]
            return await asyncio.gather(*map(harness.store.write, writes))

        harness.run(together())
        assert harness.keys() == ["d"]
        assert harness.keys(where=(Condition("labels.a", "eq", "b"),)) == ["d"]
        assert [item.derived for item in harness.scan(derived=("x",))] == [{}]
        with closing(psycopg.connect(url)) as connection:
            counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in TABLES]
        assert counts == [(1,), (1,), (1,), (0,)]


def test_a_stream_may_go_and_come_again_in_one_write(url: str) -> None:
    with PortalHarness(url) as harness:
        harness.put("a", labels={"a": "b"}, derived={"x": b"1"})
        outcomes = harness.write(Purge(SCOPE, KIND, drop=True), Put(record("b"), 0), Put(record("a"), 0))
        assert [did.seq for did in outcomes[1:]] == [1, 2]
        assert harness.keys() == ["b", "a"]
        assert harness.scan(derived=("x",))[1].derived == {}
        assert harness.keys(where=(Condition("labels.a", "eq", "b"),)) == []


# ------------------------------------------------------------ failover


def test_a_replica_that_takes_over_is_written_to() -> None:
    with postgres.primary_and_replica() as (primary, replica):
        with Harness(postgres.either(primary, replica), on_loop=True) as harness:
            harness.put("before")
            primary.process.kill()
            with pytest.raises(mnemic.StoreUnavailableError):
                harness.put("between")
            replica.promote()
            harness.put("after")
            assert harness.keys() == ["before", "after"]


def test_a_scan_of_many_streams_takes_few_round_trips(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PortalHarness(url) as harness:
        for n in range(300):
            harness.put("k", scope=ScopePath.of("u", f"s{n:03}"))
        trips = 0
        each = PostgresConnection.each

        async def counted(self: PostgresConnection, queries: Any) -> Any:
            nonlocal trips
            trips += queries[0][0].text != "DISCARD PLANS"
            return await each(self, queries)

        monkeypatch.setattr(PostgresConnection, "each", counted)
        page = harness.run(harness.store.scan(Scan(scope=ScopePath("u"), below=True, limit=1000)))
        assert len(page.items) == 300
        assert trips == 2  # the streams, and their records
        trips = 0
        found = harness.page(scope=ScopePath("u"), below=True, kinds=(), where=(Condition("key", "eq", "no"),), limit=5)
        assert found.items == ()
        assert trips < 12
