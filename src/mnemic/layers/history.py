"""The history layer: keeps what a write replaces or removes, in the same write.

It reads what is there first, and writes on the condition that this is still so; if another writer was faster, it
starts again, without the caller noticing. A write that only adds records passes as it is.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from ..checks import check_ttl, new_id, shown
from ..errors import ConflictError, InvalidValueError, LimitError, StoreBusyError, StorePermissionError
from ..records import OF_SESSIONS, VERSION, Record, Ref, Stream, parse_time
from ..store.protocol import Capability, Store
from ..store.query import Delete, Expect, Limit, Op, Outcome, Purge, Put, Scan, StreamScan, Write, place_of
from ..store.retry import ATTEMPTS, retry_conflicts
from ..store.stream_state import over_limit
from .audit_settings import current_actor
from .layer import Layer, backend_of, whole_store
from .restricted import unrestricted
from .version_records import BEGIN_REF, VERSIONED_KINDS, purge_record, version_put

COPIED_AT_ONCE = 200
"""How many versions are written at once before a large purge."""
DEFAULT_KEEP = timedelta(days=30)
"""How long versions are kept with `history=True`, in a store without a history."""
EVICTED_AT_ONCE = 32
"""How many candidates of a limit are read at once."""


class HistoryLayer(Layer):
    """Keeps the versions that writes replace or remove, for a time."""

    def __init__(self, below: Store, keep: timedelta) -> None:
        """Raise InvalidValueError for a time that is not positive."""
        super().__init__(below)
        self.keep: timedelta = check_ttl(keep, "history")
        self._begun = False

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with the versions that it replaces or removes.

        Raises StorePermissionError for a change of the versions themselves. A write that drops all versions of its
        scope keeps none.
        """
        loses = drops = False
        for op in write.ops:
            kind = op.record.kind if isinstance(op, Put) else place_of(op)[1]
            if kind == VERSION:
                if not isinstance(op, Purge):
                    raise StorePermissionError(f"the kind {VERSION!r} is reserved for earlier versions of records")
                drops = drops or op.drop
            elif kind in VERSIONED_KINDS:
                loses = loses or _may_lose(op)
        if drops:
            self._begun = False  # the record of the beginning may be among them
            return await self._below.write(write)
        if not self._begun:
            await self._begin()
        if not loses:
            return await self._below.write(write)
        return await _KeepingWrite(self._below, write, self.keep).run()

    async def _begin(self) -> None:
        """Record when the history of a store began, and how long versions are kept."""
        store = whole_store(self._below)
        (record,) = await store.read([BEGIN_REF])
        now = self.clock()
        since = now
        if record is not None:
            since, kept = _begin_of(record)
            if kept == self.keep:
                self._begun = True
                return
            since = max(since, now - kept)  # what was older than that is gone
        data = {"since": since.isoformat(), "keep": self.keep.total_seconds()}
        put = Put(
            Record(BEGIN_REF.scope, BEGIN_REF.kind, BEGIN_REF.key, data=data), 0 if record is None else record.version
        )
        try:
            await store.write(Write((put,)))
        except ConflictError:
            return  # another writer did
        self._begun = True


def _begin_of(record: Record) -> tuple[datetime, timedelta]:
    data: Any = record.data
    return parse_time(data["since"], "since"), timedelta(seconds=data["keep"])


def _may_lose(op: Op) -> bool:
    """Return whether an operation can replace or remove a record that has not expired."""
    if isinstance(op, Put):
        return op.if_version != 0
    if isinstance(op, Limit):
        return bool(op.evict)
    return isinstance(op, Delete) or (isinstance(op, Purge) and (op.drop or not op.expired_only))


class _Purged(Struct):
    """A stream that a write purges; many records are `copied` beforehand, under the purge's id."""

    stream: Stream | None
    id: str
    records: list[Record] = field(default_factory=list)
    copied: bool = False

    @property
    def version(self) -> int:
        return 0 if self.stream is None else self.stream.version


