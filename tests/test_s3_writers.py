"""S3: commits that are broken off or sent twice, and writers in one another's way."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from dict_bucket import DictBucket
from mnemic.backends.s3 import engine, manifest, names, objects
from mnemic.backends.s3.collecting import collect_in
from mnemic.errors import ConflictError, StoreBusyError, StoreUnavailableError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Delete, Derive, Op, Purge, Put, Scan, StreamScan, Touch, Write
from mnemic.testing.harness import without_times
from s3_lab import HOME, KIND, audit, connected, opened, put, shrink, texts
from servers import aws as servers


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few records be many, so that they are soon moved from the manifest into segments."""
    shrink(monkeypatch)


WRITES: list[tuple[Op, ...]] = [
    *((put(f"k{n}", text=f"{n}" * 50, derived={"v": b"1" * 40}),) for n in range(12)),
    (Delete(Ref(HOME, KIND, "k3")), put("k4", text="changed")),
    (Derive(Ref(HOME, KIND, "k5"), "v", b"2"), put("other", HOME / "below")),
    (Purge(HOME, KIND, keep=("k1", "k4")),),
]


@pytest.mark.parametrize("loses", [False, True])
def test_a_commit_that_breaks_off_anywhere_is_done_wholly_or_not_at_all(small: None, loses: bool) -> None:
    async def state(store: Store) -> list[Record | None]:
        scan = Scan(scope=ScopePath(), below=True, derived=("v",))
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
            await store.write(Write((put(f"k{n}", ScopePath("other")), put(f"k{n}", ScopePath("third")))))
        assert len(await texts(store)) == len(await texts(store, ScopePath("other"))) == 20
        streams = [s async for s in all_streams(store, StreamScan(scope=ScopePath()))]
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


def test_what_a_process_died_before_deleting_is_deleted_by_the_next_writer(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        for n in range(20):
            await store.write(Write((put(f"k{n}", text="x" * 40),)))
        delete = bucket.delete

        async def broken(key: str, *, only: str | None = None) -> bool:
            raise StoreUnavailableError("the connection broke")

        bucket.delete = broken  # type: ignore[method-assign]
        before = set(bucket.keys("segments/"))
        await store.write(Write((Purge(HOME, KIND, keep=("k19",)),)))
        assert before <= set(bucket.keys("segments/"))
        bucket.delete = delete  # type: ignore[method-assign]
        await opened(bucket).write(Write((put("later"),)))
        assert before.isdisjoint(bucket.keys("segments/"))
        await audit(bucket)
        assert list(await texts(store)) == ["k19", "later"]

    asyncio.run(main())


def test_no_manifest_names_a_segment_that_was_not_put(small: None) -> None:
    async def main() -> None:
        bucket = DictBucket()
        store = opened(bucket)
        await store.write(Write((put("first"),)))
        bucket_put, refusals = bucket.put, 1

        async def refused(key: str, data: bytes, *, over: str | None) -> str | None:
            nonlocal refusals
            if "segments/" in key and refusals:
                refusals -= 1
                return None
            return await bucket_put(key, data, over=over)

        bucket.put = refused  # type: ignore[method-assign]
        await store.write(Write((put("large", text="x" * 900),)))
        await audit(bucket)
        refusals = 1000
        with pytest.raises(StoreBusyError):
            await store.write(Write((put("larger", text="x" * 900),)))
        assert list(await texts(opened(bucket))) == ["first", "large"]

    asyncio.run(main())


APPEND = textwrap.dedent("""
    import asyncio, sys
    from mnemic.records import Record, ScopePath
    from mnemic.store import registry
    from mnemic.store.query import Put, Write
    from mnemic.backends.s3 import draft
    draft.INLINE, draft.FULL, draft.FEW = 3000, 20000, 3

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
