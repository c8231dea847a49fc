"""Records as rows, and rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import json

from ...checks import from_microseconds, to_microseconds
from ...records import Record, Scope
from .schema import records

COLUMNS = tuple(column.name for column in records.columns)
"""The order of the values in a row."""

_encode = json.Encoder().encode
_decode = json.Decoder().decode


def to_row(record: Record) -> dict[str, Any]:
    """Return a record's row; its stream, seq, version and the time of writing are the store's to fill in."""
    return {
        "key": record.key,
        "text": record.text,
        "title": record.title,
        "data": None if record.data is None else _encode(record.data).decode(),
        "meta": _encode(record.meta).decode() if record.meta else None,
        "labels": _encode(record.labels).decode() if record.labels else None,
        "importance": record.importance,
        "weight": record.weight,
        "pinned": record.pinned,
        "created": None if record.created is None else to_microseconds(record.created),
        "expires": None if record.expires is None else to_microseconds(record.expires),
        "valid_from": None if record.valid_from is None else to_microseconds(record.valid_from),
        "valid_to": None if record.valid_to is None else to_microseconds(record.valid_to),
    }


def to_record(scope: Scope, kind: str, row: Sequence[Any]) -> Record:
    """Return the record of a row whose values are in the order of COLUMNS."""
    (
        _stream_id, seq, key, version, text, title, data, meta, labels, importance, weight, pinned,
        created, updated, expires, valid_from, valid_to,
    ) = row  # fmt: skip
    return Record(
        scope=scope,
        kind=kind,
        key=key,
        seq=seq,
        version=version,
        text=text,
        title=title,
        data=None if data is None else _decode(data),
        meta={} if meta is None else _decode(meta),
        labels={} if labels is None else _decode(labels),
        importance=importance,
        weight=weight,
        pinned=bool(pinned),
        created=from_microseconds(created),
        updated=from_microseconds(updated),
        expires=None if expires is None else from_microseconds(expires),
        valid_from=None if valid_from is None else from_microseconds(valid_from),
        valid_to=None if valid_to is None else from_microseconds(valid_to),
    )
