"""A table of derived values."""

from __future__ import annotations

import sqlalchemy as sa

from mnemic.backends.sql.partitions import create_table

revision = "0002"
down_revision = "0001"

_Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table."""
    create_table(
        "mnemic_derived",
        sa.Column("stream_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", _Name, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
