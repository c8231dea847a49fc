"""The front door: from a URL to a memory, from a memory to a scope, from a scope to what one does with it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import EmbedderError, InvalidValueError
from .features.catalogue import AsyncCatalogue
from .features.context import Context, build_context
from .features.fading import AsyncFading
from .features.graph import AsyncGraph
from .features.messages import MESSAGE
from .features.overflow import Limits, Overflow
from .features.sessions import AsyncSession, Retention, SessionInfo
from .models.embedder import Embedder
from .models.finding import AUTO, find_embedder
from .recall.meter import Metrics
from .records import NOTE_KIND, Scope
from .store import registry
from .store.nearest import GROUP as INDEXES
from .store.nearest import Companion
from .store.protocol import Capability, Store, all_streams
from .store.query import Purge, StreamScan, Write
from .tokens import DEFAULT_ENCODING, TokenCounter, counter

if TYPE_CHECKING:
    from .layers.index import IndexLayer

Tokens: TypeAlias = str | TokenCounter | Callable[[str], int]
"""What counts tokens: an encoding's name, a counter, or a function from a text to a number."""


def indexed(
    store: Store, embedder: Embedder | str | None, companion: Companion | None = None
) -> IndexLayer | None:
    """Return the layer that gives recall to a store; None if the store has it by itself."""
    if Capability.LEXICAL in store.capabilities:
        return None
    from .layers.index import IndexLayer

    return IndexLayer(store, embedder, companion=companion)


class AsyncMemory:
    """All that is remembered at one URL."""

    url: str

    def __init__(
        self,
        store: Store,
        tokens: Tokens = DEFAULT_ENCODING,
        url: str = "",
        embedder: Embedder | str | None = AUTO,
        companion: Companion | None = None,
    ) -> None:
        """`store` is any store, `companion` an index beside it; `open_async` finds both by their URLs."""
        self.url = url
        self._index = indexed(store, embedder, companion)
        self._store: Store = store if self._index is None else self._index
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

    async def reembed(
        self, embedder: Embedder | str, *, progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Make the vectors of all that is stored with another embedder, then use it; return how many texts.

        Recall goes on with the old vectors until all are made. Called again after it was broken off, it
        goes on where it was. `progress` is called with how many records are done and how many there are.
        Other processes that have the store open must open it again afterwards: what they ask for raises
        EmbedderError. Raises EmbedderError if the embedder fails.
        """
        return await self._own_index().move(embedder, progress)

    async def warm(self, *segments: Scope | str) -> int:
        """Make all that recall in a scope needs, and read it in, so that the first recall is as fast as any.

        Returns how many texts can be found there; 0 if the store searches by itself, and needs none of it.
        """
        scope = Scope.of(*segments)
        return 0 if self._index is None else await self._index.warm(scope)

    async def reindex(self, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Make the companion index anew from the records; return how many texts it holds then.

        `progress` is called with how many records are done and how many there are. Raises
        InvalidValueError if the memory was opened without one.
        """
        return await self._own_index().reindex(progress)

    async def metrics(self) -> Metrics:
        """Return how recall has done since the memory was opened: what it found, what was used, its drift.

        Raises EmbedderError if the store searches by itself.
        """
        return await self._own_index().metrics()

    def _own_index(self) -> IndexLayer:
        if self._index is None:
            raise EmbedderError(f"{self.url or 'this store'} searches by itself, without an index of ours")
        return self._index

    async def _prepare(self) -> None:
        if self._index is not None:
            await self._index.prepare()

    async def close(self) -> None:
        """Let go of files, connections and threads; everything after that raises ClosedError."""
        await self._store.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSpace(AsyncFading):
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

    async def context(
        self,
        query: str | None = None,
        max_tokens: int = 4000,
        *,
        session: str | None = None,
        share: float = 0.5,
        kinds: Sequence[str] | str | None = None,
    ) -> Context:
        """Return one block for a prompt that costs at most `max_tokens`.

        In it, oldest first and nothing twice: the system message and the running summary of the
        `session`, what recall finds in this scope for the query (for the user's last message if none is
        given), and the session's newest turns. `share` of the budget is recall's, if it needs it; what it
        leaves goes to older turns. Raises BudgetError if the budget is too small for what must be in it.
        """
        chat = None if session is None else self.session(session)
        if query is None and chat is None:
            raise InvalidValueError("context needs a query, or a session whose last message is one")
        return await build_context(
            self._store, self._tokens, self.home, chat, query, max_tokens, share, kinds
        )

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

    def __init__(
        self, url: str, tokens: Tokens, embedder: Embedder | str | None, index: str | None = None
    ) -> None:
        self._url = url
        self._tokens = tokens
        self._embedder = embedder
        self._companion_url = index
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
        tokens = counter(self._tokens)
        embedder = self._embedder if self._embedder == AUTO else find_embedder(self._embedder)
        companion = await open_companion(self._companion_url) if self._companion_url is not None else None
        try:
            store = await backend.open(url)
        except BaseException:
            if companion is not None:
                await companion.close()
            raise
        memory = AsyncMemory(store, tokens, str(url), embedder, companion)
        try:
            await memory._prepare()
        except BaseException:
            await memory.close()
            raise
        return memory


async def open_companion(url: str) -> Companion:
    """Open the companion index at a URL; raises as `registry.find` does, or a StoreError."""
    parsed, maker = registry.found_in(INDEXES, url)
    companion: Companion = await maker.open(parsed)
    return companion


def open_async(
    url: str,
    *,
    tokens: Tokens = DEFAULT_ENCODING,
    embedder: Embedder | str | None = AUTO,
    index: str | None = None,
) -> Opening:
    """Open the memory at a URL for use on an event loop; to be awaited, or used with `async with`.

    `tokens` says how tokens are counted, `embedder` what makes vectors: an Embedder or the name of one;
    "auto" is the one whose vectors the store holds, and None is none. `index` is the URL of a companion
    index, in which recall then searches. Raises InvalidValueError, EmbedderError or a StoreError when
    awaited.
    """
    return Opening(url, tokens, embedder, index)


async def _purge_all(store: Store, scope: Scope, *, expired_only: bool = False, drop: bool = False) -> int:
    removed = 0
    streams = [stream async for stream in all_streams(store, StreamScan(scope=scope, empty=True))]
    for stream in streams:
        (did,) = await store.write(Write((Purge(stream.scope, stream.kind, (), expired_only, drop),)))
        # What the store notes about itself was nobody's to count.
        removed += did.count if stream.kind != NOTE_KIND else 0
    return removed
