"""The store under test, with shortcuts for writing and reading, and the stores and companion indexes to test.

A pytest plugin or conftest.py lists them in the hooks `pytest_mnemic_stores` and `pytest_mnemic_indexes`. The
environment variable MNEMIC_TEST_URL adds a store by its URL.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import pytest
from msgspec import Struct
from msgspec.structs import replace

from ..event_loop import step
from ..records import Record, Ref, ScopePath, Stream, now
from ..store import registry
from ..store.protocol import Capability, Page, Store
from ..store.query import Op, Outcome, Put, Scan, StreamScan, Write

Result = TypeVar("Result")

SCOPE = ScopePath("acme/alice/monday")
"""Default scope of test records."""
KIND = "message"
OTHER_KIND = "summary"
"""Another kind, which stores for conversations only accept as well."""


class Harness:
    """Opens stores at one URL and runs their coroutines, inline or on an event loop."""

    def __init__(self, url: str, *, on_loop: bool) -> None:
        self.url = url
        self.on_loop = on_loop
        self._runner = asyncio.Runner() if on_loop else None
        self._stores: list[Store] = []
        self._ahead = timedelta(0)
        self.store: Store = self.open()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self._stores:
            self.run(store.close())
        if self._runner is not None:
            self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result."""
        return step(coroutine) if self._runner is None else self._runner.run(coroutine)

    def open(self) -> Store:
        """Open the URL again, beside the stores that are open already."""
        url, backend = registry.find(self.url)

        async def opened() -> Store:
            return await backend.open(url)

        store = self.run(opened())
        store.clock = lambda: now() + self._ahead
        self._stores.append(store)
        return store

    @contextmanager
    def clock_off_by(self, offset: timedelta) -> Iterator[None]:
        """Shift the clock of the stores that are opened here."""
        before, self._ahead = self._ahead, offset
        try:
            yield
        finally:
            self._ahead = before

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for a condition; raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the condition was not met in time")
            time.sleep(0.01)

    def write(self, *ops: Op, id: str | None = None) -> list[Outcome]:
        """Apply operations, all or none."""
        return self.run(self.store.write(Write(ops, id)))

    def put(self, key: str, if_version: int | None = None, **fields: Any) -> Outcome:
        """Write one record, by default in the tests' scope and kind."""
        return self.write(Put(record(key, **fields), if_version))[0]

    def get(self, key: str, scope: ScopePath = SCOPE, kind: str = KIND) -> Record | None:
        """Read one record; None if it does not exist."""
        return self.run(self.store.read([Ref(scope, kind, key)]))[0]

    def read(self, key: str, scope: ScopePath = SCOPE, kind: str = KIND) -> Record:
        """Read one record, which must exist."""
        found = self.get(key, scope, kind)
        assert found is not None
        return found

    def page(self, **fields: Any) -> Page[Record]:
        """Read one page of a scan."""
        return self.run(self.store.scan(Scan(**{"scope": SCOPE, "kinds": (KIND,), **fields})))

    def scan(self, **fields: Any) -> list[Record]:
        """Read all pages of a scan."""
        found: list[Record] = []
        while True:
            page = self.page(**fields)
            found += page.items
            if page.cursor is None:
                return found
            fields = {**fields, "cursor": page.cursor, "skip": 0}

    def keys(self, **fields: Any) -> list[str]:
        """Return the keys of all records that a scan finds."""
        return [record.key for record in self.scan(**fields)]

    def streams(self, **fields: Any) -> list[Stream]:
        """Return the streams of a page."""
        return list(self.run(self.store.streams(StreamScan(**{"scope": ScopePath(), **fields}))).items)

    def stream(self, scope: ScopePath = SCOPE, kind: str = KIND) -> Stream:
        """Return one stream, which must not be empty."""
        (found,) = self.streams(scope=scope, kinds=(kind,), below=False)
        return found

    def is_empty(self, scope: ScopePath = SCOPE, kind: str = KIND) -> bool:
        """Return whether a stream is empty."""
        return self.streams(scope=scope, kinds=(kind,), below=False) == []


def record(key: str, *, scope: ScopePath = SCOPE, kind: str = KIND, **fields: Any) -> Record:
    """Return a record for a test."""
    return Record(scope=scope, kind=kind, key=key, **fields)


def without_times(found: Record | None) -> Record | None:
    """Return a record without store-assigned times, for comparison between stores."""
    return None if found is None else replace(found, created=None, updated=None)


def moment(text: str) -> datetime:
    """Return a time in UTC from its ISO form."""
    return datetime.fromisoformat(text + "+00:00")


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
    declares. A store whose back-end is `inline` is also tested without an event loop. An index that `searches_words`
    finds records by their words as well as by their vectors.
    """

    name: str
    empty: Empty
    capabilities: frozenset[Capability] = frozenset()
    inline: bool = False
    searches_words: bool = True


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
