"""LanceDB beside a store: files in a folder, which several processes may share.

Filters come first, then all that passes is compared with the question: an index of vectors that is only
probed in places would lose under a filter what it should find. Words are found by LanceDB's own full-text
index, in which a term is a word of eight digits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
from lancedb.index import FTS, BTree

from ..driving import off_loop, pause
from ..errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    UnreadableStoreError,
)
from ..store.nearest import CompanionMaker
from ..store.registry import StoreURL
from .places import Place, check_folder, place_of
from .points import LAST, MARK, MissingTableError, Point, PointIndex, Where, both, spelled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIDIED = 100
"""After how many writes files are put together and indexes brought up to date."""
ATTEMPTS = 20
"""How often something is written, if others write at the same moment."""
KEPT = timedelta(minutes=10)
"""How long the files of an older version stay, for whoever is still reading them."""

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
    """Keeps points in the tables of a folder."""

    def __init__(self, url: str, database: Any) -> None:
        self.url = url
        self._database = database
        self._open: dict[str, Any] = {}
        # Who writes at the same time gets into the way of the others, and has to begin again.
        self._writing = asyncio.Lock()
        self._writes: dict[str, int] = {}
        """How often each table was written since it was last tidied."""

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
            # What has no vector is not found by vectors.
            await merge.execute(rows, on_bad_vectors="null")

        await self._patiently(lambda: self._use(table, write))
        self._written(table)

    async def delete(self, table: str, where: Where) -> None:
        condition = _condition(where)

        async def write(held: Any) -> bool:
            # To remove nothing would be a new version of the table all the same.
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
                table,
                lambda held: asked(held.query().nearest_to(wanted).distance_type("cosine")).select(chosen),
            )

        async def by_terms() -> list[Point]:
            if not terms:
                return []
            wanted, chosen = spelled(terms), [*columns, "_score"]
            return await self._found(
                table,
                lambda held: asked(held.query().nearest_to_text(wanted, columns=["words"])).select(chosen),
            )

        return await both(by_vector(), by_terms())

    async def settle(self, table: str) -> None:
        if self._writes.get(table, 0) >= TIDIED:
            self._writes[table] = 0
            try:
                await self._use(table, lambda held: held.optimize(cleanup_older_than=KEPT))
            except StoreBusyError:
                # Another process writes at the same moment: it will be tidied another time.
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
        """Return what a write returns, which is made again if another process has written first."""
        async with self._writing:
            for attempt in range(ATTEMPTS - 1):
                try:
                    return await work()
                except StoreBusyError:
                    await pause(0.01 * (attempt + 1))
            return await work()

    async def _use(self, table: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what `work` returns for a table; it is opened anew if its files are no longer there."""
        held = self._open.get(table)
        if held is not None:
            try:
                with explained(self.url):
                    return await work(held)
            except MissingTableError:
                # Another process has dropped it, or put its files together.
                self._open.pop(table, None)
        with explained(self.url):
            held = self._open[table] = await self._database.open_table(table)
            return await work(held)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Let errors of LanceDB leave as ours: it has no classes of its own for them, so their texts tell."""
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


async def _opened(url: StoreURL) -> PointIndex:
    place = place_of(url)
    return PointIndex(await _connected(place))


async def _connected(place: Place) -> LanceEngine:
    folder = check_folder(place)
    with explained(place.url):
        # What another process has written is seen at once.
        database = await lancedb.connect_async(folder, read_consistency_interval=timedelta(0))
    return LanceEngine(place.url, database)


@contextmanager
def _trial(folder: Path) -> Iterator[str]:
    yield f"lancedb:///{folder / 'lance'}"


LANCEDB = CompanionMaker(open=_opened, trial=_trial)


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
        # Whole numbers from -127 to 127 lose nothing in sixteen bits.
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
    """Return a condition as SQL; whatever others have named is a literal in it."""
    first, last = where.chunks
    parts = []
    if where.chunks != (MARK, LAST):
        parts.append(f"chunk BETWEEN {first} AND {last}")
    here = f"scope = {_literal(where.scope)}"
    if not where.below:
        parts.append(here)
    elif where.scope:
        # '0' is what comes next after '/', so this is all that lies below, and nothing else.
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
