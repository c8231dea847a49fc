"""Diagnoses an SQLite file without changing it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path
from urllib.parse import quote

from ...errors import NotFoundError, StoreError
from ...event_loop import off_loop
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL
from ..sql.diagnosis import TABLES, check_schema
from ..sql.schema import VERSION_TABLE
from .client import DRIVER_ERRORS, SMALLEST, Connection, SqliteFile
from .store import SqliteStore

MOUNTS = Path("/proc/mounts")
NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "ncpfs", "nfs", "smb")
"""Types of network file systems, by how their names begin; their locks do not work, or not always."""
FREE_BYTES = 100_000_000
"""Free space on the disk below which writes may soon fail."""
MAGIC = b"SQLite format 3\0"
WAL_HEADER = b"\x02\x02"
"""The bytes 18 and 19 of a file in WAL mode."""
WAL_BYTES = 100_000_000
"""Size from which the write-ahead log is too large: it is truncated at about 4 MB, unless readers prevent it."""
AUTOMATIC = (
    "sqlite_autoindex_mnemic_streams_1",
    "sqlite_autoindex_mnemic_records_1",
    "sqlite_autoindex_mnemic_records_2",
)
"""The indexes that SQLite makes for keys and unique columns."""


class ReadOnlyFile(SqliteFile):
    """A file whose connections cannot write, and create no files beside it."""

    def _connect(self) -> Connection:
        status = self.path.stat()
        self._identity = status.st_dev, status.st_ino
        # Without a log nobody has the file open, and nothing has to be locked.
        mode = "mode=ro" if self.log.exists() else "mode=ro&immutable=1"
        path = f"file:{quote(str(self.path))}?{mode}"
        try:
            raw = sqlite3.connect(
                path, uri=True, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
            )
        except DRIVER_ERRORS as error:
            raise self.explain(error) from error
        return Connection(raw)

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.path.with_name(f"{self.path.name}-wal")


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a file; raises NotFoundError if there is none."""
    file = ReadOnlyFile(url)
    if not file.exists():
        raise NotFoundError(f"there is no store at {url}")
    found = Diagnosis(engine=f"SQLite {sqlite3.sqlite_version}")
    await off_loop(lambda: _check_place(file, found))
    if all(problem.code != "not_a_database" for problem in found.problems):
        try:
            readable = await off_loop(lambda: file.use(lambda connection: _check_content(connection.raw, file, found)))
        except StoreError as error:
            _corrupt(found, file, str(error))
            readable = False
        if readable:
            found.store = SqliteStore(file)
            return found
    file.close()
    return found


def _check_place(file: SqliteFile, found: Diagnosis) -> None:
    """Check the file and its folder, disk and file system."""
    path, log = file.path, file.path.with_name(f"{file.path.name}-wal")
    status = path.stat()
    found.facts |= {"file": str(path), "bytes": status.st_size, "wal_bytes": log.stat().st_size if log.exists() else 0}
    header = b""
    if path.is_file() and os.access(path, os.R_OK):
        # Closing the file releases the locks of this process, which has none: a diagnosis has a process of its own.
        with path.open("rb") as content:
            header = content.read(20)
    if not path.is_file() or (header and (not header.startswith(MAGIC) or status.st_size < SMALLEST)):
        found.error("not_a_database", "the file is not an SQLite database", "name another file, or restore a backup")
    elif header and header[18:20] != WAL_HEADER:
        found.error(
            "journal_mode",
            "another program has changed the journal mode, so that readers and writers block each other",
            f"sqlite3 {path} 'PRAGMA journal_mode = WAL'",
        )
    for place, flags in ((path, os.R_OK | os.W_OK), (path.parent, os.W_OK)):
        if not os.access(place, flags):
            found.error(
                "read_only", f"this user may not write to {place}", f"chown or chmod {place}, or run as its owner"
            )
    if found.facts["wal_bytes"] > WAL_BYTES:
        found.warn(
            "large_log",
            f"the write-ahead log has {found.facts['wal_bytes']:,} bytes: a reader that never ends keeps it",
            f"restart programs that read the store, then: sqlite3 {path} 'PRAGMA wal_checkpoint(TRUNCATE)'",
        )
    free = shutil.disk_usage(path.parent).free
    found.facts["disk_free_bytes"] = free
    if free < FREE_BYTES:
        found.error("disk_full", f"the disk has only {free:,} bytes left", f"free space on the disk of {path.parent}")
    kind = _file_system(path)
    if kind.startswith(NETWORK):
        found.error(
            "network_file_system",
            f"the file is on a network file system ({kind}), where SQLite's locks and write-ahead log do not work",
            f"stop all programs that use it, and move {path.name} to a local disk; or: mnemic copy to a server",
        )


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path; empty if it is not known."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    known = {mount[1].replace("\\040", " "): mount[2] for mount in mounts if len(mount) > 2}
    return next((known[str(folder)] for folder in path.resolve().parents if str(folder) in known), "")


def _check_content(raw: sqlite3.Connection, file: SqliteFile, found: Diagnosis) -> bool:
    """Check tables, pages and settings; return whether the store can be read."""
    names = {kind: set[str]() for kind in ("table", "index")}
    for kind, name in raw.execute("SELECT type, name FROM sqlite_master"):
        names.setdefault(kind, set()).add(name)
    if not names["table"]:
        text = "the database is empty: it was interrupted before its tables were created, and nothing was stored"
        found.error("half_migrated", text, "mnemic migrate")
        return False
    if not names["table"] & set(TABLES):
        found.error("not_a_store", "the database has no tables of Mnemic", "name another file")
        return False
    mode = file.path.stat().st_mode & 0o777
    if sys.platform != "win32" and mode & 0o077:
        text = f"other users of this machine can read or change the file (mode {mode:o})"
        found.warn("permissions", text, f"chmod 600 {file.path}")
    revision = None
    if VERSION_TABLE in names["table"]:
        revision = next((str(row[0]) for row in raw.execute(f"SELECT version_num FROM {VERSION_TABLE}")), None)
    recover = f"sqlite3 {file.path} .recover | sqlite3 recovered.db"
    readable = check_schema(found, revision, names["table"], dict.fromkeys(AUTOMATIC, recover), names["index"])
    wrong = [row[0] for row in raw.execute("PRAGMA integrity_check(20)")]
    if wrong != ["ok"]:
        _corrupt(found, file, wrong[0] if len(wrong) == 1 else f"{wrong[0]}, and {len(wrong) - 1} more")
        readable = False
    if readable:
        found.facts["index_bytes"] = int(raw.execute("SELECT total(length(value)) FROM mnemic_derived").fetchone()[0])
    pages = {name: raw.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count")}
    found.facts["unused_bytes"] = pages["page_size"] * pages["freelist_count"]
    return readable


def _corrupt(found: Diagnosis, file: SqliteFile, what: str) -> None:
    found.error(
        "corrupt",
        f"the database is damaged: {' '.join(what.split())}",
        f"restore the newest backup, or save what is readable: sqlite3 {file.path} .recover | sqlite3 recovered.db",
    )
