"""What is PostgreSQL's own: its errors in our words, connections that break, pools, roles, schemas, URLs."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from msgspec.structs import force_setattr

import mnemic
from mnemic.backends.postgres import client, store
from mnemic.backends.postgres.errors import STATES, explain, meaning
from mnemic.backends.postgres.opening import PostgresOptions
from mnemic.backends.sql.schema import HEAD, VERSION_TABLE
from mnemic.errors import MnemicError, StoreError
from mnemic.records import Ref, ScopePath
from mnemic.store.query import Delete, Purge, Put, Scan, Write
from mnemic.store.registry import StoreURL
from mnemic.testing.harness import KIND, SCOPE, Harness, record
from portal_harness import PortalHarness
from servers import postgres
from servers.processes import PATIENCE


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    with postgres.empty_database(tmp_path) as lent:
        yield lent


@pytest.fixture
def harness(url: str) -> Iterator[Harness]:
    """An empty store on an event loop."""
    with Harness(url, on_loop=True) as harness:
        yield harness


@contextmanager
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def made_by(url: str, user: str) -> str:
    """Return the URL for another role."""
    return url.replace("postgres@", f"{user}@")


@pytest.fixture
def role(url: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"guest_{os.urandom(4).hex()}"
    with admin(url) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
        yield name
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


# ------------------------------------------------------------ URLs


def options(url: str) -> PostgresOptions:
    return PostgresOptions.of(StoreURL.parse(url))


def test_a_url_is_taken_apart_by_libpq_and_its_password_is_never_shown() -> None:
    found = options("postgres://al%40ice:s3cr%3Ft@h1:5433,h2:5434/db?sslmode=require&pool_max=3&schema=mine")
    assert found.parameters["host"] == "h1,h2"
    assert found.parameters["port"] == "5433,5434"
    assert found.parameters["user"] == "al@ice"
    assert found.parameters["password"] == "s3cr?t"
    assert found.parameters["sslmode"] == "require"
    assert found.parameters["options"] == '-c search_path="mine"'
    assert (found.pool_max, found.schema) == (3, "mine")
    assert found.url == ("postgres://***@h1:5433,h2:5434/db?sslmode=require&pool_max=3&schema=mine")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("nosuch=1", "nosuch"),
        ("pool_max=0", "pool_max"),
        ("pool_max=many", "pool_max"),
        ("schema=a%22b", "schema"),
        ("statement_timeout=-1", "statement_timeout"),
        ("password=hunter2", "password"),
        ("port=x%zz", "percent"),
    ],
)
def test_a_bad_option_is_named_and_the_password_is_not(query: str, named: str) -> None:
    with pytest.raises(mnemic.InvalidValueError, match=named) as caught:
        options(f"postgresql://u:hunter2@localhost/db?{query}")
    assert "hunter2" not in str(caught.value)


def test_sqlite_does_not_load_the_driver(tmp_path: Path) -> None:
    program = (
        f"import sys, mnemic\nmnemic.open('sqlite:///{tmp_path}/a.db').close()\nsys.exit('psycopg' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_driver_names_the_extra() -> None:
    program = (
        "import sys, mnemic\n"
        "sys.modules['psycopg'] = None\n"
        "try: mnemic.open('postgresql://localhost/x')\n"
        "except mnemic.MissingExtraError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "psycopg" in told.stdout
    assert "pip install 'mnemic[postgres]'" in told.stdout


# ------------------------------------------------------------ errors


def error_classes() -> list[type[psycopg.Error]]:
    found = [*vars(psycopg).values(), *vars(psycopg.errors).values(), *vars(psycopg_pool).values()]
    return [kind for kind in found if inspect.isclass(kind) and issubclass(kind, psycopg.Error)]


def test_every_error_of_the_driver_is_one_of_ours() -> None:
    classes = error_classes()
    assert len(classes) > 200
    for kind in classes:
        ours = explain(kind("it failed"), "postgresql://u@h/db")
        assert isinstance(ours, MnemicError), kind
        assert "postgresql://u@h/db" in str(ours)
        assert ours.__cause__ is not None
    states = {getattr(kind, "sqlstate", None) or "" for kind in classes}
    for state in STATES:
        assert any(known.startswith(state) for known in states), state


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (psycopg.errors.DiskFull, mnemic.StoreFullError),
        (psycopg.errors.LockNotAvailable, mnemic.StoreBusyError),
        (psycopg.errors.QueryCanceled, mnemic.StoreBusyError),
        (psycopg.errors.DeadlockDetected, mnemic.StoreBusyError),
        (psycopg.errors.AdminShutdown, mnemic.StoreUnavailableError),
        (psycopg.errors.TooManyConnections, mnemic.StoreBusyError),
        (psycopg.errors.InsufficientPrivilege, mnemic.StorePermissionError),
        (psycopg.errors.InvalidPassword, mnemic.StorePermissionError),
        (psycopg.errors.ReadOnlySqlTransaction, mnemic.StorePermissionError),
        (psycopg.errors.DataCorrupted, mnemic.UnreadableStoreError),
        (psycopg.errors.SyntaxError, mnemic.StoreError),
        (psycopg.OperationalError, mnemic.StoreUnavailableError),
    ],
)
def test_what_errors_mean(kind: type[psycopg.Error], ours: type[StoreError]) -> None:
    assert meaning(kind())[0] is ours


@pytest.mark.parametrize(
    "place", ["u:hunter2@127.0.0.1:1", "u:hunter2@no-such-host.invalid", "u:hunter2@127.0.0.1:1,127.0.0.1:2"]
)
def test_a_server_that_is_not_there_is_unavailable(place: str) -> None:
    with pytest.raises(mnemic.StoreUnavailableError, match=r"//\*\*\*@") as caught:
        mnemic.open(f"postgresql://{place}/db")
    assert "hunter2" not in str(caught.value)


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(mnemic.StoreUnavailableError):
            mnemic.open(f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/db?connect_timeout=1")


@pytest.mark.parametrize("change", [lambda url: made_by(url, "nobody_there"), lambda url: url + "_not"])
def test_a_missing_role_or_database_is_refused(url: str, change: Callable[[str], str]) -> None:
    with pytest.raises(mnemic.StorePermissionError, match="does not exist"):
        mnemic.open(change(url))


@pytest.mark.skipif(postgres.VARIABLE in os.environ, reason="the server's access rules are not ours")
def test_a_wrong_password_is_refused(url: str, role: str) -> None:
    rules = postgres.server().process.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        with admin(url) as connection:
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(f"GRANT ALL ON SCHEMA public TO {role}")
        for password in (":wrong", ""):
            with pytest.raises(mnemic.StorePermissionError) as caught:
                mnemic.open(made_by(url, role + password))
            assert "wrong" not in str(caught.value)
        mnemic.open(made_by(url, f"{role}:right")).close()
    finally:
        rules.write_text(before)


def test_a_role_without_rights_is_refused(url: str, role: str) -> None:
    with pytest.raises(mnemic.StorePermissionError, match="permission denied"):
        mnemic.open(made_by(url, role))
    with pytest.raises(mnemic.StorePermissionError, match="permission denied"):
        mnemic.open(made_by(url, role) + "?schema=mine")
    mnemic.open(url).close()
    with pytest.raises(mnemic.StorePermissionError, match="permission denied"):
        mnemic.open(made_by(url, role))


def test_a_role_that_may_only_read_reads(url: str, role: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope("x").remember("kept")
    with admin(url) as connection:
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    with mnemic.open(made_by(url, role)) as memory:
        assert [found.text for found in memory.scope("x").memories.list()] == ["kept"]
        with pytest.raises(mnemic.StorePermissionError, match="permission denied"):
            memory.scope("x").remember("not kept")
        with pytest.raises(mnemic.StorePermissionError, match="permission denied"):
            memory.scope("x").erase()
    with mnemic.open(url) as memory:
        assert [found.text for found in memory.scope("x").memories.list()] == ["kept"]


def test_a_server_that_takes_no_writes_says_so(url: str) -> None:
    mnemic.open(url).close()
    with PortalHarness(f"{url}?options=-c%20default_transaction_read_only%3Don") as harness:
        assert harness.scan() == []
        for if_version in (None, 0, 7):
            with pytest.raises(mnemic.StorePermissionError, match="read-only"):
                harness.write(Put(record("a"), if_version), Purge(SCOPE, KIND))
            with pytest.raises(mnemic.StorePermissionError, match="read-only"):
                harness.put("a", if_version=if_version)


def test_a_database_of_a_newer_version_says_so(url: str) -> None:
    mnemic.open(url).close()
    with admin(url) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(mnemic.NewerSchemaError, match=r"9999.*pip install -U mnemic"):
        mnemic.open(url)


def test_a_lock_that_is_held_too_long_is_busy(url: str) -> None:
    with PortalHarness(url + "?lock_timeout=0.1") as harness:
        harness.put("a")
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM mnemic_streams FOR UPDATE")
            for key, version in (("b", None), ("a", 1)):
                with pytest.raises(mnemic.StoreBusyError, match="lock"):
                    harness.put(key, if_version=version)
        assert harness.keys() == ["a"]
        harness.put("b")


def test_a_statement_that_takes_too_long_is_busy(url: str) -> None:
    mnemic.open(url).close()  # making the tables may take longer
    with PortalHarness(url + "?statement_timeout=1") as harness:
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE mnemic_records")
            with pytest.raises(mnemic.StoreBusyError, match="statement timeout"):
                harness.scan()
        assert harness.scan() == []


def test_a_name_that_is_too_long_for_an_index_is_refused_and_harms_no_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    rng = random.Random(7)
    long = ScopePath()
    # Longer than a scope may be: what is checked here is what becomes of an error of the server.
    force_setattr(long, "path", "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(3200)))
    with pytest.raises(mnemic.TooLargeError, match="2,700 bytes"):
        harness.put("k", scope=long)

    async def both() -> list[Any]:
        writes = [Write((Put(record("k", scope=scope)),)) for scope in (long, SCOPE)]
        return await asyncio.gather(*map(harness.store.write, writes), return_exceptions=True)

    # Both in one transaction: the first one's failure is not the second one's.
    monkeypatch.setattr(store, "COMMIT_GROUPS", 1)
    refused, done = harness.run(both())
    assert isinstance(refused, mnemic.TooLargeError)
    assert done[0].seq == 1
    assert harness.keys() == ["k"]


def test_a_damaged_record_harms_only_the_write_that_needs_it(harness: Harness, url: str) -> None:
    harness.put("a", labels={"x": "y"})
    with admin(url) as connection:
        connection.execute("UPDATE mnemic_records SET labels = '{'")

    async def both() -> list[Any]:
        writes = [Write((Delete(Ref(SCOPE, KIND, "a")),)), Write((Put(record("b")),))]
        return await asyncio.gather(*map(harness.store.write, writes), return_exceptions=True)

    refused, done = harness.run(both())
    assert isinstance(refused, mnemic.UnreadableStoreError)
    assert done[0].seq == 2


def test_text_that_the_database_cannot_hold_is_refused(url: str) -> None:
    name = url.rpartition("/")[2]
    with admin(url) as connection:
        connection.execute(f"CREATE DATABASE {name}_1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        with PortalHarness(f"{url}_1") as harness:
            harness.put("a", text="caf\u00e9")
            with pytest.raises(mnemic.StoreError, match="should be UTF8"):
                harness.put("b", text="\u6f22")
            assert [item.text for item in harness.scan()] == ["caf\u00e9"]
    finally:
        with admin(url) as connection:
            connection.execute(f"DROP DATABASE {name}_1 WITH (FORCE)")


# ------------------------------------------------------------ connections that break


OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mnemic'"


def end_all(url: str) -> None:
    """End the connections of our stores, as a restart does."""
    with admin(url) as connection:
        pids = [pid for pid, _ in connection.execute(f"SELECT pid, pg_terminate_backend(pid) {OURS}")]
        until = time.monotonic() + PATIENCE
        there = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)"
        while connection.execute(there, (pids,)).fetchone() and time.monotonic() < until:
            time.sleep(0.005)


def connections(url: str) -> int:
    with admin(url) as connection:
        row = connection.execute(f"SELECT count(*) {OURS}").fetchone()
        assert row is not None
        return int(row[0])


def waiting(url: str) -> int:
    """Return how many connections wait for a lock."""
    with admin(url) as connection:
        row = connection.execute(f"SELECT count(*) {OURS} AND wait_event_type = 'Lock'").fetchone()
        assert row is not None
        return int(row[0])


def test_a_connection_that_was_ended_while_idle_is_replaced(harness: Harness, url: str) -> None:
    harness.put("a")
    for n in range(3):
        end_all(url)
        assert harness.keys() == ["a", *(f"k{m}" for m in range(n))]
        end_all(url)
        harness.put(f"k{n}")


def test_a_server_that_forgets_statements_is_asked_anew(url: str) -> None:
    with PortalHarness(url + "?pool_max=1") as harness:
        harness.put("a", text="0")
        for n in range(1, 6):
            for _ in range(5):
                harness.write(Put(record("a", text=str(n))), Put(record("b")))
                assert [found.text for found in harness.scan(scope=ScopePath(), below=True)] == [str(n), None]
            execute(harness, "DEALLOCATE ALL")


def execute(harness: Harness, statement: str) -> Any:
    """Run a statement on a connection of a store, and return its cursor."""
    store: Any = harness.store
    return harness.run(store._client.use(lambda connection: connection.execute(statement)))


def blocked(url: str, call: Callable[[], object]) -> list[object]:
    """End the connection of a call that waits for a lock, and return how the call ended."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call())
        except Exception as error:
            ended.append(error)

    with psycopg.connect(url) as holder:
        holder.execute("SELECT * FROM mnemic_streams FOR UPDATE")
        thread = threading.Thread(target=run)
        thread.start()
        with admin(url) as watch:
            until = time.monotonic() + PATIENCE
            waits = f"SELECT 1 {OURS} AND wait_event_type = 'Lock'"
            while watch.execute(waits).fetchone() is None and time.monotonic() < until:
                time.sleep(0.01)
        end_all(url)
    thread.join()
    return ended


