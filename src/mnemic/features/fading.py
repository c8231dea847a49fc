"""Forgetting by itself: importance fades with time since the last use, and what has faded can be let go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ..checks import (
    check_count,
    check_name,
    check_number,
    from_microseconds,
    shown,
    to_microseconds,
)
from ..errors import InvalidValueError, NotFoundError
from ..recall.entry import RECALL
from ..recall.strength import DAY, HALF_LIFE, OF_USE, USE, Use, pack_use, strength, unpack_use
from ..records import Record, Ref, now
from ..store.batches import write_each
from ..store.protocol import scan_all
from ..store.query import Delete, Derive, Op, Put, Scan, Write, stored
from .kinds import PRUNED as PRUNED
from .memories import MEMORY, AsyncLongTerm
from .references import Reference, find_key, ref_of

AT_ONCE = 500
"""How many records one write changes."""
LEAST = 0.01
"""What share of its importance a record must have lost for that to be written down."""


class Faded(Struct, frozen=True, kw_only=True):
    """A remembered text, what is left of its importance, and its uses."""

    record: Record
    strength: float
    used: datetime | None
    uses: float


class AsyncFading(AsyncLongTerm):
    """The remembered texts of one scope, and how they fade."""

    async def used(self, *hits: Reference) -> int:
        """Say that hits were of use, which makes them fade more slowly; return how many are still there.

        Each is as `get` takes it. It also counts as a success of recall in the memory's metrics.
        """
        refs = list(dict.fromkeys([await self._named(hit) for hit in hits]))
        found = await self._store.read(refs)
        there = [ref for ref, record in zip(refs, found, strict=True) if record is not None]
        await self._use(there, OF_USE)
        return len(there)

    async def _named(self, given: Reference) -> Ref:
        if not isinstance(given, str):
            return ref_of(given, self.home)
        ref = self._ref(given)
        there = (await self._store.read([ref]))[0] is not None
        return ref if there else await find_key(self._store, self.home, given) or ref

    async def fading(
        self, below: float | None = None, *, limit: int = 100, half_life: timedelta | None = None
    ) -> list[Faded]:
        """Return what fades, the weakest first, or only what is weaker than `below`; at most `limit`.

        Pinned records do not fade. Without use, half of the importance is left after `half_life`.
        """
        if below is not None:
            check_number(below, "below")
        found = [f async for f in self._faded(half_life) if below is None or f.strength < below]
        return sorted(found, key=lambda faded: faded.strength)[: check_count(limit, "limit")]

    async def decay(self, *, half_life: timedelta | None = None) -> int:
        """Write down as each text's importance what is left of it now; return how many have changed.

        It fades on from there, so it makes no difference how often this is done. Recall weighs what is
        left in any case; filters on importance see what was written down.
        """
        changed = 0
        batch: list[tuple[Put, Derive]] = []
        moment = to_microseconds(now())
        async for faded in self._faded(half_life):
            record = faded.record
            if record.importance and faded.strength < record.importance * (1 - LEAST):
                entry = {name: value for name, value in record.derived.items() if name == RECALL}
                put = Put(replace(record, importance=faded.strength, derived=entry), record.version)
                last = 0 if faded.used is None else to_microseconds(faded.used)
                use = Use(since=moment, uses=faded.uses, last=last)
                batch.append((put, Derive(record.ref, USE, pack_use(use))))
            if len(batch) == AT_ONCE:
                changed += sum(await write_each(self._store, batch))
                batch = []
        return changed + sum(await write_each(self._store, batch))

    async def prune(self, below: float, *, archive: bool = False, half_life: timedelta | None = None) -> int:
        """Forget what is weaker than `below`, but nothing that is pinned; return how many records.

        With `archive` they are kept, where recall does not find them, and `restore` brings them back.
        """
        check_number(below, "below")
        pruned = 0
        batch: list[tuple[Op, ...]] = []
        async for faded in self._faded(half_life):
            if faded.strength < below:
                record = faded.record
                gone = Delete(record.ref, record.version)
                batch.append((Put(_archived(record)), gone) if archive else (gone,))
            if len(batch) == AT_ONCE:
                pruned += sum(await write_each(self._store, batch))
                batch = []
        return pruned + sum(await write_each(self._store, batch))

    async def pruned(self) -> list[Record]:
        """Return what was pruned and kept, as it was, oldest first."""
        scan = Scan(scope=self.home, kinds=(PRUNED,))
        return [_restored(record) async for record in scan_all(self._store, scan)]

    async def restore(self, key: str) -> Record:
        """Bring what was pruned and kept back, as if used now; raises NotFoundError or ConflictError."""
        (kept,) = await self._store.read([Ref(self.home, PRUNED, check_name(key, "key"))])
        if kept is None:
            raise NotFoundError(f"{self.home.path!r} has pruned nothing under {shown(key)}")
        put = Put(_restored(kept), 0)
        moment = to_microseconds(now())
        use = Derive(put.record.ref, USE, pack_use(Use(since=moment, uses=1, last=moment)))
        did, *_ = await self._store.write(Write((put, use, Delete(kept.ref, kept.version))))
        return stored(put.record, did)

    async def _faded(self, half_life: timedelta | None) -> AsyncIterator[Faded]:
        if half_life is not None and not (isinstance(half_life, timedelta) and half_life > timedelta(0)):
            raise InvalidValueError(f"half_life must be a positive timedelta: {shown(half_life)}")
        days = HALF_LIFE if half_life is None else half_life / timedelta(days=1)
        scan = Scan(scope=self.home, kinds=(MEMORY,), derived=(USE, RECALL), limit=AT_ONCE)
        moment = to_microseconds(now())
        async for record in scan_all(self._store, scan):
            if record.pinned or record.importance is None or record.created is None:
                continue
            use = unpack_use(record.derived.get(USE))
            since = max(use.since, to_microseconds(record.created))
            left = float(strength(record.importance, (moment - since) / DAY, use.uses, days))
            used = from_microseconds(use.last) if use.last else None
            yield Faded(record=record, strength=left, used=used, uses=use.uses)


_KEPT = (
    "text",
    "title",
    "data",
    "meta",
    "labels",
    "importance",
    "expires",
    "valid_from",
    "valid_to",
    "created",
)


def _archived(record: Record) -> Record:
    """Return a record that holds another one and has no text of its own."""
    fields = {name: value for name in _KEPT if (value := getattr(record, name)) not in (None, {})}
    return Record(record.scope, PRUNED, record.key, data=to_builtins(fields), expires=record.expires)


def _restored(record: Record) -> Record:
    data: Any = dict(record.data) if isinstance(record.data, dict) else {}
    for name in ("expires", "valid_from", "valid_to", "created"):
        if name in data:
            data[name] = datetime.fromisoformat(data[name])
    return Record(record.scope, MEMORY, record.key, **data)
