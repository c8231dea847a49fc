"""The SQLite store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from ...event_loop import mind_forks, off_loop, running_loop, step
from ...records import now
from ...store.once import write_once
from ...store.query import Outcome, Write
from .commit import GroupCommit
from .reading import SqlReads, Work
from .sqlite import BEGIN, Connection, SqliteFile
from .statements import Statements
from .threads import Threads
from .writing import SqlTransaction

Result = TypeVar("Result")


class SqlStore(SqlReads):
    """Stores records in a file; runs in the caller's thread, or in threads of its own on an event loop."""

    def __init__(
        self, file: SqliteFile, statements: Statements, threads: Threads, clock: Callable[[], datetime] = now
    ) -> None:
        super().__init__(statements, clock)
        self._file = file
        self._threads = threads
        self._commits = GroupCommit(self._transact)
        mind_forks(self)

    async def write(self, write: Write) -> list[Outcome]:
        if write.id is None:
            return await self._write(write)
        return await write_once(self, write, self._write)

    async def _write(self, write: Write) -> list[Outcome]:
        return await self._threads.commit(self._commits, lambda tx: tx.write(write))

    async def scrub(self) -> None:
        """Make deleted data in the write-ahead log unreadable; raises StoreBusyError."""
        await self._threads.read(self._file.scrub)

    async def close(self) -> None:
        def work() -> None:
            self._threads.close()
            self._file.close()

        await off_loop(work)

    def before_fork(self) -> None:
        """Close the file: SQLite's locks do not survive a fork."""
        self._file.let_go()

    def after_fork(self) -> None:
        """Reset in a child, where other threads are gone and may have left locks held."""
        self._threads = Threads()
        self._commits = GroupCommit(self._transact)

    def _transact(self, work: Callable[[SqlTransaction], None]) -> None:
        """Run `work` in a transaction: durable when this returns, rolled back if it raises."""

        def body(connection: Connection) -> None:
            connection.raw.execute(BEGIN)
            work(SqlTransaction(connection, self._sql, self._moment()))
            connection.raw.execute("COMMIT")

        self._file.use(body)

    async def _read(self, work: Work[Result]) -> Result:
        def lend(connection: Connection) -> Result:
            return step(work(connection.reads))

        if running_loop() is None:
            return self._file.use(lend)
        return await self._threads.read(lambda: self._file.use(lend))
