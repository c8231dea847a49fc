"""The hold layer: under a legal hold, nothing in a scope is deleted, evicted or expires.

Holds are records at the root. Deletions that a caller asks for raise HeldError; limits evict nothing, and nothing
expires, for as long as the hold lasts: records and sessions are given the end of the hold, if that is later than their
own expiry, so that they need nobody when it comes. Moving a record, to the archive or to another key, is allowed, and
so is changing it: the history, if the memory has one, keeps the earlier versions as long as the hold lasts.

Every process reads the holds at most once in `FRESH` seconds, and only before writes that can remove something. A new
hold waits that long, so that every process knows of it when `hold` returns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from ..checks import shown
from ..errors import HeldError
from ..event_loop import pause
from ..kinds import KINDS
from ..records import ARCHIVED, FACT, HOLD_KIND, MEMORY, MESSAGE, PRUNED, Record, Ref, ScopePath, Value
from ..store.confinement import confinement
from ..store.protocol import Capability, Scrubbed, Store, scan_all
from ..store.query import Delete, Derive, Limit, Op, Outcome, Purge, Put, Scan, Touch, Write, place_of
from .history import HistoryLayer
from .layer import Layer, find_layer, whole_store
from .version_records import EXPIRY, FOREVER, held_expiry

FRESH = 1.0
"""For how many seconds a process relies on the holds that it has read."""
TECHNICAL = frozenset(name for name, kind in KINDS.items() if not kind.held)
"""Kinds that hold nothing about anyone, and may be deleted under a hold."""
SAME = {MESSAGE: ARCHIVED, ARCHIVED: MESSAGE, MEMORY: PRUNED, PRUNED: MEMORY}
"""Kinds between which a record may be moved under a hold."""
_REMOVING = (Delete, Purge, Limit, Touch)
ROOT = ScopePath()


class Hold(Value, frozen=True, kw_only=True):
    """A legal hold on a scope and everything below it: its id, the reason, who set it, and when it ends, if ever."""

    id: str
    scope: ScopePath
    reason: str
    created: datetime
    until: datetime | None = None
    actor: str | None = None

    @property
    def ends(self) -> datetime:
        """When the hold ends; FOREVER if it must be released."""
        return self.until or FOREVER

    def covers(self, scope: ScopePath) -> bool:
        """Return whether a scope is under the hold."""
        return self.scope.contains(scope)

    def touches(self, scope: ScopePath) -> bool:
        """Return whether a scope, or something below it, is under the hold."""
        return self.scope.contains(scope) or scope.contains(self.scope)

    def seen_from(self, root: ScopePath) -> Hold:
        """Return the hold as a caller may see it who is confined to `root`: of one set above, only its times."""
        if root.contains(self.scope):
            return self
        return replace(self, id="", scope=root, reason="it was set for a scope above this one", actor=None)

    def error(self, what: str) -> HeldError:
        """Return the error for a deletion that the hold forbids."""
        until = "" if self.until is None else f" until {self.until:%Y-%m-%d %H:%M}"
        return HeldError(
            f"{what} is under the legal hold {self.id!r} of {shown(self.scope.path)}{until}: {self.reason}. "
            "Nothing was deleted"
        )


class HoldLayer(Layer):
    """Refuses deletions in scopes under a hold; passes everything else on."""

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        self._history = find_layer(below, HistoryLayer) is not None
        self._holds: list[Hold] = []
        self._read_at = float("-inf")

    async def active(self, *, fresh: bool = False) -> list[Hold]:
        """Return the holds that have not ended; if `fresh`, as they are stored now."""
        if fresh or time.monotonic() - self._read_at > FRESH:
            began = time.monotonic()
            self._holds = await self.stored()
            self._read_at = began
        now = self.clock()
        return [hold for hold in self._holds if hold.until is None or hold.until > now] if self._holds else []

    async def stored(self) -> list[Hold]:
        """Return the holds that are stored, whether or not they have ended."""
        scan = Scan(scope=ROOT, kinds=(HOLD_KIND,))
        return [to_hold(record) async for record in scan_all(whole_store(self._below), scan)]

    async def known_everywhere(self) -> None:
        """Wait until every process that uses the store knows the holds that are stored now."""
        if Capability.SHARED in self.capabilities:
            await pause(FRESH)

    async def write(self, write: Write) -> list[Outcome]:
        """Write, unless a hold forbids it; raises HeldError."""
        if not _may_remove(write.ops) and not (self._history and _may_replace(write.ops)):
            return await self._below.write(write)
        hold = await self._longest(place_of(write.ops[0])[0])
        if hold is None:
            outcomes = await self._below.write(write if write.held_until is None else replace(write, held_until=None))
        else:
            outcomes = await self._write_held(write, hold)
        if any(place_of(op)[1] == HOLD_KIND for op in write.ops):
            self._read_at = float("-inf")
        return outcomes

    async def _longest(self, scope: ScopePath) -> Hold | None:
        """Return the hold on a scope that ends last, as the caller may see it."""
        holds = [hold for hold in await self.active() if hold.covers(scope)]
        return max(holds, key=lambda hold: hold.ends).seen_from(confinement()) if holds else None

    async def refuse_held(self, scope: ScopePath) -> None:
        """Raise HeldError if a scope, or something below it, is under a hold."""
        for hold in await self.active(fresh=True):
            if hold.touches(scope):
                raise hold.seen_from(confinement()).error(f"scope {scope.path!r}")

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        await self.refuse_held(scope)
        return await super().destroy(scope)

    async def _write_held(self, write: Write, hold: Hold) -> list[Outcome]:
        await self._check(write.ops, hold)
        ops: list[Op] = []
        expiries: list[Op] = []
        for op in write.ops:
            if isinstance(op, Put) and op.record.expires is not None and op.record.kind not in TECHNICAL:
                expires = held_expiry(op.record.expires, hold.ends)
                if expires != op.record.expires:
                    expiries.append(Derive(op.record.ref, EXPIRY, op.record.expires.isoformat().encode()))
                    op = replace(op, record=replace(op.record, expires=expires))
            elif isinstance(op, Touch) and op.kind not in TECHNICAL:
                op = replace(op, ttl=None) if hold.ends == FOREVER else replace(op, until=hold.ends)
            elif isinstance(op, Limit):
                op = replace(op, max_count=None, max_weight=None, evict=())
            ops.append(op)
        outcomes = await self._below.write(replace(write, ops=(*ops, *expiries), held_until=hold.ends))
        return [
            _within(op, outcome) if isinstance(op, Limit) else outcome
            for op, outcome in zip(write.ops, outcomes, strict=False)
        ]

    async def check(self, ops: Sequence[Op]) -> None:
        """Raise HeldError if a hold forbids operations, all in one scope."""
        hold = await self._longest(place_of(ops[0])[0])
        if hold is not None:
            await self._check(ops, hold)

    async def _check(self, ops: Sequence[Op], hold: Hold) -> None:
        """Raise HeldError if operations delete something that they do not put again."""
        put = {(op.record.kind, op.record.key) for op in ops if isinstance(op, Put)}
        facts = {op.record.labels.get("fact") for op in ops if isinstance(op, Put) and op.record.kind == FACT}
        for op in ops:
            if isinstance(op, Purge) and op.kind not in TECHNICAL and (op.drop or not op.expired_only):
                raise hold.error(f"{shown(op.scope.path)}, of which a {op.kind} stream would be cleared,")
            if not isinstance(op, Delete) or op.ref.kind in TECHNICAL:
                continue
            kind, key = op.ref.kind, op.ref.key
            if (kind, key) in put or (SAME.get(kind, ""), key) in put:
                continue
            (stored,) = await self._below.read([op.ref])
            if stored is not None and not (kind == FACT and stored.labels.get("fact") in facts):
                raise hold.error(f"{kind} {shown(key)} of {shown(op.ref.scope.path)}")


def _may_remove(ops: Iterable[Op]) -> bool:
    """Return whether operations delete, evict, or set an expiry."""
    return any(isinstance(op, _REMOVING) or (isinstance(op, Put) and _expires(op.record)) for op in ops)


def _may_replace(ops: Iterable[Op]) -> bool:
    """Return whether operations may replace a record, of which the history keeps the earlier version."""
    return any(isinstance(op, Put) and op.if_version != 0 for op in ops)


def _expires(record: Record) -> bool:
    return (record.expires is not None and record.kind not in TECHNICAL) or record.kind == HOLD_KIND


def _within(limit: Limit, outcome: Outcome) -> Outcome:
    """Return the outcome of a limit as if it were met, so that its writer does not look for what to evict."""
    most_count, most_weight = limit.max_count, limit.max_weight
    return replace(
        outcome,
        count=outcome.count if most_count is None else min(outcome.count, most_count),
        weight=outcome.weight if most_weight is None else min(outcome.weight, most_weight),
    )


def to_hold(record: Record) -> Hold:
    """Return the hold that a record stands for."""
    data: Any = record.data
    assert record.created is not None
    return Hold(
        id=record.key,
        scope=ScopePath(data["scope"]),
        reason=data["reason"],
        created=record.created,
        until=None if data.get("until") is None else datetime.fromisoformat(data["until"]),
        actor=data.get("actor"),
    )


def to_record(hold: Hold) -> Record:
    """Return a hold as a record."""
    data = {"scope": hold.scope.path, "reason": hold.reason, "actor": hold.actor}
    data["until"] = None if hold.until is None else hold.until.isoformat()
    return Record(ROOT, HOLD_KIND, hold.id, data=data, created=hold.created)


def hold_ref(id: str) -> Ref:
    """Return where a hold is stored."""
    return Ref(ROOT, HOLD_KIND, id)
