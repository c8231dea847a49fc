"""The endpoints of the server: every declaration is complete, and every error becomes a problem."""

from __future__ import annotations

from typing import Any

import mnemic
from http_server import serving
from mnemic import errors
from mnemic.server.access import RIGHTS
from mnemic.server.app import all_endpoints
from mnemic.server.problems import STATUS, TYPE

SCOPE = {"scope": "acme/alice"}


def test_every_endpoint_is_declared_in_full() -> None:
    found = all_endpoints()
    assert found
    for one in found:
        assert all((one.summary, one.tag, one.description)), one
        assert one.right in (*RIGHTS, None), one
        assert set(one.example.path) == set(one.parameters), one
    assert len({(one.method, one.path) for one in found}) == len(found)
    names = [one.name for one in found if one.documented]
    assert len(set(names)) == len(names)


def test_every_error_has_a_status() -> None:
    assert {getattr(errors, name) for name in errors.__all__} - set(STATUS) == {errors.MnemicError}


def test_a_note_is_written_if_its_version_is_as_expected() -> None:
    with serving() as client:
        path = "/api/v1/notes/plan/week"
        new = client.put(path, params=SCOPE, json={"value": 1}, headers={"If-None-Match": "*"})
        assert (new.status_code, new.headers["ETag"]) == (201, '"1"')
        refused = client.put(path, params=SCOPE, json={"value": 2}, headers={"If-None-Match": "*"})
        assert (refused.status_code, refused.json()["current"]) == (412, 1)
        changed = client.put(path, params=SCOPE, json={"value": 2}, headers={"If-Match": '"1"'})
        assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
        found = client.get(path, params=SCOPE)
        assert (found.json()["value"], found.headers["ETag"]) == (2, '"2"')
        known = client.get(path, params=SCOPE, headers={"If-None-Match": '"2"'})
        assert (known.status_code, known.content) == (304, b"")
        kept = client.delete(path, params=SCOPE, headers={"If-Match": '"1"'})
        assert (kept.status_code, kept.json()["current"]) == (412, 2)
        gone = client.delete(path, params=SCOPE, headers={"If-Match": '"2"'})
        assert (gone.status_code, gone.content) == (204, b"")
        missing = client.get(path, params=SCOPE)
        assert (missing.status_code, missing.json()["type"]) == (404, f"{TYPE}not-found")


def test_bad_requests_are_problems_that_say_what_was_wrong() -> None:
    cases: list[tuple[int, str, str, dict[str, Any]]] = [
        (404, "Nothing is served", "GET /api/v1/nothing", {}),
        (404, "Nothing is served", "GET /api/v1/notes/../../../etc/passwd", {}),
        (405, "GET, HEAD", "DELETE /api/v1/scopes", {}),
        (400, "$.limit", "GET /api/v1/notes?limit=0", {}),
        (400, "$.limit", "GET /api/v1/notes?limit=null", {}),
        (400, "more than once", "GET /api/v1/notes?limit=1&limit=2", {}),
        (400, "`limmit`", "GET /api/v1/notes?limmit=1", {}),
        (422, "cursor", "GET /api/v1/notes?cursor=x", {}),
        (422, "segment of scope", "GET /api/v1/notes?scope=acme//alice", {}),
        (400, "unknown parameter", "GET /api/v1/stats?k=1", {}),
        (415, "application/json", "POST /api/v1/recall", {"content": b"query=x"}),
        (400, "the body: ", "POST /api/v1/recall", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        (400, "`querry`", "POST /api/v1/recall", {"json": {"query": "", "querry": ""}}),
        (400, "If-Match", "PUT /api/v1/notes/a", {"json": {"value": 1}, "headers": {"If-Match": "x"}}),
    ]
    with serving() as client:
        for status, said, request, given in cases:
            method, _, path = request.partition(" ")
            answer = client.request(method, path, **given)
            problem = answer.json()
            assert (answer.status_code, problem["status"]) == (status, status), request
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert said in problem["detail"], (request, problem)
        assert (client.delete("/api/v1/scopes")).headers["Allow"] == "GET, HEAD"


def test_lists_come_in_pages_that_are_complete() -> None:
    with serving() as client:
        for number in range(7):
            client.put(f"/api/v1/notes/{number}", params=SCOPE, json={"value": number})
        found: list[str] = []
        cursor: str | None = None
        for _ in range(4):
            query = {**SCOPE, "limit": "2"} | ({} if cursor is None else {"cursor": cursor})
            page = (client.get("/api/v1/notes", params=query)).json()
            found += [note["key"] for note in page["items"]]
            cursor = page["cursor"]
        assert (found, cursor) == ([str(number) for number in range(7)], None)


def test_a_note_is_renamed_unless_the_key_is_taken() -> None:
    with serving() as client:
        for key in ("plan", "week"):
            client.put(f"/api/v1/notes/{key}", params=SCOPE, json={"value": key})
        taken = client.patch("/api/v1/notes/plan", params=SCOPE, json={"key": "week"})
        assert taken.status_code == 409
        moved = client.patch("/api/v1/notes/plan", params=SCOPE, json={"key": "plans/week"})
        assert (moved.status_code, moved.json()["key"]) == (200, "plans/week")
        assert client.get("/api/v1/notes/plans/week", params=SCOPE).json()["value"] == "plan"
        assert client.patch("/api/v1/notes/plan", params=SCOPE, json={"key": "x"}).status_code == 404


def test_the_audit_log_comes_newest_first_and_filtered() -> None:
    with serving(audit=True) as client:
        for number in range(5):
            client.put(f"/api/v1/notes/{number}", params=SCOPE, json={"value": number})
        client.delete("/api/v1/notes/0", params=SCOPE)
        first = client.get("/api/v1/audit", params={"limit": "2"}).json()
        assert [(one["operation"], one["key"], one["scope"]) for one in first["items"]] == [
            ("delete", "0", "acme/alice"), ("put", "4", "acme/alice"),
        ]  # fmt: skip
        rest = client.get("/api/v1/audit", params={"cursor": first["cursor"]}).json()
        assert ([one["key"] for one in rest["items"]], rest["cursor"]) == (["3", "2", "1", "0"], None)
        found = client.get("/api/v1/audit", params={**SCOPE, "key": "0", "operation": "put"}).json()
        assert [one["kind"] for one in found["items"]] == ["note"]
        assert client.get("/api/v1/audit", params={"operation": "steal"}).status_code == 400
    with serving() as client:
        off = client.get("/api/v1/audit")
        assert (off.status_code, off.json()["detail"]) == (
            404,
            "there is no audit log: the server was started without one",
        )


def test_a_source_is_a_session_or_a_message(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        message = memory.scope("acme", "alice").session("monday").add("user", "Hello", id="m/1")
        memory.scope("acme", "alice").remember("no source", id="memory")
    with serving(file_url) as client:
        expected = {"scope": "acme/alice", "session": "monday", "message": None}
        assert client.get("/api/v1/sources/monday", params=SCOPE).json() == expected
        assert client.get(f"/api/v1/sources/{message.id}", params=SCOPE).json() == {**expected, "message": "m/1"}
        for name in ("memory", "tuesday", "a//b"):
            assert client.get(f"/api/v1/sources/{name}", params=SCOPE).status_code == 404
