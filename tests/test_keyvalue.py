"""Key-value stores: cached states, writes committed together, and writers in one another's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from dict_engine import DictEngine
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.errors import ConflictError, StoreBusyError
from mnemic.records import Record, Ref, ScopePath, Stream
from mnemic.store import retry
from mnemic.store.protocol import scan_all
from mnemic.store.query import Delete, Derive, Purge, Put, Scan, StreamScan, Write
from mnemic.store.stream_state import Loaded, Needs, StreamChange

A, B = ScopePath("a"), ScopePath("b")


async def everything(store: KeyValueStore) -> dict[str, str | None]:
    scan = Scan(scope=ScopePath(), below=True)
    return {record.key: record.text async for record in scan_all(store, scan)}


async def _streams(store: KeyValueStore) -> AsyncGenerator[Stream, None]:
    for stream in (await store.streams(StreamScan(scope=ScopePath()))).items:
        yield stream


def test_a_writer_gives_up_after_many_conflicts() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        attempts = 0

        async def overtaken(changes: Sequence[StreamChange], moment: int) -> bool:
            nonlocal attempts
            attempts += 1
            return False

        engine.commit = overtaken  # type: ignore[method-assign]
        with pytest.raises(StoreBusyError, match="others wrote first"):
            await store.write(Write((Put(Record(A, "note", "k")),)))
        assert attempts == retry.ATTEMPTS

    asyncio.run(main())


def test_a_plain_append_loads_nothing() -> None:
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


def test_concurrent_writes_are_committed_together() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        commits = 0
        commit = engine.commit

        async def counted(changes: Sequence[StreamChange], moment: int) -> bool:
            nonlocal commits
            commits += 1
            await asyncio.sleep(0.01)
            return await commit(changes, moment)

        engine.commit = counted  # type: ignore[method-assign]
        writes = (Write((Put(Record(A, "note", f"k{n % 40}"), 0),)) for n in range(50))
        answers = await asyncio.gather(*(store.write(write) for write in writes), return_exceptions=True)
        assert sum(isinstance(answer, ConflictError) for answer in answers) == 10
        assert len(await everything(store)) == 40
        assert commits < 5

    asyncio.run(main())


def test_cancelling_a_caller_does_not_cancel_other_writes() -> None:
    async def main() -> None:
        store = KeyValueStore(DictEngine())
        first = asyncio.ensure_future(store.write(Write((Put(Record(A, "note", "k0")),))))
        second = asyncio.ensure_future(store.write(Write((Put(Record(A, "note", "k1")),))))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[0].seq == 2
        await store.close()

    asyncio.run(main())


def test_writes_of_one_commit_that_add_and_remove_the_same_record() -> None:
    async def main() -> None:
        engine = DictEngine()
        store = KeyValueStore(engine)
        commit = engine.commit

        async def slow(changes: Sequence[StreamChange], moment: int) -> bool:
            await asyncio.sleep(0.01)
            return await commit(changes, moment)

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
        assert all(not stream.derived for stream in engine.stored.values())

    asyncio.run(main())
