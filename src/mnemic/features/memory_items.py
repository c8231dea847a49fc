"""Memories as values and as records, and how duplicates are merged."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from ..checks import JSON, check_name, check_number, check_text, check_time
from ..errors import InvalidValueError
from ..records import Record, ScopePath, Value
from .kinds import MEMORY


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


def merged(old: Record, new: Record) -> Record:
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
