"""Saves what can still be read of a damaged store into a new one: `mnemic doctor --salvage`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import field

from .copying import copy_ops
from .doctor import INTERNAL
from .errors import ConflictError, DecryptionError, InvalidValueError, NotFoundError, StoreError, UnreadableStoreError
from .layers.auxiliary_stores import open_encrypted
from .layers.encryption import EncryptLayer
from .layers.encryption_metadata import METADATA_REF, is_internal
from .layers.master_key import EncryptionKeys, UnknownMasterKeyError, encryption_of
from .recall.index_entry import USE
from .records import ONCE_KIND, VERSION, Record, ScopePath, Stream, StreamName, Value
from .store import registry
from .store.damage import records_around, streams_around
from .store.diagnosis import Readable
from .store.matching import to_cursor
from .store.protocol import Capability, Store, is_empty
from .store.query import Op, Scan, StreamScan, Touch, Write
from .store.registry import Backend, StoreURL, closed_on_error

__all__ = ["Lost", "Salvaged", "salvage"]


class Lost(Value, frozen=True):
    """Records of a scope and kind that could not be saved, and why, as far as that is known."""

    scope: ScopePath
    kind: str
    records: int
    why: str = ""


class Salvaged(Value, frozen=True, kw_only=True):
    """The records that were saved into a new store, and those that were lost."""

    source: str
    target: str
    records: dict[str, int]
    """Number of records that were saved, by kind, without Mnemic's own."""
    lost: list[Lost] = field(default_factory=list)
    uncounted: bool = False
    """Whether more may be lost than could be counted."""
    erased: int = 0
    """Number of records that were left out because their data key was destroyed by an erasure."""
    remarks: list[str] = field(default_factory=list)
    """Other damage, such as the settings of a session."""

    @property
    def complete(self) -> bool:
        """Whether nothing was lost."""
        return not self.lost and not self.uncounted and not self.remarks


async def salvage(
    source: str,
    target: str,
    encryption_key: EncryptionKeys | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
) -> Salvaged:
    """Save what can be read of the store at one URL into a new store at another; the source is not changed.

    An encrypted store is saved as it is, and opened with its key; with `encryption_key`, records that do not decrypt
    are left out. Vectors are left out, and computed by the next recall. Call it while nobody else uses the source.
    Raises ConflictError if there is a store at the target, NotFoundError if there is none at the source, or nothing in
    it can be read, and DecryptionError for a wrong key, or if records need another one. A file that it has begun is
    deleted then.
    """
    from_url, backend = await registry.find_existing(source)
    to_url, into = registry.find(target)
    if into.exists is not None and await into.exists(to_url):
        raise ConflictError(f"there is a store at {to_url} already: name a new one")
    readable = await _readable(from_url, backend)
    assert readable.store is not None
    opened: Store = readable.store
    try:
        layer: EncryptLayer | None = None
        if encryption_key is not None:
            opened = layer = await _decrypting(readable.store, encryption_key, str(from_url))
        saved = await into.open(to_url)
        begun = False
        try:
            if not await is_empty(saved):
                raise ConflictError(f"there is a store at {to_url} already: name a new one")
            begun = True
            done = await _Salvage(readable, readable.store, layer, saved, progress).run(str(from_url), str(to_url))
            begun = False
            return done
        finally:
            await saved.close()
            if begun and into.remove is not None:
                await into.remove(to_url)
    finally:
        await opened.close()


async def _decrypting(store: Store, key: EncryptionKeys, url: str) -> EncryptLayer:
    """Return the encryption layer over a store; raises DecryptionError if it is not encrypted, or the key is wrong."""
    if (await store.read([METADATA_REF]))[0] is None:
        raise DecryptionError(
            f"{url} is not encrypted, or the record with its encryption is lost: salvage without a key"
        )
    if (key_store := encryption_of(key).key_store) is not None:
        await registry.find_existing(key_store)
    layer = await open_encrypted(store, key, url)
    async with closed_on_error(layer):
        await layer.prepare()
    return layer


async def _readable(url: StoreURL, backend: Backend) -> Readable:
    if backend.salvage is not None:
        return await backend.salvage(url)
    store = (await backend.diagnose(url)).store if backend.diagnose is not None else None
    return Readable(store=store or await backend.open(url))


