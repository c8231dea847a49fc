"""Runs the tests of one environment, and gives them a memory in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import mnemic
from environments import ENVIRONMENTS, HERE, tests_of

ENVIRONMENT = os.environ.get("MNEMIC_ADAPTERS", ENVIRONMENTS[0])

# Hypothesis finds the same examples in every run, and a busy machine is slow, which says nothing about the code.
settings.register_profile(
    "adapters",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("adapters")

collect_ignore = [path.name for path in HERE.glob("test_*.py") if path not in tests_of(ENVIRONMENT)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep frameworks from sending telemetry, and from writing to the user's own folders."""
    for name in ("ANONYMIZED_TELEMETRY", "MEM0_TELEMETRY", "HAYSTACK_TELEMETRY_ENABLED"):
        monkeypatch.setenv(name, "False")
    for name in ("OTEL_SDK_DISABLED", "CREWAI_DISABLE_TELEMETRY", "LITELLM_LOCAL_MODEL_COST_MAP", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'memory.db'}?synchronous=normal"


@pytest.fixture(params=["memory", "sqlite"])
def memory(request: pytest.FixtureRequest, file_url: str) -> Iterator[mnemic.Memory]:
    """A memory in this process, and one in a file."""
    with mnemic.open(file_url if request.param == "sqlite" else "memory://") as memory:
        yield memory
