"""A process that migrates a store again and again, and is killed at each statement in turn.

    python killed_migration.py URL SCRIPTS TARGET

After each kill it prints the number of the statement and waits for a line; when a migration was not killed, it ends.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from mnemic.backends.postgres.opening import PostgresOptions, migrate_database
from mnemic.backends.sql import migrate as migrating
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.store.registry import StoreURL


def migrate(url: StoreURL, target: str, fatal: int) -> None:
    """Migrate a store, and kill this process before the statement with this number."""
    numbers = itertools.count(1)

    def count(*_: Any) -> None:
        if next(numbers) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)
    if url.scheme == "sqlite":
        SqliteFile(url).migrate(target)
    else:
        migrate_database(PostgresOptions.of(url), target)


def main(url: str, scripts: str, target: str) -> None:
    """Migrate until nothing kills it."""
    migrating.SCRIPTS = Path(scripts)
    for fatal in itertools.count(1):
        if (child := os.fork()) == 0:
            try:
                migrate(StoreURL.parse(url), target, fatal)
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != signal.SIGKILL:
            sys.exit(status)
        sys.stdout.write(f"{fatal}\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
