"""Fixtures: an empty store for each test, over each back-end, inline and on an event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .benches import benches, lend
from .capabilities import NEEDS, lacking, pinned
from .lab import Lab


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{NEEDS}: what the store under test must be able to do")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses `lab` over every suitable back-end, in every mode."""
    if "lab" in metafunc.fixturenames:
        able = [bench for bench in benches() if not lacking(metafunc.definition, bench, pinned(bench))]
        metafunc.parametrize("lab", able, indirect=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Provide an empty store and a runner of its coroutines; skips what a third-party store lacks."""
    with lend(request.param, tmp_path) as bench:
        if pinned(request.param) is None and (what := lacking(request.node, request.param, bench.can)):
            pytest.skip(f"needs {what}")
        yield bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test over a built-in back-end that skips itself."""
    report = yield
    bench = getattr(item, "callspec", None) and item.callspec.params.get("lab")  # type: ignore[attr-defined]
    if report.skipped and call.when == "call" and not hasattr(report, "wasxfail") and bench and pinned(bench):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped itself over a built-in back-end: {call.excinfo}"
    return report
