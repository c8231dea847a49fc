"""Copies all data from one store to another, page by page, and verifies it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from hashlib import blake2b

from msgspec import json
from msgspec.structs import replace

from .checks import check_callable, shown
from .errors import ConflictError, DecryptionError, EmbedderError, NotFoundError, StoreError
from .layers.auxiliary_stores import open_encrypted
from .layers.encryption import EncryptLayer, check_plain
from .layers.encryption_metadata import METADATA_REF, store_id
from .layers.master_key import EncryptionKeys
from .layers.redact import RedactedView
from .layers.store_embedder import EMBEDDER_REF, recorded_id
from .layers.version_records import BEGIN_REF, copied_version
from .models.embedder import AUTO
from .recall.index_entry import USE, entry_name
from .records import EMBEDDER_KIND, ENCRYPTION_KIND, FENCE_KIND, VERSION, Record, ScopePath, Stream, Value, digest
from .redaction.config import Redacting, redaction_of
from .store import registry
from .store.protocol import Capability, Store, all_streams, is_empty, scan_all
from .store.query import Derive, Op, Put, Scan, StreamScan, Touch, Write

PAGE = 200
"""How many records are read at once."""
NOTES = (EMBEDDER_KIND, ENCRYPTION_KIND, FENCE_KIND)
"""Kinds of internal records about the store itself."""
COUNTED_AT_ONCE = 1000
"""How many records are read at once for counting."""
WRITTEN_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters written at once."""

Progress = Callable[[int, int], object]

_encode = json.Encoder().encode


class Copied(Value, frozen=True):
    """Result of a copy: the number of streams and records, and how many records were written."""

    streams: int
    records: int
    written: int
    digest: str
    """Digest of all records in order, the same in every store."""


async def copy_async(
    source: str,
    target: str,
    *,
    scope: ScopePath | str | None = None,
    reembed: bool = False,
    merge: bool = False,
    source_key: EncryptionKeys | None = None,
    target_key: EncryptionKeys | None = None,
    redact: Redacting = None,
    progress: Callable[[int, int], object] | None = None,
) -> Copied:
    """Copy everything at one URL, or one scope of it, to another URL, and verify it.

    If interrupted, call it again: existing records are compared, not written. Vectors are copied if both stores have
    the same embedder, or the target has none; otherwise EmbedderError is raised, unless `reembed` recomputes them with
    the target's embedder. A target stream with records that the source does not have raises ConflictError, unless
    `merge` is true. `source_key` decrypts the source, `target_key` encrypts the target; with neither, ciphertext is
    copied as it is. Earlier versions are not copied to a server, which keeps its own. `redact` replaces personal data
    and secrets in the copy, as `open_async` does; without a vault. `progress` is called with the number of records done
    and the total. Raises NotFoundError if the source does not exist or has nothing to copy, DecryptionError if a key is
    missing or wrong, StoreError if the verification fails, for instance because the source changed.
    """
    path = scope if isinstance(scope, ScopePath) else ScopePath(scope or "")
    places = [await registry.find_existing(source), registry.find(target)]
    redaction = redaction_of(redact)
    opened: list[Store] = []
    try:
        for (url, backend), key in zip(places, (source_key, target_key), strict=True):
            opened.append(await backend.open(url))
            if key is not None:
                opened[-1] = layer = await open_encrypted(opened[-1], key, str(url))
                await layer.prepare()
            if len(opened) == 1:
                # Before the target is opened, which may create it.
                await _check_any(opened[0], path, str(url))
                if redaction is not None:
                    await check_plain(opened[0], str(url))
                    opened[0] = RedactedView(opened[0], redaction)
        return await _Copy(opened[0], opened[1], path, merge, progress).run(reembed=reembed)
    finally:
        for store in opened:
            await store.close()


def copy_ops(record: Record) -> list[Op]:
    """Return the operations that write a record of another store, with its times and derived values."""
    # The entry belongs to this version of the record; the uses to none.
    entries = {name: value for name, value in record.derived.items() if name != USE}
    ops: list[Op] = [Put(replace(record, derived=entries), updated=record.updated)]
    if (use := record.derived.get(USE)) is not None:
        ops.append(Derive(record.ref, USE, use))
    return ops


async def _check_any(store: Store, scope: ScopePath, url: str) -> None:
    """Raise NotFoundError if a scope and those below it have no user data."""
    async with aclosing(_own_streams(store, scope)) as streams:
        async for _ in streams:
            return
    where = f"in the scope {scope.path!r} of {url}" if scope.path else f"at {url}"
    raise NotFoundError(f"there is nothing to copy {where}")


