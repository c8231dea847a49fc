"""Calls to a server: each has a deadline, all run on one event loop, and `close` ends them; and common options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from ..errors import ClosedError, EventLoopError, MnemicError, StoreUnavailableError
from ..event_loop import ForkAware, never_close, notify_on_fork
from ..store.availability import Availability

TIMEOUT = 10.0
"""Deadline of a call including retries, in seconds, unless the option `timeout` is set."""
GRACE = 1.0
"""How many seconds `close` waits for running calls before it cancels them."""

LARGE = 50_000
"""Scopes with at least this many records are searched by a server that can, unless the option `recall` is set."""

Client = TypeVar("Client")
Result = TypeVar("Result")


def seconds(text: str) -> float:
    """Parse the option `timeout`; raises ValueError."""
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError(text)
    return value


def bounded_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of an option that is a number within these bounds."""

    def parse(text: str) -> int:
        if not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return parse


def recall_size(text: str) -> int:
    """Parse the option `recall` to the number of records from which the server searches a scope; raises KeyError."""
    return {"server": 0, "auto": LARGE, "memory": 2**62}[text]


def timeout_error(url: str, timeout: float, *, changes: bool) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{url}: there was no answer within {timeout:g} seconds (the option timeout); a read can be tried "
        "again, a write may or may not have been done, and can safely be retried if it has an id",
        unsure=changes,
    )


@contextmanager
def mark_errors(*, unsure: bool) -> Iterator[None]:
    """Mark errors of some steps of a write: before its first change, or after it."""
    try:
        yield
    except MnemicError as error:
        error.unsure = unsure
        raise


def other_loop_error(url: str, loop: asyncio.AbstractEventLoop) -> EventLoopError:
    """Return the error for a call on another event loop than that of the connections."""
    ended = ", which has ended" if loop.is_closed() else ""
    return EventLoopError(
        f"{url}: the connections of this memory belong to another event loop{ended}: open one with "
        "mnemic.open_async() on each loop, or use mnemic.open(), whose memory works in every thread"
    )


class Calls(ForkAware, Generic[Client]):
    """Provides a driver's client to calls; a forked child creates its own on its first call."""

    def __init__(
        self,
        url: str,
        timeout: float,
        connect: Callable[[], Awaitable[Client]],
        disconnect: Callable[[Client], Awaitable[object]],
    ) -> None:
        self.url = url
        self.timeout = timeout
        self.client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Timeout] = set()
        self._connecting = asyncio.Lock()
        self._idle = asyncio.Event()
        self._connect = connect
        self._disconnect = disconnect
        self._closed = False
        self.availability: Availability = Availability(url)
        notify_on_fork(self)

    async def run(
        self, work: Callable[[Client], Awaitable[Result]], *, changes: bool = True, deadline: bool = True
    ) -> Result:
        """Run `work` with the client and return its result; `changes` says whether it changes anything.

        Without a `deadline`, it ends when it is done, or with `close`.
        Raises the errors of `work`, StoreUnavailableError after the deadline, ClosedError after or during
        `close`, EventLoopError on another event loop than that of the first call.
        """
        if self._closed:
            raise ClosedError(f"{self.url} is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise other_loop_error(self.url, self._loop)
        limit = asyncio.timeout(self.timeout if deadline else None)
        try:
            async with limit:
                self._running.add(limit)
                client = self.client
                result = await work(await self.connected() if client is None else client)
        except StoreUnavailableError as error:
            self.availability.lost(error)
            raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            if self._closed:
                raise ClosedError(
                    f"{self.url} was closed before there was an answer; a write may or may not have been done",
                    unsure=changes,
                ) from error
            self.availability.lost(error)
            raise timeout_error(self.url, self.timeout, changes=changes) from error
        else:
            self.availability.answered()
            return result
        finally:
            self._running.discard(limit)
            if self._closed and not self._running:
                self._idle.set()

    async def connected(self) -> Client:
        """Return the client; create it if there is none."""
        async with self._connecting:
            if self.client is None:
                self.client = await self._connect()
            return self.client

    async def close(self) -> None:
        """Reject new calls, wait briefly for running ones, cancel the others, and disconnect."""
        if self._closed:
            return
        self._closed = True
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            await self._end()
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), loop))
        else:
            self.client = None  # its connections ended with their loop

    async def _end(self) -> None:
        if self._running:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._idle.wait()
            for limit in self._running:
                limit.reschedule(asyncio.get_running_loop().time())
            await self._idle.wait()
        client, self.client = self.client, None
        if client is not None:
            await self._disconnect(client)

    def after_fork(self) -> None:
        """Reset in a child, which does not touch the parent's connections."""
        never_close(self.client)
        self.client = self._loop = None
        self._running = set()
        self._connecting = asyncio.Lock()
        self._idle = asyncio.Event()
