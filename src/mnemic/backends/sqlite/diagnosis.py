"""Diagnoses an SQLite file without changing it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
from pathlib import Path
from shlex import quote as quoted
from urllib.parse import quote

from ...errors import StoreBusyError, StoreError, StorePermissionError, UnreadableStoreError
from ...event_loop import off_loop
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL
from ..sql.diagnosis import TABLES, check_schema
from ..sql.schema import VERSION_TABLE
from .client import DRIVER_ERRORS, SMALLEST, SqliteConnection, SqliteFile
from .pages import log_damage
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
UNIQUE = {
    "mnemic_streams_scope_kind": ("mnemic_streams", "scope, kind"),
    "mnemic_records_seq": ("mnemic_records", "stream_id, seq"),
    "mnemic_records_key": ("mnemic_records", "stream_id, key"),
    "mnemic_labels_key": ("mnemic_labels", "stream_id, name, value, seq"),
    "mnemic_derived_key": ("mnemic_derived", "stream_id, seq, name"),
}
"""The columns that must be unique, by a name for their index: SQLite itself names those that it makes for a table."""
TYPES = {"name": "TEXT", "bytes": "BLOB", "end": " WITHOUT ROWID", "pairs": "json_each(labels)"}
FOREIGN = ("not_a_database", "not_a_store")
"""Problems that are the only ones: a file that is not Mnemic's is nothing to give advice on."""
DETAILS = 3
"""How many of the errors in pages are shown."""


