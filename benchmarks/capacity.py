"""`python -m benchmarks.capacity [--check]`: sizing for many users on each engine, without prices.

Inputs are the measurements in footprint.json and the assumptions below, which may be changed. The tables are
written into docs/scaling.md.
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
"""Share of users active on a day."""
TURNS = 40
"""Appends, and as many recalls, of an active user on a day."""
PEAK = 4
"""Load of the busiest hour, as a multiple of the mean."""
DAYS = 30
GIB = 2**30

CORES, RAM = 16, 128
FULL = 0.7
"""Highest utilization of a disk, a memory or a core."""
DIMENSIONS = 256
QDRANT_BYTES = DIMENSIONS * 4 * 1.5
"""Bytes of a vector in Qdrant with its part of the graph: the rule of thumb in its documentation."""
COPIES = 2
"""A primary and a replica."""


def plan() -> dict[str, dict[str, str]]:
    """Return the rows of each engine's table."""
    measured = footprint.read()
    records = USERS * MEMORIES
    calls = USERS * ACTIVE * TURNS
    peak = calls / 86_400 * PEAK
    return {
        "postgresql": _postgresql(measured["PostgreSQL"], records, peak),
        "valkey": _valkey(measured["Valkey"], records, peak),
        "dynamodb": _dynamodb(measured["DynamoDB"], records, calls),
    }


def _postgresql(one: Footprint, records: int, peak: float) -> dict[str, str]:
    size = records * one.memory_bytes
    cores = peak * (one.append_server_s + one.recall_server_s) / FULL
    disk = size / FULL
    per_server = 8 * 1024 * GIB
    servers = max(math.ceil(disk / per_server), math.ceil(cores / CORES))
    return {
        "stored": _bytes(size),
        "disk, 70% full": _bytes(disk),
        "appends and recalls at peak": f"{peak:,.0f} a second each",
        "cores for them": f"{cores:,.1f}",
        "reads at peak, to load the index of each active user once": f"{_bytes(first_reads(one))} a second",
        "servers of 16 cores and 8 TiB": f"{servers:,} primaries, {servers:,} replicas",
        "users on a server": f"{USERS // servers:,}",
        "machines and disk to pay for": f"{COPIES * servers:,} machines, {_bytes(COPIES * disk)}",
    }


def first_reads(one: Footprint) -> float:
    """Return the bytes a second read at peak to load the indexes of users at their first search."""
    return USERS * ACTIVE / 86_400 * PEAK * MEMORIES * one.memory_bytes


def _valkey(one: Footprint, records: int, peak: float) -> dict[str, str]:
    size = records * one.memory_bytes
    cores = peak * (one.append_server_s + one.recall_server_s) / FULL
    # A node runs commands on one core, so a machine runs several nodes; memory is the bottleneck.
    machines = max(math.ceil(size / FULL / (RAM * GIB)), math.ceil(cores / CORES))
    return {
        "memory": _bytes(size),
        "memory, 70% full": _bytes(size / FULL),
        "appends and recalls at peak": f"{peak:,.0f} a second each",
        "cores for them": f"{cores:,.1f}",
        "machines of 16 cores and 128 GiB": f"{machines:,} primaries, {machines:,} replicas",
        "users on a machine": f"{USERS // machines:,}",
        "machines to pay for": f"{COPIES * machines:,}",
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
    # Without vectors elsewhere, the entries of each active user are read once a day, consistently.
    loads = USERS * ACTIVE * DAYS * MEMORIES * one.memory_bytes / 4096
    return {
        "stored in DynamoDB": _bytes(size),
        "appends and recalls a month": f"{month:,.0f} each",
        "write units a month": f"{writes / 1e6:,.0f} million",
        "read units a month": f"{reads / 1e6:,.0f} million",
        "read units a month without Qdrant": f"{(reads + loads) / 1e6:,.0f} million",
        "vectors in Qdrant": _bytes(vectors),
        "Qdrant, all in memory": f"{nodes:,} machines and {nodes:,} replicas",
        "Qdrant, one eighth in memory": f"{math.ceil(nodes / 8):,} machines and {math.ceil(nodes / 8):,} replicas, "
        f"{_bytes(COPIES * vectors / FULL)} of disk",
    }


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError


def sections() -> dict[str, str]:
    """Return every generated table of the page by the name of its marker."""
    found = {"footprint": footprint.table(footprint.read())}
    for name, lines in plan().items():
        rows = [f"| {what} | {value} |" for what, value in lines.items()]
        found[name] = "\n".join(["| quantity | value |", "|---|---|", *rows])
    return found


def written(page: str) -> str:
    """Return the page with its tables recomputed."""
    for name, text in sections().items():
        first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, mark, rest = page.partition(first)
        if not mark:
            raise SystemExit(f"{DOCUMENT} lacks the marker {first} for the table {name!r}")
        page = f"{before}{first}\n{text}\n{last}{rest.partition(last)[2]}"
    return page


def main(arguments: list[str]) -> int:
    """Write the page; with --check, only report whether it is up to date."""
    page = DOCUMENT.read_text(encoding="utf-8")
    fresh = written(page)
    if "--check" in arguments:
        if fresh != page:
            print(f"{DOCUMENT} is out of date: run python -m benchmarks.capacity", file=sys.stderr)
        return int(fresh != page)
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
