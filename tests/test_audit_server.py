"""Actor and address of every change through a server come from its authentication, whatever the way in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import mnemic
from mnemic import SigningKey
from mnemic.server.api_keys import ApiKeys
from server_process import Served, served

TRUSTED = "127.0.0.1"


def key_named(url: str, name: str, scope: str = "", *rights: str) -> str:
    given = rights or ("read", "write", "erase", "admin")
    with mnemic.open(url, embedder=None) as memory:
        return memory._driver.run(ApiKeys(memory._async).create(name, scope, given)).secret


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str, Path]]:
    """A server with a signing key that logs reads, its store, and the file of the key; it trusts a proxy."""
    folder = tmp_path_factory.mktemp("audited")
    url = f"sqlite:///{folder / 'memory.db'}"
    (key_file := folder / "signing").write_text(SigningKey.generate().secret_text())
    flags = ["--require-key", "--audit-reads", "--signing-key-file", str(key_file), "--trusted-proxies", TRUSTED]
    key_named(url, "first")
    with served(url, *flags) as server:
        yield server, url, key_file


def entries(audited: tuple[Served, str, Path], actor: str) -> list[mnemic.AuditEntry]:
    _, url, key_file = audited
    with mnemic.open(url, audit=True, signing_key=key_file, embedder=None) as memory:
        verified = memory.audit_verify()
        assert (verified.problems, verified.keyed) == ([], True)
        return memory.audit_trail(actor=actor)


def base(audited: tuple[Served, str, Path]) -> str:
    return f"http://127.0.0.1:{audited[0].port}"


def through_api(base: str, key: str) -> None:
    answer = httpx.put(f"{base}/api/v1/notes/plan?scope=acme", json={"value": 1}, headers=bearer(key), timeout=60)
    assert answer.status_code in (200, 201), answer.text


def through_store(base: str, key: str) -> None:
    with mnemic.open(base.replace("http://", f"http://:{key}@"), embedder=None) as memory:
        memory.scope("acme").notes.write("plan", 1)


def through_mcp(base: str, key: str) -> None:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def call() -> None:
        async with httpx2.AsyncClient(headers=bearer(key), timeout=60) as http:
            async with Client(streamable_http_client(f"{base}/mcp/acme", http_client=http)) as client:
                assert not (await client.call_tool("remember", {"text": "Alice drinks tea"})).is_error

    asyncio.run(call())


def through_mem0(base: str, key: str) -> None:
    body = {"messages": [{"role": "user", "content": "Alice drinks tea"}], "user_id": "alice", "infer": False}
    answer = httpx.post(f"{base}/v1/memories/", json=body, headers={"Authorization": f"Token {key}"}, timeout=60)
    assert answer.status_code == 200, answer.text


def through_dashboard(base: str, key: str) -> None:
    with httpx.Client(base_url=base, headers={"Origin": base}, timeout=60) as browser:
        browser.post("/dashboard/login", json={"key": key}).raise_for_status()
        session = browser.get("/dashboard/session")
        answer = browser.put(
            "/api/v1/notes/plan?scope=acme", json={"value": 2}, headers={"X-CSRF-Token": session.json()["csrf"]}
        )
        assert answer.status_code in (200, 201), answer.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


WAYS = {way.__name__: way for way in (through_api, through_store, through_mcp, through_mem0, through_dashboard)}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_has_the_name_of_the_key_and_the_address(way: str, audited: tuple[Served, str, Path]) -> None:
    WAYS[way](base(audited), key_named(audited[1], way))
    found = [entry for entry in entries(audited, way) if entry.operation == "put"]
    assert found
    assert {(entry.actor, entry.address) for entry in found} == {(way, "127.0.0.1")}


def test_reads_are_logged_with_the_actor(audited: tuple[Served, str, Path]) -> None:
    key = key_named(audited[1], "reader", "", "read")
    answer = httpx.post(
        f"{base(audited)}/api/v1/recall?scope=acme", json={"query": "tea"}, headers=bearer(key), timeout=60
    )
    assert answer.status_code == 200
    found = [entry for entry in entries(audited, "reader") if entry.operation == "recall"]
    assert [(entry.scope.path, entry.address, entry.content) for entry in found] == [("acme", "127.0.0.1", None)]


def test_an_address_is_taken_from_a_trusted_proxy_alone(audited: tuple[Served, str, Path], tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.9"}
    note = "/api/v1/notes/plan?scope=proxied"
    key = key_named(audited[1], "behind a proxy")
    answer = httpx.put(f"{base(audited)}{note}", json={"value": 1}, headers={**bearer(key), **forwarded}, timeout=60)
    assert answer.status_code in (200, 201), answer.text
    assert {entry.address for entry in entries(audited, "behind a proxy")} == {"203.0.113.9"}

    url = f"sqlite:///{tmp_path / 'memory.db'}"
    key = key_named(url, "direct")
    with served(url, "--require-key") as server:
        direct = f"http://127.0.0.1:{server.port}{note}"
        httpx.put(direct, json={"value": 1}, headers={**bearer(key), **forwarded}, timeout=60)
    with mnemic.open(url, audit=True, embedder=None) as memory:
        assert {entry.address for entry in memory.audit_trail(actor="direct")} == {"127.0.0.1"}


def test_the_log_is_verified_over_http_within_the_scope_of_a_key(audited: tuple[Served, str, Path]) -> None:
    url = f"{base(audited)}/api/v1/audit/verification"
    through_api(base(audited), key_named(audited[1], "somebody"))
    answer: Any = httpx.get(url, headers=bearer(key_named(audited[1], "whole")), timeout=60).json()
    assert (answer["intact"], answer["keyed"], answer["problems"]) == (True, True, [])
    assert answer["entries"] > 0
    tenant = key_named(audited[1], "tenant", "another", "read", "admin")
    assert httpx.get(url, headers=bearer(tenant), timeout=60).json()["entries"] == 0
    assert httpx.get(url, headers=bearer(key_named(audited[1], "r", "", "read")), timeout=60).status_code == 403
