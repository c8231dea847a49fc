"""Bounded retries of read-change-write steps that lose a race against other writers."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..driving import pause
from ..errors import ConflictError

ATTEMPTS = 100
"""How often a step is tried before it gives up; each time, someone else's write got through."""
AT_ONCE = 3
"""How many attempts follow each other without a pause."""
LONGEST_PAUSE = 0.02
"""The longest pause between two attempts, in seconds."""

Result = TypeVar("Result")


async def retried(
    step: Callable[[], Awaitable[Result]],
    what: str,
    *,
    retry_on: Callable[[ConflictError], bool] = lambda error: True,
) -> Result:
    """Return what `step` returns, run again from the start while it raises ConflictError.

    `retry_on` tells which conflicts are worth another attempt. Raises the conflict if it is not, and
    ConflictError naming `what` and the number of attempts if others were faster every time.
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
        if attempt >= AT_ONCE:
            await pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311
    raise AssertionError("unreachable: the last attempt returns or raises")