class _Salvage:
    """One salvage between two open stores."""

    def __init__(
        self,
        readable: Readable,
        source: Store,
        decrypting: EncryptLayer | None,
        target: Store,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._source = source
        self._decrypting = decrypting
        self._target = target
        self._progress = progress
        self._saved: Counter[str] = Counter()
        self._lost: Counter[StreamName] = readable.lost
        self._why: dict[StreamName, str] = dict.fromkeys(readable.lost, "their pages are damaged")
        self._remarks = list(readable.remarks)
        self._uncounted = readable.uncounted
        self._erased = 0
        self._total = readable.saved

    async def run(self, source: str, target: str) -> Salvaged:
        for kinds in ((), (VERSION,)):
            async for stream in streams_around(self._source, kinds):
                if isinstance(stream, StoreError):
                    name = getattr(stream, "stream", None)
                    remark = f"a list or a state of streams is damaged: {stream}"
                    if remark not in self._remarks:
                        self._remarks.append(remark)
                    self._uncounted = True
                    if name is not None and name[1]:  # without a kind, nothing of the scope can be read
                        await self._stream(name, None)
                elif stream.kind != ONCE_KIND:
                    await self._listed(stream)
        if not self._saved:
            raise NotFoundError(f"nothing could be saved from {source}: it has no records that can be read")
        lost = [
            Lost(ScopePath(scope), kind, number, self._why.get((scope, kind), ""))
            for (scope, kind), number in sorted(self._lost.items())
            if number
        ]
        records = {kind: number for kind, number in sorted(self._saved.items()) if kind not in INTERNAL}
        return Salvaged(
            source=source, target=target, records=records, lost=lost,
            uncounted=self._uncounted, erased=self._erased, remarks=self._remarks,
        )  # fmt: skip

    async def _listed(self, stream: Stream) -> None:
        """Save a stream with its settings, and count what is missing of it."""
        missing = stream.count - await self._stream(stream.name, stream.last_seq)
        if missing > 0:
            here = StreamScan(scope=stream.scope, kinds=(stream.kind,), below=False, empty=True)
            now = await self._source.streams(here)
            missing -= stream.count - sum(one.count for one in now.items)  # they have expired meanwhile
        if missing > 0:
            self._lost[stream.name] += missing
            self._why.setdefault(stream.name, "they are not where the store counts them")
        try:
            await self._target.write(Write((Touch.of(stream),)))
        except InvalidValueError as error:
            self._remarks.append(f"the settings of the {stream.kind} stream of {stream.scope.path!r}: {error}")

    async def _stream(self, name: StreamName, last_seq: int | None) -> int:
        """Save a stream; return how many of its records were read."""
        scope, kind = ScopePath(name[0]), name[1]
        # With derived values, some stores also read the state of the stream, which may be the damaged part.
        derived = (USE,) if last_seq is not None and Capability.RECORDS in self._source.capabilities else ()
        read = 0
        async for found in records_around(self._source, scope, kind, last_seq, derived):
            if isinstance(found, StoreError):
                self._lose(name, found)
                read += 1
                continue
            read += len(found)
            await self._put(name, await self._decryptable(name, found))
            if self._progress is not None:
                done = self._saved.total()
                self._progress(done, max(done, self._total))
        return read

    def _lose(self, name: StreamName, error: Exception) -> None:
        self._lost[name] += 1
        self._why.setdefault(name, str(error))

    async def _put(self, name: StreamName, records: Sequence[Record]) -> None:
        if not records:
            return
        ops: list[Op] = []
        try:
            for record in records:
                ops += copy_ops(record)
            await self._target.write(Write(tuple(ops)))
            self._saved[name[1]] += len(records)
        except InvalidValueError as error:
            if len(records) == 1:
                self._lose(name, error)
                return
            for record in records:
                await self._put(name, [record])

    async def _decryptable(self, name: StreamName, records: Sequence[Record]) -> Sequence[Record]:
        """Return those of several records in order that decrypt, all without a key, and count the others."""
        if self._decrypting is None or is_internal(ScopePath(name[0]), name[1]):
            return records
        cursor = to_cursor((*name, records[0].seq - 1))
        scan = Scan(scope=ScopePath(name[0]), kinds=(name[1],), limit=len(records), cursor=cursor)
        try:
            read = {record.seq for record in (await self._decrypting.scan(scan)).items}
        except UnknownMasterKeyError as error:
            raise DecryptionError(f"{error}: give that key too, or salvage without a key") from error
        except (DecryptionError, UnreadableStoreError) as error:
            if len(records) == 1:
                self._lose(name, error)
                return ()
            return [one for record in records for one in await self._decryptable(name, [record])]
        # The encryption treats records whose data key was destroyed as absent.
        self._erased += sum(record.seq not in read for record in records)
        return [record for record in records if record.seq in read]
