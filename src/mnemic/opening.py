"""Opens a memory from a URL, and closes what was opened if something fails."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

from msgspec.structs import replace

from .checks import check_count
from .layers.acting import Auditing, audit_of
from .layers.sealing import EncryptionKeys, Keyring
from .memory import AsyncMemory, Tokens, in_clear
from .models.embedder import Embedder
from .models.finding import AUTO, find_embedder
from .recall.entry import INDEX_BYTES
from .store import registry
from .store.nearest import GROUP as INDEXES
from .store.nearest import Companion
from .store.protocol import Store
from .tokens import DEFAULT_ENCODING, counter


class Opening:
    """A memory being opened: `await` it, or use it with `async with`."""

    def __init__(
        self,
        url: str,
        tokens: Tokens,
        embedder: Embedder | str | None,
        index: str | None = None,
        encryption_key: EncryptionKeys | None = None,
        audit: Auditing = None,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        self._url = url
        self._tokens = tokens
        self._embedder = embedder
        self._companion_url = index
        self._key = encryption_key
        self._audit = audit
        self._index_bytes = check_count(index_bytes, "index_bytes")
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
        keys = None if self._key is None else Keyring(self._key)
        if keys is not None and self._companion_url is not None:
            raise in_clear()
        audit = audit_of(self._audit)
        companion: Companion | None = None
        async with AsyncExitStack() as opened:
            if self._companion_url is not None:
                companion = await open_companion(self._companion_url)
                opened.push_async_callback(companion.close)
            store = await backend.open(url)
            opened.push_async_callback(store.close)
            if audit is not None and isinstance(audit.store, str):
                trail = await _open_trail(store, keys, audit.store)
                opened.push_async_callback(trail.close)
                audit = replace(audit, store=trail)
            memory = AsyncMemory(store, tokens, str(url), embedder, companion, keys, audit, self._index_bytes)
            await memory._prepare()
            opened.pop_all()
        return memory


async def _open_trail(store: Store, keys: Keyring | None, url: str) -> Store:
    """Open the store of an audit log, encrypted if the memory is."""
    from .layers.encrypt import EncryptLayer
    from .layers.ported import open_beside

    return await open_beside(store if keys is None else EncryptLayer(store, keys), url)


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
    encryption_key: EncryptionKeys | None = None,
    audit: Auditing = None,
    index_bytes: int = INDEX_BYTES,
) -> Opening:
    """Open the memory at a URL for use on an event loop: await it, or use it with `async with`.

    `tokens` selects the token counter, `embedder` the vectors: an Embedder or its name; "auto" is the one that
    made the store's vectors, None is keyword search only. `index` is the URL of a companion index for recall.
    `encryption_key` encrypts all content: 32 bytes, a Fernet key, or a list whose first key encrypts. `audit`
    logs all changes: True for the same store, another store or its URL, or an `Audit`. `index_bytes` bounds the
    memory of all cached indexes together, except for a single larger one. Raises InvalidValueError,
    EmbedderError, MissingExtraError or a StoreError, such as DecryptionError, when awaited.
    """
    return Opening(url, tokens, embedder, index, encryption_key, audit, index_bytes)


def audits_inline(audit: Auditing) -> bool:
    """Return whether an audit log can be written without an event loop."""
    given = audit_of(audit)
    store = None if given is None else given.store
    return store is None or (isinstance(store, str) and registry.find(store)[1].inline)
