"""What older versions wrote opens, what newer ones wrote says so, and a failed migration changes nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

import mnemic
from mnemic.backends.postgres.opening import PostgresOptions, migrate_database
from mnemic.backends.sql import migrate as migrating
from mnemic.backends.sql.migrate import revisions
from mnemic.backends.sql.schema import HEAD, VERSION_TABLE, metadata
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.store.registry import StoreURL
from servers import postgres


def file(path: Path) -> SqliteFile:
    return SqliteFile(StoreURL.parse(f"sqlite:///{path}"))


def test_the_newest_revision_is_the_one_that_the_code_expects() -> None:
    assert revisions()[-1] == HEAD


def test_the_migrations_give_the_schema_that_the_code_expects(tmp_path: Path) -> None:
    opened = file(tmp_path / "a.db")
    opened.migrate()
    opened.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "include_name": lambda *_: True}
        )
        assert compare_metadata(context, metadata()) == []
    engine.dispose()


@pytest.mark.parametrize("revision", revisions())
def test_a_file_of_any_earlier_schema_opens_with_all_its_data(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "old.db"
    opened = file(path)
    opened.migrate(revision)
    opened.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute(
            "INSERT INTO mnemic_streams "
            "(id, scope, kind, last_seq, version, count, weight, created, updated) "
            "VALUES (1, 'acme/alice/s', 'message', 1, 1, 1, 5, 0, 0)"
        )
        old.execute(
            "INSERT INTO mnemic_records "
            "(stream_id, seq, key, version, text, data, weight, pinned, created, updated) "
            "VALUES (1, 1, 'k', 1, 'from long ago', '{\"role\":\"user\"}', 5, 0, 0, 0)"
        )
    with mnemic.open(f"sqlite:///{path}") as memory:
        chat = memory.scope("acme", "alice").session("s")
        chat.add("user", "from now")
        assert [message.text for message in chat.messages()] == ["from long ago", "from now"]
        assert memory.scope("acme").recall("long ago")[0].record.text == "from long ago"
    with closing(sqlite3.connect(path, isolation_level=None)) as new:
        assert new.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(HEAD,)]


def scripts_with_one_that_fails(tmp_path: Path) -> Path:
    scripts = tmp_path / "migrations"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text((migrating.SCRIPTS / "env.py").read_text())
    for script in sorted((migrating.SCRIPTS / "versions").glob("0*.py")):
        (scripts / "versions" / script.name).write_text(script.read_text())
    (scripts / "versions" / "9998_breaks.py").write_text(
        "from alembic import op\nimport sqlalchemy as sa\n"
        f"revision = '9998'\ndown_revision = '{HEAD}'\n"
        "def upgrade():\n"
        "    op.create_table('mnemic_half', sa.Column('id', sa.Integer))\n"
        "    op.execute('DELETE FROM mnemic_records')\n"
        "    op.execute('SELECT * FROM no_such_table')\n"
    )
    return scripts


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database in PostgreSQL."""
    with postgres.empty_database(tmp_path) as url:
        yield url


def options(url: str) -> PostgresOptions:
    return PostgresOptions.of(StoreURL.parse(url))


def test_postgresql_gets_the_schema_that_the_code_expects(server_url: str) -> None:
    migrate_database(options(server_url))
    engine = create_engine(server_url.replace("postgresql:", "postgresql+psycopg:"))

    def expected(_item: object, name: str | None, *_: object) -> bool:
        return name != "mnemic_records_meta"  # an index of an expression, which Alembic cannot compare

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "include_object": expected}
        )
        assert compare_metadata(context, metadata()) == []
    engine.dispose()


@pytest.mark.parametrize("revision", revisions())
def test_postgresql_of_any_earlier_schema_opens_with_all_its_data(server_url: str, revision: str) -> None:
    migrate_database(options(server_url), revision)
    with closing(psycopg.connect(server_url, autocommit=True)) as old:
        old.execute(
            "INSERT INTO mnemic_streams (scope, kind, last_seq, version, count, weight, created, updated) "
            "VALUES ('acme/alice/s', 'message', 1, 1, 1, 5, 0, 0)"
        )
        old.execute(
            "INSERT INTO mnemic_records "
            "(stream_id, seq, key, version, text, data, weight, pinned, created, updated) "
            "VALUES (1, 1, 'k', 1, 'from long ago', '{\"role\":\"user\"}', 5, false, 0, 0)"
        )
    with mnemic.open(server_url) as memory:
        chat = memory.scope("acme", "alice").session("s")
        chat.add("user", "from now")
        assert [message.text for message in chat.messages()] == ["from long ago", "from now"]
    with closing(psycopg.connect(server_url)) as new:
        assert new.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(HEAD,)]


def test_a_migration_of_postgresql_that_fails_leaves_it_as_it_was(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mnemic.open(server_url) as memory:
        memory.scope("x").remember("kept")
    monkeypatch.setattr(migrating, "SCRIPTS", scripts_with_one_that_fails(tmp_path))
    with pytest.raises(mnemic.StoreError, match="no_such_table"):
        migrate_database(options(server_url), "9998")
    monkeypatch.undo()
    with mnemic.open(server_url) as memory:
        assert [record.text for record in memory.scope("x").memories.list()] == ["kept"]
    with closing(psycopg.connect(server_url)) as raw:
        assert raw.execute("SELECT to_regclass('mnemic_half')").fetchone() == (None,)


def test_a_file_of_a_newer_version_says_so_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").remember("kept")
    with closing(sqlite3.connect(path, isolation_level=None)) as future:
        future.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(mnemic.NewerSchemaError, match=r"9999.*newer version.*pip install -U mnemic"):
        mnemic.open(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as future:
        future.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{HEAD}'")
    with mnemic.open(f"sqlite:///{path}") as memory:
        assert [record.text for record in memory.scope("x").memories.list()] == ["kept"]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{path}") as memory:
        memory.scope("x").remember("kept")
    monkeypatch.setattr(migrating, "SCRIPTS", scripts_with_one_that_fails(tmp_path))
    opened = file(path)
    with pytest.raises(mnemic.StoreError, match="no_such_table"):
        opened.migrate("9998")
    opened.close()
    monkeypatch.undo()
    with mnemic.open(f"sqlite:///{path}") as memory:
        assert [record.text for record in memory.scope("x").memories.list()] == ["kept"]
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'mnemic_half'").fetchone() == (0,)


def test_alembic_is_loaded_only_when_a_migration_is_due(tmp_path: Path) -> None:
    program = (
        "import sys, mnemic\n"
        "memory = mnemic.open(sys.argv[1])\n"
        "memory.scope('x').remember('y')\n"
        "print('alembic' in sys.modules, 'asyncio' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'a.db'}"]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert [run[0] for run in runs] == ["True", "False"]
