"""Progress of hooks: the position in each transcript, and the ids of messages that were stored."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ..errors import StoreError

TAIL = 256
"""How many bytes before the position must be the same, or the transcript was replaced."""
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS transcripts (
    number INTEGER PRIMARY KEY, place TEXT, path TEXT, position INTEGER, tail BLOB, UNIQUE (place, path));
CREATE TABLE IF NOT EXISTS seen (key BLOB PRIMARY KEY, transcript INTEGER) WITHOUT ROWID;
COMMIT;
"""


class Progress:
    """A small SQLite file: what was stored once is not stored again, even if it was forgotten since.

    It holds paths and hashes, no content. Errors of its file are a StoreError.
    """

    def __init__(self, path: Path, store: str, scope: str) -> None:
        """Open the file for one store and scope; it is created, for its owner only."""
        self._path = path
        self._place = hashlib.sha256(f"{store}\0{scope}".encode(errors="surrogateescape")).hexdigest()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, timeout=5, isolation_level=None)
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def position(self, transcript: str, file: IO[bytes]) -> int:
        """Return where the part of a transcript begins that was not read yet; 0 if it was truncated or replaced."""
        found = self._run(
            "SELECT position, tail FROM transcripts WHERE place = ? AND path = ?", (self._place, transcript)
        )
        return found[0][0] if found and _tail(file, found[0][0]) == found[0][1] else 0

    def knows(self, id: str) -> bool:
        """Return whether a message was stored before."""
        return bool(self._run("SELECT 1 FROM seen WHERE key = ?", (self._key(id),)))

    def advance(self, transcript: str, file: IO[bytes], position: int, ids: Iterable[str] = ()) -> None:
        """Keep a position, and the ids of the messages before it, after they were stored."""
        tail, keys = _tail(file, position), [self._key(id) for id in ids]
        known = self._run("SELECT number FROM transcripts WHERE place = ? AND path = ?", (self._place, transcript))
        try:
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                if not known:
                    self._remove_old()
                ((number,),) = self._database.execute(
                    "INSERT INTO transcripts (place, path, position, tail) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET position = excluded.position, tail = excluded.tail RETURNING number",
                    (self._place, transcript, position, tail),
                ).fetchall()
                self._database.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", ((key, number) for key in keys))
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _remove_old(self) -> None:
        """Remove what is kept about transcripts that no longer exist."""
        for number, path in self._database.execute("SELECT number, path FROM transcripts").fetchall():
            if not os.path.exists(path):  # noqa: PTH110 - any text
                self._database.execute("DELETE FROM seen WHERE transcript = ?", (number,))
                self._database.execute("DELETE FROM transcripts WHERE number = ?", (number,))

    def _key(self, id: str) -> bytes:
        return hashlib.sha256(f"{self._place}\0{id}".encode(errors="surrogateescape")).digest()[:16]

    def _run(self, statement: str, values: tuple[object, ...]) -> list[tuple[int, bytes]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(f"{self._path}, which keeps what hooks have stored, cannot be used: {error}")


def _tail(file: IO[bytes], position: int) -> bytes:
    start = max(0, position - TAIL)
    file.seek(start)
    return hashlib.sha256(file.read(position - start)).digest()[:8]
