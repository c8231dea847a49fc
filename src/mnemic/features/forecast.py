"""The forecast of forgetting: how memories fade, and when each falls below a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..checks import check_number, from_microseconds, to_microseconds
from ..errors import InvalidValueError
from ..recall.index_entry import DAY, USE, Use, days_until, strength
from ..records import MEMORY, Ref, ScopePath
from ..store.protocol import Store, scan_pages
from ..store.query import Condition, Scan
from .memory_items import decay_start, half_life_days

MOST_MEMORIES = 100_000
"""How many memories a forecast reads at most."""
PAGE = 2000
"""How many memories are read at once."""
Which: TypeAlias = Literal["all", "next", "gone"]
"""Memories to choose: all, those that are not below the threshold yet, or those that are."""
FAR = to_microseconds(datetime(9999, 1, 1, tzinfo=UTC))
"""From here on, a time is too far away to be a date."""


class Fading(Struct, frozen=True, kw_only=True):
    """A memory that fades: since when, with how many uses, how strong it is now, and when it falls below."""

    ref: Ref
    importance: float
    since: datetime
    uses: float
    used: datetime | None
    strength: float
    below_at: datetime | None
    """When it falls below the threshold; None if that is too far away to be a date."""


class Forecast:
    """How memories fade if none is used or changed any more."""

    def __init__(
        self,
        moment: datetime,
        below: float,
        half_life: float,
        memories: Sequence[tuple[Ref, float, Use]],
        pinned: int,
        complete: bool,
    ) -> None:
        self.moment = moment
        self.below = below
        self.half_life = half_life
        """In days."""
        self.pinned = pinned
        """How many memories do not fade, because they are pinned."""
        self.complete = complete
        """Whether every memory was read."""
        self._memories = memories
        self._importance: NDArray[Any] = np.array([importance for _, importance, _ in memories], np.float64)
        self._since: NDArray[Any] = np.array([use.since for _, _, use in memories], np.float64)
        self._uses: NDArray[Any] = np.array([use.uses for _, _, use in memories], np.float64)
        days = days_until(below, self._importance, self._uses, half_life)
        self._below_at: NDArray[Any] = self._since + np.maximum(days, 0) * DAY

    def __len__(self) -> int:
        return len(self._memories)

    def schedule(self, until: datetime, parts: int) -> tuple[int, list[int], int]:
        """Return how many are below now, fall below in each part of the time until then, and fall below later."""
        now, end, at = to_microseconds(self.moment), to_microseconds(until), self._below_at
        gone, later = at <= now, at >= end
        width = max((end - now) / parts, 1)
        places = np.minimum(((at[~gone & ~later] - now) / width).astype(np.int64), parts - 1)
        return int(gone.sum()), np.bincount(places, minlength=parts).tolist(), int(later.sum())

    def next_below(self, limit: int, which: Which = "all") -> list[Fading]:
        """Return the memories that fall below the threshold first, in that order: all, the next, or those below now."""
        moment = to_microseconds(self.moment)
        now = strength(self._importance, (moment - self._since) / DAY, self._uses, self.half_life)
        gone = self._below_at <= moment
        chosen = {"all": gone | True, "next": ~gone, "gone": gone}[which]
        order = np.argsort(self._below_at, kind="stable")
        found = []
        for n in order[chosen[order]][:limit].tolist():
            ref, importance, use = self._memories[n]
            at = self._below_at[n]
            found.append(
                Fading(
                    ref=ref,
                    importance=importance,
                    since=from_microseconds(use.since),
                    uses=use.uses,
                    used=from_microseconds(use.last) if use.last else None,
                    strength=float(now[n]),
                    below_at=from_microseconds(int(at)) if at < FAR else None,
                )
            )
        return found

    def curve(self, fading: Fading, times: Sequence[datetime]) -> list[float | None]:
        """Return the strength of a memory at each of these times; None before it began to fade."""
        days = np.array([(time - fading.since) / timedelta(days=1) for time in times])
        left = strength(fading.importance, days, fading.uses, self.half_life)
        return [None if day < 0 else float(value) for day, value in zip(days, left, strict=True)]


async def read_forecast(
    store: Store,
    scope: ScopePath,
    below: float,
    half_life: timedelta | None = None,
    *,
    id: str | None = None,
    most: int = MOST_MEMORIES,
) -> Forecast:
    """Return the forecast for the memories of a scope and those below, or for those with this id; texts are not read.

    Raises InvalidValueError for a threshold that is not above 0, since nothing fades to that.
    """
    if check_number(below, "below") <= 0:
        raise InvalidValueError(f"below must be above 0, since nothing fades to that: {below}")
    days = half_life_days(half_life)
    where = () if id is None else (Condition("key", "eq", id),)
    scan = Scan(scope=scope, kinds=(MEMORY,), below=True, where=where, bodies=False, derived=(USE,), limit=PAGE)
    memories: list[tuple[Ref, float, Use]] = []
    pinned, complete = 0, True
    async for page in scan_pages(store, scan):
        if len(memories) + pinned + len(page) > most:
            complete = False
            break
        for record in page:
            use = decay_start(record)
            if use is None:
                pinned += record.pinned
            else:
                memories.append((record.ref, record.importance or 0.0, use))
    return Forecast(store.clock(), below, days, memories, pinned, complete)
