"""Commits writes: appends in one round trip, others planned, all retried on conflicts."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
from msgspec import UNSET, Struct

from ...checks import MICROSECOND, from_microseconds
from ...errors import LimitError, StoreBusyError, StoreUnavailableError
from ...event_loop import off_loop, pause
from ...store.planning import Needs, NeedsMoreError, StreamName, plan_writes
from ...store.query import Expect, Limit, Outcome, Put, Touch, Write
from ..sql.rows import LoadedRows, to_row
from .address import Address
from .errors import RETRYABLE, STALE, explain, state_of
from .lanes import Pending
from .links import Link
from .pools import LostLinkError, Pool
from .statements import AppendShape, PostgresStatements
from .writing import Flush, LostRaceError, load

TRIES = 10
"""Maximum number of attempts on conflicts."""
MUCH = 1000
"""Number of operations from which planning runs in a thread, if there is an event loop."""

MOST_REMEMBERED = 10_000
"""How many streams are remembered as overwritten, and as full."""

Result = TypeVar("Result")

log: logging.Logger = logging.getLogger("mnemic.store")


class Append(Struct, frozen=True):
    """The parts of a write that may be a plain append of one record."""

    put: Put
    expect: Expect | None = None
    touch: Touch | None = None
    limit: Limit | None = None


class Committer:
    """Runs writes in transactions."""

    def __init__(self, sql: PostgresStatements, address: Address, moment: Callable[[], int]) -> None:
        self._sql = sql
        self._url = address.shown
        self._patience = f"{address.lock_timeout:.3f}s"
        self._moment = moment
        self._overwritten: dict[StreamName, None] = {}
        """Streams in which a put without a version replaced a record: the next will, too."""
        self._full: dict[StreamName, None] = {}
        """Streams in which a limited append had to evict: the next will, too."""

    async def commit(self, pool: Pool, batch: list[Pending]) -> None:
        """Run writes in one transaction, and settle each."""
        try:
            await self._commit(pool, batch)
        except Exception as error:
            for pending in batch:
                if not pending.done:
                    pending.settle(explain(error, self._url))

    async def _commit(self, pool: Pool, batch: list[Pending]) -> None:
        lost = False
        for number in range(TRIES):
            ops = appending(batch[0].write) if len(batch) == 1 and not number else None
            in_vain = ops is not None and self._in_vain(ops)
            attempt = _Attempt(self._sql, batch, self._moment, self._patience, None if in_vain else ops)
            try:
                await pool.use(attempt.run)
                if ops is not None:
                    self._learn(ops, attempt)
                return
            except LostRaceError:
                log.debug("%s: retry %d (another writer was faster)", self._url, number + 1)
            except LostLinkError as error:
                batch = self._after_loss(batch, attempt, error)
                if lost or not batch:
                    raise error.error from None
                lost = True
            except psycopg.Error as error:
                if state_of(error) in RETRYABLE and number < TRIES - 1:
                    log.debug("%s: retry %d (%s)", self._url, number + 1, state_of(error))
                    await pause(random.random() * 0.005 * 2**number)  # noqa: S311
                elif len(batch) > 1:
                    break
                else:
                    raise
        if len(batch) == 1:
            raise StoreBusyError(f"{self._url}: concurrent writers won every attempt, {TRIES} times")
        # One of them is invalid; the others are retried without it.
        for pending in batch:
            await self.commit(pool, [pending])

    def _in_vain(self, ops: Append) -> bool:
        """Return whether a write that looks like an append is known to be more."""
        stream = _stream(ops.put)
        overwrites = ops.put.if_version is None and stream in self._overwritten
        return overwrites or (ops.limit is not None and stream in self._full)

    def _learn(self, ops: Append, attempt: _Attempt) -> None:
        """Remember what the next append to a stream will encounter."""
        stream = _stream(ops.put)
        if attempt.overwrote and len(self._overwritten) < MOST_REMEMBERED:
            self._overwritten[stream] = None
        if attempt.evicted and len(self._full) < MOST_REMEMBERED:
            self._full[stream] = None
        elif ops.limit is not None and not attempt.evicted:
            self._full.pop(stream, None)

    def _after_loss(self, batch: list[Pending], attempt: _Attempt, error: LostLinkError) -> list[Pending]:
        """Return the writes that can be sent again: nothing was committed, or their ids would be found."""
        if not attempt.committing or state_of(error.error) in STALE:
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
    """One attempt to run writes."""

    def __init__(
        self,
        sql: PostgresStatements,
        batch: list[Pending],
        moment: Callable[[], int],
        patience: str,
        ops: Append | None,
    ) -> None:
        """`ops` are the parts of a single write that may be a plain append."""
        self.sql = sql
        self.batch = batch
        self.moment = moment
        self.patience = patience
        self.ops = ops
        self.overwrote = False
        """Whether a possible append replaced a record."""
        self.evicted = False
        """Whether a limit evicted something, or could not be met."""
        self.committing = False
        """Whether the server may have committed."""

    async def run(self, link: Link) -> None:
        """Run the writes, and settle each."""
        if self.ops is not None and await self._append(link, self.batch[0], self.ops):
            return
        writes = [pending.write for pending in self.batch]
        loaded = LoadedRows()
        await load(link, self.sql, Needs.of(writes), loaded, self.patience)
        while True:
            try:
                plan = await self._aside(partial(plan_writes, loaded, writes, self.moment()))
                break
            except NeedsMoreError as error:
                await load(link, self.sql, error.needs, loaded)
        if plan.changes:
            flush = Flush(self.sql, plan.changes, loaded.ids)
            await flush.claim(link)
            await self._aside(flush.gather)
            await flush.write(link, self._send)
        self.overwrote = self.ops is not None and any(change.replaced for change in plan.changes)
        gone = any(change.removed or change.cleared for change in plan.changes)
        self.evicted = gone or any(isinstance(result, LimitError) for result in plan.results)
        for pending, result in zip(self.batch, plan.results, strict=True):
            pending.settle(result)

    async def _aside(self, work: Callable[[], Result]) -> Result:
        """Run `work`; in a thread if it is large and would block an event loop."""
        size = sum(len(pending.write.ops) for pending in self.batch)
        return await off_loop(work) if size > MUCH else work()

    async def _append(self, link: Link, pending: Pending, ops: Append) -> bool:
        """Try to append one record in one round trip; return whether that was all."""
        record, moment = ops.put.record, self.moment()
        expect, touch, limit = ops.expect, ops.touch, ops.limit
        now = from_microseconds(moment)
        values = {**to_row(record, 0), "scope": record.scope.path, "kind": record.kind}
        values["moment"] = values["updated"] = moment
        if record.created is None:
            values["created"] = moment
        if record.labels:
            values["label_names"], values["label_values"] = list(record.labels), list(record.labels.values())
        if record.derived:
            values["derived_names"] = list(record.derived)
            values["derived_values"] = list(record.derived.values())
        if touch is not None:
            values["ttl"] = None if touch.ttl is None else touch.ttl // MICROSECOND
            values["settings"] = touch.settings
        if expect is not None:
            values["expected_settings"] = expect.settings
        if limit is not None:
            values["max_count"], values["max_weight"] = limit.max_count, limit.max_weight
        shape = AppendShape(
            bool(record.labels),
            bool(record.derived),
            touch is not None,
            expect is not None,
            limit is not None and limit.max_count is not None,
            limit is not None and limit.max_weight is not None,
        )
        self._send()
        rows = await link.all(self.sql.append(shape), values)
        self.committing = False
        if not rows:
            return False
        seq, version, count, weight = rows[0]
        outcomes = [Outcome(seq, version, record.created or now, now, key=record.key)]
        if expect is not None:
            outcomes.append(Outcome(version=version))
        if touch is not None:
            outcomes.append(Outcome())
        if limit is not None:
            outcomes.append(Outcome(count=count, weight=weight))
        pending.settle(outcomes)
        return True

    def _send(self) -> None:
        self.committing = True


def appending(write: Write) -> Append | None:
    """Return the parts of a write that may be a plain append of one record."""
    if write.id is not None or not 1 <= len(write.ops) <= 4:
        return None
    put, *rest = write.ops
    if not isinstance(put, Put) or put.if_version:
        return None
    expect: Expect | None = None
    touch: Touch | None = None
    limit: Limit | None = None
    for op in rest:
        if isinstance(op, Expect) and rest[0] is op and _of_settings(op):
            expect = op
        elif isinstance(op, Touch) and touch is None and limit is None:
            touch = op
        elif isinstance(op, Limit) and limit is None:
            limit = op
        else:
            return None
        if op.scope != put.record.scope or op.kind != put.record.kind:
            return None
    return Append(put, expect, touch, limit)


def _of_settings(op: Expect) -> bool:
    return op.settings is not UNSET and op.key is None and op.version is None


def _stream(op: Any) -> StreamName:
    return op.record.scope.path, op.record.kind
