"""The HTTP API does what the library does: pages, versions, retries, tool calls, export and import as streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_server import make_key, serving
from mnemic.errors import InvalidValueError
from mnemic.server.endpoint import ENDPOINTS
from mnemic.server.jwt_tokens import fill_template
from mnemic.server.settings import Settings

SCOPE = {"scope": "acme/alice"}
MESSAGES = "/api/v1/sessions/monday/messages"


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """A client of a server over an empty memory."""
    with serving() as client:
        yield client


def pages(client: httpx.Client, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """Return all pages of a list."""
    found: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] = {}
    for _ in range(50):
        answer = client.get(path, params={**SCOPE, **query, **cursor})
        page = answer.raise_for_status().json()
        found.append(page["items"])
        if page["cursor"] is None:
            return found
        cursor = {"cursor": page["cursor"]}
    raise AssertionError(f"{path} does not end")


def test_messages_come_in_pages_from_either_end(client: httpx.Client) -> None:
    given = [{"role": "user", "content": f"{n}", "id": f"m{n}"} for n in range(7)]
    assert client.post(MESSAGES, params=SCOPE, json=given).status_code == 201
    newest = [[one["id"] for one in page] for page in pages(client, MESSAGES, limit=3)]
    assert newest == [["m4", "m5", "m6"], ["m1", "m2", "m3"], ["m0"]]
    oldest = [[one["id"] for one in page] for page in pages(client, MESSAGES, limit=3, order="oldest")]
    assert oldest == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6"]]
    cursor = client.get(MESSAGES, params={**SCOPE, "limit": 3}).json()["cursor"]
    other = client.get(MESSAGES, params={**SCOPE, "limit": 3, "order": "oldest", "cursor": cursor})
    assert other.status_code == 422


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_page_of_large_messages_has_fewer(client: httpx.Client, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr("mnemic.server.api.paging.MOST_BYTES", 50_000)
    given = [{"role": "user", "content": "x" * 2_000, "id": f"m{n:03}"} for n in range(200)]
    assert client.post(MESSAGES, params=SCOPE, json=given).status_code == 201
    found = pages(client, MESSAGES, limit=1000, order=order)
    assert max(map(len, found)) <= 32
    whole = [one["id"] for page in (reversed(found) if order == "newest" else found) for one in page]
    assert whole == [f"m{n:03}" for n in range(200)]


@pytest.mark.parametrize("order", ["name", "recent"])
def test_sessions_come_in_pages_that_are_complete(client: httpx.Client, order: str) -> None:
    for name in ("b", "a", "d", "c", "e"):
        client.post(f"/api/v1/sessions/{name}/messages", params=SCOPE, json={"role": "user", "content": name})
    found = [one["name"] for page in pages(client, "/api/v1/sessions", limit=2, order=order) for one in page]
    assert found == {"name": ["a", "b", "c", "d", "e"], "recent": ["e", "c", "d", "a", "b"]}[order]


def test_no_session_is_left_out_while_others_write(client: httpx.Client) -> None:
    def say(name: str) -> None:
        client.post(f"/api/v1/sessions/{name}/messages", params=SCOPE, json={"role": "user", "content": "hi"})

    names = [f"s{n:02}" for n in range(12)]
    for name in names:
        say(name)
    found: list[str] = []
    query: dict[str, Any] = {**SCOPE, "order": "recent", "limit": 3}
    for n in range(12):
        page = client.get("/api/v1/sessions", params=query).raise_for_status().json()
        found += [one["name"] for one in page["items"]]
        if page["cursor"] is None:
            break
        query["cursor"] = page["cursor"]
        say(names[n % 5])
    assert page["cursor"] is None
    assert set(found) == set(names)


def test_a_cursor_is_of_one_list_and_one_scope(client: httpx.Client) -> None:
    for scope in ("acme/alice", "acme/bob"):
        client.post(MESSAGES, params={"scope": scope}, json=[{"role": "user", "content": f"{n}"} for n in range(3)])
        client.post("/api/v1/memories", params={"scope": scope}, json=[{"text": f"{n}"} for n in range(3)])
    cursor = client.get("/api/v1/memories", params={**SCOPE, "limit": 1}).json()["cursor"]
    for path, scope, status in (
        ("/api/v1/memories", "acme/alice", 200),
        ("/api/v1/memories", "acme/bob", 422),
        (MESSAGES, "acme/alice", 422),
        ("/api/v1/timeline/records", "acme/alice", 422),
    ):
        answer = client.get(path, params={"scope": scope, "limit": 1, "cursor": cursor})
        assert answer.status_code == status, path


def test_a_condition_is_kept_or_refused(client: httpx.Client) -> None:
    client.put("/api/v1/notes/plan", params=SCOPE, json={"value": 1}).raise_for_status()
    client.post("/api/v1/memories", params=SCOPE, json={"text": "tea", "id": "m"}).raise_for_status()
    item = {**SCOPE, "kind": "memory", "id": "m"}
    for status, header, value, method, path, query, body in (
        (412, "If-Match", '"7"', "PATCH", "/api/v1/notes/plan", SCOPE, {"key": "b"}),
        (412, "If-Match", '"7"', "PATCH", "/api/v1/items/m", SCOPE, {"pinned": True}),
        (412, "If-Match", '"7"', "PATCH", "/api/v1/timeline/record", item, {"pinned": True}),
        (400, "If-Match", "1", "PUT", "/api/v1/notes/plan", SCOPE, {"value": 2}),
        (400, "If-Match", "*", "PUT", "/api/v1/notes/plan", SCOPE, {"value": 2}),
        (400, "If-Match", '"1", "2"', "PUT", "/api/v1/notes/plan", SCOPE, {"value": 2}),
        (400, "If-Match", '"1"', "PUT", "/api/v1/sessions/a/system", SCOPE, {"content": "hi"}),
        (400, "Idempotency-Key", "k", "PUT", "/api/v1/notes/plan", SCOPE, {"value": 2}),
        (
            400,
            "Idempotency-Key",
            "k",
            "POST",
            "/api/v1/facts",
            SCOPE,
            {"subject": "a", "predicate": "b", "object": "c"},
        ),
        (200, "If-Match", '"1"', "PATCH", "/api/v1/items/m", SCOPE, {"pinned": True}),
        (200, "If-Match", '"1"', "PATCH", "/api/v1/notes/plan", SCOPE, {"key": "plan"}),
    ):
        answer = client.request(method, path, params=query, json=body, headers={header: value})
        assert answer.status_code == status, (path, answer.text)
    assert client.get("/api/v1/notes/plan", params=SCOPE).json()["value"] == 1


def test_a_write_outside_the_scope_of_the_key_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    key = make_key(url, "acme", "read", "write", "erase")
    empty = b'{"format":"mnemic.export/1","scope":"","exported":"2026-01-01T00:00:00Z"}\n{"records":0}\n'
    with serving(url) as client:
        for method, path, given in (
            ("POST", "/api/v1/erase", {"json": {}}),
            ("DELETE", "/api/v1/facts?subject=a&predicate=b", {}),
            ("POST", "/api/v1/facts/end", {"json": {"subject": "a", "predicate": "b"}}),
            ("POST", "/api/v1/memories/used", {"json": {"ids": ["a"]}}),
            ("POST", "/api/v1/forget", {"json": {"ids": ["a"]}}),
            ("DELETE", "/api/v1/sessions/a", {}),
            ("POST", "/api/v1/import", {"content": empty}),
        ):
            address = f"{path}{'&' if '?' in path else '?'}scope=other"
            answer = client.request(method, address, headers={"X-API-Key": key}, **given)
            assert answer.status_code == 403, (path, answer.text)


def test_tool_calls_and_every_other_field_come_back(client: httpx.Client) -> None:
    given: list[dict[str, Any]] = [
        {
            "role": "assistant",
            "content": None,
            "id": "call",
            "name": "Guide",
            "tool_calls": [{"id": "c1", "name": "look", "arguments": '{"at": 1}', "call_id": "x"}],
            "agent_calls": [{"agent_name": "Other", "request": {"deep": [1, 2.5, None]}}],
            "structured_data": {"a": [True]},
            "metadata": {"n": 1},
            "timestamp": "2026-01-31T09:30:00Z",
        },
        {"role": "tool", "content": [{"type": "text", "text": "seen"}], "id": "result", "tool_call_id": "c1"},
        {"role": "user", "content": "", "id": "empty", "images": ["/etc/passwd"]},
    ]
    client.post(MESSAGES, params=SCOPE, json=given).raise_for_status()
    for one in given:
        found = client.get(f"{MESSAGES}/{one['id']}", params=SCOPE).json()
        for name, value in one.items():
            assert found[name] == value, name


def test_the_same_idempotency_key_adds_once(client: httpx.Client) -> None:
    def add(path: str, body: Any, key: str, scope: str = "acme/alice") -> httpx.Response:
        return client.post(path, params={"scope": scope}, json=body, headers={"Idempotency-Key": key})

    first = add(MESSAGES, {"role": "user", "content": "hello"}, "k1")
    again = add(MESSAGES, {"role": "user", "content": "hello"}, "k1")
    assert again.json() == first.json()
    assert add(MESSAGES, {"role": "user", "content": "hello"}, "").status_code == 400
    assert add(MESSAGES, {"role": "user", "content": "other"}, "k1").status_code == 409
    add(MESSAGES, {"role": "user", "content": "hello"}, "k1", "acme/bob").raise_for_status()
    assert [len(page) for page in pages(client, MESSAGES)] == [1]
    for _ in range(2):
        add("/api/v1/memories", {"text": "Alice has a cat."}, "k2").raise_for_status()
    assert add("/api/v1/memories", {"text": "Alice has a dog."}, "k2").status_code == 409
    assert [one["text"] for one in pages(client, "/api/v1/memories")[0]] == ["Alice has a cat."]


def test_a_memory_is_changed_if_its_version_is_as_expected(client: httpx.Client) -> None:
    client.post("/api/v1/memories", params=SCOPE, json={"text": "Alice has a cat.", "id": "a/b"}).raise_for_status()
    path = "/api/v1/memories/a%2Fb"
    assert client.get(path, params=SCOPE).headers["ETag"] == '"1"'
    changed = client.patch(path, params=SCOPE, json={"importance": 3}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
    for method, body in (("PATCH", {"importance": 9}), ("DELETE", None)):
        old = client.request(method, path, params=SCOPE, json=body, headers={"If-Match": '"1"'})
        assert (old.status_code, old.json()["current"]) == (412, 2)
    assert client.get(path, params=SCOPE).json()["importance"] == 3
    assert client.delete(path, params=SCOPE, headers={"If-Match": '"2"'}).status_code == 204
    assert client.delete(path, params=SCOPE).status_code == 404


def test_an_archived_memory_is_listed_and_restored_as_it_was(client: httpx.Client) -> None:
    memory = {"text": "Alice has a cat.", "id": "cat", "importance": 0.25, "metadata": {"a": 1}}
    client.post("/api/v1/memories", params=SCOPE, json=memory).raise_for_status()
    forget = {"faded_below": 0.5, "kinds": ["memory"], "archive": True}
    assert client.post("/api/v1/forget", params=SCOPE, json=forget).json()["archived"] == 1
    (kept,) = pages(client, "/api/v1/memories/archived")[0]
    assert {name: kept[name] for name in memory} == memory
    restore = {"id": "cat", "used": False}
    back = client.post("/api/v1/memories/restore", params=SCOPE, json=restore).json()
    assert {name: back[name] for name in memory} == memory
    (fading,) = client.get("/api/v1/memories/fading", params=SCOPE).json()["fading"]
    assert (fading["uses"], fading["used"]) == (0, None)


def test_a_message_that_is_replaced_keeps_its_place(client: httpx.Client) -> None:
    given = [{"role": "user", "content": f"{n}", "id": f"m{n}"} for n in range(3)]
    client.post(MESSAGES, params=SCOPE, json=given).raise_for_status()
    before = client.get(f"{MESSAGES}/m1", params=SCOPE).json()
    after = client.put(f"{MESSAGES}/m1", params=SCOPE, json={"role": "user", "content": "new"}).json()
    assert after == {**before, "content": "new"}
    assert [one["content"] for one in pages(client, MESSAGES)[0]] == ["0", "new", "2"]
    assert client.put(f"{MESSAGES}/m9", params=SCOPE, json={"role": "user", "content": ""}).status_code == 404


def test_nothing_is_erased_without_a_scope(client: httpx.Client) -> None:
    client.put("/api/v1/notes/a", params=SCOPE, json={"value": 1}).raise_for_status()
    for nothing in ("", "?scope="):
        assert client.post(f"/api/v1/erase{nothing}", json={}).status_code == 400
    assert client.post("/api/v1/erase?scope=/", json={"dry_run": True}).json()["records"] == 1
    assert client.post("/api/v1/import", content=b"").json()["detail"] == "the body is empty"
    assert client.get("/api/v1/stats", headers={"Host": "localhost:7676@evil"}).status_code == 421
    assert client.post("/api/v1/erase", params=SCOPE, json={"dry_run": True}).json()["records"] == 1
    assert client.get("/api/v1/notes/a", params=SCOPE).status_code == 200
    assert client.post("/api/v1/erase", params=SCOPE, json={}).json()["records"] == 1
    assert client.get("/api/v1/scopes").json()["items"] == []


def test_an_export_is_imported_elsewhere_without_loss(client: httpx.Client) -> None:
    client.post(MESSAGES, params=SCOPE, json=[{"role": "user", "content": f"{n}"} for n in range(500)])
    client.put("/api/v1/notes/plan", params=SCOPE, json={"value": {"a": [1]}}).raise_for_status()
    exported = client.get("/api/v1/export", params=SCOPE).content
    assert exported.splitlines()[-1] == b'{"records":501}'
    with serving() as other:
        assert other.post("/api/v1/import", content=exported).json()["written"] == 501
        again = other.get("/api/v1/export", params=SCOPE).content
        assert again.splitlines()[1:] == exported.splitlines()[1:]
        assert other.post("/api/v1/import", content=exported).json()["written"] == 0
        moved = other.post("/api/v1/import", params={"scope": "new"}, content=exported)
        assert moved.json()["written"] == 501
        assert other.get("/api/v1/notes/plan", params={"scope": "new"}).json()["value"] == {"a": [1]}


def test_a_bad_import_changes_nothing(client: httpx.Client) -> None:
    client.put("/api/v1/notes/plan", params=SCOPE, json={"value": 1}).raise_for_status()
    exported = client.get("/api/v1/export", params=SCOPE).content
    with serving(settings=Settings(max_import_bytes=2000)) as other:
        for status, content in (
            (422, exported[:-5]),
            (422, exported.replace(b'"kind":"note"', b'"kind":"NOTE"', 1)),
            (422, exported.replace(b'"kind":"note"', b'"kind":"NOTE"')),
            (422, b"\x00\xff" * 100),
            (422, b""),
            (413, b"x" * 3000),
        ):
            answer = other.post("/api/v1/import", content=content)
            assert answer.status_code == status, answer.text
        assert other.get("/api/v1/scopes").json()["items"] == []


def test_a_path_on_the_server_is_never_opened(client: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG\r\n\x1a\n" + b"secret")
    body = {"role": "user", "content": "look", "id": "m1", "images": [str(secret)]}
    added = client.post(MESSAGES, params=SCOPE, json=body)
    replaced = client.put(f"{MESSAGES}/m1", params=SCOPE, json=body)
    assert added.json()["messages"][0]["images"] == replaced.json()["images"] == [str(secret)]
    assert (
        client.post("/api/v1/forget", json={"older_than": 1, "archive": f"sqlite:///{tmp_path}/x.db"}).status_code
        == 400
    )
    assert [path.name for path in tmp_path.iterdir()] == ["secret.png"]


def test_a_failure_of_the_server_tells_nothing_of_what_it_stores(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    one = next(one for one in ENDPOINTS if one.name == "get_stats")
    run, content = one.run, "a secret"

    async def fail(call: Any) -> None:
        raise RuntimeError(content)

    one.run = fail
    try:
        answer = client.get("/api/v1/stats")
    finally:
        one.run = run
    assert (answer.status_code, "secret" in answer.text, "secret" in caplog.text) == (500, False, False)
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("scope", [".", "..", "acme/..", "acme/../globex", "./acme"])
def test_a_scope_that_clients_would_rewrite_is_refused(client: httpx.Client, scope: str) -> None:
    answer = client.get("/api/v1/stats", params={"scope": scope})
    assert answer.status_code == 422
    assert "has no segment '.' or '..'" in answer.json()["detail"]
    with pytest.raises(InvalidValueError, match="no segment"):
        fill_template("{org:path}", {"org": scope})
