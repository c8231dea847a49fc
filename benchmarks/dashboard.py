"""Pages of the dashboard in a real browser on 100,000 records: until something is shown, and until all is loaded."""

from __future__ import annotations

import statistics
from pathlib import Path

import demo_store
from browser import Visit, launched
from http_server import serving

from .measuring import Result

RECORDS = 100_000
MOST = 1.0
"""Seconds that a page may take."""
ROUNDS = 5
PAGES = ("overview", "timeline", "sessions", "recall", "facts", "notes", "audit", "keys")
WAIT = """(done) => new Promise((resolve, fail) => {
    const any = (selector) => document.querySelector(selector);
    const busy = done ? ".skeleton, html[data-busy], [aria-busy=true]" : ".skeleton";
    const look = (times) => {
        if (performance.now() > 60000) fail(new Error("the page still loads after a minute"));
        else if (times === 2) resolve(performance.now());
        else requestAnimationFrame(() => look(any("main h1, main .state") && !any(busy) ? times + 1 : 0));
    };
    look(0);
})"""
"""Returns the milliseconds since the page was asked for, once no grey lines are left, or nothing loads any more."""


def run(folder: Path) -> list[Result]:
    """Open every page on a small and on a large store: at first, when nothing is counted yet, and again."""
    small = opened(folder / "small.db", 0)
    large = opened(folder / "large.db", RECORDS)
    results = []
    for page in PAGES:
        first, whole, again = large[page]
        reached = (
            f"{again:.2f} s; at first {first:.2f} s, all counted after {whole:.2f} s; small {small[page][2]:.2f} s"
        )
        results.append(Result(f"{page}, {RECORDS:,} records", f"at most {MOST:g} s", reached, again <= MOST))
    return results


def opened(path: Path, records: int) -> dict[str, tuple[float, float, float]]:
    """Return the seconds until each page first showed something, until it was complete, and the median after that."""
    url = f"sqlite:///{path}?synchronous=normal"
    demo_store.build(url, records=records, audit=records == 0)
    found = {}
    with launched() as browser, serving(url, clock=demo_store.DemoClock(), audit=True) as client:
        address = str(client.base_url).rstrip("/")

        def visit(page: str, *, done: bool) -> tuple[float, float]:
            opening = Visit(browser, address)
            try:
                opening.page.goto(f"{address}/dashboard/#/{page}")
                shown = opening.page.evaluate(WAIT, False) / 1000
                return shown, opening.page.evaluate(WAIT, True) / 1000 if done else shown
            finally:
                opening.context.close()

        for page in PAGES:
            first, whole = visit(page, done=True)
            found[page] = first, whole, statistics.median(visit(page, done=False)[0] for _ in range(ROUNDS))
    return found
