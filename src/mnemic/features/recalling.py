"""Recall: from a question and filters to hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..checks import check_count, check_time
from ..records import Role, ScopePath, now
from ..store.protocol import Store
from ..store.query import Search
from .filters import conditions, names
from .hits import Hit, to_hit
from .kinds import ARCHIVED, MEMORY, MESSAGE, check_kinds
from .references import Reference, find_ref


async def recall(
    store: Store,
    scope: ScopePath,
    query: str,
    k: int,
    *,
    kinds: Sequence[str] | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    roles: Sequence[Role] | Role | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    min_importance: float | None = None,
    min_score: float | None = None,
    as_of: datetime | None = None,
    neighbors: int = 0,
    diverse: bool = True,
    traffic: bool = False,
    exclude: Sequence[Reference] = (),
    signals: Sequence[str] | str | None = None,
    uses: bool = True,
) -> list[Hit]:
    """Return the `k` best hits in a scope and below it, as `AsyncScope.recall` describes it."""
    if kinds is not None and not kinds:
        return []
    search = Search(
        scope=scope,
        query=query,
        kinds=() if kinds is None else _with_archived(check_kinds(kinds)),
        where=conditions(metadata, roles=roles, since=since, until=until, min_importance=min_importance),
        as_of=now() if as_of is None else check_time(as_of, "as_of"),
        limit=check_count(k, "k"),
        signals=() if signals is None else names(signals, "signals"),
        min_score=min_score,
        neighbors=neighbors,
        diverse=diverse,
        traffic=traffic or roles is not None,
        exclude=tuple([await find_ref(store, scope, one, MEMORY) for one in exclude]),
        uses=uses,
    )
    return [to_hit(match) for match in await store.search(search)]


def _with_archived(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return kinds with those messages that no longer fit their session: they are messages all the same."""
    return tuple(dict.fromkeys((*kinds, ARCHIVED))) if MESSAGE in kinds else kinds
