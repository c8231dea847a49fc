"""Decay of importance since the last use, and the archive of faded memories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from ..checks import check_name, from_microseconds, shown, to_microseconds
from ..errors import InvalidValueError, NotFoundError
from ..recall.index_entry import RECALL
from ..recall.strength import DAY, HALF_LIFE, USE, Use, pack_use, strength, unpack_use
from ..records import Record, Ref, ScopePath, Value, plain
from ..store.protocol import Store, scan_all
from ..store.query import CountUse, Delete, Derive, Put, Scan, Write, stored
from ..store.retry import write_each
from .kinds import MEMORY, PRUNED
from .memory_items import MemoryItem, to_item

AT_ONCE = 500
"""How many records one write changes."""
LEAST = 0.01
"""Minimum relative loss of importance that is written to the store."""


class Faded(Value, frozen=True, kw_only=True):
    """A memory with its decayed importance, last use, and number of uses."""

    record: Record
    strength: float
    used: datetime | None
    uses: float

    @property
    def memory(self) -> MemoryItem:
        """The memory."""
        return to_item(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the memory with `strength`, `used` and `uses`, as JSON types."""
        return self.memory.to_dict() | {"strength": self.strength, "used": plain(self.used), "uses": self.uses}

    def __repr__(self) -> str:
        """Return the decayed importance and the memory."""
        return f"<Faded {self.strength:.2f} {self.memory!r}>"


async def count_use(store: Store, refs: Sequence[Ref], *, reported: bool = False) -> None:
    for scope in dict.fromkeys(ref.scope for ref in refs):
        here = dict.fromkeys(ref for ref in refs if ref.scope == scope)
        await store.write(Write(tuple(CountUse(ref, reported) for ref in here)))


async def faded(
    store: Store, scope: ScopePath, half_life: timedelta | None, *, below: bool = False
) -> AsyncIterator[Faded]:
    """Yield the memories of a scope that decay, with their current strength."""
    if half_life is not None and not (isinstance(half_life, timedelta) and half_life > timedelta(0)):
        raise InvalidValueError(f"half_life must be a positive timedelta: {shown(half_life)}")
    days = HALF_LIFE if half_life is None else half_life / timedelta(days=1)
    scan = Scan(scope=scope, kinds=(MEMORY,), below=below, derived=(USE, RECALL), limit=AT_ONCE)
    moment = to_microseconds(store.clock())
    async for record in scan_all(store, scan):
        if record.pinned or record.importance is None or record.created is None:
            continue
        use = unpack_use(record.derived.get(USE))
        since = max(use.since, to_microseconds(record.created))
        left = float(strength(record.importance, (moment - since) / DAY, use.uses, days))
        used = from_microseconds(use.last) if use.last else None
        yield Faded(record=record, strength=left, used=used, uses=use.uses)


async def decay(store: Store, scope: ScopePath, half_life: timedelta | None) -> int:
    """Write the decayed importance of each memory to the store; return how many changed."""
    changed = 0
    batch: list[tuple[Put, Derive]] = []
    moment = to_microseconds(store.clock())
    async for fade in faded(store, scope, half_life):
        record = fade.record
        if record.importance and fade.strength < record.importance * (1 - LEAST):
            entry = {name: value for name, value in record.derived.items() if name == RECALL}
            put = Put(replace(record, importance=fade.strength, derived=entry), record.version)
            last = 0 if fade.used is None else to_microseconds(fade.used)
            use = Use(since=moment, uses=fade.uses, last=last)
            batch.append((put, Derive(record.ref, USE, pack_use(use))))
        if len(batch) == AT_ONCE:
            changed += sum(await write_each(store, batch))
            batch = []
    return changed + sum(await write_each(store, batch))


async def archived(store: Store, scope: ScopePath) -> list[Record]:
    """Return archived memories, oldest first."""
    scan = Scan(scope=scope, kinds=(PRUNED,))
    return [_restored(record) async for record in scan_all(store, scan)]


async def restore(store: Store, scope: ScopePath, id: str) -> Record:
    """Restore an archived memory, counted as used now; raises NotFoundError or ConflictError."""
    (kept,) = await store.read([Ref(scope, PRUNED, check_name(id, "id"))])
    if kept is None:
        raise NotFoundError(f"the archive of {scope.path!r} has no memory with the id {shown(id)}")
    put = Put(_restored(kept), 0)
    moment = to_microseconds(store.clock())
    use = Derive(put.record.ref, USE, pack_use(Use(since=moment, uses=1, last=moment)))
    did, *_ = await store.write(Write((put, use, Delete(kept.ref, kept.version))))
    return stored(put.record, did)


_KEPT = ("text", "title", "data", "meta", "labels", "importance", "expires", "valid_from", "valid_to", "created")


def to_archive(record: Record) -> Record:
    """Return an archive record that wraps another one, without searchable text."""
    fields = {name: value for name in _KEPT if (value := getattr(record, name)) not in (None, {})}
    return Record(record.scope, PRUNED, record.key, data=to_builtins(fields), expires=record.expires)


def _restored(record: Record) -> Record:
    data: Any = dict(record.data) if isinstance(record.data, dict) else {}
    for name in ("expires", "valid_from", "valid_to", "created"):
        if name in data:
            data[name] = datetime.fromisoformat(data[name])
    return Record(record.scope, MEMORY, record.key, **data)
