"""Threads for callers on an event loop, started on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import ClosedError
from ...event_loop import running_loop
from .commit import GroupCommit, Pending, Tx

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Result = TypeVar("Result")

READERS = 4
"""Number of reader threads; writes have a thread of their own."""


class Threads:
    """Runs blocking work: in the caller's thread, or in a worker thread if an event loop is running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._drain_is_due = False
        self._closed = False

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return its result; raises ClosedError after `close`."""
        loop = running_loop()
        if loop is None:
            return work()
        with self._lock:
            readers, _ = self._started()
        return await loop.run_in_executor(readers, work)

    async def commit(self, group: GroupCommit[Tx], work: Callable[[Tx], Result]) -> Result:
        """Run `work` in the group's transaction; return when it is durable. Raises ClosedError."""
        loop = running_loop()
        if loop is None:
            return group.run(work)
        future: Future[Result] = loop.create_future()
        with self._lock:
            _, writer = self._started()
            group.enqueue(Pending(work, lambda pending: _settle(loop, future, pending)))
            if not self._drain_is_due:
                self._drain_is_due = True
                writer.submit(self._drain, group)
        return await future

    def close(self) -> None:
        """Wait for running work, and stop the threads."""
        with self._lock:
            self._closed = True
            pools, self._pools = self._pools or (), None
        for pool in pools:
            pool.shutdown()

    def _drain(self, group: GroupCommit[Tx]) -> None:
        with self._lock:
            self._drain_is_due = False
        while group.drain():
            pass

    def _started(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        if self._closed:
            raise ClosedError("the store is closed")
        if self._pools is None:
            self._pools = (ThreadPoolExecutor(READERS, "mnemic-read"), ThreadPoolExecutor(1, "mnemic-write"))
        return self._pools


def _settle(loop: AbstractEventLoop, future: Future[Any], pending: Pending[Tx]) -> None:
    def tell() -> None:
        if future.cancelled():
            return
        if pending.error is not None:
            future.set_exception(pending.error)
        else:
            future.set_result(pending.result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(tell)
