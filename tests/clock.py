"""A clock for `mnemic.open`, so that tests need not wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """The system's time, which a test can set forward."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def advance(self, **by: float) -> None:
        """Set the clock forward, by `seconds=…`, `hours=…` and so on."""
        self._ahead += timedelta(**by)
