"""What is saved of damaged stores: all that can be read, nothing that was not there, and the source as it was."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from attack import ROUNDS
from layered import KEY
from mnemic.backends.sqlite.pages import PageFile
from mnemic.cli import main
from mnemic.records import Record, Ref, ScopePath, digest
from mnemic.salvage import Salvaged, salvage
from mnemic.store import registry
from mnemic.store.codec import FIELDS, to_columns
from mnemic.store.protocol import scan_all
from mnemic.store.query import Scan

PAGE = 4096
TENANTS = ("acme", "beta", "gamma")
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def fill(url: str, **options: Any) -> None:
    """Store several hundred records of every kind, for three tenants."""
    rng = random.Random(7)
    with mnemic.open(url, **options) as memory:
        for tenant in TENANTS:
            home = memory.scope(tenant, "alice")
            home.remember_many([f"{tenant} {n}: tea {rng.getrandbits(400):x}" for n in range(60)])
            chat = home.session("monday", max_messages=1000)
            chat.add_many([{"role": "user", "content": f"{tenant} says {rng.getrandbits(200):x}"} for _ in range(40)])
            chat.add("user", "long " * 3000, metadata={"n": 1})
            home.notes.write("plan", f"the plan of {tenant}")
            home.facts.add(tenant, "likes", "tea")


@cache
def stored(key: bytes | None) -> bytes:
    """Return the bytes of a filled database."""
    with TemporaryDirectory(dir=SCRATCH) as folder:
        path = Path(folder) / "memory.db"
        fill(f"sqlite:///{path}?synchronous=normal", encryption_key=key)
        return path.read_bytes()


def records(url: str) -> dict[Ref, Record]:
    """Return every record of a store, as it lies there."""

    async def read() -> dict[Ref, Record]:
        parsed, backend = registry.find(url)
        store = await backend.open(parsed)
        try:
            every = Scan(scope=ScopePath(), below=True, limit=1000)
            return {record.ref: record async for record in scan_all(store, every)}
        finally:
            await store.close()

    return asyncio.run(read())


@cache
def originals(key: bytes | None) -> dict[Ref, Record]:
    with TemporaryDirectory(dir=SCRATCH) as folder:
        path = Path(folder) / "memory.db"
        path.write_bytes(stored(key))
        return records(f"sqlite:///{path}")


def saved_from(source: Path, key: bytes | None = None) -> tuple[Salvaged | None, dict[Ref, Record]]:
    """Salvage a file; return what it says and what is in the new store; nothing if nothing could be saved."""
    before = source.read_bytes()
    target = f"sqlite:///{source.with_name('saved.db')}?synchronous=normal"
    try:
        done = asyncio.run(salvage(f"sqlite:///{source}", target, key))
    except (mnemic.NotFoundError, mnemic.UnreadableStoreError):
        return None, {}
    finally:
        assert source.read_bytes() == before
        assert {file.name for file in source.parent.iterdir()} <= {source.name, f"{source.name}-wal", "saved.db"}
    return done, records(target)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "memory.db"
    found.write_bytes(stored(None))
    return found


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_healthy_file_is_saved_whole(path: Path) -> None:
    done, saved = saved_from(path)
    assert done is not None
    assert done.complete
    assert {ref: digest(record) for ref, record in saved.items()} == {
        ref: digest(record) for ref, record in originals(None).items()
    }
    with mnemic.open(f"sqlite:///{path.with_name('saved.db')}") as memory:
        home = memory.scope("acme", "alice")
        assert len(home.session("monday").messages()) == 41
        assert home.session("monday").settings().max_messages == 1000
        assert home.recall("the plan of acme")[0].text == "plan\nthe plan of acme"


DAMAGES = {
    "header": lambda path: overwrite(path, 0, b"\xff" * 100),
    "first page": lambda path: overwrite(path, 0, os.urandom(PAGE)),
    "page size": lambda path: overwrite(path, 16, b"\x20\x00"),
    "free list": lambda path: overwrite(path, 32, b"\0\0\0\5\0\0\0\x09"),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 3 * 2 - 100),
    "root of records": lambda path: overwrite(path, (root_of(path, "mnemic_records") - 1) * PAGE, b"\0" * PAGE),
    "streams": lambda path: overwrite(path, (root_of(path, "mnemic_streams") - 1) * PAGE, b"\xff" * PAGE),
    "an index": lambda path: overwrite(
        path, (root_of(path, "sqlite_autoindex_mnemic_records_1") - 1) * PAGE, b"\xff" * PAGE
    ),
}


def root_of(path: Path, name: str) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as raw:
        return int(raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_of_what_only_points_to_records_loses_none(path: Path, name: str) -> None:
    DAMAGES[name](path)
    _, saved = saved_from(path)
    lost = originals(None).keys() - saved.keys()
    assert len(lost) < (150 if name == "truncated" else 1)
    assert all(digest(record) == digest(originals(None)[ref]) for ref, record in saved.items())


def test_what_is_in_the_log_is_saved_up_to_its_damage(path: Path) -> None:
    with mnemic.open(f"sqlite:///{path}") as memory:
        for n in range(20):
            memory.scope("acme").notes.write(f"n{n}", "in the log")
        log = path.with_name("memory.db-wal")
        held = path.read_bytes(), log.read_bytes()
    path.write_bytes(held[0])
    log.write_bytes(held[1])
    done, saved = saved_from(path)
    assert done is not None
    assert done.complete
    assert sum("in the log" in (record.text or "") for record in saved.values()) == 20
    (path.parent / "saved.db").unlink()
    overwrite(log, len(held[1]) // 2, b"\xff")
    done, saved = saved_from(path)
    assert done is not None
    assert any("write-ahead log is damaged at byte" in remark for remark in done.remarks)
    assert 0 < sum("in the log" in (record.text or "") for record in saved.values()) < 20
    (path.parent / "saved.db").unlink()
    log.write_bytes(bytes(len(held[1])))
    done, saved = saved_from(path)
    assert done is not None
    assert "the write-ahead log is filled with zeros" in done.remarks
    assert saved.keys() == originals(None).keys()


def test_expired_records_are_not_lost(path: Path) -> None:
    now = datetime.now(UTC)
    with mnemic.open(f"sqlite:///{path}", history=timedelta(days=1), clock=lambda: now - timedelta(days=2)) as memory:
        memory.scope("acme").remember("a parcel comes", ttl=timedelta(hours=1))
        for n in range(3):
            memory.scope("acme").notes.write("plan", n)
    done, saved = saved_from(path)
    assert done is not None
    assert done.complete
    assert len(saved) == len(originals(None)) + 1


def test_a_truncated_file_is_said_to_have_lost_an_unknown_number(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    done, _ = saved_from(path)
    assert done is not None
    assert done.uncounted
    assert not done.complete
    assert any(remark.startswith("the file is truncated") for remark in done.remarks)


def test_a_stream_without_its_row_is_said_to_have_lost_an_unknown_number(path: Path) -> None:
    overwrite(path, (root_of(path, "mnemic_streams") - 1) * PAGE, bytes(PAGE))
    done, saved = saved_from(path)
    assert done is not None
    assert done.uncounted
    assert saved.keys() == originals(None).keys()
    assert "the settings and the number of records of the memory stream of 'acme/alice' are lost: 60 were found" in (
        done.remarks
    )
    target = path.with_name("again.db")
    shown = CliRunner().invoke(main, ["doctor", "--store", str(path), "--salvage", str(target)])
    assert shown.exit_code == 1
    assert "an unknown number of records lost" in shown.output


def test_a_salvage_that_fails_leaves_no_target(tmp_path: Path) -> None:
    path, target = tmp_path / "memory.db", tmp_path / "saved.db"
    path.write_bytes(stored(KEY))
    with pytest.raises(mnemic.DecryptionError, match=r"memory\.db.*key [0-9a-f]{8}, which was not given"):
        asyncio.run(salvage(f"sqlite:///{path}", f"sqlite:///{target}", bytes(32)))
    missing = mnemic.Encryption(KEY, key_store=f"sqlite:///{tmp_path}/keys.db")
    with pytest.raises(mnemic.NotFoundError, match=r"keys\.db"):
        asyncio.run(salvage(f"sqlite:///{path}", f"sqlite:///{target}", missing))

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(salvage(f"sqlite:///{path}", f"sqlite:///{target}", KEY, progress=interrupt))
    assert {file.name for file in tmp_path.iterdir()} == {"memory.db"}


def test_records_whose_data_key_was_destroyed_are_left_out_and_not_lost(tmp_path: Path) -> None:
    source, backup = f"sqlite:///{tmp_path}/memory.db", tmp_path / "backup.db"
    keys = mnemic.Encryption(KEY, key_store=f"sqlite:///{tmp_path}/keys.db")
    with mnemic.open(source, encryption_key=keys) as memory:
        memory.scope("acme", "bob").remember_many(["Bob drinks coffee", "Bob drinks tea"])
        memory.scope("acme", "eve").remember("Eve drinks tea")
    shutil.copy(tmp_path / "memory.db", backup)
    with mnemic.open(source, encryption_key=keys) as memory:
        memory.scope("acme", "bob").erase()
    done = asyncio.run(salvage(f"sqlite:///{backup}", f"sqlite:///{tmp_path}/saved.db", keys))
    assert done.complete
    assert (done.records, done.erased) == ({"memory": 1}, 2)
    assert {ref.scope.path for ref in records(f"sqlite:///{tmp_path}/saved.db") if ref.kind == "memory"} == {"acme/eve"}


def test_deleted_records_do_not_come_back(path: Path) -> None:
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("acme").erase()
    DAMAGES["header"](path)
    _, saved = saved_from(path)
    kept = {ref for ref in originals(None) if ref.scope.segments[:1] != ("acme",)}
    assert {ref for ref in saved if ref.scope.path or ref in kept} == kept


# ------------------------------------------------------------ bytes that change at random


places = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=600)), min_size=1, max_size=6
)


def damaged(data: bytes, damage: list[tuple[float, bytes]]) -> bytes:
    changed = bytearray(data)
    for where, put in damage:
        at = int(where * len(data))
        changed[at : at + len(put)] = put[: len(data) - at]
    return bytes(changed)


@cache
def pages_of_records() -> tuple[dict[str, set[int]], set[int]]:
    """Return the pages that hold each record, by its key, and those that hold the names of streams."""
    holding: dict[str, set[int]] = {}
    names: set[int] = set()
    with TemporaryDirectory(dir=SCRATCH) as folder:
        path = Path(folder) / "memory.db"
        path.write_bytes(stored(None))
        with closing(PageFile(path)) as pages:
            touched: list[int] = []
            read = pages.page
            pages.page = lambda number: touched.append(number) or read(number)  # type: ignore[method-assign, func-returns-value]
            for number in range(1, pages.count + 1):
                for row in pages.rows(number):
                    assert not isinstance(row, ValueError)
                    shape = [type(value) for value in row.values[:3]]
                    if row.rowid is not None and len(row.values) >= 17:
                        holding[row.values[2]] = {number, *touched}
                    elif str in shape[:1] or shape[1:] == [str, str]:
                        names.add(number)
                    touched.clear()
    return holding, names


@given(places)
@settings(max_examples=40 * ROUNDS, deadline=None)
def test_what_lies_in_undamaged_pages_is_saved_and_nothing_is_invented(damage: list[tuple[float, bytes]]) -> None:
    data = damaged(stored(None), damage)
    hit = {n // PAGE + 1 for n in range(0, len(data), PAGE) if data[n : n + PAGE] != stored(None)[n : n + PAGE]}
    holding, names = pages_of_records()
    with TemporaryDirectory(dir=SCRATCH) as folder:
        path = Path(folder) / "memory.db"
        path.write_bytes(data)
        _, saved = saved_from(path)
        for ref, record in saved.items():
            # SQLite has no checksums: a changed byte in a text, or in the name of a scope, is not noticed.
            if not hit & (holding.get(ref.key, hit) | names):
                assert digest(record) == digest(originals(None)[ref])
        whole = {ref for ref in originals(None) if not hit & (holding[ref.key] | names)}
        assert whole <= saved.keys()
        assert set(readable(path)) <= saved.keys()


@given(places)
@settings(max_examples=15 * ROUNDS, deadline=None)
def test_what_is_saved_of_an_encrypted_file_is_what_was_stored(damage: list[tuple[float, bytes]]) -> None:
    with TemporaryDirectory(dir=SCRATCH) as folder:
        path = Path(folder) / "memory.db"
        path.write_bytes(damaged(stored(KEY), damage))
        try:
            saved_from(path, KEY)
            opened = mnemic.open(f"sqlite:///{path.with_name('saved.db')}", encryption_key=KEY)
        except mnemic.DecryptionError:
            return  # the record of the key itself is damaged
        with opened as memory:
            texts: set[str | None] = {
                hit.text for tenant in TENANTS for hit in memory.scope(tenant, "alice").memories.list()
            }
            texts |= {
                message.text
                for tenant in TENANTS
                for message in memory.scope(tenant, "alice").session("monday").messages()
            }
        assert texts <= {record.text for record in originals(None).values()}


def readable(path: Path) -> Iterator[Ref]:
    """Yield the records that SQLite reads, and that are as they were."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as raw:
            columns = ", ".join(f"r.{name}" for name in FIELDS)
            for scope, kind, *row in raw.execute(
                f"SELECT scope, kind, {columns} FROM mnemic_records r JOIN mnemic_streams s ON s.id = r.stream_id"
            ):
                ref = Ref(ScopePath(scope), kind, row[0])
                if ref in originals(None) and row == to_columns(originals(None)[ref]):
                    yield ref
    except (sqlite3.Error, UnicodeDecodeError, ValueError):
        return
