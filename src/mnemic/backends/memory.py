"""`memory://`: records in this process; `memory://name` is shared within the process.

It is also the reference model for all other back-ends, so it is written to be obvious.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import replace

from ..checks import copy_json
from ..errors import ClosedError
from ..event_loop import running_calls
from ..records import Record, Ref, ScopePath, Stream, known_scope, now
from ..store.matching import Position, from_cursor, in_reach, is_included, page_of
from ..store.protocol import Capability, Page
from ..store.query import CountUse, Delete, Derive, Expect, Op, Outcome, Purge, Put, Scan, StreamScan, Touch, Write
from ..store.registry import Backend, StoreURL
from ..store.retry import once_record, once_ref, recorded_outcomes
from ..store.stream_state import check_expected, check_limit, check_version, over_limit


class _Stream:
    def __init__(self, created: datetime) -> None:
        self.records: dict[int, Record] = {}
        self.seqs: list[int] = []
        """In order; may contain removed seqs until there are too many."""
        self.by_key: dict[str, int] = {}
        self.derived: dict[int, dict[str, tuple[int, bytes]]] = {}
        """Derived values and their versions (0 for any), by seq and name."""
        self.last_seq = self.version = self.weight = 0
        self.created = self.updated = created
        self.ttl: timedelta | None = None
        self.expires: datetime | None = None
        self.settings: str | None = None
        self.soonest: datetime | None = None
        """Lower bound of the first expiry."""

    def get(self, key: str) -> Record | None:
        seq = self.by_key.get(key)
        return None if seq is None else self.records[seq]

    def put(self, record: Record) -> None:
        if record.seq in self.records:
            self.weight -= self.records[record.seq].weight
        elif not self.seqs or record.seq > self.seqs[-1]:
            self.seqs.append(record.seq)
        else:
            place = bisect_left(self.seqs, record.seq)
            if self.seqs[place] != record.seq:
                self.seqs.insert(place, record.seq)
        if record.expires is not None and (self.soonest is None or record.expires < self.soonest):
            self.soonest = record.expires
        self.records[record.seq] = record
        self.by_key[record.key] = record.seq
        self.weight += record.weight

    def remove(self, key: str) -> None:
        record = self.records.pop(self.by_key.pop(key))
        self.weight -= record.weight
        self.derived.pop(record.seq, None)
        if len(self.seqs) > 2 * len(self.records) + 16:
            self.seqs = sorted(self.records)

    def derive(self, seq: int, name: str, value: tuple[int, bytes] | None) -> Callable[[], object]:
        """Store a derived value, or remove it if None; return a function that undoes it."""
        before = self.derived.get(seq, {}).get(name)
        if value is not None:
            self.derived.setdefault(seq, {})[name] = value
        elif before is not None:
            del self.derived[seq][name]
        return partial(self.derive, seq, name, before)

    def derived_of(self, record: Record, names: Sequence[str]) -> dict[str, bytes]:
        stored = self.derived.get(record.seq, {})
        found = ((name, stored[name]) for name in names if name in stored)
        return {name: value for name, (version, value) in found if version in (0, record.version)}

    def expired(self, moment: datetime) -> list[str]:
        """Return the keys of expired records."""
        if self.expires is not None and self.expires <= moment:
            return list(self.by_key)
        if self.soonest is None or self.soonest > moment:
            return []
        return [record.key for record in self.records.values() if _expired(record, moment)]

    def walk(self, start: int | None, reverse: bool) -> Iterator[Record]:
        """Yield the records after `start`, or before it in reverse."""
        if reverse:
            end = len(self.seqs) if start is None else bisect_left(self.seqs, start)
            places = range(end - 1, -1, -1)
        else:
            places = range(0 if start is None else bisect_left(self.seqs, start + 1), len(self.seqs))
        for place in places:
            if (record := self.records.get(self.seqs[place])) is not None:
                yield record


class _Data:
    """Content of one in-memory store; several handles may share it."""

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self.streams: dict[tuple[str, str], _Stream] = {}
        self.writes = 0
        """How many writes there were."""


class MemoryStore:
    """Stores records in dictionaries, behind one lock."""

    capabilities: frozenset[Capability] = frozenset({Capability.ATOMIC, Capability.RECORDS})

    def __init__(self, data: _Data | None = None, clock: Callable[[], datetime] = now) -> None:
        self._data = data or _Data()
        self.clock = clock
        self._closed = False

    async def write(self, write: Write) -> list[Outcome]:
        with self._open() as data:
            data.writes += 1
            change = _Change(data, self.clock())
            try:
                if (ref := once_ref(write)) is not None:
                    recorded = change.stream(ref.scope, ref.kind, make=False).get(ref.key)
                    if recorded is not None:
                        return recorded_outcomes(recorded, write)
                outcomes = [change.apply(op) for op in write.ops]
                if ref is not None:
                    change.put(Put(once_record(write, outcomes, change.moment)))
            except BaseException:
                change.undo()
                raise
            return outcomes

    async def change_marker(self) -> tuple[int, object]:
        """Return a value that changes with each write to the data, by whichever handle."""
        with self._open() as data:
            return 0, data.writes

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        moment = self.clock()
        with self._open() as data:
            found: list[Record | None] = []
            for ref in refs:
                stream = _live(data.streams.get((ref.scope.path, ref.kind)), moment)
                record = stream.get(ref.key) if stream else None
                found.append(None if record is None or _expired(record, moment) else _copy(record))
            return found

    async def scan(self, scan: Scan) -> Page[Record]:
        moment = self.clock()
        start = from_cursor(scan.cursor) if scan.cursor is not None else None
        items: list[Record] = []
        with self._open() as data:
            skip = scan.skip
            for record in _walk(data, scan, start, moment):
                if not is_included(record, scan, moment):
                    continue
                stream = data.streams[record.scope.path, record.kind]
                if scan.lacking is not None and stream.derived_of(record, (scan.lacking,)):
                    continue
                if skip:
                    skip -= 1
                elif len(items) == scan.limit:
                    return page_of(items, more=True)
                else:
                    items.append(_copy(record, scan.bodies, stream.derived_of(record, scan.derived)))
        return Page(tuple(items))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        moment = self.clock()
        start = from_cursor(scan.cursor)[:2] if scan.cursor is not None else None
        items: list[Stream] = []
        with self._open() as data:
            for path, kind in sorted(data.streams):
                if (start is not None and (path, kind) <= start) or not in_reach(
                    known_scope(path), kind, scan.scope, scan.kinds, scan.below
                ):
                    continue
                stream = data.streams[path, kind]
                gone = [stream.records[stream.by_key[key]] for key in stream.expired(moment)]
                if len(gone) == len(stream.records) and not scan.empty:
                    continue
                if len(items) == scan.limit:
                    return page_of(items, more=True)
                items.append(
                    Stream(
                        scope=known_scope(path),
                        kind=kind,
                        count=len(stream.records) - len(gone),
                        weight=stream.weight - sum(record.weight for record in gone),
                        last_seq=stream.last_seq,
                        version=stream.version,
                        created=stream.created,
                        updated=stream.updated,
                        expires=stream.expires,
                        ttl=stream.ttl,
                        settings=stream.settings,
                    )
                )
        return Page(tuple(items))

    def load_stream(self, given: Stream, records: Sequence[Record]) -> None:
        """Hold a stream exactly as given, with its times, positions, versions and derived values."""
        with self._open() as data:
            data.writes += 1
            stream = data.streams[given.name] = _Stream(given.created)
            for name in ("last_seq", "version", "updated", "ttl", "expires", "settings"):
                setattr(stream, name, getattr(given, name))
            for record in records:
                stream.put(replace(record, derived={}))
                for name, value in record.derived.items():
                    stream.derive(record.seq, name, (record.version, value))

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> AbstractContextManager[_Data]:
        if self._closed:
            raise ClosedError("this memory:// store is closed")
        return _Locked(self._data)


class _Locked:
    def __init__(self, data: _Data) -> None:
        self.data = data

    def __enter__(self) -> _Data:
        running_calls.__enter__()  # so that no forked child inherits a lock of another thread
        self.data.lock.acquire()
        return self.data

    def __exit__(self, *error: object) -> None:
        self.data.lock.release()
        running_calls.__exit__()


class _Change:
    """Operations of one write, with undo information."""

    def __init__(self, data: _Data, moment: datetime) -> None:
        self.data = data
        self.moment = moment
        self.entered: dict[tuple[str, str], int] = {}
        """How many records of each stream that is used had expired, and were removed first."""
        self.uncounted: dict[tuple[str, str], int] = {}
        """How many of them the outcome of a purge has not counted yet."""
        self.undone: list[Callable[[], object]] = []

    def undo(self) -> None:
        for step in reversed(self.undone):
            step()

    def apply(self, op: Op) -> Outcome:
        if isinstance(op, Put):
            return self.put(op)
        if isinstance(op, Delete):
            return self.delete(op)
        if isinstance(op, Derive):
            return self.derive(op)
        if isinstance(op, CountUse):
            return Outcome()
        name = (op.scope.path, op.kind)
        if isinstance(op, Touch):
            self.note(self.stream(op.scope, op.kind, make=True, began=op.updated), op, op.updated)
            return Outcome()
        stream = self.stream(op.scope, op.kind, make=False)
        if isinstance(op, Expect):
            record = stream.get(op.key) if op.key is not None else None
            # As it was before this write: what has expired since is no change by another.
            unchanged = stream.version - self.entered[name]
            version = unchanged if op.key is None else record.version if record else 0
            check_expected(op, version, stream.settings)
            return Outcome(version=version)
        if isinstance(op, Purge):
            count = len(stream.records) + self.uncounted.pop(name, 0)
            if op.drop or not op.expired_only:
                keep = set() if op.drop else set(op.keep)
                self.remove(stream, [r.key for r in stream.walk(None, reverse=False) if r.key not in keep])
            if op.drop and name in self.data.streams:
                self.undone.append(partial(self.data.streams.__setitem__, name, stream))
                del self.data.streams[name]
            return Outcome(count=count - len(stream.records))
        removed: list[str] = []
        for group in op.evict:
            if not over_limit(op, len(stream.records), stream.weight):
                break
            removed.extend(self.remove(stream, group))
        check_limit(op, len(stream.records), stream.weight)
        return Outcome(removed=tuple(removed), count=len(stream.records), weight=stream.weight)

    def put(self, op: Put) -> Outcome:
        given = op.record
        stream = self.stream(given.scope, given.kind, make=True, began=op.updated)
        old = stream.get(given.key)
        check_version(given.ref, op.if_version, old.version if old else 0)
        self.note(stream, updated=op.updated)
        if old is None:
            stream.last_seq += 1
        stream.version += 1
        record = replace(
            given,
            seq=stream.last_seq if old is None else old.seq,
            version=stream.version,
            created=given.created or (old.created if old else op.updated or self.moment),
            updated=op.updated or self.moment,
            derived={},
        )
        stream.put(record)
        self.undone.append(partial(stream.put, old) if old else partial(stream.remove, record.key))
        for name, value in given.derived.items():
            self.undone.append(stream.derive(record.seq, name, (record.version, value)))
        return Outcome(record.seq, record.version, record.created, record.updated, key=record.key)

    def delete(self, op: Delete) -> Outcome:
        stream = self.stream(op.ref.scope, op.ref.kind, make=False)
        old = stream.get(op.ref.key)
        check_version(op.ref, op.if_version, old.version if old else 0)
        return Outcome(removed=self.remove(stream, [op.ref.key]))

    def derive(self, op: Derive) -> Outcome:
        stream = self.stream(op.ref.scope, op.ref.kind, make=False)
        record = stream.get(op.ref.key)
        if record is None or (op.version is not None and op.version != record.version):
            return Outcome()
        value = None if op.value is None else (op.version or 0, op.value)
        self.undone.append(stream.derive(record.seq, op.name, value))
        return Outcome(count=1)

    def remove(self, stream: _Stream, keys: Sequence[str]) -> tuple[str, ...]:
        removed = []
        for key in keys:
            if (record := stream.get(key)) is not None:
                self.note(stream)
                stream.version += 1
                if (derived := stream.derived.get(record.seq)) is not None:
                    self.undone.append(partial(stream.derived.__setitem__, record.seq, derived))
                stream.remove(key)
                self.undone.append(partial(stream.put, record))
                removed.append(key)
        return tuple(removed)

    def stream(self, scope: ScopePath, kind: str, *, make: bool, began: datetime | None = None) -> _Stream:
        """Return the stream; on first use in a write, expired records are removed.

        A new one is kept only if `make` is true, and begins now, or at `began` if that is earlier.
        """
        name = (scope.path, kind)
        stream = self.data.streams.get(name)
        if stream is None:
            stream = _Stream(min(began or self.moment, self.moment))
            self.entered[name] = 0
            if make:
                self.data.streams[name] = stream
                self.undone.append(partial(self.data.streams.pop, name))
            return stream
        if name not in self.entered:
            gone = stream.expired(self.moment)
            if _live(stream, self.moment) is None:
                self.note(stream, Touch(scope, kind))
            self.remove(stream, gone)
            if gone:
                left = (record.expires for record in stream.records.values())
                stream.soonest = min((expires for expires in left if expires is not None), default=None)
            self.entered[name] = self.uncounted[name] = len(gone)
        return stream

    def note(self, stream: _Stream, touch: Touch | None = None, updated: datetime | None = None) -> None:
        """Record that the stream is written, now or at `updated`, the effect of a Touch, and the state before."""
        names = ("last_seq", "version", "created", "updated", "expires", "ttl", "settings")
        before = {name: getattr(stream, name) for name in names}

        def put_back() -> None:
            for name, value in before.items():
                setattr(stream, name, value)

        self.undone.append(put_back)
        stream.updated = self.moment if updated is None else max(stream.updated, updated)
        ttl = stream.ttl
        if touch is not None:
            stream.created = min(stream.created, touch.created or stream.created)
            stream.ttl, stream.settings = touch.ttl, touch.settings
        if stream.ttl is None:
            stream.expires = None
        elif stream.ttl != ttl or stream.expires is None:
            stream.expires = self.moment + stream.ttl
        else:
            # Never earlier than before: a slow clock does not shorten the time to live.
            stream.expires = max(stream.expires, self.moment + stream.ttl)
        if touch is not None and touch.until is not None and stream.expires is not None:
            stream.expires = max(stream.expires, touch.until)


_shared: dict[str, _Data] = {}


async def open_memory(url: StoreURL) -> MemoryStore:
    """Open a private store, or with a name one that is shared within the process."""
    url.take()
    name = url.split.netloc + url.split.path
    return MemoryStore(_shared.setdefault(name, _Data()) if name else None)


BACKEND = Backend(open=open_memory, inline=True)


def _walk(data: _Data, scan: Scan, start: Position | None, moment: datetime) -> Iterator[Record]:
    """Yield the records of the requested streams, in order, from `start` on."""
    names: Iterable[tuple[str, str]] = data.streams
    if scan.kinds and not scan.below:  # there can be many other streams
        names = {(scan.scope.path, kind) for kind in scan.kinds} & data.streams.keys()
    for path, kind in sorted(names, reverse=scan.reverse):
        if not in_reach(known_scope(path), kind, scan.scope, scan.kinds, scan.below):
            continue
        if (stream := _live(data.streams[path, kind], moment)) is None:
            continue
        if start is None or (path, kind) == start[:2]:
            yield from stream.walk(None if start is None else start[2], scan.reverse)
        elif ((path, kind) < start[:2]) == scan.reverse:
            yield from stream.walk(None, scan.reverse)


def _live(stream: _Stream | None, moment: datetime) -> _Stream | None:
    if stream is None or (stream.expires is not None and stream.expires <= moment):
        return None
    return stream


def _expired(record: Record, moment: datetime) -> bool:
    return record.expires is not None and record.expires <= moment


def _copy(record: Record, bodies: bool = True, derived: dict[str, bytes] | None = None) -> Record:
    return replace(
        record,
        text=record.text if bodies else None,
        data=copy_json(record.data) if bodies else None,
        meta=copy_json(record.meta),
        labels=dict(record.labels),
        derived=derived or {},
    )
