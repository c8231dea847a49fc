"""The PostgreSQL store."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from ...errors import LimitError, StoreBusyError, StoreError, StoreUnavailableError, UnreadableStoreError
from ...event_loop import off_loop
from ...records import Record, Ref, ScopePath, StreamName, now
from ...store.codec import from_columns
from ...store.planning import Plan, needs_of, plan_writes
from ...store.protocol import Capability
from ...store.query import Outcome, Write
from ...store.retry import write_once
from ...store.stream_state import NeedsMoreError
from ..sql.reading import Connection as Reads
from ..sql.reading import SqlReads
from ..sql.reading import Work as ReadWork
from ..sql.rows import LoadedRows
from ..write_queue import Result as WriteResult
from ..write_queue import WriteQueue, scope_of
from .client import Connection, LostConnectionError, Pool, PostgresClient
from .errors import RETRYABLE, explain, state_of
from .nearest import PostgresIndex
from .statements import PostgresStatements
from .transaction import Append, LostRaceError, apply, load

if TYPE_CHECKING:
    from .opening import Options

Result = TypeVar("Result")

log: logging.Logger = logging.getLogger("mnemic.store")

LANES = 8
"""Maximum number of concurrent transactions."""
ATTEMPTS = 10
"""Maximum number of attempts on conflicts."""
LARGE_WRITE = 1000
"""Number of operations from which planning runs in a thread, so that it does not block the event loop."""
MAX_PLANNED = 10_000
"""How many streams are remembered whose appends have to be planned."""


class PostgresStore(SqlReads):
    """Stores records in a database."""

    _sql: PostgresStatements
    index: PostgresIndex

    def __init__(self, options: Options, statements: PostgresStatements, clock: Callable[[], datetime] = now) -> None:
        super().__init__(statements, clock)
        self._options = options
        self._client = PostgresClient(options)
        self._queue = WriteQueue(self._commit, lambda write: hash(scope_of(write)) % LANES)
        self._planned: dict[StreamName, None] = {}
        """Streams whose last append replaced or evicted a record, as the next one will."""

    async def write(self, write: Write) -> list[Outcome]:
        return await write_once(self, write, self._queue.write)

    async def revision(self) -> str | None:
        """Return the database's revision; None if it has no revision table."""
        try:
            rows = await self._read(lambda connection: connection.all(self._sql.revision, {}))
        except UnreadableStoreError:
            return None
        return str(rows[0][0]) if rows else None

    async def find_vector_index(self) -> None:
        """Use the database's own index if it has pgvector, or can install it."""
        sql, url = self._sql, self._options.url
        found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if found and found[0][0] is None:
            try:
                await self._client.use(lambda connection: connection.all(sql.add_vectors, {}))
            except StoreError as error:
                log.info("%s: pgvector is there but may not be installed: %s", url, error)
            found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if not found or found[0][0] is None:
            log.info("%s has no pgvector: recall compares words and vectors in memory, however large a scope is", url)
            return
        self.index = PostgresIndex(self._client, self._moment, found[0][0], self._options.recall)
        self.capabilities: frozenset[Capability] = self.capabilities | {Capability.NEAREST}

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, work: ReadWork[Result]) -> Result:
        return await self._client.use(work, tries=2)

    async def _find(self, connection: Reads, asked: dict[tuple[ScopePath, str], dict[str, None]]) -> dict[Ref, Record]:
        """Read keys of any streams in one statement, to save round trips."""
        refs = [Ref(scope, kind, key) for (scope, kind), keys in asked.items() for key in keys]
        if len(refs) == 1:
            return await super()._find(connection, asked)
        values: dict[str, Any] = {"scopes": [ref.scope.path for ref in refs], "now": self._moment()}
        values |= {"kinds": [ref.kind for ref in refs], "keys": [ref.key for ref in refs]}
        found: dict[Ref, Record] = {}
        for row in await connection.all(self._sql.find_all, values):
            ref = refs[row[0] - 1]
            found[ref] = from_columns(ref.scope, ref.kind, row[1:])
        return found

    async def _commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Run writes in one transaction; return the outcomes of each, or its error."""

        async def commit(pool: Pool) -> list[WriteResult]:
            results = await self._settle(pool, writes)
            if len(results) == 1 and isinstance(results[0], StoreUnavailableError):
                raise results[0]  # so that the client logs it
            return results

        return await self._client.run(commit)

    async def _settle(self, pool: Pool, writes: Sequence[Write], *, lost: bool = False) -> list[WriteResult]:
        try:
            return await self._transact(pool, writes, lost=lost)
        except Exception as error:
            return [explain(error, self._options.url)] * len(writes)

    async def _transact(self, pool: Pool, writes: Sequence[Write], *, lost: bool) -> list[WriteResult]:
        """Run writes in one transaction, again on conflicts, and once more if a connection was lost."""
        url = self._options.url
        append = Append.of(writes[0]) if len(writes) == 1 else None
        for number in range(1, ATTEMPTS + 1):
            try:
                return await pool.use(partial(self._attempt, writes, append))
            except LostRaceError:
                log.debug("%s: retry %d (another writer was faster)", url, number)
            except LostConnectionError as error:
                if error.committing:
                    return await self._after_loss(pool, writes, error, lost=lost)
                if lost:
                    raise
                lost = True
            except (psycopg.Error, UnreadableStoreError) as error:
                if state_of(error) in RETRYABLE and number < ATTEMPTS:
                    log.debug("%s: retry %d (%s)", url, number, state_of(error))
                    await asyncio.sleep(random.random() * 0.005 * 2**number)  # noqa: S311
                elif len(writes) > 1:
                    break
                else:
                    raise
        if len(writes) == 1:
            raise StoreBusyError(f"{url}: concurrent writers won every attempt, {ATTEMPTS} times")
        # One of them is invalid, or meets a damaged record; the others are retried without it.
        return [result for write in writes for result in await self._settle(pool, [write])]

    async def _after_loss(
        self, pool: Pool, writes: Sequence[Write], error: LostConnectionError, *, lost: bool
    ) -> list[WriteResult]:
        """Send writes with an id again, once; the others may have been done or not."""
        again = [] if lost else [write for write in writes if write.id is not None]
        results = iter(await self._settle(pool, again, lost=True) if again else ())
        uncertain = StoreUnavailableError(
            f"{self._options.url}: the connection broke before the server had answered, so the write may "
            f"have been done or not; a write with an id can be sent again ({error})"
        )
        return [next(results) if again and write.id is not None else uncertain for write in writes]

    async def _attempt(
        self, writes: Sequence[Write], append: Append | None, connection: Connection
    ) -> list[WriteResult]:
        sql = self._sql
        if append is not None and append.stream not in self._planned:
            outcomes = await append.run(connection, sql, self._moment())
            if outcomes is not None:
                return [outcomes]
        begin = [(sql.begin, {}), (sql.set_timeouts, {"wait": f"{self._options.lock_timeout:.3f}s"})]
        loaded = await load(connection, sql, needs_of(writes), begin)
        while True:
            try:
                plan = await self._plan(loaded, writes)
                break
            except NeedsMoreError as error:
                loaded.take(await load(connection, sql, error.needs))
        if plan.changes:
            await apply(connection, sql, plan.changes, loaded.ids)
        if append is not None:
            self._learn(append.stream, plan)
        return plan.results

    async def _plan(self, loaded: LoadedRows, writes: Sequence[Write]) -> Plan:
        if sum(len(write.ops) for write in writes) < LARGE_WRITE:
            return plan_writes(loaded, writes, self._moment())
        return await off_loop(lambda: plan_writes(loaded, writes, self._moment()))

    def _learn(self, stream: StreamName, plan: Plan) -> None:
        """Remember whether the next append to a stream has to be planned, too."""
        if any(change.replaced or change.removed for change in plan.changes) or isinstance(plan.results[0], LimitError):
            if len(self._planned) < MAX_PLANNED:
                self._planned[stream] = None
        else:
            self._planned.pop(stream, None)
