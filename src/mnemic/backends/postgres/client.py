"""Client of a PostgreSQL server: a connection pool with deadlines, and several statements in one round trip."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper
from psycopg.waiting import Ready, Wait
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ...errors import StoreBusyError
from ...store.registry import closed_on_error
from ..calls import GRACE, Calls
from ..sql.statements import Parameters, Prepared
from .errors import STALE, explain, state_of
from .row_security import RowSecurity
from .statements import prepared

if TYPE_CHECKING:
    from .opening import PostgresOptions

Result = TypeVar("Result")
Query = tuple[Prepared, Parameters]

IDLE_SECONDS = 600.0
"""How long a connection may be idle before it is closed, beyond the minimum."""
POOL_SHARE = 0.8
"""Share of the timeout that a call waits for a connection, so that the error can say so."""
CONNECT_SHARE = 0.5
"""Share of the timeout for an attempt to connect, so that a call that waits for one has time for another."""
MAX_PREPARED = 200
"""Maximum number of prepared statements per connection; others are sent in full each time."""
MAX_MISSING = 2
"""How often in a row libpq has no result while the server is still answering: it ends each statement's with one."""
REPLAN_AFTER = 100
"""Number of statements after which plans are first discarded; then twice as many, and so on."""

_replan = prepared("DISCARD PLANS", keep_plan=False)
"""Discards plans, because the best plan for small tables is not the best for large ones."""
_StatementKey = tuple[str, tuple[int, ...]]


class LostConnectionError(psycopg.OperationalError):
    """A connection broke during a call, or became unusable.

    If it was `committing`, the server may have committed.
    """

    def __init__(self, error: psycopg.Error, committing: bool) -> None:
        super().__init__(str(error))
        self.sqlstate: str | None = error.sqlstate
        self.committing: bool = committing and state_of(error) not in STALE


class ConnectFailure(NamedTuple):
    """An attempt to connect that began at a time of the event loop, and failed."""

    began: float
    error: psycopg.Error


