"""Memories to test with: in RAM and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import mnemic
from clock import Clock
from layered import KEY
from servers.stores import empty_file

# A busy machine is slow, which says nothing about the code.
settings.register_profile("mnemic", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mnemic")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"


@pytest.fixture
def clock() -> Clock:
    """The clock of `memory`."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "layered"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[mnemic.Memory]:
    """An empty memory, over each embedded back-end, and under all layers."""
    layers: dict[str, Any] = {"encryption_key": KEY, "audit": True} if request.param == "layered" else {}
    empty = empty_file(tmp_path) if request.param == "sqlite" else nullcontext("memory://")
    with empty as url, mnemic.open(url, clock=clock, **layers) as opened:
        yield opened


@pytest.fixture
def alice(memory: mnemic.Memory) -> mnemic.Scope:
    """The scope of one user."""
    return memory.scope("acme", "alice")


@pytest.fixture
def chat(alice: mnemic.Scope) -> mnemic.Session:
    """A session without limits."""
    return alice.session("monday")
