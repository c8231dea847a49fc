"""Groups commits: writes to the same streams share a transaction, others run concurrently."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ...errors import StoreError
from ...store.planning import MOST_OPS, MOST_WRITES
from ...store.query import Outcome, Write
from ..calls import elsewhere

WriteResult = list[Outcome] | Exception
Commit = Callable[[Sequence[Write]], Awaitable[list[WriteResult]]]


class Lane:
    """Runs writes one batch after another, in a task of its own, which survives the cancellation of a caller."""

    def __init__(self, commit: Commit, url: str) -> None:
        self._commit = commit
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Write, asyncio.Future[list[Outcome]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def run(self, write: Write) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable."""
        if asyncio.get_running_loop() is not self._loop:
            raise elsewhere(self._url, self._loop)
        future: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._queue.append((write, future))
        if self._task is None:
            self._task = self._loop.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        batch: list[tuple[Write, asyncio.Future[list[Outcome]]]] = []
        try:
            while self._queue:
                batch = self._next()
                try:
                    results = await self._commit([write for write, _ in batch])
                except Exception as error:
                    results = [error] * len(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._task = None
            for _, future in batch:
                if not future.done():
                    future.set_exception(StoreError("the write was interrupted"))

    def _next(self) -> list[tuple[Write, asyncio.Future[list[Outcome]]]]:
        batch = [self._queue.popleft()]
        size = len(batch[0][0].ops)
        while self._queue and len(batch) < MOST_WRITES and size + len(self._queue[0][0].ops) <= MOST_OPS:
            batch.append(self._queue.popleft())
            size += len(batch[-1][0].ops)
        return batch
