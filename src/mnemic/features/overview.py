"""Statistics: scopes, counts and sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from ..checks import check_count
from ..records import ScopePath, Stream, Value
from ..store.protocol import Store, all_streams
from ..store.query import StreamScan
from .kinds import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, OF_SESSIONS, SUMMARY

COUNTED: dict[str, tuple[str, str | None]] = {
    MESSAGE: ("messages", "tokens"),
    ARCHIVED: ("archived", None),
    SUMMARY: ("summaries", None),
    MEMORY: ("memories", None),
    NOTE: ("notes", "note_bytes"),
    FACT: ("facts", None),
}
"""Fields for the count and the weight of a stream, by kind."""


class Stats(Value, frozen=True, kw_only=True):
    """Content statistics of a scope; `tokens` are those of the messages, `note_bytes` the notes' values as JSON."""

    scope: ScopePath
    sessions: int = 0
    messages: int = 0
    tokens: int = 0
    archived: int = 0
    summaries: int = 0
    memories: int = 0
    notes: int = 0
    note_bytes: int = 0
    facts: int = 0
    first_activity: datetime | None = None
    last_activity: datetime | None = None

    @property
    def items(self) -> int:
        """Total number of items of every kind."""
        return self.messages + self.archived + self.summaries + self.memories + self.notes + self.facts


async def scope_stats(store: Store, scope: ScopePath) -> Stats:
    """Return the statistics of a scope and those below."""
    total = Stats(scope=scope)
    async for stream in _streams(store, scope):
        total = _with(total, stream)
    return total


async def list_scopes(store: Store, scope: ScopePath, limit: int | None = None) -> list[Stats]:
    """Return each non-empty scope, here and below, in order of path; sessions count for their scope."""
    if limit is not None:
        check_count(limit, "limit")
    found: dict[str, Stats] = {}
    async for stream in _streams(store, scope):
        owner = stream.scope.parent if stream.kind in OF_SESSIONS and stream.scope != scope else stream.scope
        found[owner.path] = _with(found.get(owner.path) or Stats(scope=owner), stream)
    return [found[path] for path in sorted(found)][:limit]


async def _streams(store: Store, scope: ScopePath) -> AsyncIterator[Stream]:
    async for stream in all_streams(store, StreamScan(scope=scope, kinds=tuple(COUNTED))):
        if stream.count:
            yield stream


def _with(stats: Stats, stream: Stream) -> Stats:
    counted, weighed = COUNTED[stream.kind]
    changes: dict[str, Any] = {
        counted: getattr(stats, counted) + stream.count,
        "first_activity": min(filter(None, (stats.first_activity, stream.created))),
        "last_activity": max(filter(None, (stats.last_activity, stream.updated))),
    }
    if weighed is not None:
        changes[weighed] = getattr(stats, weighed) + stream.weight
    if stream.kind == MESSAGE:
        changes["sessions"] = stats.sessions + 1
    return replace(stats, **changes)
