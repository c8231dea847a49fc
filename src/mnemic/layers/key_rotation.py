"""Data keys out of use: re-encrypts a store record by record while it is in use, or deletes what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr, replace

from ..checks import check_callable
from ..errors import StoreError
from ..event_loop import off_loop
from ..records import KEPT_BY_ERASURE, VERSION, Record, ScopePath, Stream
from ..store.protocol import Store, all_streams, scan_pages
from ..store.query import Delete, Derive, Op, Put, Scan, StreamScan
from ..store.retry import write_each
from .cipher import LASTING, DataKeys, head_of, key_of, open_record, seal_derived, seal_record
from .data_keys import KeyRecords
from .encryption_metadata import is_internal

if TYPE_CHECKING:
    from .encryption import EncryptLayer

PAGE = 200
"""How many records are read and written at once."""
WRITTEN_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters written at once."""
PASSES = 10
"""How many passes look for records that others wrote with an old key."""


class KeyRotation:
    """One rotation; each envelope names its key, so finished records are skipped."""

    def __init__(self, layer: EncryptLayer, records: KeyRecords, progress: Callable[[int, int], object] | None) -> None:
        self._layer = layer
        self._store: Store = layer._below
        self._records = records
        check_callable(progress, "progress")
        self._progress = progress
        self._names: tuple[str, ...] = ()
        self._changed = 0

    async def run(self) -> int:
        """Give every subject a new key, encrypt everything with it, and destroy the old ones; return how many changed.

        Raises StoreError if others keep writing with an old key.
        """
        current: dict[str, DataKeys] = {}
        for subject in await self._records.subjects(ScopePath()):
            keys = await self._records.reload(subject)
            # With more keys, an interrupted rotation goes on.
            if keys is not None and (len(keys.keys) == 1 or self._records.apart):
                keys = await self._records.add_key(subject)
            if keys is not None:
                current[subject] = keys
        # From here on, nobody writes with an old key.
        await self._layer.drop_fences(ScopePath())
        for _ in range(PASSES):
            if (before := await self._records.load(again=True)) is None:
                return 0
            self._names = before.fixed.derived
            clean = await self._pass()
            self._progress = None
            after = await self._records.load(again=True)
            if clean and after is not None and after.fixed.derived == before.fixed.derived:
                for subject, keys in current.items():
                    if self._records.apart:
                        break  # other stores with the same key store may still use the old keys
                    await self._records.drop_old_keys(subject, keys.first)
                return self._changed
        raise StoreError("other processes still write with an old data key: close them, and rotate again")

    async def _pass(self) -> bool:
        """Process everything once; return whether all had the current keys already."""
        streams = await _streams(self._store, ScopePath())
        total = sum(stream.count for stream in streams)
        done, clean = 0, True
        metadata = await self._records.ensure()
        for stream in streams:
            keys = await self._records.find(self._records.subject_of(metadata, stream.scope))
            if keys is None:
                continue  # erased meanwhile
            scan = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, derived=self._names, limit=PAGE)
            async for records in scan_pages(self._store, scan):
                clean = await self._renew(keys, records) and clean
                done += len(records)
                if self._progress is not None:
                    self._progress(min(done, total), total)
        return clean

    async def _renew(self, keys: DataKeys, records: Sequence[Record]) -> bool:
        """Re-encrypt those of some records that have an old key; return whether none had."""

        def is_old(sealed: bytes) -> bool:
            name = key_of(sealed, "a record")
            return name != keys.first and name in keys.keys  # else it is of a destroyed key

        old = [record for record in records if is_old(head_of(record))]
        current = [record for record in records if not is_old(head_of(record))]
        changes = [
            _renewed_derived(keys, record, [name for name, value in record.derived.items() if is_old(value)])
            for record in current
            if any(map(is_old, record.derived.values()))
        ]
        clean = not old and not changes
        size = 0
        read = await self._store.read([record.ref for record in old])
        for known, record in zip(old, read, strict=True):
            if record is None or record.version != known.version:
                # Written meanwhile; the next pass checks with which key.
                continue
            whole = replace(record, derived=known.derived)
            changes.append(await off_loop(lambda whole=whole: _renewed(keys, whole)))  # type: ignore[misc]
            size += len(record.data) if isinstance(record.data, str) else 0
            if size > WRITTEN_AT_ONCE:
                self._changed += sum(await write_each(self._store, changes))
                changes, size = [], 0
        self._changed += sum(await write_each(self._store, changes))
        return clean


async def delete_unreadable(store: Store, records: KeyRecords, scope: ScopePath) -> None:
    """Delete the records of a scope and below whose data key was destroyed."""
    metadata = await records.ensure()
    for stream in await _streams(store, scope):
        destroyed = await records.destroyed(records.subject_of(metadata, stream.scope))
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, limit=PAGE)
        async for page in scan_pages(store, scan):
            gone = [record for record in page if key_of(head_of(record), record) in destroyed]
            await write_each(store, [(Delete(record.ref, record.version),) for record in gone])


async def _streams(store: Store, scope: ScopePath) -> list[Stream]:
    """Return the streams of a scope and below that have keys of subjects."""
    listed = [StreamScan(scope=scope, kinds=kinds) for kinds in ((), (VERSION,))]
    streams = [stream for scan in listed async for stream in all_streams(store, scan)]
    return [s for s in streams if not is_internal(s.scope, s.kind) and s.kind not in KEPT_BY_ERASURE]


def _renewed(keys: DataKeys, stored: Record) -> tuple[Op, ...]:
    """Return the operations that rewrite a record and its derived values, if it is unchanged."""
    record = open_record(keys, stored)
    lasting = sorted(name for name in record.derived if stored.derived[name][:1] == LASTING)
    of_record = {name: value for name, value in record.derived.items() if name not in lasting}
    # It was accepted once, so it is accepted again, though it is longer now.
    put = Put(Record(stored.scope, stored.kind, stored.key), stored.version, stored.updated)
    force_setattr(put, "record", seal_record(keys, replace(record, derived=of_record)))
    return (put, *(_derive(keys, stored, name, record.derived[name]) for name in lasting))


def _renewed_derived(keys: DataKeys, stored: Record, old: list[str]) -> tuple[Op, ...]:
    """Return the operations that rewrite only derived values."""
    opened = open_record(keys, stored, bodies=False).derived
    return tuple(_derive(keys, stored, name, opened.get(name)) for name in old)


def _derive(keys: DataKeys, stored: Record, name: str, value: bytes | None) -> Derive:
    if value is None:
        return Derive(stored.ref, name, None)
    version = None if stored.derived[name][:1] == LASTING else stored.version
    return Derive(stored.ref, name, seal_derived(keys, stored.ref, name, value, version), version)
