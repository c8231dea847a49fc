"""How writes are brought to their end: in one trip where that will do, planned where not, again where others
were in the way.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg

from ....checks import from_microseconds
from ....driving import pause
from ....errors import StoreUnavailableError
from ....store.loaded import LoadedGround, Needs, UnknownError
from ....store.query import Outcome, Put
from .errors import RETRYABLE, explain, state_of
from .lanes import Pending
from .links import Link
from .pools import LostLinkError, Pool
from .statements import PostgresStatements
from .writing import Flush, LostRaceError, load

TRIES = 10
"""How often a write is begun when others are in its way."""


class Committer:
    """Does writes in transactions."""

    def __init__(self, sql: PostgresStatements, url: str, moment: Callable[[], int]) -> None:
        self._sql = sql
        self._url = url
        self._moment = moment

    async def commit(self, pool: Pool, batch: list[Pending]) -> None:
        """Do writes in one transaction, and settle each."""
        try:
            await self._commit(pool, batch)
        except Exception as error:
            for pending in batch:
                if not pending.done:
                    pending.settle(explain(error, self._url))

    async def _commit(self, pool: Pool, batch: list[Pending]) -> None:
        lost = False
        for number in range(TRIES):
            attempt = _Attempt(self._sql, batch, self._moment, plain=number == 0)
            try:
                await pool.use(attempt.run)
                return
            except LostRaceError:
                continue
            except LostLinkError as error:
                batch = self._after_loss(batch, attempt, error)
                if lost or not batch:
                    raise error.error from None
                lost = True
            except psycopg.Error as error:
                if state_of(error) in RETRYABLE and number < TRIES - 1:
                    await pause(random.random() * 0.005 * 2**number)  # noqa: S311
                elif len(batch) > 1:
                    break
                else:
                    raise
        # One of them cannot be written; the others are not to blame.
        for pending in batch:
            await self.commit(pool, [pending])

    def _after_loss(self, batch: list[Pending], attempt: _Attempt, error: LostLinkError) -> list[Pending]:
        """Return the writes that may be sent again: nothing was committed, or they would be found done."""
        if not attempt.committing:
            return batch
        for pending in batch:
            if pending.write.id is None:
                pending.settle(
                    StoreUnavailableError(
                        f"{self._url}: the connection broke before the server had answered, so the write may "
                        f"have been done or not; a write with an id can be sent again ({error})"
                    )
                )
        return [pending for pending in batch if not pending.done]


class _Attempt:
    """One attempt to do writes."""

    def __init__(
        self, sql: PostgresStatements, batch: list[Pending], moment: Callable[[], int], *, plain: bool
    ) -> None:
        self.sql = sql
        self.batch = batch
        self.moment = moment
        self.plain = plain
        self.committing = False
        """Whether the server may have committed."""

    async def run(self, link: Link) -> None:
        """Do the writes, and settle each."""
        if self.plain and len(self.batch) == 1 and await self._append(link, self.batch[0]):
            return
        needs = Needs.of(pending.write for pending in self.batch)
        found = await load(link, self.sql, needs, begin=True)
        while True:
            ground = LoadedGround(found, self.moment())
            try:
                ends = [ground.attempt(pending.write, pending.rows) for pending in self.batch]
                break
            except UnknownError as unknown:
                found.take(await load(link, self.sql, unknown.needs, begin=False))
        flush = Flush(self.sql, ground, found)
        if flush:
            await flush.claim(link)
            await flush.write(link, self._send)
        for pending, end in zip(self.batch, ends, strict=True):
            pending.settle(end)

    async def _append(self, link: Link, pending: Pending) -> bool:
        """Try to add one record to the end of its stream; tell whether that was all there was to do."""
        write = pending.write
        if len(write.ops) != 1 or write.id is not None:
            return False
        (op,) = write.ops
        if not isinstance(op, Put) or op.if_version:
            return False
        record, moment = op.record, self.moment()
        now = from_microseconds(moment)
        row = pending.rows[0]
        values = {**row, "scope": record.scope.path, "kind": record.kind, "moment": moment, "updated": moment}
        if row["created"] is None:
            values["created"] = moment
        if record.labels:
            values["label_names"], values["label_values"] = list(record.labels), list(record.labels.values())
        if record.derived:
            values["derived_names"] = list(record.derived)
            values["derived_values"] = list(record.derived.values())
        self._send()
        rows = await link.all(self.sql.append(bool(record.labels), bool(record.derived)), values)
        if rows:
            seq, version = rows[0]
            pending.settle([Outcome(seq, version, record.created or now, now)])
        self.committing = False
        return bool(rows)

    def _send(self) -> None:
        self.committing = True
