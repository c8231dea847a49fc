"""The tables of the newest schema, and how streams and records become rows and back."""

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

HEAD = "0001"
"""Newest revision in `migrations/versions`."""
VERSION_TABLE = "mnemic_schema"
"""Alembic's revision table; a name of its own, so that Mnemic can share a database."""

STREAMS, RECORDS, LABELS, DERIVED = "mnemic_streams", "mnemic_records", "mnemic_labels", "mnemic_derived"

COLUMNS: dict[str, dict[str, str]] = {
    STREAMS: {
        "id": "ID", "scope": "NAME", "kind": "NAME", "last_seq": "BIGINT", "version": "BIGINT", "count": "BIGINT",
        "weight": "BIGINT", "created": "BIGINT", "updated": "BIGINT", "ttl": "BIGINT NULL", "expires": "BIGINT NULL",
        "soonest": "BIGINT NULL", "settings": "TEXT NULL",
    },
    RECORDS: {
        "stream_id": "KEY", "seq": "KEY", "key": "NAME", "version": "BIGINT", "text": "TEXT NULL",
        "title": "TEXT NULL", "data": "TEXT NULL", "meta": "TEXT NULL", "labels": "TEXT NULL",
        "importance": "DOUBLE PRECISION NULL", "weight": "BIGINT", "pinned": "BOOLEAN", "created": "BIGINT",
        "updated": "BIGINT", "expires": "BIGINT NULL", "valid_from": "BIGINT NULL", "valid_to": "BIGINT NULL",
    },
    LABELS: {"stream_id": "KEY", "name": "NAME KEY", "value": "NAME KEY", "seq": "KEY"},
    DERIVED: {"stream_id": "KEY", "seq": "KEY", "name": "NAME KEY", "version": "BIGINT", "value": "BYTEA"},
}  # fmt: skip
"""Columns of each table. Streams have totals, and `soonest`, a lower bound of the first expiry. In records, times are
microseconds since 1970; data, meta and labels are JSON, NULL if empty. Labels are an index. Derived values are valid
while the record has `version`, or always if that is 0.
"""


def metadata() -> Any:
    """Return the tables as SQLAlchemy knows them, which only migrations need: loading it takes long."""
    import sqlalchemy as sa

    name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")  # sorted by code point, as in Python
    types: dict[str, Any] = {
        "ID": sa.BigInteger().with_variant(sa.Integer, "sqlite"),  # SQLite numbers only an INTEGER automatically
        "NAME": name, "KEY": sa.BigInteger, "BIGINT": sa.BigInteger, "TEXT": sa.Text, "BOOLEAN": sa.Boolean,
        "DOUBLE PRECISION": sa.Double, "BYTEA": sa.LargeBinary, "NAME KEY": name,
    }  # fmt: skip
    unique = {STREAMS: ("scope", "kind"), RECORDS: ("stream_id", "key")}
    names = {STREAMS: f"{STREAMS}_scope_kind", RECORDS: f"{RECORDS}_key"}
    found = sa.MetaData()
    for table, columns in COLUMNS.items():
        made = [
            sa.Column(
                column,
                types[type.removesuffix(" NULL")],
                primary_key=type == "ID" or type.endswith("KEY"),
                nullable=type.endswith(" NULL"),
                autoincrement=type == "ID" or "auto",
            )
            for column, type in columns.items()
        ]
        keys = [sa.UniqueConstraint(*unique[table], name=names[table])] if table in unique else []
        sa.Table(table, found, *made, *keys)
    return found


RECORD_STATE_COLUMNS = ("key", "seq", "version", "created", "weight", "labels", "expires")
"""Columns of a record that the write path needs."""
STREAM_COLUMNS = tuple(COLUMNS[STREAMS])[1:]
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
    return {"stream_id": stream_id, **dict(zip(FIELDS, to_columns(record), strict=True))}
