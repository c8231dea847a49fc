"""The queue that groups writes into commits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mnemic.backends.sqlite.store import CommitQueue
from mnemic.backends.write_queue import MOST_WRITES, Result, WriteQueue
from mnemic.errors import ClosedError, ConflictError, StoreError
from mnemic.records import Record, ScopePath
from mnemic.store.query import Outcome, Put, Write


def write(key: str, scope: str = "a") -> Write:
    return Write((Put(Record(ScopePath(scope), "note", key)),))


def results(writes: list[Write]) -> list[Result]:
    """Answer each write with its key, and those of the key "bad" with an error."""
    keys = [op.record.key for one in writes for op in one.ops if isinstance(op, Put)]
    return [ConflictError("bad") if key == "bad" else [Outcome(key=key)] for key in keys]


class Commits:
    """Commits that wait until they are released."""

    def __init__(self) -> None:
        self.batches: list[list[Write]] = []
        self.released = asyncio.Event()

    async def commit(self, writes: list[Write]) -> list[Result]:
        self.batches.append(writes)
        await self.released.wait()
        return results(writes)


def test_writes_that_arrive_during_a_commit_share_the_next_one() -> None:
    async def main() -> None:
        commits = Commits()
        queue = WriteQueue(commits.commit)
        tasks = [asyncio.create_task(queue.write(write("first")))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(queue.write(write(str(n)))) for n in range(9)]
        await asyncio.sleep(0)
        commits.released.set()
        assert [(await task)[0].key for task in tasks] == ["first", *map(str, range(9))]
        assert [len(batch) for batch in commits.batches] == [1, 9]

    asyncio.run(main())


def test_scopes_do_not_wait_for_one_another() -> None:
    async def main() -> None:
        commits = Commits()
        queue = WriteQueue(commits.commit)
        tasks = [asyncio.create_task(queue.write(write("k", scope))) for scope in "abc"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(commits.batches) == 3
        commits.released.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_a_rejected_write_and_a_cancelled_caller_leave_their_neighbours_alone() -> None:
    async def main() -> None:
        commits = Commits()
        queue = WriteQueue(commits.commit)
        tasks = [asyncio.create_task(queue.write(write(key))) for key in ("a", "bad", "b", "c")]
        await asyncio.sleep(0)
        tasks[2].cancel()
        commits.released.set()
        first, bad, cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(bad, ConflictError)
        assert isinstance(cancelled, asyncio.CancelledError)
        assert [first, last] == [[Outcome(key="a")], [Outcome(key="c")]]
        assert sum(map(len, commits.batches)) == 4

    asyncio.run(main())


def test_a_commit_that_fails_fails_its_writes_and_no_later_ones() -> None:
    calls = 0

    async def commit(writes: list[Write]) -> list[Result]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreError("down")
        return results(writes)

    async def main() -> None:
        queue = WriteQueue(commit)
        with pytest.raises(StoreError, match="down"):
            await queue.write(write("a"))
        assert await queue.write(write("b")) == [Outcome(key="b")]
        await queue.close()

    asyncio.run(main())


def test_threads_share_commits_and_each_gets_its_own_result() -> None:
    batches: list[int] = []
    started, released = threading.Event(), threading.Event()

    def commit(writes: list[Write]) -> list[Result]:
        batches.append(len(writes))
        started.set()
        assert released.wait(60)
        return results(writes)

    queue = CommitQueue(commit)
    found: dict[str, object] = {}

    def run(key: str) -> None:
        try:
            found[key] = asyncio.run(queue.write(write(key)))
        except ConflictError as error:
            found[key] = error

    keys = ["first", "bad", *map(str, range(8))]
    threads = [threading.Thread(target=run, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    assert started.wait(60)
    released.set()
    for thread in threads:
        thread.join()
    assert isinstance(found.pop("bad"), ConflictError)
    assert found == {key: [Outcome(key=key)] for key in keys if key != "bad"}
    assert sum(batches) == len(keys)
    assert max(batches) <= MOST_WRITES
    queue.close()
    with pytest.raises(ClosedError):
        asyncio.run(queue.write(write("late")))
