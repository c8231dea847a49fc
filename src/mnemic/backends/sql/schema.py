"""The tables of the newest schema, and how streams and records become rows and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import field, json
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from ...checks import shown
from ...errors import UnreadableStoreError
from ...records import Record, StreamName
from ...store.codec import FIELDS, to_columns
from ...store.stream_state import Loaded, RecordState, StreamState

HEAD = "0001"
"""Newest revision in `migrations/versions`."""
VERSION_TABLE = "mnemic_schema"
"""Alembic's revision table; a name of its own, so that Mnemic can share a database."""

metadata: MetaData = MetaData()

Id: BigInteger = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows automatically only in an INTEGER column."""

Name: Text = Text().with_variant(Text(collation="C"), "postgresql")
"""Text compared and sorted by code point, as in Python; SQLite's default."""


def _columns(type: Any, *names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, type, nullable=nullable) for name in names]


def _key(type: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, type, primary_key=True, autoincrement=False) for name in names]


streams: Table[Any] = Table(
    "mnemic_streams",
    metadata,
    Column("id", Id, primary_key=True),
    *_columns(Name, "scope", "kind"),
    *_columns(BigInteger, "last_seq", "version", "count", "weight", "created", "updated"),
    *_columns(BigInteger, "ttl", "expires", "soonest", nullable=True),
    Column("settings", Text),
    UniqueConstraint("scope", "kind", name="mnemic_streams_scope_kind"),
)
"""Totals of each stream. `soonest` is a lower bound of the first expiry."""

records: Table[Any] = Table(
    "mnemic_records",
    metadata,
    *_key(BigInteger, "stream_id", "seq"),
    Column("key", Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    *_columns(Text, "text", "title", "data", "meta", "labels", nullable=True),
    Column("importance", Double),
    Column("weight", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    *_columns(BigInteger, "created", "updated"),
    *_columns(BigInteger, "expires", "valid_from", "valid_to", nullable=True),
    UniqueConstraint("stream_id", "key", name="mnemic_records_key"),
)
"""Times are microseconds since 1970; data, meta and labels are JSON, NULL if empty."""

labels: Table[Any] = Table(
    "mnemic_labels",
    metadata,
    *_key(BigInteger, "stream_id"),
    *_key(Name, "name", "value"),
    *_key(BigInteger, "seq"),
    sqlite_with_rowid=False,
)
"""Label index of records."""

derived: Table[Any] = Table(
    "mnemic_derived",
    metadata,
    *_key(BigInteger, "stream_id", "seq"),
    *_key(Name, "name"),
    Column("version", BigInteger, nullable=False),
    Column("value", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""Derived values, valid while the record has `version`, or always if that is 0."""

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
