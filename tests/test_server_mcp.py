"""MCP of the server: each address is a scope, profiles are chosen in the address, and nothing else is reachable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from http_server import make_key, serving
from mcp_clients import data, error, run
from mnemic.server.settings import Settings


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_two_scopes_and_two_profiles_at_once(mode: str) -> None:
    async def test(url: str) -> None:
        async with Client(f"{url}/acme/alice", mode=mode) as alice, Client(f"{url}/acme/bob", mode=mode) as bob:
            for client, text in ((alice, "Alice drinks tea"), (bob, "Bob drinks coffee")):
                await data(client, "remember", text=text)
            both = [data(client, "recall", query="Who drinks what?") for client in (alice, bob) for _ in range(5)]
            found = [[hit["text"] for hit in answer["hits"]] for answer in await asyncio.gather(*both)]
            assert found == [["Alice drinks tea"]] * 5 + [["Bob drinks coffee"]] * 5
        async with Client(f"{url}/acme/alice?profile=graph,chatgpt", mode=mode) as graph:
            tools = {tool.name for tool in (await graph.list_tools()).tools}
            assert {"create_entities", "search"} <= tools
            assert "remember" not in tools
        async with Client(url, mode=mode) as whole:
            assert len((await data(whole, "recall", query="Who drinks what?"))["hits"]) == 2

    with serving() as server:
        run(lambda: test(f"{server.base_url}/mcp"))


def test_bad_requests_are_problems() -> None:
    with serving() as server:
        for request, status, said in (
            ("GET /mcp/acme", 405, "POST"),
            ("DELETE /mcp/acme", 405, "POST"),
            ("POST /mcp/acme?profile=all", 422, "profile"),
            ("POST /mcp/acme?profiles=graph", 422, "profiles"),
            ("POST /mcp/acme//alice", 422, "segment"),
        ):
            method, _, path = request.partition(" ")
            answer = server.request(method, path)
            assert (answer.status_code, said in answer.json()["detail"]) == (status, True), (request, answer.text)
    with serving(settings=Settings(mcp=False)) as server:
        assert server.post("/mcp/acme").status_code == 404


def test_a_body_that_is_too_large_is_refused() -> None:
    with serving(settings=Settings(max_body_bytes=10_000)) as server:
        assert server.post("/mcp/acme", content=b"x" * 20_000).status_code == 413


def test_a_missing_resource_is_an_error_of_the_protocol() -> None:
    async def test(url: str) -> None:
        async with Client(url) as client:
            with pytest.raises(MCPError, match="plan"):
                await client.read_resource("mnemic://notes/plan")

    with serving() as server:
        run(lambda: test(f"{server.base_url}/mcp/acme"))


def test_keys_apply(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    keys = {"alice": make_key(url, "acme/alice", "read", "write"), "reader": make_key(url, "acme/alice", "read")}

    async def test(base: str) -> None:
        @asynccontextmanager
        async def client(key: str, scope: str) -> AsyncIterator[Client]:
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
                async with Client(streamable_http_client(f"{base}/mcp/{scope}", http_client=http)) as client:
                    yield client

        async with client(keys["alice"], "acme/alice") as alice, client(keys["reader"], "acme/alice") as reader:
            await data(alice, "remember", text="Alice drinks tea")
            assert len((await data(reader, "recall", query="tea"))["hits"]) == 1
            assert "write" in await error(reader, "remember", text="Alice drinks beer")
        async with client(keys["alice"], "acme/bob") as bob:
            assert (await data(bob, "recall", query="tea"))["hits"] == []
            assert "acme/bob" in await error(bob, "remember", text="mine now")

    with serving(url, settings=Settings(require_key=True)) as server:
        assert server.post("/mcp/acme/alice", headers={"Authorization": "Bearer wrong"}).status_code == 401
        run(lambda: test(str(server.base_url)))
