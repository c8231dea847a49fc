"""The OpenAPI 3.1 document, made from the declared endpoints and the types of their queries, bodies and answers."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from msgspec import UNSET, json
from msgspec.structs import fields
from starlette.responses import Response

from .decoding import JSON_TYPE
from .endpoint import ApiCall, Endpoint, Streamed, endpoint
from .problems import CONTENT_TYPE, STATUS_NAMES, STATUS_TITLES, TYPE, Problem

DESCRIPTION = """\
Memory for AI agents over HTTP: sessions, notes, memories, facts and recall, with the nouns and verbs of the library.

- `scope` is a path such as `acme/alice`; without it, a call is about the scope of its key.
- A list comes in pages: `cursor` of one page, if it is not null, requests the next.
- An error is a problem (RFC 9457) of the type `application/problem+json`, whose `detail` says what was wrong.
- Times are in ISO 8601 with a timezone, durations in seconds.
"""
TAGS = {
    "sessions": "Conversations and their settings.",
    "messages": "The messages of a session.",
    "memories": "Texts that are kept, and fade with time.",
    "notes": "Named JSON values with versions.",
    "facts": "Subject, predicate and object with a time of validity.",
    "recall": "Search by words and meaning, and the context for a prompt.",
    "scopes": "What there is, and how to forget or erase it.",
    "transfer": "Export and import.",
    "history": "Earlier versions.",
    "holds": "Legal holds: what must not be deleted.",
    "timeline": "What was written when.",
    "changes": "What is written and deleted, as it happens.",
    "audit": "Who changed what.",
    "keys": "API keys: who may use the server.",
    "sources": "Where memories and facts came from.",
    "health": "For operators.",
    "server": "The server itself.",
}
HEADERS = {
    "Idempotency-Key": (
        "An id of the call: a repetition within 24 hours changes nothing.",
        {"type": "string", "minLength": 1, "maxLength": 500},
        "order-17",
    ),
    "If-Match": (
        "The `ETag` that the record must still have.",
        {"type": "string", "pattern": '^"?[0-9]{1,15}"?$'},
        '"3"',
    ),
    "If-None-Match": ("`*`: only if there is no such record.", {"const": "*"}, "*"),
}
"""Description, schema and example of the headers of requests."""
KNOWN = ("`ETag` that the client has already: status 304 if it is still right.", {"type": "string"}, '"3"')
RAW = (Streamed, Response, type(None))
"""Answers that have no schema."""
ALWAYS = (400, 401, 403, 422, 429, 500, 503)
"""Statuses of problems that every endpoint with a right may have."""
DETAILS = {
    400: "the query: Expected `int` >= 1 - at `$.limit`",
    401: "this server needs a key: Authorization: Bearer …",
    403: "this needs the right 'write', which the key does not have",
    404: "'acme/alice' has no note 'plan'",
    405: "the path has GET, HEAD",
    409: "session 'acme/alice/monday' has another message with the id 'm1'",
    412: "note 'plan' in scope 'acme/alice' is at version 4; the writer expected version 3",
    413: "the body has more than 16,777,216 bytes",
    415: "the body must have the type application/json, not 'text/plain'",
    422: "segment of scope 'acme//alice' is empty",
    423: "scope 'acme/alice' is under the legal hold '01a1e4' of 'acme': case 4711. Nothing was deleted",
    429: "the key made more than 500 requests in a second",
    500: "The log of the server says more.",
    503: "64 requests are worked on, and 1,000 wait",
}
"""Example of the detail of a problem, by status."""


@endpoint("GET", "/openapi.json", right=None, summary="Get this document", tag="server", scoped=False)
async def openapi(call: ApiCall) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this server."""
    return document()


