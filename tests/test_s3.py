"""S3: what lies where, what is really gone, writers in one another's way, and endpoints that misbehave."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test

import mnemic
from dict_bucket import DictBucket
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.backends.s3 import collect, draft, engine, library, manifest, names, notes, objects, segment
from mnemic.backends.s3.collecting import MONTH, collect_in
from mnemic.errors import (
    ConflictError,
    InvalidValueError,
    NewerSchemaError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from mnemic.records import Record, Ref, Scope
from mnemic.store import registry
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Delete, Derive, Limit, Op, Purge, Put, Scan, StreamScan, Touch, Write
from mnemic.testing.lab import Lab, without_times
from mnemic.testing.servers import aws as servers
from mnemic.testing.test_machine import StoreMachine
from small_s3 import SmallS3

HOME = Scope("acme/alice")
KIND = "message"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few records be many, so that they are soon moved from the manifest into segments."""
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft, "INLINE", 600)
    patch.setattr(draft, "FULL", 3000)
    patch.setattr(draft, "MOST", 2000)
    patch.setattr(draft, "FEW", 3)
    patch.setattr(library, "WHOLE", 400)
    patch.setattr(segment, "BLOCK", 100)


def opened(bucket: objects.Bucket) -> KeyValueStore:
    return KeyValueStore(engine.S3Engine(bucket, names.Names("p")))


def put(key: str, scope: Scope = HOME, **fields: Any) -> Put:
    return Put(Record(scope, KIND, key, **fields))


async def texts(store: Store, scope: Scope = HOME) -> dict[str, str | None]:
    scan = Scan(scope=scope, below=True, kinds=(KIND,), limit=7)
    return {record.key: record.text async for record in scan_all(store, scan)}


def contents(bucket: DictBucket) -> bytes:
    """Return everything that lies in a bucket, decompressed, without what was only deleted from a list."""
    found = [repr(sorted(bucket.objects)).encode()]
    for key, (data, _, _) in bucket.objects.items():
        if "segments/" in key and data.startswith(segment.MAGIC):
            tenant = manifest.read_manifest(*bucket.objects[f"p/manifests/{key.split('/')[2]}"][:2], key)
            held = next(held for held in tenant.segments.values() if key.endswith(held.id))
            for place in segment.read_table(data[held.size - held.table :]).values():
                index = segment.read_index(data[place.offset : place.offset + place.index])
                items, marks = segment.read_run(data, place)
                found += [
                    repr(index).encode(),
                    *(item.body for item in items),
                    *(mark.value for mark in marks),
                ]
        else:
            found.append(segment.decompress(data.partition(b"\n")[2]))
    return b"\n".join(found)


async def audit(bucket: DictBucket) -> None:
    """Check that nothing lies in the bucket but what manifests say, where they say it, and only once."""
    reader = library.Library(bucket, names.Names("p"))
    used = set()
    for key in bucket.keys("p/manifests/"):
        data, etag, _ = bucket.objects[key]
        tenant = manifest.read_manifest(data, etag, key)
        if tenant.directory is not None:
            used.add(f"p/segments/_{tenant.name}/{tenant.directory}")
            tenant.base = await reader.directory(tenant.name, tenant.directory)
            assert not any(entry.rows or entry.marks for entry in tenant.base.streams)
        held: dict[tuple[int, tuple[str, str]], tuple[list[segment.Item], list[segment.Mark]]] = {}
        for slot, piece in tenant.segments.items():
            used.add(f"p/segments/_{tenant.name}/{piece.id}")
            whole = await reader.whole(tenant.name, piece)
            assert len(whole) == piece.size
            for name, place in (await reader.table(tenant.name, piece)).items():
                held[slot, name] = segment.read_run(whole, place)
        for name in tenant.names:
            entry, tail = tenant.entry(name), tenant.tail(name)
            assert entry is not None
            seqs, keys, marks = list(tail.rows), list(tail.by_key), []
            for part in entry.parts:
                run = held.pop((part.slot, name))
                assert part == manifest.Part.of(part.slot, *run)
                seqs += [item.seq for item in run[0]]
                keys += [item.key for item in run[0]]
                marks += [(mark.seq, mark.name) for mark in run[1]]
            assert len(set(seqs)) == len(set(keys)) == len(seqs) == entry.head.count
            assert len(set(marks)) == len(marks)
            assert {seq for seq, _ in (*marks, *tail.marks)} <= set(seqs)
        assert not held
        assert (
            len(tenant.segments) <= 3 * draft.FEW + sum(s.raw for s in tenant.segments.values()) // draft.FULL
        )
    assert set(bucket.keys("p/segments/")) == used


