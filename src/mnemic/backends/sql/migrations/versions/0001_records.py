"""Tables of streams, records, labels and derived values.

With `?partitions=8` in the URL that first opens a database, `mnemic_records`, `mnemic_labels` and
`mnemic_derived` are created `PARTITION BY HASH (stream_id)`. Every primary key starts with `stream_id`, so a
stream is in one partition of each, and queries on it touch only that one. For distribution over machines, as with
Citus, use the same column: the three tables by `stream_id`, co-located.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from mnemic.backends.sql.migrate import PARTITIONS

revision = "0001"
down_revision = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _columns(type: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, type, nullable=nullable) for name in names]


def _key(type: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, type, primary_key=True, autoincrement=False) for name in names]


def _create_partitioned(name: str, *columns: Any, **options: Any) -> None:
    """Create a table that starts with `stream_id`, partitioned if configured."""
    parts = context.config.attributes.get(PARTITIONS, 0)
    if not parts:
        op.create_table(name, *columns, **options)
        return
    op.create_table(name, *columns, **options, postgresql_partition_by="HASH (stream_id)")
    for part in range(parts):
        op.execute(
            f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        )


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "mnemic_streams",
        sa.Column("id", _Id, primary_key=True),
        *_columns(_Name, "scope", "kind"),
        *_columns(sa.BigInteger, "last_seq", "version", "count", "weight", "created", "updated"),
        *_columns(sa.BigInteger, "ttl", "expires", "soonest", nullable=True),
        sa.Column("settings", sa.Text),
        sa.UniqueConstraint("scope", "kind", name="mnemic_streams_scope_kind"),
    )
    _create_partitioned(
        "mnemic_records",
        *_key(sa.BigInteger, "stream_id", "seq"),
        sa.Column("key", _Name, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        *_columns(sa.Text, "text", "title", "data", "meta", "labels", nullable=True),
        sa.Column("importance", sa.Double),
        sa.Column("weight", sa.BigInteger, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        *_columns(sa.BigInteger, "created", "updated"),
        *_columns(sa.BigInteger, "expires", "valid_from", "valid_to", nullable=True),
        sa.UniqueConstraint("stream_id", "key", name="mnemic_records_key"),
    )
    _create_partitioned(
        "mnemic_labels",
        *_key(sa.BigInteger, "stream_id"),
        *_key(_Name, "name", "value"),
        *_key(sa.BigInteger, "seq"),
        sqlite_with_rowid=False,
    )
    _create_partitioned(
        "mnemic_derived",
        *_key(sa.BigInteger, "stream_id", "seq"),
        *_key(_Name, "name"),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name != "postgresql":
        return
    # The text is stored as written; the index sees it as values. Most messages have no metadata. New rows go
    # into the index at once: a pending list would be read by every search.
    op.execute(
        "CREATE INDEX mnemic_records_meta ON mnemic_records "
        "USING gin ((meta::jsonb) jsonb_path_ops) WITH (fastupdate = off) WHERE meta IS NOT NULL"
    )
    # Every append changes the row of a stream. In a page with free space that touches no index and leaves nothing
    # to vacuum.
    op.execute("ALTER TABLE mnemic_streams SET (fillfactor = 50)")
