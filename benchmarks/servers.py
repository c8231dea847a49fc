"""Each back-end on a server against its bare driver doing the same by hand, on the same server, in turns.

The bare driver keeps the same row and the same totals of the stream, in one transaction and one round trip
where it can: what there is to be compared with is the best that one would write by hand.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from msgspec import json

import mnemic
from mnemic.checks import new_id
from mnemic.store.registry import StoreURL
from servers.stores import empty_store

from .embedded import text
from .measuring import Result, rate_share, time_ratio

CALLS, ROUNDS = 40, 11
BATCH = 10_000
STARTED = 200
"""How many messages are there before anything is measured."""

Call = Callable[[], Awaitable[object]]


class Bare(Protocol):
    """The same by hand."""

    async def append(self) -> None:
        """Add a message and keep the totals, all or none."""

    async def last(self) -> list[Any]:
        """Read the ten newest messages."""


def run(folder: Path) -> list[Result]:
    """Measure every back-end that a server can be started for."""
    found: list[Result] = []
    for bench, bare in BARE.items():
        home = folder / bench
        home.mkdir()
        with empty_store(bench, home) as url:
            found += asyncio.run(_measured(bench, url, bare))
    return found


async def _measured(bench: str, url: str, bare_of: Callable[[str, AsyncExitStack], Any]) -> list[Result]:
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(mnemic.open_async(url))
        bare: Bare = await bare_of(url, stack)
        chat = memory.scope("acme", "alice").session("monday")
        for n in range(STARTED):
            await chat.add("user", text(n))
            await bare.append()
        numbers = count(STARTED)
        append = await in_turns(lambda: chat.add("user", text(next(numbers))), bare.append)
        last = await in_turns(lambda: chat.recent(10), bare.last)
        messages = [mnemic.Message(role="user", content=text(n)) for n in range(BATCH)]
        begun = time.perf_counter()
        await memory.scope("acme", "bob").session("batch").add_many(messages)
        each = (time.perf_counter() - begun) / BATCH
        alone = await per_call(lambda: chat.add("user", text(next(numbers))), 100)
    times = alone / each
    return [
        rate_share(f"{bench}: append", 0.5, *append),
        time_ratio(f"{bench}: the last 10", 2.0, *last),
        Result(
            f"{bench}: {BATCH:,} messages in one call, each",
            "at least 20× as fast as alone",
            f"{times:,.0f}× ({each * 1e6:,.0f} against {alone * 1e6:,.0f} µs)",
            times >= 20,
        ),
    ]


async def per_call(call: Call, calls: int) -> float:
    """Return the seconds that one call takes, from many."""
    start = time.perf_counter()
    for _ in range(calls):
        await call()
    return (time.perf_counter() - start) / calls


async def in_turns(ours: Call, baseline: Call) -> tuple[float, float]:
    """Return the median seconds per call of two things, measured in turns."""
    for call in (ours, baseline):
        await per_call(call, 20)
    gc.collect()
    times = [(await per_call(ours, CALLS), await per_call(baseline, CALLS)) for _ in range(ROUNDS)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def _row(n: int) -> dict[str, Any]:
    """Return what is kept of a message."""
    now = int(time.time() * 1_000_000)
    return {
        "key": new_id(), "seq": n, "version": n, "text": text(n), "data": {"role": "user"}, "meta": {},
        "labels": {}, "weight": 25, "created": now, "updated": now,
    }  # fmt: skip


class BarePostgres:
    """psycopg: one statement adds the row and moves the totals."""

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> BarePostgres:
        """Connect."""
        import psycopg

        raw = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=1)
        stack.push_async_callback(raw.close)
        await raw.execute(
            "CREATE TABLE bare_heads (id bigint PRIMARY KEY, last_seq bigint, version bigint, count bigint, "
            "weight bigint, updated bigint)"
        )
        await raw.execute(
            "CREATE TABLE bare_rows (stream_id bigint, seq bigint, key text, version bigint, text text, "
            "title text, data text, meta text, labels text, importance float8, weight bigint, pinned bool, "
            "created bigint, updated bigint, expires bigint, valid_from bigint, valid_to bigint, "
            "PRIMARY KEY (stream_id, seq), UNIQUE (stream_id, key))"
        )
        await raw.execute("INSERT INTO bare_heads VALUES (1, 0, 0, 0, 0, 0)")
        return cls(raw)

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.numbers = count(1)

    async def append(self) -> None:
        """Add a row."""
        row = _row(next(self.numbers))
        await self.raw.execute(
            "WITH head AS (UPDATE bare_heads SET last_seq = last_seq + 1, version = version + 1, "
            "count = count + 1, weight = weight + %(weight)s, updated = %(updated)s WHERE id = 1 "
            "RETURNING last_seq, version) INSERT INTO bare_rows (stream_id, seq, key, version, text, data, "
            "weight, pinned, created, updated) SELECT 1, last_seq, %(key)s, version, %(text)s, %(data)s, "
            "%(weight)s, false, %(created)s, %(updated)s FROM head",
            {**row, "data": json.encode(row["data"]).decode()},
        )

    async def last(self) -> list[Any]:
        """Read ten rows."""
        found = await self.raw.execute("SELECT * FROM bare_rows WHERE stream_id = 1 ORDER BY seq DESC LIMIT 10")
        rows: list[Any] = await found.fetchall()
        return rows


class BareRedis:
    """redis-py: one transaction adds the record, its key and the totals."""

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> BareRedis:
        """Connect."""
        import redis.asyncio

        raw = redis.asyncio.Redis.from_url(url.partition("?")[0])
        stack.push_async_callback(raw.aclose)
        return cls(raw, StoreURL.parse(url).options["prefix"])

    def __init__(self, raw: Any, prefix: str) -> None:
        self.raw = raw
        self.prefix = prefix
        self.numbers = count(1)

    async def append(self) -> None:
        """Add a record."""
        n = next(self.numbers)
        row = _row(n)
        async with self.raw.pipeline(transaction=True) as pipe:
            pipe.zadd(f"{self.prefix}:bare:rows", {json.encode(row): n})
            pipe.hset(f"{self.prefix}:bare:keys", row["key"], n)
            pipe.set(f"{self.prefix}:bare:head", json.encode({"last_seq": n, "count": n, "weight": 25 * n}))
            await pipe.execute()

    async def last(self) -> list[Any]:
        """Read ten records."""
        return [json.decode(held) for held in await self.raw.zrange(f"{self.prefix}:bare:rows", -10, -1)]


class BareDynamo:
    """aiobotocore: one transaction puts the record, its key and the totals."""

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> BareDynamo:
        """Connect."""
        return cls(await _client("dynamodb", url, stack), StoreURL.parse(url).split.netloc)

    def __init__(self, raw: Any, table: str) -> None:
        self.raw = raw
        self.table = table
        self.numbers = count(1)

    async def append(self) -> None:
        """Put the items."""
        n = next(self.numbers)
        row = _row(n)
        items = [
            {"pk": {"S": "bare"}, "sk": {"S": f"r{n:019}"}, "body": {"B": json.encode(row)}},
            {"pk": {"S": "bare"}, "sk": {"S": f"k{row['key']}"}, "seq": {"N": str(n)}},
            {"pk": {"S": "bare"}, "sk": {"S": "h"}, "last": {"N": str(n)}, "weight": {"N": str(25 * n)}},
        ]
        await self.raw.transact_write_items(
            TransactItems=[{"Put": {"TableName": self.table, "Item": item}} for item in items]
        )

    async def last(self) -> list[Any]:
        """Query ten items."""
        found = await self.raw.query(
            TableName=self.table,
            KeyConditionExpression="pk = :p AND begins_with(sk, :s)",
            ExpressionAttributeValues={":p": {"S": "bare"}, ":s": {"S": "r"}},
            ScanIndexForward=False,
            ConsistentRead=True,
            Limit=10,
        )
        return [json.decode(item["body"]["B"]) for item in found["Items"]]


class BareS3:
    """aiobotocore: one object with the newest records, replaced on condition."""

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> BareS3:
        """Connect."""
        parsed = StoreURL.parse(url)
        key = f"{parsed.split.path.strip('/')}/bare"
        return cls(await _client("s3", url, stack), parsed.split.netloc, key)

    def __init__(self, raw: Any, bucket: str, key: str) -> None:
        self.raw = raw
        self.place = {"Bucket": bucket, "Key": key}
        self.rows: list[Any] = []
        self.numbers = count(1)
        self.etag: str | None = None

    async def append(self) -> None:
        """Replace the object."""
        import zstandard

        self.rows.append(_row(next(self.numbers)))
        condition = {"IfMatch": self.etag} if self.etag else {"IfNoneMatch": "*"}
        body = zstandard.compress(json.encode(self.rows))
        self.etag = (await self.raw.put_object(**self.place, **condition, Body=body))["ETag"]

    async def last(self) -> list[Any]:
        """Read the object."""
        import zstandard

        found = await self.raw.get_object(**self.place)
        async with found["Body"] as body:
            rows: list[Any] = json.decode(zstandard.decompress(await body.read()))
        return rows[-10:]


class BareAgentCore:
    """aiobotocore: an event for a message."""

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> BareAgentCore:
        """Connect."""
        return cls(await _client("bedrock-agentcore", url, stack), StoreURL.parse(url).split.netloc)

    def __init__(self, raw: Any, memory: str) -> None:
        self.raw = raw
        self.place = {"memoryId": memory, "actorId": "bare", "sessionId": "bare"}
        self.numbers = count(1)

    async def append(self) -> None:
        """Create an event."""
        n = next(self.numbers)
        await self.raw.create_event(
            **self.place,
            eventTimestamp=time.time(),
            payload=[
                {"conversational": {"role": "USER", "content": {"text": text(n)}}},
                {"blob": json.encode(_row(n)).decode()},
            ],
        )

    async def last(self) -> list[Any]:
        """List ten events."""
        events: list[Any] = (await self.raw.list_events(**self.place, maxResults=10))["events"]
        return events


async def _client(service: str, url: str, stack: AsyncExitStack) -> Any:
    from aiobotocore.session import get_session

    options = StoreURL.parse(url).options
    client = get_session().create_client(service, region_name=options["region"], endpoint_url=options["endpoint"])
    return await stack.enter_async_context(client)


BARE: dict[str, Callable[[str, AsyncExitStack], Awaitable[Bare]]] = {
    "postgresql": BarePostgres.open,
    "valkey": BareRedis.open,
    "redis7": BareRedis.open,
    "dynamodb": BareDynamo.open,
    "s3": BareS3.open,
    "agentcore": BareAgentCore.open,
}
"""By bench, what does the same by hand."""