class BucketLab(Lab):
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
        self.model = self.stack.enter_context(Lab("memory://", on_loop=False))
        self.ids = 0

    @invariant()
    def all_is_in_its_place(self) -> None:
        if hasattr(self, "bucket"):
            asyncio.run(audit(self.bucket))
            self.others.append(self.lab.store)
            self.lab.store = self.others.pop(0)


@pytest.mark.parametrize("deletes", [True, False])
def test_a_store_whose_records_are_moved_all_the_time_agrees_with_the_model(
    small: None, deletes: bool
) -> None:
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
            secret: dict[str, Any] = {
                "text": SECRET,
                "labels": {"l": SECRET},
                "derived": {"v": SECRET.encode()},
            }
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
            await store.write(Write((put("k", Scope(f"acme/{SECRET}-{n}")),)))
        for n in range(30):
            await store.write(Write((Purge(Scope(f"acme/{SECRET}-{n}"), KIND, drop=True),)))
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


def test_appends_are_one_request_each_and_segments_stay_few() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(1500):
            op = Put(Record(HOME / f"s{n % 7}", KIND, f"{n:05}", text=random.randbytes(600).hex()), 0)
            await store.write(Write((op,)))
        assert bucket.asked["get"] <= 10  # the first write of each stream looks it up
        assert bucket.asked["put"] <= 1500 + 1500 * 1400 // draft.INLINE * 2
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
        assert len((await store.scan(Scan(scope=Scope(), below=True, limit=5))).items) == 5
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


WRITES: list[tuple[Op, ...]] = [
    *((put(f"k{n}", text=f"{n}" * 50, derived={"v": b"1" * 40}),) for n in range(12)),
    (Delete(Ref(HOME, KIND, "k3")), put("k4", text="changed")),
    (Derive(Ref(HOME, KIND, "k5"), "v", b"2"), put("other", HOME / "below")),
    (Purge(HOME, KIND, keep=("k1", "k4")),),
]


@pytest.mark.parametrize("loses", [False, True])
def test_a_commit_that_breaks_off_anywhere_is_done_wholly_or_not_at_all(small: None, loses: bool) -> None:
    async def state(store: Store) -> list[Record | None]:
        scan = Scan(scope=Scope(), below=True, derived=("v",))
        return [without_times(record) async for record in scan_all(store, scan)]

    async def main() -> None:
        whole, states = DictBucket(), []
        store = opened(whole)
        for n, ops in enumerate(WRITES):
            before = whole.asked["put"] + whole.asked["delete"]
            await store.write(Write(ops, id=f"w{n}"))
            states.append((await state(store), whole.asked["put"] + whole.asked["delete"] - before))
        for broken in range(len(WRITES)):
            for step in range(states[broken][1]):
                bucket = DictBucket()
                store = opened(bucket)
                for n, ops in enumerate(WRITES):
                    bucket.breaks_after, bucket.loses = (step, loses) if n == broken else (None, False)
                    with suppress(StoreUnavailableError):
                        await store.write(Write(ops, id=f"w{n}"))
                    bucket.breaks_after = None
                    assert await state(opened(bucket)) in (states[n][0], states[n - 1][0] if n else [])
                    # Whoever does not know whether it was done sends it again.
                    await store.write(Write(ops, id=f"w{n}"))
                    assert await state(store) == states[n][0]
                bucket.wait(timedelta(days=2))
                await collect_in(engine.S3Engine(bucket, names.Names("p")))
                await audit(bucket)

    asyncio.run(main())


