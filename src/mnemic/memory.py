"""The front door: from a URL to a memory, from a memory to a scope, from a scope to what one does with it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, TypeAlias

from .features.catalogue import AsyncCatalogue
from .features.graph import AsyncGraph
from .features.longterm import AsyncLongTerm
from .features.messages import MESSAGE
from .features.overflow import Limits, Overflow
from .features.sessions import AsyncSession, Retention, SessionInfo
from .records import Scope
from .store import registry
from .store.protocol import Capability, Store, all_streams
from .store.query import Purge, StreamScan, Write
from .tokens import DEFAULT_ENCODING, TokenCounter, counter

Tokens: TypeAlias = str | TokenCounter | Callable[[str], int]
"""What counts tokens: an encoding's name, a counter, or a function from a text to a number."""


def layered(store: Store) -> Store:
    """Return a back-end with the layers over it that it needs, in their order."""
    if Capability.LEXICAL not in store.capabilities:
        from .layers.index import IndexLayer

        store = IndexLayer(store)
    return store


class AsyncMemory:
    """All that is remembered at one URL."""

    url: str

    def __init__(self, store: Store, tokens: Tokens = DEFAULT_ENCODING, url: str = "") -> None:
        """`store` is any store; `open_async` finds one by its URL."""
        self.url = url
        self._store = layered(store)
        self._tokens = counter(tokens)

    def scope(self, *segments: Scope | str) -> AsyncSpace:
        """Return what is remembered under a scope; each string is one segment.

        Raises InvalidValueError for a segment that is empty, too long, or holds '/' or control
        characters.
        """
        return AsyncSpace(self._store, Scope.of(*segments), self._tokens)

    async def sweep(self) -> int:
        """Remove from the store what has expired, which reads hide already; return how many records."""
        return await _purge_all(self._store, Scope(), expired_only=True)

    async def close(self) -> None:
        """Let go of files, connections and threads; everything after that raises ClosedError."""
        await self._store.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSpace(AsyncLongTerm):
    """What is remembered under one scope, and the ways to it."""

    def __init__(self, store: Store, home: Scope, tokens: TokenCounter) -> None:
        super().__init__(store, home)
        self._tokens = tokens

    def scope(self, *segments: Scope | str) -> AsyncSpace:
        """Return what is remembered under a scope below this one; raises InvalidValueError."""
        return AsyncSpace(self._store, Scope.of(self.home, *segments), self._tokens)

    def session(
        self,
        name: str,
        *,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        overflow: Overflow = "drop",
        keep: float = 0.8,
        retention: Retention = "persistent",
        ttl: timedelta | None = None,
    ) -> AsyncSession:
        """Return the conversation of this name, which begins with its first message.

        Past `max_messages` or `max_tokens` the oldest messages overflow: "drop" forgets them,
        "archive" moves them to the session's archive, a function is called with them first, and
        `Summarise` archives them and keeps a running summary; all but "drop" make room down to
        `keep` of the limit. Raises InvalidValueError for a name or a limit that is none.
        """
        limits = Limits(max_messages=max_messages, max_tokens=max_tokens, overflow=overflow, keep=keep)
        return AsyncSession(self._store, self.home / name, self._tokens, limits, retention, ttl)

    async def sessions(self) -> list[SessionInfo]:
        """Return the conversations below this scope with their counts, tokens and last activity."""
        scan = StreamScan(scope=self.home, kinds=(MESSAGE,))
        return [SessionInfo.of(stream) async for stream in all_streams(self._store, scan)]

    def catalogue(self, *, max_entries: int | None = None, max_bytes: int | None = None) -> AsyncCatalogue:
        """Return the notes of this scope; writes past a limit raise LimitError."""
        return AsyncCatalogue(self._store, self.home, max_entries, max_bytes)

    def graph(self) -> AsyncGraph:
        """Return the facts of this scope."""
        return AsyncGraph(self._store, self.home)

    async def erase(self) -> int:
        """Remove everything in this scope and below it, of every kind; return how many records.

        Not even the names of the scopes are left behind.
        """
        return await _purge_all(self._store, self.home, drop=True)


class Opening:
    """A memory that is being opened: `await` it, or use it with `async with`."""

    def __init__(self, url: str, tokens: Tokens) -> None:
        self._url = url
        self._tokens = tokens
        self._memory: AsyncMemory | None = None

    def __await__(self) -> Generator[Any, None, AsyncMemory]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncMemory:
        self._memory = await self._open()
        return self._memory

    async def __aexit__(self, *error: object) -> None:
        if self._memory is not None:
            await self._memory.close()

    async def _open(self) -> AsyncMemory:
        url, backend = registry.find(self._url)
        return AsyncMemory(await backend.open(url), self._tokens, str(url))


def open_async(url: str, *, tokens: Tokens = DEFAULT_ENCODING) -> Opening:
    """Open the memory at a URL for use on an event loop; to be awaited, or used with `async with`.

    `tokens` says how tokens are counted. Raises InvalidValueError or a StoreError when awaited.
    """
    return Opening(url, tokens)


async def _purge_all(store: Store, scope: Scope, *, expired_only: bool = False, drop: bool = False) -> int:
    removed = 0
    streams = [stream async for stream in all_streams(store, StreamScan(scope=scope, empty=True))]
    for stream in streams:
        (did,) = await store.write(Write((Purge(stream.scope, stream.kind, (), expired_only, drop),)))
        removed += did.count
    return removed
