"""Recall by the server of a store that searches itself, in place of the index layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from ..errors import InvalidValueError
from ..models.embedder import Embedder
from ..recall.metrics import Metrics
from ..records import RECALLED, ScopePath
from ..store.protocol import SearchableStore, all_streams
from ..store.query import Search, StreamScan
from .layer import Layer


class SearchServer(SearchableStore, Protocol):
    """A store with the capability SEARCH."""

    async def metrics(self) -> Metrics:
        """Return the recall metrics of the server."""
        ...


class ServerSearchLayer(Layer):
    """Passes searches to the store below, whose server has the index."""

    async def warm(self, scope: ScopePath) -> int:
        """Have the server load the index of a scope; return how many records of searchable kinds there are."""
        await self.search(Search(scope=scope, query="", limit=1, uses=False))
        streams = all_streams(self._below, StreamScan(scope=scope, kinds=RECALLED))
        return sum([stream.count async for stream in streams])

    async def metrics(self) -> Metrics:
        return await cast("SearchServer", self._below).metrics()

    async def reembed(
        self, embedder: Embedder | str | None, progress: Callable[[int, int], object] | None = None
    ) -> int:
        raise InvalidValueError("the server has the embedder of this memory: run mnemic reembed there")

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        raise InvalidValueError("there is no companion index to rebuild: run mnemic reindex on the server")

    async def prepare(self) -> None:
        """Do nothing: the server has the embedder."""
