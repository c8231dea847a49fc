"""Write planning: computes what writes change from loaded state, without I/O.

A back-end loads what `needs_of` names, calls `plan_writes`, and applies the `StreamChange`s. If a plan raises
NeedsMoreError, the back-end loads `error.needs` as well and plans again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from datetime import datetime
from itertools import chain, islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import MICROSECOND, from_microseconds, to_microseconds
from ..records import UNLISTED, Record, Ref, ScopePath, StreamName
from .query import CountUse, Delete, Derive, Expect, Limit, Outcome, Purge, Put, Touch, Write
from .retry import ONCE_MICROSECONDS, DoneBeforeError, once_record, once_ref
from .stream_state import (
    Derived,
    Loaded,
    Needs,
    NeedsMoreError,
    RecordState,
    StreamChange,
    StreamState,
    check_expected,
    check_limit,
    check_version,
    over_limit,
)

__all__ = ["Plan", "needs_of", "plan_writes"]

EVICTED_AT_ONCE = 32
"""How many eviction candidates of a limit are loaded ahead."""


def needs_of(writes: Iterable[Write]) -> Needs:
    """Return the needs of these writes, as far as known in advance."""
    needs = Needs()
    for write in writes:
        if write.id is not None and (once := once_ref(write)) is not None:
            needs.streams.add((once.scope.path, once.kind))
            needs.keys.setdefault((once.scope.path, once.kind), set()).add(once.key)
        for op in write.ops:
            keys: tuple[str, ...] = ()
            if isinstance(op, Put):
                name, keys = (op.record.scope.path, op.record.kind), (op.record.key,)
            elif isinstance(op, Delete | Derive | CountUse):
                name, keys = (op.ref.scope.path, op.ref.kind), (op.ref.key,)
            else:
                name = (op.scope.path, op.kind)
                if isinstance(op, Limit):
                    keys = tuple(islice(chain.from_iterable(op.evict), EVICTED_AT_ONCE))
                elif isinstance(op, Purge):
                    keys = op.keep
                elif isinstance(op, Expect) and op.key is not None:
                    keys = (op.key,)
            needs.streams.add(name)
            if keys:
                needs.keys.setdefault(name, set()).update(keys)
    return needs


class Plan(Struct):
    """Planned writes: for each its outcomes or the error that rejects it, and all changes, ordered by stream."""

    results: list[list[Outcome] | Exception]
    changes: list[StreamChange]


def plan_writes(loaded: Loaded, writes: Iterable[Write], moment: int) -> Plan:
    """Plan writes one after another; raises NeedsMoreError if too little is loaded."""
    planner = _Planner(loaded, moment, from_microseconds(moment))
    results = list(map(planner.run, writes))
    return Plan(results, planner.changes())


class _PlannedStream(Struct):
    """A stream as the planned writes leave it."""

    name: StreamName
    before: StreamState | None
    state: StreamState | None
    stored: dict[str, RecordState | None]
    """Known stored records that are not removed as a whole."""
    complete: bool
    """Whether keys that are not in `stored` do not exist."""
    planned: dict[str, RecordState | None] = field(default_factory=dict)
    """Changed records; None for a removed one."""
    added: dict[int, Record] = field(default_factory=dict)
    replaced: dict[int, Record] = field(default_factory=dict)
    removed: dict[int, RecordState] = field(default_factory=dict)
    spared: dict[int, RecordState] = field(default_factory=dict)
    lost_labels: dict[int, dict[str, str]] = field(default_factory=dict)
    derived: dict[tuple[int, str], Derived] = field(default_factory=dict)
    changed: bool = False
    cleared: bool = False
    dropped: bool = False
    expired: int = 0
    """How many records had expired and were removed when the current write first used the stream."""
    uncounted: int = 0
    """How many of them the outcome of a purge has not counted yet."""

    def copy(self) -> _PlannedStream:
        found = copy(self)
        found.state = copy(self.state)
        for name in ("planned", "added", "replaced", "removed", "spared", "lost_labels", "derived"):
            setattr(found, name, getattr(self, name).copy())
        return found

    def find(self, key: str) -> RecordState | None:
        if key in self.planned:
            return self.planned[key]
        if key in self.stored:
            return self.stored[key]
        if not self.complete:
            raise NeedsMoreError(Needs(keys={self.name: {key}}))
        return None

    def require(self, keys: Iterable[str]) -> None:
        """Raise NeedsMoreError if any of these keys is not known."""
        if not self.complete and (missing := set(keys) - self.stored.keys() - self.planned.keys()):
            raise NeedsMoreError(Needs(keys={self.name: missing}))

    def made(self, moment: int) -> StreamState:
        """Return the state, of a new stream if there is none."""
        if self.state is None:
            self.state = StreamState(*self.name, 0, 0, 0, 0, moment, moment)
        return self.state

    def touch(self, moment: int, updated: int | None = None) -> None:
        state = self.state or self.made(moment if updated is None else min(moment, updated))
        state.updated = moment if updated is None else max(state.updated, updated)
        # Never earlier than before: a slow clock does not shorten the time to live.
        state.expires = None if state.ttl is None else max(moment + state.ttl, state.expires or 0)
        self.changed = True

    def remove(self, found: RecordState, moment: int) -> None:
        seq = found.seq
        if self.added.pop(seq, None) is None:
            self.replaced.pop(seq, None)
            self.lost_labels.pop(seq, None)
            if self.cleared:
                del self.spared[seq]
            else:
                self.removed[seq] = self.stored[found.key] or found
        if self.derived:
            self.derived = {at: value for at, value in self.derived.items() if at[0] != seq}
        self.planned[found.key] = None
        state = self.made(moment)
        state.version += 1
        state.count -= 1
        state.weight -= found.weight
        self.touch(moment)

    def clear(self, keep: Iterable[str], moment: int) -> int:
        """Remove all records except those of `keep`; return how many."""
        state = self.state
        if state is None or not state.count:
            return 0
        self.require(keep)
        left = [found for key in dict.fromkeys(keep) if (found := self.find(key)) is not None]
        seqs = {found.seq for found in left}
        self.added = {seq: record for seq, record in self.added.items() if seq in seqs}
        self.replaced = {seq: record for seq, record in self.replaced.items() if seq in seqs}
        self.lost_labels = {seq: labels for seq, labels in self.lost_labels.items() if seq in seqs}
        self.derived = {at: value for at, value in self.derived.items() if at[0] in seqs}
        self.planned = {found.key: found for found in left if found.seq in self.added or found.seq in self.replaced}
        self.stored = {found.key: self.stored[found.key] for found in left if found.seq not in self.added}
        self.spared = {found.seq: found for found in self.stored.values() if found is not None}
        self.removed = {}
        self.complete = self.cleared = True
        return self._recount(left, moment)

    def sweep(self, moment: int) -> int:
        """Remove expired records; return how many."""
        if not self.complete:
            raise NeedsMoreError(Needs(whole={self.name}))
        left: list[RecordState] = []
        state = self.made(moment)
        count, version = state.count, state.version
        for found in (self.stored | self.planned).values():
            if found is not None:
                if found.expires is not None and found.expires <= moment:
                    self.remove(found, moment)
                else:
                    left.append(found)
        state.count, state.version = count, version
        return self._recount(left, moment)

    def _recount(self, left: list[RecordState], moment: int) -> int:
        """Set the totals; the store may have removed expired records earlier, which count only now."""
        state = self.made(moment)
        removed = state.count - len(left)
        state.count = len(left)
        state.version += removed
        state.weight = sum(found.weight for found in left)
        state.soonest = min((found.expires for found in left if found.expires is not None), default=None)
        self.changed = True
        if removed:
            self.touch(moment)
        return removed

    def drop(self) -> None:
        self.state = None
        self.stored, self.planned, self.spared, self.removed, self.lost_labels = {}, {}, {}, {}, {}
        self.dropped = self.cleared = self.before is not None
        self.changed, self.complete, self.expired = True, True, 0

    def change(self, absent: Iterable[str]) -> StreamChange:
        after = self.state if self.changed else self.before
        if after is not None and self.changed:
            new = self.before is None or self.dropped
            after.revision = int.from_bytes(os.urandom(6)) + 1 if new else after.revision + 1
        return StreamChange(
            self.name,
            self.before,
            after,
            self.dropped,
            self.cleared and self.before is not None,
            list(self.spared.values()),
            list(self.removed.values()),
            self.lost_labels,
            list(self.added.values()),
            list(self.replaced.values()),
            list(self.derived.values()),
            sorted(absent),
        )


class _Planner(Struct):
    """Plans writes one after another."""

    loaded: Loaded
    moment: int
    now: datetime
    streams: dict[StreamName, _PlannedStream] = field(default_factory=dict)
    entered: dict[StreamName, _PlannedStream | None] = field(default_factory=dict)
    """Streams that the current write uses, as they were before it."""

    def run(self, write: Write) -> list[Outcome] | Exception:
        """Plan a write; return its outcomes, or the error that rejects it and leaves the plan unchanged."""
        self.entered = {}
        once = None if write.id is None else once_ref(write)
        try:
            if once is not None:
                self._check_new(once)
            outcomes: list[Outcome] = [_PLANS[type(op)](self, op) for op in write.ops]
            if once is not None:
                self._put_once(once_record(write, outcomes, self.now))
            return outcomes
        except NeedsMoreError:
            raise
        except Exception as error:
            for name, before in self.entered.items():
                if before is None:
                    del self.streams[name]
                else:
                    self.streams[name] = before
            return error

    def changes(self) -> list[StreamChange]:
        """Return the changes of all streams that the writes have used, unless all are unchanged."""
        if not any(stream.changed or stream.derived for stream in self.streams.values()):
            return []
        assumed = self.loaded.assumed
        return [stream.change(assumed.get(name, ())) for name, stream in sorted(self.streams.items())]

    def _check_new(self, once: Ref) -> None:
        """Raise DoneBeforeError if the id of a write is recorded and has not expired."""
        found = self._stream(once.scope, once.kind).find(once.key)
        if found is not None and (found.expires is None or found.expires > self.moment):
            raise DoneBeforeError(f"{once.key!r} is recorded")

    def _stream(self, scope: ScopePath, kind: str) -> _PlannedStream:
        """Return a stream; on its first use in a write, expired records are removed from it."""
        name = (scope.path, kind)
        if name in self.entered:
            return self.streams[name]
        known = self.streams.get(name)
        if known is None:
            if name not in self.loaded.streams:
                raise NeedsMoreError(Needs(streams={name}))
            before = self.loaded.streams[name]
            complete = before is None or not before.count or name in self.loaded.whole
            stream = _PlannedStream(name, before, copy(before), self.loaded.records.get(name, {}), complete)
        else:
            stream = known.copy()
        self.streams[name], self.entered[name] = stream, known
        stream.expired = 0
        if (state := stream.state) is not None:
            if state.expires is not None and state.ended(self.moment):
                state.ttl = state.settings = None
                stream.touch(self.moment)
                stream.expired = stream.clear((), self.moment)
            elif state.soonest is not None and state.soonest <= self.moment and state.count:
                stream.expired = stream.sweep(self.moment)
                if kind in UNLISTED:  # collected once a day, not on every write
                    state.soonest = self.moment + ONCE_MICROSECONDS
        stream.uncounted = stream.expired
        return stream

    def _put(self, op: Put) -> Outcome:
        record = op.record
        stream = self._stream(record.scope, record.kind)
        found = stream.find(record.key)
        if op.if_version is not None and op.if_version != (found.version if found else 0):
            check_version(record.ref, op.if_version, found.version if found else 0)
        updated = None if op.updated is None else to_microseconds(op.updated)
        state = stream.state or stream.made(self.moment if updated is None else min(self.moment, updated))
        state.version += 1
        state.weight += record.weight
        if found is None:
            state.count += 1
            state.last_seq += 1
            seq = state.last_seq
            created = record.created or op.updated or self.now
            put = stream.added
        else:
            state.edited = state.version
            state.weight -= found.weight
            seq = found.seq
            created = record.created or from_microseconds(found.created)
            put = stream.added if seq in stream.added else stream.replaced
            if found.labels and seq not in put:
                stream.lost_labels[seq] = found.labels
        expires = None if record.expires is None else to_microseconds(record.expires)
        if expires is not None and (state.soonest is None or expires < state.soonest):
            state.soonest = expires
        put[seq] = replace(record, seq=seq, version=state.version, created=created, updated=op.updated or self.now)
        moment = self.moment if created is self.now else to_microseconds(created)
        stream.planned[record.key] = RecordState(
            record.key, seq, state.version, moment, record.weight, record.labels, expires
        )
        for name, value in record.derived.items():
            stream.derived[seq, name] = Derived(record.key, seq, name, state.version, value)
        stream.touch(self.moment, updated)
        return Outcome(seq, state.version, created, op.updated or self.now, key=record.key)

    def _put_once(self, once: Record) -> None:
        """Put the id record of a write; all ids of a scope expire together once no new ones are added."""
        stream = self._stream(once.scope, once.kind)
        state = stream.made(self.moment)
        # Expired id records are collected once a day, not on every write.
        soonest = state.soonest or self.moment + 2 * ONCE_MICROSECONDS
        self._put(Put(once))
        state.soonest = soonest
        state.ttl = 2 * ONCE_MICROSECONDS
        stream.touch(self.moment)

    def _delete(self, op: Delete) -> Outcome:
        stream = self._stream(op.ref.scope, op.ref.kind)
        found = stream.find(op.ref.key)
        check_version(op.ref, op.if_version, found.version if found else 0)
        if found is None:
            return Outcome()
        stream.remove(found, self.moment)
        return Outcome(removed=(op.ref.key,))

    def _derive(self, op: Derive) -> Outcome:
        stream = self._stream(op.ref.scope, op.ref.kind)
        found = stream.find(op.ref.key)
        if found is None or (op.version is not None and op.version != found.version):
            return Outcome()
        stream.derived[found.seq, op.name] = Derived(found.key, found.seq, op.name, op.version or 0, op.value)
        return Outcome(count=1)

    def _expect(self, op: Expect) -> Outcome:
        stream = self._stream(op.scope, op.kind)
        settings = stream.state.settings if stream.state else None
        if op.key is not None:
            found = stream.find(op.key)
            version = found.version if found else 0
        else:
            # As it was before this write: what has expired since is no change by another.
            version = stream.state.version - stream.expired if stream.state else 0
        if op.settings != settings or op.version is not None or op.key is not None:
            check_expected(op, version, settings)
        return Outcome(version=version)

    def _touch(self, op: Touch) -> Outcome:
        stream = self._stream(op.scope, op.kind)
        updated = None if op.updated is None else to_microseconds(op.updated)
        state = stream.made(self.moment if updated is None else min(self.moment, updated))
        if op.created is not None:
            state.created = min(state.created, to_microseconds(op.created))
        ttl = None if op.ttl is None else op.ttl // MICROSECOND
        if ttl != state.ttl:
            state.ttl, state.expires = ttl, None
        state.settings = op.settings
        stream.touch(self.moment, updated)
        if op.until is not None and state.expires is not None:
            state.expires = max(state.expires, to_microseconds(op.until))
        return Outcome()

    def _limit(self, op: Limit) -> Outcome:
        stream = self._stream(op.scope, op.kind)
        state = stream.state
        if state is None:
            return Outcome()
        removed: list[str] = []
        looked_up = 0
        for n, group in enumerate(op.evict):
            if not over_limit(op, state.count, state.weight):
                break
            if n == looked_up:
                surely = state.count - op.max_count if op.max_count is not None else 0
                looked_up += max(surely, EVICTED_AT_ONCE)
                stream.require(chain.from_iterable(op.evict[n:looked_up]))
            for key in group:
                if (found := stream.find(key)) is not None:
                    stream.remove(found, self.moment)
                    removed.append(key)
        check_limit(op, state.count, state.weight)
        return Outcome(removed=tuple(removed), count=state.count, weight=state.weight)

    def _purge(self, op: Purge) -> Outcome:
        stream = self._stream(op.scope, op.kind)
        removed, stream.uncounted = stream.uncounted, 0
        if stream.state is not None and (op.drop or not op.expired_only):
            removed += stream.clear(() if op.drop else op.keep, self.moment)
            if op.drop:
                stream.drop()
        return Outcome(count=removed)


_PLANS: dict[type, Any] = {
    Put: _Planner._put,
    Delete: _Planner._delete,
    Derive: _Planner._derive,
    CountUse: lambda planner, op: Outcome(),
    Limit: _Planner._limit,
    Purge: _Planner._purge,
    Touch: _Planner._touch,
    Expect: _Planner._expect,
}
