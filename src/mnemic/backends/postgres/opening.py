"""Opens PostgreSQL stores: the options of a URL (docs/backends.md lists them; others are libpq's), and migrations."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict

from ...errors import InvalidValueError
from ...event_loop import off_loop
from ...store.diagnosis import diagnosed_by
from ...store.registry import Backend, StoreURL, closed_on_error
from ..calls import LARGE, TIMEOUT, bounded_number, recall_size, seconds
from ..sql.migrate import NEWEST, PARTITIONS, MigrationTarget, migrate
from ..sql.schema import COLUMNS, HEAD, VERSION_TABLE
from .errors import explain
from .row_security import WHOLE, protect_all
from .statements import PostgresStatements
from .store import PostgresStore

CONNECT_SECONDS = (2, 5)
"""Bounds of the connect timeout, which is half of a request's unless the URL sets it; the driver's minimum is two."""
LOCK_SHARE = 0.8
"""Share of the timeout that a write waits for locks, so that the server can still report it."""
MIGRATION_LOCK = 0x6D6E656D6963
"""Advisory lock of migrations: "mnemic" as a number."""


class PostgresOptions(Struct, frozen=True):
    url: str
    """The URL, without its password."""
    parameters: dict[str, Any]
    """Connection parameters of libpq."""
    schema: str | None = None
    pool_min: int = 1
    pool_max: int = 10
    timeout: float = TIMEOUT
    lock_timeout: float = LOCK_SHARE * TIMEOUT
    prepare: bool = True
    partitions: int = 0
    row_security: bool = False
    """Whether the database must confine each call to its scope."""
    recall: int = LARGE
    """Number of records from which a scope is searched by the database instead of in memory."""

    def __repr__(self) -> str:
        """Return only the URL: the parameters contain a password."""
        return f"Options({self.url!r})"

    @classmethod
    def of(cls, url: StoreURL) -> PostgresOptions:
        """Parse a URL; raises InvalidValueError for a bad option."""
        shown = str(url)
        if secret := next((name for name in url.options if name in ("password", "sslpassword")), None):
            raise InvalidValueError(
                f"{shown}: a password belongs before the '@', or into PGPASSWORD or a passfile, "
                f"not into the option {secret}"
            )
        ours = {name: value for name, value in url.options.items() if name in _PARSERS}
        found: dict[str, Any] = StoreURL(url.text, url.scheme, url.split, ours).take(**_PARSERS)
        timeout = found.get("timeout", TIMEOUT)
        settings = {name: found[name] for name in ("statement_timeout", "lock_timeout") if name in found}
        flags = [f"-c {name}={max(1, round(1000 * seconds))}" for name, seconds in settings.items()]
        if "schema" in found:
            flags.append(f'-c search_path="{found["schema"]}"')
        parameters = _libpq_parameters(url, timeout)
        if flags:
            # Only if necessary: some poolers refuse to pass settings on.
            parameters["options"] = " ".join([*filter(None, [parameters.get("options")]), *flags])
        found.pop("statement_timeout", None)
        found.setdefault("lock_timeout", LOCK_SHARE * timeout)
        found["pool_min"] = min(found.get("pool_min", 1), found.get("pool_max", 10))
        return cls(shown, parameters, **found)


def _libpq_parameters(url: StoreURL, timeout: float) -> dict[str, Any]:
    query = "&".join(part for part in url.split.query.split("&") if part and part.partition("=")[0] not in _PARSERS)
    _, _, rest = url.text.partition("://")
    text = f"postgresql://{rest.partition('?')[0]}" + (f"?{query}" if query else "")
    try:
        found = conninfo_to_dict(text)
    except UnicodeDecodeError:
        raise InvalidValueError(f"cannot read the store URL {url}: what it encodes with % is not UTF-8") from None
    except psycopg.ProgrammingError as error:
        # libpq quotes the part that it cannot parse, or everything.
        reason = re.sub(r'"[^"]*"', '"…"', str(error).strip())
        raise InvalidValueError(f"cannot read the store URL {url}: {reason}") from None
    least, most = CONNECT_SECONDS
    hosts = str(found.get("host") or "").count(",") + 1
    defaults = {
        "connect_timeout": str(max(least, min(most, round(timeout / 2 / hosts)))),
        # For data that is sent without waiting for an answer, such as the end of a connection.
        "tcp_user_timeout": str(round(1000 * timeout)),
        "application_name": "mnemic",
        "client_encoding": "utf8",  # the server reports what it cannot store; the driver would fail by itself
    }
    return {**defaults, **found}


def _schema_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text) or len(text.encode()) > 63:
        raise ValueError(text)
    return text


_PARSERS: dict[str, Callable[[str], object]] = {
    "schema": _schema_name,
    "pool_min": bounded_number(0, 1000),
    "pool_max": bounded_number(1, 1000),
    "timeout": seconds,
    "statement_timeout": seconds,
    "lock_timeout": seconds,
    "prepare": lambda text: {"on": True, "off": False}[text],
    "partitions": bounded_number(0, 1000),
    "recall": recall_size,
    "row_security": lambda text: {"on": True}[text],
}
"""Mnemic's own options, and their parsers."""


