"""`python -m benchmarks.capacity [--check]`: what many users need on each engine, on paper.

The constants are the measured ones of footprint.json and the assumptions below, which may be changed.
The tables are written into docs/scaling.md.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from . import footprint
from .footprint import Footprint

DOCUMENT = Path(__file__).parent.parent / "docs" / "scaling.md"

USERS = 1_000_000
MEMORIES = 10_000
ACTIVE = 0.10
"""The share of users who are active on a day."""
TURNS = 40
"""Appends, and recalls, of an active user on a day."""
PEAK = 4
"""How many times the mean the busiest hour is."""
DAYS, HOURS = 30, 730
GIB = 2**30

# Prices are list prices of one region in US dollars, and are here to be replaced by one's own.
PRICES = {
    "16 cores, 128 GiB, an hour": 0.86,
    "disk, a GiB and month": 0.08,
    "DynamoDB, a million write units": 0.625,
    "DynamoDB, a million read units": 0.125,
    "DynamoDB, a GiB and month": 0.25,
    "S3, a GiB and month": 0.023,
}
CORES, RAM = 16, 128
FULL = 0.7
"""How full a disk, a memory or a core may be."""
DIMENSIONS = 256
QDRANT_BYTES = DIMENSIONS * 4 * 1.5
"""Of a vector in Qdrant with its part of the graph, by the rule of thumb in its documentation."""
COPIES = 2
"""A primary and a replica."""


def plan() -> dict[str, dict[str, str]]:
    """Return the lines of each engine's plan."""
    measured = footprint.read()
    records = USERS * MEMORIES
    calls = USERS * ACTIVE * TURNS
    peak = calls / 86_400 * PEAK
    return {
        "postgresql": _postgresql(measured["PostgreSQL"], records, calls, peak),
        "valkey": _valkey(measured["Valkey"], records, calls, peak),
        "dynamodb": _dynamodb(measured["DynamoDB"], records, calls),
    }


def _postgresql(one: Footprint, records: int, calls: float, peak: float) -> dict[str, str]:
    size = records * one.memory_bytes
    cores = peak * (one.append_server_s + one.recall_server_s) / FULL
    disk = size / FULL
    per_server = 8 * 1024 * GIB
    servers = max(math.ceil(disk / per_server), math.ceil(cores / CORES))
    price = COPIES * (
        servers * PRICES["16 cores, 128 GiB, an hour"] * HOURS + disk / GIB * PRICES["disk, a GiB and month"]
    )
    return {
        "stored": _bytes(size),
        "disk, with room": _bytes(disk),
        "appends and recalls at the busiest": f"{peak:,.0f} a second each",
        "cores for them": f"{cores:,.1f}",
        "read at the busiest, as each active user is first searched": f"{_bytes(first_reads(one))} a second",
        "servers of 16 cores and 8 TiB": f"{servers:,} primaries, {servers:,} replicas",
        "users on a server": f"{USERS // servers:,}",
        "a month": _dollars(price),
        "a user and month": f"${price / USERS:,.4f}",
    }


def first_reads(one: Footprint) -> float:
    """Return the bytes a second that are read at the busiest since users are searched for the first time."""
    return USERS * ACTIVE / 86_400 * PEAK * MEMORIES * one.memory_bytes


def _valkey(one: Footprint, records: int, calls: float, peak: float) -> dict[str, str]:
    size = records * one.memory_bytes
    cores = peak * (one.append_server_s + one.recall_server_s) / FULL
    # One node uses one core for commands, so a machine runs several of them; memory is what decides.
    machines = max(math.ceil(size / FULL / (RAM * GIB)), math.ceil(cores / CORES))
    price = COPIES * machines * PRICES["16 cores, 128 GiB, an hour"] * HOURS
    return {
        "memory": _bytes(size),
        "memory, with room": _bytes(size / FULL),
        "appends and recalls at the busiest": f"{peak:,.0f} a second each",
        "cores for them": f"{cores:,.1f}",
        "machines of 16 cores and 128 GiB": f"{machines:,} primaries, {machines:,} replicas",
        "users on a machine": f"{USERS // machines:,}",
        "a month": _dollars(price),
        "a user and month": f"${price / USERS:,.4f}",
    }


