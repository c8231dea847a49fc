"""Every endpoint, with a key of another scope, without one, with an invalid one, and with too few rights.

Two servers get the same requests. Only one of them has the data of another tenant, and the answers must not differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec import UNSET

import mnemic
from http_server import serving
from mnemic.records import ScopePath
from mnemic.server.api_keys import ApiKeys
from mnemic.server.app import all_endpoints
from mnemic.server.decoding import JSON_TYPE
from mnemic.server.endpoint import Endpoint
from mnemic.server.mem0.endpoints import ID as MEM0_ID

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
ENDPOINTS = all_endpoints()
CLOSED = [one for one in ENDPOINTS if one.right is not None]
MINE, THEIRS = "acme/alice", "acme/bob"
SECRET = "Bob sleeps badly after coffee"
"""What nobody else may see."""


class Tenants:
    """A server, the keys to it, and its store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: dict[str, str] = {}
        self.theirs = "0" * 16
        """Id of the other tenant's key."""

    def fill(self, scope: str, text: str) -> None:
        """Store what the examples are about."""
        with mnemic.open(self.url, clock=lambda: NOW) as memory:
            here = memory.scope(ScopePath(scope))
            for id in ("sleep", MEM0_ID):
                here.remember(text, id=id, created=NOW)
                here.scope("carol").remember(text, id=id, created=NOW)
            here.remember(text, id="old", metadata={"topic": "cats"})
            here.forget(metadata={"topic": "cats"}, archive=True)
            here.notes.write("plan", {"monday": text}, description=text)
            here.facts.add("Alice", "lives_in", text)
            for session in ("monday", "tuesday"):
                chat = here.session(session, max_messages=2)
                chat.set_system(text)
                for n in range(1, 4):
                    chat.add("user", f"{text} {n}", id=f"m{n}", timestamp=NOW)

    def make_key(self, name: str, scope: str, *rights: str, expires: datetime | None = None) -> str:
        """Create a key; return its id."""
        with mnemic.open(self.url, clock=lambda: NOW) as memory:
            made = memory._driver.run(ApiKeys(memory._async).create("bot", scope, rights, expires))
        self.keys[name] = made.secret
        return made.key.id

    def change_key(self, change: str, *arguments: Any) -> None:
        with mnemic.open(self.url, clock=lambda: NOW) as memory:
            memory._driver.run(getattr(ApiKeys(memory._async), change)(*arguments))

    def content(self, scope: str) -> bytes:
        """Return all that is in a scope."""
        with mnemic.open(self.url, clock=lambda: NOW) as memory:
            file = BytesIO()
            memory.restricted(ScopePath(), "read").scope(ScopePath(scope)).export_to(file)
            return file.getvalue()

    def send(self, client: httpx.Client, one: Endpoint, key: str | None, scope: str | None = None) -> httpx.Response:
        """Send the example of an endpoint for a scope."""
        example = one.example
        names = {name: self.theirs if one.tag == "keys" else value for name, value in example.path.items()}
        path = re.sub(r"{(\w+)(:\w+)?}", lambda found: quote(names[found[1]], safe=""), one.path)
        query = {name: _moved(value, scope) for name, value in example.query.items()}
        if one.scoped and scope is not None:
            query["scope"] = scope
        headers = {**example.headers, **({} if key is None else {"Authorization": f"Bearer {key}"})}
        body: dict[str, Any] = {}
        if example.body is not UNSET:
            body = {"json": _moved(example.body, scope)} if one.takes == JSON_TYPE else {"content": example.body}
        return client.request(one.method, path, params=query, headers=headers, **body)


def _moved(value: Any, scope: str | None) -> Any:
    """Return a part of an example for another scope."""
    return value if scope is None else json.loads(json.dumps(value).replace(MINE, scope))


def _shown(answer: httpx.Response) -> tuple[int, str]:
    """Return an answer without random ids, the time of a new message, and the last use of keys."""
    text = re.sub(r"[0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", answer.text)
    text = re.sub(r'"last_used":("[^"]*"|null)', "", text)
    return answer.status_code, re.sub(r'"timestamp":"[^"]*"', "", text)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Tenants, httpx.Client]]]:
    """Two servers: the first has the data of another tenant."""
    with ExitStack() as stack:
        found = []
        for n in range(2):
            folder: Path = tmp_path_factory.mktemp("served")
            tenants = Tenants(f"sqlite:///{folder / 'memory.db'}?synchronous=normal")
            tenants.fill(MINE, "Alice likes tea")
            tenants.make_key("mine", MINE, "read", "write", "erase", "admin")
            tenants.make_key("reader", MINE, "read")
            tenants.make_key("writer", MINE, "read", "write")
            if n == 0:
                tenants.fill(THEIRS, SECRET)
                tenants.fill("", SECRET)
                tenants.fill("acme", SECRET)
                tenants.theirs = tenants.make_key("theirs", THEIRS, "read", "write", "erase", "admin")
            expired = tenants.make_key("expired", MINE, "read", expires=NOW + timedelta(days=1))
            tenants.change_key("expire", expired, NOW)
            tenants.change_key("revoke", tenants.make_key("revoked", MINE, "read"))
            client = stack.enter_context(serving(tenants.url, audit=True, clock=lambda: NOW))
            found.append((tenants, client))
        yield found


