"""The encryption layer: encrypts record content on the way down and decrypts it on the way up.

Encrypted: text, title, data, metadata, labels and every derived value, because index entries and vectors reveal
the text. In clear: scope, kind, order, weight, importance, pin and times, so the store still handles limits, expiry
and order. Keys and labels are looked up by keyed hashes; other conditions on encrypted fields are evaluated here, on
decrypted records.

Each subject, the first segments of a scope, has its own data keys. A fence in each scope, a stream without records
whose settings name the data key, is expected by every write that encrypts: once it is gone or names another key, a
process that has cached the old key can no longer write with it, so no acknowledged write is lost when a key is
destroyed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ..errors import ConflictError, DecryptionError, InvalidValueError, SettingsChangedError, StoreBusyError
from ..event_loop import off_loop, pause
from ..records import FENCE_KIND, KEPT_BY_ERASURE, Record, Ref, ScopePath, Stream
from ..store.matching import matches
from ..store.protocol import Capability, Page, Scrubbed, Store, all_streams
from ..store.query import Condition, Derive, Expect, Op, Outcome, Purge, Put, Scan, StreamScan, Touch, Write, place_of
from ..store.retry import ATTEMPTS
from .cipher import CLEAR_KEYS, DataKeys, UnknownDataKeyError, open_record
from .data_keys import KeyRecords
from .encrypted_ops import OpCipher, split_conditions
from .encryption_metadata import MAX_WAIT, METADATA_REF, check_not_lost, is_internal
from .layer import Layer, filtered_scan
from .master_key import EncryptionKeys, MasterKeys, encryption_of
from .store_embedder import EMBEDDER_REF

DATA_KEYS = "data keys"
"""How an erasure names the data keys that it has destroyed, one for each subject."""
MANY_RECORDS, MANY_CHARACTERS = 256, 500_000
"""From how many records or characters the work runs in a thread instead of blocking the event loop."""


async def check_plain(store: Store, url: str) -> None:
    """Raise DecryptionError if a store opened without a key is encrypted."""
    remote = Capability.SEARCH in store.capabilities  # a server, which has checked its own store
    record, *embedder = await store.read([METADATA_REF] if remote else [METADATA_REF, EMBEDDER_REF])
    if record is not None:
        raise DecryptionError(
            f"{url or 'this store'} is encrypted: open it with encryption_key=…, or on the command line --key-file "
            "or --key-env"
        )
    await check_not_lost(store, url or "this store", *embedder)


class EncryptLayer(Layer):
    """Hides record content from anyone who can read the store below."""

    def __init__(
        self, below: Store, keys: EncryptionKeys | MasterKeys, url: str = "", *,
        subject_level: int | None = None, key_store: Store | None = None,
    ) -> None:  # fmt: skip
        """Take master keys, of which the first wraps, and the open key store, if there is one.

        Raises InvalidValueError for an invalid key.
        """
        super().__init__(below)
        if not isinstance(keys, MasterKeys):
            given = encryption_of(keys)
            keys, subject_level = MasterKeys(given.key), given.subject_level
            if given.key_store is not None and key_store is None:
                raise InvalidValueError("a key store is opened by open_encrypted, not by EncryptLayer")
        self.masters = keys
        self._key_store = key_store
        self._owns_key_store = True
        self._mending: set[str] = set()
        self._records = KeyRecords(below, keys, url or "the store", subject_level, key_store)

    def beside(self, store: Store) -> EncryptLayer:
        """Return a layer over another store, such as an archive, with the same master keys and key store."""
        layer = EncryptLayer(store, self.masters, key_store=self._key_store)
        layer._owns_key_store = False
        layer._records.new_level = self._records.level
        return layer

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below except search, which would have to read plain text."""
        return self._below.capabilities - {Capability.NEAREST, Capability.SEARCH}

    async def prepare(self) -> None:
        """Raise DecryptionError if the store below has other keys, or is not encrypted."""
        await self._records.check()

    async def holds_anything(self) -> bool:
        """Return whether the store below contains encrypted data."""
        return await self._records.load(again=True) is not None

    async def close(self) -> None:
        try:
            if self._key_store is not None and self._owns_key_store:
                await self._key_store.close()
        finally:
            await super().close()

    # ------------------------------------------------------------ writing

    async def write(self, write: Write) -> list[Outcome]:
        names: set[str] = set()
        encrypts = drops = False
        count = size = 0
        for op in write.ops:
            scope, kind, _ = place_of(op)
            if is_internal(scope, kind):
                raise InvalidValueError(f"the kind {kind!r} at {scope.path!r} is reserved for encryption")
            # Its id binds a write to one key and one position of each outcome, whatever layers above add to an attempt.
            adds = write.id is not None
            if isinstance(op, Put):
                names.update(op.record.derived)
                count, size, adds = count + 1, size + len(op.record.text or ""), True
            elif isinstance(op, Derive) and op.value is not None:
                names.add(op.name)
                count, adds = count + 1, True
            encrypts = encrypts or (adds and kind not in KEPT_BY_ERASURE)
            if isinstance(op, Purge) and op.drop:
                drops = True
        if not write.ops:
            return await self._below.write(write)
        scope = place_of(write.ops[0])[0]
        metadata = await (self._records.ensure(names) if count or encrypts else self._records.load())
        if metadata is None:
            return await self._below.write(write)  # there is nothing encrypted that it could concern
        subject = self._records.subject_of(metadata, scope)
        fenced = encrypts and Capability.ATOMIC in self._below.capabilities
        for _ in range(ATTEMPTS):
            keys = await (self._records.ensure_keys(subject) if encrypts else self._records.find(subject))
            mapping = OpCipher(keys, metadata.keys)

            def encrypt(mapping: OpCipher = mapping) -> list[Op]:
                return list(map(mapping.down, write.ops))

            ops = await off_loop(encrypt) if count > MANY_RECORDS or size > MANY_CHARACTERS else encrypt()
            if fenced and keys is not None:
                ops.insert(0, Expect(scope, FENCE_KIND, settings=keys.first.hex()))
            if drops and not count and Capability.ATOMIC in self._below.capabilities:
                # It is made again by whoever writes here next; until then, nothing names the scope.
                ops.append(Purge(scope, FENCE_KIND, drop=True))
            hashed = write.digest
            if hashed is not None:
                # In clear, it would let an attacker confirm a guess of the content.
                hashed = (keys if encrypts and keys is not None else metadata.keys).label_value("once", hashed)
            try:
                outcomes = await self._below.write(replace(write, ops=tuple(ops), digest=hashed))
            except SettingsChangedError as error:
                if not (fenced and keys is not None and await self._mend_fence(scope, keys, error)):
                    raise
                continue
            except ConflictError as error:
                raise mapping.explained(error) from None
            shown = outcomes[fenced : fenced + len(write.ops)]
            return [mapping.up(outcome) for outcome in shown]
        raise StoreBusyError(f"the data key of scope {scope.path!r} was changed {ATTEMPTS} times while it was used")

    async def _mend_fence(self, scope: ScopePath, keys: DataKeys, error: SettingsChangedError) -> bool:
        """Make the fence of a scope name the current key; return False if the error is not about the fence.

        Of several writers to a new scope, one makes the fence and the others wait, but not forever.
        """
        if scope.path in self._mending:
            since = time.monotonic()
            while scope.path in self._mending and time.monotonic() - since < MAX_WAIT:
                await pause()
            return True
        self._mending.add(scope.path)
        try:
            return await self._mend(scope, keys, error)
        finally:
            self._mending.discard(scope.path)

    async def _mend(self, scope: ScopePath, keys: DataKeys, error: SettingsChangedError) -> bool:
        stored = await self._fence(scope)
        if stored is not None and stored.settings == keys.first.hex() and error.settings != stored.settings:
            # It is the caller's conflict; or the fence was mended meanwhile, and the next attempt succeeds.
            return FENCE_KIND in str(error)
        await self._records.check_lost(keys.subject, keys)
        # The fence stands before the key is looked at again: whoever destroys the key looks for fences afterwards.
        current = await self._records.reload(keys.subject) or await self._records.ensure_keys(keys.subject)
        name = current.first.hex()
        if stored is None or stored.settings != name:
            expected = Expect(scope, FENCE_KIND, settings=None if stored is None else stored.settings)
            try:
                await self._below.write(Write((expected, Touch(scope, FENCE_KIND, settings=name))))
            except ConflictError:
                return True
            await self._records.reload(keys.subject)
        return True

    async def _fence(self, scope: ScopePath) -> Stream | None:
        page = await self._below.streams(StreamScan(scope=scope, kinds=(FENCE_KIND,), below=False, empty=True))
        return page.items[0] if page.items else None

    # ------------------------------------------------------------ reading

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        visible = [ref for ref in refs if not is_internal(ref.scope, ref.kind)]
        found = dict(zip(visible, await self._read(visible, {}), strict=True))
        return [found.get(ref) for ref in refs]

    async def _read(self, refs: list[Ref], known: dict[str, DataKeys | None]) -> list[Record | None]:
        """Read records; `known` has the keys of subjects that were just loaded."""
        hashed: list[Ref] = []
        used: dict[str, DataKeys | None] = {}
        metadata = await self._records.load()
        for ref in refs:
            if metadata is None or ref.kind in CLEAR_KEYS:
                hashed.append(ref)
                continue
            subject = self._records.subject_of(metadata, ref.scope)
            if subject not in used:
                used[subject] = known[subject] if subject in known else await self._records.find(subject)
            keys = used[subject]
            hashed.append(ref if keys is None else Ref(ref.scope, ref.kind, keys.hashed_key(ref.kind, ref.key)))
        found = await self._decrypted(await self._below.read(hashed))
        missed = {
            self._records.subject_of(metadata, ref.scope)
            for ref, record in zip(refs, found, strict=True)
            if record is None and metadata is not None and ref.kind not in CLEAR_KEYS
        }
        # Another process may have destroyed the keys, and written again with others.
        stale = {subject: keys for subject in missed - known.keys() if (keys := used[subject]) is not None}
        fresh = {subject: await self._records.reload(subject) for subject in stale}
        if any(fresh[subject] is not keys for subject, keys in stale.items()):
            return await self._read(refs, known | fresh)
        for subject in missed - stale.keys():
            if used[subject] is None:
                await self._records.check_lost(subject, None)
        return found

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass on the conditions that the store below can evaluate, decrypt, and evaluate the others."""
        needs_keys = any(test.field == "key" or test.field.startswith("labels.") for test in scan.where)
        subject, keys = await self._keys_for(scan) if needs_keys else (None, None)
        while True:
            page = await self._scan(scan, keys)
            # Another process may have destroyed the keys, and written again with others.
            if keys is None or subject is None or (page.items and self._records.cached(subject) is keys):
                return page
            fresh = await self._records.reload(subject)
            if fresh is keys:
                return page
            keys = fresh

    async def _keys_for(self, scan: Scan) -> tuple[str | None, DataKeys | None]:
        """Return the keys that all records of a scan have, with their subject unless they are the store's own."""
        metadata = await self._records.load()
        if metadata is None:
            return None, None
        if scan.kinds and set(scan.kinds) <= set(KEPT_BY_ERASURE):
            return None, metadata.keys
        one = not scan.below or len(scan.scope.segments) >= metadata.fixed.level
        if not one or not scan.kinds or any(kind in KEPT_BY_ERASURE for kind in scan.kinds):
            return None, None
        subject = self._records.subject_of(metadata, scan.scope)
        return subject, await self._records.find(subject)

    async def _scan(self, scan: Scan, keys: DataKeys | None) -> Page[Record]:
        below, here, hashed = split_conditions(scan, keys)
        bodies = scan.bodies or any(test.field.startswith("data.") for test in here)

        async def decrypt(records: Sequence[Record]) -> list[Record | None]:
            found = await self._decrypted(records, bodies=bodies)
            if hashed:
                found = await self._checked(records, found, hashed)
            return [_stripped(one, scan) if one is not None and matches(one, here) else None for one in found]

        inner = replace(scan, where=tuple(below), bodies=bodies)
        if here or (scan.scope == METADATA_REF.scope and (not scan.kinds or METADATA_REF.kind in scan.kinds)):
            return await filtered_scan(self._below, inner, decrypt)
        page = await self._below.scan(inner)
        return Page(tuple(one for one in await decrypt(page.items) if one is not None), page.cursor)

    async def _checked(
        self, records: Sequence[Record], found: list[Record | None], hashed: list[Condition]
    ) -> list[Record | None]:
        """Drop records that were found by a hash and do not match; raises DecryptionError if they never did.

        A record may have changed between the look at the index of the store below and the record itself.
        """
        wrong = [n for n, one in enumerate(found) if one is not None and not matches(one, hashed)]
        for n, now in zip(wrong, await self._below.read([records[n].ref for n in wrong]), strict=True):
            if now is not None and now.version == records[n].version:
                raise DecryptionError(
                    f"the store returned {now.kind} {now.key!r} in scope {now.scope.path!r} for a label that it does "
                    "not have: the label index was modified"
                )
            found[n] = None
        return found

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        page = await self._below.streams(scan)
        return Page(tuple(s for s in page.items if not is_internal(s.scope, s.kind)), page.cursor)

    async def _decrypted(self, records: Sequence[Record | None], *, bodies: bool = True) -> list[Record | None]:
        """Return decrypted records; None for internal ones, and those whose key was destroyed by an erasure."""
        seen = [r for r in records if r is not None and not is_internal(r.scope, r.kind)]
        if not seen:
            return [None] * len(records)
        metadata = await self._records.load() or await self._records.load(again=True)
        if metadata is None:
            raise DecryptionError("the store has records, but no longer the record of its encryption")
        keys: dict[str, DataKeys | None] = {}
        for scope in dict.fromkeys(record.scope for record in seen):
            subject = self._records.subject_of(metadata, scope)
            keys[scope.path] = self._records.cached(subject) or await self._records.find(subject)

        def decrypt(record: Record | None) -> Record | None | UnknownDataKeyError:
            if record is None or is_internal(record.scope, record.kind):
                return None
            of = metadata.keys if record.kind in KEPT_BY_ERASURE else keys[record.scope.path]
            try:
                return open_record(of, record, bodies=bodies)
            except UnknownDataKeyError as error:
                return error

        size = sum(len(record.data or "") for record in seen if isinstance(record.data, str)) if bodies else 0
        many = size > MANY_CHARACTERS or len(records) > MANY_RECORDS
        found = await off_loop(lambda: list(map(decrypt, records))) if many else list(map(decrypt, records))
        for n, (record, one) in enumerate(zip(records, found, strict=True)):
            if isinstance(one, UnknownDataKeyError):
                assert record is not None, "an absent record has no key"
                found[n] = await self._open_again(record, self._records.subject_of(metadata, record.scope), one, bodies)
        return found  # type: ignore[return-value]

    async def _open_again(
        self, record: Record, subject: str, error: UnknownDataKeyError, bodies: bool
    ) -> Record | None:
        """Decrypt a record whose key was not known; None if it was destroyed."""
        if record.kind in KEPT_BY_ERASURE:
            metadata = await self._records.load(again=True)
            keys = None if metadata is None else metadata.keys
        else:
            keys = self._records.cached(subject)
            if keys is None or error.name not in keys.keys:
                keys = await self._records.reload(subject)
        if keys is not None and error.name in keys.keys:
            return open_record(keys, record, bodies=bodies)
        if error.name in (await self._records.destroyed(subject) if keys is None else keys.destroyed):
            return None
        raise error

    # ------------------------------------------------------------ keys

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        """Destroy the data keys of a scope and those below it, so that no copy of its records can be read.

        It is for an erasure, which calls it after it has purged the scope; records that others wrote in between, with
        the destroyed key, are deleted here. From then on nothing that was encrypted with it can be read anywhere,
        and is treated as absent; other processes go on with a new key, and lose nothing that they write. A scope
        below the level of subjects shares the key of its subject: nothing is destroyed then.
        """
        metadata = await self._records.load(again=True)
        if metadata is None:
            return await super().destroy(scope)
        depth = len(scope.segments)
        subjects: list[str] = []
        if depth == metadata.fixed.level:
            subjects = [scope.path]
        elif depth < metadata.fixed.level:
            subjects = await self._records.subjects(scope)
        # Keys first: a writer whose fence is found missing looks for the key, and must not find it.
        destroyed = [await self._records.destroy(subject) for subject in subjects]
        await self.drop_fences(scope)
        if any(destroyed):
            from .key_rotation import delete_unreadable

            await delete_unreadable(self._below, self._records, scope)
        done = await super().destroy(scope)
        done.add(DATA_KEYS, sum(destroyed))
        return done

    async def drop_fences(self, scope: ScopePath) -> None:
        """Make every process look for the current key of a scope, and of those below it, before it writes there."""
        fences = all_streams(self._below, StreamScan(scope=scope, kinds=(FENCE_KIND,), empty=True))
        for stream in [stream async for stream in fences]:
            await self._below.write(Write((Purge(stream.scope, FENCE_KIND, drop=True),)))

    async def rotate(self, progress: Callable[[int, int], object] | None = None, *, data_keys: bool = False) -> int:
        """Wrap all data keys with the first master key; return how many key records changed.

        With `data_keys`, also re-encrypt every record with new data keys, and return how many records changed.
        Other processes may read and write meanwhile. If interrupted, it resumes when called again.
        """
        from .key_rotation import KeyRotation

        changed = await self._records.rewrap(None if data_keys else progress)
        return await KeyRotation(self, self._records, progress).run() if data_keys else changed


def _stripped(record: Record, scan: Scan) -> Record:
    return record if scan.bodies else replace(record, text=None, data=None)
