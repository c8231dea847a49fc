"""Alembic's entry point: migrations run on the store's connection, in its transaction."""

from __future__ import annotations

from alembic import context

from mnemic.backends.sql.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata(),
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
