"""S3: what lies where, what is really gone, and what a read asks for."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

from dict_bucket import DictBucket
from mnemic.backends.s3 import draft, engine, names, notes, objects, segment
from mnemic.backends.s3.collecting import MONTH, collect_in
from mnemic.errors import NewerSchemaError, StoreUnavailableError, TooLargeError, UnreadableStoreError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Delete, Derive, Limit, Op, Purge, Put, Scan, StreamScan, Write
from mnemic.testing.harness import Harness
from mnemic.testing.test_machine import StoreMachine
from s3_lab import HOME, KIND, TENANTS, audit, contents, opened, put, shrink, texts


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few records be many, so that they are soon moved from the manifest into segments."""
    shrink(monkeypatch)


class BucketLab(Harness):
    """A lab over a bucket in a dictionary."""

    def __init__(self, bucket: DictBucket) -> None:
        self.bucket = bucket
        super().__init__("s3://dict", on_loop=True)

    def open(self) -> Store:
        store = opened(self.bucket)
        self._stores.append(store)
        return store


class SmallMachine(StoreMachine):
    """Random operations on a store whose records are moved all the time, by two processes in turn."""

    deletes = True

    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        self.bucket = DictBucket(deletes=self.deletes)
        self.lab = self.stack.enter_context(BucketLab(self.bucket))
        self.others = [self.lab.open()]
        self.model = self.stack.enter_context(Harness("memory://", on_loop=False))
        self.ids = 0

    @invariant()
    def all_is_in_its_place(self) -> None:
        if hasattr(self, "bucket"):
            asyncio.run(audit(self.bucket))
            self.others.append(self.lab.store)
            self.lab.store = self.others.pop(0)


