"""One empty store for each test, over each back-end, driven in place and on an event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .benches import benches, lend
from .capabilities import NEEDS, lacking, pinned
from .lab import Lab


def pytest_configure(config: pytest.Config) -> None:
    """Make our mark known."""
    config.addinivalue_line("markers", f"{NEEDS}: what the store under test must be able to do")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a lab over every back-end that can, in every way to drive it."""
    if "lab" in metafunc.fixturenames:
        able = [bench for bench in benches() if not lacking(metafunc.definition, bench, pinned(bench))]
        metafunc.parametrize("lab", able, indirect=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Lend an empty store, and what runs its coroutines; skips what a store that is not ours lacks."""
    with lend(request.param, tmp_path) as bench:
        if pinned(request.param) is None and (what := lacking(request.node, request.param, bench.can)):
            pytest.skip(f"needs {what}")
        yield bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test over one of our own back-ends that skips itself: what it would have shown goes unseen."""
    report = yield
    bench = getattr(item, "callspec", None) and item.callspec.params.get("lab")  # type: ignore[attr-defined]
    if report.skipped and call.when == "call" and not hasattr(report, "wasxfail") and bench and pinned(bench):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped itself over one of our own back-ends: {call.excinfo}"
    return report
