"""Opens PostgreSQL stores."""

from __future__ import annotations

from functools import cache

from ...event_loop import off_loop
from ...store.registry import Backend, StoreURL
from ..sql.migrate import migrate
from ..sql.schema import HEAD
from .address import Address
from .database import PostgresDatabase
from .statements import PostgresStatements
from .store import PostgresStore

_statements = cache(PostgresStatements)


async def open_postgres(url: StoreURL) -> PostgresStore:
    """Connect, and migrate the database to the newest schema."""
    address = Address.of(url)
    store = PostgresStore(address, _statements())
    try:
        if await store.revision() != HEAD:
            await off_loop(lambda: migrate(PostgresDatabase(address)))
        await store.look_for_vectors()
    except BaseException:
        await store.close()
        raise
    return store


async def _exists(url: StoreURL) -> bool:
    store = PostgresStore(Address.of(url), _statements())
    try:
        return await store.revision() is not None
    finally:
        await store.close()


BACKEND = Backend(open=open_postgres, inline=True, exists=_exists)
