"""Partitioned tables in PostgreSQL.

With `?partitions=8` in the URL that first opens a database, `mnemic_records`, `mnemic_labels` and
`mnemic_derived` are created `PARTITION BY HASH (stream_id)`. Every primary key starts with `stream_id`, so a
stream is in one partition of each, and queries on it touch only that one. For distribution over machines, as with
Citus, use the same column: the three tables by `stream_id`, co-located.
"""

from __future__ import annotations

from typing import Any

from alembic import context, op

PARTITIONS = "partitions"
"""Alembic configuration attribute with the number of partitions; 0 for none."""


def create_table(name: str, *columns: Any, **options: Any) -> None:
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
