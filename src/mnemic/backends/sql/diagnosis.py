"""Checks that the SQL back-ends share: the revision, and missing tables and indexes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...store.diagnosis import Diagnosis
from .migrate import revisions
from .schema import COLUMNS, HEAD, VERSION_TABLE

TABLES = (*COLUMNS, VERSION_TABLE)


def check_schema(
    found: Diagnosis, revision: str | None, tables: Collection[str], indexes: Mapping[str, str], have: Collection[str]
) -> bool:
    """Check the revision, tables and indexes; return whether the store can be read.

    `indexes` are the necessary ones with the statement that creates each, `have` the existing ones.
    """
    found.schema = revision
    missing = [name for name in TABLES if name not in tables]
    if revision is not None and revision not in revisions():
        found.error(
            "newer_schema",
            f"the schema {revision} is newer than {HEAD}, the newest that this version knows",
            "pip install -U mnemic",
        )
    elif missing:
        what = "a migration was interrupted" if revision is None else "tables were dropped, or a restore was incomplete"
        found.error(
            "half_migrated" if revision is None else "missing_table",
            f"{what}: there is no {', '.join(missing)}, but {len(TABLES) - len(missing)} of the {len(TABLES)} tables",
            "restore the newest backup",
        )
    elif revision != HEAD:
        found.warn("old_schema", f"the schema is {revision}; the newest is {HEAD}", "mnemic migrate")
    else:
        for name, statement in indexes.items():
            if name not in have:
                found.error("missing_index", f"the index {name} is missing, so that searches read all rows", statement)
        return True
    return False
