"""Recall metrics: hit ratio, uses, scores over time, and latency."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from datetime import UTC, datetime

from msgspec.structs import replace

from ..records import Value
from ..telemetry.calls import count

GOOD = 0.5
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


class MetricsRecorder:
    """Counts recalls per hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hours: OrderedDict[int, MetricsPeriod] = OrderedDict()
        self._times: deque[float] = deque(maxlen=KEPT_TIMES)

    def recalled(self, best: float | None, seconds: float) -> None:
        """Count a recall, with the score of its best hit, if any, and its duration."""
        score, good = best or 0.0, best is not None and best >= GOOD
        count("recalls", "hit" if good else "miss")
        with self._lock:
            self._count(recalls=1, answered=int(good), score=score)
            self._times.append(seconds)

    def used(self, count: int) -> None:
        with self._lock:
            self._count(used=count)

    def _count(self, recalls: int = 0, answered: int = 0, used: int = 0, score: float = 0.0) -> None:
        hour = int(time.time()) // HOUR
        period = self._hours.get(hour) or MetricsPeriod(start=datetime.fromtimestamp(hour * HOUR, UTC))
        self._hours[hour] = replace(
            period,
            recalls=period.recalls + recalls,
            answered=period.answered + answered,
            used=period.used + used,
            score=period.score + score,
        )
        if len(self._hours) > KEPT_HOURS:
            self._hours.popitem(last=False)

    def report(self, failures: int) -> Metrics:
        with self._lock:
            periods = list(self._hours.values())
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
            p50_ms=_percentile(times, 0.5),
            p95_ms=_percentile(times, 0.95),
            embedding_failures=failures,
            periods=periods,
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(periods: list[MetricsPeriod]) -> float:
    return _share(sum(p.score for p in periods), sum(p.recalls for p in periods))


def _drift(periods: list[MetricsPeriod]) -> float:
    active = [period for period in periods if period.recalls]
    late = -(-len(active) // 4)
    return _mean(active[-late:]) - _mean(active[:-late]) if len(active) > 1 else 0.0


def _percentile(times: list[float], share: float) -> float:
    return 1000 * times[min(len(times) - 1, int(share * len(times)))] if times else 0.0
