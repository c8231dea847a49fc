"""A new field of a record touches three files: the record, the schema of SQL databases, and a migration."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import mnemic

PACKAGE = Path(mnemic.__file__).parent

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("mnemic_records", sa.Column("mood", sa.Text))
"""

PROGRAM = """
import asyncio, sys
from dict_engine import DictEngine
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.backends.memory import MemoryStore
from mnemic.layers.encryption import EncryptLayer
from mnemic.records import Record, ScopePath
from mnemic.backends.sqlite.store import open_sqlite
from mnemic.store.registry import StoreURL
from mnemic.store.protocol import Store
from mnemic.store.query import Put, Scan, Write

SCOPE = ScopePath("acme/alice")


async def keeps_the_field(store: Store) -> None:
    plain, glad = Record(SCOPE, "note", "plain"), Record(SCOPE, "note", "a", text="tea", mood="glad")
    await store.write(Write((Put(plain), Put(glad)), "once"))
    await store.write(Write((Put(Record(SCOPE, "note", "a", text="tea", mood="calm")),)))
    (found,) = await store.read([glad.ref])
    page = await store.scan(Scan(scope=SCOPE, kinds=("note",)))
    assert [found.mood, *(record.mood for record in page.items)] == ["calm", None, "calm"], store
    await store.close()


async def main() -> None:
    sqlite = await open_sqlite(StoreURL.parse(f"sqlite:///{sys.argv[1]}/new.db"))
    for store in (MemoryStore(), sqlite, KeyValueStore(DictEngine()), EncryptLayer(MemoryStore(), bytes(32))):
        await keeps_the_field(store)


asyncio.run(main())
"""


def test_a_new_field_of_a_record_touches_three_files(tmp_path: Path) -> None:
    package = tmp_path / "src" / "mnemic"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    sql = package / "backends" / "sql"
    edits = {
        package / "records.py": (
            "    derived: dict[str, bytes]",
            "    mood: str | None = None\n    derived: dict[str, bytes]",
        ),
        sql / "schema.py": ('"valid_from": "BIGINT NULL", ', '"valid_from": "BIGINT NULL", "mood": "TEXT NULL", '),
    }
    for path, (before, after) in edits.items():
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, after).replace('HEAD = "0001"', 'HEAD = "0002"'))
    migration = sql / "migrations" / "versions" / "0002_mood.py"
    migration.write_text(MIGRATION)
    assert len({*edits, migration}) == 3
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={"PYTHONPATH": f"{package.parent}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
