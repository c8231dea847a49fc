"""A store under test, with shortcuts for writing and reading."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from ..event_loop import step
from ..records import Record, Ref, ScopePath, Stream, now
from ..store import registry
from ..store.protocol import Page, Store
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

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
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
