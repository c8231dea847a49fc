"""Bounded retries of read-modify-write steps that lose a race against other writers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import ConflictError
from ..event_loop import pause

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
