"""Logs when a server stops answering, and again when it answers; and marks reads that can do without an answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import StoreUnavailableError
from ..telemetry.calls import watch

log: logging.Logger = logging.getLogger("mnemic.store")

MAX_CAUSES = 10
"""How many chained causes of an error are followed."""


_optional: ContextVar[bool] = ContextVar("mnemic-optional", default=False)


def is_optional() -> bool:
    """Return whether the running task reads what it can do without."""
    return _optional.get()


@contextmanager
def optional() -> Iterator[None]:
    """Mark reads outside of the public API that find nothing, with `on_failure=empty`, instead of raising an error."""
    token = _optional.set(True)
    try:
        yield
    finally:
        _optional.reset(token)


class Availability:
    """Tracks whether a server has answered the last call; thread-safe."""

    def __init__(self, url: str) -> None:
        """Take the masked URL of the server, for log messages."""
        self._url = url
        self._lost: dict[str, float] = {}
        """Time since which it has not answered; a dict, since its methods are atomic."""
        watch(self)

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """Yield whether the server has answered the last call."""
        yield "store_up", self._url, float(not self._lost)

    def lost(self, error: BaseException) -> None:
        """Log, at WARNING, that a call failed because the server cannot be reached; once until it answers."""
        since = time.monotonic()
        if self._lost.setdefault("since", since) is since:
            name = cause_name(error)
            log.warning("%s is unavailable (%s)", self._url, name, extra={"store": self._url, "error": name})

    def answered(self) -> None:
        """Log, at INFO, that a lost server has answered."""
        if self._lost and (since := self._lost.pop("since", None)) is not None:
            seconds = time.monotonic() - since
            extra = {"store": self._url, "seconds": round(seconds, 1)}
            log.info("%s is available again, after %.1f s", self._url, seconds, extra=extra)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a call, and record from its outcome whether the server is reachable."""
        try:
            yield
        except StoreUnavailableError as error:
            self.lost(error)
            raise
        self.answered()


def cause_name(error: BaseException) -> str:
    """Return the name of the error's root cause; never its message, which may contain content or names."""
    for _ in range(MAX_CAUSES):  # some drivers' errors are their own cause
        if error.__cause__ is None or isinstance(error, TimeoutError):
            break
        error = error.__cause__
    return type(error).__name__
