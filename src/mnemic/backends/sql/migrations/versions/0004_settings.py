"""Settings of a stream, such as the limits of a session."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column; existing streams have no settings."""
    op.add_column("mnemic_streams", sa.Column("settings", sa.Text))
