"""A recall through the MCP server over stdio, against the same call in this process, on the same file."""

from __future__ import annotations

import asyncio
import statistics
import sys
from pathlib import Path
from time import perf_counter

from mcp import Client, StdioServerParameters

import mnemic

from .measuring import Result
from .recalling import QUESTIONS, Texts, fill

MEMORIES = 10_000
CALLS = 500
MOST_MS = 3.0


def run(folder: Path) -> list[Result]:
    """Return what was measured."""
    url = f"sqlite:///{folder / 'mcp.db'}"
    with mnemic.open(url) as memory:
        fill(memory.scope("acme", "alice"), Texts().some(MEMORIES))
    through, inside = asyncio.run(_in_turns(url))
    more = through - inside
    return [
        Result(
            f"recall of 5 among {MEMORIES:,} memories through MCP over stdio, less the same call in process, "
            f"p50 of {CALLS} calls of each",
            f"at most {MOST_MS:g} ms",
            f"{more:.1f} ms ({through:.1f} and {inside:.1f})",
            more <= MOST_MS,
        )
    ]


async def _in_turns(url: str) -> tuple[float, float]:
    """Return the median milliseconds of a call through the server, and of one in process, made in turns."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "mnemic", "mcp", "--store", url, "--scope", "acme/alice"]
    )
    through, inside = [], []
    async with mnemic.open_async(url) as memory, Client(server, mode="legacy") as client:
        scope = memory.scope("acme", "alice")
        for n in range(CALLS):
            query = QUESTIONS[n % len(QUESTIONS)]
            start = perf_counter()
            result = await client.call_tool("recall", {"query": query})
            middle = perf_counter()
            hits = await scope.recall(query)
            end = perf_counter()
            assert result.structured_content is not None
            assert [hit["id"] for hit in result.structured_content["hits"]] == [hit.id for hit in hits]
            through.append(1000 * (middle - start))
            inside.append(1000 * (end - middle))
    return statistics.median(through), statistics.median(inside)