class ReadOnlyFile(SqliteFile):
    """A file whose connections cannot write, and create no files beside it."""

    def _connect(self) -> SqliteConnection:
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
        return SqliteConnection(raw)

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.path.with_name(f"{self.path.name}-wal")


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a file."""
    file = ReadOnlyFile(url)
    found = Diagnosis(engine=f"SQLite {sqlite3.sqlite_version}")
    readable = False
    # A damaged log comes first: opening the store cuts it off.
    if await off_loop(lambda: _check_file(file, found) and _check_log(file, found)):
        await off_loop(lambda: _check_place(file, found))
        try:
            readable = await off_loop(lambda: file.use(lambda connection: _check_content(connection.raw, file, found)))
        except StorePermissionError as error:
            found.error("no_permission", str(error), _allow(file.path.parent, "rwx"))
        except StoreBusyError as error:
            found.error("busy", str(error), "end the program that holds it, then try again")
        except UnreadableStoreError as error:
            _corrupt(found, file, str(error.__cause__ or error))
        except StoreError as error:
            found.error("unreadable", str(error), "check the disk; then restore the newest backup")
    found.problems = [one for one in found.problems if one.code in FOREIGN] or found.problems
    if readable:
        found.store = SqliteStore(file)
    else:
        file.close()
    return found


def _check_file(file: ReadOnlyFile, found: Diagnosis) -> bool:
    """Check that the file is there, may be read, and is a database; return whether it is."""
    path = file.path
    found.facts["file"] = str(path)
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size:
            # Closing the file releases the locks of this process, which has none: a diagnosis has its own process.
            with path.open("rb") as content:
                header = content.read(len(MAGIC))
            if header == MAGIC and file.log.exists():
                file.log.open("rb").close()
    except PermissionError as error:
        folder = next((one for one in reversed(path.parents) if not os.access(one, os.X_OK)), None)
        if folder is not None:
            found.error("no_permission", f"this user may not enter {folder}", _allow(folder, "rwx"))
        else:
            closed = Path(error.filename)
            found.error("no_permission", f"this user may not read {closed}", _allow(closed, "rw"))
        return False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        found.error("no_store", f"there is no store at {file.url}: {why}", "check the path")
        return False
    found.facts["bytes"] = status.st_size
    if stat.S_ISDIR(status.st_mode):
        repair = f"name a file in it: --store {quoted(str(path / 'memory.db'))}"
        found.error("not_a_database", f"{path} is a folder, not a database", repair)
    elif not stat.S_ISREG(status.st_mode):
        found.error("not_a_database", f"{path} is no regular file", "name another file")
    elif not status.st_size:
        found.error("no_store", f"there is no store at {file.url}: the file is empty", "check the path")
    elif header != MAGIC or status.st_size < SMALLEST:
        found.error("not_a_database", "the file is not an SQLite database", "name another file, or restore a backup")
    else:
        return True
    return False


def _check_log(file: ReadOnlyFile, found: Diagnosis) -> bool:
    """Check the write-ahead log, which SQLite uses up to its damage without a word; return whether it is whole."""
    damage = log_damage(file.path)
    if damage is not None:
        found.error(
            "damaged_log",
            f"{damage}: the next program that opens the store deletes what was written after that",
            "do not open the store; stop all programs that use it, and restore the newest backup; without one, copy "
            f"the file and its log to a safe place, and save what was written before the damage: {_salvage(file)}",
        )
    return damage is None


def _allow(place: Path, rights: str) -> str:
    """Return the command that gives this user rights to a file or folder."""
    if not hasattr(os, "geteuid") or place.stat().st_uid == os.geteuid():
        return f"chmod u+{rights} {quoted(str(place))}"
    return f'run as its owner, or: sudo chown "$(id -un)" {quoted(str(place))}'


def _check_place(file: ReadOnlyFile, found: Diagnosis) -> None:
    """Check the file's header, folder, disk and file system."""
    path, log = file.path, file.log
    found.facts["wal_bytes"] = log.stat().st_size if log.exists() else 0
    with path.open("rb") as content:
        header = content.read(20)
    if header[18:20] != WAL_HEADER:
        found.error(
            "journal_mode",
            "another program has changed the journal mode, so that readers and writers block each other",
            _typed(path, "PRAGMA journal_mode = WAL"),
        )
    for place, flags, rights in ((path, os.R_OK | os.W_OK, "rw"), (path.parent, os.W_OK, "rwx")):
        if not os.access(place, flags):
            found.error("read_only", f"this user may not write to {place}", _allow(place, rights))
    if found.facts["wal_bytes"] > WAL_BYTES:
        found.warn(
            "large_log",
            f"the write-ahead log has {found.facts['wal_bytes']:,} bytes: a reader that never ends keeps it",
            f"restart programs that read the store, then: {_typed(path, 'PRAGMA wal_checkpoint(TRUNCATE)')}",
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
        if raw.execute("PRAGMA schema_version").fetchone()[0]:
            text = "the database has no tables, but once had some: they were dropped"
            found.error("not_a_store", text, "name another file, or restore the newest backup")
        else:
            text = "the database is empty: it was interrupted before its tables were created, and nothing was stored"
            found.error("half_migrated", text, f"mnemic migrate --store {quoted(file.url)}")
        return False
    if not names["table"] & set(TABLES):
        found.error("not_a_store", "the database has no tables of Mnemic", "name another file")
        return False
    mode = file.path.stat().st_mode & 0o777
    if sys.platform != "win32" and mode & 0o077:
        text = f"other users of this machine can read or change the file (mode {mode:o})"
        found.warn("permissions", text, f"chmod 600 {quoted(str(file.path))}")
    revision = None
    if VERSION_TABLE in names["table"]:
        revision = next((str(row[0]) for row in raw.execute(f"SELECT version_num FROM {VERSION_TABLE}")), None)
    indexes = {name: f"CREATE UNIQUE INDEX {name} ON {table} ({columns})" for name, (table, columns) in UNIQUE.items()}
    have = [name for name, (table, columns) in UNIQUE.items() if columns in _unique_columns(raw, table)]
    readable = check_schema(
        found, revision, names["table"], indexes, have, TYPES, lambda statements: _typed(file.path, statements)
    )
    wrong = [line for row in raw.execute("PRAGMA integrity_check(20)") for line in row[0].splitlines()]
    if wrong != ["ok"]:
        _corrupt(found, file, *(line for line in wrong if not line.startswith("***")))
        readable = False
    if readable:
        found.facts["index_bytes"] = int(raw.execute("SELECT total(length(value)) FROM mnemic_derived").fetchone()[0])
    pages = {name: raw.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count")}
    found.facts["unused_bytes"] = pages["page_size"] * pages["freelist_count"]
    return readable


def _unique_columns(raw: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of each unique index of a table."""
    names = [row[1] for row in raw.execute(f"PRAGMA index_list({table})") if row[2]]
    return [
        ", ".join(row[2] or "" for row in raw.execute("SELECT * FROM pragma_index_info(?)", [name])) for name in names
    ]


def _typed(path: Path, statements: str) -> str:
    return f"sqlite3 {quoted(str(path))} {quoted(statements)}"


def _corrupt(found: Diagnosis, file: SqliteFile, *errors: str) -> None:
    more = f", and {len(errors) - DETAILS} more" if len(errors) > DETAILS else ""
    found.error(
        "corrupt",
        f"the database is damaged: {'; '.join(errors[:DETAILS])[:400]}{more}",
        f"restore the newest backup; without one, save what can be read: {_salvage(file)}",
    )


def _salvage(file: SqliteFile) -> str:
    return f"mnemic doctor --store {quoted(str(file.path))} --salvage saved.db"
