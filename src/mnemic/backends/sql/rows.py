"""Converts streams and records to rows and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import field, json

from ...checks import shown
from ...errors import UnreadableStoreError
from ...records import Record, StreamName
from ...store.codec import FIELDS, to_columns
from ...store.stream_state import Loaded, RecordState, StreamState
from .schema import streams

COLUMNS = ("stream_id", *FIELDS)
"""Columns of a record's row in the order of `record_row`."""
RECORD_STATE_COLUMNS = ("key", "seq", "version", "created", "weight", "labels", "expires")
"""Columns of a record that the write path needs."""
STREAM_COLUMNS = tuple(column.name for column in streams.columns if column.name != "id")
"""Columns of a stream: the first fields of its state."""

_stream_values: Callable[[StreamState], tuple[Any, ...]] = attrgetter(*STREAM_COLUMNS)
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
    return {"id": id, **dict(zip(STREAM_COLUMNS, _stream_values(state), strict=True))}


def to_record_state(row: Sequence[Any]) -> RecordState:
    """Return the state of a record from its columns; raises UnreadableStoreError if it is damaged."""
    key, seq, version, created, weight, labels, expires = row
    try:
        found = _decode_labels(labels) if labels else {}
    except ValueError as error:
        raise UnreadableStoreError(f"the labels of the record {shown(key)} are damaged ({error})") from error
    return RecordState(key, seq, version, created, weight, found, expires)


def to_row(record: Record, stream_id: int) -> dict[str, Any]:
    """Return a record's row."""
    return {"stream_id": stream_id, **dict(zip(FIELDS, to_columns(record), strict=True))}
