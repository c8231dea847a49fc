"""The ids of writes are records of their scopes, and need no table of their own."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Drop the table; what it remembered would have been forgotten within a day."""
    op.drop_table("mnemic_writes")
