"""Converts records to rows and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import field, json

from ...checks import from_microseconds, shown, to_microseconds
from ...errors import UnreadableStoreError
from ...records import Record, ScopePath
from ...store.planning import Loaded, RecordState, StreamName, StreamState
from .schema import records, streams

COLUMNS = tuple(column.name for column in records.columns)
"""Column order of a row."""
STREAM_COLUMNS = tuple(column.name for column in streams.columns if column.name != "id")
"""Columns of a stream: the first fields of its state."""

_encode = json.Encoder().encode
_decode = json.Decoder().decode
_decode_meta = json.Decoder(dict[str, Any]).decode
_decode_labels = json.Decoder(dict[str, str]).decode


class StreamRow(StreamState):
    """The state of a stream, and the id of its row."""

    id: int = 0


class LoadedRows(Loaded):
    """Loaded states, and the ids of the streams' rows."""

    ids: dict[StreamName, int] = field(default_factory=dict)


def to_stream(row: Sequence[Any]) -> StreamRow:
    """Return the state of a stream from a row of `streams`."""
    stream = StreamRow(*row[1:])
    stream.id = row[0]
    return stream


def stream_values(state: StreamState, id: int) -> dict[str, Any]:
    """Return the row of a stream."""
    values = {name: getattr(state, name) for name in STREAM_COLUMNS}
    values["id"] = id
    return values


def to_record_state(row: Sequence[Any]) -> RecordState:
    """Return the state of a record from the columns of `SLOT`; raises UnreadableStoreError if it is damaged."""
    key, seq, version, created, weight, labels, expires = row
    try:
        found = _decode_labels(labels) if labels else {}
    except ValueError as error:
        raise UnreadableStoreError(f"the labels of the record {shown(key)} are damaged ({error})") from error
    return RecordState(key, seq, version, created, weight, found, expires)


def to_row(record: Record, stream_id: int) -> dict[str, Any]:
    """Return a record's row."""
    return {
        "stream_id": stream_id,
        "seq": record.seq,
        "key": record.key,
        "version": record.version,
        "text": record.text,
        "title": record.title,
        "data": None if record.data is None else _encode(record.data).decode(),
        "meta": _encode(record.meta).decode() if record.meta else None,
        "labels": _encode(record.labels).decode() if record.labels else None,
        "importance": record.importance,
        "weight": record.weight,
        "pinned": record.pinned,
        "created": None if record.created is None else to_microseconds(record.created),
        "updated": None if record.updated is None else to_microseconds(record.updated),
        "expires": None if record.expires is None else to_microseconds(record.expires),
        "valid_from": None if record.valid_from is None else to_microseconds(record.valid_from),
        "valid_to": None if record.valid_to is None else to_microseconds(record.valid_to),
    }


def to_record(scope: ScopePath, kind: str, row: Sequence[Any], derived: Sequence[str] = ()) -> Record:
    """Return the record of a row: values in the order of COLUMNS, then the `derived` values.

    Raises UnreadableStoreError, which names the record, for a damaged row.
    """
    found: dict[str, bytes] = {}
    if derived:
        values = zip(derived, row[len(COLUMNS) :], strict=True)
        found = {name: value for name, value in values if value is not None}
        row = row[: len(COLUMNS)]
    (
        _stream_id, seq, key, version, text, title, data, meta, labels, importance, weight, pinned,
        created, updated, expires, valid_from, valid_to,
    ) = row  # fmt: skip
    try:
        if not (text is None or text.__class__ is str) or not (title is None or title.__class__ is str):
            raise TypeError("its text is not text")
        if seq.__class__ is not int or version.__class__ is not int:
            raise TypeError("its version is not a number")
        # Positional arguments take a quarter of the time of keywords, and this runs for every record read.
        return Record(
            scope,
            kind,
            key,
            seq,
            version,
            text,
            title,
            None if data is None else _decode(data),
            {} if meta is None else _decode_meta(meta),
            {} if labels is None else _decode_labels(labels),
            importance,
            weight,
            pinned == 1,
            from_microseconds(created),
            from_microseconds(updated),
            None if expires is None else from_microseconds(expires),
            None if valid_from is None else from_microseconds(valid_from),
            None if valid_to is None else from_microseconds(valid_to),
            found,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableStoreError(
            f"the record {shown(key)} of kind {shown(kind)} in {shown(str(scope))} is damaged ({error})"
        ) from error
