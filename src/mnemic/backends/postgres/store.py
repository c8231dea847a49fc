"""The PostgreSQL store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from msgspec import Struct

from ...errors import ClosedError, UnreadableStoreError
from ...event_loop import leave_alone, mind_forks, running_loop
from ...records import Record, Ref, ScopePath, now
from ...store.once import write_once
from ...store.protocol import Capability
from ...store.query import Outcome, Write, place_of
from ..calls import elsewhere
from ..sql.reading import Connection, SqlReads
from ..sql.reading import Work as ReadWork
from ..sql.rows import to_record
from .address import Address
from .committing import Committer
from .errors import explain
from .lanes import Lane, LoopLane, Pending, ThreadLane
from .nearest import PostgresIndex
from .pools import LoopPool, LostLinkError, Pool, ThreadPool
from .statements import PostgresStatements

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Result = TypeVar("Result")

log: logging.Logger = logging.getLogger("mnemic.store")

LANES = 8
"""Maximum number of concurrent transactions for callers on an event loop, and for all others."""


class Side(Struct, frozen=True):
    """Connections and lanes for callers on one event loop, or outside of any."""

    pool: Pool
    lanes: list[Lane]


class PostgresStore(SqlReads):
    """Stores records in a database."""

    _sql: PostgresStatements
    index: PostgresIndex

    def __init__(self, address: Address, statements: PostgresStatements, clock: Callable[[], datetime] = now) -> None:
        super().__init__(statements, clock)
        self._address = address
        self._committer = Committer(statements, address, self._moment)
        self._closed = False
        self._begin()
        mind_forks(self)

    async def write(self, write: Write) -> list[Outcome]:
        return await write_once(self, write, self._write)

    async def _write(self, write: Write) -> list[Outcome]:
        side = self._side()
        return await side.lanes[_stream(write) % len(side.lanes)].run(Pending(write))

    async def revision(self) -> str | None:
        """Return the database's revision; None if it has no revision table."""
        try:
            rows = await self._read(lambda connection: connection.all(self._sql.revision, {}))
        except UnreadableStoreError:
            return None
        return str(rows[0][0]) if rows else None

    async def look_for_vectors(self) -> None:
        """Use the database's own index if it has pgvector, or can install it."""
        sql = self._sql
        found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if found and found[0][0] is None:
            try:
                await self._side().pool.use(lambda link: link.each([(sql.add_vectors, {})]))
            except (psycopg.Error, LostLinkError) as error:
                log.info("%s: pgvector is there but may not be installed: %s", self._address.shown, error)
            found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if not found or found[0][0] is None:
            log.info(
                "%s has no pgvector: recall compares words and vectors in memory, however large a scope is",
                self._address.shown,
            )
            return
        self.index = PostgresIndex(
            self._address.shown, self._write_index, self._moment, found[0][0], self._address.large
        )
        self.capabilities: frozenset[Capability] = self.capabilities | {Capability.NEAREST}

    async def _write_index(self, work: Any) -> Any:
        try:
            return await self._side().pool.use(work)
        except LostLinkError as lost:
            raise explain(lost.error, self._address.shown) from lost.error
        except psycopg.Error as error:
            raise explain(error, self._address.shown) from error

    async def close(self) -> None:
        self._closed = True
        own = running_loop()
        sides = [(None, self._outside), *((loop, side) for loop, side in self._inside.items())]
        for _, side in sides:
            side.pool.close()
        for loop, side in sides:
            await side.pool.settle()
            if loop is own:
                for lane in side.lanes:
                    await lane.close()

    def before_fork(self) -> None:
        """Do nothing: connections stay with the parent."""

    def after_fork(self) -> None:
        """Reset in a child, which opens its own connections."""
        leave_alone((self._outside, self._inside))
        self._begin()

    def _begin(self) -> None:
        pool = ThreadPool(self._address)
        self._outside = Side(pool, [ThreadLane(self._commits(pool)) for _ in range(LANES)])
        self._inside: dict[AbstractEventLoop, Side] = {}
        self._lock = threading.Lock()

    def _side(self) -> Side:
        """Return the connections for the caller: for threads, or for the one supported event loop."""
        if self._closed:
            raise ClosedError(f"{self._address.shown} is closed")
        loop = running_loop()
        if loop is None:
            return self._outside
        side = self._inside.get(loop)
        if side is None:
            with self._lock:
                for other in self._inside:
                    raise elsewhere(self._address.shown, other)
                pool = LoopPool(self._address)
                side = Side(pool, [LoopLane(self._commits(pool), loop) for _ in range(LANES)])
                self._inside[loop] = side
        return side

    async def _read(self, work: ReadWork[Result]) -> Result:
        pool = self._side().pool
        try:
            try:
                return await pool.use(work)
            except LostLinkError:
                # The server may have restarted since; reading twice is harmless.
                return await pool.use(work)
        except LostLinkError as lost:
            raise explain(lost.error, self._address.shown) from lost.error
        except psycopg.Error as error:
            raise explain(error, self._address.shown) from error

    async def _find(
        self, connection: Connection, asked: dict[tuple[ScopePath, str], dict[str, None]]
    ) -> dict[Ref, Record]:
        """Read keys of any streams in one statement, to save round trips."""
        refs = [Ref(scope, kind, key) for (scope, kind), keys in asked.items() for key in keys]
        if len(refs) == 1:
            return await super()._find(connection, asked)
        values: dict[str, Any] = {"scopes": [ref.scope.path for ref in refs], "now": self._moment()}
        values |= {"kinds": [ref.kind for ref in refs], "keys": [ref.key for ref in refs]}
        found: dict[Ref, Record] = {}
        for row in await connection.all(self._sql.find_all, values):
            ref = refs[row[0] - 1]
            found[ref] = to_record(ref.scope, ref.kind, row[1:])
        return found

    def _commits(self, pool: Pool) -> Callable[[list[Pending]], Coroutine[Any, Any, None]]:
        return partial(self._committer.commit, pool)


def _stream(write: Write) -> int:
    """Return a number that is the same for all writes that start with the same stream."""
    if not write.ops:
        return 0
    scope, kind, _ = place_of(write.ops[0])
    return hash((scope.path, kind))
