"""mem0's REST API: its own clients work unchanged against a real server, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import mnemic
from http_server import make_key, serving
from mcp_clients import NODE
from mem0_client import Client, ClientError, node_client, python_client
from mnemic.server.settings import Settings

ALICE = {"user_id": "alice"}
TURNS = [
    {"role": "system", "content": "You are a cook."},
    {"role": "user", "content": "I am a vegetarian and allergic to nuts."},
    {"role": "assistant", "content": "Noted: no meat, and no nuts."},
]


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    with serving() as client:
        yield client


@pytest.fixture(scope="module", params=["MemoryClient", "AsyncMemoryClient"])
def client(request: pytest.FixtureRequest, server: httpx.Client, tmp_path_factory: Any) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("mem0")
    with python_client(str(server.base_url).rstrip("/"), folder, kind=request.param) as client:
        yield client


@pytest.fixture(autouse=True)
def empty(server: httpx.Client) -> None:
    server.post("/reset").raise_for_status()


def texts(answer: Any) -> list[str]:
    return [one["memory"] for one in answer["results"]]


def events(client: Client, id: str) -> list[tuple[str, str | None, str | None]]:
    return [(one["event"], one["old_memory"], one["new_memory"]) for one in client.history(id)]


def test_a_memory_that_is_deleted_by_any_way_leaves_no_text(client: Client, server: httpx.Client) -> None:
    place = {"scope": "alice"}
    for said in ("Alice has asthma.", "Alice has a cold."):
        id = client.add(said, user_id="alice")["results"][0]["id"]
        for text in ("Alice has hay fever.", "Alice is well."):
            client.update(id, text=text)
        assert [old for _, old, _ in events(client, id)] == [None, said, "Alice has hay fever."]
        if "asthma" in said:
            server.delete(f"/api/v1/memories/{id}", params=place).raise_for_status()
        else:
            server.post("/api/v1/forget", params=place, json={"ids": [id]}).raise_for_status()
        assert events(client, id) == [("ADD", None, None), ("UPDATE", None, None), ("UPDATE", None, None)]
        assert "fever" not in server.get("/api/v1/export").text


def test_the_python_client_from_add_to_history(client: Client) -> None:
    added = client.add(TURNS, user_id="alice", agent_id="cook", metadata={"topic": "food"})
    assert [(one["event"], one["role"]) for one in added["results"]] == [("ADD", "user"), ("ADD", "assistant")]
    assert added["status"] == "SUCCEEDED"
    again = client.add(TURNS, user_id="alice", agent_id="cook", metadata={"topic": "food"})
    assert [(one["id"], one["event"]) for one in again["results"]] == [(one["id"], "NONE") for one in added["results"]]
    verbatim = client.add("I am a vegetarian and allergic to nuts.", user_id="alice", infer=False)
    assert [one["event"] for one in verbatim["results"]] == ["ADD"]

    found = client.search("What must I not cook for her?", filters=ALICE, top_k=2)
    assert len(found["results"]) == 2
    best = found["results"][0]
    assert {"id", "memory", "score", "created_at", "updated_at", "metadata", "categories"} <= best.keys()
    assert best["user_id"] == "alice"

    id = added["results"][0]["id"]
    one = client.get(id)
    assert (one["memory"], one["agent_id"], one["role"]) == (TURNS[1]["content"], "cook", "user")
    changed = client.update(id, text="Eats fish.", metadata={"topic": "diet"})
    assert (changed["memory"], changed["metadata"], changed["agent_id"]) == ("Eats fish.", {"topic": "diet"}, "cook")
    assert events(client, id) == [("ADD", None, TURNS[1]["content"]), ("UPDATE", TURNS[1]["content"], "Eats fish.")]
    assert client.delete(id)["message"] == "Memory deleted successfully!"
    with pytest.raises(ClientError, match="MemoryNotFoundError"):
        client.get(id)
    assert events(client, id) == [("ADD", None, None), ("UPDATE", None, None), ("DELETE", None, None)]
    # The text that was changed and deleted can be said again.
    assert client.add(TURNS[:2], user_id="alice", agent_id="cook")["results"][0]["event"] == "ADD"


def test_filters_pages_and_entities(client: Client) -> None:
    for user, agent, text, topic in (
        ("alice", "cook", "Alice likes soup", "food"),
        ("alice", "guide", "Alice walks in Oslo", "travel"),
        ("bob", "cook", "Bob likes bread", "food"),
        ("org/carol", "guide", "Carol likes trains", "travel"),
    ):
        client.add(text, user_id=user, agent_id=agent, metadata={"topic": topic, "n": len(text)})
    client.add("The kitchen closes at ten", agent_id="cook", run_id="r1")

    def listed(filters: dict[str, Any]) -> set[str]:
        found = client.get_all(filters=filters)
        hits = client.search("likes walks closes", filters=filters, top_k=50)
        assert set(texts(hits)) == set(texts(found)), filters
        return {text.split()[0] for text in texts(found)}

    assert listed(ALICE) == {"Alice"}
    assert listed({"user_id": "org/carol"}) == {"Carol"}
    assert listed({"agent_id": "cook"}) == {"Alice", "Bob", "The"}
    assert listed({"AND": [{"user_id": "alice"}, {"metadata": {"topic": "travel"}}]}) == {"Alice"}
    assert listed({"OR": [{"user_id": "bob"}, {"user_id": "org/carol"}]}) == {"Bob", "Carol"}
    assert listed({"user_id": {"in": ["bob", "nobody"]}}) == {"Bob"}
    assert listed({"OR": [{"user_id": "bob"}, {"run_id": "r1"}]}) == {"Bob", "The"}
    assert listed({"AND": [{"user_id": "*"}, {"NOT": [{"user_id": "alice"}, {"user_id": "bob"}]}]}) == {"Carol"}
    assert listed({"run_id": "*"}) == {"The"}
    assert listed({"keywords": {"icontains": "LIKES B"}}) == {"Bob"}
    assert listed({"AND": [{"user_id": "*"}, {"n": {"gt": 16}}]}) == {"Alice", "Carol"}
    assert listed({"created_at": {"lt": "2020-01-01"}}) == set()
    assert listed({"user_id": "nobody"}) == set()

    pages = [client.get_all(filters={"user_id": "*"}, page=page, page_size=3) for page in (1, 2)]
    assert [(page["count"], len(page["results"])) for page in pages] == [(4, 3), (4, 1)]
    assert [bool(page["next"]) for page in pages] == [True, False]
    assert len({text for page in pages for text in texts(page)}) == 4

    entities = client.users()
    found = [(one["type"], one["name"], one["total_memories"]) for one in entities["results"]]
    assert ("user", "org/carol", 1) in found
    assert ("agent", "cook", 3) in found
    assert (entities["total_users"], entities["total_runs"]) == (3, 1)
    client.delete_users(user_id="org/carol")
    assert listed({"user_id": "org/carol"}) == set()
    client.delete_all(user_id="alice")
    assert listed({"user_id": "*"}) == {"Bob"}
    client.delete_all(filters={"user_id": "bob"})
    assert listed({"agent_id": "cook"}) == {"The"}
    with pytest.raises(ClientError, match="name whose memories to delete"):
        client.delete_all()
    client.reset()
    assert client.users()["count"] == 0


def test_batches_feedback_and_expiry(client: Client) -> None:
    ids = [client.add(text, user_id="alice")["results"][0]["id"] for text in ("one", "two", "three")]
    client.batch_update([{"memory_id": ids[0], "text": "first"}, {"memory_id": ids[1], "text": "second"}])
    assert {client.get(id)["memory"] for id in ids} == {"first", "second", "three"}
    assert client.batch_delete([{"memory_id": ids[0]}])["message"] == "Successfully deleted 1 memories"
    client.feedback(ids[1], feedback="POSITIVE", feedback_reason="true")
    assert client.get(ids[1])["metadata"] == {"feedback": "POSITIVE", "feedback_reason": "true"}
    kept = client.add("for now", user_id="alice", expiration_date="2999-12-31", timestamp=1_700_000_000)["results"][0]
    one = client.get(kept["id"])
    assert (one["expiration_date"], one["created_at"]) == ("2999-12-31", "2023-11-14T22:13:20Z")
    assert client.update(kept["id"], expiration_date=None)["expiration_date"] is None
    with pytest.raises(ClientError, match="not a time"):
        client.add("x", user_id="alice", expiration_date="soon")


def test_the_client_for_node(server: httpx.Client) -> None:
    with node_client(str(server.base_url).rstrip("/"), NODE) as client:
        added = client.add(TURNS, {"userId": "alice"})
        assert [one["event"] for one in added["results"]] == ["ADD", "ADD"]
        id = added["results"][0]["id"]
        assert client.search("nuts", {"filters": {"user_id": "alice"}, "topK": 1})["results"][0]["userId"] == "alice"
        assert client.getAll({"filters": {"user_id": "alice"}, "page": 1, "pageSize": 1})["count"] == 2
        assert client.update(id, {"text": "Eats fish."})["memory"] == "Eats fish."
        assert [one["event"] for one in client.history(id)] == ["ADD", "UPDATE"]
        client.delete(id)
        with pytest.raises(ClientError, match="MemoryNotFoundError"):
            client.get(id)
        assert [one["name"] for one in client.users()["results"]] == ["alice"]
        client.deleteAll({"userId": "alice"})
        assert client.users()["count"] == 0
        assert client.ping() is None


def test_its_own_server(server: httpx.Client) -> None:
    added = server.post("/memories", json={"messages": TURNS, **ALICE}).json()
    id = added["results"][0]["id"]
    assert len(server.get("/memories", params=ALICE).json()["results"]) == 2
    assert server.get(f"/memories/{id}").json()["memory"] == TURNS[1]["content"]
    found = server.post("/search", json={"query": "vegetarian", "filters": ALICE, "top_k": 1}).json()
    assert [one["id"] for one in found["results"]] == [id]
    assert server.put(f"/memories/{id}", json={"text": "Eats fish."}).json()["memory"] == "Eats fish."
    assert [one["event"] for one in server.get(f"/memories/{id}/history").json()] == ["ADD", "UPDATE"]
    assert server.delete(f"/memories/{id}").json() == {"message": "Memory deleted successfully!"}
    assert server.delete(f"/memories/{id}").status_code == 404
    assert [one["type"] for one in server.get("/entities").json()] == ["user"]
    assert server.post("/configure", json={"llm": {}}).status_code == 200
    assert server.delete("/memories").status_code == 422
    server.delete("/memories", params=ALICE).raise_for_status()
    assert server.get(f"/memories/{id}/history").status_code == 404  # deleted without a trace


def test_older_paths_of_the_platform(server: httpx.Client) -> None:
    body = {"messages": TURNS, **ALICE}
    assert isinstance(server.post("/v1/memories/", json=body).json(), list)
    assert "results" in server.post("/v1/memories/", json={**body, "output_format": "v1.1"}).json()
    assert len(server.get("/v1/memories/", params=ALICE).json()) == 2
    assert server.get("/v1/memories/", params={**ALICE, "page": 1, "page_size": 1}).json()["count"] == 2
    assert len(server.post("/v2/memories/", json={"filters": ALICE}).json()) == 2
    for version in ("v1", "v2"):
        found = server.post(f"/{version}/memories/search/", json={"query": "nuts", "filters": ALICE}).json()
        assert len(found) == 2
    fields = server.post("/v3/memories/", json={"filters": ALICE, "fields": ["memory"]}).json()["results"]
    assert all(one.keys() == {"id", "memory"} for one in fields)


def test_bad_requests_change_nothing(server: httpx.Client) -> None:
    cases: list[tuple[str, str, Any]] = [
        ("POST /memories", "messages", {"user_id": "alice"}),
        ("POST /memories", "none with a text", {"messages": []}),
        ("POST /memories", "none with a text", {"messages": [{"role": "user", "content": " "}]}),
        ("POST /memories", "user_id", {"messages": "x", "user_id": "a" * 300}),
        ("POST /memories", "user_id", {"messages": "x", "user_id": "*"}),
        ("POST /search", "query is empty", {"query": " "}),
        ("POST /search", "filters", {"query": "x", "filters": [1]}),
        ("POST /search", "unknown operator", {"query": "x", "filters": {"user_id": {"like": "a"}}}),
        ("POST /search", "takes an array", {"query": "x", "filters": {"user_id": {"in": "a"}}}),
        ("POST /search", "threshold", {"query": "x", "threshold": 7}),
        ("POST /search", "not a time", {"query": "x", "filters": {"created_at": {"gt": "soon"}}}),
        ("PUT /memories/x", "an update needs", {}),
        ("DELETE /v2/entities/planet/x/", "of the type", None),
    ]
    nested: dict[str, Any] = {"user_id": "alice"}
    for _ in range(40):
        nested = {"NOT": nested}
    for request, said, body in [*cases, ("POST /search", "nested", {"query": "x", "filters": nested})]:
        method, _, path = request.partition(" ")
        answer = server.request(method, path, **({} if body is None else {"json": body}))
        problem = answer.json()
        assert said in problem["detail"], (request, problem)
        assert answer.status_code == (400 if problem["detail"].startswith("the body: ") else 422), (request, problem)
    assert server.get("/memories").json() == {"results": []}


def test_memories_of_the_library_and_of_imports_are_those_of_the_user(tmp_path: Path) -> None:
    export = tmp_path / "mem0.json"
    export.write_text('{"results": [{"id": "m1", "memory": "Likes tea", "user_id": "alice", "agent_id": "cook"}]}')
    with mnemic.open(f"sqlite:///{tmp_path}/memory.db") as memory:
        memory.scope("acme", "alice").remember("Alice has a cat")
        memory.scope("acme").import_from(export)
    with serving(f"sqlite:///{tmp_path}/memory.db") as server:
        found = server.get("/memories", params={"scope": "acme", **ALICE}).json()["results"]
        assert {(one["memory"], one["user_id"], one["agent_id"]) for one in found} == {
            ("Likes tea", "alice", "cook"),
            ("Alice has a cat", "alice", None),
        }
        assert server.get("/memories", params={"scope": "other", **ALICE}).json()["results"] == []
        server.delete("/memories/m1", params={"scope": "acme"}).raise_for_status()
    with mnemic.open(f"sqlite:///{tmp_path}/memory.db") as memory:
        assert [item.text for item in memory.scope("acme", "alice").memories.list()] == ["Alice has a cat"]
        memory.scope("acme", "alice").erase()
    assert b"Likes tea" not in (tmp_path / "memory.db").read_bytes()


def test_the_client_sends_its_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    key = make_key(url, "acme", "read", "write")
    with serving(url, settings=Settings(require_key=True)) as server:
        base = str(server.base_url).rstrip("/")
        with python_client(base, tmp_path / "settings", key) as client:
            client.add("Alice drinks tea", user_id="alice")
            with pytest.raises(ClientError, match="erase"):
                client.delete_all(user_id="alice")
        with python_client(base, tmp_path / "settings", "wrong") as client, pytest.raises(ClientError, match="key"):
            client.users()
    with mnemic.open(url) as memory:
        assert [item.text for item in memory.scope("acme", "alice").memories.list()] == ["Alice drinks tea"]