def test_without_a_valid_key_every_endpoint_answers_the_same(servers: list[tuple[Tenants, httpx.Client]]) -> None:
    tenants, client = servers[0]
    before = tenants.content("")
    for key, status in (
        (None, 401),
        (tenants.keys["expired"], 401),
        (tenants.keys["revoked"], 401),
        (tenants.keys["mine"][:-1], 401),
        (f"{tenants.keys['mine'][:-1]}{'0' if tenants.keys['mine'][-1] != '0' else '1'}", 401),
    ):
        answers = {_shown(tenants.send(client, one, key, MINE)) for one in CLOSED}
        answers |= {_shown(client.get(path)) for path in ("/api/v1/nothing", "/mcp", "/mcp/acme", "/x") if key is None}
        assert [answer[0] for answer in answers] == [status], key
    assert tenants.content("") == before


def test_too_few_rights_are_refused_and_change_nothing(servers: list[tuple[Tenants, httpx.Client]]) -> None:
    tenants, client = servers[0]
    before = tenants.content("")
    for key, rights in (("reader", {"read"}), ("writer", {"read", "write"})):
        for one in CLOSED:
            if one.right not in rights:
                assert tenants.send(client, one, tenants.keys[key], MINE).status_code == 403, (key, one)
    for one in CLOSED:
        if one.right == "read":
            answer = tenants.send(client, one, tenants.keys["reader"], MINE)
            assert SECRET not in answer.text
            assert answer.status_code != 401, one
    assert tenants.content("") == before
    purge = {"ops": [{"op": "purge", "scope": {"path": MINE}, "kind": "note"}]}
    headers = {"Authorization": f"Bearer {tenants.keys['writer']}"}
    assert client.post("/api/v1/store/write", json=purge, headers=headers).status_code == 403
    assert tenants.content("") == before


def test_another_scope_looks_the_same_whether_or_not_it_has_anything(
    servers: list[tuple[Tenants, httpx.Client]],
) -> None:
    before = [tenants.content(THEIRS) for tenants, _ in servers]
    for scope in (THEIRS, "acme", ""):
        for one in ENDPOINTS:
            if one.path in ("/metrics", "/openapi.json"):
                continue  # which are about the server
            answers = [tenants.send(client, one, tenants.keys["mine"], scope) for tenants, client in servers]
            assert _shown(answers[0]) == _shown(answers[1]), (scope, one)
            assert SECRET not in answers[0].text, (scope, one)
            # Only what is outside of the scope may be refused here.
            assert answers[0].status_code != 401, (scope, one)
    assert [tenants.content(THEIRS) for tenants, _ in servers] == before
    keys = servers[0][1].get("/api/v1/keys", headers={"Authorization": f"Bearer {servers[0][0].keys['theirs']}"})
    assert [key["id"] for key in keys.json()["items"]] == [servers[0][0].theirs]


def test_figures_of_the_whole_server_need_a_key_for_everything(servers: list[tuple[Tenants, httpx.Client]]) -> None:
    tenants, client = servers[0]
    for path in ("/metrics", "/api/v1/metrics"):
        answer = client.get(path, headers={"Authorization": f"Bearer {tenants.keys['mine']}"})
        assert answer.status_code == 403


@pytest.mark.parametrize("scope", [THEIRS, "acme", ""])
def test_tools_of_mcp_see_no_other_scope(servers: list[tuple[Tenants, httpx.Client]], scope: str) -> None:
    calls = [("recall", {"query": "Who sleeps badly?"}), ("remember", {"text": "mine now"}), ("list_notes", {})]
    headers = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}
    before = [tenants.content(THEIRS) for tenants, _ in servers]
    for tool, arguments in calls:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        answers = [
            client.post(
                f"/mcp/{scope}", json=asked, headers={**headers, "Authorization": f"Bearer {tenants.keys['mine']}"}
            )
            for tenants, client in servers
        ]
        assert _shown(answers[0]) == _shown(answers[1])
        assert answers[0].status_code == 200, answers[0].text
        assert SECRET not in answers[0].text
    assert [tenants.content(THEIRS) for tenants, _ in servers] == before