def test_a_write_whose_answer_was_lost_says_that_it_may_have_been_done(url: str) -> None:
    with PortalHarness(url) as harness:
        harness.put("a")
        (ended,) = blocked(url, lambda: harness.put("b"))
        assert isinstance(ended, mnemic.StoreUnavailableError)
        assert "may have been done or not" in str(ended)
        assert harness.keys() == ["a"]
        harness.put("b")
        assert harness.keys() == ["a", "b"]


def test_a_write_of_which_nothing_was_sent_is_sent_again(url: str) -> None:
    with PortalHarness(url) as harness:
        version = harness.put("a").version
        (ended,) = blocked(url, lambda: harness.put("a", if_version=version, text="new"))
        assert not isinstance(ended, Exception)
        found = harness.read("a")
        assert found.text == "new"


def test_a_server_that_restarts_is_unavailable_until_it_is_back() -> None:
    server = postgres.Postgres()
    inside = Harness(server.url(), on_loop=True)
    outside = PortalHarness(server.url())
    with inside, outside:
        inside.put("a", text="kept")
        server.process.stop()
        for harness in (inside, outside):
            with pytest.raises(mnemic.StoreUnavailableError):
                harness.put("b")
            with pytest.raises(mnemic.StoreUnavailableError):
                harness.scan()
        server.process.start()
        inside.put("b")
        assert outside.keys() == inside.keys() == ["a", "b"]
        server.process.kill()
        server.process.start()
        outside.put("c")
        assert outside.keys() == inside.keys() == ["a", "b", "c"]
    server.process.kill()


