"""Key rotation: re-encrypts a store record by record, while it is in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import force_setattr, replace

from ..checks import check_callable
from ..errors import StoreError
from ..event_loop import off_loop
from ..records import ENCRYPTION_KIND, Record, ScopePath
from ..store.protocol import Store, all_streams, scan_pages
from ..store.query import Derive, Op, Put, Scan, StreamScan
from ..store.retry import write_each
from .cipher import LASTING, RecordCipher, head_of, key_of
from .encryption import MetadataRecord

PAGE = 200
"""How many records are read and written at once."""
WRITTEN_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters written at once."""
PASSES = 10
"""How many passes look for records that others wrote with an old key."""


class KeyRotation:
    """One rotation; each envelope names its key, so finished records are skipped."""

    def __init__(
        self,
        store: Store,
        cipher: RecordCipher,
        metadata: MetadataRecord,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._store = store
        self._cipher = cipher
        self._metadata = metadata
        check_callable(progress, "progress")
        self._progress = progress
        self._names: tuple[str, ...] = ()
        self._changed = 0

    async def run(self) -> int:
        """Encrypt everything with the first key; return how many records changed.

        Raises StoreError if others keep writing with another key.
        """
        for _ in range(PASSES):
            if (before := await self._metadata.load(again=True)) is None:
                return 0
            self._names = tuple(sorted(before.derived))
            clean = await self._pass()
            self._progress = None
            after = await self._metadata.load(again=True)
            if clean and after is not None and after.derived == before.derived:
                await self._metadata.rotate()
                return self._changed
        raise StoreError(
            "other processes still write with another key: give all of them the new key first, then rotate again"
        )

    async def _pass(self) -> bool:
        """Process everything once; return whether all had the first key already."""
        streams = [s async for s in all_streams(self._store, StreamScan(scope=ScopePath()))]
        streams = [s for s in streams if s.kind != ENCRYPTION_KIND or s.scope.path]
        total = sum(stream.count for stream in streams)
        done, clean = 0, True
        for stream in streams:
            scan = Scan(scope=stream.scope, kinds=(stream.kind,), bodies=False, derived=self._names, limit=PAGE)
            async for records in scan_pages(self._store, scan):
                clean = await self._renew(records) and clean
                done += len(records)
                if self._progress is not None:
                    self._progress(min(done, total), total)
        return clean

    async def _renew(self, records: Sequence[Record]) -> bool:
        """Re-encrypt those of some records that have another key; return whether none had."""
        old = [record for record in records if self._is_old(head_of(record))]
        current = [record for record in records if not self._is_old(head_of(record))]
        changes = [self._renewed_derived(r) for r in current if any(map(self._is_old, r.derived.values()))]
        clean = not old and not changes
        size = 0
        read = await self._store.read([record.ref for record in old])
        for known, record in zip(old, read, strict=True):
            if record is None or record.version != known.version:
                # Written meanwhile; the next pass checks with which key.
                continue
            whole = replace(record, derived=known.derived)
            changes.append(await off_loop(lambda whole=whole: self._renewed(whole)))  # type: ignore[misc]
            size += len(record.data) if isinstance(record.data, str) else 0
            if size > WRITTEN_AT_ONCE:
                self._changed += sum(await write_each(self._store, changes))
                changes, size = [], 0
        self._changed += sum(await write_each(self._store, changes))
        return clean

    def _renewed(self, stored: Record) -> tuple[Op, ...]:
        """Return the operations that rewrite a record and its derived values, if it is unchanged."""
        record = self._cipher.open(stored)
        lasting = sorted(name for name in record.derived if stored.derived[name][:1] == LASTING)
        of_record = {name: value for name, value in record.derived.items() if name not in lasting}
        # It was accepted once, so it is accepted again, though it is longer now.
        put = Put(Record(stored.scope, stored.kind, stored.key), stored.version, stored.updated)
        force_setattr(put, "record", self._cipher.seal(replace(record, derived=of_record), stored.labels))
        return (put, *(self._derive(stored, name, record.derived[name]) for name in lasting))

    def _renewed_derived(self, stored: Record) -> tuple[Op, ...]:
        """Return the operations that rewrite only the derived values that have another key."""
        opened = self._cipher.open(stored, bodies=False).derived
        old = [name for name, value in stored.derived.items() if self._is_old(value)]
        return tuple(self._derive(stored, name, opened.get(name)) for name in old)

    def _derive(self, stored: Record, name: str, value: bytes | None) -> Derive:
        if value is None:
            return Derive(stored.ref, name, None)
        mark = stored.derived[name][:1]
        version = None if mark == LASTING else stored.version
        return Derive(stored.ref, name, self._cipher.seal_derived(stored.ref, name, value, mark), version)

    def _is_old(self, sealed: bytes) -> bool:
        return key_of(sealed, "a record") != self._cipher.keys.first
