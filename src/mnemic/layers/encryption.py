"""The encryption layer: encrypts record content on the way down and decrypts it on the way up.

Encrypted: text, title, data, metadata, labels and every derived value, because index entries and vectors reveal
the text. In clear: scope, kind, key, order, weight, importance, pin and times, so the store still handles limits,
expiry and order. Labels are looked up by keyed hashes; other conditions on encrypted fields are evaluated here,
on decrypted records.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ..errors import ConflictError, DecryptionError, InvalidValueError
from ..event_loop import off_loop, pause
from ..records import LOCK_KIND, Match, Record, Ref, ScopePath, Stream
from ..store.matching import matches
from ..store.once import note_ref
from ..store.protocol import Capability, Page, Store
from ..store.query import FIELDS, Condition, Derive, Op, Outcome, Put, Scan, Search, StreamScan, Write
from .cipher import LASTING, OF_RECORD, EncryptionKeys, Keyring, Labels, RecordCipher, key_of, tenant_of
from .layer import Layer, filtered_scan

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


MANY, MUCH = 256, 500_000
"""Number of records, or of characters, from which decryption runs in a thread instead of blocking the event loop."""


class EncryptLayer(Layer):
    """Hides record content from anyone who can read the store below."""

    def __init__(self, below: Store, keys: EncryptionKeys | Keyring, url: str = "") -> None:
        """Take one key or several, of which the first encrypts; raises InvalidValueError for an invalid key."""
        super().__init__(below)
        self._sealer = RecordCipher(keys if isinstance(keys, Keyring) else Keyring(keys))
        self._lock = Lock(below, self._sealer.keys, url)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below except search, which would have to read plain text."""
        return self._below.capabilities - {Capability.LEXICAL, Capability.NEAREST}

    async def prepare(self) -> None:
        """Raise DecryptionError if the store below has other keys, or is not encrypted."""
        await self._lock.check()

    async def holds_anything(self) -> bool:
        """Return whether the store below contains encrypted data."""
        return await self._lock.look(again=True) is not None

    async def write(self, write: Write) -> list[Outcome]:
        """Encrypt the write and pass it on."""
        names: set[str] = set()
        sealing = size = 0
        for op in write.ops:
            if isinstance(op, Put):
                names.update(op.record.derived)
                sealing, size = sealing + 1, size + len(op.record.text or "")
            elif isinstance(op, Derive) and op.value is not None:
                names.add(op.name)
                sealing += 1
            if _concerns_lock(op):
                raise InvalidValueError(f"the kind {LOCK_KIND!r} at the root is reserved for encryption")
        if not sealing:
            return await self._below.write(write)
        held = await self._lock.hold(names)

        def work() -> tuple[Op, ...]:
            return tuple(self._sealed(op, held.labels) for op in write.ops)

        ops = await off_loop(work) if sealing > MANY or size > MUCH else work()
        digest = write.digest
        if digest is not None and (note := note_ref(write)) is not None:
            # In clear, it would let an attacker confirm a guess of the content.
            digest = held.labels.value(tenant_of(note.scope), note.kind, digest)
        return await self._below.write(replace(write, ops=ops, digest=digest))

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Pass the call on and decrypt the records."""
        found = await self._below.read(refs)
        there = [record for record in found if record is not None and not _is_lock(record)]
        opened = iter(await self._opened(there))
        return [None if record is None or _is_lock(record) else next(opened) for record in found]

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass on the conditions that the store below can evaluate, decrypt, and evaluate the others."""
        held = await self._lock.look() if any(test.field.startswith("labels.") for test in scan.where) else None
        below, here = _split(scan, held)
        bodies = scan.bodies or any(test.field.startswith("data.") for test in here)
        asked = replace(scan, where=tuple(below), bodies=bodies)
        if not here and not _reaches_lock(scan):
            page = await self._below.scan(asked)
            return Page(tuple(await self._opened(page.items, bodies=bodies)), page.cursor)

        async def sieve(records: Sequence[Record]) -> list[Record | None]:
            there = [record for record in records if not _is_lock(record)]
            opened = iter(await self._opened(there, bodies=bodies))
            found: list[Record | None] = []
            for stored in records:
                record = None if _is_lock(stored) else next(opened)
                passes = record is not None and matches(record, here)
                found.append(_stripped(record, scan) if record is not None and passes else None)
            return found

        return await filtered_scan(self._below, asked, sieve)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        """Pass the call on; internal streams of the encryption are hidden."""
        page = await self._below.streams(scan)
        seen = tuple(s for s in page.items if (s.scope, s.kind) != (LOCK.scope, LOCK.kind))
        return Page(seen, page.cursor)

    async def search(self, search: Search) -> list[Match]:
        """Raise an error: the store below cannot search ciphertext."""
        raise NotImplementedError("an encrypted store cannot search; use the index layer")

    def beside(self, other: Store) -> Store:
        """Return another store, encrypted with the same keys."""
        return EncryptLayer(other, self._sealer.keys)

    async def rotate(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Re-encrypt with the first key everything that has another; return how many records changed.

        Other processes may read and write meanwhile, if they have both keys. If interrupted, it resumes when
        called again.
        """
        from .key_rotation import Rotation

        return await Rotation(self._below, self._sealer, self._lock, progress).run()

    async def _opened(self, records: Sequence[Record], *, bodies: bool = True) -> list[Record]:
        def work() -> list[Record]:
            return [self._sealer.open(record, bodies=bodies) for record in records]

        much = bodies and sum(len(record.data or "") for record in records) > MUCH
        return await off_loop(work) if much or len(records) > MANY else work()

    def _sealed(self, op: Op, labels: Labels) -> Op:
        """Return an operation, encrypted for the store below."""
        if isinstance(op, Put):
            record = op.record
            hashed = labels.hashed(record.scope, record.labels) if record.labels else {}
            # It is longer now, and was checked before.
            twin = copy(op)
            force_setattr(twin, "record", self._sealer.seal(record, hashed))
            return twin
        if isinstance(op, Derive) and op.value is not None:
            mark = LASTING if op.version is None else OF_RECORD
            return replace(op, value=self._sealer.seal_derived(op.ref, op.name, op.value, mark))
        return op


def _split(scan: Scan, held: Held | None) -> tuple[list[Condition], list[Condition]]:
    """Split the conditions into those that the store below can evaluate, and the others."""
    below: list[Condition] = []
    here: list[Condition] = []
    tenant = tenant_of(scan.scope) if scan.scope.path or not scan.below else None
    for test in scan.where:
        group, _, name = test.field.partition(".")
        # A rotation changes the stored time of the last write; the original is in the envelope.
        if test.field in FIELDS and test.field != "updated":
            below.append(test)
        elif group == "labels" and test.op in ("eq", "ne", "in") and held is not None and tenant is not None:
            below.append(_hashed(test, held.labels, tenant, name))
        else:
            here.append(test)
    return below, here


def _hashed(test: Condition, labels: Labels, tenant: str, name: str) -> Condition:
    """Return a condition on a label as one on its hash; a value that is not text never matches."""
    asked = test.value if isinstance(test.value, tuple) else (test.value,)
    values = tuple(labels.value(tenant, name, one) if isinstance(one, str) else one for one in asked)
    field = f"labels.{labels.name(tenant, name)}"
    return Condition(field, test.op, values if test.op == "in" else values[0])


def _stripped(record: Record, scan: Scan) -> Record:
    return record if scan.bodies else replace(record, text=None, data=None)


def _is_lock(record: Record) -> bool:
    return record.kind == LOCK_KIND and record.scope == LOCK.scope


def _reaches_lock(scan: Scan) -> bool:
    return scan.scope == LOCK.scope and (not scan.kinds or LOCK_KIND in scan.kinds)


def _concerns_lock(op: Op) -> bool:
    if isinstance(op, Put):
        return _is_lock(op.record)
    scope, kind = (op.ref.scope, op.ref.kind) if hasattr(op, "ref") else (op.scope, op.kind)
    return kind == LOCK_KIND and scope == LOCK.scope