def test_a_cancelled_read_leaves_the_connection_fit_for_the_next(url: str) -> None:
    with Harness(url + "?pool_max=1", on_loop=True) as harness:
        harness.put("a")

        async def cancelled() -> None:
            with psycopg.connect(url) as other:
                other.execute("LOCK TABLE mnemic_records")
                task = asyncio.ensure_future(harness.store.scan(Scan(scope=SCOPE, kinds=(KIND,))))
                while not waiting(url):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        harness.run(cancelled())
        assert harness.keys() == ["a"]
        assert eventually(url, 1)  # the server may still be ending the one that was cancelled


# ------------------------------------------------------------ pools


def test_many_callers_share_few_connections(url: str) -> None:
    with PortalHarness(url + "?pool_max=2") as harness:
        keys = [f"k{n}" for n in range(40)]
        threads = [
            threading.Thread(
                target=lambda key=key: (harness.put(key, scope=ScopePath(key)), harness.get(key, ScopePath(key)))
            )
            for key in keys
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(harness.keys(scope=ScopePath(), below=True)) == sorted(keys)
        assert connections(url) <= 2


def test_a_caller_who_waits_too_long_for_a_connection_is_told(url: str) -> None:
    mnemic.open(url).close()
    with Harness(url + "?pool_max=1&timeout=2", on_loop=True) as harness:
        store: Any = harness.store

        async def again(_connection: object) -> None:
            await store.scan(Scan(scope=SCOPE))

        with pytest.raises(mnemic.StoreBusyError, match="all 1 connections"):
            harness.run(store._client.use(again))
        assert harness.scan() == []


def test_closing_leaves_neither_connections_nor_threads(url: str) -> None:
    before = set(threading.enumerate())
    for kind in (PortalHarness, partial(Harness, on_loop=True)):
        with kind(url) as harness:
            harness.put("a")
            assert connections(url) >= 1
        assert eventually(url, 0)
    assert set(threading.enumerate()) <= before


def eventually(url: str, count: int) -> bool:
    """Return whether there are so many connections, soon."""
    until = time.monotonic() + PATIENCE
    while (found := connections(url)) != count and time.monotonic() < until:
        time.sleep(0.01)
    return found == count


def test_idle_connections_are_closed_but_for_those_that_stay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.2)
    with PortalHarness(url + "?pool_min=1") as harness:
        store: Any = harness.store

        async def together() -> None:
            barrier = asyncio.Barrier(3)
            await asyncio.gather(*(store._client.use(lambda _: barrier.wait()) for _ in range(3)))

        harness.run(together())
        assert eventually(url, 1)
        assert harness.scan() == []