@cache
def document() -> dict[str, Any]:
    """Return the document of all endpoints that are declared."""
    from .app import all_endpoints  # which imports this module, as it does all that declare endpoints

    endpoints = [one for one in all_endpoints() if one.documented]
    types = [kind for one in endpoints for kind in _types(one)]
    schemas, components = json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    by_type = {id(kind): schema for kind, schema in zip([*types, Problem], schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = paths.setdefault(re.sub(r":\w+}", "}", one.path), {})
        path[one.method.lower()] = _operation(one, by_type, components)
    for one in endpoints:
        if one.query is not None:
            components.pop(_name(by_type[id(one.query)]), None)  # its fields are parameters
    used = {status for one in endpoints for status in _problems(one)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mnemic",
            "version": version("mnemic"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": TAGS[name]} for name in dict.fromkeys(e.tag for e in endpoints)],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _problem(status) for status in sorted(used)},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key, or a JWT."},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _name(reference: dict[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _types(one: Endpoint) -> list[Any]:
    found = [] if one.answer in RAW else [one.answer]
    found += [] if one.query is None else [one.query]
    return found + ([] if one.body is UNSET else [one.body])


def _operation(one: Endpoint, by_type: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": one.name,
        "tags": [one.tag],
        "summary": one.summary,
        "description": one.description,
        "parameters": [*_path_parameters(one), *_query_parameters(one, by_type, components), *_header_parameters(one)],
        "responses": {
            **{str(status): _success(one, status, by_type) for status in one.statuses},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _problems(one)},
            **({} if one.right is None else {"5XX": {"$ref": "#/components/responses/500"}}),
        },
    }
    if one.body is not UNSET or one.takes != JSON_TYPE:
        schema = {"type": "string"} if one.body is UNSET else by_type[id(one.body)]
        content = {"schema": schema, **_example(one.example.body)}
        operation["requestBody"] = {"required": True, "content": {one.takes: content}}
    if one.right is not None:
        operation["security"] = [{"key": []}, {"header": []}]
        operation["x-right"] = one.right
    return operation


def _path_parameters(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\x00-\x1f\x7f/]+$"}
            if name == "name"
            else {"type": "string", "minLength": 1, "maxLength": 500, "pattern": r"^[^\x00-\x1f\x7f]+$"},
            **_example(one.example.path.get(name, UNSET)),
        }
        for name in one.parameters
    ]


def _query_parameters(one: Endpoint, by_type: dict[int, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if one.scoped:
        found.append(
            {
                "name": "scope",
                "in": "query",
                "required": one.scoped == "named",
                "description": "The scope that the call is about; by default that of the key.",
                "schema": {"type": "string", "maxLength": 2500, "pattern": SCOPE},
                "example": "acme/alice",
            }
        )
    if one.query is None:
        return found
    schema = components[_name(by_type[id(one.query)])]
    required = schema.get("required", ())
    for name in (field.encode_name for field in fields(one.query)):
        about = _without_null(schema["properties"][name])
        description = about.pop("description", "")
        parameter = {"name": name, "in": "query", "required": name in required, "schema": about}
        parameter |= {"description": description} if description else {}
        found.append(parameter | _example(one.example.query.get(name, UNSET)))
    return found


SCOPE = r"^([^\x00-\x1f\x7f/]{1,200}(/[^\x00-\x1f\x7f/]{1,200}){0,15})?$"


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which is left out instead of being null."""
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    choices: list[dict[str, Any]] = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(choices) == 1:
        return choices[0] | rest
    if isinstance(values := rest.get("enum"), list):
        rest["enum"] = [value for value in values if value is not None]
    return rest | ({"anyOf": choices} if choices else {})


def _header_parameters(one: Endpoint) -> list[dict[str, Any]]:
    known = HEADERS if one.method != "GET" else {"If-None-Match": KNOWN}
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": schema, "example": example}
        for name, (about, schema, example) in known.items()
        if name in one.headers
    ]


def _success(one: Endpoint, status: int, by_type: dict[int, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status in (204, 304):
        return response
    schema = {"type": "string"} if one.answer in RAW else by_type[id(one.answer)]
    response["content"] = {one.content: {"schema": schema, **_example(one.example.answer)}}
    return response


def _problems(one: Endpoint) -> list[int]:
    found = {*one.problems, 400} if one.right is None else {*one.problems, *ALWAYS}
    if one.body is not UNSET or one.takes != JSON_TYPE:
        found |= {413, 415}
    if one.right in ("write", "erase") and one.method != "GET":
        found.add(423)
    return sorted(found)


def _problem(status: int) -> dict[str, Any]:
    example: dict[str, Any] = {
        "type": f"{TYPE}{STATUS_NAMES[status]}",
        "title": STATUS_TITLES[status],
        "status": status,
        "detail": DETAILS[status],
    }
    if status == 412:
        example["current"] = 4
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": STATUS_TITLES[status], "content": {CONTENT_TYPE: {"schema": schema, "example": example}}}


def _example(value: Any) -> dict[str, Any]:
    return {} if value is UNSET else {"example": value}
