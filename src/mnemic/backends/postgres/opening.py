"""Opens PostgreSQL stores: the options of a URL (docs/backends.md lists them; others are libpq's), and migrations."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from ...errors import InvalidValueError
from ...event_loop import off_loop
from ...store.registry import Backend, StoreURL
from ..calls import TIMEOUT, seconds
from ..sql.migrate import PARTITIONS, Engine, migrate
from ..sql.schema import HEAD, VERSION_TABLE
from .errors import explain
from .statements import PostgresStatements
from .store import PostgresStore

Result = TypeVar("Result")

CONNECT_SECONDS = (2, 5)
"""Bounds of the connect timeout, which is half of a request's unless the URL sets it; the driver's minimum is two."""
LOCK_SHARE = 0.8
"""Share of the timeout that a write waits for locks, so that the server can still report it."""
MIGRATION_LOCK = 0x6D6E656D6963
"""Advisory lock of migrations: "mnemic" as a number."""
LARGE = 50_000
"""Scopes with at least this many records are searched by the database, unless the URL overrides it."""


class Options(Struct, frozen=True):
    """A database, and how to use it."""

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
    recall: int = LARGE
    """Number of records from which a scope is searched by the database instead of in memory."""

    def __repr__(self) -> str:
        """Return only the URL: the parameters contain a password."""
        return f"Options({self.url!r})"

    @classmethod
    def of(cls, url: StoreURL) -> Options:
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


def _number(text: str, least: int = 0) -> int:
    number = int(text)
    if not least <= number <= 1000:
        raise ValueError(text)
    return number


_PARSERS: dict[str, Callable[[str], object]] = {
    "schema": _schema_name,
    "pool_min": _number,
    "pool_max": lambda text: _number(text, 1),
    "timeout": seconds,
    "statement_timeout": seconds,
    "lock_timeout": seconds,
    "prepare": lambda text: {"on": True, "off": False}[text],
    "partitions": _number,
    "recall": lambda text: {"server": 0, "auto": LARGE, "memory": 2**62}[text],
}
"""Mnemic's own options, and their parsers."""


class PostgresDatabase:
    """The database for migrations: a connection for each, and an advisory lock."""

    def __init__(self, options: Options) -> None:
        self.url: str = options.url
        self._parameters = options.parameters
        begin = [f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"]
        if options.schema is not None:
            begin.append(_create_schema(options.schema))
        self.engine: Engine = Engine(
            "postgresql+psycopg://",
            f"SELECT 1 WHERE to_regclass('{VERSION_TABLE}') IS NOT NULL",
            begin,
            {PARTITIONS: options.partitions},
        )

    def use(self, work: Callable[[MigrationConnection], Result]) -> Result:
        """Run `work` with a connection; maps driver errors."""
        try:
            with psycopg.connect(**self._parameters) as raw:
                return work(MigrationConnection(raw))
        except psycopg.Error as error:
            raise explain(error, self.url) from error


class MigrationConnection(Struct, frozen=True):
    """A connection for a migration."""

    raw: Any


def _create_schema(name: str) -> str:
    """Return SQL that creates a missing schema, and needs no privilege if it exists."""
    return f'DO $$ BEGIN IF to_regnamespace(\'"{name}"\') IS NULL THEN CREATE SCHEMA "{name}"; END IF; END $$'


_statements = cache(PostgresStatements)


async def open_postgres(url: StoreURL) -> PostgresStore:
    """Connect, and migrate the database to the newest schema."""
    options = Options.of(url)
    store = PostgresStore(options, _statements())
    try:
        if await store.revision() != HEAD:
            await off_loop(lambda: migrate(PostgresDatabase(options)))
        await store.find_vector_index()
    except BaseException:
        await store.close()
        raise
    return store


async def _exists(url: StoreURL) -> bool:
    store = PostgresStore(Options.of(url), _statements())
    try:
        return await store.revision() is not None
    finally:
        await store.close()


BACKEND = Backend(open=open_postgres, exists=_exists)
