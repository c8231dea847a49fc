"""The encryption layer: encrypts record content on the way down and decrypts it on the way up.

Encrypted: text, title, data, metadata, labels and every derived value, because index entries and vectors reveal
the text. In clear: scope, kind, key, order, weight, importance, pin and times, so the store still handles limits,
expiry and order. Labels are looked up by keyed hashes; other conditions on encrypted fields are evaluated here,
on decrypted records.

A metadata record marks the store as encrypted. It holds the key of the label hashes, which must survive a rotation of
keys: it is random, created with the first write, and encrypted like any value. The record also lists the names of
derived values, so that a rotation finds them.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ..errors import ConflictError, DecryptionError, InvalidValueError
from ..event_loop import Portal, off_loop, pause, running_loop
from ..records import ENCRYPTION_KIND, Record, Ref, ScopePath, Stream
from ..store import registry
from ..store.matching import matches
from ..store.protocol import Capability, Page, Store, is_empty
from ..store.query import FIELDS, Condition, Derive, Op, Outcome, Put, Scan, StreamScan, Write, place_of
from ..store.registry import Backend, StoreURL
from ..store.retry import once_ref
from .cipher import LASTING, OF_RECORD, EncryptionKeys, Keyring, LabelHasher, RecordCipher, key_of, tenant_of
from .layer import Layer, filtered_scan
from .restricted import require_whole

METADATA_REF = Ref(ScopePath(), ENCRYPTION_KIND, "current")
"""Ref of the metadata record; hidden from callers above."""
MAX_WAIT = 10.0
"""How many seconds to wait for others who read or write the metadata record."""
MANY_RECORDS, MANY_CHARACTERS = 256, 500_000
"""From how many records or characters the work runs in a thread instead of blocking the event loop."""

_LABEL_KEY = b"key of the labels"


class Metadata(Struct, frozen=True):
    """Content of the metadata record: the key of the label hashes, and the names of derived values."""

    version: int
    sealed_key: bytes
    key: bytes
    labels: LabelHasher
    derived: frozenset[str]


class MetadataRecord:
    """Reads, creates and changes the metadata record of a store."""

    def __init__(self, store: Store, keys: Keyring, url: str = "") -> None:
        self._name = url or "the store"
        self._store = store
        self._keys = keys
        self._known: Metadata | None = None
        self._busy = False

    async def load(self, *, again: bool = False) -> Metadata | None:
        """Return its content, None if there is none yet; raises DecryptionError."""
        if self._known is None or again:
            (record,) = await self._store.read([METADATA_REF])
            self._known = None if record is None else self._decode(record)
        return self._known

    async def ensure(self, names: set[str]) -> Metadata:
        """Return its content, created if there is none, with these names of derived values.

        Raises DecryptionError if the store has records but no metadata record: they are not encrypted.
        """
        since = time.monotonic()
        while (known := self._known) is None or not names <= known.derived:
            # Of several first writers, one reads and the others wait, but not forever.
            if self._busy and time.monotonic() - since < MAX_WAIT:
                await pause()
                continue
            self._busy = True
            try:
                if (known := await self.load(again=True)) is None:
                    await self.check()
                    await self._write(os.urandom(32), names, 0)
                elif not names <= known.derived:
                    await self._write(known.key, names | known.derived, known.version)
                await self.load(again=True)
            finally:
                self._busy = False
        return known

    async def check(self) -> None:
        """Raise DecryptionError if the store cannot be opened with these keys, or is not encrypted."""
        if await self.load() is not None:
            return
        if not await is_empty(self._store) and await self.load(again=True) is None:
            raise DecryptionError(
                f"{self._name} holds records that are not encrypted: copy them to an empty store, with a key"
            )

    async def rotate(self) -> None:
        """Encrypt the key of the label hashes with the first key."""
        while (known := await self.load(again=True)) is not None:
            if key_of(known.sealed_key, self._name) == self._keys.first:
                return
            await self._write(known.key, known.derived, known.version)

    async def _write(self, key: bytes, names: set[str] | frozenset[str], version: int) -> None:
        """Write the metadata record, unless another writer was faster."""
        sealed = b64encode(self._keys.seal(key, _LABEL_KEY)).decode()
        data = {"format": 1, "labels": sealed, "derived": sorted(names)}
        record = Record(METADATA_REF.scope, METADATA_REF.kind, METADATA_REF.key, data=data)
        try:
            await self._store.write(Write((Put(record, version),)))
        except ConflictError:
            return

    def _decode(self, record: Record) -> Metadata:
        data: Any = record.data
        sealed = b64decode(data["labels"])
        key = self._keys.open(sealed, _LABEL_KEY, self._name)
        return Metadata(record.version, sealed, key, LabelHasher(key), frozenset(data["derived"]))


async def check_plain(store: Store, url: str) -> None:
    """Raise DecryptionError if a store opened without a key is encrypted."""
    (record,) = await store.read([METADATA_REF])
    if record is not None:
        raise DecryptionError(
            f"{url or 'this store'} is encrypted: open it with encryption_key=…, or on the command line --key-file "
            "or --key-env"
        )


class EncryptLayer(Layer):
    """Hides record content from anyone who can read the store below."""

    def __init__(self, below: Store, keys: EncryptionKeys | Keyring, url: str = "") -> None:
        """Take one key or several, of which the first encrypts; raises InvalidValueError for an invalid key."""
        super().__init__(below)
        self._cipher = RecordCipher(keys if isinstance(keys, Keyring) else Keyring(keys))
        self._metadata = MetadataRecord(below, self._cipher.keys, url)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below except search, which would have to read plain text."""
        return self._below.capabilities - {Capability.NEAREST, Capability.SEARCH}

    async def prepare(self) -> None:
        """Raise DecryptionError if the store below has other keys, or is not encrypted."""
        await self._metadata.check()

    async def holds_anything(self) -> bool:
        """Return whether the store below contains encrypted data."""
        return await self._metadata.load(again=True) is not None

    async def write(self, write: Write) -> list[Outcome]:
        names: set[str] = set()
        count = size = 0
        for op in write.ops:
            if isinstance(op, Put):
                names.update(op.record.derived)
                count, size = count + 1, size + len(op.record.text or "")
            elif isinstance(op, Derive) and op.value is not None:
                names.add(op.name)
                count += 1
            if place_of(op)[:2] == (METADATA_REF.scope, METADATA_REF.kind):
                raise InvalidValueError(f"the kind {ENCRYPTION_KIND!r} at the root is reserved for encryption")
        if not count:
            return await self._below.write(write)
        labels = (await self._metadata.ensure(names)).labels

        def encrypt() -> tuple[Op, ...]:
            return tuple(self._encrypted(op, labels) for op in write.ops)

        ops = await off_loop(encrypt) if count > MANY_RECORDS or size > MANY_CHARACTERS else encrypt()
        digest = write.digest
        if digest is not None and (once := once_ref(write)) is not None:
            # In clear, it would let an attacker confirm a guess of the content.
            digest = labels.value(tenant_of(once.scope), once.kind, digest)
        return await self._below.write(replace(write, ops=ops, digest=digest))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return await self._decrypted(await self._below.read(refs))

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass on the conditions that the store below can evaluate, decrypt, and evaluate the others."""
        by_label = any(test.field.startswith("labels.") for test in scan.where)
        metadata = await self._metadata.load() if by_label else None
        below, here = _split(scan, None if metadata is None else metadata.labels)
        bodies = scan.bodies or any(test.field.startswith("data.") for test in here)

        async def decrypt(records: Sequence[Record]) -> list[Record | None]:
            found = await self._decrypted(records, bodies=bodies)
            return [_stripped(one, scan) if one is not None and matches(one, here) else None for one in found]

        inner = replace(scan, where=tuple(below), bodies=bodies)
        if here or (scan.scope == METADATA_REF.scope and (not scan.kinds or METADATA_REF.kind in scan.kinds)):
            return await filtered_scan(self._below, inner, decrypt)
        page = await self._below.scan(inner)
        return Page(tuple(one for one in await decrypt(page.items) if one is not None), page.cursor)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        page = await self._below.streams(scan)
        visible = (s for s in page.items if (s.scope, s.kind) != (METADATA_REF.scope, METADATA_REF.kind))
        return Page(tuple(visible), page.cursor)

    async def rotate(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Re-encrypt with the first key everything that has another; return how many records changed.

        Other processes may read and write meanwhile, if they have both keys. If interrupted, it resumes when
        called again.
        """
        from .key_rotation import KeyRotation

        return await KeyRotation(self._below, self._cipher, self._metadata, progress).run()

    async def _decrypted(self, records: Sequence[Record | None], *, bodies: bool = True) -> list[Record | None]:
        """Return decrypted records; None for the metadata record."""

        def decrypt() -> list[Record | None]:
            return [
                None if record is None or _is_metadata(record) else self._cipher.open(record, bodies=bodies)
                for record in records
            ]

        size = sum(len(record.data or "") for record in records if record is not None) if bodies else 0
        return await off_loop(decrypt) if size > MANY_CHARACTERS or len(records) > MANY_RECORDS else decrypt()

    def _encrypted(self, op: Op, labels: LabelHasher) -> Op:
        if isinstance(op, Put):
            record = op.record
            hashed = labels.hashed(record.scope, record.labels) if record.labels else {}
            # It is longer now, and was checked before.
            sealed = copy(op)
            force_setattr(sealed, "record", self._cipher.seal(record, hashed))
            return sealed
        if isinstance(op, Derive) and op.value is not None:
            mark = LASTING if op.version is None else OF_RECORD
            return replace(op, value=self._cipher.seal_derived(op.ref, op.name, op.value, mark))
        return op


