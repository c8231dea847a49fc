"""Many callers at once, several handles, and the protocol itself."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import suppress
from typing import Any

import pytest

from ..errors import ClosedError, ConflictError
from ..records import Ref
from ..store.protocol import Capability, Store
from ..store.query import Condition, Expect, Put, Scan, Write
from .harness import KIND, SCOPE, Case, Harness, needs, record


def test_concurrent_writers_lose_nothing(harness: Harness) -> None:
    async def burst(store: Store, writer: int) -> None:
        for n in range(10):
            await store.write(Write((Put(record(f"{writer}-{n}", weight=1), 0),)))

    async def all_at_once() -> None:
        await asyncio.gather(*(burst(harness.store, writer) for writer in range(20)))

    if harness.on_loop:
        harness.run(all_at_once())
    else:
        threads = [threading.Thread(target=harness.run, args=(burst(harness.store, n),)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _check_burst(harness)


def _check_burst(harness: Harness) -> None:
    found = harness.scan()
    assert [item.seq for item in found] == list(range(1, 201))
    for writer in range(20):
        own = [item.key for item in found if item.key.startswith(f"{writer}-")]
        assert own == [f"{writer}-{n}" for n in range(10)]
    stream = harness.stream()
    assert (stream.count, stream.weight, stream.last_seq) == (200, 200, 200)


@needs(loop=True)
def test_a_writer_that_fails_does_not_disturb_the_others(harness: Harness) -> None:
    harness.put("taken")

    async def all_at_once() -> list[Any]:
        writes = [Write((Put(record("taken" if n % 3 == 0 else f"k{n}"), 0),)) for n in range(30)]
        return await asyncio.gather(*map(harness.store.write, writes), return_exceptions=True)

    results = harness.run(all_at_once())
    for n, result in enumerate(results):
        assert isinstance(result, ConflictError) if n % 3 == 0 else result[0].seq
    assert sorted(harness.keys()) == sorted(["taken"] + [f"k{n}" for n in range(30) if n % 3])
    assert [item.seq for item in harness.scan()] == list(range(1, 22))
    stream = harness.stream()
    assert (stream.count, stream.last_seq) == (21, 21)


@needs(loop=True)
def test_more_writers_than_one_transaction_takes(harness: Harness) -> None:

    async def all_at_once() -> None:
        writes = [Write((Put(record(f"k{n}"), 0),)) for n in range(1100)]
        await asyncio.wait_for(asyncio.gather(*map(harness.store.write, writes)), timeout=240)

    harness.run(all_at_once())
    stream = harness.stream()
    assert stream.count == 1100


def test_compare_and_set_lets_one_of_many_through(harness: Harness) -> None:
    version = harness.put("counter", data=0).version
    won = 0
    for n in range(10):
        try:
            harness.put("counter", if_version=version, data=n)
            won += 1
        except ConflictError:
            continue
    assert won == 1


@needs(Capability.SHARED)
def test_another_handle_sees_what_was_written(harness: Harness) -> None:
    other = harness.open()
    harness.put("a", text="mine")
    harness.run(other.write(Write((Put(record("b", text="theirs")),))))
    assert harness.keys() == ["a", "b"]
    page = harness.run(other.scan(Scan(scope=SCOPE, kinds=(KIND,))))
    assert [found.text for found in page.items] == ["mine", "theirs"]


@needs(Capability.SHARED, Capability.ATOMIC, loop=True)
def test_writers_of_several_handles_lose_nothing(harness: Harness) -> None:
    stores = [harness.store, harness.open(), harness.open()]
    harness.put("counter", data=0)

    async def burst(store: Store, writer: int) -> None:
        for n in range(5):
            await store.write(Write((Put(record(f"{writer}-{n}", weight=1), 0),)))
            await count_up(store)

    async def count_up(store: Store) -> None:
        while True:
            (counter,) = await store.read([Ref(SCOPE, KIND, "counter")])
            assert counter is not None
            with suppress(ConflictError):
                await store.write(Write((Put(record("counter", data=counter.data + 1), counter.version),)))
                return

    async def all_at_once() -> None:
        await asyncio.gather(*(burst(store, n) for n, store in enumerate(stores)))

    harness.run(all_at_once())
    found = harness.scan()
    assert [item.seq for item in found] == list(range(1, 17))
    assert found[0].data == 15
    stream = harness.stream()
    assert (stream.count, stream.weight, stream.version) == (16, 15, 31)


@needs(Capability.SHARED, Capability.ATOMIC, loop=True)
def test_an_expectation_holds_until_the_commit_though_its_stream_does_not_change(harness: Harness) -> None:
    stores = [harness.store, harness.open()]
    kinds = ("left", "right")
    for kind in kinds:
        harness.put("first", kind=kind)

    async def put(store: Store, version: int, expected: str, changed: str) -> None:
        await store.write(Write((Expect(SCOPE, expected, version), Put(record(f"{version}", kind=changed)))))

    for _ in range(10):
        versions = {kind: harness.stream(kind=kind).version for kind in kinds}
        writes = (put(stores[0], versions["left"], "left", "right"), put(stores[1], versions["right"], "right", "left"))

        async def both(writes: Any = writes) -> list[Any]:
            return await asyncio.gather(*writes, return_exceptions=True)

        assert [type(result) for result in harness.run(both())].count(ConflictError) == 1


@needs(Capability.SHARED, Capability.ATOMIC, loop=True)
def test_of_two_writers_who_each_create_what_the_other_expects_to_be_absent_one_fails(harness: Harness) -> None:
    stores = [harness.store, harness.open()]

    async def put(store: Store, absent: str, created: str) -> None:
        await store.write(Write((Expect(SCOPE, absent, 0), Put(record("a", kind=created)))))

    for n in range(10):
        left, right = f"left-{n}", f"right-{n}"

        async def both(left: str = left, right: str = right) -> list[Any]:
            writes = put(stores[0], left, right), put(stores[1], right, left)
            return list(await asyncio.gather(*writes, return_exceptions=True))

        assert [type(result) for result in harness.run(both())].count(ConflictError) == 1


@needs(Capability.DURABLE)
def test_what_was_acknowledged_is_there_after_reopening(harness: Harness) -> None:
    harness.write(Put(record("a", text="kept", labels={"x": "y"})), id="w")
    harness.run(harness.store.close())
    harness.store = harness.open()
    assert harness.keys(where=(Condition("labels.x", "eq", "y"),)) == ["a"]
    harness.write(Put(record("a", text="kept", labels={"x": "y"})), id="w")
    found = harness.read("a")
    assert found.version == 1
    assert harness.put("b").seq == 2


def test_a_closed_store_says_so(harness: Harness) -> None:
    harness.put("a")
    harness.run(harness.store.close())
    harness.run(harness.store.close())
    for call in (lambda: harness.put("b"), lambda: harness.get("a"), lambda: harness.scan(), lambda: harness.streams()):
        for _ in range(3):
            with pytest.raises(ClosedError):
                call()


def test_the_methods_have_the_signatures_of_the_protocol(harness: Harness) -> None:
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if not name.startswith("_"):
            own = inspect.signature(getattr(type(harness.store), name))
            assert list(own.parameters) == list(inspect.signature(method).parameters), name
    assert isinstance(harness.store.capabilities, frozenset)


def test_a_store_declares_the_capabilities_that_select_its_tests(harness: Harness, case: Case) -> None:
    assert harness.store.capabilities == case.target.capabilities