async def _own_streams(store: Store, scope: ScopePath, *, versions: bool = True) -> AsyncGenerator[Stream, None]:
    """Yield the streams of a scope and below that have records or settings, except internal ones."""
    for kinds in ((), (VERSION,)) if versions else ((),):
        async with aclosing(all_streams(store, StreamScan(scope=scope, kinds=kinds, empty=True))) as streams:
            async for stream in streams:
                ended = stream.expires is not None and stream.expires <= store.clock()
                if stream.kind not in NOTES and (stream.count or (stream.settings is not None and not ended)):
                    yield stream


async def _all_but_begin(store: Store, scan: Scan) -> AsyncGenerator[Record, None]:
    """Yield the records of a scan, without that of the beginning of the history."""
    async with aclosing(scan_all(store, scan)) as records:
        async for record in records:
            if record.ref != BEGIN_REF:
                yield record


class _Copy:
    """One copy between two open stores."""

    def __init__(self, source: Store, target: Store, scope: ScopePath, merge: bool, progress: Progress | None) -> None:
        self.source = source
        self.target = target
        self.scope = scope
        self.merge = merge
        check_callable(progress, "progress")
        self.progress = progress
        self.done = self.total = self.written = 0
        self.versions = Capability.SEARCH not in target.capabilities  # a server keeps a history of its own
        self.digest = blake2b(digest_size=16)
        self._seqs: dict[ScopePath, dict[str, list[int]]] = {}
        """The seqs of the records of the scope whose versions are copied, by kind."""

    async def run(self, *, reembed: bool) -> Copied:
        await self._lock()
        derived = await self._embedder(reembed)
        await self._history()
        through = self.target
        if reembed:
            from .layers.index import IndexLayer

            through = IndexLayer(self.target, AUTO)
        streams = [stream async for stream in _own_streams(self.source, self.scope, versions=self.versions)]
        self.total = sum(stream.count for stream in streams)
        for stream in streams:
            await self._stream(stream, through, derived)
        await self._compare_counts({(stream.scope, stream.kind) for stream in streams})
        return Copied(len(streams), self.done, self.written, self.digest.hexdigest())

    async def _lock(self) -> None:
        """Copy the metadata and key records of an encrypted store, if it is copied without its key.

        Raises DecryptionError if that would mix encrypted and plain data, or data of different keys.
        """
        (ours,) = await self.source.read([METADATA_REF])
        (theirs,) = await self.target.read([METADATA_REF])
        if ours is None and theirs is not None:
            raise DecryptionError("the target is encrypted: copy with target_key")
        if ours is None:
            return
        same = theirs is not None and store_id(theirs) == store_id(ours)
        if not same and (
            theirs is not None or not await is_empty(self.target) or isinstance(self.target, EncryptLayer)
        ):
            raise DecryptionError("the source is encrypted, the target in another way or not: copy with keys")
        async for record in scan_all(self.source, Scan(scope=ScopePath(), kinds=(ENCRYPTION_KIND,), limit=PAGE)):
            (stored,) = await self.target.read([record.ref])
            if stored is None or stored.data != record.data:
                await self.target.write(Write((Put(Record(record.scope, record.kind, record.key, data=record.data)),)))

    async def _embedder(self, reembed: bool) -> tuple[str, ...]:
        """Return which derived values to copy; raises EmbedderError if the target has another embedder."""
        ours = recorded_id((await self.source.read([EMBEDDER_REF]))[0])
        theirs = recorded_id((await self.target.read([EMBEDDER_REF]))[0])
        if reembed or Capability.SEARCH in self.target.capabilities:
            return (USE,)  # a server makes its own entries
        if ours is not None and theirs is not None and ours != theirs:
            raise EmbedderError(
                f"the source's vectors were made by {ours!r}, the target's by {theirs!r}, and they cannot be "
                "compared: copy with reembed, so that the target's embedder makes its own"
            )
        if ours is not None and theirs is None:
            note = Record(EMBEDDER_REF.scope, EMBEDDER_REF.kind, EMBEDDER_REF.key, data={"id": ours})
            await self.target.write(Write((Put(note, 0),)))
        return (USE, entry_name(ours))

    async def _history(self) -> None:
        """Copy since when versions are kept, unless the target has a history of its own."""
        if not self.versions:
            return
        (ours,), (theirs,) = await self.source.read([BEGIN_REF]), await self.target.read([BEGIN_REF])
        if ours is not None and theirs is None and not self.scope.path:
            await self.target.write(Write((Put(replace(ours, derived={}), 0),)))

    async def _stream(self, stream: Stream, through: Store, derived: tuple[str, ...]) -> None:
        """Copy one stream, then compare both."""
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE, derived=derived)
        while True:
            page = await self.source.scan(scan)
            records = [record for record in page.items if record.ref != BEGIN_REF]
            await self._page([await self._placed(record) for record in records], through)
            self.done += len(page.items)
            if self.progress is not None:
                self.progress(self.done, max(self.total, self.done))
            if page.cursor is None:
                break
            scan = replace(scan, cursor=page.cursor)
        await self.target.write(Write((Touch.of(stream),)))
        await self._verify(stream)

    async def _placed(self, record: Record) -> Record:
        """Return a record as it is in the copy: an earlier version says between which records it was."""
        if record.kind != VERSION:
            return record
        if record.scope not in self._seqs:
            self._seqs = {record.scope: {}}
            scan = Scan(scope=record.scope, bodies=False, limit=COUNTED_AT_ONCE)
            async for one in scan_all(self.source, scan):
                self._seqs[record.scope].setdefault(one.kind, []).append(one.seq)
        seqs = self._seqs[record.scope]
        return copied_version(record, lambda kind: seqs.get(kind, ()))

    async def _page(self, records: Sequence[Record], through: Store) -> None:
        existing = await self.target.read([record.ref for record in records])
        ops: list[Op] = []
        size = 0
        for record, stored in zip(records, existing, strict=True):
            if stored is not None and digest(stored) == digest(record):
                continue
            ops += copy_ops(record)
            self.written += 1
            size += len(record.text or "") + len(_encode(record.data))
            if size > WRITTEN_AT_ONCE:
                await through.write(Write(tuple(ops)))
                ops, size = [], 0
        if ops:
            await through.write(Write(tuple(ops)))

    async def _verify(self, stream: Stream) -> None:
        """Raise StoreError or ConflictError unless the target has the same records in the same order."""
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE)
        pair = _all_but_begin(self.source, scan), _all_but_begin(self.target, scan)
        all_of_it, count = blake2b(digest_size=16), 0
        try:
            async for record in pair[0]:
                wanted = digest(await self._placed(record))
                stored = await self._stored(record) if self.merge else await anext(pair[1], None)
                if stored is None or digest(stored) != wanted:
                    raise await self._differs(stream, count, stored)
                all_of_it.update(wanted)
                count += 1
            if not self.merge and (stored := await anext(pair[1], None)) is not None:
                raise await self._differs(stream, count, stored)
        finally:
            for one in pair:
                await one.aclose()
        self.digest.update(f"{stream.scope.path}\0{stream.kind}\0{count}\0".encode() + all_of_it.digest())

    async def _compare_counts(self, copied: set[tuple[ScopePath, str]]) -> None:
        """Raise StoreError unless full scans of both stores show the copied streams.

        The list of streams that was copied from cannot show what is missing from itself.
        """
        ours, theirs = await self._counted(self.source), await self._counted(self.target)
        # Records that expired meanwhile were copied, and are no longer visible.
        for name in sorted(ours.keys() | (copied & theirs.keys())):
            mine, other = ours[name], theirs[name]
            if name not in copied or mine > other or (mine < other and not self.merge):
                scope, kind = name
                raise StoreError(
                    f"the source shows {mine:,} records in the {kind} stream of scope {scope.path!r} and the "
                    f"target {other:,}, counted after the copy; if the source is in use, copy again"
                )

    async def _counted(self, store: Store) -> Counter[tuple[ScopePath, str]]:
        """Return the number of records in each stream, by a full scan."""
        scan = Scan(scope=self.scope, below=True, bodies=False, limit=COUNTED_AT_ONCE)
        found: Counter[tuple[ScopePath, str]] = Counter()
        async with aclosing(scan_all(store, scan)) as records:
            async for record in records:
                if record.kind not in NOTES:
                    found[record.scope, record.kind] += 1
        return found

    async def _stored(self, record: Record) -> Record | None:
        (stored,) = await self.target.read([record.ref])
        return stored

    async def _differs(self, stream: Stream, count: int, stored: Record | None) -> Exception:
        """Return the error for a target record that differs from the source's at its position."""
        where = f"the {stream.kind} stream of scope {stream.scope.path!r}"
        if stored is not None and (await self.source.read([stored.ref]))[0] is None:
            return ConflictError(
                f"{where} in the target holds a record that the source does not have, {shown(stored.key)}: "
                "copy with merge to leave it there",
                key=stored.key,
            )
        return StoreError(
            f"{where} differs after {count:,} records that are the same in both stores; "
            "if the source is in use, copy again"
        )
