"""Connections to the server: for threads, and for an event loop.

Both have an `async` interface; the one for threads never waits for a loop.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import text

from ...event_loop import step
from ..calls import TIMEOUT
from ..sql.statements import Parameters, Prepared
from .address import Address
from .flavor import FLAVOR
from .pipelines import Pipeline

Asked = Sequence[tuple[Prepared, Parameters]]

FEW = 50
"""Up to how many rows a cursor is reused; it holds them until then."""
_roll_back = Prepared(text("ROLLBACK"), FLAVOR.dialect)
"""Not the driver's own rollback, which deallocates all prepared statements."""
PREPARE_AFTER = 3
"""After how many executions a statement is prepared on the server."""


class OverdueError(psycopg.OperationalError):
    """The server did not answer in time."""


Returned = TypeVar("Returned")


def in_time(talk: PQGen[Returned], seconds: float) -> PQGen[Returned]:
    """Drive a generator of the driver, and raise OverdueError after the deadline.

    The driver wakes it ten times a second, even if the server is silent.
    """
    until = time.monotonic() + seconds
    try:
        wait = next(talk)
        while True:
            ready = yield wait
            if time.monotonic() > until:
                talk.close()
                raise OverdueError("the server did not answer in time")
            wait = talk.send(ready)
    except StopIteration as end:
        result: Returned = end.value
        return result


class TimedConnection(psycopg.Connection[Any]):
    """A connection on which nothing waits longer than `seconds` for the server."""

    seconds = TIMEOUT

    def wait(self, gen: PQGen[Returned], *how: Any, **more: Any) -> Returned:
        return super().wait(in_time(gen, self.seconds), *how, **more)


class TimedAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same on an event loop."""

    seconds = TIMEOUT

    async def wait(self, gen: PQGen[Returned], *how: Any, **more: Any) -> Returned:
        return await super().wait(in_time(gen, self.seconds), *how, **more)


class Link(Protocol):
    """A connection borrowed by one caller."""

    ahead: bool
    since: float
    """When it was last returned."""
    asked: int
    """Number of statements that it has run."""
    replan_at: int
    """Number of statements after which plans are discarded."""

    @property
    def status(self) -> int:
        """The connection's TransactionStatus; UNKNOWN if it is lost."""
        ...

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        """Run a statement and return its rows."""
        ...

    async def each(self, asked: Asked) -> list[list[Any]]:
        """Run several statements in one round trip and return the rows of each."""
        ...

    async def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Send rows to a COPY statement."""
        ...

    async def roll_back(self) -> None:
        """Roll back the transaction."""
        ...

    def is_alive(self) -> bool:
        """Return whether an idle connection is still open; sends nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def abort(self) -> None:
        """Interrupt whatever the connection waits for; thread-safe."""
        ...


class ThreadLink:
    """A connection for callers outside an event loop."""

    ahead = True

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self._cursor = raw.cursor()
        self._pipeline = Pipeline(raw)
        self.since: float = 0.0
        self.asked: int = 0
        self.replan_at = 100

    @classmethod
    def open(cls, address: Address) -> ThreadLink:
        """Connect; raises the driver's errors."""
        raw = TimedConnection.connect(
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
            prepare_threshold=PREPARE_AFTER if address.prepare else None,
            **address.parameters,
        )
        raw.seconds = address.timeout
        raw.adapters.register_dumper(int, Int8Dumper)  # otherwise each integer size would be another statement
        return cls(raw)

    @property
    def status(self) -> int:
        return self.raw.pgconn.transaction_status

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        self.asked += 1
        values = statement.arguments(parameters)
        rows = self._cursor.execute(statement.text, values, prepare=_prepare(statement)).fetchall()
        if len(rows) > FEW:
            self._cursor = self.raw.cursor()
        return rows

    async def each(self, asked: Asked) -> list[list[Any]]:
        self.asked += len(asked)
        return self.raw.wait(self._pipeline.talk(asked))

    async def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    async def roll_back(self) -> None:
        await self.each([(_roll_back, {})])

    def is_alive(self) -> bool:
        return _is_silent(self.raw.fileno())

    def close(self) -> None:
        self.raw.close()

    def abort(self) -> None:
        _hang_up(self.raw.pgconn)


class LoopLink:
    """A connection for callers on one event loop."""

    ahead = True

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw
        self._cursor = raw.cursor()
        self._pipeline = Pipeline(raw)
        self.since: float = 0.0
        self.asked: int = 0
        self.replan_at = 100

    @classmethod
    async def open(cls, address: Address) -> LoopLink:
        """Connect; raises the driver's errors."""
        raw = await TimedAsyncConnection.connect(
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
            prepare_threshold=PREPARE_AFTER if address.prepare else None,
            **address.parameters,
        )
        raw.seconds = address.timeout
        raw.adapters.register_dumper(int, Int8Dumper)
        return cls(raw)

    @property
    def status(self) -> int:
        return self.raw.pgconn.transaction_status

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        self.asked += 1
        values = statement.arguments(parameters)
        await self._cursor.execute(statement.text, values, prepare=_prepare(statement))
        rows = await self._cursor.fetchall()
        if len(rows) > FEW:
            self._cursor = self.raw.cursor()
        return rows

    async def each(self, asked: Asked) -> list[list[Any]]:
        self.asked += len(asked)
        return await self.raw.wait(self._pipeline.talk(asked))

    async def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        async with self.raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                await copy.write_row(row)

    async def roll_back(self) -> None:
        await self.each([(_roll_back, {})])

    def is_alive(self) -> bool:
        return _is_silent(self.raw.fileno())

    def close(self) -> None:
        step(self.raw.close())  # which awaits nothing; the loop may be gone already

    def abort(self) -> None:
        _hang_up(self.raw.pgconn)


def _is_silent(file: int) -> bool:
    """Return whether a socket has nothing to read; an idle server sends only a disconnect."""
    if not hasattr(select, "poll"):
        return not select.select([file], [], [], 0)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return not poll.poll(0)


def _hang_up(connection: PGconn) -> None:
    """Shut a connection down, so that a waiting caller gets an error."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)


def _prepare(statement: Prepared) -> bool | None:
    return None if statement.keep_plan else False
