"""The metadata record of an encrypted store: marks it as encrypted and holds the key of its label hashes.

Label hashes must survive key rotation, so their key is random, created with the first write, and stored encrypted
like any value; a rotation only rewraps it. The record also lists the names of derived values, so that a rotation
can find them.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from typing import Any

from msgspec import Struct

from ..errors import ConflictError, DecryptionError
from ..event_loop import pause
from ..records import LOCK_KIND, Record, Ref, ScopePath
from ..store.protocol import Store
from ..store.query import Put, StreamScan, Write
from .sealing import Keyring, Labels, key_of

LOCK = Ref(ScopePath(), LOCK_KIND, "current")
"""Ref of the metadata record; hidden from callers above."""

PATIENCE = 10.0
"""How many seconds to wait for others who read or write the metadata record."""

_BOUND = b"key of the labels"


class Held(Struct, frozen=True):
    """Content of the metadata record."""

    version: int
    wrapped: bytes
    secret: bytes
    labels: Labels
    names: frozenset[str]


class Lock:
    """Reads, creates and changes the metadata record of a store."""

    def __init__(self, store: Store, keys: Keyring, url: str = "") -> None:
        self._name = url or "the store"
        self._store = store
        self._keys = keys
        self._held: Held | None = None
        self._busy = False

    async def look(self, *, again: bool = False) -> Held | None:
        """Return its content, None if there is none yet; raises DecryptionError."""
        if self._held is None or again:
            (record,) = await self._store.read([LOCK])
            self._held = None if record is None else self._read(record)
        return self._held

    async def hold(self, names: set[str]) -> Held:
        """Return its content, created if there is none, with these names of derived values.

        Raises DecryptionError if the store has records but no metadata record: they are not encrypted.
        """
        since = time.monotonic()
        while (held := self._held) is None or not names <= held.names:
            # Of several first writers, one reads and the others wait, but not forever.
            if self._busy and time.monotonic() - since < PATIENCE:
                await pause()
                continue
            self._busy = True
            try:
                held = await self.look(again=True)
                if held is None:
                    await self.check()
                    await self._write(os.urandom(32), names, 0)
                elif not names <= held.names:
                    await self._write(held.secret, names | held.names, held.version)
                await self.look(again=True)
            finally:
                self._busy = False
        return held

    async def check(self) -> None:
        """Raise DecryptionError if the store cannot be opened with these keys, or is not encrypted."""
        if await self.look() is not None:
            return
        page = await self._store.streams(StreamScan(scope=ScopePath(), limit=1))
        if page.items and await self.look(again=True) is None:
            raise DecryptionError(
                f"{self._name} holds records that are not encrypted: copy them to an empty store, with a key"
            )

    async def wrap(self) -> None:
        """Encrypt the label key with the first key."""
        while (held := await self.look(again=True)) is not None:
            if key_of(held.wrapped, self._name) == self._keys.first:
                return
            await self._write(held.secret, held.names, held.version)

    async def _write(self, secret: bytes, names: set[str] | frozenset[str], version: int) -> None:
        """Write the metadata record, unless another writer was faster."""
        wrapped = b64encode(self._keys.seal(secret, _BOUND)).decode()
        data = {"format": 1, "labels": wrapped, "derived": sorted(names)}
        try:
            await self._store.write(Write((Put(Record(LOCK.scope, LOCK.kind, LOCK.key, data=data), version),)))
        except ConflictError:
            return

    def _read(self, record: Record) -> Held:
        data: Any = record.data
        wrapped = b64decode(data["labels"])
        secret = self._keys.open(wrapped, _BOUND, self._name)
        return Held(record.version, wrapped, secret, Labels(secret), frozenset(data["derived"]))


async def check_plain(store: Store, url: str) -> None:
    """Raise DecryptionError if a store opened without a key is encrypted."""
    (record,) = await store.read([LOCK])
    if record is not None:
        raise DecryptionError(
            f"{url or 'this store'} is encrypted: open it with encryption_key=…, or on the command line --key-file "
            "or --key-env"
        )
