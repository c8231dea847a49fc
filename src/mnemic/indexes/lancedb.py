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
from ..store.nearest import CompanionMaker
from ..store.registry import StoreURL
from .companion_index import (
    LAST,
    MARK,
    CompanionIndex,
    MissingTableError,
    Place,
    Point,
    Where,
    both,
    check_folder,
    place_of,
    spelled,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIDIED = 100
"""Number of writes after which files are compacted and indexes updated."""
ATTEMPTS = 20
"""Maximum number of write attempts on conflicts with other processes."""
KEPT = timedelta(minutes=10)
"""How long files of older versions are kept for concurrent readers."""

_PLAIN = ["id", "scope", "kind", "key", "chunk"]
_WORDS = FTS(
    base_tokenizer="whitespace",
    with_position=False,
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
)


class LanceEngine:
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
        with explained(self.url):
            while True:
                page = await self._database.list_tables(page_token=token)
                found += page.tables
                token = page.page_token
                if not token:
                    return found

    async def create(self, table: str, dimensions: int) -> None:
        async def make() -> None:
            with explained(self.url):
                self._open[table] = await self._created(table, dimensions)

        await self._patiently(make)

    async def _created(self, table: str, dimensions: int) -> Any:
        made = await self._database.create_table(table, schema=_schema(dimensions), exist_ok=True)
        there = {index.columns[0] for index in await made.list_indices()}
        for column, config in {"id": BTree(), "scope": BTree(), "words": _WORDS}.items():
            if column not in there:
                await made.create_index(column, config=config, replace=False)
        return made

    async def drop(self, table: str) -> None:
        self._open.pop(table, None)
        with explained(self.url):
            await self._database.drop_table(table, ignore_missing=True)

    async def put(self, table: str, points: Sequence[Point]) -> None:
        async def write(held: Any) -> None:
            schema = await held.schema()
            rows = await off_loop(lambda: _rows(points, schema))
            merge = held.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            # A point without a vector is not found by vectors.
            await merge.execute(rows, on_bad_vectors="null")

        await self._patiently(lambda: self._use(table, write))
        self._written(table)

    async def delete(self, table: str, where: Where) -> None:
        condition = _condition(where)

        async def write(held: Any) -> bool:
            # Deleting nothing would still create a new table version.
            if not await held.count_rows(condition):
                return False
            await held.delete(condition)
            return True

        if await self._patiently(lambda: self._use(table, write)):
            self._written(table)

    async def read(self, table: str, where: Where, *, bodies: bool = True) -> list[Point]:
        columns = [*_PLAIN, "body"] if bodies else _PLAIN
        return await self._found(table, lambda held: held.query().where(_condition(where)).select(columns))

    async def fetch(self, table: str, ids: Sequence[str]) -> list[Point]:
        chosen = f"id IN ({_listed(ids)})"
        columns = [*_PLAIN, "body"]
        return await self._found(table, lambda held: held.query().where(chosen).select(columns))

    async def nearest(
        self, table: str, where: Where, vector: NDArray[np.int8] | None, terms: Sequence[int], limit: int
    ) -> tuple[list[Point], list[Point]]:
        columns = [*_PLAIN, "body"]

        def asked(query: Any) -> Any:
            return query.where(_condition(where)).limit(limit)

        async def by_vector() -> list[Point]:
            if vector is None or not vector.any():
                return []
            wanted, chosen = vector.astype("float32"), [*columns, "_distance"]
            return await self._found(
                table, lambda held: asked(held.query().nearest_to(wanted).distance_type("cosine")).select(chosen)
            )

        async def by_terms() -> list[Point]:
            if not terms:
                return []
            wanted, chosen = spelled(terms), [*columns, "_score"]
            return await self._found(
                table, lambda held: asked(held.query().nearest_to_text(wanted, columns=["words"])).select(chosen)
            )

        return await both(by_vector(), by_terms())

    async def settle(self, table: str) -> None:
        if self._writes.get(table, 0) >= TIDIED:
            self._writes[table] = 0
            try:
                await self._use(table, lambda held: held.optimize(cleanup_older_than=KEPT))
            except StoreBusyError:
                # Another process is writing: compact later.
                return

    async def close(self) -> None:
        for held in self._open.values():
            held.close()
        self._open.clear()
        self._database.close()

    def _written(self, table: str) -> None:
        self._writes[table] = self._writes.get(table, 0) + 1

    async def _found(self, table: str, query: Callable[[Any], Any]) -> list[Point]:
        rows = await self._use(table, lambda held: query(held).to_arrow())
        return [
            Point(row["id"], row["scope"], row["kind"], row["key"], row["chunk"], row.get("body") or b"")
            for row in rows.to_pylist()
        ]

    async def _patiently(self, work: Callable[[], Awaitable[Any]]) -> Any:
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
        held = self._open.get(table)
        if held is not None:
            try:
                with explained(self.url):
                    return await work(held)
            except MissingTableError:
                # Another process has dropped or compacted it.
                self._open.pop(table, None)
        with explained(self.url):
            held = self._open[table] = await self._database.open_table(table)
            return await work(held)


@contextmanager
def explained(url: str) -> Iterator[None]:
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


async def _opened(url: StoreURL) -> CompanionIndex:
    place = place_of(url)
    return CompanionIndex(await _connected(place))


async def _connected(place: Place) -> LanceEngine:
    folder = check_folder(place)
    with explained(place.url):
        # Writes of other processes are visible at once.
        database = await lancedb.connect_async(folder, read_consistency_interval=timedelta(0))
    return LanceEngine(place.url, database)


LANCEDB = CompanionMaker(open=_opened)


def _schema(dimensions: int) -> Any:
    columns = [
        ("id", pa.string()),
        ("scope", pa.string()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("chunk", pa.int16()),
        ("body", pa.binary()),
        ("words", pa.string()),
    ]
    if dimensions:
        # Integers from -127 to 127 are exact in 16-bit floats.
        columns.append(("vector", pa.list_(pa.float16(), dimensions)))
    return pa.schema(columns)


def _rows(points: Sequence[Point], schema: Any) -> Any:
    columns: dict[str, Any] = {
        name: [getattr(point, name) for point in points] for name in ("id", "scope", "kind", "key", "chunk")
    }
    columns["body"] = [point.body or None for point in points]
    columns["words"] = [spelled(point.terms) if point.terms else None for point in points]
    if "vector" in schema.names:
        columns["vector"] = [
            None if point.vector is None or not point.vector.any() else point.vector.astype("float16")
            for point in points
        ]
    return pa.table(columns, schema=schema)


def _condition(where: Where) -> str:
    """Return a condition as SQL with escaped literals."""
    first, last = where.chunks
    parts = []
    if where.chunks != (MARK, LAST):
        parts.append(f"chunk BETWEEN {first} AND {last}")
    here = f"scope = {_literal(where.scope)}"
    if not where.below:
        parts.append(here)
    elif where.scope:
        # '0' follows '/' in ASCII, so this range is exactly what is below the scope.
        low, high = _literal(f"{where.scope}/"), _literal(f"{where.scope}0")
        parts.append(f"({here} OR (scope >= {low} AND scope < {high}))")
    if where.kinds:
        parts.append(f"kind IN ({_listed(where.kinds)})")
    if where.keys is not None:
        parts.append(f"key IN ({_listed(where.keys)})")
    return " AND ".join(parts) or "true"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(_literal, values))


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
