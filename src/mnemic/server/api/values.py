"""Values as the HTTP API has them: those of the library, with scopes as paths."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from ...checks import MAX_KEY
from ...features.hits import Hit
from ...features.listing import Stats
from ...messages import Message

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=MAX_KEY, extra_json_schema={"pattern": r"^[^\x00-\x1f\x7f]+$"})
]
"""A key, an id or another name."""
Text: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\x00]*$"})]
"""Any text that can be stored."""
Metadata: TypeAlias = dict[str, Any]


class HitOut(Struct, kw_only=True, frozen=True):
    """A hit: what recall found, its score, and in `why` the share of each signal."""

    kind: str
    id: str
    scope: str
    text: str
    score: float
    why: dict[str, float]
    metadata: Metadata
    source: str | None
    created: datetime | None
    before: list[Message]
    after: list[Message]


def hit_out(hit: Hit) -> HitOut:
    """Return a hit as it is sent."""
    return HitOut(
        kind=hit.kind,
        id=hit.id,
        scope=hit.scope.path,
        text=hit.text,
        score=hit.score,
        why=hit.why,
        metadata=hit.metadata,
        source=hit.source,
        created=hit.created,
        before=hit.before,
        after=hit.after,
    )


class ScopeOut(Struct, kw_only=True, frozen=True):
    """A scope with the counts of what is in it."""

    scope: str
    sessions: int
    messages: int
    tokens: int
    archived: int
    summaries: int
    memories: int
    notes: int
    note_bytes: int
    facts: int
    first_activity: datetime | None
    last_activity: datetime | None


def scope_out(stats: Stats) -> ScopeOut:
    """Return a scope's counts as they are sent."""
    given = {name: getattr(stats, name) for name in ScopeOut.__struct_fields__ if name != "scope"}
    return ScopeOut(scope=stats.scope.path, **given)