class _KeepingWrite:
    """One write, and what it replaces and removes."""

    def __init__(self, below: Store, write: Write, keep: timedelta) -> None:
        self._below = below
        self._write = write
        self._keep = keep
        self._by = current_actor().get("actor")
        self._stored: dict[Ref, Record | None] = {}
        self._ttls: dict[str, timedelta] = {}
        """How long versions of each kind are kept, of a session that expires."""
        self._ttls_read = False
        self._purged: dict[int, _Purged] = {}
        self._evicted: dict[int, tuple[tuple[str, ...], ...]] = {}
        """Keys that each limit is going to evict, by its position; nothing, until the store says that it must."""
        self._evicted_before = self._evicted
        self._complete: set[int] = set()
        """Limits that evict all their candidates."""
        self._changed = False
        self._salt = ""
        self._id = new_id()
        """Of all purges of this write."""

    async def run(self) -> list[Outcome]:
        return await retry_conflicts(
            self._attempt, "keeping the earlier versions", retry_on=lambda error: self._changed
        )

    async def _attempt(self) -> list[Outcome]:
        if not self._changed:
            await self._load()
        self._changed = False
        for _ in range(ATTEMPTS):
            before, ops, after = self._planned()
            try:
                outcomes = await self._below.write(replace(self._write, ops=(*before, *ops, *after)))
            except LimitError as error:
                # Either the store now tells how much is to be evicted, or others have added more meanwhile.
                if not await self._choose(error):
                    raise
            except ConflictError as error:
                self._changed = await self._reload(error)
                raise
            else:
                return outcomes[len(before) : len(before) + len(ops)]
        scope = place_of(self._write.ops[0])[0]
        raise StoreBusyError(f"others wrote to scope {scope.path!r} {ATTEMPTS} times while a limit was applied to it")

    # ------------------------------------------------------------ what is there

    async def _load(self) -> None:
        """Read what the write names, and copy what it purges."""
        refs: dict[Ref, None] = {}
        for n, op in enumerate(self._write.ops):
            scope, kind, key = place_of(op)
            if kind not in VERSIONED_KINDS or not _may_lose(op):
                continue
            if isinstance(op, Purge):
                if all(place_of(self._write.ops[known])[1] != kind for known in self._purged):
                    self._purged[n] = await self._copy(op, None)
            elif key is not None:
                refs[Ref(scope, kind, key)] = None
        await self._read(list(refs))
        if any(ref.kind in OF_SESSIONS for ref, record in self._stored.items() if record is not None):
            await self._read_ttls()

    async def _read(self, refs: list[Ref]) -> None:
        if refs:
            self._stored.update(zip(refs, await self._below.read(refs), strict=True))

    async def _read_ttls(self) -> None:
        """Read the times to live of a session: what expires with it is not kept longer."""
        if not self._ttls_read:
            self._ttls_read = True
            scope = place_of(self._write.ops[0])[0]
            page = await self._below.streams(StreamScan(scope=scope, kinds=OF_SESSIONS, below=False, empty=True))
            self._ttls |= {stream.kind: self._within(stream) for stream in page.items}

    def _within(self, stream: Stream) -> timedelta:
        """Return how long versions of a stream are kept."""
        return self._keep if stream.ttl is None else min(self._keep, stream.ttl)

    async def _reload(self, error: ConflictError) -> bool:
        """Read all of it again; return whether anything has changed."""
        before = {ref: _identity(record) for ref, record in self._stored.items()}
        keys = {op.record.key for op in self._planned()[2] if isinstance(op, Put) and op.record.kind == VERSION}
        await self._read(list(self._stored))
        changed = any(before[ref] != _identity(record) for ref, record in self._stored.items())
        for n, known in self._purged.items():
            op = self._write.ops[n]
            assert isinstance(op, Purge)
            self._purged[n] = await self._copy(op, known)
            changed = changed or self._purged[n].version != known.version
        if not changed and error.key in keys and not self._salt:
            self._salt, changed = new_id(), True
        chosen = {key for groups in self._evicted.values() for group in groups for key in group}
        if error.key in chosen and self._evicted != self._evicted_before:
            changed = True  # what was chosen may be more than is still necessary
        self._evicted_before, self._evicted, self._complete = self._evicted, {}, set()
        return changed

    async def _copy(self, op: Purge, known: _Purged | None) -> _Purged:
        """Return the records that a purge removes; many are written in parts instead, to hold few in memory."""
        scan = StreamScan(scope=op.scope, kinds=(op.kind,), below=False, empty=True)
        stream = next(iter((await self._below.streams(scan)).items), None)
        if known is not None and known.version == (0 if stream is None else stream.version):
            return known
        copied = known is not None and known.copied
        if stream is not None:
            self._ttls[op.kind] = self._within(stream)
        found = _Purged(stream, f"{self._id}.{op.kind}", copied=copied)
        if stream is None or not stream.count:
            return found
        keep = self._kept_by_purges(kind=op.kind)
        records = Scan(
            scope=op.scope,
            kinds=(op.kind,),
            limit=COPIED_AT_ONCE,
            after_version=known.version if known is not None and copied else None,
        )
        while True:
            page = await self._below.scan(records)
            found.records += [record for record in page.items if record.key not in keep]
            if found.records and (page.cursor is not None or found.copied):
                puts = [self._version(record, removed=True, purge=found.id) for record in found.records]
                await self._below.write(Write(tuple(puts)))
                found.records, found.copied = [], True
            if page.cursor is None:
                return found
            records = replace(records, cursor=page.cursor)

    def _kept_by_purges(self, kind: str) -> set[str]:
        """Return the keys that all purges of a kind keep."""
        purges = [op for op in self._write.ops if isinstance(op, Purge) and op.kind == kind and _may_lose(op)]
        return set.intersection(*[set() if op.drop else set(op.keep) for op in purges])

    async def _choose(self, error: LimitError) -> bool:
        """Choose what to evict so that the totals of the error are met; return False if the error is final."""
        for n, op in enumerate(self._write.ops):
            if isinstance(op, Limit) and op.evict and op.kind in VERSIONED_KINDS and n not in self._complete:
                if n in self._evicted:  # others have added more: the store is to say how much
                    del self._evicted[n]
                    return True
                if over_limit(op, error.count, error.weight):
                    await self._choose_for(n, op, error.count, error.weight)
                    return True
        return False

    async def _choose_for(self, n: int, op: Limit, count: int, weight: int) -> None:
        if op.kind in OF_SESSIONS:
            await self._read_ttls()
        weights = self._weights_before(n, op)
        chosen: list[tuple[str, ...]] = []
        for start in range(0, len(op.evict), EVICTED_AT_ONCE):
            groups = op.evict[start : start + EVICTED_AT_ONCE]
            refs = [Ref(op.scope, op.kind, key) for group in groups for key in group if key not in weights]
            await self._read(list(dict.fromkeys(refs)))  # again: others may have removed what was read before
            for group in groups:
                if not over_limit(op, count, weight):
                    self._evicted[n] = tuple(chosen)
                    return
                for key in dict.fromkeys(group):
                    found = self._stored.get(Ref(op.scope, op.kind, key)) if key not in weights else None
                    held = weights.get(key, None if found is None else found.weight)
                    if held is not None:
                        count, weight, weights[key] = count - 1, weight - held, None
                chosen.append(group)
        self._evicted[n] = tuple(chosen)
        self._complete.add(n)

    def _weights_before(self, n: int, limit: Limit) -> dict[str, int | None]:
        """Return the weights of the records that the operations before a limit put, None for those removed."""
        weights: dict[str, int | None] = {}
        for op in self._write.ops[:n]:
            _, kind, key = place_of(op)
            if kind != limit.kind:
                continue
            if isinstance(op, Put):
                weights[op.record.key] = op.record.weight
            elif isinstance(op, Delete) and key is not None:
                weights[key] = None
            elif isinstance(op, Purge) and _may_lose(op):
                candidates = {key for group in limit.evict for key in group} | weights.keys()
                weights |= dict.fromkeys(candidates - set(() if op.drop else op.keep))
        return weights

    # ------------------------------------------------------------ what is written

    def _planned(self) -> tuple[list[Op], list[Op], list[Op]]:
        """Return the operations of the write as they are sent, and those before and after them."""
        ops: list[Op] = []
        before: list[Op] = []
        after: list[Op] = []
        there: dict[Ref, bool] = {}
        """Whether what the write has touched so far is there at the end."""
        emptied: dict[str, set[str]] = {}
        """The keys that purges keep, by kind."""
        evicted: list[Ref] = []
        for n, op in enumerate(self._write.ops):
            scope, kind, key = place_of(op)
            ref = None if key is None else Ref(scope, kind, key)
            if kind not in VERSIONED_KINDS:
                pass
            elif isinstance(op, Put | Delete) and ref is not None:
                if ref in self._stored and ref not in there and kind not in emptied and op.if_version is None:
                    found = self._stored[ref]
                    op = copy(op)
                    force_setattr(op, "if_version", 0 if found is None else found.version)
                there[ref] = isinstance(op, Put)
            elif isinstance(op, Limit) and op.evict:
                evict = self._evicted.get(n, ())
                op = replace(op, evict=evict, strict=op.strict or n not in self._complete)
                leaving = [Ref(scope, kind, key) for group in evict for key in group]
                if self._write.id is None:  # with an id, each attempt has as many operations before the caller's
                    stored = {ref: self._stored.get(ref) for ref in leaving if ref not in there}
                    before += [Expect(scope, kind, found.version, ref.key) for ref, found in stored.items() if found]
                evicted += leaving
                there |= dict.fromkeys(leaving, False)
            elif isinstance(op, Purge) and _may_lose(op):
                known = self._purged.get(n)  # the first of its kind stands for all
                if known is not None:
                    before.append(Expect(scope, kind, known.version))
                    after += self._purge_versions(known)
                kept = set(() if op.drop else op.keep)
                emptied[kind] = emptied.get(kind, kept) & kept
                there |= {ref: False for ref in there if ref.kind == kind and ref.key not in kept}
            ops.append(op)
        for ref, stays in there.items():
            record = self._stored.get(ref)
            # What a purge removes is kept as such, whatever the other operations do to it.
            if record is not None and ref.key in emptied.get(ref.kind, (ref.key,)):
                after.append(self._version(record, removed=not stays))
        # If others have removed some meanwhile, the limit evicts less than was chosen.
        after += [Expect(ref.scope, ref.kind, 0, ref.key) for ref in dict.fromkeys(evicted) if not there[ref]]
        return before, ops, after

    def _purge_versions(self, known: _Purged) -> list[Op]:
        """Return the operations that keep a stream that is purged and its records, as far as these are not copied."""
        stream = known.stream
        if stream is None or not (known.copied or known.records or stream.settings):
            return []
        purge = purge_record(known.id, stream, by=self._by, now=self._now(), keep=self._within(stream))
        return [purge, *[self._version(record, removed=True, purge=known.id) for record in known.records]]

    def _version(self, record: Record, *, removed: bool, purge: str | None = None) -> Put:
        keep = self._ttls.get(record.kind, self._keep)
        return version_put(
            record,
            removed=removed,
            by=self._by,
            now=self._now(),
            keep=keep,
            purge=purge,
            salt=self._salt,
            held_until=self._write.held_until,
        )

    def _now(self) -> datetime:
        return self._below.clock()


