"""Write ids are records of their scopes now, without a table of their own."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Drop the table; its content would have expired within a day."""
    op.drop_table("mnemic_writes")
