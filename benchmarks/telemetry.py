"""The cost of telemetry in CPU time: the same calls with nobody listening, with OpenTelemetry, and with Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

import mnemic
from mnemic.telemetry import calls, register_prometheus
from mnemic.telemetry.otel import SpanListener

from .measuring import Result, Work, per_call, time_ratio

ABSENT = "not a module"
"""Name in place of OpenTelemetry's, so that it counts as not imported."""
PRESENT = calls._TRACING


def listening(work: Work, *, tracing: str, found: list[Any], listeners: list[Any]) -> Work:
    """Return work that runs with these listeners."""

    def run() -> object:
        calls._TRACING, calls._found, calls._listeners = tracing, found, listeners
        return work()

    return run


def bare(thing: Any) -> Any:
    """Return an object of the API whose calls are not even looked at."""
    cls = type(thing)
    methods = {name: method.__wrapped__ for name, method in vars(cls).items() if hasattr(method, "__wrapped__")}
    made: Any = object.__new__(type(cls.__name__, (cls,), methods))
    vars(made).update(vars(thing))
    return made


def in_pairs(ours: Work, baseline: Work, calls: int, rounds: int = 400) -> tuple[float, float]:
    """Return the median CPU seconds per call of the baseline, and the same times the median ratio of all pairs.

    A machine that gets busier slows both of a pair.
    """
    pairs = []
    for n in range(rounds):
        order = (ours, baseline) if n % 2 else (baseline, ours)
        times = {work: per_call(work, calls, time.process_time) for work in order}
        pairs.append((times[ours], times[baseline]))
    usual = median(theirs for _, theirs in pairs)
    return usual * median(mine / theirs for mine, theirs in pairs), usual


def run(folder: Path) -> list[Result]:
    """Return what telemetry adds to an append and a recall."""
    before = calls._TRACING, calls._found, calls._listeners
    calls._listeners = []
    register_prometheus(CollectorRegistry())
    states: dict[str, tuple[float | None, dict[str, Any]]] = {
        "without OpenTelemetry": (1.05, {"tracing": ABSENT, "found": [], "listeners": []}),
        "with its API but no SDK": (1.05, {"tracing": PRESENT, "found": [], "listeners": []}),
        "with its SDK": (
            None,
            {"tracing": PRESENT, "found": [SpanListener(TracerProvider(), MeterProvider())], "listeners": []},
        ),
        "with Prometheus": (None, {"tracing": ABSENT, "found": [], "listeners": calls._listeners}),
    }
    try:
        with mnemic.open(f"sqlite:///{folder}/memory.db?synchronous=normal") as memory:
            scope = memory.scope("acme", "alice")
            scope.remember_many(f"{n}: Alice drinks green tea in Lisbon" for n in range(1_000))
            chat, numbers = memory.scope("acme").session("monday"), iter(range(10**9))
            plain_chat, plain_scope = mnemic.Session(bare(chat._async), chat._driver), bare(scope._async)
            plain = mnemic.Scope(plain_scope, scope._driver)
            works: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
                "append one message": (
                    lambda: chat.add("user", f"text {next(numbers)}"),
                    lambda: plain_chat.add("user", f"text {next(numbers)}"),
                    10,
                ),
                "recall among 1,000 memories": (
                    lambda: scope.recall("What does she drink?"),
                    lambda: plain.recall("What does she drink?"),
                    2,
                ),
            }
            return [
                time_ratio(
                    f"{what}, {name}", most, *in_pairs(listening(ours, **state), listening(theirs, **state), many)
                )
                for what, (ours, theirs, many) in works.items()
                for name, (most, state) in states.items()
            ]
    finally:
        calls._TRACING, calls._found, calls._listeners = before