def test_statements_need_not_be_prepared(url: str) -> None:
    for options, prepared in (("prepare=off", False), ("prepare=on", True)):
        with PortalHarness(f"{url}?{options}&pool_max=1") as harness:
            for n in range(10):
                harness.put(f"k{n}")
                harness.scan()
            rows = harness.run(execute(harness, "SELECT * FROM pg_prepared_statements").fetchall())
            assert bool(rows) is prepared


def test_a_store_serves_one_event_loop(url: str) -> None:
    with PortalHarness(url) as harness:
        harness.put("a")

        async def put(key: str) -> None:
            await harness.store.write(Write((Put(record(key)),)))

        with pytest.raises(mnemic.EventLoopError, match="another event loop"):
            asyncio.run(put("b"))
        harness.put("c")
        assert harness.keys() == ["a", "c"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    with PortalHarness(url) as harness:
        harness.put("parent")
        for n in range(3):
            child = os.fork()
            if not child:
                code = 1
                try:
                    harness.put(f"child{n}")
                    found = harness.keys()
                    code = 0 if "parent" in found else 2
                finally:
                    os._exit(code)
            harness.put(f"beside{n}")
            assert os.waitpid(child, 0)[1] == 0
        assert len(harness.keys()) == 7


# ------------------------------------------------------------ schemas and migrations


def test_schemas_are_apart_and_made_when_missing(url: str) -> None:
    for schema in ("one", "two", "Three-3"):
        with mnemic.open(f"{url}?schema={schema}") as memory:
            memory.scope("x").remember(f"in {schema}")
    with mnemic.open(f"{url}?schema=Three-3") as memory:
        assert [found.text for found in memory.scope("x").memories.list()] == ["in Three-3"]
    with mnemic.open(url) as memory:
        assert memory.scope("x").memories.list() == []


def test_many_open_an_empty_database_at_once(url: str) -> None:
    program = (
        "import sys, mnemic\n"
        "with mnemic.open(sys.argv[1]) as memory: memory.scope('x').session('s').add('user', sys.argv[2])\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, url, str(n)]) for n in range(3)]
    failed: list[Exception] = []

    def add(n: int) -> None:
        try:
            with mnemic.open(url) as memory:
                memory.scope("x").session("s").add("user", f"thread {n}")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in running] == [0] * 3
    assert failed == []
    with mnemic.open(url) as memory:
        assert len(memory.scope("x").session("s").messages()) == 11
    with admin(url) as connection:
        assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(HEAD,)]
