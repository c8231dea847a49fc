"""Schema migrations, run when a database is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ...checks import shown
from ...errors import NewerSchemaError, UnreadableStoreError
from .schema import COLUMNS, HEAD, VERSION_TABLE

SCRIPTS = Path(__file__).parent / "migrations"

REPAIR = "mnemic doctor tells what repairs it"
NEWEST = "is at the newest schema"

PARTITIONS = "partitions"
"""Alembic configuration attribute with the number of partitions; 0 for none."""


class MigrationTarget(Struct, frozen=True):
    """Database specifics for migrations."""

    name: str
    """SQLAlchemy's name of the database and driver."""
    list_tables: str
    """Statement that returns the names of the tables of Mnemic that exist."""
    begin: Sequence[str] = ()
    """Statements that start a migration, with a lock against concurrent ones."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes for the migration scripts."""


def migrate(raw: Any, url: str, engine: MigrationTarget, target: str = HEAD) -> None:
    """Migrate a database from any revision, or from none, to `target`, atomically, on a connection of its driver.

    Raises NewerSchemaError if it was written by a newer version, UnreadableStoreError if a table is missing.
    """
    tables = _tables(raw, engine)
    revision = _revision(raw, tables)
    if revision == target:
        if target == HEAD and (missing := [name for name in COLUMNS if name not in tables]):
            raise UnreadableStoreError(f"{url} has schema {revision}, but no table {', '.join(missing)}; {REPAIR}")
        return
    if revision is None and tables:
        raise UnreadableStoreError(f"{url} has tables of Mnemic, but no table {VERSION_TABLE}; {REPAIR}")
    if revision is not None and revision not in revisions():
        if not (revision.isdecimal() and int(revision) > int(HEAD)):
            raise UnreadableStoreError(f"{url} has schema {shown(revision)}, which no version of Mnemic has had")
        raise NewerSchemaError(
            f"{url} has schema {revision}, written by a newer version of Mnemic than this one, "
            f"which knows schemas up to {HEAD}: upgrade with pip install -U mnemic"
        )
    _upgrade(raw, engine, target)


def revisions() -> list[str]:
    """Return the known revisions, oldest first."""
    return sorted(script.name.partition("_")[0] for script in (SCRIPTS / "versions").glob("[0-9]*.py"))


def _tables(raw: Any, engine: MigrationTarget) -> set[str]:
    return {row[0] for row in raw.execute(engine.list_tables).fetchall()}


def _revision(raw: Any, tables: set[str]) -> str | None:
    if VERSION_TABLE not in tables:
        return None
    row = raw.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    if row is None:
        raise UnreadableStoreError(f"the table {VERSION_TABLE} names no revision; {REPAIR}")
    return str(row[0])


def _upgrade(raw: Any, engine: MigrationTarget, target: str) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    def begin(connection: Any) -> None:
        for statement in engine.begin:
            connection.exec_driver_sql(statement)

    found = create_engine(engine.name, creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None)
    event.listen(found, "begin", begin)
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes.update(engine.attributes)
    try:
        with found.begin() as config.attributes["connection"]:
            # Another process may have migrated while this one waited for the lock.
            if _revision(raw, _tables(raw, engine)) != target:
                command.upgrade(config, target)
    except DBAPIError as error:
        raise (error.orig or error) from error