def _identity(record: Record | None) -> tuple[Any, ...] | None:
    return None if record is None else (record.version, record.updated)


@runtime_checkable
class HistoryServer(Protocol):
    """A back-end that keeps the history by itself: a server."""

    async def history_since(self) -> datetime | None:
        """Return from when on the versions are complete; None if there are none."""
        ...


async def history_since(store: Store) -> datetime | None:
    """Return from when on the versions of a store are complete; None if there are none."""
    if isinstance(backend := backend_of(store), HistoryServer):
        return await backend.history_since()
    (record,) = await unrestricted(store).read([BEGIN_REF])
    if record is None:
        return None
    since, keep = _begin_of(record)
    return max(since, store.clock() - keep)


def check_keeping(history: object) -> None:
    """Raise InvalidValueError unless `history` says how long versions are kept."""
    if isinstance(history, str) and history != "recorded":
        raise InvalidValueError(f"history must be a timedelta, a bool or 'recorded': {shown(history)}")
    if not (history is None or isinstance(history, bool | str)):
        check_ttl(history, "history")


async def kept_time(store: Store, history: timedelta | bool | Literal["recorded"] | None) -> timedelta | None:
    """Return how long the versions of a store are kept; None if none are, or a server keeps them as recorded there."""
    if history is not True and history != "recorded":
        return history or None
    if Capability.SEARCH in store.capabilities or Capability.RECORDS not in store.capabilities:
        return DEFAULT_KEEP if history is True else None  # which such a store refuses
    (record,) = await store.read([BEGIN_REF])
    if record is not None:
        return _begin_of(record)[1]
    return DEFAULT_KEEP if history is True else None
