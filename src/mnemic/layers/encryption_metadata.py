"""The metadata record of an encrypted store, which marks it as encrypted.

It has what was fixed when the store was created, and the store's own keys, for what no erasure deletes; with a key
store, those keys are there.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, json
from msgspec.structs import replace

from ..errors import ConflictError, DecryptionError, InvalidValueError, NewerSchemaError, UnreadableStoreError
from ..event_loop import pause
from ..records import ENCRYPTION_KIND, FENCE_KIND, Record, Ref, ScopePath
from ..store.protocol import Capability, Store, all_streams
from ..store.query import Delete, Put, StreamScan, Write
from .cipher import HEAD, DataKeys, subject_of
from .layer import whole_store
from .master_key import SUBJECT_LEVEL, MasterKeys, Wrapped

METADATA_REF = Ref(ScopePath(), ENCRYPTION_KIND, "current")
"""Ref of the metadata record; hidden from callers above."""
STORE_KEYS_REF = Ref(ScopePath(), ENCRYPTION_KIND, "store")
"""Ref of the store's own keys, if they are kept in a key store."""
FORMAT = 2
"""Format of the metadata and key records, and of everything that is encrypted."""
MAX_WAIT = 10.0
"""How many seconds to wait for others who read or write the same record."""

Found = TypeVar("Found")

_OF_STORE = "\n"
"""Stands for the subject of the store's own keys; no scope has such a path."""
encode: Callable[[Any], bytes] = json.Encoder(order="deterministic").encode


class FixedMetadata(Struct, frozen=True):
    """Encrypted part of the metadata record, fixed when the store is created except for `derived`."""

    id: str
    level: int
    derived: tuple[str, ...]
    """Names of derived values, so that a rotation of data keys finds them."""
    shared: bool
    """Whether the keys are in a key store."""


class Metadata(Struct, frozen=True):
    """The decoded metadata record."""

    version: int
    fixed: FixedMetadata
    keys: DataKeys
    wrapped_by: str


