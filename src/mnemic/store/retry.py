"""Repeated writes: retries after a lost race, and ids by which a write is not done twice.

The id of a write is stored as a record of the kind `ONCE_KIND`, in the same transaction as the write, with a digest of
the write and its outcomes. Every back-end therefore stores, finds, expires and erases it like any record.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import json

from ..checks import MICROSECOND
from ..errors import ConflictError, MnemicError, StoreBusyError
from ..event_loop import pause
from ..records import ONCE_KIND, Record, Ref, ScopePath
from ..telemetry.calls import count
from .protocol import Store
from .query import ONCE_LASTS, Op, Outcome, Write, place_of

log: logging.Logger = logging.getLogger("mnemic.store")

ATTEMPTS = 100
"""Maximum number of attempts; each failed one means that another write succeeded."""
AT_ONCE = 3
"""How many attempts run without a pause."""
LONGEST_PAUSE = 0.02
"""The longest pause between two attempts, in seconds."""

Result = TypeVar("Result")


async def retry_conflicts(
    step: Callable[[], Awaitable[Result]], what: str, *, retry_on: Callable[[ConflictError], bool] = lambda error: True
) -> Result:
    """Run `step` and return its result; run it again while it raises ConflictError.

    `retry_on` tells which conflicts to retry. Raises the conflict if it is not one of these, and ConflictError
    naming `what` and the number of attempts if every attempt failed.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await step()
        except ConflictError as error:
            if not retry_on(error):
                raise
            if attempt == ATTEMPTS:
                raise ConflictError(
                    f"{what}: gave up after {ATTEMPTS} attempts, since others wrote first each time; "
                    f"the last conflict: {error}",
                    key=error.key,
                    current=error.current,
                    retry=True,
                ) from error
        count("retries", "conflict")
        log.debug("retry %d of %s", attempt, getattr(step, "__qualname__", "a write").partition(".<locals>")[0])
        await pause_after(attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def pause_after(attempt: int) -> None:
    """Wait a moment after a failed attempt, unless it is one of the first."""
    if attempt >= AT_ONCE:
        import random

        await pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311


async def write_each(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    """Apply all changes of a batch; skip those whose records have changed in the meantime.

    A change is one or more operations with version checks in one scope; those of a scope share a write. Returns, for
    each, whether it was applied.
    """
    by_scope: dict[ScopePath, list[int]] = {}
    for n, ops in enumerate(batch):
        by_scope.setdefault(place_of(ops[0])[0], []).append(n)
    applied = [False] * len(batch)
    for numbers in by_scope.values():
        for n, done in zip(numbers, await _write_some(store, [batch[n] for n in numbers]), strict=True):
            applied[n] = done
    return applied


async def _write_some(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    try:
        await store.write(Write(tuple(op for ops in batch for op in ops)))
    except ConflictError:
        if len(batch) == 1:
            return [False]
        middle = len(batch) // 2
        return await _write_some(store, batch[:middle]) + await _write_some(store, batch[middle:])
    return [True] * len(batch)


# ---------------------------------------------------------------- ids of writes

ONCE_MICROSECONDS = ONCE_LASTS // MICROSECOND
ONCE_ATTEMPTS = 5
"""How often to retry a write whose id record disappears between the conflict and the read."""

_decode = json.Decoder(list[Outcome]).decode
_encode = json.Encoder().encode


class DoneBeforeError(MnemicError):
    """The id of the write exists already; internal."""


def once_ref(write: Write) -> Ref | None:
    """Return the ref of the id record of a write; None if the write has no id."""
    if write.id is None or not write.ops:
        return None
    return Ref(place_of(write.ops[0])[0], ONCE_KIND, write.id)


def once_record(write: Write, outcomes: Sequence[Outcome], moment: datetime) -> Record:
    """Return the id record of a write."""
    ref = once_ref(write)
    assert ref is not None
    data: Any = [write.digest, _encode(outcomes).decode()]
    return Record(ref.scope, ref.kind, ref.key, data=data, expires=moment + ONCE_LASTS)


def recorded_outcomes(recorded: Record, write: Write) -> list[Outcome]:
    """Return the recorded outcomes; raises ConflictError if the write differs from the recorded one."""
    data: Any = recorded.data
    digest, outcomes = data
    if digest != write.digest:
        raise ConflictError(
            f"the id {write.id!r} was already used for a different write in scope {recorded.scope.path!r}; "
            "nothing was stored",
            key=write.id,
            current=recorded.version,
        )
    return _decode(outcomes)


async def write_once(store: Store, write: Write, do: Callable[[Write], Awaitable[list[Outcome]]]) -> list[Outcome]:
    """Run a write; if its id was recorded before, return the recorded outcomes.

    Raises ConflictError if a different write has the same id.
    """
    ref = once_ref(write)
    if ref is None:
        return await do(write)
    for _ in range(ONCE_ATTEMPTS):
        try:
            return await do(write)
        except DoneBeforeError:
            (recorded,) = await store.read([ref])
        if recorded is not None:
            return recorded_outcomes(recorded, write)
    raise StoreBusyError(f"write {write.id!r} was recorded and erased {ONCE_ATTEMPTS} times while it was tried")