def test_a_commit_that_was_sent_twice_is_not_taken_for_someone_elses(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        bucket.resends = True
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 30),)))
            await store.write(Write((put(f"k{n}", Scope("other")), put(f"k{n}", Scope("third")))))
        assert len(await texts(store)) == len(await texts(store, Scope("other"))) == 20
        streams = [s async for s in all_streams(store, StreamScan(scope=Scope()))]
        assert [(s.count, s.version) for s in streams] == [(20, 20)] * 3
        # Others may have written so much since that nobody knows.
        moved = 0

        async def others(key: str) -> None:
            nonlocal moved
            if "manifests" in key and not moved:
                moved = 1
                bucket.resends = False
                second = opened(bucket)
                for n in range(manifest.TURNS + 1):
                    await second.write(Write((put(f"o{n}"),)))
                bucket.resends = True
                bucket.objects[key] = (*bucket.objects[key][:2], bucket.time)

        bucket.meanwhile = others
        with pytest.raises(StoreUnavailableError, match="cannot be told"):
            await store.write(Write((put("late"),)))

    asyncio.run(main())


def test_writers_of_other_streams_do_not_stop_a_commit() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store, other = opened(bucket), opened(bucket)
        await store.write(Write((put("first"),)))
        left, inside = 3, False

        async def meanwhile(key: str) -> None:
            nonlocal left, inside
            if left and not inside:
                left, inside = left - 1, True
                await other.write(Write((put(f"o{left}", HOME / "other"),)))
                inside = False

        bucket.meanwhile = meanwhile
        planned = store._writer._plan
        plans = 0

        async def counted(*arguments: Any) -> Any:
            nonlocal plans
            plans += 1
            return await planned(*arguments)

        store._writer._plan = counted  # type: ignore[assignment, method-assign]
        await store.write(Write((Put(Record(HOME, KIND, "second"), 0),)))
        assert list(await texts(store)) == ["first", "second", "o2", "o1", "o0"]
        assert plans == 1

    asyncio.run(main())


