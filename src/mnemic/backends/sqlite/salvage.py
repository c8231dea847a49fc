"""Saves the rows of a damaged SQLite file into a new one, from which they are read as from any store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...checks import from_microseconds, shown
from ...errors import InvalidValueError, StorePermissionError, UnreadableStoreError
from ...event_loop import off_loop
from ...records import FACT, MEMORY, MESSAGE, NOTE, ScopePath, StreamName
from ...store.diagnosis import Readable
from ...store.registry import StoreURL
from ..sql.schema import COLUMNS, DERIVED, RECORDS, STREAMS
from .client import SqliteFile
from .pages import GUESSES, DamagedPageError, PageFile, TableRow
from .store import SqliteStore

SALVAGED = "salvaged"
"""Scope for records whose own scope is lost."""
FIRST_RECORD_COLUMNS, FIRST_STREAM_COLUMNS = 17, 13
"""How many columns rows have at least: later schemas have added some at the end."""
MOST_INT = 2**63 - 1
_RECORD, _STREAM = list(COLUMNS[RECORDS]), list(COLUMNS[STREAMS])
_STAGED = """
    CREATE TABLE row (id, page, %s);
    CREATE TABLE by_seq (stream_id, seq, id);
    CREATE TABLE by_key (stream_id, key, id);
    CREATE TABLE by_name (scope, kind, id);
    CREATE TABLE use (stream_id, seq, name, version, value);
