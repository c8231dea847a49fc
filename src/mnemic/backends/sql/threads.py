"""Threads for callers on an event loop, started when the first of them comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ...driving import running_loop
from ...errors import ClosedError
from .commit import GroupCommit, Pending, Tx

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Result = TypeVar("Result")

READERS = 4
"""How many reads run at once for callers on event loops; writes have a thread of their own."""


class Threads:
    """Runs blocking work: in the caller's thread outside an event loop, in one of ours on one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._drain_is_due = False
        self._closed = False

    async def read(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns."""
        loop = running_loop()
        if loop is None:
            return work()
        return await loop.run_in_executor(self._pools()[0], work)

    async def commit(self, group: GroupCommit[Tx], work: Callable[[Tx], Result]) -> Result:
        """Return what `work` returns, once the group's transaction is durable."""
        loop = running_loop()
        if loop is None:
            return group.run(work)
        future: Future[Result] = loop.create_future()
        group.enqueue(Pending(work, lambda pending: _settle(loop, future, pending)))
        with self._lock:
            due, self._drain_is_due = self._drain_is_due, True
        if not due:
            self._pools()[1].submit(self._drain, group)
        return await future

    def close(self) -> None:
        """Wait for the work that is under way, and end the threads."""
        with self._lock:
            self._closed = True
            pools = [pool for pool in (self._readers, self._writer) if pool is not None]
            self._readers = self._writer = None
        for pool in pools:
            pool.shutdown()

    def _drain(self, group: GroupCommit[Tx]) -> None:
        with self._lock:
            self._drain_is_due = False
        group.drain()

    def _pools(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        with self._lock:
            if self._closed:
                raise ClosedError("the store is closed")
            self._readers = self._readers or ThreadPoolExecutor(READERS, "mnemic-read")
            self._writer = self._writer or ThreadPoolExecutor(1, "mnemic-write")
            return self._readers, self._writer


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
