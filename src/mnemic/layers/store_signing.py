"""The signing keys of a store: those that the caller gave, or one that is generated and kept in the store itself.

A kept key is encrypted with the rest of the store. In a store that is not encrypted, everyone who can read it can sign
as well, so only a given key proves something to others.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConflictError, InvalidValueError, StorePermissionError
from ..records import SIGNING_KIND, Record, ScopePath, unreadable
from ..signing import SigningKey, SigningKeys, signing_keys
from ..store.confinement import Unconfined
from ..store.protocol import Capability, Store, scan_all
from ..store.query import Put, Scan, Write


class StoreSigning:
    """Finds the signing keys of a store."""

    def __init__(self, store: Store, given: SigningKeys | None = None) -> None:
        """Take the store in which a key is kept if none is given; raises InvalidValueError for an invalid key."""
        self._store = store
        self.given: bool = given is not None
        """Whether the caller has given the key, so that it is not in the store."""
        self._keys = [] if given is None else signing_keys(given)

    async def key(self) -> SigningKey:
        """Return the key that signs, generated if there is none.

        Raises InvalidValueError if no key was given and none can be kept, as on a server.
        """
        if (key := await self.find()) is None:
            raise InvalidValueError("no signing key can be kept in this store: pass signing_key")
        return key

    async def find(self) -> SigningKey | None:
        """Return the key that signs, generated if there is none; None if none was given and none can be kept."""
        if not self._keys and not await self.keys():
            if Capability.RECORDS not in self._store.capabilities:
                return None
            kept = SigningKey.generate()
            record = Record(ScopePath(), SIGNING_KIND, "first", data={"secret": kept.secret_text()})
            try:
                with Unconfined():
                    await self._store.write(Write((Put(record, 0),)))
            except ConflictError:
                pass  # another process was faster
            except StorePermissionError:
                return None
            await self.keys()
        return self._keys[0]

    async def keys(self) -> list[SigningKey]:
        """Return all keys, the signing one first; none if the store has none yet.

        Raises UnreadableStoreError for a damaged one.
        """
        if not self._keys:
            scan = Scan(scope=ScopePath(), kinds=(SIGNING_KIND,))
            with Unconfined():
                self._keys = [_kept(record) async for record in scan_all(self._store, scan)]
        return self._keys


def _kept(record: Record) -> SigningKey:
    data: Any = record.data
    try:
        return SigningKey(data["secret"])
    except (InvalidValueError, KeyError, TypeError) as error:
        raise unreadable(record, error) from None
