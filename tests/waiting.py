"""`waiting://name`: `memory://name`, but only on an event loop, as a store across a network is."""

from __future__ import annotations

import asyncio
from typing import Any

from mnemic.layers.layer import Layer
from mnemic.store import registry
from mnemic.store.query import Outcome, Write
from mnemic.store.registry import Backend, StoreURL


class Waiting(Layer):
    """A store that waits for the event loop."""

    async def write(self, write: Write) -> list[Outcome]:
        await asyncio.sleep(0.0001)
        return await super().write(write)

    async def read(self, refs: Any) -> Any:
        await asyncio.sleep(0.0001)
        return await super().read(refs)


async def _open(url: StoreURL) -> Waiting:
    parsed, backend = registry.find(url.text.replace("waiting", "memory", 1))
    await asyncio.sleep(0.0001)
    return Waiting(await backend.open(parsed))


def register() -> None:
    """Register it."""
    registry.register("waiting", Backend(open=_open))
