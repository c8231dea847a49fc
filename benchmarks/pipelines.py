"""A transaction on PostgreSQL in three ways: psycopg's pipelines, one buffer for all statements, one by one.

    python -m benchmarks.pipelines

psycopg's pipelines wait for the socket after each statement; `Connection.each` of the back-end does not.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from psycopg import AsyncRawCursor

from mnemic.backends.postgres.client import PostgresConnection, Query
from mnemic.backends.postgres.statements import prepared
from servers import postgres

CALLS, ROUNDS = 50, 11
TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("BEGIN", {}),
    ("SELECT set_config('lock_timeout', '8s', true)", {}),
    ("SELECT * FROM heads WHERE id = :id FOR UPDATE", {"id": 1}),
    ("SELECT * FROM heads WHERE id = ANY(CAST(:ids AS bigint[]))", {"ids": [2, 3]}),
    ("INSERT INTO texts VALUES (:id, :text)", {"id": 1, "text": "some text " * 10}),
    ("UPDATE heads SET count = count + 1 WHERE id = :id", {"id": 1}),
    ("COMMIT", {}),
]
"""What a write sends, in two round trips: up to the second SELECT, and the rest."""
LOADED = 4


async def measure(url: str) -> dict[str, float]:
    """Return the median microseconds of a transaction for each way, measured in turns."""
    connection = await PostgresConnection.connect(
        url, autocommit=True, prepare_threshold=1, failed=lambda _: None, seconds=10, cursor_factory=AsyncRawCursor
    )
    async with connection:
        await connection.execute("CREATE TABLE heads (id bigint PRIMARY KEY, count bigint)")
        await connection.execute("CREATE TABLE texts (id bigint, text text)")
        await connection.execute("INSERT INTO heads SELECT n, 0 FROM generate_series(1, 100) n")
        queries: list[Query] = [(prepared(sql), values) for sql, values in TEXTS]
        halves = (queries[:LOADED], queries[LOADED:])

        async def one_buffer() -> None:
            for half in halves:
                await connection.each(half)

        async def pipelines() -> None:
            for half in halves:
                async with connection.pipeline():
                    for statement, values in half:
                        await connection.execute(statement.text, statement.arguments(values))

        async def one_by_one() -> None:
            for statement, values in queries:
                await connection.execute(statement.text, statement.arguments(values))

        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "one buffer": one_buffer, "psycopg's pipelines": pipelines, "one by one": one_by_one,
        }  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    await way()
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print what each way takes."""
    with postgres.empty_database() as url:
        found = asyncio.run(measure(url))
    for name, microseconds in found.items():
        print(f"{name:20} {microseconds:6,.0f} µs  {microseconds / found['one buffer']:.1f}×")


if __name__ == "__main__":
    main()
