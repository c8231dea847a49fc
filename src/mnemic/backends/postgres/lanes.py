"""Lanes: writes to the same streams share a transaction; other lanes run concurrently."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import StoreError
from ...event_loop import step
from ...store.planning import MOST_OPS, MOST_WRITES
from ...store.query import Outcome, Write

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


class Pending:
    """One caller's write, and its result."""

    __slots__ = ("done", "error", "future", "outcomes", "write")

    def __init__(self, write: Write) -> None:
        self.write: Write = write
        self.done: bool = False
        self.outcomes: list[Outcome] = []
        self.error: Exception | None = None
        self.future: Any = None

    def settle(self, how: list[Outcome] | Exception) -> None:
        """Set the result of the write."""
        if isinstance(how, Exception):
            self.error = how
        else:
            self.outcomes = how
        self.done = True

    def result(self) -> list[Outcome]:
        """Return the outcomes, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.outcomes


Commit = Callable[[list[Pending]], Coroutine[Any, Any, None]]
"""Runs writes in one transaction, and settles each."""


class Lane(Protocol):
    """Runs the writes of some streams."""

    async def run(self, pending: Pending) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable."""
        ...

    async def close(self) -> None:
        """Wait for running writes."""
        ...


def _next(queue: deque[Pending]) -> list[Pending]:
    """Take the writes for one transaction off a queue."""
    batch: list[Pending] = []
    size = 0
    while queue and len(batch) < MOST_WRITES and (not batch or size + len(queue[0].write.ops) <= MOST_OPS):
        batch.append(queue.popleft())
        size += len(batch[-1].write.ops)
    return batch


def _abandon(batch: list[Pending]) -> None:
    for pending in batch:
        if not pending.done:
            pending.settle(StoreError("the write was interrupted"))


class ThreadLane:
    """A lane for callers outside event loops: the thread with the lock also runs what others have queued."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._queue: deque[Pending] = deque()

    async def run(self, pending: Pending) -> list[Outcome]:
        self._queue.append(pending)
        while not pending.done:
            with self._lock:
                batch = _next(self._queue)
                try:
                    if batch:
                        step(self._commit(batch))
                finally:
                    _abandon(batch)
        return pending.result()

    async def close(self) -> None:
        with self._lock:
            return


class LoopLane:
    """A lane for callers on an event loop, run by a task of its own, which survives the cancellation of a caller."""

    def __init__(self, commit: Commit, loop: AbstractEventLoop) -> None:
        self._commit = commit
        self._loop = loop
        self._queue: deque[Pending] = deque()
        self._task: Task[None] | None = None

    async def run(self, pending: Pending) -> list[Outcome]:
        pending.future = self._loop.create_future()
        self._queue.append(pending)
        if self._task is None:
            self._task = self._loop.create_task(self._drain())
        await pending.future
        return pending.result()

    async def close(self) -> None:
        if self._task is not None:
            await self._task

    async def _drain(self) -> None:
        batch: list[Pending] = []
        try:
            while self._queue:
                batch = _next(self._queue)
                await self._commit(batch)
                self._tell(batch)
        finally:
            self._task = None
            _abandon(batch)
            self._tell(batch)

    def _tell(self, batch: list[Pending]) -> None:
        for pending in batch:
            if not pending.future.done():
                pending.future.set_result(None)
