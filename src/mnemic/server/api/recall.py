"""Recall: search by words and meaning."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from ...messages import Role
from ..endpoint import Body, Call, Example, Query, endpoint
from .values import HitOut, Metadata, Name, Text, hit_out

HIT = {
    "kind": "memory",
    "id": "sleep",
    "scope": "acme/alice",
    "text": "Alice sleeps badly after coffee.",
    "score": 0.83,
    "why": {"lexical": 0.41, "dense": 0.42},
    "metadata": {},
    "source": None,
    "created": "2026-01-31T09:30:00Z",
    "before": [],
    "after": [],
}


class RecallQuery(Query):
    """A question; `RecallBody` has more."""

    query: Text
    k: Annotated[int, Meta(ge=0, le=1000, description="How many hits.")] = 5
    kinds: list[Name] | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_importance: float | None = None
    min_score: float | None = None
    neighbors: Annotated[int, Meta(ge=0, le=100)] = 0


class RecallBody(Body):
    """A question, and what restricts the search."""

    query: Text
    k: Annotated[int, Meta(ge=0, le=1000, description="How many hits.")] = 5
    kinds: list[Name] | None = None
    metadata: Metadata | None = None
    roles: list[Role] | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_importance: float | None = None
    min_score: float | None = None
    as_of: datetime | None = None
    neighbors: Annotated[int, Meta(ge=0, le=100)] = 0
    diverse: bool = True
    traffic: bool = False
    signals: list[Name] | None = None
    weights: Annotated[dict[str, float], Meta(description="Factors by which signals are multiplied.")] | None = None
    uses: bool = True


class Recalled(Body):
    """The hits, best first."""

    hits: list[HitOut]


@endpoint(
    "POST", "/api/v1/recall", right="read", summary="Recall", tag="recall",
    example=Example(body={"query": "Why is Alice tired?", "k": 1}, answer={"hits": [HIT]}),
)  # fmt: skip
async def recall(call: Call, body: RecallBody) -> Recalled:
    """Search messages, memories, notes, facts and summaries of the scope and below; the best hits, best first."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    return Recalled(hits=[hit_out(hit) for hit in await call.scope.recall(**given)])


@endpoint(
    "GET", "/api/v1/recall", right="read", summary="Recall, with a query in the address", tag="recall",
    example=Example(query={"query": "Why is Alice tired?", "k": 1}, answer={"hits": [HIT]}),
)  # fmt: skip
async def recall_by_query(call: Call, query: RecallQuery) -> Recalled:
    """The same as POST, for what fits into an address."""
    given = {name: getattr(query, name) for name in query.__struct_fields__}
    return Recalled(hits=[hit_out(hit) for hit in await call.scope.recall(**given)])
