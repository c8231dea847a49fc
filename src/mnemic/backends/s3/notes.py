"""Journal entries of writes over several tenants: small objects with compare-and-swap."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress

from ...errors import StoreError
from .client import Bucket, Found
from .codec import Keys

REMEMBERED = 1000
"""How many entries are cached."""


class Notes:
    """Journal entries by name; an empty object counts as absent."""

    def __init__(self, bucket: Bucket, keys: Keys) -> None:
        self._bucket = bucket
        self._keys = keys
        self._seen: OrderedDict[str, Found | None] = OrderedDict()

    async def get(self, key: str) -> bytes | None:
        """Return an entry; None if it does not exist."""
        return _note(await self._look(key))

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        """Compare and swap an entry, None being absent; return False if it has changed."""
        # The last seen state is assumed; the conditional put fails if it is stale.
        seen = self._seen.get(key)
        known = before is None or key in self._seen
        if known and _note(seen) == before and await self._put(key, seen, after):
            return True
        found = await self._look(key)
        return _note(found) == before and await self._put(key, found, after)

    async def _look(self, key: str) -> Found | None:
        found = await self._bucket.get(self._keys.note(key))
        self._remember(key, found)
        return found

    async def _put(self, key: str, held: Found | None, after: bytes | None) -> bool:
        """Replace the entry as last seen; return False if it has changed."""
        at, body = self._keys.note(key), b"" if after is None else b"+" + after
        if held is None and after is None:
            return await self._bucket.get(at) is None
        self._seen.pop(key, None)
        if after is None and held is not None and self._bucket.conditional_deletes:
            return await self._bucket.delete(at, only=held.etag) or await self._bucket.get(at) is None
        etag = await self._bucket.put(at, body, over=None if held is None else held.etag)
        if etag is None:
            # The first attempt may have succeeded.
            found = await self._bucket.get(at)
            if found is None or found.data != body:
                return False
            etag = found.etag
        if after is not None:
            self._remember(key, Found(body, etag))
            return True
        # A deleted entry is never put again, so this cannot delete another one.
        with suppress(StoreError):
            await self._bucket.delete(at)
        return True

    def _remember(self, key: str, found: Found | None) -> None:
        self._seen[key] = found
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)


def _note(found: Found | None) -> bytes | None:
    return found.data[1:] if found is not None and found.data else None