class MetadataRecord:
    """Reads, creates and changes the metadata record of a store."""

    def __init__(
        self, store: Store, masters: MasterKeys, name: str, level: int | None, key_store: Store | None
    ) -> None:
        self.masters = masters
        self._store = whole_store(store)
        self.apart: bool = key_store is not None
        self._key_store = whole_store(key_store or store)
        self._name = name
        self._level = level
        self.new_level: int = SUBJECT_LEVEL if level is None else level
        """Level of subjects, if the store is created."""
        self._known: Metadata | None = None
        self._busy: set[str] = set()

    async def load(self, *, again: bool = False) -> Metadata | None:
        """Return the metadata, None if there is none yet; raises DecryptionError."""
        if self._known is None or again:
            (record,) = await self._store.read([METADATA_REF])
            self._known = None if record is None else await self._decode(record)
        return self._known

    async def ensure(self, names: Iterable[str] = ()) -> Metadata:
        """Return the metadata, created if there is none, with these names of derived values.

        Raises DecryptionError if the store has records but no metadata record: they are not encrypted.
        """
        wanted = frozenset(names)

        def enough() -> Metadata | None:
            known = self._known
            return known if known is not None and wanted <= frozenset(known.fixed.derived) else None

        async def create() -> Metadata | None:
            if (known := await self.load(again=True)) is None:
                await self.check()
                keys = await self._store_keys(create=True) or DataKeys.generate(_OF_STORE)
                fixed = FixedMetadata(os.urandom(8).hex(), self.new_level, tuple(sorted(wanted)), self.apart)
                await self._write_metadata(fixed, keys, 0)
            elif not wanted <= frozenset(known.fixed.derived):
                fixed = replace(known.fixed, derived=tuple(sorted(wanted | frozenset(known.fixed.derived))))
                await self._write_metadata(fixed, known.keys, known.version)
            await self.load(again=True)
            return enough()

        return await self._alone("", enough, create)

    async def check(self) -> None:
        """Raise DecryptionError if the store cannot be opened with these keys, or is not encrypted.

        Raises InvalidValueError if it is a key store, its own or another's.
        """
        if await self.load() is not None:
            return
        await self._check_content()
        made = False
        if self.apart:
            (known,) = await self._key_store.read([STORE_KEYS_REF])
            await self._store_keys(create=True)
            made = known is None
        # Whatever their URLs are: if both are one store, what was written to one is in the other.
        (found,) = await self._store.read([STORE_KEYS_REF])
        if found is not None and await self.load(again=True) is None:
            if made:
                await self._store.write(Write((Delete(STORE_KEYS_REF),)))
            raise InvalidValueError(
                f"{self._name} is a key store{' itself' if self.apart else ''}: it cannot hold encrypted records, too; "
                "use another store for them"
            )

    async def _check_content(self) -> None:
        """Raise DecryptionError if the store has records that are not encrypted."""
        await check_not_lost(self._store, self._name)
        async with aclosing(all_streams(self._store, StreamScan(scope=ScopePath(), limit=10))) as streams:
            async for stream in streams:
                if stream.kind == ENCRYPTION_KIND and not stream.scope.path:
                    continue  # data keys of others, for whom this is the key store
                if await self.load(again=True) is None:
                    raise DecryptionError(
                        f"{self._name} holds records that are not encrypted: copy them to an empty store, with a key"
                    )
                return

    async def _write_metadata(self, fixed: FixedMetadata, keys: DataKeys, version: int) -> None:
        """Write the metadata record, unless another writer was faster."""
        data: dict[str, Any] = {"format": FORMAT, "id": fixed.id}
        if not self.apart:
            data["store"] = to_data(await self.masters.wrap(keys.packed()))
        data["sealed"] = b64encode(keys.seal(encode(fixed), bound_to(METADATA_REF))).decode()
        await put_internal(self._store, METADATA_REF, data, version)

    async def _decode(self, record: Record) -> Metadata:
        data = self._data(record)
        if self.apart and "store" in data:
            raise DecryptionError(f"{self._name} keeps its data keys itself: open it without key_store")
        if not self.apart and "store" not in data:
            raise DecryptionError(
                f"the data keys of {self._name} are in another store: open it with Encryption(key, key_store=URL), "
                "or on the command line --key-store"
            )
        if self.apart:
            keys, wrapped = await self._store_keys(), None
            if keys is None:
                raise DecryptionError(
                    f"the key store does not have the keys of {self._name}: open it with the right one, or restore its "
                    "newest copy"
                )
        else:
            wrapped = to_wrapped(data["store"], self._name)
            packed = await self.masters.unwrap(wrapped, self._name)
            keys = DataKeys.unpacked(packed, _OF_STORE, record.version, frozenset(), self._name)
        fixed = self._opened(keys, data, METADATA_REF, FixedMetadata)
        if fixed.id != data.get("id") or fixed.shared != self.apart:
            raise DecryptionError(f"the metadata record of {self._name} was modified in the store")
        if self._level is not None and self._level != fixed.level:
            raise InvalidValueError(
                f"{self._name} was created with subject_level={fixed.level}, which cannot be changed, only copied: "
                f"given was {self._level}"
            )
        return Metadata(record.version, fixed, keys, "" if wrapped is None else wrapped.key)

    async def _store_keys(self, *, create: bool = False) -> DataKeys | None:
        """Return the store's own keys from the key store; None if they are not kept there, or not created."""
        if not self.apart:
            return None
        while True:
            (record,) = await self._key_store.read([STORE_KEYS_REF])
            if record is not None:
                packed = await self.masters.unwrap(to_wrapped(self._data(record)["keys"], self._name), self._name)
                return DataKeys.unpacked(packed, _OF_STORE, record.version, frozenset(), self._name)
            if not create:
                return None
            wrapped = await self.masters.wrap(DataKeys.generate(_OF_STORE).packed())
            await put_internal(self._key_store, STORE_KEYS_REF, {"format": FORMAT, "keys": to_data(wrapped)}, 0)

    @property
    def own_keys(self) -> Ref:
        """Ref of the record with the store's own keys, which is where the data keys are."""
        return STORE_KEYS_REF if self.apart else METADATA_REF

    def check_rotated(self, record: Record | None) -> None:
        """Raise DecryptionError if the store's own keys were wrapped elsewhere by a master key not known here.

        New data keys would be wrapped by an old master key, which others no longer have.
        """
        if record is not None:
            data = self._data(record)
            self.masters.require(to_wrapped(data.get("keys" if self.apart else "store"), self._name), self._name)

    def _data(self, record: Record) -> dict[str, Any]:
        """Return the data of an internal record; raises DecryptionError or NewerSchemaError for another format."""
        data = record.data
        if not isinstance(data, dict) or not isinstance(data.get("format"), int):
            raise DecryptionError(f"the record {record.key!r} of the keys of {self._name} is damaged")
        if data["format"] > FORMAT:
            raise NewerSchemaError(f"{self._name} was encrypted by a newer version of Mnemic: pip install -U mnemic")
        if data["format"] < FORMAT:
            raise DecryptionError(
                f"{self._name} has an earlier format of encryption, {data['format']}, which this version does not "
                "read: decrypt it with the version that wrote it, by copy, and encrypt it again"
            )
        return data

    def _opened(self, keys: DataKeys, data: dict[str, Any], ref: Ref, type: Any) -> Any:
        what = f"the record {ref.key!r} of the keys of {self._name}"
        try:
            sealed = b64decode(data["sealed"], validate=True)
            return json.decode(keys.open(sealed, bound_to(ref), what), type=type)
        except (KeyError, TypeError, ValueError) as error:
            raise DecryptionError(f"{what} is damaged") from error

    async def _alone(
        self, name: str, known: Callable[[], Found | None], make: Callable[[], Awaitable[Found | None]]
    ) -> Found:
        """Return a known value, or make it; of several callers one does, and the others wait, but not forever."""
        since = time.monotonic()
        while (found := known()) is None:
            if name in self._busy and time.monotonic() - since < MAX_WAIT:
                await pause()
                continue
            self._busy.add(name)
            try:
                found = await make()
            finally:
                self._busy.discard(name)
        return found

    def subject_of(self, metadata: Metadata, scope: ScopePath) -> str:
        """Return the subject of a scope."""
        return subject_of(scope, metadata.fixed.level)

    @property
    def level(self) -> int:
        """The level of subjects, as far as known."""
        return self.new_level if self._known is None else self._known.fixed.level


