"""Opens SQLite stores."""

from __future__ import annotations

from ...event_loop import off_loop
from ...store.registry import Backend, StoreURL
from ..sql.migrate import migrate
from ..sql.statements import Statements
from .client import FLAVOR, SqliteFile
from .store import SqliteStore

_statements = Statements(FLAVOR)


async def open_sqlite(url: StoreURL) -> SqliteStore:
    """Open the file, created if it does not exist, and migrate it to the newest schema."""
    file = SqliteFile(url)
    try:
        await off_loop(lambda: migrate(file))
    except BaseException:
        file.close()
        raise
    return SqliteStore(file, _statements)


async def _exists(url: StoreURL) -> bool:
    return SqliteFile(url).exists()


BACKEND = Backend(open=open_sqlite, inline=True, exists=_exists)
