"""Groups concurrent writes into commits, which share a transaction, a round trip and a wait for the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..store.query import Outcome, Write, place_of
from ..telemetry.calls import watch

if TYPE_CHECKING:
    from asyncio import Future, Task

    PendingWrite = tuple[Write, Future[list[Outcome]]]

MOST_WRITES = 500
"""Maximum number of writes in one commit."""
MOST_OPS = 20_000
"""Number of operations in one commit from which no further write is added."""

Result = list[Outcome] | Exception
"""The outcomes of a write, or the error that it raises."""


def scope_of(write: Write) -> str:
    return place_of(write.ops[0])[0].path if write.ops else ""


class WriteQueue:
    """Runs writes on an event loop, in order within a group; groups run concurrently.

    While a commit of a group runs, later writes of the group wait and share the next one. Commits run in tasks of
    their own: cancelling a caller cancels no write.
    """

    def __init__(
        self,
        commit: Callable[[list[Write]], Awaitable[Sequence[Result]]],
        group_of: Callable[[Write], Hashable] = scope_of,
    ) -> None:
        """Take a function that commits writes and returns the result of each; if it raises, all have failed."""
        self._commit = commit
        self._group_of = group_of
        self._groups: dict[Hashable, deque[PendingWrite]] = {}
        self._tasks: set[Task[None]] = set()
        watch(self)

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """Yield the number of writes that wait for a commit."""
        yield "write_queue_depth", "", sum(map(len, list(self._groups.values())))

    async def write(self, write: Write) -> list[Outcome]:
        """Run a write; return its outcomes once it is durable."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: Future[list[Outcome]] = loop.create_future()
        key = (loop, self._group_of(write))  # a loop that the back-end does not serve gets its own error
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = deque()
            task = loop.create_task(self._drain(key, group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        group.append((write, future))
        return await future

    async def close(self, patience: float | None = None) -> None:
        """Wait for running writes, at most `patience` seconds if given."""
        import asyncio

        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)

    async def _drain(self, key: Hashable, group: deque[PendingWrite]) -> None:
        batch: list[PendingWrite] = []
        try:
            while group:
                batch, size = [], 0
                while group and len(batch) < MOST_WRITES and size < MOST_OPS:
                    batch.append(group.popleft())
                    size += len(batch[-1][0].ops)
                results: Sequence[Result]
                try:
                    results = await self._commit([write for write, _ in batch])
                except Exception as error:
                    results = [error] * len(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    settle(future, result)
        finally:
            del self._groups[key]
            for _, future in (*batch, *group):
                if not future.done():
                    settle(future, StoreError("the write was interrupted", unsure=True))


def settle(future: Future[list[Outcome]], result: Result) -> None:
    """Give a caller the result of its write, unless it has stopped waiting."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
