"""Connections to the server: for the caller's thread, and for an event loop.

Both kinds are spoken to with `async`; that of a thread never waits for a loop.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import psycopg
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import text

from ....driving import step
from ..statements import Parameters, Prepared
from .address import Address
from .flavour import FLAVOUR
from .pipelines import Pipeline

Asked = Sequence[tuple[Prepared, Parameters]]

FEW = 50
"""Up to how many rows a cursor is used again, which saves making one; it holds them until then."""
_roll_back = Prepared(text("ROLLBACK"), FLAVOUR.dialect)
"""Not by the driver's own, after which it lets the server forget all statements that it keeps."""
PREPARE_AFTER = 3
"""How often a statement is run before the server keeps it."""


class Link(Protocol):
    """A connection that is lent to one caller."""

    ahead: bool
    since: float
    """When it was last given back."""
    asked: int
    """How many statements it has run."""
    replan_at: int
    """After how many of them they are to be planned anew."""

    @property
    def status(self) -> int:
        """What the connection is in the middle of, a TransactionStatus; UNKNOWN if it is lost."""
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
        """End the transaction."""
        ...

    def is_alive(self) -> bool:
        """Tell, of a connection that lies idle, whether the server has not ended it; sends nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class ThreadLink:
    """A connection for callers outside an event loop."""

    ahead = True

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self._cursor = raw.cursor()
        self._pipeline = Pipeline(raw)
        self.since = 0.0
        self.asked = 0
        self.replan_at = 100

    @classmethod
    def open(cls, address: Address) -> ThreadLink:
        """Connect; raises what the driver raises."""
        raw = psycopg.Connection.connect(
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
            prepare_threshold=PREPARE_AFTER if address.prepare else None,
            **address.parameters,
        )
        raw.adapters.register_dumper(int, Int8Dumper)  # or else each size of a number is another statement
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


class LoopLink:
    """A connection for callers on one event loop."""

    ahead = True

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw
        self._cursor = raw.cursor()
        self._pipeline = Pipeline(raw)
        self.since = 0.0
        self.asked = 0
        self.replan_at = 100

    @classmethod
    async def open(cls, address: Address) -> LoopLink:
        """Connect; raises what the driver raises."""
        raw = await psycopg.AsyncConnection.connect(
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
            prepare_threshold=PREPARE_AFTER if address.prepare else None,
            **address.parameters,
        )
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


def _is_silent(socket: int) -> bool:
    """Tell whether a socket has nothing to read; a server that was not asked speaks only to say goodbye."""
    if not hasattr(select, "poll"):
        return not select.select([socket], [], [], 0)[0]
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return not poll.poll(0)


def _prepare(statement: Prepared) -> bool | None:
    return None if statement.keep_plan else False
