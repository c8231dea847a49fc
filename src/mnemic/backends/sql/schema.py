"""The tables of the newest schema."""

from __future__ import annotations

from typing import Any

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

HEAD = "0001"
"""Newest revision in `migrations/versions`."""
VERSION_TABLE = "mnemic_schema"
"""Alembic's revision table; a name of its own, so that Mnemic can share a database."""

metadata: MetaData = MetaData()

Id: BigInteger = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows automatically only in an INTEGER column."""

Name: Text = Text().with_variant(Text(collation="C"), "postgresql")
"""Text compared and sorted by code point, as in Python; SQLite's default."""

streams: Table[Any] = Table(
    "mnemic_streams",
    metadata,
    Column("id", Id, primary_key=True),
    Column("scope", Name, nullable=False),
    Column("kind", Name, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("weight", BigInteger, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("ttl", BigInteger),
    Column("expires", BigInteger),
    Column("soonest", BigInteger),
    Column("settings", Text),
    UniqueConstraint("scope", "kind", name="mnemic_streams_scope_kind"),
)
"""Totals of each stream. `soonest` is a lower bound of the first expiry."""

records: Table[Any] = Table(
    "mnemic_records",
    metadata,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("text", Text),
    Column("title", Text),
    Column("data", Text),
    Column("meta", Text),
    Column("labels", Text),
    Column("importance", Double),
    Column("weight", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("valid_from", BigInteger),
    Column("valid_to", BigInteger),
    UniqueConstraint("stream_id", "key", name="mnemic_records_key"),
)
"""Times are microseconds since 1970; data, meta and labels are JSON, NULL if empty."""

labels: Table[Any] = Table(
    "mnemic_labels",
    metadata,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Name, primary_key=True),
    Column("value", Name, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""Label index of records."""

derived: Table[Any] = Table(
    "mnemic_derived",
    metadata,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Name, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("value", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
"""Derived values, valid while the record has `version`, or always if that is 0."""
