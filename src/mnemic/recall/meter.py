"""How recall does in production: how often it finds something, how often that is used, and how it drifts."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

GOOD = 0.3
"""The score from which the best hit counts as an answer."""
HOUR = 3600
KEPT_HOURS = 24 * 14
"""How many hours with recalls are kept apart."""
KEPT_TIMES = 1000
"""Over how many of the last recalls the time that they take is looked at."""


class Period(Struct, kw_only=True):
    """The recalls of one hour."""

    start: datetime
    recalls: int = 0
    answered: int = 0
    used: int = 0
    score: float = 0.0
    """The scores of the best hits, added up."""


class Metrics(Struct, frozen=True, kw_only=True):
    """How recall has done since the memory was opened."""

    recalls: int
    hit_ratio: float
    """The share of recalls whose best hit was good."""
    used: int
    """How many hits were said to be of use."""
    success: float
    """Uses for each recall, at most 1."""
    mean_score: float
    """The mean score of the best hits; 0 where nothing was found."""
    drift: float
    """By how much the last quarter of the hours scored above the others; below 0, recall gets worse."""
    p50_ms: float
    p95_ms: float
    embedding_failures: int
    periods: list[Period]


class Meter:
    """Counts recalls, by the hour; a few additions for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hours: OrderedDict[int, Period] = OrderedDict()
        self._times: deque[float] = deque(maxlen=KEPT_TIMES)

    def recalled(self, best: float | None, seconds: float) -> None:
        """Count a recall: the score of its best hit, if it had any, and how long it took."""
        with self._lock:
            hour = self._hour()
            hour.recalls += 1
            hour.score += best or 0.0
            hour.answered += best is not None and best >= GOOD
            self._times.append(seconds)

    def used(self, count: int) -> None:
        """Count hits that were of use."""
        with self._lock:
            self._hour().used += count

    def report(self, failures: int) -> Metrics:
        """Return what was counted."""
        with self._lock:
            periods = [replace(period) for period in self._hours.values()]
            times = sorted(self._times)
        recalls = sum(p.recalls for p in periods)
        used = sum(p.used for p in periods)
        return Metrics(
            recalls=recalls,
            hit_ratio=_share(sum(p.answered for p in periods), recalls),
            used=used,
            success=min(1.0, _share(used, recalls)),
            mean_score=_mean(periods),
            drift=_drift(periods),
            p50_ms=_at(times, 0.5),
            p95_ms=_at(times, 0.95),
            embedding_failures=failures,
            periods=periods,
        )

    def _hour(self) -> Period:
        number = int(time.time()) // HOUR
        if number not in self._hours:
            self._hours[number] = Period(start=datetime.fromtimestamp(number * HOUR, UTC))
            if len(self._hours) > KEPT_HOURS:
                self._hours.popitem(last=False)
        return self._hours[number]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(periods: list[Period]) -> float:
    return _share(sum(p.score for p in periods), sum(p.recalls for p in periods))


def _drift(periods: list[Period]) -> float:
    held = [period for period in periods if period.recalls]
    late = -(-len(held) // 4)
    return _mean(held[-late:]) - _mean(held[:-late]) if len(held) > 1 else 0.0


def _at(times: list[float], share: float) -> float:
    return 1000 * times[min(len(times) - 1, int(share * len(times)))] if times else 0.0
