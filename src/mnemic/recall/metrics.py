"""Recall metrics: hit ratio, uses, scores over time, and latency."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import asdict

from ..records import Value

GOOD = 0.3
"""Score from which the best hit counts as an answer."""
HOUR = 3600
KEPT_HOURS = 24 * 14
"""How many hours of statistics are kept."""
KEPT_TIMES = 1000
"""How many recent recalls the latency percentiles cover."""


class MetricsPeriod(Value, frozen=True, kw_only=True):
    """The recalls of one hour."""

    start: datetime
    recalls: int = 0
    answered: int = 0
    used: int = 0
    score: float = 0.0
    """Sum of the scores of the best hits."""


class Metrics(Value, frozen=True, kw_only=True):
    """Recall statistics since the memory was opened."""

    recalls: int
    hit_ratio: float
    """Share of recalls whose best hit was good."""
    used: int
    """How many hits were reported as used."""
    success: float
    """Uses per recall, at most 1."""
    mean_score: float
    """Mean score of the best hits; 0 if nothing was found."""
    drift: float
    """Mean score of the last quarter of the hours minus that of the others; negative if recall gets worse."""
    p50_ms: float
    p95_ms: float
    embedding_failures: int
    periods: list[MetricsPeriod]


class _Hour(Struct, kw_only=True):
    """A period that is still being counted."""

    start: datetime
    recalls: int = 0
    answered: int = 0
    used: int = 0
    score: float = 0.0


class MetricsRecorder:
    """Counts recalls per hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hours: OrderedDict[int, _Hour] = OrderedDict()
        self._times: deque[float] = deque(maxlen=KEPT_TIMES)

    def recalled(self, best: float | None, seconds: float) -> None:
        """Count a recall, with the score of its best hit, if any, and its duration."""
        with self._lock:
            hour = self._hour()
            hour.recalls += 1
            hour.score += best or 0.0
            hour.answered += best is not None and best >= GOOD
            self._times.append(seconds)

    def used(self, count: int) -> None:
        """Count used hits."""
        with self._lock:
            self._hour().used += count

    def report(self, failures: int) -> Metrics:
        """Return the statistics."""
        with self._lock:
            periods = [MetricsPeriod(**asdict(period)) for period in self._hours.values()]
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

    def _hour(self) -> _Hour:
        number = int(time.time()) // HOUR
        if number not in self._hours:
            self._hours[number] = _Hour(start=datetime.fromtimestamp(number * HOUR, UTC))
            if len(self._hours) > KEPT_HOURS:
                self._hours.popitem(last=False)
        return self._hours[number]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(periods: list[MetricsPeriod]) -> float:
    return _share(sum(p.score for p in periods), sum(p.recalls for p in periods))


def _drift(periods: list[MetricsPeriod]) -> float:
    held = [period for period in periods if period.recalls]
    late = -(-len(held) // 4)
    return _mean(held[-late:]) - _mean(held[:-late]) if len(held) > 1 else 0.0


def _at(times: list[float], share: float) -> float:
    return 1000 * times[min(len(times) - 1, int(share * len(times)))] if times else 0.0
