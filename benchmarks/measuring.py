"""How things are measured here: two at a time, in turns, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from msgspec import Struct

Work = Callable[[], object]
Clock = Callable[[], float]


class Result(Struct, frozen=True):
    """One line of a table: what was measured, what it must reach, and what it reached."""

    what: str
    target: str
    reached: str
    holds: bool


def per_call(work: Work, calls: int, clock: Clock = time.perf_counter) -> float:
    """Return the seconds that one call takes, from many."""
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def in_turns(
    ours: Work, baseline: Work, *, calls: int, rounds: int = 15, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Return the median seconds per call of two things, measured in turns."""
    for work in (ours, baseline):
        per_call(work, min(calls, 20))
    gc.collect()
    gc.disable()
    try:
        times = [(per_call(ours, calls, clock), per_call(baseline, calls, clock)) for _ in range(rounds)]
    finally:
        gc.enable()
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def rate_share(what: str, least: float | None, ours: float, baseline: float) -> Result:
    """Return the share of the baseline's rate that ours reaches, from the seconds of each."""
    share = baseline / ours
    reached = f"{share:.0%} ({1 / ours:,.0f} against {1 / baseline:,.0f} a second)"
    target = "(to compare)" if least is None else f"at least {least:.0%}"
    return Result(what, target, reached, least is None or share >= least)


def time_ratio(what: str, most: float | None, ours: float, baseline: float) -> Result:
    """Return how many times the baseline's time ours takes, from the seconds of each."""
    ratio = ours / baseline
    reached = f"{ratio:.2f}× ({ours * 1e6:,.0f} against {baseline * 1e6:,.0f} µs)"
    target = "(to compare)" if most is None else f"at most {most:g}×"
    return Result(what, target, reached, most is None or ratio <= most)


def table(results: list[Result]) -> str:
    """Return results as a Markdown table."""
    lines = ["| what | must be | is |", "|---|---|---|"]
    lines += [f"| {r.what} | {r.target} | {r.reached}{'' if r.holds else ' **missed**'} |" for r in results]
    return "\n".join(lines)
