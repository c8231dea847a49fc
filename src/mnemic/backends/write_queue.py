"""Groups concurrent writes into commits, which share a transaction, a round trip and a wait for the disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct

from ..errors import ClosedError, StoreError
from ..event_loop import running_loop
from ..store.query import Outcome, Write, place_of

if TYPE_CHECKING:
    from asyncio import Future, Task


MOST_WRITES = 500
"""Maximum number of writes in one commit."""
MOST_OPS = 20_000
"""Maximum number of operations in one commit, unless one write has more."""

Result = list[Outcome] | Exception
"""The outcomes of a write, or the error that it raises."""


class PendingWrite(Struct, eq=False):
    """One caller's write and its result, for which a caller on an event loop waits with a future."""

    write: Write
    future: Future[list[Outcome]] | None = None
    result: Result | None = None


def scope_of(write: Write) -> str:
    """Return the scope of a write."""
    return place_of(write.ops[0])[0].path if write.ops else ""


class WriteQueue:
    """Runs writes on an event loop, in order within a lane; lanes run concurrently.

    While a commit of a lane runs, later writes of the lane wait and share the next one. Commits run in tasks of
    their own: cancelling a caller cancels no write.
    """

    def __init__(
        self, commit: Callable[[list[Write]], Awaitable[Sequence[Result]]], lane: Callable[[Write], Hashable] = scope_of
    ) -> None:
        """Take a function that commits writes and returns the result of each; if it raises, all have failed."""
        self._commit = commit
        self._lane = lane
        self._lanes: dict[Hashable, deque[PendingWrite]] = {}
        self._tasks: set[Task[None]] = set()

    async def write(self, write: Write) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: Future[list[Outcome]] = loop.create_future()
        key = (loop, self._lane(write))  # a loop that the back-end does not serve gets its own error
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            task = loop.create_task(self._drain(key, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lane.append(PendingWrite(write, future))
        return await future

    async def close(self, patience: float | None = None) -> None:
        """Wait for running writes, at most `patience` seconds if given."""
        import asyncio

        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)

    async def _drain(self, key: Hashable, lane: deque[PendingWrite]) -> None:
        batch: list[PendingWrite] = []
        try:
            while lane:
                batch, writes = _next_batch(lane)
                results: Sequence[Result]
                try:
                    results = await self._commit(writes)
                except Exception as error:
                    results = [error] * len(batch)
                for pending, result in zip(batch, results, strict=True):
                    _settle(pending, result)
        finally:
            del self._lanes[key]
            for pending in (*batch, *lane):
                _settle(pending, StoreError("the write was interrupted"))


class BlockingWriteQueue:
    """Runs writes of a back-end whose commits block, one commit at a time.

    The thread that has the lock commits its own write and all that others have queued meanwhile. For callers on
    an event loop, that is a thread of the queue.
    """

    def __init__(self, commit: Callable[[list[Write]], Sequence[Result]]) -> None:
        """Take a function that commits writes and returns the result of each; if it raises, all have failed."""
        self._commit = commit
        self._lock = threading.Lock()
        self._queue: deque[PendingWrite] = deque()
        self._thread = ThreadPoolExecutor(1, "mnemic-write")
        self._scheduled = False

    async def write(self, write: Write) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable. Raises ClosedError after `close`."""
        loop = running_loop()
        if loop is not None:
            future: Future[list[Outcome]] = loop.create_future()
            self._queue.append(PendingWrite(write, future))
            if not self._scheduled:
                self._scheduled = True
                try:
                    self._thread.submit(self._drain)
                except RuntimeError:
                    self._scheduled = False
                    raise ClosedError("the store is closed") from None
            return await future
        pending = PendingWrite(write)
        self._queue.append(pending)
        while (result := pending.result) is None:
            self._commit_next()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Wait for running writes, and stop the thread."""
        self._thread.shutdown()

    def _drain(self) -> None:
        # Before the queue is read: a write queued after that schedules another run.
        self._scheduled = False
        while self._queue:
            self._commit_next()

    def _commit_next(self) -> None:
        with self._lock:
            batch, writes = _next_batch(self._queue)
            if not batch:
                return
            results: Sequence[Result] = [StoreError("the write was interrupted")] * len(batch)
            try:
                results = self._commit(writes)
            except Exception as error:
                results = [error] * len(batch)
            finally:
                for pending, result in zip(batch, results, strict=True):
                    pending.result = result
        for pending in batch:
            if (future := pending.future) is not None and not (loop := future.get_loop()).is_closed():
                loop.call_soon_threadsafe(_settle, pending, pending.result)


def _next_batch(queue: deque[PendingWrite]) -> tuple[list[PendingWrite], list[Write]]:
    batch: list[PendingWrite] = []
    writes: list[Write] = []
    size = 0
    while queue and len(batch) < MOST_WRITES and (not batch or size + len(queue[0].write.ops) <= MOST_OPS):
        batch.append(queue.popleft())
        writes.append(batch[-1].write)
        size += len(writes[-1].ops)
    return batch, writes


def _settle(pending: PendingWrite, result: Result | None) -> None:
    future = pending.future
    if future is None or future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    elif result is not None:
        future.set_result(result)
