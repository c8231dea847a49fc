"""Opens a second store on behalf of a store: an archive, or an audit log."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ..event_loop import Portal, running_loop
from ..records import Record, Ref, Stream
from ..store import registry
from ..store.protocol import Capability, Page, Store
from ..store.query import Outcome, Scan, StreamScan, Write
from ..store.registry import Backend, StoreURL
from .encryption import EncryptLayer, check_plain
from .layer import beside

Result = TypeVar("Result")


async def open_beside(store: Store, url: str) -> Store:
    """Open the store at a URL for data from `store`: encrypted with the same keys, if that one is.

    Raises as `registry.find` does, or a StoreError.
    """
    parsed, backend = registry.find(url)
    # Inline there is no event loop on which a remote store could wait.
    alone = running_loop() is None and not backend.inline
    opened: Store
    if alone:
        opened = _PortalStore(backend, parsed, store.clock)
    else:
        opened = await backend.open(parsed)
        opened.clock = store.clock
    try:
        other = beside(store, opened)
        if isinstance(other, EncryptLayer):
            await other.prepare()
        else:
            await check_plain(other, str(parsed))
    except BaseException:
        await opened.close()
        raise
    return other


class _PortalStore:
    """A store on a background event loop, for callers without a loop of their own."""

    def __init__(self, backend: Backend, url: StoreURL, clock: Callable[[], datetime]) -> None:
        async def open() -> Store:
            return await backend.open(url)

        self._portal = Portal()
        try:
            self._store = self._portal.run(open())
        except BaseException:
            self._portal.close()
            raise
        self.clock: Callable[[], datetime] = clock
        self._store.clock = clock

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._store.capabilities

    async def write(self, write: Write) -> list[Outcome]:
        return self._run(self._store.write(write))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return self._run(self._store.read(refs))

    async def scan(self, scan: Scan) -> Page[Record]:
        return self._run(self._store.scan(scan))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return self._run(self._store.streams(scan))

    async def close(self) -> None:
        self._run(self._store.close())
        self._portal.close()

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self._portal.run(call)
