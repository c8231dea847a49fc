"""The history of memories: texts that were replaced or deleted, kept in the same write as the change.

An entry is a record of the kind `HISTORY` in the scope of its memory, with the memory's metadata and source, so that
`forget` and `erase` remove it with the rest. It has no text that recall could find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import convert

from ..checks import new_id, shown
from ..errors import ConflictError, NotFoundError
from ..records import HISTORY, Record, Ref, ScopePath, Value, digest_of, plain
from ..store.protocol import Store, scan_all
from ..store.query import MAX_CHOICES, Condition, Delete, Put, Scan, Write, stored
from ..store.retry import retried
from .hits import delete_refs
from .memory_items import check_validity


class HistoryEntry(Value, frozen=True, kw_only=True):
    """One event of a memory, "ADD", "UPDATE" or "DELETE", with its text before and after."""

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
        new = check_validity(change(old))
        put = Put(new, old.version)
        (did, *_) = await store.write(Write((put, _entry(old, "UPDATE", new.text))))
        return stored(put.record, did)

    return await retried(update, f"updating {shown(ref.key)} in {ref.scope.path!r}")


async def delete_memory(store: Store, ref: Ref) -> None:
    """Delete a memory, and keep its text in its history.

    Raises NotFoundError if it does not exist, ConflictError if concurrent writes win every attempt.
    """

    async def delete() -> None:
        (old,) = await store.read([ref])
        if old is None:
            raise NotFoundError(f"there is no memory with the id {shown(ref.key)}")
        outcome, _ = await store.write(Write((Delete(ref, old.version), _entry(old, "DELETE", None))))
        if not outcome.removed:
            raise ConflictError(f"{shown(ref.key)} was deleted meanwhile", key=ref.key)

    await retried(delete, f"deleting {shown(ref.key)} in {ref.scope.path!r}")


async def memory_history(store: Store, scope: ScopePath, id: str, current: Record | None) -> list[HistoryEntry]:
    """Return the events of a memory of a scope or below, oldest first; empty for an unknown id.

    `current` is the memory as it is now, None if it was deleted.
    """
    where = (Condition("labels.memory", "eq", id),)
    scan = Scan(scope=scope, kinds=(HISTORY,), below=True, where=where)
    entries = [_read(record) async for record in scan_all(store, scan)]
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


async def delete_histories(store: Store, scope: ScopePath, ids: Sequence[str]) -> None:
    """Delete the history of memories of one scope."""
    for start in range(0, len(ids), MAX_CHOICES):
        where = (Condition("labels.memory", "in", tuple(ids[start : start + MAX_CHOICES])),)
        scan = Scan(scope=scope, kinds=(HISTORY,), where=where, bodies=False)
        refs = [record.ref async for record in scan_all(store, scan)]
        await delete_refs(store, refs)


def _entry(old: Record, event: str, new: str | None) -> Put:
    data = {"event": event, "old": old.text, "new": new, "created": plain(old.created)}
    labels = {**old.labels, "memory": old.key}
    return Put(Record(old.scope, HISTORY, new_id(), data=data, meta=old.meta, labels=labels), 0)


def _read(record: Record) -> HistoryEntry:
    data: Any = record.data
    assert record.created is not None
    return HistoryEntry(
        id=record.key,
        memory_id=record.labels["memory"],
        event=data["event"],
        old=data["old"],
        new=data["new"],
        time=record.created,
        created=convert(data["created"], datetime),
        metadata=record.meta,
        scope=record.scope,
    )
