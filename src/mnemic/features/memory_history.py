"""The history of memories: what was changed or deleted when, kept in the same write as the change.

An event is a record of the kind `HISTORY` in the scope of its memory, with the memory's metadata and source. The texts
are in the memory itself: however it is deleted, they are gone, and only the events stay. Recall finds neither. In a
store with a history, its versions have the texts, also of changes that were made in other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import ValidationError, convert
from msgspec.structs import replace

from ..checks import new_id, shown
from ..errors import ConflictError, NotFoundError
from ..layers.version_records import KeptVersion, read_versions
from ..records import HISTORY, MEMORY, Record, Ref, ScopePath, Value, digest_of, plain, unreadable
from ..store.protocol import Store, scan_all
from ..store.query import MAX_CHOICES, Condition, Delete, Put, Scan, Write, stored_record
from ..store.retry import retry_conflicts
from .hits import delete_refs
from .memory_items import check_validity

TEXTS = "history"
"""Name in the data of a memory of its texts before and after each event."""
MAX_TEXTS = 100_000
"""How many characters of them are kept, the newest."""


class HistoryEntry(Value, frozen=True, kw_only=True):
    """One event of a memory, "ADD", "UPDATE" or "DELETE", with its text before and after if the memory still exists."""

    id: str
    memory_id: str
    event: str
    old: str | None
    new: str | None
    time: datetime
    """When it happened."""
    created: datetime
    """When the memory was added."""
    metadata: dict[str, Any]
    scope: ScopePath


async def update_memory(store: Store, ref: Ref, change: Callable[[Record], Record]) -> Record:
    """Change a memory, and keep its old text; `change` gets the stored record. Return the new one.

    Raises NotFoundError if it does not exist, ConflictError if concurrent writes win every attempt.
    """

    async def update() -> Record:
        (old,) = await store.read([ref])
        if old is None:
            raise NotFoundError(f"there is no memory with the id {shown(ref.key)}")
        event, new = _event(old, "UPDATE"), check_validity(change(old))
        put = Put(_with_texts(new, event.record.key, old.text), old.version)
        (did, *_) = await store.write(Write((put, event)))
        return stored_record(put.record, did)

    return await retry_conflicts(update, f"updating {shown(ref.key)} in {ref.scope.path!r}")


async def delete_memory(store: Store, ref: Ref) -> None:
    """Delete a memory with its texts, and keep the events of its history.

    Raises NotFoundError if it does not exist, ConflictError if concurrent writes win every attempt.
    """

    async def delete() -> None:
        (old,) = await store.read([ref])
        if old is None:
            raise NotFoundError(f"there is no memory with the id {shown(ref.key)}")
        outcome, _ = await store.write(Write((Delete(ref, old.version), _event(old, "DELETE"))))
        if not outcome.removed:
            raise ConflictError(f"{shown(ref.key)} was deleted meanwhile", key=ref.key)

    await retry_conflicts(delete, f"deleting {shown(ref.key)} in {ref.scope.path!r}")


async def memory_history(store: Store, scope: ScopePath, id: str, current: Record | None) -> list[HistoryEntry]:
    """Return the events of a memory of a scope or below, oldest first; empty for an unknown id.

    `current` is the memory as it is now, None if it was deleted: then they have texts only from earlier versions.
    """
    where = (Condition("labels.memory", "eq", id),)
    scan = Scan(scope=scope, kinds=(HISTORY,), below=True, where=where)
    texts = {} if current is None else _texts(current)
    entries = [to_history_entry(record, *texts.get(record.key, (None, None))) async for record in scan_all(store, scan)]
    versions, _ = await read_versions(store, scope, below=True, kind=MEMORY, key=id)
    entries = _with_versions(entries, versions, current)
    if entries:
        first = entries[0]
        added = (first.old, first.created, first.metadata, first.scope)
    elif current is not None:
        assert current.created is not None
        added = (current.text, current.created, current.meta, current.scope)
    else:
        return []
    text, created, metadata, where_added = added
    return [
        HistoryEntry(
            id=digest_of((id, "ADD")).hex(),
            memory_id=id,
            event="ADD",
            old=None,
            new=text,
            time=created,
            created=created,
            metadata=metadata,
            scope=where_added,
        ),
        *entries,
    ]


def _with_versions(
    entries: list[HistoryEntry], versions: list[KeptVersion], current: Record | None
) -> list[HistoryEntry]:
    """Return the events with those of the earlier versions, which have the texts; the events of one write are one."""
    known: dict[tuple[ScopePath, str, datetime], list[HistoryEntry]] = {}
    for entry in entries:
        known.setdefault((entry.scope, entry.event, entry.time), []).append(entry)
    later = {} if current is None else {current.scope: current}
    found: list[HistoryEntry] = []
    for version in reversed(versions):
        old = version.record
        event = "DELETE" if version.removed else "UPDATE"
        recorded = known.get((old.scope, event, version.ended))
        same = recorded.pop() if recorded else None
        after, later[old.scope] = later.get(old.scope), old
        found.append(
            HistoryEntry(
                id=same.id if same is not None else digest_of((old.key, event, version.position)).hex(),
                memory_id=old.key,
                event=event,
                old=old.text,
                new=None if version.removed or after is None else after.text,
                time=version.ended,
                created=old.created or version.ended,
                metadata=old.meta,
                scope=old.scope,
            )
        )
    return [*(entry for several in known.values() for entry in several), *reversed(found)]


async def delete_histories(store: Store, scope: ScopePath, ids: Sequence[str]) -> None:
    """Delete the history of memories of one scope."""
    for start in range(0, len(ids), MAX_CHOICES):
        where = (Condition("labels.memory", "in", tuple(ids[start : start + MAX_CHOICES])),)
        scan = Scan(scope=scope, kinds=(HISTORY,), where=where, bodies=False)
        refs = [record.ref async for record in scan_all(store, scan)]
        await delete_refs(store, refs)


def _texts(memory: Record) -> dict[str, tuple[str | None, str | None]]:
    """Return the texts before and after each event that a memory has."""
    found = memory.data.get(TEXTS) if isinstance(memory.data, dict) else None
    return {id: (old, new) for id, old, new in found} if isinstance(found, list) else {}


def _with_texts(memory: Record, event: str, old: str | None) -> Record:
    """Return a memory with its texts before and after an event in its data, if that can have any."""
    if memory.data is not None and not isinstance(memory.data, dict):
        return memory
    kept: list[Any] = []
    size = 0
    for id, (before, after) in reversed({**_texts(memory), event: (old, memory.text)}.items()):
        size += len(before or "") + len(after or "")
        if size > MAX_TEXTS:
            break
        kept.insert(0, [id, before, after])
    return replace(memory, data={**(memory.data or {}), TEXTS: kept})


def _event(old: Record, event: str) -> Put:
    data = {"event": event, "created": plain(old.created)}
    labels = {**old.labels, "memory": old.key}
    return Put(Record(old.scope, HISTORY, new_id(), data=data, meta=old.meta, labels=labels), 0)


def to_history_entry(record: Record, old: str | None = None, new: str | None = None) -> HistoryEntry:
    """Return the entry of a record; raises UnreadableStoreError if it holds something else."""
    data: Any = record.data
    try:
        return HistoryEntry(
            id=record.key,
            memory_id=record.labels["memory"],
            event=convert(data["event"], str),
            old=old,
            new=new,
            time=convert(record.created, datetime),
            created=convert(data["created"], datetime),
            metadata=record.meta,
            scope=record.scope,
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise unreadable(record, error) from None
