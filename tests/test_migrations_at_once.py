"""Migrations that are killed at each of their statements, and versions of Mnemic that use a store at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import killed_migration
import mnemic
from mnemic.backends.postgres.opening import PostgresOptions, migrate_database
from mnemic.backends.sql import migrate as migrating
from mnemic.backends.sql.schema import HEAD, VERSION_TABLE
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.cli import main
from mnemic.store.registry import StoreURL
from servers.stores import empty_store

NEXT = "9998"
"""The revision of a version that is still to come."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as found:
        yield found


def scripts(folder: Path, *statements: str) -> Path:
    """Return a folder with all migrations, and one more that runs these statements."""
    made = folder / "migrations"
    (made / "versions").mkdir(parents=True)
    for script in (migrating.SCRIPTS / "env.py", *(migrating.SCRIPTS / "versions").glob("0*.py")):
        (made / script.relative_to(migrating.SCRIPTS)).write_text(script.read_text())
    body = "".join(f"    op.execute({statement!r})\n" for statement in statements)
    head = f"from alembic import op\nrevision = '{NEXT}'\ndown_revision = '{HEAD}'\n"
    (made / "versions" / f"{NEXT}_next.py").write_text(f"{head}def upgrade():\n{body}")
    return made


def migrate(url: str, target: str) -> None:
    parsed = StoreURL.parse(url)
    if parsed.scheme == "sqlite":
        with closing(SqliteFile(parsed)) as file:
            file.migrate(target)
    else:
        migrate_database(PostgresOptions.of(parsed), target)


def query(url: str, statement: str) -> list[Any]:
    """Return the rows of a statement, which is committed."""
    parsed = StoreURL.parse(url)
    if parsed.scheme == "sqlite":
        with closing(SqliteFile(parsed)) as file:
            return file.use(lambda connection: connection.raw.execute(statement).fetchall())
    with psycopg.connect(url, autocommit=True) as raw:
        done = raw.execute(statement.encode())
        return done.fetchall() if done.description else []


class Killed:
    """A migration that is killed at each statement."""

    def __init__(self, url: str, scripts: Path, target: str) -> None:
        command = [sys.executable, killed_migration.__file__, url, str(scripts), target]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def each(self, check: Callable[[int], object]) -> int:
        """Call `check` after each kill with the number of the statement; return the number of kills."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        kills = 0
        for line in self._process.stdout:
            kills = int(line)
            check(kills)
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()
        return kills


def test_a_migration_killed_at_any_statement_loses_nothing_and_is_finished_later(url: str, tmp_path: Path) -> None:
    """In between, a process of the older version goes on writing."""
    made = scripts(
        tmp_path,
        "ALTER TABLE mnemic_records ADD COLUMN mood TEXT",
        "CREATE TABLE mnemic_moods (id BIGINT)",
        "UPDATE mnemic_records SET mood = 'calm'",
        "INSERT INTO mnemic_moods SELECT seq FROM mnemic_records",
        "CREATE INDEX mnemic_moods_id ON mnemic_moods (id)",
    )
    with mnemic.open(url, embedder=None) as old:
        chat = old.scope("acme").session("s")
        chat.add("user", "0")

        def check(kills: int) -> None:
            assert query(url, f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]
            chat.add("user", str(kills))
            assert [message.text for message in chat.messages()] == [str(n) for n in range(kills + 1)]

        kills = Killed(url, made, NEXT).each(check)
        assert kills >= 7
        assert query(url, f"SELECT version_num FROM {VERSION_TABLE}") == [(NEXT,)]
        assert query(url, "SELECT count(*) FROM mnemic_moods") == [(kills + 1,)]
        # What is added leaves a process of the older version at work.
        chat.add("user", "after the migration")
        assert len(chat.messages()) == kills + 2
    with pytest.raises(mnemic.NewerSchemaError, match=rf"{NEXT}.*newer version.*pip install -U mnemic"):
        mnemic.open(url)


def test_a_file_whose_creation_was_killed_at_any_statement_is_completed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    kills = Killed(url, migrating.SCRIPTS, HEAD).each(lambda _: None)
    assert kills >= 6
    with mnemic.open(url, embedder=None) as memory:
        memory.scope("acme").notes.write("plan", "tea")
        assert memory.scope("acme").notes.get("plan").value == "tea"


def test_a_process_whose_tables_a_newer_version_replaced_says_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scripts(tmp_path, "ALTER TABLE mnemic_records RENAME COLUMN weight TO heft")
    with mnemic.open(url, embedder=None) as old:
        chat = old.scope("acme").session("s")
        chat.add("user", "kept")
        with monkeypatch.context() as patch:
            patch.setattr(migrating, "SCRIPTS", made)
            migrate(url, NEXT)
        for call in (lambda: chat.add("user", "lost?"), chat.messages):
            with pytest.raises(mnemic.UnreadableStoreError, match=r"a newer version of Mnemic.*mnemic doctor"):
                call()
    assert query(url, "SELECT text FROM mnemic_records") == [("kept",)]


@pytest.mark.parametrize("table", ["mnemic_labels", "mnemic_derived", VERSION_TABLE])
def test_migrate_finds_a_missing_table(url: str, table: str) -> None:
    with mnemic.open(url, embedder=None) as memory:
        memory.scope("acme").notes.write("plan", "tea")
    query(url, f"DROP TABLE {table}")
    done = CliRunner().invoke(main, ["migrate", "--store", url])
    assert done.exit_code == 1
    assert f"but no table {table}; mnemic doctor tells what repairs it" in done.output
