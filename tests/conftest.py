"""Memories to test with: in RAM and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import mnemic

# A busy machine is slow, which says nothing about the code.
settings.register_profile("mnemic", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mnemic")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"


@pytest.fixture(params=["memory", "sqlite"])
def memory(request: pytest.FixtureRequest, file_url: str) -> Iterator[mnemic.Memory]:
    """An empty memory, over each embedded back-end."""
    with mnemic.open("memory://" if request.param == "memory" else file_url) as opened:
        yield opened


@pytest.fixture
def alice(memory: mnemic.Memory) -> mnemic.Space:
    """The scope of one user."""
    return memory.scope("acme", "alice")


@pytest.fixture
def chat(alice: mnemic.Space) -> mnemic.Session:
    """A session without limits."""
    return alice.session("monday")
