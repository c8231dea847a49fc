"""Opens a second store on behalf of a store: an archive, or an audit log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from ..event_loop import Portal, running_loop
from ..records import Record, Ref, Stream
from ..store import registry
from ..store.protocol import Page, Store
from ..store.query import Outcome, Scan, StreamScan, Write
from ..store.registry import Backend, StoreURL
from .encryption import EncryptLayer, check_plain
from .layer import Layer, beside


async def open_beside(store: Store, url: str) -> Store:
    """Open the store at a URL for data from `store`: encrypted with the same keys, if that one is.

    Raises as `registry.find` does, or a StoreError.
    """
    parsed, backend = registry.find(url)
    # Inline there is no event loop on which a remote store could wait.
    alone = running_loop() is None and not backend.inline
    opened = _PortalStore(backend, parsed, store.clock) if alone else await _open(backend, parsed, store.clock)
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


async def _open(backend: Backend, url: StoreURL, clock: Callable[[], datetime]) -> Store:
    opened = await backend.open(url)
    opened.clock = clock
    return opened


class _PortalStore(Layer):
    """Runs a store on a background event loop, for callers without a loop of their own."""

    def __init__(self, backend: Backend, url: StoreURL, clock: Callable[[], datetime]) -> None:
        self._portal = Portal()
        try:
            super().__init__(self._portal.run(_open(backend, url, clock)))
        except BaseException:
            self._portal.close()
            raise

    async def write(self, write: Write) -> list[Outcome]:
        return self._portal.run(self._below.write(write))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return self._portal.run(self._below.read(refs))

    async def scan(self, scan: Scan) -> Page[Record]:
        return self._portal.run(self._below.scan(scan))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return self._portal.run(self._below.streams(scan))

    async def scrub(self) -> None:
        self._portal.run(super().scrub())

    async def close(self) -> None:
        self._portal.run(self._below.close())
        self._portal.close()
