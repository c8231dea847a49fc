"""S3: commits that are interrupted or sent twice, and concurrent writers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from datetime import timedelta

import pytest

from dict_bucket import DictBucket
from mnemic.backends.s3 import client, commit
from mnemic.errors import ConflictError, StoreUnavailableError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Delete, Derive, Expect, Op, Purge, Put, Scan, StreamScan, Touch, Write
from mnemic.testing.harness import without_times
from s3_testing import KIND, MANIFEST, SCOPE, audit, connected, engine_on, open_on, put, shrink, texts
from servers import aws as servers


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move a few records from the manifest into segments already."""
    shrink(monkeypatch)


WRITES: list[tuple[Op, ...]] = [
    *((put(f"k{n}", text=f"{n}" * 50, derived={"v": b"1" * 40}),) for n in range(12)),
    (Delete(Ref(SCOPE, KIND, "k3")), put("k4", text="changed")),
    (Derive(Ref(SCOPE, KIND, "k5"), "v", b"2"), Put(Record(SCOPE, "other", "k"))),
    (Purge(SCOPE, KIND, keep=("k1", "k4")),),
]


@pytest.mark.parametrize("loses", [False, True])
def test_a_commit_that_breaks_off_anywhere_is_done_wholly_or_not_at_all(small: None, loses: bool) -> None:
    async def state(store: Store) -> list[Record | None]:
        scan = Scan(scope=ScopePath(), below=True, derived=("v",))
        return [without_times(record) async for record in scan_all(store, scan)]

    async def main() -> None:
        whole, states = DictBucket(), []
        store = open_on(whole)
        for n, ops in enumerate(WRITES):
            before = whole.requests["put"] + whole.requests["delete"]
            await store.write(Write(ops, id=f"w{n}"))
            states.append((await state(store), whole.requests["put"] + whole.requests["delete"] - before))
        for broken in range(len(WRITES)):
            for step in range(states[broken][1]):
                bucket = DictBucket()
                store = open_on(bucket)
                for n, ops in enumerate(WRITES):
                    bucket.breaks_after, bucket.loses = (step, loses) if n == broken else (None, False)
                    with suppress(StoreUnavailableError):
                        await store.write(Write(ops, id=f"w{n}"))
                    bucket.breaks_after = None
                    assert await state(open_on(bucket)) in (states[n][0], states[n - 1][0] if n else [])
                    # Whoever does not know whether it was done sends it again.
                    await store.write(Write(ops, id=f"w{n}"))
                    assert await state(store) == states[n][0]
                bucket.wait(timedelta(days=2))
                await engine_on(bucket).collect()
                audit(bucket)

    asyncio.run(main())


def test_a_commit_that_was_sent_twice_is_not_taken_for_someone_elses(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        bucket.resends = True
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 30),)))
            await store.write(Write((put(f"k{n}", ScopePath("other")),)))
        assert len(await texts(store)) == len(await texts(store, ScopePath("other"))) == 20
        streams = [s async for s in all_streams(store, StreamScan(scope=ScopePath()))]
        assert [(s.count, s.version) for s in streams] == [(20, 20)] * 2
        # Others may have written so much since that nobody knows.
        moved = 0

        async def others(key: str) -> None:
            nonlocal moved
            if key == MANIFEST and not moved:
                moved = 1
                bucket.resends = False
                second = open_on(bucket)
                for n in range(commit.MAX_COMMITS + 1):
                    await second.write(Write((put(f"o{n}"),)))
                bucket.resends = True
                bucket.objects[key] = (*bucket.objects[key][:2], bucket.time)

        bucket.meanwhile = others
        with pytest.raises(StoreUnavailableError, match="cannot be told"):
            await store.write(Write((put("late"),)))

    asyncio.run(main())


def test_a_commit_is_repeated_if_others_wrote_to_the_scope_meanwhile() -> None:
    async def main() -> None:
        bucket = DictBucket()
        store, other = open_on(bucket), open_on(bucket)
        await store.write(Write((put("first"),)))
        left, inside = 3, False

        async def meanwhile(key: str) -> None:
            nonlocal left, inside
            if left and not inside:
                left, inside = left - 1, True
                await other.write(Write((Put(Record(SCOPE, "other", f"o{left}")),)))
                inside = False

        bucket.meanwhile = meanwhile
        await store.write(Write((Put(Record(SCOPE, KIND, "second"), 0),)))
        assert list(await texts(store)) == ["first", "second"]
        streams = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
        assert [(s.kind, s.count, s.version) for s in streams] == [(KIND, 2, 2), ("other", 3, 3)]
        audit(bucket)

    asyncio.run(main())


