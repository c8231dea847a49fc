"""Row-level security: policies by which the database itself confines each transaction to a scope.

A transaction names its scope in the setting `mnemic.scope`, for itself alone; one that names none sees no row. A path
never begins with a slash, so that a single one can stand for the whole store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import StorePermissionError
from ...store.confinement import confinement
from ..sql.schema import STREAMS
from ..sql.statements import Prepared
from .statements import prepared

if TYPE_CHECKING:
    from .opening import PostgresOptions

POLICY = "mnemic_scope"
WHOLE = "/"
"""The setting of a transaction that may use the whole store."""

# In a subquery of its own, so that it is evaluated once and not for each row.
_SCOPE = "(SELECT nullif(current_setting('mnemic.scope', true), ''))"
_IS_WHOLE = f"{_SCOPE} = '{WHOLE}'"

TABLES = (
    "SELECT c.relname, bool_or(a.attname = 'scope') FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
    f"WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '{STREAMS}'::regclass) "
    "AND c.relname LIKE 'mnemic\\_%' AND c.relkind IN ('r', 'p') AND a.attname IN ('scope', 'stream_id') "
    "AND NOT a.attisdropped"
)
"""Selects the tables with data of scopes, and whether each has their paths."""
OPEN_TABLES = (
    f"{TABLES} AND NOT (c.relrowsecurity AND c.relforcerowsecurity AND EXISTS (SELECT FROM pg_policy p "
    f"WHERE p.polrelid = c.oid AND p.polname = '{POLICY}')) GROUP BY c.relname ORDER BY c.relname"
)
"""Selects those of them that are not protected."""

find: Prepared = prepared(
    f"SELECT relrowsecurity, row_security_active(oid), current_user FROM pg_class WHERE oid = '{STREAMS}'\\:\\:regclass"
)
"""Selects whether the database has the policies, whether they apply to the role, and its name."""
_set_scope: Prepared = prepared("SELECT set_config('mnemic.scope', CAST(:scope AS text), true)")


class RowSecurity:
    """Whether policies are in force, and the statement with which a transaction begins then."""

    in_force: bool = False

    def learn(self, options: PostgresOptions, there: bool, applies: bool, role: str) -> bool:
        """Take what `find` selects; return whether the database has policies.

        Raises StorePermissionError if they were asked for in the URL and do not apply to the role.
        """
        self.in_force = applies
        if there and not applies and options.row_security:
            raise StorePermissionError(
                f"{options.url}: row-level security does not apply to the role {role!r}: connect as one without "
                "SUPERUSER and BYPASSRLS, or open the store without row_security=on"
            )
        return there

    def first(self) -> Sequence[tuple[Prepared, dict[str, Any]]]:
        """Return the statements that begin a transaction of the current call."""
        return [(_set_scope, {"scope": confinement().path or WHOLE})]


def protect(table: str, *, has_scope: bool) -> Iterator[str]:
    """Yield the statements that give a table its policy; also its owner is subject to it."""
    if has_scope:
        test = f"scope = {_SCOPE} OR starts_with(scope, {_SCOPE} || '/')"
    else:
        # The policy of the streams applies within. For EXISTS, PostgreSQL may read all streams into a hash table.
        test = f"(SELECT true FROM {STREAMS} s WHERE s.id = {table}.stream_id)"
    yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
    yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
    yield f"DROP POLICY IF EXISTS {POLICY} ON {table}"
    yield f"CREATE POLICY {POLICY} ON {table} USING ({_IS_WHOLE} OR {test})"


def protect_all(raw: Any) -> None:
    """Protect all tables that are not, in one transaction, on a connection of the driver."""
    with raw.transaction():
        tables: Iterable[tuple[str, bool]] = raw.execute(OPEN_TABLES).fetchall()
        for table, has_scope in tables:
            for statement in protect(table, has_scope=has_scope):
                raw.execute(statement)
