"""Connection pools: one for callers outside event loops, one for those on the memory's event loop.

Connections are opened on demand by the caller that needs them, so errors are raised at once, and there is no
background thread that a fork would lose.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import text

from ...errors import ClosedError, StoreBusyError, StoreUnavailableError
from ...event_loop import pause
from ...store.availability import Availability
from ..calls import GRACE, overdue
from ..sql.statements import Prepared
from .address import Address
from .errors import STALE, meaning, state_of
from .flavor import FLAVOR
from .links import Link, LoopLink, OverdueError, ThreadLink

Result = TypeVar("Result")
Work = Callable[[Link], Coroutine[Any, Any, Result]]

IDLE_SECONDS = 600.0
"""How long a connection may be idle before it is closed, beyond the minimum."""

_replan = Prepared(text("DISCARD PLANS"), FLAVOR.dialect, keep_plan=False)
"""Discards plans, because the best plan for small tables is not the best for large ones."""
_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class LostLinkError(Exception):
    """A connection broke while it was borrowed, or became unusable; internal."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class Pool(ABC):
    """Lends each connection to one caller at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Link] = deque()
        self._lent: set[Link] = set()
        self._closed = False
        self._availability = Availability(address.shown)

    @abstractmethod
    async def _connect(self) -> Link:
        """Open a connection; raises the driver's errors."""

    @abstractmethod
    async def _enter(self) -> None:
        """Wait for a free slot; raises TimeoutError."""

    @abstractmethod
    def _leave(self) -> None:
        """Release the slot."""

    async def use(self, work: Work[Result]) -> Result:
        """Run `work` with a borrowed connection.

        Raises the driver's errors, LostLinkError if the connection broke meanwhile, StoreUnavailableError if the
        server did not answer in time, and ClosedError.
        """
        link = await self._take()
        self._lent.add(link)
        try:
            if link.asked >= link.replan_at:
                link.replan_at = 2 * link.asked
                await link.each([(_replan, {})])
            result = await work(link)
        except OverdueError as error:
            link.close()
            self.forget()
            self._availability.lost(error)
            raise overdue(self._address.shown, self._address.timeout) from error
        except psycopg.Error as error:
            if state_of(error) in STALE:
                link.close()
            if link.status == TransactionStatus.UNKNOWN:
                if self._closed:
                    raise self._is_closed() from error
                self.forget()
                if state_of(error) not in STALE:
                    self._availability.lost(error)
                raise LostLinkError(error) from error
            raise
        else:
            self._availability.answered()
            return result
        finally:
            self._lent.discard(link)
            await self._give_back(link)

    def forget(self) -> None:
        """Close idle connections: the server has changed."""
        while (link := self._pop()) is not None:
            link.close()

    def close(self) -> None:
        """Close idle connections; the others are closed when they are returned."""
        self._closed = True
        self.forget()

    async def settle(self) -> None:
        """Wait briefly for running calls after `close`, and interrupt the rest."""
        until = time.monotonic() + GRACE
        while self._lent and time.monotonic() < until:
            await pause()
        for link in list(self._lent):
            link.abort()

    def _is_closed(self) -> ClosedError:
        return ClosedError(f"{self._address.shown} is closed; a write under way may or may not have been done")

    async def _take(self) -> Link:
        if self._closed:
            raise self._is_closed()
        try:
            await self._enter()
        except TimeoutError:
            raise StoreBusyError(
                f"{self._address.shown}: all {self._address.pool_max} connections were in use for "
                f"{self._address.timeout:g} seconds; the option pool_max allows more"
            ) from None
        try:
            if self._closed:
                raise self._is_closed()
            while (link := self._pop()) is not None:
                # Better now than after sending a write, whose outcome would be unknown.
                if link.is_alive():
                    return link
                link.close()
            return await self._connect()
        except psycopg.Error as error:
            self._leave()
            if meaning(error)[0] is StoreUnavailableError:
                self._availability.lost(error)
            raise
        except BaseException:
            self._leave()
            raise

    async def _give_back(self, link: Link) -> None:
        try:
            if link.status in _OPEN:
                await link.roll_back()
        except psycopg.Error:
            link.close()
        except BaseException:
            link.close()
            raise
        finally:
            if link.status == TransactionStatus.IDLE and not self._closed:
                link.since = time.monotonic()
                self._idle.append(link)
                self._trim(link.since - IDLE_SECONDS)
            else:
                link.close()
            self._leave()
            if self._closed:
                self.forget()

    def _pop(self) -> Link | None:
        """Return the most recently returned connection; None if there is none."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _trim(self, before: float) -> None:
        """Close connections that have been idle for long."""
        while len(self._idle) > self._address.pool_min and self._idle[0].since < before:
            try:
                self._idle.popleft().close()
            except IndexError:
                return


class ThreadPool(Pool):
    """Connections for callers outside event loops, in any thread."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        # A queue of permits, because the standard library's semaphore is slower than the rest of this.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(address.pool_max):
            self._room.put(None)

    async def _connect(self) -> Link:
        return ThreadLink.open(self._address)

    async def _enter(self) -> None:
        try:
            self._room.get(timeout=self._address.timeout)
        except Empty:
            raise TimeoutError from None

    def _leave(self) -> None:
        self._room.put(None)


class LoopPool(Pool):
    """Connections for callers on one event loop."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        import asyncio

        self._asyncio = asyncio
        self._room = asyncio.Semaphore(address.pool_max)

    async def _connect(self) -> Link:
        return await LoopLink.open(self._address)

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
        else:
            async with self._asyncio.timeout(self._address.timeout):
                await self._room.acquire()

    def _leave(self) -> None:
        self._room.release()
