"""Stores over keys and values: writes that cannot be done at once, and writers in one another's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from dict_engine import DictEngine
from mnemic.backends.keyvalue.engine import Batch, Loaded
from mnemic.backends.keyvalue.kept import decode_head
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.errors import ConflictError, StoreBusyError, StoreUnavailableError
from mnemic.records import Record, Ref, ScopePath, Stream
from mnemic.store.planning import Needs
from mnemic.store.protocol import scan_all
from mnemic.store.query import Delete, Derive, Op, Purge, Put, Scan, StreamScan, Write

A, B = ScopePath("a"), ScopePath("b")
BEFORE = (Put(Record(A, "note", "old", text="1")), Put(Record(B, "note", "gone", text="2")))
CHANGE: tuple[Op, ...] = (
    Put(Record(A, "note", "old", text="changed", derived={"x": b"1"})),
    Put(Record(A, "note", "new", text="3")),
    Delete(Ref(B, "note", "gone")),
    Put(Record(ScopePath("c"), "note", "first", text="4")),
)
OLD = {"old": "1", "gone": "2"}
NEW = {"old": "changed", "new": "3", "first": "4"}


class Clock:
    """A clock that tests set forward."""

    def __init__(self) -> None:
        self.time = datetime(2024, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


async def everything(store: KeyValueStore) -> dict[str, str | None]:
    scan = Scan(scope=ScopePath(), below=True)
    return {record.key: record.text async for record in scan_all(store, scan)}


async def steps() -> int:
    """Return how many steps a change takes that is not broken off."""
    engine = DictEngine(partitioned=True)
    store = KeyValueStore(engine)
    await store.write(Write(BEFORE))
    engine.breaks_after = 1000
    await store.write(Write(CHANGE))
    return 1000 - engine.breaks_after


def test_a_write_that_breaks_off_anywhere_is_done_wholly_or_not_at_all() -> None:
    async def main() -> set[str]:
        seen = set()
        for broken_at in range(await steps()):
            engine, clock = DictEngine(partitioned=True), Clock()
            store = KeyValueStore(engine, clock)
            await store.write(Write(BEFORE))
            engine.breaks_after = broken_at
            with suppress(StoreUnavailableError):
                await store.write(Write(CHANGE))
            engine.breaks_after = None
            # Another process finds what was left, at once or when the holder's time is over.
            other = KeyValueStore(engine, clock)
            found = await everything(other)
            assert found in (OLD, NEW), (broken_at, found)
            clock.time += timedelta(minutes=1)
            await other.write(Write((Put(Record(A, "note", "later", text="5")),)))
            after = await everything(other)
            assert after == found | {"later": "5"}, broken_at
            assert [s.count async for s in _streams(other)] == ([2, 1] if found == OLD else [3, 1])
            seen.add("old" if found == OLD else "new")
            await other.write(Write((*CHANGE, Delete(Ref(A, "note", "later")))))
            assert await everything(other) == NEW
            # Notes that no stream speaks of may be left, for engines to forget.
            assert not any(_pending(engine, name) for name in engine.heads_kept), broken_at
            await other.close()
            await store.close()
        return seen

    assert asyncio.run(main()) == {"old", "new"}


async def _streams(store: KeyValueStore) -> AsyncGenerator[Stream, None]:
    for stream in (await store.streams(StreamScan(scope=ScopePath()))).items:
        yield stream


def _pending(engine: DictEngine, name: tuple[str, str]) -> str | None:
    return decode_head(engine.heads_kept[name]).pending


def test_a_holder_that_is_too_slow_writes_nothing() -> None:
    async def main() -> None:
        engine, clock = DictEngine(partitioned=True), Clock()
        slow, other = KeyValueStore(engine, clock), KeyValueStore(engine, clock)
        await slow.write(Write(BEFORE))
        swap = engine.swap

        async def late(key: str, before: bytes | None, after: bytes | None) -> bool:
            if before is not None and after is not None:  # the moment before it is certain
                clock.time += timedelta(minutes=5)
                await other.write(Write((Put(Record(A, "note", "quick", text="6")),)))
            return await swap(key, before, after)

        engine.swap = late  # type: ignore[method-assign]
        with pytest.raises(StoreBusyError):
            await slow.write(Write(CHANGE))
        engine.swap = swap  # type: ignore[method-assign]
        assert await everything(other) == OLD | {"quick": "6"}

    asyncio.run(main())


def test_writers_of_several_streams_wait_for_one_another() -> None:
    async def main() -> None:
        engine = DictEngine(partitioned=True)
        stores = [KeyValueStore(engine) for _ in range(4)]

        async def move(store: KeyValueStore, n: int) -> None:
            for m in range(5):
                key = f"{n}-{m}"
                await store.write(Write((Put(Record(A, "note", key), 0), Put(Record(B, "note", key), 0))))

        await asyncio.gather(*(move(store, n) for n, store in enumerate(stores)))
        streams = (await stores[0].streams(StreamScan(scope=ScopePath()))).items
        assert [(stream.count, stream.last_seq, stream.version) for stream in streams] == [(20, 20, 20)] * 2
        assert not engine.notes

    asyncio.run(main())


def test_a_large_write_is_done_in_steps() -> None:
    async def main() -> None:
        engine = DictEngine(most=10)
        store = KeyValueStore(engine)
        puts = tuple(Put(Record(A, "note", f"k{n}", derived={"x": b"1"})) for n in range(100))
        outcomes = await store.write(Write(puts, id="once"))
        assert [did.seq for did in outcomes] == list(range(1, 101))
        assert await store.write(Write(puts, id="once")) == outcomes
        assert len(await everything(store)) == 100
        with pytest.raises(ConflictError):
            await store.write(Write((*puts, Put(Record(A, "note", "k0"), 7))))
        assert not engine.notes

    asyncio.run(main())


def test_a_plain_append_is_one_step() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        await store.write(Write((Put(Record(A, "note", "k0"), 0),)))
        loads = 0
        load = engine.load

        async def counted(needs: Needs) -> Loaded:
            nonlocal loads
            loads += 1
            return await load(needs)

        engine.load = counted  # type: ignore[method-assign]
        for n in range(1, 10):
            await store.write(Write((Put(Record(A, "note", f"k{n}"), 0),)))
        assert loads == 0
        # What is remembered may be out of date, which costs another step and nothing else.
        other = KeyValueStore(engine)
        await other.write(Write((Put(Record(A, "note", "other")), Derive(Ref(A, "note", "k3"), "x", b"1"))))
        (did,) = await store.write(Write((Put(Record(A, "note", "k10"), 0),)))
        assert did.seq == 12
        with pytest.raises(ConflictError) as caught:
            await store.write(Write((Put(Record(A, "note", "other"), 0),)))
        assert caught.value.current == 11

    asyncio.run(main())


def test_writes_at_the_same_time_are_committed_together() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        commits = 0
        commit = engine.commit

        async def counted(batch: Batch) -> bool:
            nonlocal commits
            commits += 1
            await asyncio.sleep(0.01)
            return await commit(batch)

        engine.commit = counted  # type: ignore[method-assign]
        writes = (Write((Put(Record(A, "note", f"k{n % 40}"), 0),)) for n in range(50))
        answers = await asyncio.gather(*(store.write(write) for write in writes), return_exceptions=True)
        assert sum(isinstance(answer, ConflictError) for answer in answers) == 10
        assert len(await everything(store)) == 40
        assert commits < 5

    asyncio.run(main())


def test_a_caller_who_gives_up_does_not_stop_the_others() -> None:
    async def main() -> None:
        store = KeyValueStore(DictEngine())
        first = asyncio.ensure_future(store.write(Write((Put(Record(A, "note", "k0")),))))
        second = asyncio.ensure_future(store.write(Write((Put(Record(A, "note", "k1")),))))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[0].seq == 2
        await store.close()

    asyncio.run(main())


def test_what_one_write_adds_and_the_next_removes_is_not_there() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        commit = engine.commit

        async def slow(batch: Batch) -> bool:
            await asyncio.sleep(0.01)
            return await commit(batch)

        engine.commit = slow  # type: ignore[method-assign]
        put = Put(Record(A, "note", "k", text="1", derived={"x": b"1"}))
        writes = (
            Write((Put(Record(A, "note", "first")),)),  # while this one is under way, the others gather
            Write((put,)),
            Write((Derive(Ref(A, "note", "k"), "y", b"2"),)),
            Write((Delete(Ref(A, "note", "k")),)),
            Write((Put(Record(B, "note", "k", derived={"x": b"1"})),)),
            Write((Purge(B, "note", drop=True),)),
            Write((Put(Record(B, "note", "later")),)),
        )
        await asyncio.gather(*(store.write(write) for write in writes))
        assert await everything(store) == {"first": None, "later": None}
        assert [(s.count, s.last_seq) async for s in _streams(store)] == [(1, 2), (1, 1)]
        assert all(not shelf.derived for shelf in engine.shelves.values())

    asyncio.run(main())
