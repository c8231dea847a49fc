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
        sa.Column("scope", _Name, nullable=False),
        sa.Column("kind", _Name, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("weight", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("updated", sa.BigInteger, nullable=False),
        sa.Column("ttl", sa.BigInteger),
        sa.Column("expires", sa.BigInteger),
        sa.Column("soonest", sa.BigInteger),
        sa.Column("settings", sa.Text),
        sa.UniqueConstraint("scope", "kind", name="mnemic_streams_scope_kind"),
    )
    _create_partitioned(
        "mnemic_records",
        sa.Column("stream_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", _Name, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("text", sa.Text),
        sa.Column("title", sa.Text),
        sa.Column("data", sa.Text),
        sa.Column("meta", sa.Text),
        sa.Column("labels", sa.Text),
        sa.Column("importance", sa.Double),
        sa.Column("weight", sa.BigInteger, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("updated", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("valid_from", sa.BigInteger),
        sa.Column("valid_to", sa.BigInteger),
        sa.UniqueConstraint("stream_id", "key", name="mnemic_records_key"),
    )
    _create_partitioned(
        "mnemic_labels",
        sa.Column("stream_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", _Name, primary_key=True),
        sa.Column("value", _Name, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    _create_partitioned(
        "mnemic_derived",
        sa.Column("stream_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", _Name, primary_key=True),
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
