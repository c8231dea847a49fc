"""Diagnoses a PostgreSQL database, in read-only transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from msgspec.structs import replace

from ...event_loop import off_loop
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL
from ..sql.diagnosis import TABLES, check_schema
from ..sql.schema import VERSION_TABLE
from . import row_security
from .errors import explain
from .opening import PostgresOptions, new_store

INDEXES = {
    "mnemic_streams_scope_kind": "ALTER TABLE mnemic_streams "
    "ADD CONSTRAINT mnemic_streams_scope_kind UNIQUE (scope, kind)",
    "mnemic_records_key": "ALTER TABLE mnemic_records ADD CONSTRAINT mnemic_records_key UNIQUE (stream_id, key)",
    "mnemic_records_meta": "CREATE INDEX mnemic_records_meta ON mnemic_records "
    "USING gin ((meta::jsonb) jsonb_path_ops) WITH (fastupdate = off) WHERE meta IS NOT NULL",
}
"""The indexes that are not primary keys, and what creates each."""
TYPES = {"name": 'TEXT COLLATE "C"', "bytes": "BYTEA", "end": "", "pairs": "jsonb_each_text(labels::jsonb)"}
DEAD_ROWS = 10_000
"""Number of dead rows from which a table is worth a vacuum, if they are more than half of the others."""

_OURS = "relname LIKE 'mnemic\\_%%' AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = %s::regclass)"


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a database; raises a StoreError if the server does not answer."""
    options = PostgresOptions.of(url)
    found = Diagnosis()

    def work() -> bool:
        try:
            with psycopg.connect(**options.parameters) as raw:
                return _check(raw, url, found)
        except psycopg.Error as error:
            raise explain(error, options.url) from error

    if await off_loop(work):
        found.store = store = new_store(replace(options, row_security=False))
        await store.find_row_security()
    return found


def _check(raw: Any, url: StoreURL, found: Diagnosis) -> bool:
    """Check settings, tables, indexes and extensions; return whether the store can be read."""

    def rows(statement: str, *values: Any) -> list[Any]:
        result: list[Any] = raw.execute(statement, values).fetchall()
        return result

    raw.read_only = True
    ((version, fsync, commit, standby),) = rows(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), "
        "pg_is_in_recovery()"
    )
    found.engine = f"PostgreSQL {version}"
    tables = {name for name in TABLES if rows("SELECT to_regclass(%s)", name) != [(None,)]}
    readable = False
    if tables:
        readable = _check_tables(rows, tables, found)
    else:
        found.no_store_yet(str(url))
    if fsync != "on":
        found.error("not_durable", f"fsync is {fsync}: a power cut damages the database", "ALTER SYSTEM SET fsync = on")
    if commit == "off":
        found.warn(
            "not_durable", "synchronous_commit is off: a crash loses the newest writes", "SET synchronous_commit = on"
        )
    if standby:
        found.error("standby", "the server is a standby, which takes no writes", "name the primary in the URL")
    vectors = rows("SELECT installed_version FROM pg_available_extensions WHERE name = 'vector'")
    found.facts["pgvector"] = vectors[0][0] if vectors else None
    if not vectors or (vectors[0][0] is None and tables):  # which the first write installs with the tables
        found.warn(
            "no_pgvector",
            "pgvector is not installed: scopes of any size are searched in the memory of your programs",
            "CREATE EXTENSION vector" if vectors else "install the package pgvector on the server",
        )
    for name, dead, live in rows(
        "SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relname = ANY(%s)", list(tables)
    ):
        if dead > max(DEAD_ROWS, live / 2):
            found.warn("bloat", f"{name} has {dead:,} dead rows beside {live:,} others", f"VACUUM (ANALYZE) {name}")
    return readable


def _check_tables(rows: Callable[..., list[Any]], tables: set[str], found: Diagnosis) -> bool:
    """Check revision, tables and indexes; return whether the store can be read."""
    revision = None
    if VERSION_TABLE in tables:
        revision = next((str(row[0]) for row in rows(f"SELECT version_num FROM {VERSION_TABLE}")), None)
    some = next(iter(tables))
    indexes = dict(
        rows(f"SELECT relname, indisvalid FROM pg_class JOIN pg_index ON oid = indexrelid WHERE {_OURS}", some)
    )
    readable = check_schema(found, revision, tables, INDEXES, indexes, TYPES)
    for name in (name for name, valid in indexes.items() if not valid):
        found.error("invalid_index", f"the index {name} is not valid", f"REINDEX INDEX CONCURRENTLY {name}")
    sizes = rows(
        f"SELECT sum(pg_total_relation_size(oid)), sum(pg_indexes_size(oid)) FROM pg_class WHERE {_OURS} "
        "AND relkind = 'r'",
        some,
    )
    if readable:
        _check_row_security(rows, found)
    found.facts |= {"bytes": int(sizes[0][0] or 0), "index_bytes": int(sizes[0][1] or 0)}
    return readable


def _check_row_security(rows: Callable[..., list[Any]], found: Diagnosis) -> None:
    """Check that policies, if there are any, are complete and apply to the role."""
    ((there, applies, role),) = rows(row_security.find.text)
    found.facts["row_security"] = ("on" if applies else "bypassed") if there else "off"
    if not there:
        return
    if not applies:
        found.warn(
            "row_security_bypassed",
            f"the tables have row-level security, which does not apply to the role {role}: it is a superuser, has "
            "BYPASSRLS, or owns tables without FORCE ROW LEVEL SECURITY",
            "connect as a role without SUPERUSER and BYPASSRLS, with row_security=on in the URL",
        )
    if open_tables := [name for name, _ in rows(row_security.OPEN_TABLES.replace("%", "%%"))]:
        found.error(
            "row_security_incomplete",
            f"without row-level security, though others have it: {', '.join(open_tables)}",
            "mnemic migrate, with row_security=on in the URL",
        )
