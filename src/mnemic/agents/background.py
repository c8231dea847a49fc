"""A background job queue: jobs run one after another; a failure does not stop it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from ..store.availability import name_of

log: logging.Logger = logging.getLogger("mnemic.agents")

MAX_ERRORS = 100
"""Maximum number of errors kept."""


class BackgroundJobs:
    """Runs jobs in order, on the event loop on which they were submitted.

    A job submitted again while it waits runs once. If the loop ends first, the remaining jobs run when the worker
    is next used, on another loop.
    """

    def __init__(self) -> None:
        self.errors: deque[Exception] = deque(maxlen=MAX_ERRORS)
        """Errors, newest last."""
        self._waiting: dict[Hashable, Callable[[], Awaitable[object]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of pending jobs."""
        return len(self._waiting)

    def give(self, name: Hashable, work: Callable[[], Awaitable[object]]) -> None:
        """Submit a job, and return at once."""
        self._waiting.setdefault(name, work)
        self._start()

    async def drain(self) -> None:
        """Wait until all jobs are done, including new ones."""
        while self._waiting or self._busy():
            self._start()
            assert self._task is not None
            await asyncio.wait([self._task])

    def _busy(self) -> bool:
        task = self._task
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    def _start(self) -> None:
        if not self._busy():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mnemic-learning")

    async def _work(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            work = self._waiting.pop(name)
            try:
                await work()
            except asyncio.CancelledError:
                # The loop ends: another one may run it.
                self._waiting.setdefault(name, work)
                raise
            except Exception as error:
                log.warning("background work failed, and is kept in `errors` (%s)", name_of(error))
                log.debug("what failed was %s", name)
                self.errors.append(error)
