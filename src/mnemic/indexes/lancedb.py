"""LanceDB companion index: files in a folder, for several processes.

Filters apply first, then all remaining vectors are compared: an approximate index would miss results under a
filter. Words use LanceDB's full-text index, in which a term is a word of eight digits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
from lancedb.index import FTS, BTree

from ..errors import StoreBusyError, StoreError, StoreFullError, StorePermissionError, UnreadableStoreError
from ..event_loop import off_loop, pause
from ..store.registry import CompanionFactory, StoreURL
from .companion_index import CompanionIndex, MissingTableError, Point, PointFilter, as_words
from .location import parse_location

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COMPACTED_AFTER = 100
"""Number of writes after which files are compacted and indexes updated."""
ATTEMPTS = 20
"""Maximum number of write attempts on conflicts with other processes."""
RETENTION = timedelta(minutes=10)
"""How long files of older versions are kept for concurrent readers."""

_COLUMNS = ["id", "scope", "kind", "key", "chunk"]
_WORDS = FTS(
    base_tokenizer="whitespace",
    with_position=False,
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
)


class LanceDatabase:
    """Stores points in the tables of a folder."""

    def __init__(self, url: str, database: Any) -> None:
        self.url = url
        self._database = database
        self._open: dict[str, Any] = {}
        # Concurrent writers conflict and have to start again.
        self._writing = asyncio.Lock()
        self._writes: dict[str, int] = {}
        """Writes to each table since its last compaction."""

    async def tables(self) -> list[str]:
        found: list[str] = []
        token = None
        with mapped_errors(self.url):
            while True:
                page = await self._database.list_tables(page_token=token)
                found += page.tables
                token = page.page_token
                if not token:
                    return found

    async def create(self, table: str, dimensions: int) -> None:
        async def create() -> None:
            with mapped_errors(self.url):
                created = await self._database.create_table(table, schema=_schema(dimensions), exist_ok=True)
                indexed = {index.columns[0] for index in await created.list_indices()}
                for column, config in {"id": BTree(), "scope": BTree(), "words": _WORDS}.items():
                    if column not in indexed:
                        await created.create_index(column, config=config, replace=False)
                self._open[table] = created

        await self._retry_conflicts(create)

    async def drop(self, table: str) -> None:
        self._open.pop(table, None)
        with mapped_errors(self.url):
            await self._database.drop_table(table, ignore_missing=True)

    async def put(self, table: str, points: Sequence[Point]) -> None:
        async def write(opened: Any) -> None:
            schema = await opened.schema()
            rows = await off_loop(lambda: _rows(points, schema))
            merge = opened.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            # A point without a vector is not found by vectors.
            await merge.execute(rows, on_bad_vectors="null")

        await self._retry_conflicts(lambda: self._use(table, write))
        self._writes[table] = self._writes.get(table, 0) + 1

    async def delete(self, table: str, where: PointFilter) -> None:
        condition = _condition(where)

        async def write(opened: Any) -> bool:
            # Deleting nothing would still create a new table version.
            if not await opened.count_rows(condition):
                return False
            await opened.delete(condition)
            return True

        if await self._retry_conflicts(lambda: self._use(table, write)):
            self._writes[table] = self._writes.get(table, 0) + 1

    async def read(self, table: str, where: PointFilter, *, bodies: bool = True) -> list[Point]:
        columns = [*_COLUMNS, "body"] if bodies else _COLUMNS
        return await self._query(table, lambda opened: opened.query().where(_condition(where)).select(columns))

    async def by_vector(self, table: str, where: PointFilter, vector: NDArray[np.int8], limit: int) -> list[Point]:
        def query(opened: Any) -> Any:
            nearest = opened.query().nearest_to(vector.astype("float32")).distance_type("cosine")
            return nearest.where(_condition(where)).limit(limit).select([*_COLUMNS, "body", "_distance"])

        return await self._query(table, query)

    async def by_terms(self, table: str, where: PointFilter, terms: Sequence[int], limit: int) -> list[Point]:
        def query(opened: Any) -> Any:
            matching = opened.query().nearest_to_text(as_words(terms), columns=["words"])
            return matching.where(_condition(where)).limit(limit).select([*_COLUMNS, "body", "_score"])

        return await self._query(table, query)

    async def flush(self, table: str) -> None:
        if self._writes.get(table, 0) >= COMPACTED_AFTER:
            self._writes[table] = 0
            try:
                await self._use(table, lambda opened: opened.optimize(cleanup_older_than=RETENTION))
            except StoreBusyError:
                # Another process is writing: compact later.
                return

    async def close(self) -> None:
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        self._database.close()

    async def _query(self, table: str, query: Callable[[Any], Any]) -> list[Point]:
        rows = await self._use(table, lambda opened: query(opened).to_arrow())
        return [
            Point(row["id"], row["scope"], row["kind"], row["key"], row["chunk"], row.get("body") or b"")
            for row in rows.to_pylist()
        ]

    async def _retry_conflicts(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a write, and retry it if another process wrote first."""
        async with self._writing:
            for attempt in range(ATTEMPTS - 1):
                try:
                    return await work()
                except StoreBusyError:
                    await pause(0.01 * (attempt + 1))
            return await work()

    async def _use(self, table: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run `work` on a table; reopen the table if its files are gone."""
        opened = self._open.get(table)
        if opened is not None:
            try:
                with mapped_errors(self.url):
                    return await work(opened)
            except MissingTableError:
                # Another process has dropped or compacted it.
                self._open.pop(table, None)
        with mapped_errors(self.url):
            opened = self._open[table] = await self._database.open_table(table)
            return await work(opened)


@contextmanager
def mapped_errors(url: str) -> Iterator[None]:
    """Map LanceDB errors to Mnemic errors by their text, since LanceDB has no error classes."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        message = str(error)
        for texts, kind, hint in _ERRORS:
            if any(text in message for text in texts):
                raise kind(f"{url}: {hint} ({message[:300]})") from error
        raise StoreError(f"{url}: LanceDB failed ({message[:300]})") from error


_ERRORS: list[tuple[tuple[str, ...], type[StoreError], str]] = [
    (("os error 28", "No space left"), StoreFullError, "the disk is full"),
    (("os error 13", "os error 30", "Permission denied"), StorePermissionError, "access is denied"),
    (("commit conflict", "concurrent", "already exists"), StoreBusyError, "others are writing to it"),
    (("not found", "Not found", "os error 2)"), MissingTableError, "the table, or a file of it, has gone"),
    (("corrupt", "Corrupt", "Invalid data"), UnreadableStoreError, "the files are damaged"),
]


async def _open(url: StoreURL) -> CompanionIndex:
    location = parse_location(url)
    with mapped_errors(location.url):
        # Writes of other processes are visible at once.
        database = await lancedb.connect_async(str(location.path), read_consistency_interval=timedelta(0))
    return CompanionIndex(LanceDatabase(location.url, database))


LANCEDB = CompanionFactory(open=_open)


def _schema(dimensions: int) -> Any:
    columns = [(name, pa.string()) for name in ("id", "scope", "kind", "key", "words")]
    columns += [("chunk", pa.int16()), ("body", pa.binary())]
    if dimensions:
        # Integers from -127 to 127 are exact in 16-bit floats.
        columns.append(("vector", pa.list_(pa.float16(), dimensions)))
    return pa.schema(columns)


def _rows(points: Sequence[Point], schema: Any) -> Any:
    columns: dict[str, Any] = {name: [getattr(point, name) for point in points] for name in _COLUMNS}
    columns["body"] = [point.body or None for point in points]
    columns["words"] = [as_words(point.terms) if point.terms else None for point in points]
    if "vector" in schema.names:
        columns["vector"] = [v.astype("float16") if (v := point.direction) is not None else None for point in points]
    return pa.table(columns, schema=schema)


def _condition(where: PointFilter) -> str:
    return where.expression(lambda value: "'" + value.replace("'", "''") + "'", "()")
