"""The OpenAPI document: every example in it is sent to a real server, and every answer has its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from jsonschema import Draft202012Validator
from msgspec import UNSET

from http_server import serving
from mnemic.server.app import all_endpoints
from mnemic.server.decoding import JSON_TYPE
from mnemic.server.endpoint import Endpoint
from mnemic.server.openapi import document

SCOPE = {"scope": "acme/alice"}
ENDPOINTS = [one for one in all_endpoints() if one.documented]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of one server for all examples."""
    with serving(audit=True, history=timedelta(days=1)) as client:
        yield client


def fill(client: httpx.Client) -> None:
    """Store what the examples are about, and nothing else."""

    def send(method: str, path: str, body: Any) -> None:
        answer = client.request(method, f"/api/v1/{path}", params=SCOPE, json=body)
        assert answer.status_code < 300, (path, answer.text)

    send("POST", "erase", {})
    turns = [{"role": "user", "content": "I sleep badly."}, {"role": "assistant", "content": "Since when?"}]
    send("POST", "sessions/monday/messages", [{**one, "id": f"m{n}"} for n, one in enumerate(turns, 1)])
    send("POST", "sessions/wednesday/messages", turns)
    send("POST", "sessions/wednesday/clear", {})
    send("PUT", "sessions/tuesday/system", {"content": "Be kind."})
    send("PUT", "notes/plan", {"value": {"monday": "rest"}, "description": "the week"})
    send("POST", "memories", {"id": "old", "text": "Alice had a cat.", "metadata": {"topic": "cats"}})
    send("POST", "forget", {"metadata": {"topic": "cats"}, "archive": True})
    send("POST", "memories", {"id": "sleep", "text": "Alice sleeps badly after coffee."})
    send("POST", "facts", {"subject": "Alice", "predicate": "lives_in", "object": "Oslo"})


def send_example(client: httpx.Client, one: Endpoint, **more: Any) -> httpx.Response:
    """Send the request of an endpoint's example."""
    example = one.example
    path = re.sub(r"{(\w+)(:\w+)?}", lambda found: quote(example.path[found[1]], safe=""), one.path)
    query = {**(SCOPE if one.scoped else {}), **example.query}
    body = (
        {} if example.body is UNSET else {"json": example.body} if one.takes == JSON_TYPE else {"content": example.body}
    )
    return client.request(one.method, path, params=query, headers=dict(example.headers), **body, **more)


def operation_of(one: Endpoint) -> dict[str, Any]:
    """Return what the document says of an endpoint."""
    found: dict[str, Any] = document()["paths"][re.sub(r":\w+}", "}", one.path)][one.method.lower()]
    return found


def check(schema: dict[str, Any], value: Any) -> None:
    """Fail unless a value has a schema of the document."""
    Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


@pytest.mark.parametrize(
    "one", [one for one in ENDPOINTS if one.tag not in ("holds", "keys")], ids=lambda one: one.name
)
def test_the_example_of_an_endpoint_is_answered_as_documented(client: httpx.Client, one: Endpoint) -> None:
    fill(client)
    answer = send_example(client, one)
    assert answer.status_code in one.statuses, answer.text
    documented = operation_of(one)["responses"][str(answer.status_code)]
    if answer.status_code == 204:
        assert (answer.content, one.example.answer) == (b"", UNSET)
        return
    assert answer.headers["Content-Type"].startswith(one.content)
    content = documented["content"][one.content]
    if one.content != JSON_TYPE:
        assert answer.text
        return
    check(content["schema"], answer.json())
    if one.path != "/openapi.json":
        check(content["schema"], content["example"])


def test_the_examples_of_keys_are_answered_as_documented() -> None:
    with serving() as client:
        first = client.post("/api/v1/keys", json={"name": "first", "rights": ["read", "write", "erase", "admin"]})
        client.headers["Authorization"] = f"Bearer {first.json()['secret']}"
        for one in (one for one in ENDPOINTS if one.tag == "keys"):
            made = client.post("/api/v1/keys", json={"name": "a", "rights": ["read"]}).json()
            path = one.path.replace("{id}", made["id"])
            body = {} if one.example.body is UNSET else {"json": one.example.body}
            answer = client.request(one.method, path, **body)
            assert answer.status_code in one.statuses, answer.text
            if answer.status_code != 204:
                schema = operation_of(one)["responses"][str(answer.status_code)]["content"][one.content]["schema"]
                check(schema, answer.json())
                check(schema, one.example.answer)


def test_the_examples_of_holds_are_answered_as_documented(client: httpx.Client) -> None:
    def answer(method: str, path: str, status: int, body: Any = None) -> Any:
        one = next(one for one in ENDPOINTS if one.tag == "holds" and one.method == method)
        found = client.request(method, path, params={"scope": "acme/held"}, json=body)
        assert found.status_code == status, found.text
        schema = operation_of(one)["responses"][str(status)]["content"][one.content]["schema"]
        check(schema, found.json())
        check(schema, one.example.answer)
        return found.json()

    hold = answer("POST", "/api/v1/holds", 201, {"reason": "case 4711"})
    refused = client.post("/api/v1/erase", params={"scope": "acme"}, json={})
    assert (refused.status_code, "case 4711" in refused.json()["detail"]) == (423, True)
    assert answer("GET", "/api/v1/holds", 200)["items"] == [hold]
    assert answer("DELETE", f"/api/v1/holds/{hold['id']}", 200) == hold
    assert answer("GET", "/api/v1/holds", 200)["items"] == []


@pytest.mark.parametrize("one", ENDPOINTS, ids=lambda one: one.name)
def test_what_an_endpoint_takes_is_documented(one: Endpoint) -> None:
    operation = operation_of(one)
    named = {parameter["name"]: parameter for parameter in operation["parameters"]}
    for name, value in {**one.example.path, **one.example.query}.items():
        check(named[name]["schema"], value)
    for name, value in one.example.headers.items():
        check(named[name]["schema"], value)
    if one.example.body is not UNSET:
        check(operation["requestBody"]["content"][one.takes]["schema"], one.example.body)


def test_every_problem_has_an_example_of_its_schema() -> None:
    responses = document()["components"]["responses"]
    assert {"400", "401", "403", "404", "409", "412", "413", "415", "429", "500", "503"} <= set(responses)
    for status, response in responses.items():
        content = response["content"]["application/problem+json"]
        check(content["schema"], content["example"])
        assert content["example"]["status"] == int(status)
