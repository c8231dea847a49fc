"""Memories as values and as records: merged duplicates, decay of importance since the last use, the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from msgspec import ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from ..checks import JSON, check_name, check_number, check_text, check_time, from_microseconds, shown, to_microseconds
from ..errors import InvalidValueError, NotFoundError
from ..recall.index_entry import DAY, HALF_LIFE, RECALL, USE, Use, pack_use, strength, unpack_use
from ..records import MEMORY, PRUNED, Record, Ref, ScopePath, Value, plain, unreadable
from ..store.protocol import Store, scan_all
from ..store.query import CountUse, Delete, Derive, Put, Scan, Write, checked_record, stored_record
from ..store.retry import write_each


class MemoryItem(Value, frozen=True):
    """A memory.

    To add one, only `text` is needed: an empty `id` is generated, and the store assigns `updated`, `version` and
    `scope`. It is valid from `valid_from` until `valid_to`, and is deleted at `expires`. `data` is any JSON
    value.
    """

    text: str
    id: str = ""
    importance: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    pinned: bool = False
    created: datetime | None = None
    updated: datetime | None = None
    expires: datetime | None = None
    data: JSON = None
    version: int = 0
    scope: ScopePath = ScopePath()


def to_item(record: Record) -> MemoryItem:
    return MemoryItem(
        text=record.text or "",
        id=record.key,
        importance=1.0 if record.importance is None else record.importance,
        metadata=record.meta,
        source=record.labels.get("source"),
        valid_from=record.valid_from,
        valid_to=record.valid_to,
        pinned=record.pinned,
        created=record.created,
        updated=record.updated,
        expires=record.expires,
        data=record.data,
        version=record.version,
        scope=record.scope,
    )


def to_record(item: MemoryItem, scope: ScopePath, id: str) -> Record:
    """Return a memory as a record; raises InvalidValueError for a value that cannot be stored."""
    return check_validity(
        Record(
            scope=scope,
            kind=MEMORY,
            key=item.id or id,
            text=check_text(item.text, "text"),
            importance=check_importance(item.importance),
            meta=item.metadata,  # type: ignore[arg-type]
            labels=source_labels(item.source),
            pinned=item.pinned,
            created=item.created,
            expires=item.expires,
            data=item.data,
            valid_from=item.valid_from,
            valid_to=item.valid_to,
        )
    )


def check_importance(value: float) -> float:
    return check_number(value, "importance", least=0)


def source_labels(source: str | None) -> dict[str, str]:
    """Return the labels of a source; raises InvalidValueError."""
    return {} if source is None else {"source": check_name(source, "source")}


def check_validity(record: Record) -> Record:
    """Raise InvalidValueError if `valid_to` is not after `valid_from`."""
    start, end = record.valid_from, record.valid_to
    if start is None or end is None or check_time(end, "valid_to") > check_time(start, "valid_from"):
        return record
    raise InvalidValueError(f"valid_to {end} is not after valid_from {start}")


Duplicates: TypeAlias = Literal["keep", "merge", "skip", "refuse"]
"""Policy for a text that is already remembered."""


def merge_records(old: Record, new: Record) -> Record:
    """Merge two records with the same content: the new text under the old id, without loss.

    The old text and source are kept in its data; metadata is merged, new values win; importance is the maximum.
    """
    data: Any = old.data if isinstance(old.data, dict) else {}
    earlier = list(data.get("merged", []))
    if old.text != new.text or old.labels != new.labels:
        earlier.append({"text": old.text, **old.labels})
    return replace(
        old,
        text=new.text,
        data={**data, "merged": earlier} if earlier else old.data,
        meta={**old.meta, **new.meta},
        labels={**old.labels, **new.labels},
        importance=max((i for i in (old.importance, new.importance) if i is not None), default=None),
        pinned=old.pinned or new.pinned,
        expires=None if old.expires is None or new.expires is None else max(old.expires, new.expires),
        valid_from=new.valid_from if old.valid_from is None else old.valid_from,
        valid_to=new.valid_to,
    )


# ---------------------------------------------------------------- decay, and the archive

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


async def fading_memories(store: Store, scope: ScopePath, half_life: timedelta | None) -> AsyncIterator[Faded]:
    """Yield the memories of a scope that decay, with their current strength."""
    days = half_life_days(half_life)
    scan = Scan(scope=scope, kinds=(MEMORY,), derived=(USE, RECALL), limit=AT_ONCE)
    moment = to_microseconds(store.clock())
    async for record in scan_all(store, scan):
        use = decay_start(record)
        if use is None:
            continue
        left = float(strength(record.importance, (moment - use.since) / DAY, use.uses, days))
        used = from_microseconds(use.last) if use.last else None
        yield Faded(record=record, strength=left, used=used, uses=use.uses)


def half_life_days(half_life: timedelta | None) -> float:
    """Return a half-life in days, by default the usual one; raises InvalidValueError."""
    if half_life is not None and not (isinstance(half_life, timedelta) and half_life > timedelta(0)):
        raise InvalidValueError(f"half_life must be a positive timedelta: {shown(half_life)}")
    return HALF_LIFE if half_life is None else half_life / timedelta(days=1)


def decay_start(record: Record) -> Use | None:
    """Return since when a memory decays, and its uses, from its derived value `USE`; None if it does not decay."""
    if record.pinned or record.importance is None or record.importance < 0 or record.created is None:
        return None
    use = unpack_use(record.derived.get(USE))
    return use if use.since >= (made := to_microseconds(record.created)) else Use(made, use.uses, use.last)


async def decay(store: Store, scope: ScopePath, half_life: timedelta | None) -> int:
    """Write the decayed importance of each memory to the store; return how many changed."""
    changed = 0
    batch: list[tuple[Put, Derive]] = []
    moment = to_microseconds(store.clock())
    async for fade in fading_memories(store, scope, half_life):
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
    return [from_archive(record) async for record in scan_all(store, scan)]


async def restore(store: Store, scope: ScopePath, id: str, used: bool = True) -> Record:
    """Restore an archived memory, counted as used now, or else with the uses it had; NotFoundError, ConflictError."""
    (archived,) = await store.read([Ref(scope, PRUNED, check_name(id, "id"))])
    if archived is None:
        raise NotFoundError(f"the archive of {scope.path!r} has no memory with the id {shown(id)}")
    put = Put(from_archive(archived), 0)
    moment = to_microseconds(store.clock())
    use = Use(since=moment, uses=1, last=moment) if used else _archived_use(archived)
    derive = () if use is None else (Derive(put.record.ref, USE, pack_use(use)),)
    did, *_ = await store.write(Write((put, *derive, Delete(archived.ref, archived.version))))
    return stored_record(put.record, did)


_ARCHIVED_FIELDS = (
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


def to_archive(record: Record) -> Record:
    """Return an archive record that wraps another one, without searchable text."""
    fields = {name: value for name in _ARCHIVED_FIELDS if (value := getattr(record, name)) not in (None, {})}
    if (use := record.derived.get(USE)) is not None:
        fields[USE] = to_builtins(unpack_use(use))
    return Record(record.scope, PRUNED, record.key, data=to_builtins(fields), expires=record.expires)


def from_archive(record: Record) -> Record:
    """Return the memory that an archive record wraps; raises UnreadableStoreError if it holds something else."""
    data: Any = dict(record.data) if isinstance(record.data, dict) else {}
    _archived_use(record)
    data.pop(USE, None)
    for name in ("expires", "valid_from", "valid_to", "created"):
        if name in data:
            try:
                data[name] = datetime.fromisoformat(data[name])
            except (TypeError, ValueError):
                raise unreadable(record, ValueError(f"{name} is not a time")) from None
    try:
        return checked_record(Record(record.scope, MEMORY, record.key, **data))
    except (InvalidValueError, TypeError, AttributeError) as error:
        raise unreadable(record, error) from None


def _archived_use(record: Record) -> Use | None:
    value: Any = record.data.get(USE) if isinstance(record.data, dict) else None
    try:
        return None if value is None else convert(value, Use)
    except ValidationError as error:
        raise unreadable(record, error) from None