def _split(scan: Scan, labels: LabelHasher | None) -> tuple[list[Condition], list[Condition]]:
    """Split the conditions into those that the store below can evaluate, and the others."""
    below: list[Condition] = []
    here: list[Condition] = []
    tenant = tenant_of(scan.scope) if scan.scope.path or not scan.below else None
    for test in scan.where:
        group, _, name = test.field.partition(".")
        if test.field in FIELDS:
            below.append(test)
        elif group == "labels" and test.op in ("eq", "ne", "in") and labels is not None and tenant is not None:
            below.append(_hashed(test, labels, tenant, name))
        else:
            here.append(test)
    return below, here


def _hashed(test: Condition, labels: LabelHasher, tenant: str, name: str) -> Condition:
    """Return a condition on a label as one on its hash; a value that is not text never matches."""
    wanted = test.value if isinstance(test.value, tuple) else (test.value,)
    values = tuple(labels.value(tenant, name, one) if isinstance(one, str) else one for one in wanted)
    field = f"labels.{labels.name(tenant, name)}"
    return Condition(field, test.op, values if test.op == "in" else values[0])


def _stripped(record: Record, scan: Scan) -> Record:
    return record if scan.bodies else replace(record, text=None, data=None)


def _is_metadata(record: Record) -> bool:
    return record.kind == METADATA_REF.kind and record.scope == METADATA_REF.scope


# ---------------------------------------------------------------- stores beside an encrypted one


async def open_beside(store: Store, url: str) -> Store:
    """Open the store at a URL for data from `store`: encrypted with the same keys, if that one is.

    Raises as `registry.find` does, or a StoreError, such as AccessDeniedError beside a restricted store.
    """
    require_whole(store, "another store beside it")
    parsed, backend = registry.find(url)
    # Inline there is no event loop on which a remote store could wait.
    alone = running_loop() is None and not backend.inline
    opened: Store = _PortalStore(backend, parsed) if alone else await backend.open(parsed)
    opened.clock = store.clock
    while isinstance(store, Layer) and not isinstance(store, EncryptLayer):
        store = store._below
    try:
        if not isinstance(store, EncryptLayer):
            await check_plain(opened, str(parsed))
            return opened
        encrypted = EncryptLayer(opened, store._cipher.keys)
        await encrypted.prepare()
        return encrypted
    except BaseException:
        await opened.close()
        raise


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

    async def scrub(self) -> None:
        self._portal.run(super().scrub())

    async def close(self) -> None:
        self._portal.run(self._below.close())
        self._portal.close()


async def _awaited(opening: Awaitable[Store]) -> Store:
    return await opening
