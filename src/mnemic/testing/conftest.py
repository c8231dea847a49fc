"""One empty store for each test, over each back-end, driven in place and on an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .benches import benches, lend
from .lab import Lab


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a lab over every back-end and in every way to drive it."""
    if "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", benches(), indirect=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Lend an empty store, and what runs its coroutines."""
    with lend(request.param, tmp_path) as bench:
        yield bench