def migrate_database(options: PostgresOptions, target: str = HEAD) -> None:
    """Migrate the database to a revision, under an advisory lock, on a connection of its own."""
    begin = [f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})", f"SELECT set_config('mnemic.scope', '{WHOLE}', true)"]
    if name := options.schema:
        # Needs no privilege if the schema exists.
        create = f'CREATE SCHEMA "{name}"'
        begin.append(f"DO $$ BEGIN IF to_regnamespace('\"{name}\"') IS NULL THEN {create}; END IF; END $$")
    names = ", ".join(f"'{table}'" for table in (*COLUMNS, VERSION_TABLE))
    engine = MigrationTarget(
        "postgresql+psycopg://",
        f"SELECT name FROM unnest(ARRAY[{names}]) AS name WHERE to_regclass(name) IS NOT NULL",
        begin,
        {PARTITIONS: options.partitions},
    )
    try:
        with psycopg.connect(**options.parameters) as raw:
            migrate(raw, options.url, engine, target)
    except psycopg.Error as error:
        raise explain(error, options.url) from error


def protect_database(options: PostgresOptions) -> None:
    """Give all tables their policies, under the lock of migrations, on a connection of its own."""
    try:
        with psycopg.connect(**options.parameters) as raw:
            raw.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            protect_all(raw)
    except psycopg.Error as error:
        raise explain(error, options.url) from error


_statements = cache(PostgresStatements)


def new_store(options: PostgresOptions) -> PostgresStore:
    """Return a store that is not migrated and does not use the database's own index."""
    return PostgresStore(options, _statements())


async def open_postgres(url: StoreURL) -> PostgresStore:
    options = PostgresOptions.of(url)
    store = new_store(options)
    async with closed_on_error(store):
        if await store.revision() != HEAD:
            await off_loop(lambda: migrate_database(options))
        await _protect(store, options)
        await store.find_vector_index()
    return store


async def _protect(store: PostgresStore, options: PostgresOptions) -> None:
    if not await store.find_row_security() and options.row_security:
        await off_loop(lambda: protect_database(options))
        await store.find_row_security()


async def prepare(url: StoreURL) -> str:
    """Migrate the database, also if its revision says that it is not necessary; raises UnreadableStoreError.

    If the URL asks for policies, they are created, also as a role that bypasses them.
    """
    options = PostgresOptions.of(url)
    await off_loop(lambda: migrate_database(options))
    if options.row_security:
        await off_loop(lambda: protect_database(options))
    store = new_store(replace(options, row_security=False))
    try:
        await store.find_vector_index()
    finally:
        await store.close()
    return f"{NEWEST}, with row-level security" if options.row_security else NEWEST


async def _exists(url: StoreURL) -> bool:
    store = new_store(PostgresOptions.of(url))
    try:
        return await store.revision() is not None
    finally:
        await store.close()


BACKEND = Backend(open=open_postgres, prepare=prepare, exists=_exists, diagnose=diagnosed_by(__package__))
