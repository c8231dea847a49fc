"""S3: the objects of a store, erasure of deleted data, and the requests of a read."""

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
from mnemic.backends.s3 import client, codec, commit, store
from mnemic.checks import new_id
from mnemic.errors import NewerSchemaError, StoreUnavailableError, TooLargeError, UnreadableStoreError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Delete, Derive, Limit, Op, Purge, Put, Scan, StreamScan, Write
from mnemic.testing.harness import Harness
from mnemic.testing.test_machine import StoreMachine
from s3_testing import KIND, LONG, MANIFEST, SCOPE, TENANTS, audit, contents, engine_on, open_on, put, shrink, texts


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move a few records from the manifest into segments already."""
    shrink(monkeypatch)


class BucketHarness(Harness):
    """A harness over a bucket in a dictionary."""

    def __init__(self, bucket: DictBucket) -> None:
        self.bucket = bucket
        super().__init__("s3://dict", on_loop=True)

    def open(self) -> Store:
        store = open_on(self.bucket)
        self._stores.append(store)
        return store


class SmallMachine(StoreMachine):
    """Random operations on a store whose records are moved all the time, by two processes in turn."""

    conditional_deletes = True

    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        self.bucket = DictBucket(conditional_deletes=self.conditional_deletes)
        self.harness = self.stack.enter_context(BucketHarness(self.bucket))
        self.others = [self.harness.open()]
        self.model = self.stack.enter_context(Harness("memory://", on_loop=False))
        self.ids = 0

    @invariant()
    def all_is_in_its_place(self) -> None:
        if hasattr(self, "bucket"):
            audit(self.bucket)
            self.others.append(self.harness.store)
            self.harness.store = self.others.pop(0)


@pytest.mark.parametrize("conditional_deletes", [True, False])
def test_a_store_whose_records_are_moved_all_the_time_agrees_with_the_model(
    small: None, conditional_deletes: bool
) -> None:
    run_state_machine_as_test(
        type("Machine", (SmallMachine,), {"conditional_deletes": conditional_deletes}),
        settings=settings(
            max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


SECRET = "xyzzy"
LOST: list[tuple[str, tuple[Op, ...]]] = [
    ("changed", (put("7"),)),
    ("deleted", (Delete(Ref(SCOPE, KIND, "7")),)),
    ("over the limit", (Limit(SCOPE, KIND, max_count=2, evict=tuple((str(n),) for n in range(40))),)),
    ("purged", (Purge(SCOPE, KIND, keep=("1",)),)),
    ("dropped", (Purge(SCOPE, KIND, drop=True),)),
    ("dropped and made again", (Purge(SCOPE, KIND, drop=True), put("1"))),
]


@pytest.mark.parametrize(("how", "ops"), LOST, ids=[how for how, _ in LOST])
def test_what_is_forgotten_is_gone_from_every_object(small: None, how: str, ops: tuple[Op, ...]) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(40):
            secret: dict[str, Any] = {"text": SECRET, "labels": {"l": SECRET}, "derived": {"v": SECRET.encode()}}
            fields = secret if n == 7 else {}
            await store.write(Write((put(str(n), **fields),)))
            await store.write(Write((put(str(n), SCOPE / "other", text="kept"),)))
        assert SECRET.encode() in contents(bucket)
        await store.write(Write(ops))
        assert SECRET.encode() not in contents(bucket)
        audit(bucket)
        assert len(await texts(store, SCOPE / "other")) == 40

    asyncio.run(main())


def test_a_derived_value_that_is_removed_is_gone(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(20):
            await store.write(Write((put(str(n), derived={"v": b"old-%d" % n}),)))
        await store.write(Write((Derive(Ref(SCOPE, KIND, "3"), "v", None),)))
        assert b"old-3" not in contents(bucket)
        for n in range(20):
            await store.write(Write((Derive(Ref(SCOPE, KIND, str(n)), "v", b"new-%d" % n * 10),)))
        await store.write(Write((put("large", text="x" * 1000),)))
        assert b"old-" not in contents(bucket)

    asyncio.run(main())


@pytest.mark.parametrize("conditional_deletes", [True, False])
def test_a_scope_that_is_dropped_leaves_no_content_behind(small: None, conditional_deletes: bool) -> None:
    async def main() -> None:
        bucket = DictBucket(conditional_deletes=conditional_deletes)
        store = open_on(bucket)
        for n in range(30):
            await store.write(Write((put(f"{SECRET}-{n}", text="x" * 50), Put(Record(SCOPE, "other", "k")))))
        await store.write(Write((Purge(SCOPE, KIND, drop=True),)))
        assert SECRET.encode() not in contents(bucket)
        assert bucket.keys("p/") == [MANIFEST]
        await store.write(Write((Purge(SCOPE, "other", drop=True),)))
        # Without conditional deletes, another writer may be about to replace it.
        assert bucket.keys("p/") == ([] if conditional_deletes else [MANIFEST])
        assert [stream async for stream in all_streams(store, StreamScan(scope=ScopePath(), empty=True))] == []
        await store.write(Write((put("again"),)))
        assert await texts(store) == {"again": None}
        assert await texts(open_on(bucket)) == {"again": None}

    asyncio.run(main())


def test_an_empty_manifest_that_could_not_be_deleted_is_collected(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        await store.write(Write((put("k"),)))
        await store.write(Write((put("k", SCOPE / "other"),)))
        bucket.breaks_after = 1
        await store.write(Write((Purge(SCOPE, KIND, drop=True),)))
        bucket.breaks_after = None
        assert MANIFEST in bucket.objects
        assert await engine_on(bucket).collect() == 0
        bucket.wait(timedelta(days=2))
        assert await engine_on(bucket).collect() == 1
        assert MANIFEST not in bucket.objects
        assert list(await texts(store)) == ["k"]

    asyncio.run(main())


def test_ten_thousand_records_are_a_handful_of_objects() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        write = Write(tuple(put(f"{n:05}", text=f"message {n} " * 20) for n in range(10_000)), id="once")
        outcomes = await store.write(write)
        assert bucket.requests["put"] <= 5
        assert len(bucket.objects) <= 5
        assert await open_on(bucket).write(write) == outcomes
        audit(bucket)
        assert len(await texts(store)) == 10_000

    asyncio.run(main())


def test_appends_are_one_request_each_and_segments_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MAX_INLINE", 16_000)
    monkeypatch.setattr(codec, "MAX_SEGMENT", 128_000)

    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(700):
            op = Put(Record(SCOPE, KIND, f"{n:05}", text=random.randbytes(400).hex()), 0)
            await store.write(Write((op,)))
        assert bucket.requests["get"] == 1  # the first write of a stream looks it up
        assert bucket.requests["put"] <= 700 + 700 * 1000 // commit.MAX_INLINE
        assert len(bucket.keys("segments/")) <= 12
        assert len(bucket.objects[MANIFEST][0]) < commit.MAX_INLINE
        audit(bucket)

    asyncio.run(main())


def test_writers_of_other_scopes_share_no_object() -> None:
    async def main() -> None:
        bucket = DictBucket()
        stores = [open_on(bucket) for _ in range(10)]
        for _ in range(5):
            before = bucket.requests.copy()
            await asyncio.gather(
                *(s.write(Write((Put(Record(SCOPE / f"s{n}", KIND, new_id()), 0),))) for n, s in enumerate(stores))
            )
        assert bucket.requests - before == {"put": 10}
        assert bucket.keys("manifests/") == [f"{MANIFEST}/_s{n}" for n in range(10)]
        audit(bucket)

    asyncio.run(main())


def test_scopes_are_listed_with_the_manifests_that_have_changed() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(200):
            await store.write(Write((put("k", SCOPE / f"s{n}", text="x"),)))
        bucket.requests.clear()
        scan = StreamScan(scope=SCOPE, limit=100)
        for _ in range(2):
            found = [s.scope.path async for s in all_streams(store, scan)]
            assert found == sorted(f"acme/alice/s{n}" for n in range(200))
        assert bucket.requests["get"] - bucket.requests["unchanged"] == 2  # there is none of the scope itself
        await open_on(bucket).write(Write((put("k2", SCOPE / "s7"),)))
        bucket.requests.clear()
        found = [s.scope.path async for s in all_streams(store, scan)]
        assert len(found) == 200
        assert bucket.requests["get"] - bucket.requests["unchanged"] == 2

    asyncio.run(main())


def test_reading_again_what_has_not_changed_is_one_small_request() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        await store.write(Write(tuple(put(f"{n}", text="x" * 500) for n in range(3000))))
        scan = Scan(scope=SCOPE, kinds=(KIND,), reverse=True, limit=10)
        await store.scan(scan)
        bucket.requests.clear()
        for _ in range(5):
            assert len((await store.scan(scan)).items) == 10
        assert bucket.requests == {"get": 5, "unchanged": 5}
        bucket.requests.clear()
        assert len((await store.scan(Scan(scope=ScopePath(), below=True, limit=5))).items) == 5
        assert bucket.requests == {"list": 1}

    asyncio.run(main())


def test_a_range_is_read_without_what_surrounds_it() -> None:
    async def main() -> None:
        bucket = DictBucket()
        texts = [random.randbytes(500).hex() for _ in range(8000)]
        await open_on(bucket).write(Write(tuple(put(f"{n}", text=text) for n, text in enumerate(texts))))
        read = 0
        get = bucket.get

        async def counted(key: str, *, unless: str | None = None) -> client.StoredObject | None:
            nonlocal read
            found = await get(key, unless=unless)
            read += len(found.data) if found is not None else 0
            return found

        bucket.get = counted  # type: ignore[method-assign]
        store = open_on(bucket)
        page = await store.scan(Scan(scope=SCOPE, kinds=(KIND,), reverse=True, limit=10))
        assert [record.text for record in page.items] == texts[:-11:-1]
        assert 0 < read < sum(len(data) for data, _, _ in bucket.objects.values()) / 4

    asyncio.run(main())


def test_an_object_that_is_missing_or_damaged_is_named(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(30):
            await store.write(Write((put(f"k{n}", text=random.randbytes(30).hex()),)))
        whole = dict(bucket.objects)
        segments = bucket.keys("segments/")
        assert len(segments) > 2
        for key in segments:
            del bucket.objects[key]
            with pytest.raises(UnreadableStoreError, match=key):
                await texts(open_on(bucket))
            bucket.objects = dict(whole)
        for key in (*segments, MANIFEST):
            data = bytearray(whole[key][0])
            for at in range(data.index(b"\n") + 1, len(data), 7):
                data[at] ^= 255
            bucket.objects[key] = (bytes(data), "damaged", bucket.time)
            with pytest.raises(UnreadableStoreError, match=key):
                await texts(open_on(bucket))
            bucket.objects = dict(whole)
        for key, what in ((segments[0], b"segment"), (MANIFEST, b"manifest")):
            for start, kind in ((b"mnemic %b 9\n" % what, NewerSchemaError), (b"<html>", UnreadableStoreError)):
                bucket.objects[key] = (start, "other", bucket.time)
                with pytest.raises(kind, match=key):
                    await texts(open_on(bucket))
            bucket.objects = dict(whole)

    asyncio.run(main())


@pytest.mark.parametrize("sized", [True, False])
def test_what_would_unpack_to_gigabytes_is_refused_before_it_is_unpacked(sized: bool) -> None:
    packer = zstandard.ZstdCompressor().compressobj(size=3 * 2**30 if sized else -1)
    zeros = bytes(2**24)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(192 if sized else 20)), packer.flush()])
    assert len(bomb) < 300_000

    async def main() -> None:
        bucket = DictBucket()
        await open_on(bucket).write(Write((put("k"),)))
        header, _, _ = bucket.objects[MANIFEST][0].partition(b"\n")
        bucket.objects[MANIFEST] = (header + b"\n" + bomb, "other", bucket.time)
        tracemalloc.start()
        try:
            with pytest.raises(UnreadableStoreError, match=MANIFEST):
                await texts(open_on(bucket))
            assert tracemalloc.get_traced_memory()[1] < 2**24
        finally:
            tracemalloc.stop()

    asyncio.run(main())


def test_what_could_not_be_unpacked_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = codec.Manifest("x" * 900)
    monkeypatch.setattr(codec, "MAX_UNPACKED", 1000)
    assert codec.read_object(codec.Manifest, codec.write_object(manifest), "") == manifest
    with pytest.raises(TooLargeError):
        codec.write_object(codec.Manifest("x" * 1000))


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_scopes_are_listed_in_order_whatever_they_are_called(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AHEAD", 2)

    async def main() -> None:
        bucket = DictBucket()
        opened = open_on(bucket)
        names = [f"{tenant}{below}" for tenant in TENANTS for below in ("", "/x", "/-", "/x/y", "/x-y", "/..")]
        scopes = [ScopePath(), *map(ScopePath, names), *LONG]
        random.shuffle(scopes)
        for scope in scopes:
            await opened.write(Write((put("k", scope), Put(Record(scope, "other", "k")))))
        assert max(len(key.encode()) for key in bucket.objects) < 1024 - 150 - 34
        audit(bucket)
        for above in (ScopePath(), ScopePath("a"), ScopePath("a/x"), LONG[3], LONG[4], LONG[0], ScopePath("b")):
            paths = sorted(scope.path for scope in scopes if above.contains(scope) for _ in range(2))
            listed = all_streams(opened, StreamScan(scope=above, limit=limit))
            assert [stream.scope.path async for stream in listed] == paths
            for reverse in (False, True):
                scan = Scan(scope=above, below=True, limit=limit, reverse=reverse)
                assert [r.scope.path async for r in scan_all(opened, scan)] == sorted(paths, reverse=reverse)

    asyncio.run(main())


def test_a_segment_without_a_manifest_is_collected_after_a_day(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 40),)))
        before = set(bucket.objects)
        bucket.breaks_after = 1
        with pytest.raises(StoreUnavailableError):
            await store.write(Write((put("large", text="x" * 900),)))
        bucket.breaks_after = None
        assert len(set(bucket.objects) - before) == 1
        bucket.wait(timedelta(hours=23))
        assert await engine_on(bucket).collect() == 0
        bucket.wait(timedelta(hours=2))
        assert await engine_on(bucket).collect() == 1
        assert set(bucket.objects) == before
        assert len(await texts(store)) == 20

    asyncio.run(main())
