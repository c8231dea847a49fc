"""Clocks for `mnemic.open`, so that tests need not wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """The system's time, which a test can set forward."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def advance(self, **by: float) -> None:
        """Set the clock forward, by `seconds=…`, `hours=…` and so on."""
        self._ahead += timedelta(**by)


class Steps:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime = START) -> None:
        self.time = start

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float = 1) -> datetime:
        """Move the clock, and return the time before."""
        before = self.time
        self.time += timedelta(seconds=seconds)
        return before
