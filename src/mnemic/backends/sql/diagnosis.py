"""Checks that the SQL back-ends share: the revision, and missing tables and indexes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ...checks import shown
from ...store.diagnosis import Diagnosis
from .migrate import revisions
from .schema import COLUMNS, DERIVED, HEAD, LABELS, VERSION_TABLE

TABLES = (*COLUMNS, VERSION_TABLE)
_REBUILT = {
    LABELS: f"CREATE TABLE {LABELS} (stream_id BIGINT NOT NULL, name %(name)s NOT NULL, value %(name)s NOT NULL, "
    "seq BIGINT NOT NULL, PRIMARY KEY (stream_id, name, value, seq))%(end)s; "
    f"INSERT INTO {LABELS} SELECT stream_id, pairs.key, pairs.value, seq FROM mnemic_records, %(pairs)s AS pairs",
    DERIVED: f"CREATE TABLE {DERIVED} (stream_id BIGINT NOT NULL, seq BIGINT NOT NULL, name %(name)s NOT NULL, "
    "version BIGINT NOT NULL, value %(bytes)s NOT NULL, PRIMARY KEY (stream_id, seq, name))%(end)s",
    VERSION_TABLE: f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
}
"""Statements that create the tables which can be made again from the others."""
RESTORE = "restore the newest backup"


def check_schema(
    found: Diagnosis,
    revision: str | None,
    tables: Collection[str],
    indexes: Mapping[str, str],
    have: Collection[str],
    types: Mapping[str, str],
    typed: Callable[[str], str] = str,
) -> bool:
    """Check the revision, tables and indexes; return whether the store can be read.

    `indexes` are the necessary ones with the statement that creates each, `have` the existing ones. `types` are the
    database's words in statements that create a table; `typed` returns what a user types to run statements.
    """
    found.schema = revision
    missing = [name for name in TABLES if name not in tables]
    if revision is not None and revision not in revisions():
        newer = revision.isdecimal() and int(revision) > int(HEAD)
        found.error(
            "newer_schema" if newer else "unknown_schema",
            f"the schema {revision} is newer than {HEAD}, the newest that this version knows"
            if newer
            else f"the schema {shown(revision)} is none that Mnemic has ever had; the newest is {HEAD}",
            "pip install -U mnemic" if newer else RESTORE,
        )
    elif missing or revision is None:
        what = "tables were dropped, or a restore was incomplete"
        if revision is None:
            what = f"a migration or a restore was interrupted: {VERSION_TABLE} names no revision"
        if missing:
            what += f"; there is no {', '.join(missing)}, but {len(TABLES) - len(missing)} of the {len(TABLES)} tables"
        again = [_REBUILT.get(name, "") % types for name in missing]
        if revision is None:
            again.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')")
        # Which of several revisions it was, nobody can tell.
        known = all(again) and (revision is not None or len(revisions()) == 1)
        code = "half_migrated" if revision is None else "missing_table"
        found.error(code, what, typed("; ".join(again)) if known else RESTORE)
    elif revision != HEAD:
        found.warn("old_schema", f"the schema is {revision}; the newest is {HEAD}", "mnemic migrate")
    else:
        for name in (name for name in indexes if name not in have):
            effect = "searches read all rows"
            if "UNIQUE" in indexes[name]:
                effect += ", and nothing prevents that two rows have the same key"
            found.error("missing_index", f"the index {name} is missing: {effect}", typed(indexes[name]))
        return True
    return False
