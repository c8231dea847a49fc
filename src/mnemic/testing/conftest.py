"""One empty store for each test, over each back-end, driven in place and on an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..errors import MissingExtraError
from ..store import registry
from .lab import Lab


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a lab over every back-end and in every way to drive it."""
    if "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", benches(), indirect=True)


def benches() -> list[str]:
    """Return the back-ends that can be tried, each with the ways in which it can be driven."""
    found = []
    for scheme in registry.schemes():
        try:
            _, backend = registry.find(f"{scheme}://")
        except MissingExtraError:
            continue  # it cannot be tried without what it needs; the others can
        if backend.trial is not None:
            found += [f"{scheme}-{drive}" for drive in (("inline", "loop") if backend.inline else ("loop",))]
    return found


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Lend an empty store, and what runs its coroutines."""
    scheme, _, drive = request.param.rpartition("-")
    _, backend = registry.find(f"{scheme}://")
    assert backend.trial is not None
    with backend.trial(tmp_path) as url, Lab(url, on_loop=drive == "loop") as bench:
        yield bench
