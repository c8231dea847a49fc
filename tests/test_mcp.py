"""The MCP server, with the client of the official SDK over stdio in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters

import mnemic
from mnemic.tokens import encoding

MAX_TOKENS = 1500
"""What the definitions of the default tools may cost together."""


@asynccontextmanager
async def connected(*options: str, mode: str = "legacy", **variables: str) -> AsyncIterator[Client]:
    """Yield a client of `mnemic mcp` with these options."""
    environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "mnemic", "mcp", *options], env=environment | variables
    )
    async with Client(server, mode=mode) as client:
        yield client


async def data(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the structured result of a call that must succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return result.structured_content


async def error(client: Client, tool: str, **arguments: Any) -> str:
    """Return the one line of a call that must fail."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert "\n" not in text_of(result)
    return text_of(result)


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_default_tools_over_stdio(tmp_path: Path, mode: str) -> None:
    store = str(tmp_path / "agent.db")

    async def test() -> None:
        async with connected("--store", store, "--scope", "acme/alice", mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["remember", "recall", "forget", "context", "note", "facts"]
            tea = await data(client, "remember", text="Alice drinks green tea")
            found = await client.call_tool("recall", {"query": "What does Alice drink?"})
            assert found.structured_content["hits"][0]["id"] == tea["id"]
            assert text_of(found).startswith("<memory>\nQuoted from memory.")
            assert "green tea" in (await data(client, "context", query="tea"))["text"]
            written = await data(client, "note", action="write", key="plan", value="book", description="To do")
            assert (await data(client, "note", action="read", key="plan"))["value"] == "book"
            assert (await data(client, "note", action="list"))["notes"][0]["description"] == "To do"
            stale = await error(client, "note", action="write", key="plan", value="x", if_version=9)
            assert f"version {written['version']}" in stale
            await data(client, "facts", action="add", subject="Alice", predicate="lives_in", object="Oslo", single=True)
            await data(client, "facts", action="add", subject="Alice", predicate="lives_in", object="Rome", single=True)
            asked = await data(client, "facts", action="ask", subject="Alice", history=True)
            assert [fact["object"] for fact in asked["facts"]] == ["Oslo", "Rome"]
            assert await data(client, "forget", ids=[tea["id"]]) == {"deleted": 1}

    run(test)
    with mnemic.open(f"sqlite:///{store}") as memory:
        assert [note.metadata for note in memory.scope("acme", "alice").notes.list()] == [{"source": "mcp"}]


def test_the_default_tools_cost_few_tokens(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected("--store", str(tmp_path / "agent.db")) as client:
            tools = (await client.list_tools()).tools
            sent = [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools]
            assert encoding().count(json.dumps(sent, separators=(",", ":"))) <= MAX_TOKENS

    run(test)


def test_errors_are_results_of_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected("--store", str(tmp_path / "agent.db")) as client:
            assert await error(client, "recall", query=5) == "recall.query: 5 is not of type 'string'"
            assert "'scope' was unexpected" in await error(client, "recall", query="x", scope="other")
            assert "nothing with the id 'tea'" in await error(client, "forget", ids=["tea"])
            assert await error(client, "note", action="read") == "the action 'read' needs 'key'"
            assert "since must be a time" in await error(client, "recall", query="x", since="May")
            assert len(await error(client, "recall", query=["x" * 100_000])) < 1000
            with pytest.raises(MCPError, match="there is no tool 'nothing'"):
                await client.call_tool("nothing", {})

    run(test)
