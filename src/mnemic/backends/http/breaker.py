"""A circuit breaker: after several failures in a row, calls fail at once for a while, and then one of them tries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import StoreUnavailableError

COOLDOWN = 5.0
"""How many seconds calls fail at once, before one tries whether the server answers again."""


class Breaker:
    """Counts failures in a row; for the calls of one event loop."""

    def __init__(self, url: str, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take how many failures in a row open it; 0 for never."""
        self._url = url
        self._most = failures
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a call, and count it if it fails; raises StoreUnavailableError at once while the breaker is open."""
        is_open = 0 < self._most <= self._failures
        if is_open and (self._trying or self._clock() < self._until):
            raise StoreUnavailableError(
                f"{self._url} was unavailable {self._failures} times in a row, and is not asked for "
                f"{COOLDOWN:g} seconds; nothing was sent",
                unsure=False,
            )
        self._trying = is_open
        try:
            yield
        except StoreUnavailableError:
            self._failures += 1
            self._until = self._clock() + COOLDOWN
            raise
        else:
            self._failures = 0
        finally:
            if is_open:
                self._trying = False
