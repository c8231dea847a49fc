"""Figures for Prometheus: operations, latency, recall hits, retries, queues, indexes, and whether servers answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..errors import MissingExtraError
from . import calls
from .calls import Call, Origin

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["register_prometheus"]

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bucket boundaries of the latency, in seconds."""

_registries: WeakSet[Any] = WeakSet()


def register_prometheus(
    registry: CollectorRegistry | None = None, *, store: Callable[[str], str] | None = None
) -> None:
    """Collect figures of all memories of this process in a registry, by default that of `prometheus_client`.

    `store` makes the label `store` from a store's URL without secrets; by default it is the URL's scheme, so that no
    label names a user. A registry is registered once. Raises MissingExtraError without `prometheus_client`.
    """
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Prometheus figures need the package prometheus_client; install it with: pip install 'mnemic[prometheus]'",
            name=error.name,
        ) from error
    chosen = prometheus_client.REGISTRY if registry is None else registry
    if chosen not in _registries:
        _registries.add(chosen)
        calls.listen(PrometheusMetrics(prometheus_client, chosen, store))


class PrometheusMetrics:
    """The metrics in one registry.

    Plain metrics that are set by calls, since custom collectors do not work in prometheus_client's multiprocess mode.
    """

    def __init__(self, client: Any, registry: CollectorRegistry, store: Callable[[str], str] | None) -> None:
        def metric(kind: Any, name: str, what: str, *labels: str, **options: Any) -> Any:
            return kind(f"mnemic_{name}", what, labels, registry=registry, **options)

        counter, gauge = client.Counter, client.Gauge
        of_call = ("operation", "call", "store")
        self._store = store
        self._calls = metric(counter, "operations", "Calls that have ended.", *of_call, "outcome")
        self._seconds = metric(
            client.Histogram, "operation_duration_seconds", "Duration of calls.", *of_call, buckets=BUCKETS
        )
        self._running = metric(
            gauge, "operations_in_progress", "Calls that are running.", "store", multiprocess_mode="livesum"
        )
        self._events = {
            "recalls": metric(counter, "recalls", "Recalls whose best hit was good, and others.", "result"),
            "dropped_writes": metric(counter, "dropped_writes", "Writes that were dropped, by error.", "error"),
            "retries": metric(counter, "retries", "Attempts that were repeated.", "reason"),
        }
        self._gauges = {
            "write_queue_depth": metric(
                gauge, "write_queue_depth", "Writes that wait for a commit.", multiprocess_mode="livesum"
            ),
            "index_bytes": metric(gauge, "index_bytes", "Indexes in memory.", multiprocess_mode="livesum"),
        }
        self._up = metric(gauge, "store_up", "Whether the server answered last.", "store", multiprocess_mode="livemin")

    def begin(self, call: Call) -> None:
        """Count a running call."""
        self._running.labels(self._label(call.origin.id)).inc()
        self._sample()

    def end(self, call: Call, begun: Any) -> None:
        """Count a call and its duration."""
        store = self._label(call.origin.id)
        self._running.labels(store).dec()
        self._calls.labels(call.operation, call.name, store, call.error or "ok").inc()
        self._seconds.labels(call.operation, call.name, store).observe(call.seconds)
        self._sample()

    def count(self, event: str, label: str) -> None:
        """Count an event."""
        self._events[event].labels(label).inc()

    def _sample(self) -> None:
        sums = dict.fromkeys(self._gauges, 0.0)
        up: dict[str, float] = {}
        for name, url, value in calls.figures():
            if name in sums:
                sums[name] += value
            else:
                label = self._label(Origin(url).id)
                up[label] = min(value, up.get(label, 1.0))
        for name, value in sums.items():
            self._gauges[name].set(value)
        for label, value in up.items():
            self._up.labels(label).set(value)

    def _label(self, id: str) -> str:
        return id.partition(":")[0] if self._store is None else self._store(id)