def test_a_reader_whose_segment_was_written_anew_reads_the_new_one(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        writer = opened(bucket)
        for n in range(30):
            await writer.write(Write((put(f"k{n:02}", text="x" * 40),)))
        reader = opened(bucket)
        get_part, changed = bucket.get_part, False

        async def meanwhile(key: str, start: int, size: int) -> objects.Found | None:
            nonlocal changed
            if not changed:
                changed = True
                await writer.write(Write((Purge(HOME, KIND, keep=("k01", "k29")),)))
            return await get_part(key, start, size)

        bucket.get_part = meanwhile  # type: ignore[method-assign]
        assert list(await texts(reader)) == ["k01", "k29"]
        assert changed

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


TENANTS = [
    "a",
    "a!",
    "a-b",
    "a.",
    "a0",
    "é",
    "..",
    ".",
    "a b",
    "%2F",
    "\U0001f600",
    "a\\b",
    "{x}",
    "'\"<&>",
    "\uffff",
]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_tenants_are_listed_in_order_whatever_they_are_called(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "AHEAD", 2)

    async def main() -> None:
        store = opened(DictBucket())
        scopes = [
            Scope(),
            *(Scope(path) for tenant in TENANTS for path in (tenant, f"{tenant}/x", f"{tenant}/-")),
        ]
        random.shuffle(scopes)
        for scope in scopes:
            await store.write(Write((put("k", scope),)))
        paths = sorted(scope.path for scope in scopes)
        listed = all_streams(store, StreamScan(scope=Scope(), limit=limit))
        assert [stream.scope.path async for stream in listed] == paths
        for reverse in (False, True):
            scan = Scan(scope=Scope(), below=True, limit=limit, reverse=reverse)
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


# A server of our own, over HTTP.


def served(work: Callable[[SmallS3], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(objects, "_checked", {})

    async def main() -> None:
        server = SmallS3()
        await server.start()
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(main())


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    parsed, backend = registry.find(url)
    store = await backend.open(parsed)
    try:
        yield store
    finally:
        await store.close()


def test_an_endpoint_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        for heeded, ignored in (((), "If-None-Match"), (("If-None-Match",), "If-Match")):
            server.conditions = heeded
            for _ in range(2):
                with pytest.raises(StoreError, match=f"ignores {ignored} ") as caught:
                    await connected(server.url).__aenter__()
                assert server.url in str(caught.value)

    served(work, monkeypatch)


def test_who_may_only_read_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            await store.write(Write((put("k", text="kept"),)))
        server.refused = {"PUT": (403, "AccessDenied"), "DELETE": (403, "AccessDenied")}
        async with connected(server.url) as store:
            assert await texts(store) == {"k": "kept"}
            with pytest.raises(StorePermissionError):
                await store.write(Write((put("k2"),)))
        server.refused["GET"] = (403, "AccessDenied")
        with pytest.raises(StorePermissionError):
            async with connected(server.url):
                pass

    served(work, monkeypatch)


def test_after_a_restart_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            await store.write(Write((put("k0"),)))
            await server.stop()
            with pytest.raises(StoreUnavailableError):
                await texts(store)
            with pytest.raises(StoreUnavailableError, match="may or may not"):
                await store.write(Write((Put(Record(HOME, KIND, "k1"), 0),)))
            await server.start()
            await store.write(Write((Put(Record(HOME, KIND, "k1"), 0),)))
            assert list(await texts(store)) == ["k0", "k1"]
        await server.stop()
        with pytest.raises(StoreUnavailableError):
            async with connected(server.url):
                pass

    monkeypatch.setattr("mnemic.backends.aws.ATTEMPTS", 1)
    served(work, monkeypatch)


def test_a_lost_answer_is_not_taken_for_a_lost_race(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            for n in range(3):
                server.loses = 1
                await store.write(Write((put(f"k{n}"),)))
            server.loses = 1
            await store.write(Write((put("k", Scope("b")), put("k", Scope("c")))))
            streams = [s async for s in all_streams(store, StreamScan(scope=Scope()))]
            assert [(s.scope.path, s.count, s.version) for s in streams] == [
                ("acme/alice", 3, 3),
                ("b", 1, 1),
                ("c", 1, 1),
            ]

    served(work, monkeypatch)


REFUSALS: list[tuple[int, str, type[StoreError]]] = [
    (503, "SlowDown", StoreBusyError),
    (403, "AccessDenied", StorePermissionError),
    (403, "InvalidAccessKeyId", StorePermissionError),
    (400, "ExpiredToken", StorePermissionError),
    (500, "InternalError", StoreUnavailableError),
    (404, "NoSuchBucket", UnreadableStoreError),
    (418, "Teapot", StoreError),
]


def test_what_s3_refuses_leaves_as_one_of_our_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[Store], Awaitable[Any]]] = [
        lambda store: store.write(Write((put("k"),))),
        lambda store: store.read([Ref(HOME, KIND, "k")]),
        lambda store: store.scan(Scan(scope=Scope(), below=True)),
        lambda store: store.streams(StreamScan(scope=Scope())),
        lambda store: store.write(Write((put("k", Scope("b")), put("k", Scope("c"))))),
    ]

    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            for status, code, kind in REFUSALS:
                server.refused = dict.fromkeys(("GET", "PUT", "DELETE"), (status, code))
                for call in calls:
                    with pytest.raises(StoreError) as caught:
                        await call(store)
                    assert type(caught.value) is kind
                    assert server.url in str(caught.value)
                server.refused = {}
                await store.write(Write((put("k"),)))

    monkeypatch.setattr("mnemic.backends.aws.ATTEMPTS", 1)
    served(work, monkeypatch)


def test_bad_urls_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        for url in (
            "s3:///p",
            "s3://",
            "s3://user:secret@bucket",
            f"{server.url}&colour=red",
            f"s3://b/{'p' * 200}",
        ):
            with pytest.raises(InvalidValueError) as caught:
                async with connected(url):
                    pass
            assert "secret" not in str(caught.value)
        with pytest.raises(UnreadableStoreError):
            async with connected(server.url.replace("bucket", "elsewhere")):
                pass

    served(work, monkeypatch)


# Real emulators, from two makers.


@pytest.fixture(scope="module", params=["ministack", "moto"])
def emulator(request: pytest.FixtureRequest) -> Callable[[], servers.Emulator]:
    found: Callable[[], servers.Emulator] = getattr(servers, request.param)
    return found


@pytest.fixture
def url(emulator: Callable[[], servers.Emulator]) -> Iterator[str]:
    with servers.empty_prefix(emulator=emulator) as lent:
        yield lent


def test_listings_are_read_to_the_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PAGE", 4)

    async def main() -> None:
        async with connected(url) as store:
            for tenant in TENANTS:
                await store.write(Write((put("k", Scope(tenant)),)))
            found = [s.scope.path async for s in all_streams(store, StreamScan(scope=Scope(), limit=5))]
            assert found == sorted(TENANTS)

    asyncio.run(main())


def test_large_bodies_come_back(url: str) -> None:
    async def main() -> None:
        large = {"a": "x" * 8_000_000, "b": "é漢" * 2_000_000, "c": random.randbytes(4_000_000).hex()}
        async with connected(url) as store:
            for key, text in large.items():
                await store.write(Write((put(key, text=text),)))
            await store.write(Write((put("a", text="small"),)))
        async with connected(url) as store:
            assert await texts(store) == {**large, "a": "small"}

    asyncio.run(main())


def test_what_is_archived_is_brought_back_by_a_copy(url: str, tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    with mnemic.open(first) as memory:
        for tenant in ("acme", "globex"):
            chat = memory.scope(tenant, "alice").session("monday")
            for n in range(30):
                chat.add("user", f"message {n} of {tenant}")
    mnemic.copy(first, url)
    mnemic.copy(url, second)
    with mnemic.open(first) as before, mnemic.open(second) as after:
        for tenant in ("acme", "globex"):
            chats = [memory.scope(tenant, "alice").session("monday") for memory in (before, after)]
            assert chats[0].messages() == chats[1].messages()


def test_collecting_with_a_url(url: str) -> None:
    assert asyncio.run(collect(url)) == 0


APPEND = textwrap.dedent("""
    import asyncio, sys
    from mnemic.records import Record, Scope
    from mnemic.store import registry
    from mnemic.store.query import Put, Write
    from mnemic.backends.s3 import draft
    draft.INLINE, draft.FULL, draft.FEW = 3000, 20000, 3

    async def main(url, writer, count):
        parsed, backend = registry.find(url)
        store = await backend.open(parsed)
        for n in range(int(count)):
            record = Record(Scope("acme/alice"), "message", f"{writer}-{n}", text="x" * 100)
            await store.write(Write((Put(record, 0),)))
            print(n, flush=True)
        await store.close()

    asyncio.run(main(*sys.argv[1:]))
""")


def test_processes_append_to_one_stream_and_one_is_killed() -> None:
    with servers.empty_prefix() as url:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", APPEND, url, str(n), "40"], stdout=subprocess.PIPE, text=True
            )
            for n in range(3)
        ]
        victim = writers[0]
        assert victim.stdout is not None
        for _ in range(15):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        told = 15 + len(victim.communicate(timeout=60)[0].splitlines())
        for writer in writers[1:]:
            writer.communicate(timeout=60)
            assert writer.returncode == 0

        async def main() -> None:
            async with connected(url) as store:
                found = [r async for r in scan_all(store, Scan(scope=HOME, kinds=(KIND,)))]
                assert [record.seq for record in found] == list(range(1, len(found) + 1))
                for writer in range(3):
                    own = [record.key for record in found if record.key.startswith(f"{writer}-")]
                    assert own == [f"{writer}-{n}" for n in range(len(own))]
                    assert len(own) >= told if writer == 0 else len(own) == 40
                with pytest.raises(ConflictError):
                    await store.write(Write((Put(Record(HOME, KIND, "1-0"), 0), Touch(HOME, KIND, None))))

        asyncio.run(main())
