"""Recall by the server of a store that searches itself, in place of the index layer."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InvalidValueError
from ..models.embedder import Embedder
from ..recall.metrics import Metrics
from ..records import RECALLED, ScopePath
from ..store.protocol import all_streams
from ..store.query import Search, StreamScan
from .layer import Layer


class ServedLayer(Layer):
    """Passes searches to the store below, whose server has the index."""

    async def warm(self, scope: ScopePath) -> int:
        """Have the server load the index of a scope; return how many records of searchable kinds there are."""
        await self.search(Search(scope=scope, query="", limit=1, uses=False))
        streams = all_streams(self._below, StreamScan(scope=scope, kinds=RECALLED))
        return sum([stream.count async for stream in streams])

    async def metrics(self) -> Metrics:
        raise _on_server("the recall metrics", "GET /api/v1/metrics")

    async def reembed(
        self, embedder: Embedder | str | None, progress: Callable[[int, int], object] | None = None
    ) -> int:
        raise _on_server("the embedder", "mnemic reembed")

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        raise _on_server("the companion index", "mnemic reindex")

    async def prepare(self) -> None:
        """Do nothing: the server has the embedder."""


def _on_server(what: str, how: str) -> InvalidValueError:
    return InvalidValueError(f"{what} of this memory is the server's: use {how} there")
