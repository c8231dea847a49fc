"""Damaged derived values: recall goes on as if they were missing, and makes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import mnemic
from mnemic.layers.index import IndexLayer
from mnemic.recall.index_entry import intact
from mnemic.records import Record, ScopePath
from mnemic.store.protocol import Store, scan_all
from mnemic.store.query import Derive, Scan, Write

TEXTS = ["Ana moved to Lisbon", "Ben is allergic to peanuts", "The train leaves at noon", "Tea with milk"]
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "short": lambda value: value[:5],
    "cut": lambda value: value[:-7],
    "longer": lambda value: value + b"\0",
    "another head": lambda value: value[:4] + b"\xff" * 8 + value[12:],
    "one bit": lambda value: value[:-3] + bytes([value[-3] ^ 1]) + value[-2:],
    "not ours": lambda _: b"\x93\x01\x02\x03" * 40,
}


def opened(url: str, key: bytes | None, embedder: str) -> mnemic.Memory:
    return mnemic.open(url, encryption_key=key, embedder=embedder)


def fill(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember_many(TEXTS[:2])
    alice.session("monday").add("user", TEXTS[2])
    alice.session("monday").add("assistant", TEXTS[3])
    memory.warm("acme", "alice")


async def entries(store: Store, names: tuple[str, ...]) -> list[Record]:
    scan = Scan(scope=ScopePath("acme"), below=True, derived=names)
    return [record async for record in scan_all(store, scan)]


def changed(memory: mnemic.Memory, change: Callable[[bytes], bytes]) -> int:
    """Damage what recall keeps beside every other record, in the back-end itself."""
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)

    async def work() -> int:
        name, backend = (await layer._embedder.builder()).name, memory._async._backend
        ops = [
            Derive(record.ref, name, change(record.derived[name]), record.version)
            for record in (await entries(backend, (name,)))[::2]
        ]
        for op in ops:
            await backend.write(Write((op,)))
        return len(ops)

    return asyncio.run(work())


@pytest.mark.parametrize("embedder", ["static", "none"])
@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_recomputed(file_url: str, damage: str, key: bytes | None, embedder: str) -> None:
    with opened(file_url, key, embedder) as memory:
        fill(memory)
        expected = [(hit.record.text, hit.score) for hit in memory.scope("acme", "alice").recall("tea in Lisbon")]
    with opened(file_url, key, embedder) as memory:
        assert changed(memory, DAMAGE[damage]) == 2
    with opened(file_url, key, embedder) as memory:
        alice = memory.scope("acme", "alice")
        assert [(hit.record.text, hit.score) for hit in alice.recall("tea in Lisbon")] == expected
        for text in TEXTS:
            assert alice.recall(text, k=1)[0].record.text == text
    with opened(file_url, key, embedder) as memory:
        layer = memory._async._index
        assert isinstance(layer, IndexLayer)
        name = asyncio.run(layer._embedder.builder()).name
        kept = asyncio.run(entries(layer._below, (name,)))
        assert len(kept) == 4
        assert all(intact(record.derived[name]) for record in kept)
