"""Key store, archives, audit logs and files of an encrypted store, which are encrypted with the same keys."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import DecodeError, json

from ..errors import DecryptionError, InvalidValueError
from ..event_loop import Portal, off_loop, running_loop
from ..records import Record, Ref, ScopePath, Stream
from ..store import registry
from ..store.protocol import Page, Scrubbed, Store, all_streams
from ..store.query import Outcome, Scan, StreamScan, Write
from ..store.registry import Backend, StoreURL, closed_on_error
from .cipher import DataKeys
from .encryption import EncryptLayer, check_plain
from .encryption_metadata import METADATA_REF, is_internal, to_data, to_wrapped
from .layer import Layer, find_layer
from .master_key import EncryptionKeys, MasterKeys, encryption_of
from .restricted import require_whole

FORMAT = "mnemic.encrypted/1"
_START = f'{{"format":"{FORMAT}"'.encode()
_BOUND = b"file"


async def open_encrypted(store: Store, given: EncryptionKeys, url: str = "") -> EncryptLayer:
    """Return the encryption layer over a store, with its key store open.

    Raises InvalidValueError for an invalid key, and as `registry.find` does for the URL of the key store.
    """
    encryption = encryption_of(given)
    masters = MasterKeys(encryption.key)
    if encryption.key_store is None:
        return EncryptLayer(store, masters, url, subject_level=encryption.subject_level)
    await _check_before(store, encryption.key_store, url or "the store")
    key_store = await _opened(encryption.key_store, store)
    async with closed_on_error(key_store):
        await _check_key_store(key_store, f"the key store {StoreURL.parse(encryption.key_store)}")
        return EncryptLayer(store, masters, url, subject_level=encryption.subject_level, key_store=key_store)


async def _check_before(store: Store, key_store: str, name: str) -> None:
    """Raise DecryptionError if a store cannot have a key store, or its key store is lost: opening would create one."""
    parsed, backend = registry.find(key_store)
    (record,) = await store.read([METADATA_REF])
    if record is None:
        if await _has_records(store):
            raise DecryptionError(
                f"{name} holds records that are not encrypted: copy them to an empty store, with a key"
            )
        return
    if isinstance(record.data, dict) and "store" in record.data:
        raise DecryptionError(f"{name} keeps its data keys itself: open it without key_store")
    waits = running_loop() is None and not backend.inline
    if backend.exists is not None and not waits and not await backend.exists(parsed):
        raise DecryptionError(
            f"there is no key store at {parsed}, which has the data keys of {name}: restore its newest copy there"
        )


async def _check_key_store(store: Store, name: str) -> None:
    """Raise InvalidValueError if a store has anything but data keys."""
    (record,) = await store.read([METADATA_REF])
    if record is not None:
        raise InvalidValueError(f"{name} is an encrypted store itself: use another one")
    if await _has_records(store):
        raise InvalidValueError(f"{name} holds records, which are no data keys: use another store for the keys")


async def _has_records(store: Store) -> bool:
    """Return whether a store has anything but the records of its encryption, or that of others."""
    async with aclosing(all_streams(store, StreamScan(scope=ScopePath(), limit=10))) as streams:
        async for stream in streams:
            if not is_internal(stream.scope, stream.kind):
                return True
    return False


async def open_auxiliary(store: Store, url: str, *, existing: bool = False) -> Store:
    """Open the store at a URL for data from `store`: encrypted with the same keys, if that one is.

    Raises as `registry.find` does, or a StoreError, such as AccessDeniedError beside a restricted store; with
    `existing`, NotFoundError if there is no store yet.
    """
    require_whole(store, "another store beside it")
    if existing:
        await _check_exists(url)
    opened = await _opened(url, store)
    layer = find_layer(store, EncryptLayer)
    async with closed_on_error(opened):
        if layer is None:
            await check_plain(opened, str(StoreURL.parse(url)))
            return opened
        encrypted = layer.beside(opened)
        await encrypted.prepare()
        return encrypted


async def _check_exists(url: str) -> None:
    if running_loop() is not None or registry.find(url)[1].inline:
        await registry.find_existing(url)
        return
    portal = Portal()
    try:
        portal.run(registry.find_existing(url))
    finally:
        portal.close()


async def _opened(url: str, store: Store) -> Store:
    """Open a URL for the callers, and with the clock, of another store."""
    parsed, backend = registry.find(url)
    # Inline there is no event loop on which a remote store could wait.
    alone = running_loop() is None and not backend.inline
    opened: Store = _PortalStore(backend, parsed) if alone else await backend.open(parsed)
    opened.clock = store.clock
    return opened


class _PortalStore(Layer):
    """Runs a store on a background event loop, for callers without a loop of their own."""

    def __init__(self, backend: Backend, url: StoreURL) -> None:
        self._portal = Portal()
        try:
            super().__init__(self._portal.run(_awaited(backend.open(url))))
        except BaseException:
            self._portal.close()
            raise

    async def write(self, write: Write) -> list[Outcome]:
        return self._portal.run(self._below.write(write))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return self._portal.run(self._below.read(refs))

    async def scan(self, scan: Scan) -> Page[Record]:
        return self._portal.run(self._below.scan(scan))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return self._portal.run(self._below.streams(scan))

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        return self._portal.run(super().scrub(finish=finish))

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        return self._portal.run(super().destroy(scope))

    async def close(self) -> None:
        self._portal.run(self._below.close())
        self._portal.close()


async def _awaited(opening: Awaitable[Store]) -> Store:
    return await opening


async def encrypted_file(store: Store, content: bytes) -> bytes:
    """Return the content of a file, encrypted if the store is; raises StoreError if a master key's function fails."""
    layer = find_layer(store, EncryptLayer)
    if layer is None:
        return content
    keys = DataKeys.generate(FORMAT)
    sealed = await off_loop(lambda: b64encode(keys.seal(content, _BOUND)).decode())
    return json.encode({"format": FORMAT, "keys": to_data(await layer.masters.wrap(keys.packed())), "sealed": sealed})


async def decrypted_file(store: Store, content: bytes, name: str) -> bytes:
    """Return the decrypted content of a file, or the content as it is if it is not encrypted.

    Raises DecryptionError if it has another key, was modified, or the store is opened without a key.
    """
    if not content.startswith(_START):
        return content
    layer = find_layer(store, EncryptLayer)
    if layer is None:
        raise DecryptionError(f"{name} is encrypted: open the memory with its encryption_key")
    try:
        data: dict[str, Any] = json.decode(content)
        sealed = b64decode(data["sealed"], validate=True)
        wrapped = to_wrapped(data["keys"], name)
    except (DecodeError, KeyError, TypeError, ValueError):
        raise DecryptionError(f"{name} is damaged") from None
    packed = await layer.masters.unwrap(wrapped, name)
    keys = DataKeys.unpacked(packed, FORMAT, 0, frozenset(), name)
    return await off_loop(lambda: keys.open(sealed, _BOUND, name))
