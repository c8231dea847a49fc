"""Files: what may be replaced and read, who may read them, and what is left in them after an erase."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.errors import StoreError, StorePermissionError

SECRET = "zebrafish"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}?synchronous=normal&busy_timeout=0.05"


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("theirs")
    path.symlink_to("elsewhere")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def device(path: Path) -> None:
    """Make a null device of our own: a test that fails must not replace that of the machine."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")


NOT_REGULAR = {"link": link, "dangling": dangling, "pipe": os.mkfifo, "folder": os.mkdir, "device": device}


@pytest.mark.parametrize("make", NOT_REGULAR.values(), ids=NOT_REGULAR)
def test_only_regular_files_are_replaced(make: Callable[[Path], None], tmp_path: Path) -> None:
    target = tmp_path / "saved.json"
    make(target)
    before = target.lstat()
    with mnemic.open("memory://") as memory:
        chat = memory.scope("a").session("s")
        chat.add("user", "hello")
        with pytest.raises(StorePermissionError, match=r"not a regular file"):
            chat.save(target)
        with pytest.raises(StorePermissionError, match=r"not a regular file"):
            memory.scope("a").facts.save_graphml(target)
    assert target.lstat().st_ino == before.st_ino
    assert {entry.name for entry in tmp_path.iterdir()} <= {"saved.json", "elsewhere"}
    if make is link:
        assert (tmp_path / "elsewhere").read_text() == "theirs"


@pytest.mark.parametrize("what", ["pipe", "folder", "/dev/zero"])
def test_only_regular_files_are_loaded(what: str, tmp_path: Path) -> None:
    source = Path(what) if what.startswith("/") else tmp_path / "saved.json"
    if what in NOT_REGULAR:
        NOT_REGULAR[what](source)
    with mnemic.open("memory://") as memory, pytest.raises(StorePermissionError, match=r"regular file|cannot be read"):
        memory.scope("a").session("s").load(source)


def test_a_saved_session_is_read_through_a_link(tmp_path: Path) -> None:
    with mnemic.open("memory://") as memory:
        chat = memory.scope("a").session("s")
        chat.add("user", "hello")
        chat.save(tmp_path / "saved.json")
        assert mode(tmp_path / "saved.json") == 0o600
        (tmp_path / "link.json").symlink_to("saved.json")
        copy = memory.scope("b").session("s")
        copy.load(tmp_path / "link.json")
        assert [message.content for message in copy.messages()] == ["hello"]


def test_a_new_database_is_readable_by_its_owner_alone(path: Path, url: str) -> None:
    before = os.umask(0)
    try:
        with mnemic.open(url) as memory:
            memory.scope("a").session("s").add("user", "hello")
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == ["memory.db", "memory.db-shm", "memory.db-wal"]
            assert [mode(file) for file in files] == [0o600] * 3
    finally:
        os.umask(before)


def test_the_mode_of_a_database_that_is_there_stays(path: Path, url: str) -> None:
    mnemic.open(url).close()
    path.chmod(0o640)
    with mnemic.open(url) as memory:
        memory.scope("a").session("s").add("user", "hello")
        assert {mode(file) for file in path.parent.iterdir()} == {0o640}


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("other.db"))
    path.with_name("other.db").replace(path)


@pytest.mark.parametrize("change", [Path.unlink, replaced], ids=["deleted", "replaced"])
def test_a_file_that_is_deleted_or_replaced_is_noticed(change: Callable[[Path], None], path: Path, url: str) -> None:
    with mnemic.open(url) as memory:
        chat = memory.scope("a").session("s")
        chat.add("user", "kept")
        change(path)
        was_there = path.exists()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"the file was (deleted|replaced)"):
                chat.add("user", "lost")
            with pytest.raises(StoreError, match=r"the file was (deleted|replaced)"):
                chat.messages()
        assert path.exists() == was_there


