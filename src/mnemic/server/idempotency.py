"""Writes that a client repeats since it got no answer: each is done once."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast
from uuid import uuid4

from ..store.wire import DEADLINE_HEADER, SERVER_HEADER, WRITE_HEADER
from .endpoint import ApiCall
from .problems import RequestError

REMEMBERED_SECONDS = 60.0
REMEMBERED = 10_000
"""How long, and how many, writes are remembered, so that a repetition is not done again."""

_process = uuid4().hex

Result = TypeVar("Result")


def server_stamp() -> str:
    """Return the id of this process, and the time on its clock."""
    return f"{server_id()} {time.monotonic():.3f}"


def server_id() -> str:
    """Return the id of this process."""
    return f"{_process[:16]}{os.getpid():x}"  # a forked process is another one


class RecentWrites:
    """Writes of the last minute, by the random ids that their clients gave them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._forgotten_until = 0.0
        """Until when a write that is not known may have been done, since too many were to be remembered."""

    async def run(self, id: str, work: Callable[[], Coroutine[Any, Any, Result]], first: str | None) -> Result:
        """Return the result of a write, which is done if it is not known.

        A repetition names the process that was `first` asked. Raises RequestError if that one is gone.
        """
        self._forget()
        if id not in self._known:
            if first is not None and (first != server_id() or self._clock() < self._forgotten_until):
                raise RequestError(412, "another process of the server was asked first, and knows what was done")
            # A client that hangs up does not break it off.
            task = asyncio.ensure_future(work())
            task.add_done_callback(_note_error)
            self._known[id] = (self._clock(), task)
        return cast("Result", await asyncio.shield(self._known[id][1]))

    def _forget(self) -> None:
        now = self._clock()
        while self._known:
            since, task = next(iter(self._known.values()))
            if now - since < REMEMBERED_SECONDS:
                if len(self._known) < REMEMBERED:
                    return
                self._forgotten_until = since + REMEMBERED_SECONDS
            if not task.done():
                return
            self._known.popitem(last=False)


RECENT = RecentWrites()


async def done_once(call: ApiCall, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return the result of a change; one that its client repeats, under the same random id, is not done again.

    Raises RequestError if nobody waits for it any more, or if it is not known here whether it was done.
    """
    _check_deadline(call)
    headers = call.request.headers
    if (id := headers.get(WRITE_HEADER)) is None:
        return await work()
    return await RECENT.run(f"{call.access.key}\0{call.access.scope.path}\0{id}", work, headers.get(SERVER_HEADER))


def _note_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # raised to whoever waits; nobody may


def _check_deadline(call: ApiCall) -> None:
    """Refuse a write for which its client no longer waits, since it may have sent others meanwhile."""
    process, _, until = call.request.headers.get(DEADLINE_HEADER, "").partition(" ")
    if process == server_id() and until.replace(".", "", 1).isdecimal() and time.monotonic() > float(until):
        raise RequestError(408, "the deadline of the write passed before it began; nothing was done")
