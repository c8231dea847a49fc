"""Data keys: each subject has a key record with its wrapped keys, made by its first write, destroyed by an erasure.

A key record is kept at the root, of the store itself or of a key store beside it. Its name is a keyed hash, so a
destroyed subject leaves no name behind.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hmac import digest

from msgspec import Struct
from msgspec.structs import replace

from ..errors import DecryptionError
from ..records import ENCRYPTION_KIND, FENCE_KIND, KEPT_BY_ERASURE, Record, Ref, ScopePath, Stream
from ..store.protocol import Store, scan_all
from ..store.query import Scan, StreamScan
from .cipher import DataKeys, head_of, key_of, new_key
from .encryption_metadata import (
    FORMAT,
    METADATA_REF,
    STORE_KEYS_REF,
    Metadata,
    MetadataRecord,
    bound_to,
    encode,
    is_internal,
    put_internal,
    to_data,
    to_wrapped,
)
from .master_key import MasterKeys, Wrapped

MOST_CACHED = 10_000
"""Maximum number of subjects whose keys are cached."""


class KeySubject(Struct, frozen=True):
    """Encrypted part of a key record besides its keys, under the store's key."""

    subject: str | None
    destroyed: tuple[str, ...] = ()


class KeyRecords(MetadataRecord):
    """Reads, creates, rewraps and destroys the key records of a store."""

    def __init__(
        self, store: Store, masters: MasterKeys, name: str, level: int | None, key_store: Store | None
    ) -> None:
        super().__init__(store, masters, name, level, key_store)
        self._cache: dict[str, DataKeys] = {}

    def cached(self, subject: str) -> DataKeys | None:
        """Return the keys of a subject if they were loaded before; they may be destroyed meanwhile."""
        return self._cache.get(subject)

    async def find(self, subject: str) -> DataKeys | None:
        """Return the keys of a subject, None if it has none; raises DecryptionError."""
        if (known := self._cache.get(subject)) is not None:
            return known
        metadata = await self.load()
        return None if metadata is None else await self._read(metadata, subject)

    async def reload(self, subject: str) -> DataKeys | None:
        """Return the keys of a subject as they are stored now."""
        if (metadata := await self.load()) is None and (metadata := await self.load(again=True)) is None:
            return None
        return await self._read(metadata, subject)

    async def ensure_keys(self, subject: str) -> DataKeys:
        """Return the keys of a subject, created if it has none."""

        def known() -> DataKeys | None:
            return self._cache.get(subject)

        async def create() -> DataKeys | None:
            metadata = await self.ensure()
            if (found := await self._read(metadata, subject)) is not None:
                return found
            await self.check_lost(subject, None)
            stored, own = await self._key_store.read([self._ref(metadata, subject), self.own_keys])
            self.check_rotated(own)
            if stored is not None and self._data(stored).get("keys") is not None:
                return await self._read(metadata, subject)  # made by another meanwhile, and in use
            about = KeySubject(None) if stored is None else self._about(metadata, stored)
            made = DataKeys.generate(subject, _names(about))
            await self._write_keys(metadata, made, 0 if stored is None else stored.version)
            return await self._read(metadata, subject)

        return await self._alone(subject, known, create)

    async def _read(self, metadata: Metadata, subject: str) -> DataKeys | None:
        ref = self._ref(metadata, subject)
        (record,) = await self._key_store.read([ref])
        known = self._cache.get(subject)
        if record is not None and known is not None and known.version == record.version:
            return known
        found = None if record is None else await self._decode_keys(metadata, record, subject)
        if found is None:
            self._cache.pop(subject, None)
        else:
            self._cache[subject] = found
            if len(self._cache) > MOST_CACHED:
                self._cache.pop(next(iter(self._cache)), None)
        return found

    async def _decode_keys(self, metadata: Metadata, record: Record, subject: str) -> DataKeys | None:
        """Return the keys of a record; None if they were destroyed."""
        data, about = self._data(record), self._about(metadata, record)
        if data.get("keys") is None:
            return None
        wrapped = to_wrapped(data["keys"], self._name)
        packed = await self.masters.unwrap(wrapped, f"scope {subject!r} of {self._name}")
        return DataKeys.unpacked(packed, subject, record.version, _names(about), self._name)

    async def destroyed(self, subject: str) -> frozenset[bytes]:
        """Return the names of the destroyed keys of a subject."""
        if (metadata := await self.load()) is None:
            return frozenset()
        (record,) = await self._key_store.read([self._ref(metadata, subject)])
        return frozenset() if record is None else _names(self._about(metadata, record))

    async def check_lost(self, subject: str, keys: DataKeys | None) -> None:
        """Raise DecryptionError if the store names a data key of a subject that is neither known nor destroyed.

        A new key would split the data of the subject for good.
        """
        if (metadata := await self.load()) is None:
            return
        named = await self._named_keys(metadata, subject, records=keys is None)
        if not named or (keys is not None and named <= {*keys.keys, *keys.destroyed}):
            return
        # Read after the names, since a key is stored before anything names it.
        keys = await self._read(metadata, subject)
        known = await self.destroyed(subject) if keys is None else {*keys.keys, *keys.destroyed}
        for name in sorted(named - known):
            where = "the key store" if self.apart else self._name
            raise DecryptionError(
                f"the data key {name.hex()} of scope {subject!r} is missing in {where}: restore the newest copy of "
                f"{where}, which has it"
            )

    async def _named_keys(self, metadata: Metadata, subject: str, *, records: bool) -> set[bytes]:
        """Return the names of data keys in some fences of a subject and, with `records`, in its first record."""
        scope = ScopePath(subject)
        listed = StreamScan(scope=scope, below=len(scope.segments) >= metadata.fixed.level, limit=10)
        fences = await self._store.streams(replace(listed, kinds=(FENCE_KIND,), empty=True))
        named = {_name(stream) for stream in fences.items if stream.settings is not None}
        streams = (await self._store.streams(listed)).items if records else ()
        for stream in streams:
            if stream.count and not is_internal(stream.scope, stream.kind) and stream.kind not in KEPT_BY_ERASURE:
                scan = Scan(scope=stream.scope, kinds=(stream.kind,), below=False, bodies=False, limit=1)
                named |= {key_of(head_of(record), record) for record in (await self._store.scan(scan)).items}
                break
        return named

    async def _write_keys(self, metadata: Metadata, keys: DataKeys, version: int) -> bool:
        """Write the keys of a subject unless another writer was faster; return whether it was done."""
        about = KeySubject(keys.subject, tuple(sorted(name.hex() for name in keys.destroyed)))
        return await self._write(metadata, keys.subject, about, await self.masters.wrap(keys.packed()), version)

    async def _write(
        self, metadata: Metadata, subject: str, about: KeySubject, wrapped: Wrapped | None, version: int
    ) -> bool:
        ref = self._ref(metadata, subject)
        sealed = b64encode(metadata.keys.seal(encode(about), bound_to(ref))).decode()
        keys = None if wrapped is None else to_data(wrapped)
        return await put_internal(self._key_store, ref, {"format": FORMAT, "keys": keys, "sealed": sealed}, version)

    async def destroy(self, subject: str) -> bool:
        """Destroy the keys of a subject in the store and here; return whether there were any.

        The names of the keys stay, so that what they encrypted is known to be erased.
        """
        while (metadata := await self.load(again=True)) is not None:
            self._cache.pop(subject, None)
            (record,) = await self._key_store.read([self._ref(metadata, subject)])
            if record is None or self._data(record).get("keys") is None:
                return False
            keys = await self._decode_keys(metadata, record, subject)
            assert keys is not None, "it was looked at"
            gone = tuple(sorted(name.hex() for name in {*keys.destroyed, *keys.keys}))
            if await self._write(metadata, subject, KeySubject(None, gone), None, record.version):
                self._cache.pop(subject, None)
                return True
        return False

    async def subjects(self, scope: ScopePath) -> list[str]:
        """Return the subjects of a scope and below that have keys."""
        if (metadata := await self.load(again=True)) is None:
            return []
        found = [self._about(metadata, record).subject async for record in self._records()]
        return sorted(subject for subject in found if subject is not None and scope.contains(ScopePath(subject)))

    async def add_key(self, subject: str) -> DataKeys | None:
        """Give a subject a new data key, with which it encrypts from now on; return its keys, None if it has none."""
        while (keys := await self.reload(subject)) is not None:
            metadata = await self.ensure()
            name, key = new_key(keys.destroyed | keys.keys.keys())
            made = DataKeys(subject, keys.secret, {name: key, **keys.keys}, 0, keys.destroyed)
            if await self._write_keys(metadata, made, keys.version):
                return await self.reload(subject)
        return None

    async def drop_old_keys(self, subject: str, keep: bytes) -> None:
        """Destroy all data keys of a subject except one, which is in use."""
        while (keys := await self.reload(subject)) is not None and set(keys.keys) != {keep} and keep in keys.keys:
            metadata = await self.ensure()
            gone = keys.destroyed | (keys.keys.keys() - {keep})
            made = DataKeys(subject, keys.secret, {keep: keys.keys[keep]}, 0, frozenset(gone))
            await self._write_keys(metadata, made, keys.version)
        await self.reload(subject)

    async def rewrap(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Wrap all data keys with the first master key; return how many key records changed."""
        changed = 0
        while (metadata := await self.load(again=True)) is not None and not self.apart:
            if metadata.wrapped_by == self.masters.first:
                break
            await self._write_metadata(metadata.fixed, metadata.keys, metadata.version)
            changed += 1
        if metadata is None:
            return 0
        refs = [record.ref async for record in self._records(all=True)]
        for done, ref in enumerate(refs, 1):
            changed += await self._rewrap(ref)
            if progress is not None:
                progress(done, len(refs))
        return changed

    async def _rewrap(self, ref: Ref) -> bool:
        while True:
            (record,) = await self._key_store.read([ref])
            data = None if record is None else self._data(record)
            if record is None or data is None or data.get("keys") is None:
                return False
            wrapped = to_wrapped(data["keys"], self._name)
            if wrapped.key == self.masters.first:
                return False
            again = await self.masters.wrap(await self.masters.unwrap(wrapped, self._name))
            if await put_internal(self._key_store, ref, {**data, "keys": to_data(again)}, record.version):
                return True

    async def _records(self, *, all: bool = False) -> AsyncGenerator[Record, None]:
        """Yield the key records of subjects; with `all`, also that of the store's own keys."""
        async with aclosing(scan_all(self._key_store, Scan(scope=ScopePath(), kinds=(ENCRYPTION_KIND,)))) as records:
            async for record in records:
                if record.key != METADATA_REF.key and (all or record.key != STORE_KEYS_REF.key):
                    yield record

    def _ref(self, metadata: Metadata, subject: str) -> Ref:
        hashed = digest(metadata.keys.secret, b"subject " + subject.encode(), "sha256")[:16].hex()
        return Ref(ScopePath(), ENCRYPTION_KIND, hashed)

    def _about(self, metadata: Metadata, record: Record) -> KeySubject:
        found: KeySubject = self._opened(metadata.keys, self._data(record), record.ref, KeySubject)
        return found


def _name(fence: Stream) -> bytes:
    try:
        return bytes.fromhex(fence.settings or "")
    except ValueError:
        raise DecryptionError(f"the settings of {fence.kind} in scope {fence.scope.path!r} were modified") from None


def _names(about: KeySubject) -> frozenset[bytes]:
    return frozenset(map(bytes.fromhex, about.destroyed))
