"""Figures of HTTP for Prometheus, and the access log: what was asked of the server, without content or keys."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..checks import shown
from ..telemetry.prometheus import BUCKETS
from .access import ACCESS

__all__ = ["RequestMetrics", "RequestObserver"]

LOG = logging.getLogger("mnemic.server.access")


class LatencyHistogram:
    """How long the requests of one endpoint took, by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BUCKETS) + 1)
        self.total: float = 0.0


class RequestMetrics:
    """Counts requests; a collector for a registry of `prometheus_client`."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.rejected: Counter[str] = Counter()
        self.latency: dict[str, LatencyHistogram] = {}
        self.running = 0
        self.waiting = 0
        self.streams = 0
        self.buffered = 0

    def reject(self, reason: str) -> None:
        """Count a request or connection that a limit has refused."""
        self.rejected[reason] += 1

    def answer(self, method: str, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.answered[method, endpoint, status] += 1
        if (latency := self.latency.get(endpoint)) is None:
            latency = self.latency[endpoint] = LatencyHistogram()
        latency.counts[bisect_left(BUCKETS, seconds)] += 1
        latency.total += seconds

    def collect(self) -> Iterator[Any]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        answered = CounterMetricFamily(
            "mnemic_http_requests", "Requests that were answered.", labels=["method", "endpoint", "status"]
        )
        for (method, endpoint, status), count in self.answered.items():
            answered.add_metric([method, endpoint, str(status)], count)
        yield answered
        rejected = CounterMetricFamily("mnemic_http_rejected", "Refused because of a limit.", labels=["reason"])
        for reason, count in self.rejected.items():
            rejected.add_metric([reason], count)
        yield rejected
        seconds = HistogramMetricFamily(
            "mnemic_http_request_duration_seconds", "Time from a request to the end of its answer.", labels=["endpoint"]
        )
        for endpoint, latency in self.latency.items():
            below, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], latency.counts, strict=True):
                below += count
                buckets.append((bound, below))
            seconds.add_metric([endpoint], buckets, latency.total)
        yield seconds
        for name, what, value in (
            ("requests_in_progress", "Requests that are worked on, and open streams.", self.running),
            ("requests_waiting", "Requests that wait for their turn.", self.waiting),
            ("streams", "Open streams.", self.streams),
            ("buffered_bytes", "Bodies of requests in memory.", self.buffered),
        ):
            yield GaugeMetricFamily(f"mnemic_http_{name}", what, value)


class RequestObserver:
    """Counts each request, and writes a line of the access log for it if that is wanted."""

    def __init__(self, app: ASGIApp, figures: RequestMetrics, log: bool) -> None:
        self._app = app
        self._figures = figures
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        status = sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        figures = self._figures
        figures.running += 1
        try:
            await self._app(scope, receive, counted)
        finally:
            figures.running -= 1
            seconds = perf_counter() - began
            # The path itself may hold names that users chose.
            endpoint = getattr(scope.get("route"), "path", "other")
            figures.answer(scope["method"], endpoint, status, seconds)
            if self._log:
                _log(scope, endpoint, status, seconds, sent)


def _log(scope: Scope, endpoint: str, status: int, seconds: float, sent: int) -> None:
    fields = {
        "method": scope["method"],
        "endpoint": endpoint,
        "status": status,
        "ms": round(1000 * seconds, 3),
        "bytes": sent,
        "key": getattr(scope.get(ACCESS), "name", None),
        "address": scope["client"][0] if scope.get("client") else None,
    }
    line = {**fields, "key": shown(fields["key"]) if fields["key"] else "-", "address": fields["address"] or "-"}
    text = "%(method)s %(endpoint)s %(status)d in %(ms).1f ms, %(bytes)d bytes, key %(key)s, address %(address)s"
    LOG.info(text, line, extra=fields)