@pytest.mark.parametrize("deletes", [True, False])
def test_a_store_whose_records_are_moved_all_the_time_agrees_with_the_model(small: None, deletes: bool) -> None:
    run_state_machine_as_test(
        type("Machine", (SmallMachine,), {"deletes": deletes}),
        settings=settings(
            max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


SECRET = "xyzzy"
LOST: list[tuple[str, tuple[Op, ...]]] = [
    ("changed", (put("7"),)),
    ("deleted", (Delete(Ref(HOME, KIND, "7")),)),
    ("over the limit", (Limit(HOME, KIND, max_count=2, evict=tuple((str(n),) for n in range(40))),)),
    ("purged", (Purge(HOME, KIND, keep=("1",)),)),
    ("dropped", (Purge(HOME, KIND, drop=True),)),
    ("dropped and made again", (Purge(HOME, KIND, drop=True), put("1"))),
]


@pytest.mark.parametrize(("how", "ops"), LOST, ids=[how for how, _ in LOST])
def test_what_is_forgotten_is_gone_from_every_object(small: None, how: str, ops: tuple[Op, ...]) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(40):
            secret: dict[str, Any] = {"text": SECRET, "labels": {"l": SECRET}, "derived": {"v": SECRET.encode()}}
            fields = secret if n == 7 else {}
            await store.write(Write((put(str(n), **fields), put(str(n), HOME / "other", text="kept"))))
        assert SECRET.encode() in contents(bucket)
        await store.write(Write(ops))
        assert SECRET.encode() not in contents(bucket)
        await audit(bucket)
        assert len(await texts(store, HOME / "other")) == 40

    asyncio.run(main())


def test_a_derived_value_that_is_removed_is_gone(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(20):
            await store.write(Write((put(str(n), derived={"v": b"old-%d" % n}),)))
        await store.write(Write((Derive(Ref(HOME, KIND, "3"), "v", None),)))
        assert b"old-3" not in contents(bucket)
        for n in range(20):
            await store.write(Write((Derive(Ref(HOME, KIND, str(n)), "v", b"new-%d" % n * 10),)))
        await store.write(Write((put("large", text="x" * 1000),)))
        assert b"old-" not in contents(bucket)

    asyncio.run(main())


def test_a_tenant_that_is_dropped_leaves_no_name_behind(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(30):
            await store.write(Write((put("k", ScopePath(f"acme/{SECRET}-{n}")),)))
        for n in range(30):
            await store.write(Write((Purge(ScopePath(f"acme/{SECRET}-{n}"), KIND, drop=True),)))
        assert SECRET.encode() not in contents(bucket)
        bucket.wait(timedelta(days=3))
        assert await collect_in(store._engine) == 1  # type: ignore[arg-type]
        assert not bucket.keys("manifests/")
        await store.write(Write((put("again"),)))
        assert await texts(store) == {"again": None}

    asyncio.run(main())


def test_ten_thousand_records_are_a_handful_of_objects() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        write = Write(tuple(put(f"{n:05}", text=f"message {n} " * 20) for n in range(10_000)), id="once")
        outcomes = await store.write(write)
        assert bucket.asked["put"] <= 4
        assert len(bucket.objects) <= 4
        assert await opened(bucket).write(write) == outcomes
        await audit(bucket)
        assert len(await texts(store)) == 10_000

    asyncio.run(main())


def test_appends_are_one_request_each_and_segments_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "INLINE", 16_000)
    monkeypatch.setattr(draft, "FULL", 256_000)

    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(700):
            op = Put(Record(HOME / f"s{n % 7}", KIND, f"{n:05}", text=random.randbytes(400).hex()), 0)
            await store.write(Write((op,)))
        assert bucket.asked["get"] <= 10  # the first write of each stream looks it up
        assert bucket.asked["put"] <= 700 + 2 * 700 * 1000 // draft.INLINE
        assert len(bucket.keys("segments/")) <= 8
        assert max(len(bucket.objects[key][0]) for key in bucket.keys("manifests/")) < draft.INLINE
        await audit(bucket)

    asyncio.run(main())


def test_many_streams_do_not_make_the_manifest_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "INLINE", 20_000)

    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(0, 2000, 10):
            await store.write(Write(tuple(put("k", HOME / f"s{m}", text="x") for m in range(n, n + 10))))
        assert max(len(bucket.objects[key][0]) for key in bucket.keys("manifests/")) < 20_000
        await audit(bucket)
        found = [s.scope.path async for s in all_streams(opened(bucket), StreamScan(scope=HOME, limit=100))]
        assert found == sorted(f"acme/alice/s{n}" for n in range(2000))

    asyncio.run(main())


def test_reading_again_what_has_not_changed_is_one_small_request() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        await store.write(Write(tuple(put(f"{n}", text="x" * 500) for n in range(3000))))
        scan = Scan(scope=HOME, kinds=(KIND,), reverse=True, limit=10)
        await store.scan(scan)
        bucket.asked.clear()
        for _ in range(5):
            assert len((await store.scan(scan)).items) == 10
        assert bucket.asked == {"get": 5, "unchanged": 5}
        bucket.asked.clear()
        assert len((await store.scan(Scan(scope=ScopePath(), below=True, limit=5))).items) == 5
        assert bucket.asked == {"list": 1}

    asyncio.run(main())


def test_a_range_is_read_without_what_surrounds_it() -> None:
    async def main() -> None:
        bucket = DictBucket()
        texts = [random.randbytes(500).hex() for _ in range(4000)]
        await opened(bucket).write(Write(tuple(put(f"{n}", text=text) for n, text in enumerate(texts))))
        read = 0
        get_part = bucket.get_part

        async def counted(key: str, start: int, size: int) -> objects.Found | None:
            nonlocal read
            read += size
            return await get_part(key, start, size)

        bucket.get_part = counted  # type: ignore[method-assign]
        store = opened(bucket)
        page = await store.scan(Scan(scope=HOME, kinds=(KIND,), reverse=True, limit=10))
        assert [record.text for record in page.items] == texts[:-11:-1]
        assert 0 < read < sum(len(data) for data, _, _ in bucket.objects.values()) / 4

    asyncio.run(main())


def test_an_object_that_is_missing_or_damaged_is_named(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(30):
            await store.write(Write((put(f"k{n}", text=random.randbytes(30).hex()),)))
        whole = dict(bucket.objects)
        segments = [key for key in bucket.keys("segments/") if whole[key][0].startswith(segment.MAGIC)]
        for key in bucket.keys("segments/"):
            del bucket.objects[key]
            with pytest.raises(UnreadableStoreError, match=key):
                await texts(opened(bucket))
            bucket.objects = dict(whole)
        for key in (*segments, *bucket.keys("manifests/")):
            data = bytearray(whole[key][0])
            for at in range(len(segment.MAGIC), len(data), 7):
                data[at] ^= 255
            bucket.objects[key] = (bytes(data), "damaged", bucket.time)
            with pytest.raises(UnreadableStoreError, match=key):
                await texts(opened(bucket))
            bucket.objects = dict(whole)
        for start, kind in ((b"mnemic manifest 9\n", NewerSchemaError), (b"<html>", UnreadableStoreError)):
            bucket.objects["p/manifests/_acme"] = (start, "other", bucket.time)
            with pytest.raises(kind, match="p/manifests/_acme"):
                await texts(opened(bucket))

    asyncio.run(main())


@pytest.mark.parametrize("sized", [True, False])
def test_what_would_unpack_to_gigabytes_is_refused_before_it_is_unpacked(sized: bool) -> None:
    packer = zstandard.ZstdCompressor().compressobj(size=3 * 2**30 if sized else -1)
    zeros = bytes(2**24)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(192 if sized else 20)), packer.flush()])
    assert len(bomb) < 300_000

    async def main() -> None:
        bucket = DictBucket()
        await opened(bucket).write(Write((put("k"),)))
        header, _, _ = bucket.objects["p/manifests/_acme"][0].partition(b"\n")
        bucket.objects["p/manifests/_acme"] = (header + b"\n" + bomb, "other", bucket.time)
        tracemalloc.start()
        try:
            with pytest.raises(UnreadableStoreError, match="p/manifests/_acme"):
                await texts(opened(bucket))
            assert tracemalloc.get_traced_memory()[1] < 2**24
        finally:
            tracemalloc.stop()

    asyncio.run(main())
    for read in (segment.read_table, segment.read_index, segment.read_block):
        with pytest.raises(zstandard.ZstdError):
            read(bomb)


