"""The MCP server over streamable HTTP: one scope for each URL, both protocol versions, and the conformance suite."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import Client, MCPError

import mnemic
from mcp_clients import NODE, PACKAGES, data, run
from mnemic.mcp import PROFILES, build_server
from mnemic.mcp.server import Context
from mnemic.mcp.tools import Tool, ToolContext, ToolResult, object_schema
from mnemic.server.connection import connections
from mnemic.server.request_metrics import RequestMetrics
from mnemic.server.settings import Settings

DOCUMENT = Path(__file__).parent.parent / "docs" / "mcp.md"


@asynccontextmanager
async def served(*profiles: str) -> AsyncIterator[tuple[str, mnemic.AsyncMemory]]:
    """Serve a memory on a port of this machine; yield the address of MCP there, which a scope follows."""
    async with mnemic.open_async("memory://") as memory:

        def scope_of(ctx: Context) -> mnemic.AsyncScope:
            assert ctx.request is not None
            return memory.scope(mnemic.ScopePath(ctx.request.path_params["scope"]))

        server = build_server(scope_of, profiles)
        app = server.streamable_http_app(streamable_http_path="/mcp/{scope:path}")
        with socket.create_server(("127.0.0.1", 0)) as port:
            protocol: Any = connections(Settings(), RequestMetrics())  # of `mnemic serve`
            http = uvicorn.Server(uvicorn.Config(app, http=protocol, log_level="error"))
            serving = asyncio.create_task(http.serve([port]))
            try:
                yield f"http://127.0.0.1:{port.getsockname()[1]}/mcp", memory
            finally:
                http.should_exit = True
                await serving


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_url_is_the_scope(mode: str) -> None:
    async def test() -> None:
        async with served("default") as (url, memory):
            async with Client(f"{url}/acme/alice", mode=mode) as alice, Client(f"{url}/acme/bob", mode=mode) as bob:
                assert alice.protocol_version == ("2025-11-25" if mode == "legacy" else mode)
                await data(alice, "remember", text="Alice drinks tea")
                await data(bob, "remember", text="Bob drinks coffee")
                for client, name in ((alice, "Alice"), (bob, "Bob")):
                    hits = (await data(client, "recall", query="Who drinks what?"))["hits"]
                    assert [hit["text"].split()[0] for hit in hits] == [name]
            async with Client(f"{url}/acme/a%01b", mode=mode) as client:
                with pytest.raises(MCPError, match="control character"):
                    await client.call_tool("recall", {"query": "x"})
            assert [item.text for item in await memory.scope("acme", "bob").memories.list()] == ["Bob drinks coffee"]

    run(test)


async def simple_text(call: ToolContext) -> ToolResult:
    text = "This is a simple text response for testing."
    return ToolResult(text, {"text": text})


async def failing(call: ToolContext) -> ToolResult:
    raise mnemic.NotFoundError("This tool intentionally returns an error for testing")


TOOLS = [
    Tool(name, "A tool that the conformance suite calls.", run, object_schema(""), {"type": "object"})
    for name, run in (("test_simple_text", simple_text), ("test_error_handling", failing))
]


def failures_documented() -> set[str]:
    """Return the scenarios that docs/mcp.md lists, each with its reason."""
    section = DOCUMENT.read_text().partition("## Conformance")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 and row[2].strip() for row in rows)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])}


def test_conformance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "conformance", TOOLS)

    async def test() -> None:
        failed = set()
        async with served("default", "conformance") as (url, memory):
            await memory.scope("acme").notes.write("plan", "x")
            for version in ("2025-11-25", "2026-07-28"):
                arguments = ["server", "--url", f"{url}/acme", "--requirements", version, "-o", tmp_path / version]
                suite = await asyncio.create_subprocess_exec(
                    NODE,
                    PACKAGES / "conformance" / "dist" / "index.js",
                    *arguments,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                await suite.wait()
                ran = 0
                for file in (tmp_path / version).glob("*/checks.json"):
                    ran += 1
                    checks = json.loads(file.read_text())
                    if any(check["status"] == "FAILURE" for check in checks):
                        failed.add(re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", file.parent.name))
                assert ran > 30
        assert failed == failures_documented()

    run(test)
