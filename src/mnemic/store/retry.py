"""Writes that may lose a race: bounded retries of read-modify-write steps, and batches that skip what has changed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ..errors import ConflictError
from ..event_loop import pause
from ..records import ScopePath
from .protocol import Store
from .query import Op, Write, place_of

log: logging.Logger = logging.getLogger("mnemic.store")

ATTEMPTS = 100
"""Maximum number of attempts; each failed one means that another write succeeded."""
AT_ONCE = 3
"""How many attempts run without a pause."""
LONGEST_PAUSE = 0.02
"""The longest pause between two attempts, in seconds."""

Result = TypeVar("Result")


async def retried(
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
                ) from error
        log.debug("retry %d of %s", attempt, getattr(step, "__qualname__", "a write").partition(".<locals>")[0])
        if attempt >= AT_ONCE:
            import random

            await pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311
    raise AssertionError("unreachable: the last attempt returns or raises")


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
