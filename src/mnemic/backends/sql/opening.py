"""Opens SQLite stores."""

from __future__ import annotations

from ...store.registry import Backend, StoreURL
from .migrate import migrate
from .sqlite import FLAVOR, SqliteFile
from .statements import Statements
from .store import SqlStore
from .threads import Threads

_statements = Statements(FLAVOR)


async def open_sqlite(url: StoreURL) -> SqlStore:
    """Open the file, created if it does not exist, and migrate it to the newest schema."""
    file = SqliteFile(url)
    threads = Threads()
    try:
        await threads.read(lambda: migrate(file))
    except BaseException:
        threads.close()
        file.close()
        raise
    return SqlStore(file, _statements, threads)


async def _exists(url: StoreURL) -> bool:
    return SqliteFile(url).exists()


SQLITE = Backend(open=open_sqlite, inline=True, exists=_exists)