def is_internal(scope: ScopePath, kind: str) -> bool:
    """Return whether records of a kind in a scope are those of the encryption itself."""
    return kind == FENCE_KIND or (kind == ENCRYPTION_KIND and not scope.path)


async def check_not_lost(store: Store, name: str, embedder: Record | None = None) -> None:
    """Raise DecryptionError if a store without a metadata record was encrypted.

    The record of its embedder tells, or else the first streams.
    """
    lost = embedder is not None and HEAD in embedder.meta
    if embedder is None and Capability.SEARCH not in store.capabilities:
        with suppress(UnreadableStoreError):  # which calls on what is damaged raise themselves
            page = await store.streams(StreamScan(scope=ScopePath(), empty=True, limit=10))
            lost = any(stream.kind == FENCE_KIND for stream in page.items)
    if lost and (await store.read([METADATA_REF]))[0] is None:
        raise DecryptionError(
            f"{name} is encrypted, but the record of its encryption is lost: restore the records of the kind "
            f"{ENCRYPTION_KIND!r} at the root from a backup"
        )


def store_id(record: Record) -> object:
    """Return the id of an encrypted store from its metadata record; the same in a copy that was made without keys."""
    return record.data.get("id") if isinstance(record.data, dict) else None


async def put_internal(store: Store, ref: Ref, data: Any, version: int) -> bool:
    """Write an internal record; return whether no other writer was faster."""
    try:
        await store.write(Write((Put(Record(ref.scope, ref.kind, ref.key, data=data), version),)))
    except ConflictError:
        return False
    return True


def bound_to(ref: Ref) -> bytes:
    """Return the associated data of the encrypted part of an internal record."""
    return f"{ref.key} format {FORMAT}".encode()


def to_data(wrapped: Wrapped) -> dict[str, str]:
    """Return wrapped keys as they are stored."""
    return {"key": wrapped.key, "value": wrapped.value}


def to_wrapped(data: Any, name: str) -> Wrapped:
    """Return stored wrapped keys; raises DecryptionError."""
    try:
        return convert(data, Wrapped)
    except ValidationError:
        raise DecryptionError(f"wrapped data keys of {name} are damaged") from None
