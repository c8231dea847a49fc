"""Bringing a database to the newest schema, when it is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...errors import NewerSchemaError, UnreadableStoreError
from .schema import HEAD, VERSION_TABLE
from .sqlite import BEGIN, Connection, SqliteFile

SCRIPTS = Path(__file__).parent / "migrations"


def migrate(file: SqliteFile, target: str = HEAD) -> None:
    """Bring the file from whichever revision it has, or from none, to `target`, all or nothing.

    Raises NewerSchemaError if the file was written by a newer version.
    """

    def work(connection: Connection) -> None:
        revision = _revision(connection.raw)
        if revision == target:
            return
        if revision is not None and revision not in revisions():
            raise NewerSchemaError(
                f"{file.url} has schema {revision}, written by a newer version of Mnemic than this one, "
                f"which knows schemas up to {HEAD}: upgrade with pip install -U mnemic"
            )
        _upgrade(connection.raw, target)

    file.use(work)


def revisions() -> list[str]:
    """Return the revisions that this version knows, oldest first."""
    return sorted(script.name.partition("_")[0] for script in (SCRIPTS / "versions").glob("[0-9]*.py"))


def _revision(raw: sqlite3.Connection) -> str | None:
    known = raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchone()
    if known is None:
        return None
    row = raw.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608
    if row is None:
        raise UnreadableStoreError(f"the table {VERSION_TABLE} is empty: the database is not one of ours")
    return str(row[0])


def _upgrade(raw: sqlite3.Connection, target: str) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(BEGIN))
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    try:
        with engine.begin() as config.attributes["connection"]:
            # Another process may have migrated while this one waited for the lock.
            if _revision(raw) != target:
                command.upgrade(config, target)
    except DBAPIError as error:
        raise (error.orig or error) from error