def test_of_two_writers_that_create_a_scope_the_slower_one_follows() -> None:
    async def main() -> None:
        bucket = DictBucket()
        stores = [open_on(bucket) for _ in range(2)]

        async def meanwhile(key: str) -> None:
            bucket.meanwhile = None
            await stores[1].write(Write((put("faster"),)))

        bucket.meanwhile = meanwhile
        await stores[0].write(Write((put("slower"),)))
        assert list(await texts(stores[0])) == ["faster", "slower"]
        audit(bucket)

    asyncio.run(main())


def test_of_two_writers_that_drop_a_stream_on_a_condition_one_fails() -> None:
    async def main() -> None:
        bucket = DictBucket()
        stores = [open_on(bucket) for _ in range(2)]
        await stores[0].write(Write((put("first"),)))
        drop = Write((Expect(SCOPE, KIND, version=1), Purge(SCOPE, KIND, drop=True)))
        done = await asyncio.gather(*(store.write(drop) for store in stores), return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in done) == 1
        assert bucket.keys("p/") == []

    asyncio.run(main())


def test_a_reader_whose_segment_was_written_anew_reads_the_new_one(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        writer = open_on(bucket)
        for n in range(30):
            await writer.write(Write((put(f"k{n:02}", text="x" * 40),)))
        reader = open_on(bucket)
        get, changed = bucket.get, False

        async def meanwhile(key: str, *, unless: str | None = None) -> client.StoredObject | None:
            nonlocal changed
            if "segments/" in key and not changed:
                changed = True
                await writer.write(Write((Purge(SCOPE, KIND, keep=("k01", "k29")),)))
            return await get(key, unless=unless)

        bucket.get = meanwhile  # type: ignore[method-assign]
        assert list(await texts(reader)) == ["k01", "k29"]
        assert changed

    asyncio.run(main())


def test_what_a_process_died_before_deleting_is_deleted_by_the_next_writer(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 40),)))
        delete = bucket.delete

        async def broken(key: str, *, only: str | None = None) -> bool:
            raise StoreUnavailableError("the connection broke")

        bucket.delete = broken  # type: ignore[method-assign]
        before = set(bucket.keys("segments/"))
        await store.write(Write((Purge(SCOPE, KIND, keep=("k19",)),)))
        assert before <= set(bucket.keys("segments/"))
        bucket.delete = delete  # type: ignore[method-assign]
        await open_on(bucket).write(Write((put("later"),)))
        assert before.isdisjoint(bucket.keys("segments/"))
        audit(bucket)
        assert list(await texts(store)) == ["k19", "later"]

    asyncio.run(main())


def test_no_manifest_names_a_segment_that_was_not_put(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = open_on(bucket)
        await store.write(Write((put("first"),)))
        bucket.breaks_after = 0
        with pytest.raises(StoreUnavailableError):
            await store.write(Write((put("large", text="x" * 900),)))
        bucket.breaks_after = None
        assert bucket.keys("segments/") == []
        assert list(await texts(open_on(bucket))) == ["first"]
        await store.write(Write((put("large", text="x" * 900),)))
        audit(bucket)

    asyncio.run(main())


APPEND = textwrap.dedent("""
    import asyncio, sys
    from mnemic.records import Record, ScopePath
    from mnemic.store import registry
    from mnemic.store.query import Put, Write
    from mnemic.backends.s3 import codec, commit
    commit.MAX_INLINE, codec.MAX_SEGMENT = 3000, 10_000

    async def main(url, writer, count):
        parsed, backend = registry.find(url)
        store = await backend.open(parsed)
        for n in range(int(count)):
            record = Record(ScopePath("acme/alice"), "message", f"{writer}-{n}", text="x" * 100)
            await store.write(Write((Put(record, 0),)))
            print(n, flush=True)
        await store.close()

    asyncio.run(main(*sys.argv[1:]))
""")


def test_processes_append_to_one_stream_and_one_is_killed() -> None:
    with servers.empty_prefix() as url:
        writers = [
            subprocess.Popen([sys.executable, "-c", APPEND, url, str(n), "40"], stdout=subprocess.PIPE, text=True)
            for n in range(3)
        ]
        victim = writers[0]
        assert victim.stdout is not None
        for _ in range(15):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        told = 15 + len(victim.communicate(timeout=240)[0].splitlines())
        for writer in writers[1:]:
            writer.communicate(timeout=240)
            assert writer.returncode == 0

        async def main() -> None:
            async with connected(url) as store:
                found = [r async for r in scan_all(store, Scan(scope=SCOPE, kinds=(KIND,)))]
                assert [record.seq for record in found] == list(range(1, len(found) + 1))
                for writer in range(3):
                    own = [record.key for record in found if record.key.startswith(f"{writer}-")]
                    assert own == [f"{writer}-{n}" for n in range(len(own))]
                    assert len(own) >= told if writer == 0 else len(own) == 40
                with pytest.raises(ConflictError):
                    await store.write(Write((Put(Record(SCOPE, KIND, "1-0"), 0), Touch(SCOPE, KIND, None))))

        asyncio.run(main())
