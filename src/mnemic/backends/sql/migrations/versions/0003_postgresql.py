"""What PostgreSQL needs in addition: an index of the metadata, and room to change heads in place."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the index; SQLite needs none of it."""
    if op.get_bind().dialect.name != "postgresql":
        return
    # The text stays as it was written; the index sees it as values. Most messages have no metadata. What is
    # new goes into the index at once: a list of what is still to be put there would be read by every search.
    op.execute(
        "CREATE INDEX mnemic_records_meta ON mnemic_records "
        "USING gin ((meta::jsonb) jsonb_path_ops) WITH (fastupdate = off) WHERE meta IS NOT NULL"
    )
    # Every append changes a head. In a page with room that touches no index, and leaves nothing to clean.
    op.execute("ALTER TABLE mnemic_streams SET (fillfactor = 50)")
