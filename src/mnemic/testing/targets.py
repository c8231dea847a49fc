"""Stores and companion indexes to run the contract suite over.

A pytest plugin or conftest.py lists them in the hooks `pytest_mnemic_stores` and `pytest_mnemic_indexes`. The
environment variable MNEMIC_TEST_URL adds a store by its URL.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pytest
from msgspec import Struct

from ..store import registry
from ..store.protocol import Capability
from .harness import Harness

NEEDS = "needs"
"""Name of the marker that `needs` creates."""

MODEL = "memory"
"""Name of the store that others are compared with."""

URL = "MNEMIC_TEST_URL"
"""Environment variable with the URL of a store to test."""

Empty: TypeAlias = Callable[[Path], AbstractContextManager[str]]
"""Takes an empty folder, and provides the URL of an empty store or index."""


class Target(Struct, frozen=True):
    """A store or index to test.

    Tests that need more than its `capabilities` are not collected, and one test compares these with what the store
    declares. A store whose back-end is `inline` is also tested without an event loop.
    """

    name: str
    empty: Empty
    capabilities: frozenset[Capability] = frozenset()
    inline: bool = False


class Case(Struct, frozen=True):
    """A store in one mode: on an event loop, or inline."""

    target: Target
    on_loop: bool

    def __str__(self) -> str:
        """Return the test id, such as `sqlite-inline`."""
        return f"{self.target.name}-{'loop' if self.on_loop else 'inline'}"

    def has(self, test: pytest.Function) -> bool:
        """Return whether the store has all that a test needs."""
        return all(
            self.target.capabilities.issuperset(mark.args)
            and (self.on_loop or not mark.kwargs["loop"])
            and (self.target.name != MODEL or not mark.kwargs["model"])
            for mark in test.iter_markers(NEEDS)
        )

    @contextmanager
    def open(self, folder: Path) -> Iterator[Harness]:
        """Open an empty store."""
        with self.target.empty(folder) as url, Harness(url, on_loop=self.on_loop) as harness:
            yield harness


class Hooks:
    """Hooks of the suite."""

    def pytest_mnemic_stores(self) -> list[Target]:  # type: ignore[empty-body]
        """Return stores to test."""

    def pytest_mnemic_indexes(self) -> list[Target]:  # type: ignore[empty-body]
        """Return companion indexes to test."""


def needs(*capabilities: Capability, loop: bool = False, model: bool = False) -> pytest.MarkDecorator:
    """Mark a test that needs these capabilities, concurrent writers on one event `loop`, or another store as model."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, NEEDS)
    return mark(*capabilities, loop=loop, model=model)


def store_cases(config: pytest.Config) -> list[Case]:
    """Return all stores to test, in every mode; raises UsageError if there are none."""
    targets: list[Target] = [target for some in config.hook.pytest_mnemic_stores() for target in some]
    if url := os.environ.get(URL):
        targets.append(at_url(url))
    if not targets:
        raise pytest.UsageError(f"no store to test: set {URL}, or list stores in the hook pytest_mnemic_stores")
    return [Case(target, on_loop) for target in targets for on_loop in ((False, True) if target.inline else (True,))]


def at_url(template: str) -> Target:
    """Return the store at a URL; for each test, `{name}` becomes a new name and `{folder}` an empty folder."""

    @contextmanager
    def empty(folder: Path) -> Iterator[str]:
        yield template.format(name=f"mnemic-{uuid4().hex[:12]}", folder=folder)

    async def capabilities(url: registry.StoreURL, backend: registry.Backend) -> frozenset[Capability]:
        store = await backend.open(url)
        try:
            return store.capabilities
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as folder, empty(Path(folder)) as url:
        parsed, backend = registry.find(url)
        return Target(parsed.scheme, empty, asyncio.run(capabilities(parsed, backend)), backend.inline)