"""


class SalvagedStore(SqliteStore):
    """A store of what was saved; its file is deleted when it is closed."""

    def __init__(self, folder: TemporaryDirectory[str], file: SqliteFile) -> None:
        super().__init__(file)
        self._folder = folder

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


async def salvage(url: StoreURL) -> Readable:
    """Return the readable rows of a file, which is not changed; raises UnreadableStoreError if that is nothing."""
    return await off_loop(lambda: _salvage(url))


def _salvage(url: StoreURL) -> Readable:
    source = SqliteFile(url)
    folder = TemporaryDirectory(prefix="mnemic-salvage-")
    try:
        file = SqliteFile(StoreURL.parse(f"sqlite:///{folder.name}/saved.db"))
        file.migrate()
        file.close()
        with closing(sqlite3.connect(file.path, isolation_level=None)) as raw:
            raw.execute("PRAGMA synchronous = OFF")
            raw.execute("PRAGMA journal_mode = OFF")
            found = _Rows(raw, source)
            found.read()
            readable = found.keep()
        readable.store = SalvagedStore(folder, SqliteFile(StoreURL.parse(f"sqlite:///{file.path}")))
        return readable
    except BaseException:
        folder.cleanup()
        raise


class _Rows:
    """The rows that were found in the pages of a file, in tables beside those of the new store."""

    def __init__(self, raw: sqlite3.Connection, source: SqliteFile) -> None:
        self._raw = raw
        self._source = source
        self._streams: dict[int, list[Any]] = {}
        self._damaged: list[str] = []
        self._found = Readable()

    def read(self) -> None:
        """Read all rows of all pages."""
        self._raw.executescript(_STAGED % ", ".join(f'"{name}"' for name in _RECORD))
        self._raw.execute("BEGIN")
        with closing(self._open()) as pages:
            if pages.header_is_damaged:
                self._found.remarks.append("the header of the file is damaged")
            if pages.log_damage:
                self._found.remarks.append(pages.log_damage)
                self._found.uncounted = True
            if pages.missing:
                self._found.remarks.append(
                    f"the file is truncated: {pages.missing:,} of its pages are missing, with all that they had"
                )
                self._found.uncounted = True
            free = pages.free_pages()
            for number in range(1, pages.count + 1):
                for row in pages.rows(number) if number not in free else ():
                    if isinstance(row, DamagedPageError):
                        self._damaged.append(str(row))
                    else:
                        self._take(row, number)
        self._raw.execute("CREATE INDEX by_seq_id ON by_seq (id)")
        self._raw.execute("CREATE INDEX by_key_id ON by_key (id)")

    def _open(self) -> PageFile:
        """Open the file with the page size that its pages show, if its header is wrong about that."""
        path = self._source.path
        try:
            pages = PageFile(path)
            if pages.layout == GUESSES[0]:
                return pages
            layouts = dict.fromkeys((pages.layout, *GUESSES))
            pages.close()
            return PageFile(path, max(layouts, key=lambda layout: _count_records(path, layout)))
        except OSError as error:
            raise StorePermissionError(f"{self._source.url}: the file cannot be read ({error})") from error

    def _take(self, row: TableRow, page: int) -> None:
        execute, values = self._raw.execute, row.values
        match _shape(row):
            case "mnemic_records":
                values = [*values, *[None] * (len(_RECORD) - len(values))]
                execute(f"INSERT INTO row VALUES (?, ?{', ?' * len(_RECORD)})", (row.rowid, page, *values))
            case "mnemic_streams":
                assert row.rowid is not None
                self._streams[row.rowid] = [*values, *[None] * (len(_STREAM) - len(values))]
            case "mnemic_derived":
                if values[3] == 0:  # the others are computed again
                    execute("INSERT INTO use VALUES (?, ?, ?, ?, ?)", values)
            case "by_seq" | "by_key" | "by_name" as table:
                execute(f"INSERT INTO {table} VALUES (?, ?, ?)", values)

    def keep(self) -> Readable:
        """Move what belongs together into the tables of the store."""
        self._name_streams()
        ids = [id for (id,) in self._raw.execute("SELECT DISTINCT stream_id FROM row ORDER BY stream_id")]
        for id in dict.fromkeys([*self._streams, *ids]):
            self._keep_stream(id)
        columns = ", ".join(COLUMNS[DERIVED])
        self._raw.execute(
            f"INSERT OR IGNORE INTO {DERIVED} ({columns}) SELECT {columns} FROM use "
            f"WHERE (stream_id, seq) IN (SELECT stream_id, seq FROM {RECORDS})"
        )
        self._raw.execute("COMMIT")
        for table in ("row", "by_seq", "by_key", "by_name", "use"):
            self._raw.execute(f"DROP TABLE {table}")
        if self._damaged:
            several = f"{len(self._damaged):,} places in the file cannot be read"
            self._found.remarks.append(f"{several}; the first is {self._damaged[0]}")
        if not self._found.saved and not self._streams:
            raise UnreadableStoreError(f"{self._source.url}: nothing in the file can be read as a store of Mnemic")
        return self._found

    def _name_streams(self) -> None:
        """Find the names of streams in their table, or in its index if that is damaged."""
        indexed = {id: (scope, kind) for scope, kind, id in self._raw.execute("SELECT * FROM by_name")}
        for id in list(self._streams):
            if not _is_name(*self._streams[id][1:3]):
                del self._streams[id]
        for id, name in indexed.items():
            if id not in self._streams and _is_name(*name):
                self._streams[id] = [None, *name, *[None] * (len(_STREAM) - 3)]
            elif id in self._streams and tuple(self._streams[id][1:3]) != name:
                ours = tuple(self._streams[id][1:3])
                self._found.remarks.append(f"{_shown(ours)} is {_shown(name)} in the index: one of them is damaged")

    def _keep_stream(self, id: int) -> None:
        rows = [row for row in self._rows_of(id) if _is_whole(row)]
        name = self._name_of(id, rows)
        seqs, keys, kept = set[int](), set[str](), list[list[Any]]()
        for row in rows:  # the newest first, if a row was found twice
            if row[1] not in seqs and row[2] not in keys:
                seqs.add(row[1])
                keys.add(row[2])
                kept.append(row)
        self._raw.executemany(f"INSERT INTO {RECORDS} VALUES (?{', ?' * (len(_RECORD) - 1)})", kept)
        stream = self._streams.get(id, [None] * len(_STREAM))
        state = dict(zip(_STREAM, stream, strict=True))
        expected = self._expected(id, state, len(kept))
        if id in self._streams and not self._is_counted(state, len(kept)):
            self._found.uncounted = True
            what = "the settings and the number of records" if state["count"] is None else "the number of records"
            self._found.remarks.append(f"{what} of {_shown(name)} are lost: {len(kept):,} were found")
        if expected > len(kept):
            self._found.lost[name] += expected - len(kept)
        self._found.saved += len(kept)
        times = [row[_RECORD.index("created")] for row in kept] or [0]
        ends = [end for row in kept if _number(end := row[_RECORD.index("expires")])]
        made: dict[str, Any] = {
            "id": id, "scope": name[0], "kind": name[1], "last_seq": max(seqs, default=0),
            "version": max((row[3] for row in kept), default=0), "count": len(kept),
            "weight": sum(row[_RECORD.index("weight")] for row in kept),
            "created": _time(state["created"], min(times)), "updated": _time(state["updated"], max(times)),
            "settings": state["settings"] if isinstance(state["settings"], str) else None,
            "soonest": min(ends, default=None),
        }  # fmt: skip
        if _number(state["ttl"]) and _number(state["expires"]) and state["expires"] == made["updated"] + state["ttl"]:
            made |= {"ttl": state["ttl"], "expires": state["expires"]}
        elif state["ttl"] is not None or state["expires"] is not None:
            self._found.remarks.append(f"the time to live of {_shown(name)} is damaged: it has none now")
        self._raw.execute(
            f"INSERT INTO {STREAMS} ({', '.join(made)}) VALUES ({', '.join('?' * len(made))})", [*made.values()]
        )

    def _rows_of(self, id: int) -> Iterator[list[Any]]:
        """Yield the rows of a stream, newest version first; not those that the indexes say are of another."""
        witnesses = " UNION ALL ".join(
            f"SELECT stream_id FROM {by} WHERE {by}.id = row.id" for by in ("by_seq", "by_key")
        )
        mine = f"NOT EXISTS ({witnesses}) OR stream_id IN ({witnesses})"
        columns = ", ".join(f'"{name}"' for name in _RECORD)
        for row in self._raw.execute(
            f"SELECT {columns} FROM row WHERE stream_id = ? AND ({mine}) ORDER BY version DESC, page", (id,)
        ):
            yield list(row)

    def _name_of(self, id: int, rows: list[list[Any]]) -> StreamName:
        if id in self._streams:
            return self._streams[id][1], self._streams[id][2]
        self._found.remarks.append(
            f"a scope of {len(rows):,} records has lost its name: they are in {SALVAGED}/stream-{id}"
        )
        self._found.uncounted = True
        return f"{SALVAGED}/stream-{id}", _kind_of(rows)

    def _is_counted(self, state: dict[str, Any], kept: int) -> bool:
        """Return whether the row of a stream tells a possible number of records."""
        count, last_seq = state["count"], state["last_seq"]
        return _number(count) and _number(last_seq) and kept <= count <= last_seq

    def _expected(self, id: int, state: dict[str, Any], kept: int) -> int:
        """Return how many records a stream had, as its row says, or else its indexes."""
        if self._is_counted(state, kept):
            return int(state["count"])
        listed = [
            int(self._raw.execute(f"SELECT count(DISTINCT id) FROM {by} WHERE stream_id = ?", (id,)).fetchone()[0])
            for by in ("by_seq", "by_key")
        ]
        return max([kept, *listed])


def _count_records(path: Path, layout: tuple[int, int]) -> int:
    with closing(PageFile(path, layout)) as pages:
        return sum(_shape(row) == RECORDS for number in range(1, pages.count + 1) for row in pages.rows(number))


def _shape(row: TableRow | DamagedPageError) -> str | None:
    """Return which of the tables or indexes a row is from, as its columns show."""
    if isinstance(row, DamagedPageError):
        return None
    kinds = [type(value) for value in row.values]
    if row.rowid is not None:
        if FIRST_RECORD_COLUMNS <= len(kinds) <= len(_RECORD) and kinds[:4] == [int, int, str, int]:
            return RECORDS
        is_stream = FIRST_STREAM_COLUMNS <= len(kinds) <= len(_STREAM) and kinds[:3] == [type(None), str, str]
        return STREAMS if is_stream else None
    if kinds == [int, int, str, int, bytes]:
        return DERIVED
    shapes: dict[tuple[type, ...], str] = {
        (int, int, int): "by_seq",
        (int, str, int): "by_key",
        (str, str, int): "by_name",
    }
    return shapes.get(tuple(kinds))


def _is_whole(row: list[Any]) -> bool:
    """Return whether a row has all that the tables require; what else is wrong with it shows when it is read."""
    needed = dict(zip(_RECORD, row, strict=True))
    if isinstance(needed["importance"], int):
        row[_RECORD.index("importance")] = float(needed["importance"])  # SQLite stores 1.0 as 1
    return all(_number(needed[name]) for name in ("weight", "created", "updated")) and needed["pinned"] in (0, 1)


def _kind_of(rows: list[list[Any]]) -> str:
    """Return the kind that records seem to be of."""
    data = " ".join(row[_RECORD.index("data")] or "" for row in rows[:3] if isinstance(row[6], str))
    labels = " ".join(row[_RECORD.index("labels")] or "" for row in rows[:3] if isinstance(row[8], str))
    if '"role"' in data:
        return MESSAGE
    if '"subject"' in labels:
        return FACT
    return MEMORY if any(row[_RECORD.index("importance")] is not None for row in rows[:3]) else NOTE


def _is_name(scope: object, kind: object) -> bool:
    if not isinstance(scope, str) or not isinstance(kind, str):
        return False
    try:
        return bool(ScopePath(scope) == ScopePath(scope) and kind and kind.isprintable())
    except InvalidValueError:
        return False


def _number(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_INT


def _time(value: Any, otherwise: int) -> int:
    try:
        from_microseconds(value)
    except (ValueError, OverflowError, TypeError):
        return otherwise
    return int(value)


def _shown(name: Any) -> str:
    scope, kind = name
    return f"the {kind} stream of {shown(scope)}"
