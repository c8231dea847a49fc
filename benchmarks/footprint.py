"""What a message and a memory cost on each engine: bytes at rest, and processor time on both sides.

Bytes are what the engine itself says, after many records, less what it said before; for DynamoDB they are the
sizes of the items by the rules it bills by. Processor time is read from the operating system, so that other
work on the machine does not count. The figures go to footprint.json, from which docs/scaling.md is computed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec import Struct, json

import mnemic
from mnemic.store import registry
from servers import aws, postgres, valkey

from .embedded import text

TARGET = Path(__file__).parent / "footprint.json"
SESSIONS, MESSAGES = 50, 100
USERS, MEMORIES = 50, 100
CALLS = 400

Size = Callable[[], Awaitable[int]]


class Footprint(Struct, frozen=True):
    """What one engine needs; bytes are per record, seconds are of one core, per call."""

    message_bytes: float
    memory_bytes: float
    """Of a remembered text with its terms and vector."""
    append_server_s: float
    append_client_s: float
    read_server_s: float
    read_client_s: float
    recall_server_s: float
    recall_client_s: float


def run(folder: Path) -> tuple[str, bool]:
    """Measure every engine, keep the figures, and return them as a table."""
    found = {name: asyncio.run(_measured(name, folder)) for name in ENGINES}
    TARGET.write_bytes(json.format(json.encode(found), indent=1) + b"\n")
    return table(found), True


def read() -> dict[str, Footprint]:
    """Return the figures that were measured last."""
    return json.decode(TARGET.read_bytes(), type=dict[str, Footprint])


def table(found: dict[str, Footprint]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| engine | bytes a message | bytes a memory, with its vector | appends a second and core "
        "(server / client) | last-10 reads | recalls |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        rates = [
            f"{_rate(getattr(one, f'{what}_server_s'))} / {_rate(getattr(one, f'{what}_client_s'))}"
            for what in ("append", "read", "recall")
        ]
        lines.append(f"| {name} | {one.message_bytes:,.0f} | {one.memory_bytes:,.0f} | {' | '.join(rates)} |")
    return "\n".join(lines)


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds > 1e-7 else "–"


async def _measured(name: str, folder: Path) -> Footprint:
    url_of, size_of, pid_of = ENGINES[name]
    with url_of(folder) as url:
        size, pid = size_of(url), pid_of()
        async with mnemic.open_async(url) as memory:
            await memory.scope("warm").session("up").add("user", "hello")
            before = await size()
            for n in range(SESSIONS):
                session = memory.scope("acme", f"user{n}").session("monday")
                await session.add_many([mnemic.Message(role="user", content=text(m)) for m in range(MESSAGES)])
            between = await size()
            for n in range(USERS):
                texts = [text(n * MEMORIES + m) for m in range(MEMORIES)]
                await memory.scope("acme", f"friend{n}").remember_many(texts)
            after = await size()
            pick = random.Random(7)
            sessions = [memory.scope("acme", f"user{n}").session("monday") for n in range(SESSIONS)]
            people = [memory.scope("acme", f"friend{n}") for n in range(USERS)]
            append = await _cost(pid, lambda n: pick.choice(sessions).add("user", text(n)))
            last = await _cost(pid, lambda n: pick.choice(sessions).messages(limit=10))
            for person in people:
                await person.recall("coffee in Oslo")
            recall = await _cost(pid, lambda n: pick.choice(people).recall(f"the meeting on Thursday {n}"))
    messages, memories = (between - before) / (SESSIONS * MESSAGES), (after - between) / (USERS * MEMORIES)
    return Footprint(messages, memories, *append, *last, *recall)


async def _cost(pid: int | None, call: Callable[[int], Awaitable[object]]) -> tuple[float, float]:
    """Return the seconds of processor time that a call costs the server and the client."""
    for n in range(20):
        await call(n)
    server, client = _spent(pid), time.process_time()
    for n in range(CALLS):
        await call(n)
    return (_spent(pid) - server) / CALLS, (time.process_time() - client) / CALLS


def _spent(pid: int | None) -> float:
    """Return the processor time of a process and of those that it has started, in seconds."""
    if pid is None:
        return 0.0
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
        ticks[int(path.parent.name)] = int(fields[11]) + int(fields[12])
    family, total = [pid], 0
    while family:
        one = family.pop()
        total += ticks.get(one, 0)
        family += parents.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")


def _sqlite(folder: Path) -> AbstractContextManager[str]:
    return nullcontext(f"sqlite:///{folder / 'footprint.db'}?synchronous=normal")


def _sqlite_size(url: str) -> Size:
    import sqlite3

    async def size() -> int:
        path = url.removeprefix("sqlite:///").partition("?")[0]
        raw = sqlite3.connect(path)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()
        return Path(path).stat().st_size  # noqa: ASYNC240

    return size


def _postgres_size(url: str) -> Size:
    import psycopg

    async def size() -> int:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
            found = await raw.execute(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                "WHERE relname LIKE 'mnemic%' AND relkind IN ('r', 'p')"
            )
            row = await found.fetchone()
            return int(row[0]) if row and row[0] else 0

    return size


def _valkey_size(url: str) -> Size:
    import redis.asyncio

    async def size() -> int:
        client = redis.asyncio.Redis.from_url(url.partition("?")[0])
        try:
            found = await client.info("memory")
            return int(found["used_memory"])
        finally:
            await client.aclose()

    return size


def _dynamodb_size(url: str) -> Size:
    import boto3  # type: ignore[import-untyped]

    parsed = registry.StoreURL.parse(url)
    table_name = parsed.split.netloc

    async def size() -> int:
        client: Any = boto3.client(
            "dynamodb", region_name=parsed.options["region"], endpoint_url=parsed.options["endpoint"]
        )
        pages = client.get_paginator("scan").paginate(TableName=table_name)
        # Each item is billed with 100 bytes more than its attributes.
        return sum(100 + _item(item) for page in pages for item in page["Items"])

    return size


def _item(item: dict[str, Any]) -> int:
    return sum(len(name.encode()) + _attribute(value) for name, value in item.items())


def _attribute(value: dict[str, Any]) -> int:
    """Return what an attribute counts for by DynamoDB's rules."""
    ((kind, held),) = value.items()
    if kind == "N":
        return (len(Decimal(held).as_tuple().digits) + 1) // 2 + 1
    if kind == "B":
        return len(held)
    if kind == "S":
        return len(held.encode())
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _attribute(one) for name, one in held.items())
    if kind == "L":
        return 3 + sum(1 + _attribute(one) for one in held)
    return 1


def _s3_size(url: str) -> Size:
    import boto3

    parsed = registry.StoreURL.parse(url)

    async def size() -> int:
        client: Any = boto3.client("s3", region_name=parsed.options["region"], endpoint_url=parsed.options["endpoint"])
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=parsed.split.netloc, Prefix=parsed.split.path.strip("/")
        )
        return sum(one["Size"] for page in pages for one in page.get("Contents", ()))

    return size


def _no_server() -> int | None:
    return None


ENGINES: dict[
    str, tuple[Callable[[Path], AbstractContextManager[str]], Callable[[str], Size], Callable[[], int | None]]
] = {
    "SQLite": (_sqlite, _sqlite_size, _no_server),
    "PostgreSQL": (postgres.empty_database, _postgres_size, lambda: postgres.server().process.pid),
    "Valkey": (valkey.empty_keyspace, _valkey_size, lambda: valkey.server().process.pid),
    # The emulators' processor time says nothing of AWS's, which is not the user's to count.
    "DynamoDB": (aws.empty_table, _dynamodb_size, _no_server),
    "S3": (aws.empty_prefix, _s3_size, _no_server),
}
"""By name: what lends an empty store, what tells its size, and which process serves it."""