def test_a_file_that_is_deleted_is_noticed_on_an_event_loop(path: Path, url: str) -> None:
    async def work() -> None:
        async with mnemic.open_async(url) as memory:
            chat = memory.scope("a").session("s")
            await chat.add("user", "kept")
            path.unlink()
            done = await asyncio.gather(*(chat.add("user", "lost") for _ in range(5)), return_exceptions=True)
            assert [type(one) for one in done] == [StoreError] * 5
        assert not path.exists()

    asyncio.run(work())


def test_opening_a_database_leaves_the_locks_of_other_connections_alone(path: Path, url: str) -> None:
    """On POSIX, closing any handle of a file releases all locks that the process has on it."""
    with mnemic.open(url) as memory:
        chat = memory.scope("a").session("s")
        chat.add("user", "one")
        with mnemic.open(url) as other:
            other.scope("a").session("s").add("user", "two")
        # Another process that closes the last connection, as far as it knows, removes the write-ahead file.
        script = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('select 1 from mnemic_records')"
        subprocess.run([sys.executable, "-c", script + "; c.close()"], check=True)
        assert path.with_name("memory.db-wal").exists()
        chat.add("user", "three")
    with mnemic.open(url) as memory:
        assert len(memory.scope("a").session("s").messages()) == 3


def fill(memory: mnemic.Memory) -> None:
    for n in range(60):
        alice = memory.scope("acme", "alice")
        alice.session(f"s{n % 3}").add("user", f"{SECRET} " * (1 + n * 7 % 50), metadata={SECRET: n})
        memory.scope("acme", "bob").session(f"s{n % 3}").add("user", "plain " * (1 + n * 11 % 90))
        if n % 10 == 0:
            alice.remember(f"{SECRET} {n}")
            alice.notes.write(f"{SECRET}{n}", {"x": SECRET}, description=SECRET)
            alice.facts.add(f"{SECRET}{n}", "likes", SECRET)
    memory.scope("acme").recall(SECRET)


def found(folder: Path) -> dict[str, int]:
    counts = {file.name: file.read_bytes().lower().count(SECRET.encode()) for file in folder.iterdir()}
    return {name: count for name, count in counts.items() if count}


def test_an_erased_text_is_in_no_file(path: Path, url: str) -> None:
    with mnemic.open(url) as memory:
        fill(memory)
        assert found(path.parent)["memory.db-wal"] > 100
        assert memory.scope("acme", "alice").erase().records > 60
        assert found(path.parent) == {}
        assert len(memory.scope("acme", "bob").session("s0").messages()) == 20


def test_an_erase_that_another_connection_keeps_from_being_complete_says_so(path: Path, url: str) -> None:
    with mnemic.open(url) as memory:
        fill(memory)
        alice = memory.scope("acme", "alice")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM mnemic_records").fetchone()
        certificate = alice.erase()
        assert not certificate.complete
        assert "stays readable in memory.db-wal" in certificate.unreached[0].what
        assert alice.sessions.list() == []
        assert found(path.parent)
        reader.close()
        assert memory.finish_erasure(certificate).complete
        assert found(path.parent) == {}


def test_a_database_is_never_overwritten_by_a_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with mnemic.open(f"sqlite:///{path}") as memory:
        alice = memory.scope("acme", "alice")
        alice.session("s").add("user", "kept")
        alice.facts.add("Alice", "likes", "tea")
        writers: list[Callable[[Path], object]] = [
            partial(memory.export_to, format="jsonl"),
            partial(alice.export_to, format="csv"),
            alice.session("s").save,
            alice.facts.save_graphml,
        ]
        for write in writers:
            with pytest.raises(mnemic.StorePermissionError, match="SQLite database"):
                write(path)
        assert alice.session("s").messages()[0].text == "kept"


def test_what_is_no_path_and_a_folder_that_is_not_there_are_named(tmp_path: Path) -> None:
    memory = mnemic.open("memory://")
    nothing: Any = None
    for call in (memory.export_to, memory.import_from, memory.scope("a").session("s").save):
        with pytest.raises(mnemic.InvalidValueError, match="path"):
            call(nothing)
    with pytest.raises(mnemic.NotFoundError, match="there is no folder"):
        memory.export_to(tmp_path / "nowhere" / "x.jsonl")
