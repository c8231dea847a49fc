"""One damaged record: its own scope says so, everything else is served, and an import brings none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from http_server import serving
from mnemic.server.app import all_endpoints
from mnemic.server.problems import TYPE

BAD: list[dict[str, Any]] = [
    {"kind": "message", "key": "m1"},
    {"kind": "message", "key": "m2", "text": "coffee", "data": [1, 2]},
    {"kind": "archived", "key": "m3", "text": "coffee", "data": "str"},
    {"kind": "message", "key": "m4", "text": "coffee", "data": {"role": "user", "tool_calls": 5}},
    {"kind": "fact", "key": "f1", "text": "coffee"},
    {"kind": "fact", "key": "f2", "text": "coffee", "labels": {"subject": "a", "predicate": "b", "object": "c"}},
    {"kind": "memory", "key": "i1", "text": "coffee", "importance": -1e308},
    {"kind": "memory", "key": "i2", "text": "coffee", "importance": 1e308},
    {"kind": "memory", "key": "i3"},
    {"kind": "note", "key": "n1", "title": "coffee"},
    {"kind": "summary", "key": "running", "data": 5},
    {"kind": "title", "key": "title"},
    {"kind": "pruned", "key": "p1", "data": {"created": 5}},
    {"kind": "memory-history", "key": "h1"},
    {"kind": "progress", "key": "extract", "data": {}},
]
GOOD = {"scope": "globex/bob"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server whose store has a damaged record of every kind in one scope, and good ones in another."""
    with serving() as client:
        for record in BAD:
            put = {"op": "put", "record": {"scope": {"path": "acme/alice"}, **record}}
            client.post("/api/v1/store/write", json={"ops": [put]}).raise_for_status()
        touch = {"op": "touch", "scope": {"path": "acme/alice"}, "kind": "note", "settings": "[]"}
        client.post("/api/v1/store/write", json={"ops": [touch]}).raise_for_status()
        client.post("/api/v1/memories", params=GOOD, json={"text": "coffee for Bob", "id": "b"}).raise_for_status()
        message = {"role": "user", "content": "coffee"}
        client.post("/api/v1/sessions/monday/messages", params=GOOD, json=message).raise_for_status()
        yield client


READS = [one for one in all_endpoints() if one.method == "GET" and one.path.startswith("/api/v1/") and one.scoped]
QUERY: dict[str, Any] = {"text": "coffee", "query": "coffee", "start": "a", "end": "c", "name": "a", "max_tokens": 1000}


@pytest.mark.parametrize("scope", ["", "acme", "acme/alice", "globex", "globex/bob"])
def test_no_read_fails_without_saying_why(client: httpx.Client, scope: str) -> None:
    damaged = {"acme", "acme/alice"}
    for one in READS:
        if "changes" in one.path:
            continue
        name = "alice" if scope == "acme" else "monday"
        for id in ("m2", "f1", "i1", "n1", "b"):
            path = one.path.replace("{name}", name).replace("{id:path}", id).replace("{key:path}", id)
            for kind in ("message", "fact", "memory", "note") if one.path.endswith("/record") else ("",):
                known = getattr(one.query, "__struct_fields__", ())
                query = {"scope": scope, **{name: value for name, value in QUERY.items() if name in known}}
                query |= {"kind": kind, "id": id} if kind else {"id": id} if "id" in known else {}
                answer = client.get(path.replace("{source:path}", id), params=query)
                if answer.status_code == 500:
                    assert answer.json()["type"] == f"{TYPE}unreadable-store", (path, answer.text)
                    assert scope in damaged, path
                else:
                    assert answer.status_code in (200, 404, 422), (path, answer.text)


def test_what_is_about_all_scopes_leaves_a_damaged_record_out(client: httpx.Client) -> None:
    for scope in ("", "globex"):
        found = client.post("/api/v1/recall", params={"scope": scope}, json={"query": "coffee", "k": 50})
        assert {"b"} <= {hit["id"] for hit in found.raise_for_status().json()["hits"]}
        assert not {"m2", "m3", "m4", "f1", "f2"} & {hit["id"] for hit in found.json()["hits"]}
        body = {"query": "coffee", "max_tokens": 1000}
        assert client.post("/api/v1/context", params={"scope": scope}, json=body).status_code == 200
        forecast = client.get("/api/v1/forecast", params={"scope": scope}).raise_for_status().json()
        assert "b" in {one["id"] for one in forecast["fading"]}
        assert client.get("/api/v1/timeline", params={"scope": scope}).status_code == 200
        assert client.get("/api/v1/sessions", params={"scope": scope}).status_code == 200


def test_an_import_of_damaged_records_is_refused(client: httpx.Client) -> None:
    exported = client.get("/api/v1/export", params={"scope": "acme"}).content
    with serving() as other:
        refused = other.post("/api/v1/import", content=exported)
        assert (refused.status_code, "line 3: " in refused.json()["detail"]) == (422, True)
        assert other.get("/api/v1/scopes").json()["items"] == []
