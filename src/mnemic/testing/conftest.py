"""Runs each contract test over every store that is able to pass it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .harness import NEEDS, Case, Harness, Hooks, store_cases


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks that list stores and indexes."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{NEEDS}: what the store under test must be able to do")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `case`, and with it `harness`."""
    if "case" in metafunc.fixturenames:
        cases = [case for case in store_cases(metafunc.config) if case.has(metafunc.definition)]
        metafunc.parametrize("case", cases, ids=str)


@pytest.fixture
def harness(case: Case, tmp_path: Path) -> Iterator[Harness]:
    """Provide an empty store and a runner of its coroutines."""
    with case.open(tmp_path) as opened:
        yield opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a contract test that skips itself."""
    report = yield
    if report.skipped and "case" in getattr(item, "fixturenames", ()) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped itself: {call.excinfo}"
    return report
