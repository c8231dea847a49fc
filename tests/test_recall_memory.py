"""The indexes that recall keeps in memory: what they take, what goes first, and whom they slow down."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.backends.memory import MemoryStore
from mnemic.backends.sqlite.store import SqliteStore
from mnemic.layers.index import IndexLayer
from mnemic.layers.index_cache import IndexCache
from mnemic.recall.document_table import DocumentTable
from mnemic.records import Stream
from mnemic.store.protocol import Page
from mnemic.store.query import StreamScan

TEXTS = [f"the {n}th of many things that were said about tea, trains and weather" for n in range(20)]


@pytest.fixture
def memory() -> Iterator[mnemic.Memory]:
    """A memory with forty users of twenty records."""
    with mnemic.open("memory://", index_bytes=400_000) as opened:
        for n in range(40):
            opened.scope("acme", f"user-{n}").remember_many(TEXTS)
        yield opened


def cache_of(memory: mnemic.Memory) -> IndexCache:
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    return layer._cache


def held(memory: mnemic.Memory) -> list[str]:
    return list(cache_of(memory)._indexes)


def test_indexes_stay_within_index_bytes(memory: mnemic.Memory) -> None:
    for n in range(40):
        assert len(memory.scope("acme", f"user-{n}").recall("the 7th thing about tea", k=3)) == 3
        assert 0 < cache_of(memory).nbytes <= 400_000
    assert 3 <= len(held(memory)) < 40
    assert cache_of(memory).nbytes == sum(index.nbytes for index in cache_of(memory)._indexes.values())


def test_the_least_recently_searched_index_is_evicted_first(memory: mnemic.Memory) -> None:
    memory.scope("acme", "user-0").recall("tea")
    for n in range(1, 40):
        memory.scope("acme", f"user-{n}").recall("tea")
        memory.scope("acme", "user-0").recall("tea")
    assert held(memory)[-1] == "acme/user-0"
    assert held(memory)[-2] == "acme/user-39"
    assert "acme/user-1" not in held(memory)
    assert memory.scope("acme", "user-1").recall("the 7th thing about tea")


def test_one_index_that_is_larger_than_the_bound_is_kept_alone() -> None:
    with mnemic.open("memory://", index_bytes=1) as memory:
        for name in ("alice", "bob"):
            memory.scope(name).remember_many(TEXTS)
            assert memory.scope(name).recall("tea")
        assert held(memory) == ["bob"]


def test_a_recall_touches_no_index_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    plain = DocumentTable.__len__

    def counted(table: DocumentTable) -> int:
        looked.append(id(table))
        return plain(table)

    with mnemic.open("memory://") as memory:
        for n in range(50):
            memory.scope(f"user-{n}").remember_many(TEXTS)
            memory.scope(f"user-{n}").recall("tea")
        monkeypatch.setattr(DocumentTable, "__len__", counted)
        (hit,) = memory.scope("user-7").recall("tea", k=1)
        memory.scope("user-7").used(hit)
        memory.scope("user-7").forget(hit.record.key)
        assert len(set(looked)) == 1


@pytest.mark.parametrize(("users", "each"), [(60, 20), (2, 3000)])
def test_the_counted_bytes_match_the_memory_use(users: int, each: int) -> None:
    with mnemic.open("memory://") as memory:
        memory.scope("first").remember_many(TEXTS)
        memory.scope("first").recall("tea")
        for n in range(users):
            memory.scope(f"user-{n}").remember_many([f"{n} {text}" for text in TEXTS] * (each // len(TEXTS)))
        gc.collect()
        before = cache_of(memory).nbytes
        tracemalloc.start()
        try:
            for n in range(users):
                memory.scope(f"user-{n}").recall("tea and trains")
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert cache_of(memory).nbytes - before == pytest.approx(taken, rel=0.4)


@pytest.mark.parametrize(("store", "url"), [(SqliteStore, "sqlite:///{}/listed.db"), (MemoryStore, "memory://{}")])
def test_streams_are_listed_only_after_a_write(
    store: type[SqliteStore | MemoryStore], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, listed = url.format(tmp_path), []
    plain: Any = store.streams

    async def counted(self: SqliteStore | MemoryStore, scan: StreamScan) -> Page[Stream]:
        listed.append(scan)
        page: Page[Stream] = await plain(self, scan)
        return page

    monkeypatch.setattr(store, "streams", counted)
    with mnemic.open(url) as ours, mnemic.open(url) as other:
        for n, writer in enumerate((ours, other, ours, other, other)):
            writer.scope("alice").remember(f"cup number {n} of tea")
            for reader in (ours, other):
                assert len(reader.scope("alice").recall("tea", k=9, uses=False)) == n + 1
                before = len(listed)
                for _ in range(3):
                    assert len(reader.scope("alice").recall("a cup", k=9, uses=False)) == n + 1
                assert len(listed) == before
        assert not ours.scope("bob").recall("tea")
        ours.scope("alice").erase()
        assert not other.scope("alice").recall("tea")


@pytest.mark.parametrize("given", [-1, 1.5, "1 GB"])
def test_invalid_index_bytes_are_refused(given: object) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="index_bytes"):
        mnemic.open("memory://", index_bytes=given)  # type: ignore[arg-type]
