"""Runs async code for the sync API: inline if the store never waits, else on a background event loop; fork safety."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet, finalize

from .errors import ClosedError, EventLoopError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future

Result = TypeVar("Result")


def running_loop() -> AbstractEventLoop | None:
    """Return the event loop running in this thread, or None."""
    # Importing asyncio costs more than all of Mnemic; if nobody has imported it, no loop can be running.
    asyncio = sys.modules.get("asyncio")
    return asyncio._get_running_loop() if asyncio is not None else None


def step(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise EventLoopError(f"{_name(coroutine)}() waits for an event loop: use the async API")


# ---------------------------------------------------------------- forks

OURS = "mnemic"
"""Prefix of Mnemic's thread names: these threads serve calls that are already running."""
FORK_PATIENCE = 10.0
"""How many seconds a fork waits for calls in other threads."""


class ForkAware:
    """An object that reacts to a fork, once it is registered with `notify_on_fork`."""

    def before_fork(self) -> None:
        """Release what two processes must not share: by default nothing."""

    def after_fork(self) -> None:
        """Reset in the child, where other threads are gone and may have left locks held."""


class RunningCalls:
    """Tracks running calls: a fork waits for them and blocks new ones meanwhile.

    So a child never inherits half of a call, or a lock, of a thread that it does not have.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._forking = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        # Registered before checking, so that either the fork sees this call or this call sees the fork.
        self._inside.append(me)
        while self._forking and self._inside.count(me) == 1 and not _is_ours():
            self._inside.remove(me)
            time.sleep(0.001)
            self._inside.append(me)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(threading.get_ident())

    def drain(self) -> None:
        """Wait until calls in other threads have finished, at most FORK_PATIENCE seconds."""
        me = threading.get_ident()
        until = time.monotonic() + FORK_PATIENCE
        self._forking = True
        while any(thread != me for thread in self._inside) and time.monotonic() < until:
            time.sleep(0.0005)

    def resume(self, *, child: bool) -> None:
        """Let calls start again; in a child, forget those of other threads."""
        if child:
            me = threading.get_ident()
            self._inside = [thread for thread in self._inside if thread == me]
        self._forking = False


running_calls: RunningCalls = RunningCalls()
"""Calls during which the process must not fork."""

_forking: WeakSet[ForkAware] = WeakSet()
_forking_lock = threading.Lock()


def _is_ours() -> bool:
    return threading.current_thread().name.startswith(OURS)


def notify_on_fork(something: ForkAware) -> None:
    """Register an object for fork callbacks while it is alive."""
    with _forking_lock:
        _forking.add(something)


_inherited: list[object] = []


def never_close(thing: object) -> None:
    """Keep a reference, in a child, to an object of the parent that must not be closed here."""
    _inherited.append(thing)


def _before_fork() -> None:
    running_calls.drain()
    with _forking_lock:
        known = list(_forking)
    for something in known:
        something.before_fork()


def _after_fork() -> None:
    global _forking_lock
    _forking_lock = threading.Lock()
    for something in list(_forking):
        something.after_fork()
    running_calls.resume(child=True)


def _after_fork_in_parent() -> None:
    running_calls.resume(child=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork, after_in_parent=_after_fork_in_parent)


# ---------------------------------------------------------------- drivers of the sync API


class Driver(Protocol):
    """Runs coroutines for the sync API."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result, also on a running event loop, which is blocked meanwhile."""
        ...

    def close_when_dropped(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Register `close` to run if the driver is garbage-collected without being closed."""
        ...

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run `last`, which closes the store, and stop; further calls do nothing."""
        ...


class Inline:
    """Runs coroutines in the caller's thread, for stores that never wait outside an event loop."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if (loop := running_loop()) is None:
            return step(coroutine)
        # The caller's loop is blocked meanwhile, so nothing below may wait for it.
        asyncio = sys.modules["asyncio"]
        asyncio._set_running_loop(None)
        try:
            return step(coroutine)
        finally:
            asyncio._set_running_loop(loop)

    def close_when_dropped(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        pass  # Python closes unreferenced files and connections

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        if last is not None:
            self.run(last)


class BorrowedDriver(Inline):
    """Runs coroutines on the driver of another memory, and leaves that one running."""

    def __init__(self, lender: Driver) -> None:
        self.lender: Driver = lender.lender if isinstance(lender, BorrowedDriver) else lender

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.lender.run(coroutine)

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run `last`, which never waits, also after the lender was closed."""
        if last is not None:
            super().run(last)


class Portal(ForkAware):
    """Runs coroutines on an event loop in a background thread, for remote stores.

    A forked child starts its own loop and thread on its first call. A portal that is garbage-collected without
    `close` stops by itself.
    """

    def __init__(self) -> None:
        self._closed = False
        self._last: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self._begin()
        notify_on_fork(self)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result, also on a running event loop, which is blocked meanwhile.

        Raises ClosedError after `close` or if it is closed meanwhile, and EventLoopError on the portal's own
        loop, which would deadlock.
        """
        from concurrent.futures import CancelledError

        with running_calls:
            future = self._submit(coroutine)
            try:
                return future.result()
            except CancelledError:
                if not self._closed:
                    raise
                raise ClosedError("this memory was closed while the call was under way", unsure=True) from None
            except BaseException:
                future.cancel()
                raise

    async def hop(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Await a coroutine of the portal's loop from another event loop."""
        import asyncio

        return await asyncio.wrap_future(self._submit(coroutine))

    def close_when_dropped(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._last.append(close)

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run `last`, cancel running coroutines, and stop the loop and its thread."""
        import asyncio

        with self._lock:
            if not self._closed and last is not None:
                self._start()
            closed, self._closed = self._closed, True
            loop, thread = self._loop, self._thread
        if closed or loop is None or thread is None:
            if last is not None:
                last.close()
            return
        self._dropped.detach()
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last, loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def after_fork(self) -> None:
        """Reset in a child, where the thread no longer exists; the parent's loop is not touched."""
        if self._loop is not None:
            never_close((self._loop, self._thread))
            self._dropped.detach()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _start(self) -> AbstractEventLoop:
        """Return the loop; create it on the first call, also in a child. The caller holds the lock."""
        import asyncio

        if self._closed:
            raise ClosedError("this memory is closed")
        if self._loop is None:
            # psycopg cannot use the default loop of Windows.
            self._loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name=f"{OURS}-loop", daemon=True)
            self._thread.start()
            self._dropped = finalize(self, _drop, self._loop, self._last)
            self._dropped.atexit = False
        return self._loop

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        import asyncio

        try:
            # Whatever is submitted here precedes the stop requested by `close`, so it finishes.
            with self._lock:
                loop = self._start()
                if loop is running_loop():
                    raise EventLoopError(
                        f"{_name(coroutine).removeprefix('Async')}() was called on the event loop that runs "
                        f"it, which would wait for itself: use 'await {_name(coroutine)}()'"
                    )
                return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except BaseException:
            coroutine.close()
            raise


def _serve(loop: AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then finish the remaining tasks."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{OURS}-aside"))
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _drop(loop: AbstractEventLoop, last: list[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Close the resources of an unreachable loop and stop it, without waiting."""

    async def end() -> None:
        try:
            for close in last:
                await close()
        finally:
            loop.stop()

    def begin() -> None:
        _ending.add(task := loop.create_task(end()))
        task.add_done_callback(_ending.discard)

    if not loop.is_closed():
        loop.call_soon_threadsafe(begin)


_ending: set[Any] = set()


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, sync or async, and return its result; a sync function must not block the loop."""
    result = await off_loop(lambda: function(*arguments))
    if not isinstance(result, Awaitable):
        return result
    if running_loop() is not None:
        return await result

    # Inline there is no loop for the user's coroutine, so it gets one in a thread; the caller's own loop may
    # be blocked in this call.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await result

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


async def off_loop(work: Callable[[], Result]) -> Result:
    """Run blocking work and return its result; on an event loop, in a thread."""
    if running_loop() is None:
        return work()
    import asyncio

    def run() -> Result:
        try:
            return work()
        except StopIteration as error:  # a future cannot hold it, and would never be done
            raise RuntimeError("a function raised StopIteration") from error

    return await asyncio.to_thread(run)


async def pause(seconds: float = 0.002) -> None:
    """Yield to other tasks for a moment."""
    if running_loop() is None:
        time.sleep(seconds)  # noqa: ASYNC251
    else:
        import asyncio

        await asyncio.sleep(seconds)


def _name(coroutine: Coroutine[Any, Any, Any]) -> str:
    return str(getattr(coroutine, "__qualname__", "a coroutine"))
