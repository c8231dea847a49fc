"""PostgreSQL only: an index of the metadata, and fill factors for in-place updates of heads."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the index; SQLite needs none."""
    if op.get_bind().dialect.name != "postgresql":
        return
    # The text is stored as written; the index sees it as values. Most messages have no metadata. New rows go
    # into the index at once: a pending list would be read by every search.
    op.execute(
        "CREATE INDEX mnemic_records_meta ON mnemic_records "
        "USING gin ((meta::jsonb) jsonb_path_ops) WITH (fastupdate = off) WHERE meta IS NOT NULL"
    )
    # Every append changes a head. In a page with free space that touches no index and leaves nothing to
    # vacuum.
    op.execute("ALTER TABLE mnemic_streams SET (fillfactor = 50)")
