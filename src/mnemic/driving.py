"""How the sync API runs the async one: in place where nothing waits, on a loop of its own elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from .errors import ClosedError, EventLoopError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Result = TypeVar("Result")


def running_loop() -> AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does."""
    # Importing asyncio would cost more than all of Mnemic; where nobody has, no loop can run.
    asyncio = sys.modules.get("asyncio")
    return asyncio._get_running_loop() if asyncio is not None else None


def step(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise EventLoopError(f"{_name(coroutine)}() waits for an event loop: use the async API")


class Driver(Protocol):
    """Runs coroutines for the sync API."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result; raises EventLoopError on a running event loop."""
        ...

    def close(self) -> None:
        """Stop what the driver runs on."""
        ...


class Inline:
    """Runs coroutines in the caller's thread, for stores that never wait outside an event loop."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result; raises EventLoopError on a running event loop."""
        if running_loop() is not None:
            raise _refused(coroutine)
        return step(coroutine)

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


class Portal:
    """Runs coroutines on an event loop in a thread of its own, for stores across a network."""

    def __init__(self) -> None:
        import asyncio

        self._asyncio = asyncio
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mnemic", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result; raises EventLoopError on a running event loop."""
        if running_loop() is not None:
            raise _refused(coroutine)
        if self._loop.is_closed():
            coroutine.close()
            raise ClosedError("this memory is closed")
        future = self._asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def hop(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result to another event loop than the portal's own."""
        if self._loop.is_closed():
            coroutine.close()
            raise ClosedError("this memory is closed")
        future = self._asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return await self._asyncio.wrap_future(future)

    def close(self) -> None:
        """Stop the loop and its thread."""
        if not self._loop.is_closed():
            ended = self._loop.shutdown_default_executor()
            self._asyncio.run_coroutine_threadsafe(ended, self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, sync or async, and return its result; a sync one must not block the loop."""
    result = await off_loop(lambda: function(*arguments))
    if not isinstance(result, Awaitable):
        return result
    if running_loop() is not None:
        return await result

    # Driven in place there is no loop for the user's coroutine to wait on, so it gets one.
    import asyncio

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


async def off_loop(work: Callable[[], Result]) -> Result:
    """Return what `work` returns; on an event loop, it runs in a thread, since it blocks."""
    if running_loop() is None:
        return work()
    import asyncio

    return await asyncio.to_thread(work)


class Forking(Protocol):
    """Something that a fork of the process concerns."""

    def before_fork(self) -> None:
        """Let go of what must not be held by two processes."""
        ...

    def after_fork(self) -> None:
        """Begin anew in the child, whose other threads are gone and whose locks may be held by them."""
        ...


_forking: WeakSet[Forking] = WeakSet()


def mind_forks(something: Forking) -> None:
    """Let something know of forks, for as long as it lives."""
    _forking.add(something)


def _before_fork() -> None:
    for something in list(_forking):
        something.before_fork()


def _after_fork() -> None:
    for something in list(_forking):
        something.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


async def pause(seconds: float = 0.002) -> None:
    """Let others go on for a moment."""
    if running_loop() is None:
        time.sleep(seconds)  # noqa: ASYNC251
    else:
        import asyncio

        await asyncio.sleep(seconds)


def _name(coroutine: Coroutine[Any, Any, Any]) -> str:
    return str(getattr(coroutine, "__qualname__", "a coroutine"))


def _refused(coroutine: Coroutine[Any, Any, Any]) -> EventLoopError:
    coroutine.close()
    name = _name(coroutine)
    return EventLoopError(
        f"{name.removeprefix('Async')}() was called on a running event loop, which it would block: "
        f"use 'await {name}()', which mnemic.open_async() gives"
    )