class PostgresConnection(psycopg.AsyncConnection[Any]):
    """A connection that sends statements together.

    psycopg's own pipelines wait for the socket after each statement, which takes three times as long
    (`benchmarks/pipelines.py`). Here all statements go into one buffer.
    """

    ahead = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.adapters.register_dumper(int, Int8Dumper)  # otherwise each integer size would be another statement
        self._adapt = Transformer(self)
        self._statement_names: dict[_StatementKey, bytes] = {}
        self._statement_numbers = count(1)
        self._sent = 0
        self._replan_at = REPLAN_AFTER
        self.committing: bool = False
        """Whether a statement that commits was sent."""
        self.first: Sequence[Query] = ()
        """Statements that begin each transaction."""

    @classmethod
    async def connect(cls, *args: Any, **options: Any) -> Self:
        """Connect within the option `seconds`; calls the option `failed` with a failure."""
        failed, seconds = options.pop("failed"), options.pop("seconds")
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                return await super().connect(*args, **options)
        except (psycopg.Error, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                error = psycopg.errors.ConnectionTimeout("a new connection took too long")
            failed(ConnectFailure(began, error))
            raise error from None

    async def wait(self, gen: PQGen[Result], *args: Any, **options: Any) -> Result:
        """Run a generator of the driver; on cancellation cancel the statement and close the connection."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=0.1)
        except asyncio.CancelledError:
            # Unlike psycopg's own, this does not wait for ten seconds if the server is silent.
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=GRACE)
            self.pgconn.finish()
            raise

    async def all(self, statement: Prepared, parameters: Parameters) -> list[Any]:
        (rows,) = await self.each([(statement, parameters)])
        return rows

    async def each(self, queries: Sequence[Query]) -> list[list[Any]]:
        self._sent += len(queries)
        if not self.first or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return await self.wait(self._pipelined(queries))
        # What is sent together is one transaction, and BEGIN continues it.
        return (await self.wait(self._pipelined([*self.first, *queries])))[len(self.first) :]

    async def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        async with self.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                await copy.write_row(row)

    async def replan(self) -> None:
        """Discard plans now and then."""
        if self._sent >= self._replan_at:
            self._replan_at = 2 * self._sent
            await self.all(_replan, {})

    def is_alive(self) -> bool:
        """Return whether an idle connection is open: a server sends one nothing but a disconnect."""
        if self.closed:
            return False
        if not hasattr(select, "poll"):
            return not select.select([self.fileno()], [], [], 0)[0]
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def _pipelined(self, queries: Sequence[Query]) -> Generator[Wait, Ready | int, list[list[Any]]]:
        """Send statements and return the rows of each; raises the first error and skips the rest."""
        new: list[_StatementKey] = []
        link = self.pgconn
        link.enter_pipeline_mode()
        try:
            wanted = [is_query for query in queries for is_query in self._send(*query, new)]
            link.pipeline_sync()
            results = yield from self._results(len(wanted))
        except BaseException:
            self._forget(new)
            raise
        finally:
            if link.status == ConnStatus.OK:
                link.exit_pipeline_mode()
        failed = next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
        if failed is not None:
            self._forget(new)
            raise error_from_result(failed, encoding=self.info.encoding)
        return [self._rows(result) for result, is_query in zip(results, wanted, strict=True) if is_query]

    def _send(self, statement: Prepared, parameters: Parameters, new: list[_StatementKey]) -> Iterator[bool]:
        """Add a statement to the buffer, and prepare it the first time; yield which commands are queries."""
        adapt = self._adapt
        arguments = statement.arguments(parameters)
        values = adapt.dump_sequence(arguments, [PyFormat.AUTO] * len(arguments))
        key = (statement.text, adapt.types or ())
        names = self._statement_names
        name = names.get(key)
        if name is None and statement.keep_plan and self.prepare_threshold is not None and len(names) < MAX_PREPARED:
            name = names[key] = b"mnemic_%d" % next(self._statement_numbers)
            new.append(key)
            self.pgconn.send_prepare(name, statement.text.encode(), adapt.types)
            yield False
        if name is None:
            self.pgconn.send_query_params(statement.text.encode(), values, adapt.types, adapt.formats)
        else:
            self.pgconn.send_query_prepared(name, values, adapt.formats)
        yield True

    def _forget(self, keys: list[_StatementKey]) -> None:
        for key in keys:
            self._statement_names.pop(key, None)

    def _results(self, count: int) -> Generator[Wait, Ready | int, list[PGresult]]:
        """Return the result of each command, and read until the server is ready again."""
        link = self.pgconn
        while link.flush():
            # The server may wait for us to read before it reads on.
            if (yield Wait.RW) & Ready.R:
                link.consume_input()
        results: list[PGresult] = []
        missing = 0
        while missing <= MAX_MISSING and len(results) <= count:
            while link.is_busy():
                yield Wait.R
                link.consume_input()
            result = link.get_result()
            missing = missing + 1 if result is None else 0
            if result is None:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC and len(results) == count:
                return results
            results.append(result)
        message = link.get_error_message()
        link.finish()  # whatever comes next would be taken for the answer to something else
        raise psycopg.OperationalError(f"the server sent an unexpected answer: {message}")

    def _rows(self, result: PGresult) -> list[Any]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._adapt.set_pgresult(result)
        rows = self._adapt.load_rows(0, result.ntuples, tuple)
        self._adapt.set_pgresult(None)
        return rows


class Pool:
    """psycopg's connection pool on one event loop; reports at once that the server cannot be reached."""

    def __init__(self, options: PostgresOptions, row_security: RowSecurity) -> None:
        self._options = options
        self._row_security = row_security
        self._in_use = 0
        self._waiting: dict[asyncio.Task[Any], ConnectFailure | None] = {}
        """Tasks that wait for a connection, and why they were interrupted."""
        self._pool = AsyncConnectionPool(
            connection_class=PostgresConnection,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 1 if options.prepare else None,
                "failed": self._connecting_failed,
                "seconds": CONNECT_SHARE * options.timeout,
                **options.parameters,
            },
            min_size=options.pool_min,
            max_size=options.pool_max,
            max_idle=IDLE_SECONDS,
            timeout=POOL_SHARE * options.timeout,
            reconnect_timeout=0,
            name="mnemic",
            open=False,
        )

    async def open(self) -> Pool:
        """Connect; raises the driver's errors."""
        async with closed_on_error(self):
            await self._unless_refused(lambda: self._pool.open(wait=True, timeout=self._pool.timeout))
        return self

    async def close(self) -> None:
        await self._pool.close(timeout=GRACE)

    async def use(self, work: Callable[[PostgresConnection], Awaitable[Result]]) -> Result:
        """Run `work` with a connection, and roll back a transaction that it has not committed.

        Raises the driver's errors, LostConnectionError if the connection broke meanwhile, and StoreBusyError.
        """
        connection = await self._unless_refused(self._take)
        connection.committing = False
        security = self._row_security
        connection.first = security.first() if security.in_force else ()
        self._in_use += 1
        try:
            await connection.replan()
            return await work(connection)
        except asyncio.CancelledError:
            await connection.close()  # a rollback might take too long
            raise
        except psycopg.Error as error:
            if state_of(error) in STALE:
                await connection.close()
            if connection.closed:
                # The other connections are probably lost or stale, too.
                await self._pool.drain()
                raise LostConnectionError(error, connection.committing) from error
            raise
        finally:
            if connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                with suppress(psycopg.Error):
                    await connection.rollback()
            self._in_use -= 1
            await self._pool.putconn(connection)

    async def _take(self) -> PostgresConnection:
        # Better now than after sending a write, whose outcome would be unknown.
        while not (connection := await self._pool.getconn()).is_alive():
            await connection.close()
            await self._pool.putconn(connection)
        return connection

    async def _unless_refused(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Wait for a connection; raises the error of an attempt to connect that began meanwhile, if it fails."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            began = task.get_loop().time()
            self._waiting[task] = None
            try:
                return await work()
            except PoolTimeout:
                raise self._late() from None
            except asyncio.CancelledError:
                failure = self._waiting[task]
                if failure is None or task.uncancel():
                    raise
                if failure.began >= began:
                    raise failure.error from None
            finally:
                del self._waiting[task]

    def _late(self) -> Exception:
        if self._in_use < self._options.pool_max:
            return psycopg.errors.ConnectionTimeout("a new connection took too long")
        return StoreBusyError(
            f"{self._options.url}: all {self._options.pool_max} connections were in use for "
            f"{self._pool.timeout:g} seconds; the option pool_max allows more"
        )

    def _connecting_failed(self, failure: ConnectFailure) -> None:
        """Fail the calls that wait for a connection: psycopg's pool would let them wait until their timeout."""
        for task, known in self._waiting.items():
            if known is None:
                self._waiting[task] = failure
                task.cancel()


class PostgresClient:
    """Calls of a PostgreSQL server; maps the driver's errors."""

    def __init__(self, options: PostgresOptions) -> None:
        self.options = options
        self.row_security: RowSecurity = RowSecurity()
        self._calls = Calls(options.url, options.timeout, self._connect, Pool.close)

    async def run(
        self, work: Callable[[Pool], Awaitable[Result]], *, changes: bool = True, deadline: bool = True
    ) -> Result:
        """Run `work`; raises Mnemic's errors, ClosedError after `close`, EventLoopError on another event loop."""

        async def mapped(pool: Pool) -> Result:
            try:
                return await work(pool)
            except psycopg.Error as error:
                raise explain(error, self.options.url) from error

        return await self._calls.run(mapped, changes=changes, deadline=deadline)

    async def use(
        self, work: Callable[[PostgresConnection], Awaitable[Result]], *, tries: int = 1, deadline: bool = True
    ) -> Result:
        """Run `work`, which changes no records, with a connection, again with another one if it was lost."""

        async def attempt(pool: Pool) -> Result:
            for _ in range(tries - 1):
                with suppress(LostConnectionError):
                    return await pool.use(work)
            return await pool.use(work)

        return await self.run(attempt, changes=False, deadline=deadline)

    async def close(self) -> None:
        await self._calls.close()

    async def _connect(self) -> Pool:
        try:
            return await Pool(self.options, self.row_security).open()
        except psycopg.Error as error:
            raise explain(error, self.options.url) from error
