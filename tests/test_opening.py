"""Opening a store: URLs, files that are not ours, folders that cannot be written, disks that are full."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mnemic
from clock import Clock
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.store import registry
from mnemic.store.registry import StoreURL


@pytest.mark.parametrize(
    ("url", "error", "named"),
    [
        ("", mnemic.InvalidValueError, "sqlite:///memory.db"),
        ("memory.db", mnemic.InvalidValueError, "memory.db"),
        (None, mnemic.InvalidValueError, "None"),
        ("nosuch://x", mnemic.UnknownSchemeError, "there are: .*memory, .*sqlite"),
        ("sqlite://", mnemic.InvalidValueError, "names no file"),
        ("sqlite:///", mnemic.InvalidValueError, "names no file"),
        ("sqlite:///:memory:", mnemic.InvalidValueError, "memory://"),
        ("sqlite://host/a.db", mnemic.InvalidValueError, "names no file"),
        ("sqlite:///a.db?synchronous=off", mnemic.InvalidValueError, "synchronous: 'off'"),
        ("sqlite:///a.db?busy_timeout=-1", mnemic.InvalidValueError, "busy_timeout"),
        ("sqlite:///a.db?mode=ro", mnemic.InvalidValueError, "unknown option 'mode'"),
        ("memory://?x=1", mnemic.InvalidValueError, "unknown option 'x'"),
        ("sqlite:////no/such/folder/a.db", mnemic.InvalidValueError, "does not exist"),
        ("sqlite:agent.db", mnemic.InvalidValueError, "sqlite:///memory.db"),
        ("sqlite:/tmp/agent.db", mnemic.InvalidValueError, "sqlite:///memory.db"),
        ("sqlite:///a\tb.db", mnemic.InvalidValueError, "control character"),
        ("sqlite:///a\x00b.db", mnemic.InvalidValueError, "NUL"),
        ("sqlite:///\ud800.db", mnemic.InvalidValueError, "surrogate"),
        ("sqlite:///" + "x" * 5000, mnemic.InvalidValueError, "characters"),
        ("sqlite:////tmp/" + "x" * 1000 + ".db", mnemic.StorePermissionError, "cannot be opened"),
    ],
)
def test_a_bad_url_says_what_is_wrong(url: str, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        mnemic.open(url)

    async def opened() -> None:
        await mnemic.open_async(url)

    with pytest.raises(error, match=named):
        asyncio.run(opened())


def test_a_memory_goes_by_the_clock_that_it_is_given(memory: mnemic.Memory, clock: Clock) -> None:
    alice = memory.scope("alice")
    chat = alice.session("s")
    clock.advance(days=100)
    then = clock()
    assert chat.add("user", "tea").timestamp >= then
    assert chat.add_many([{"role": "user", "content": "x"}])[0].timestamp >= then
    assert chat.set_system("be brief").timestamp >= then
    assert alice.sessions.list()[0].last_activity >= then
    kept = alice.remember("likes tea")
    assert kept.created is not None
    assert kept.created >= then
    assert alice.facts.add("Anna", "likes", "tea").valid_from >= then
    assert alice.notes.write("n", 1).updated >= then
    assert [hit.id for hit in alice.recall("likes tea", 1)] == [kept.id]
    (before,) = alice.memories.fading()
    clock.advance(days=300)
    (after,) = alice.memories.fading()
    assert after.strength < before.strength / 2
    assert alice.forget(older_than=timedelta(days=200), kinds="memory").deleted == 1


def test_an_archive_and_an_audit_log_go_by_the_same_clock(tmp_path: Path, clock: Clock) -> None:
    clock.advance(days=100)
    then = clock()
    with mnemic.open("memory://", audit=f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as memory:
        alice = memory.scope("alice")
        alice.remember("the code is 1234", id="k", ttl=timedelta(hours=1))
        assert all(entry.time >= then for entry in memory.audit_trail())
        assert alice.forget(since=then, archive=f"sqlite:///{tmp_path / 'a.db'}").deleted == 1
    with mnemic.open(f"sqlite:///{tmp_path / 'a.db'}", clock=clock) as archive:
        assert archive.scope("alice").memories.get("k").text == "the code is 1234"
        clock.advance(hours=2)
        assert archive.scope("alice").memories.list() == []


def test_a_clock_returns_times(file_url: str) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="clock must be a function"):
        mnemic.open(file_url, clock=datetime.now(UTC))  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="clock's time must be a datetime"):
        mnemic.open(file_url, clock=lambda: 7)  # type: ignore[arg-type, return-value]


def test_a_url_is_shown_without_its_password() -> None:
    with pytest.raises(mnemic.InvalidValueError) as caught:
        mnemic.open("foo://u:s3cret@[bad/x")
    assert "s3cret" not in str(caught.value)
    url = StoreURL.parse("redis://user:s3cr:t@localhost:6379/0?a=b")
    assert str(url) == "redis://***@localhost:6379/0?a=***"
    assert "s3cr" not in str(url)
    assert str(StoreURL.parse("sqlite:////tmp/a#b.db")) == "sqlite:////tmp/a#b.db"


def test_two_packages_that_claim_a_scheme_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    entries = metadata.EntryPoints(
        [metadata.EntryPoint("both", value, registry.GROUP) for value in ("one:BACKEND", "two:BACKEND")]
    )
    monkeypatch.setattr(metadata, "entry_points", lambda **asked: entries.select(**asked))
    with pytest.raises(mnemic.UnknownSchemeError, match=r"more than one.*one:BACKEND.*two:BACKEND"):
        mnemic.open("both://")


def test_a_missing_dependency_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    entry = metadata.EntryPoint("far", "no_such_driver.backend:BACKEND [far]", registry.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **asked: metadata.EntryPoints([entry]).select(**asked))
    with pytest.raises(mnemic.MissingExtraError, match=r"no_such_driver.*pip install '.*\[far\]'"):
        mnemic.open("far://")


def test_relative_and_odd_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.db", "with space.db", "100%.db", "a#b.db", "ü.db"):
        with mnemic.open(f"sqlite:///{name}") as memory:
            memory.scope("x").remember("y")
        assert (tmp_path / name).exists()
    with mnemic.open("sqlite:///with%20space.db") as memory:
        assert len(memory.scope("x").memories.list()) == 1


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with mnemic.open("sqlite:///a.db") as memory:
        monkeypatch.chdir(tmp_path / "other")
        threads = [threading.Thread(target=memory.scope("x").remember, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(memory.scope("x").memories.list()) == 8
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_acknowledged_means_on_disk_unless_told_otherwise(tmp_path: Path, option: str, level: int) -> None:
    file = SqliteFile(StoreURL.parse(f"sqlite:///{tmp_path / 'a.db'}{option}"))
    try:
        assert file.use(lambda c: c.raw.execute("PRAGMA synchronous").fetchone()) == (level,)
        assert file.use(lambda c: c.raw.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
        assert file.use(lambda c: c.raw.execute("PRAGMA busy_timeout").fetchone()) == (30_000,)
    finally:
        file.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 50, b"\x00" * 4096])
def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(mnemic.UnreadableStoreError, match="not an SQLite database"):
        mnemic.open(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(mnemic.StoreError, match="cannot be opened"):
        mnemic.open(f"sqlite:///{tmp_path}")


def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").remember_many([f"fact {n} " + "x" * 500 for n in range(200)])
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(mnemic.UnreadableStoreError, match="damaged"), mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").memories.list()


def test_we_share_a_database_with_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as app:
        app.execute("CREATE TABLE users (name TEXT)")
        app.execute("CREATE TABLE alembic_version (version_num TEXT)")
        app.execute("INSERT INTO alembic_version VALUES ('their own')")
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").remember("y")
    with closing(sqlite3.connect(path, isolation_level=None)) as app:
        assert app.execute("SELECT version_num FROM alembic_version").fetchall() == [("their own",)]
        tables = {name for (name,) in app.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in tables if not name.startswith("mnemic_")} == {"users", "alembic_version"}


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes past it fail, as they do when it is full."""
    program = """
        import resource, sys
        import mnemic
        memory = mnemic.open(sys.argv[1])
        chat = memory.scope("u").session("s")
        chat.add("user", "kept")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        added = ["kept"]
        try:
            for n in range(10_000):
                chat.add("user", f"{n} " + "x" * 5_000)
                added.append(n)
        except mnemic.StoreError as error:
            assert sys.argv[1] in str(error), error
            assert error.unsure and not error.retry
        assert 10 < len(added) < 10_000
        assert len(chat.messages()) == len(added)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(len(added))
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert soft == hard == resource.RLIM_INFINITY
    program = program.replace("(2_000_000, 2_000_000)", "(2_000_000, resource.RLIM_INFINITY)")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), url], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    with mnemic.open(url) as memory:
        chat = memory.scope("u").session("s")
        assert len(chat.messages()) == int(run.stdout)
        chat.add("user", "more")
        assert len(chat.messages()) == int(run.stdout) + 1


def test_a_database_that_may_not_grow_says_that_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = SqliteFile._connect

    def small(self: SqliteFile) -> object:
        connection = connect(self)
        connection.raw.execute("PRAGMA max_page_count = 60")
        return connection

    url = f"sqlite:///{tmp_path / 'a.db'}"
    with mnemic.open(url) as memory:
        memory.scope("u").session("s").add("user", "kept")
    monkeypatch.setattr(SqliteFile, "_connect", small)
    with mnemic.open(url) as memory:
        chat = memory.scope("u").session("s")
        with pytest.raises(mnemic.StoreFullError, match="the disk is full") as caught:
            chat.add_many([mnemic.Message("user", "x" * 5_000) for _ in range(100)])
        assert (caught.value.retry, caught.value.unsure) == (False, False)
        assert [message.text for message in chat.messages()] == ["kept"]
        chat.add("user", "small")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_folder_that_may_not_be_written_says_so() -> None:
    # Not `tmp_path`, whose parents no other user may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        _test_locked(Path(folder))


def _test_locked(folder: Path) -> None:
    path = folder / "locked" / "a.db"
    path.parent.mkdir()
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").remember("kept")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    program = """
        import os, sys
        import mnemic
        mnemic.open(sys.argv.pop(1)).scope("x").remember("what is needed is imported before the change")
        os.setgid(65534); os.setuid(65534)
        for url in sys.argv[1:]:
            try:
                mnemic.open(url).scope("x").remember("no")
            except mnemic.StorePermissionError as error:
                print(error)
    """
    urls = [f"sqlite:///{path}", f"sqlite:///{path.parent / 'new.db'}"]
    first = f"sqlite:///{folder / 'first.db'}"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), first, *urls], capture_output=True, text=True, check=False
    )
    existing, new = run.stdout.splitlines()
    assert "the file, or its folder, is read-only" in existing
    assert "the file cannot be opened" in new
    with mnemic.open(urls[0]) as memory:
        assert [record.text for record in memory.scope("x").memories.list()] == ["kept"]


def test_a_lock_held_for_too_long_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{path}?busy_timeout=0.2") as memory:
        memory.scope("x").remember("kept")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(mnemic.StoreBusyError, match="another process"):
                memory.scope("x").remember("late")
            assert len(memory.scope("x").memories.list()) == 1
            other.execute("ROLLBACK")
        memory.scope("x").remember("now")
        assert len(memory.scope("x").memories.list()) == 2


def test_closing_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    before = set(threading.enumerate())

    async def use() -> None:
        async with mnemic.open_async(url) as memory:
            space = memory.scope("x")
            await asyncio.gather(*(space.remember(f"fact {n}") for n in range(20)))
            await asyncio.gather(*(space.recall("fact") for _ in range(5)))
            assert set(threading.enumerate()) - before
        with pytest.raises(mnemic.ClosedError):
            await space.memories.list()

    asyncio.run(use())
    assert set(threading.enumerate()) <= before
    handles = {fd.resolve() for fd in Path("/proc/self/fd").iterdir()}
    assert not any(str(handle).startswith(str(tmp_path)) for handle in handles)
    with mnemic.open(url) as memory:
        assert len(memory.scope("x").memories.list()) == 20
    with pytest.raises(mnemic.ClosedError):
        memory.scope("x").memories.list()
    memory.close()
