"""Memories to test with: in RAM and in a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import demo_store
import mnemic
from browser import Dashboard, launched
from clock import Clock
from http_server import serving
from layered import KEY
from servers.stores import empty_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
    """An empty memory, over each embedded back-end, and under encryption, an audit log and redaction."""
    layers: dict[str, Any] = (
        {"encryption_key": KEY, "audit": True, "redact": True} if request.param == "layered" else {}
    )
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


@pytest.fixture(scope="module")
def browser(demo_file: Path) -> Iterator[Browser]:
    """A headless browser; while it is open, its event loop runs in the main thread."""
    with launched() as opened:
        yield opened


@pytest.fixture(scope="session")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo store, with hostile texts, as a file: copy it, or only read it."""
    path = tmp_path_factory.mktemp("demo") / "demo.db"
    demo_store.build(f"sqlite:///{path}?synchronous=normal", hostile=True)
    return path


@pytest.fixture(scope="module")
def dashboard(browser: Browser, demo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The dashboard on a copy of the demo store, one for the tests of a file."""
    path = shutil.copy(demo_file, tmp_path_factory.mktemp("dashboard"))
    with serving(f"sqlite:///{path}?synchronous=normal", clock=demo_store.DemoClock(), audit=True) as client:
        yield Dashboard(browser, str(client.base_url).rstrip("/"))
