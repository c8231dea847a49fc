"""The forecast of forgetting: how memories fade, and when each falls below a threshold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

from ...features.forecast import Which, read_forecast
from ...recall.index_entry import HALF_LIFE
from ..endpoint import ApiCall, Example, Query, endpoint
from .response_types import Name
from .timeline import SHOWN


class ForecastQuery(Query):
    """A threshold, the half-life of importance, and how far to look ahead."""

    below: Annotated[float, Meta(ge=1e-6, le=1e9, description="Threshold: `faded_below` of `forget`.")] = 0.1
    half_life_days: Annotated[float, Meta(ge=0.01, le=100_000)] = HALF_LIFE
    days: Annotated[float, Meta(ge=0.01, le=36_500, description="How far ahead.")] = 90
    past_days: Annotated[float, Meta(ge=0, le=36_500, description="How far back curves begin.")] = 30
    parts: Annotated[int, Meta(ge=1, le=400, description="In how many parts of that time to count.")] = 12
    points: Annotated[int, Meta(ge=2, le=400, description="Points of each curve.")] = 60
    limit: Annotated[int, Meta(ge=0, le=100, description="How many memories come with their curves.")] = 8
    which: Annotated[Which, Meta(description="Which of them: all, those not below yet, or those below.")] = "all"
    id: Annotated[Name, Meta(description="Only the memory with this id.")] | None = None


class FadingCurve(Struct, kw_only=True, frozen=True):
    """A memory that fades; `curve` has its strength at each of the forecast's `times`, null before it began to fade."""

    id: str
    scope: str
    text: str
    importance: float
    since: datetime
    uses: float
    used: datetime | None
    strength: float
    below_at: datetime | None
    curve: list[float | None]


class ForecastOut(Struct, kw_only=True, frozen=True):
    """How many memories are below the threshold `gone`, in which part of the time others follow, and which."""

    now: datetime
    until: datetime
    below: float
    half_life_days: float
    memories: int
    pinned: int
    gone: int
    parts: list[int]
    later: int
    complete: bool
    times: list[datetime]
    fading: list[FadingCurve]


@endpoint(
    "GET", "/api/v1/forecast", right="read", summary="Forecast what will be forgotten", tag="timeline",
    example=Example(
        query={"below": 0.1, "days": 90, "parts": 2, "points": 2, "limit": 1},
        answer={
            "now": "2026-01-31T10:00:00Z", "until": "2026-05-01T10:00:00Z", "below": 0.1, "half_life_days": 30.0,
            "memories": 1, "pinned": 0, "gone": 0, "parts": [0, 0], "later": 1, "complete": True,
            "times": ["2026-01-01T10:00:00Z", "2026-05-01T10:00:00Z"],
            "fading": [{
                "id": "sleep", "scope": "acme/alice", "text": "Alice sleeps badly after coffee.", "importance": 1.0,
                "since": "2026-01-31T09:30:00Z", "uses": 0.0, "used": None, "strength": 0.999,
                "below_at": "2026-05-10T21:20:00Z", "curve": [None, 0.125],
            }],
        },
    ),
)  # fmt: skip
async def forecast(call: ApiCall, query: ForecastQuery) -> ForecastOut:
    """How the memories of the scope and below fade if none is used: when each falls below a threshold.

    That is when `forget` with `faded_below` would take it; nothing is deleted by itself. The first `limit` to fall
    below come with their curves.
    """
    half_life = timedelta(days=query.half_life_days)
    found = await read_forecast(call.store, call.path, query.below, half_life, id=query.id)
    until = found.moment + timedelta(days=query.days)
    gone, parts, later = found.schedule(until, query.parts)
    start = found.moment - timedelta(days=query.past_days)
    times = [start + (until - start) * n / (query.points - 1) for n in range(query.points)]
    first = found.next_below(query.limit, query.which)
    records = await call.store.read([one.ref for one in first])
    return ForecastOut(
        now=found.moment,
        until=until,
        below=found.below,
        half_life_days=found.half_life,
        memories=len(found),
        pinned=found.pinned,
        gone=gone,
        parts=parts,
        later=later,
        complete=found.complete,
        times=times,
        fading=[
            FadingCurve(
                id=one.ref.key,
                scope=one.ref.scope.path,
                text=(record.text or "")[:SHOWN],
                importance=one.importance,
                since=one.since,
                uses=one.uses,
                used=one.used,
                strength=one.strength,
                below_at=one.below_at,
                curve=found.curve(one, times),
            )
            for one, record in zip(first, records, strict=True)
            if record is not None
        ],
    )
