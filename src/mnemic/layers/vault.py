"""The vault of redaction: the values behind hashes, encrypted with their own key, in the scope of their records."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import ConflictError, DecryptionError
from ..records import VAULT, Record, Ref, ScopePath
from ..redaction.redactor import TOKEN, tokens_in
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import MAX_CHOICES, Condition, Purge, Put, Scan, StreamScan, Write
from .cipher import DataKeys


class VaultStore:
    """Puts values into a store and finds them again."""

    def __init__(self, store: Store, key: bytes | str) -> None:
        """Raise InvalidValueError for an invalid key, MissingExtraError without `mnemic[encryption]`."""
        self._store = store
        self._keys = DataKeys.of_secret(key)
        self._checked = False

    async def _check_key(self) -> None:
        """Raise DecryptionError if the store has a value under another key; checked until one was found."""
        if self._checked:
            return
        page = await self._store.scan(Scan(scope=ScopePath(), kinds=(VAULT,), below=True, limit=1))
        for record in page.items:
            try:
                self._value(record)
            except DecryptionError:
                raise DecryptionError(
                    "the vault holds values under another key: open the memory with the key of the vault"
                ) from None
            self._checked = True

    def _value(self, record: Record) -> str:
        data: Any = record.data
        opened = self._keys.open(b64decode(data), record.key.encode(), record)
        return opened.decode(errors="surrogatepass")

    async def put(self, scope: ScopePath, values: Mapping[str, str]) -> None:
        """Keep values by their tokens, those that the scope does not have yet.

        Raises DecryptionError if the vault has another key.
        """
        await self._check_key()
        refs = {Ref(scope, VAULT, token): value for token, value in values.items()}
        stored = await self._store.read(list(refs))
        puts = [
            Put(self._record(ref, value), 0)
            for (ref, value), one in zip(refs.items(), stored, strict=True)
            if one is None
        ]
        for put in puts:
            with suppress(ConflictError):  # another writer was faster
                await self._store.write(Write((put,)))

    def _record(self, ref: Ref, value: str) -> Record:
        sealed = self._keys.seal(value.encode(errors="surrogatepass"), ref.key.encode())
        return Record(ref.scope, ref.kind, ref.key, data=b64encode(sealed).decode())

    async def reveal(self, scope: ScopePath, text: str) -> str:
        """Return a text with the values of its tokens, as far as this scope and those below it have them.

        Raises DecryptionError if the vault has another key.
        """
        tokens = sorted(tokens_in(text))
        known: dict[str, str] = {}
        for start in range(0, len(tokens), MAX_CHOICES):
            where = (Condition("key", "in", tuple(tokens[start : start + MAX_CHOICES])),)
            async for record in scan_all(self._store, Scan(scope=scope, kinds=(VAULT,), below=True, where=where)):
                known[record.key] = self._value(record)
        return TOKEN.sub(lambda match: known.get(match[0], match[0]), text)


async def erase_values(store: Store, scope: ScopePath) -> int:
    """Delete the values of a scope and everything below it; return how many there were."""
    streams = all_streams(store, StreamScan(scope=scope, kinds=(VAULT,), empty=True))
    gone = 0
    for stream in [stream async for stream in streams]:
        (outcome,) = await store.write(Write((Purge(stream.scope, VAULT, drop=True),)))
        gone += outcome.count
    return gone