def _dynamodb(one: Footprint, records: int, calls: float) -> dict[str, str]:
    size = records * one.memory_bytes
    month = calls * DAYS
    # An append is a transaction over the head and the items of the record, each billed twice, by the KiB.
    writes = month * 2 * (1 + math.ceil(one.message_bytes / 1024) + 1)
    # A recall reads the list of streams and the ten best records, consistently.
    reads = month * (2 + 10)
    vectors = records * QDRANT_BYTES
    nodes = math.ceil(vectors / FULL / (RAM * GIB))
    dynamo = (
        writes / 1e6 * PRICES["DynamoDB, a million write units"]
        + reads / 1e6 * PRICES["DynamoDB, a million read units"]
        + size / GIB * PRICES["DynamoDB, a GiB and month"]
    )
    # Without vectors elsewhere, the entries of each active user are read once a day, consistently.
    loads = USERS * ACTIVE * DAYS * MEMORIES * one.memory_bytes / 4096
    without = dynamo + loads / 1e6 * PRICES["DynamoDB, a million read units"]
    qdrant = COPIES * nodes * PRICES["16 cores, 128 GiB, an hour"] * HOURS
    on_disk = COPIES * (
        math.ceil(nodes / 8) * PRICES["16 cores, 128 GiB, an hour"] * HOURS
        + vectors / FULL / GIB * PRICES["disk, a GiB and month"]
    )
    return {
        "stored in DynamoDB": _bytes(size),
        "appends and recalls a month": f"{month:,.0f} each",
        "DynamoDB a month": _dollars(dynamo),
        "DynamoDB alone, without Qdrant, a month": _dollars(without),
        "vectors in Qdrant": _bytes(vectors),
        "Qdrant, all in memory": f"{nodes:,} machines and {nodes:,} replicas, {_dollars(qdrant)} a month",
        "Qdrant, an eighth in memory": f"{math.ceil(nodes / 8):,} and {math.ceil(nodes / 8):,}, "
        f"{_dollars(on_disk)} a month",
        "together, a month": f"{_dollars(dynamo + on_disk)} to {_dollars(dynamo + qdrant)}",
        "a user and month": f"${(dynamo + on_disk) / USERS:,.4f} to ${(dynamo + qdrant) / USERS:,.4f}",
    }


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError


def _dollars(amount: float) -> str:
    return f"${round(amount, -2):,.0f}"


def sections() -> dict[str, str]:
    """Return every table of the page, by its mark."""
    found = {"footprint": footprint.table(footprint.read())}
    for name, lines in plan().items():
        rows = [f"| {what} | {value} |" for what, value in lines.items()]
        found[name] = "\n".join(["| what | how much |", "|---|---|", *rows])
    prices = [f"| {what} | ${price:g} |" for what, price in PRICES.items()]
    found["prices"] = "\n".join(["| what | price |", "|---|---|", *prices])
    return found


def written(page: str) -> str:
    """Return the page with its tables computed anew."""
    for name, text in sections().items():
        first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, mark, rest = page.partition(first)
        if not mark:
            raise SystemExit(f"{DOCUMENT} has no place for {name}: it lacks {first}")
        page = f"{before}{first}\n{text}\n{last}{rest.partition(last)[2]}"
    return page


def main(arguments: list[str]) -> int:
    """Write the page, or with --check tell whether it is up to date."""
    page = DOCUMENT.read_text(encoding="utf-8")
    fresh = written(page)
    if "--check" in arguments:
        if fresh != page:
            print(f"{DOCUMENT} is not what benchmarks/capacity.py computes: run it", file=sys.stderr)
        return int(fresh != page)
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