def test_what_could_not_be_unpacked_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MAX_UNPACKED", 1000)
    assert segment.decompress(segment.compress(bytes(1000))) == bytes(1000)
    with pytest.raises(TooLargeError):
        segment.compress(bytes(1001))


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_tenants_are_listed_in_order_whatever_they_are_called(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AHEAD", 2)

    async def main() -> None:
        store = opened(DictBucket())
        scopes = [
            ScopePath(),
            *(ScopePath(path) for tenant in TENANTS for path in (tenant, f"{tenant}/x", f"{tenant}/-")),
        ]
        random.shuffle(scopes)
        for scope in scopes:
            await store.write(Write((put("k", scope),)))
        paths = sorted(scope.path for scope in scopes)
        listed = all_streams(store, StreamScan(scope=ScopePath(), limit=limit))
        assert [stream.scope.path async for stream in listed] == paths
        for reverse in (False, True):
            scan = Scan(scope=ScopePath(), below=True, limit=limit, reverse=reverse)
            assert [r.scope.path async for r in scan_all(store, scan)] == sorted(paths, reverse=reverse)

    asyncio.run(main())


def test_what_nobody_refers_to_is_collected_after_a_day(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket(deletes=False)
        store = opened(bucket)
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 40),)))
        before = set(bucket.objects)
        # A segment without a manifest, one that was to be deleted, and a note that nobody has taken away.
        bucket.breaks_after = 1
        with pytest.raises(StoreUnavailableError):
            await store.write(Write((put("large", text="x" * 900),)))
        bucket.breaks_after = None
        swapped = notes.Notes(bucket, names.Names("p"))
        assert await swapped.swap("n", None, b"1")
        own = engine.S3Engine(bucket, names.Names("p"))
        left = set(bucket.objects) - before
        assert len(left) == 2
        bucket.wait(timedelta(hours=23))
        assert await collect_in(own) == 0
        bucket.wait(timedelta(hours=2))
        assert await collect_in(own) == 1
        bucket.wait(MONTH)
        assert await collect_in(own) == 1
        assert set(bucket.objects) == before
        assert len(await texts(store)) == 20

    asyncio.run(main())


@pytest.mark.parametrize("deletes", [True, False])
def test_notes_are_compared_and_swapped(deletes: bool) -> None:
    async def main() -> None:
        bucket = DictBucket(deletes=deletes)
        one, two = (notes.Notes(bucket, names.Names("p")) for _ in range(2))
        assert await one.swap("k", None, None)
        assert await one.swap("k", None, b"")
        assert await two.get("k") == b""
        assert not await two.swap("k", None, b"2")
        assert await two.swap("k", b"", b"2")
        assert not await one.swap("k", b"", b"3")
        assert await one.swap("k", b"2", b"3")
        assert not await two.swap("k", b"2", None)
        assert await two.swap("k", b"3", None)
        assert await one.get("k") is None
        assert not await one.swap("k", b"3", b"4")
        assert not bucket.keys("notes/")
        bucket.resends = True
        assert await one.swap("k", None, b"5")
        assert await one.swap("k", b"5", b"6")
        assert await one.swap("k", b"6", None)
        assert await two.get("k") is None

    asyncio.run(main())
