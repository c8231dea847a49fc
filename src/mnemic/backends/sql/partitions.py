"""Tables that PostgreSQL keeps in parts, by stream.

With `?partitions=8` in the URL that first opens a database, `mnemic_records`, `mnemic_labels` and
`mnemic_derived` are made `PARTITION BY HASH (stream_id)`, each in so many parts. Every primary key begins
with `stream_id`, so a stream lies in one part of each, and what is asked of it goes to that part alone. What
distributes tables over machines, as Citus does, would do so by the same column: the three tables by
`stream_id` and co-located, so that all of a stream is on one node.
"""

from __future__ import annotations

from typing import Any

from alembic import context, op

PARTITIONS = "partitions"
"""The attribute of Alembic's configuration that says into how many parts; 0 for none."""


def create_table(name: str, *columns: Any, **options: Any) -> None:
    """Create a table that begins with `stream_id`, in parts if the database is opened so."""
    parts = context.config.attributes.get(PARTITIONS, 0)
    if not parts:
        op.create_table(name, *columns, **options)
        return
    op.create_table(name, *columns, **options, postgresql_partition_by="HASH (stream_id)")
    for part in range(parts):
        op.execute(
            f"CREATE TABLE {name}_{part} PARTITION OF {name} "
            f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        )
