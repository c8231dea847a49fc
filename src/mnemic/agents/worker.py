"""Work that is done in the background, one thing after the other; what fails does not stop it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

log = logging.getLogger("mnemic.agents")

MAX_ERRORS = 100
"""How many errors are kept to be looked at."""


class Worker:
    """Does what it is given, in turn, on the event loop on which it was given.

    What is given again while it waits is done once. Should the loop end before all is done, the rest is
    done when the worker is next given something, or drained, on another.
    """

    def __init__(self) -> None:
        self.errors: deque[Exception] = deque(maxlen=MAX_ERRORS)
        """What went wrong, the newest last."""
        self._waiting: dict[Hashable, Callable[[], Awaitable[object]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How much is to be done."""
        return len(self._waiting)

    def give(self, name: Hashable, work: Callable[[], Awaitable[object]]) -> None:
        """Give it something to do, and return at once."""
        self._waiting.setdefault(name, work)
        self._start()

    async def drain(self) -> None:
        """Return when all is done that was given until now, and what was given meanwhile."""
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
                # The loop ends: someone else may do it.
                self._waiting.setdefault(name, work)
                raise
            except Exception as error:
                log.warning("%s failed: %s", name, error)
                self.errors.append(error)
