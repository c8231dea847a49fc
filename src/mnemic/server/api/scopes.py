"""Scopes: what there is, and how much."""

from __future__ import annotations

from ...store.protocol import Page
from ..endpoint import Call, Example, PageQuery, endpoint
from .pages import decode_cursor, encode_cursor
from .values import ScopeOut, scope_out

COUNTS = {
    "scope": "acme/alice",
    "sessions": 1,
    "messages": 2,
    "tokens": 14,
    "archived": 0,
    "summaries": 0,
    "memories": 1,
    "notes": 1,
    "note_bytes": 15,
    "facts": 1,
    "first_activity": "2026-01-31T09:30:00Z",
    "last_activity": "2026-01-31T09:31:00Z",
}


@endpoint(
    "GET", "/api/v1/scopes", right="read", summary="List scopes", tag="scopes",
    example=Example(answer={"items": [COUNTS], "cursor": None}),
)  # fmt: skip
async def list_scopes(call: Call, query: PageQuery) -> Page[ScopeOut]:
    """The scopes, here and below, that are not empty, in order of their paths, each with its own counts."""
    after = decode_cursor(query.cursor, "path")
    left = [one for one in await call.scope.scopes() if after is None or one.scope.path > after]
    items = left[: query.limit]
    more = items[-1].scope.path if len(left) > len(items) else None
    return Page(tuple(map(scope_out, items)), encode_cursor(more, "path"))


@endpoint(
    "GET", "/api/v1/stats", right="read", summary="Count what is stored", tag="scopes", example=Example(answer=COUNTS)
)
async def stats(call: Call) -> ScopeOut:
    """The counts of the scope and those below together."""
    return scope_out(await call.scope.stats())
