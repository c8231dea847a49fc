"""The timeline of a scope and the forecast of forgetting agree with the records, whatever was changed between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import pytest

import mnemic
from demo_store import NOW, DemoClock, fill
from mnemic.checks import from_microseconds, to_microseconds
from mnemic.errors import InvalidValueError
from mnemic.features.forecast import read_forecast
from mnemic.features.timeline import TIMELINE_KINDS, Timeline, TimelineCache, time_of
from mnemic.messages import ROLES
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import scan_all
from mnemic.store.query import Scan

LATER = to_microseconds(NOW + timedelta(days=2))


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


async def truth(memory: mnemic.AsyncMemory, path: str = "") -> list[Record]:
    """Return the records of a timeline by reading all of them, newest first."""
    scan = Scan(scope=ScopePath(path), kinds=TIMELINE_KINDS, below=True)
    found = [record async for record in scan_all(memory._store, scan)]
    return sorted(found, key=lambda r: (time_of(r), r.scope.path, r.kind, r.seq), reverse=True)


def counted(timeline: Timeline) -> dict[str, int]:
    return {kind: sum(counts) for kind, counts in timeline.counts(0, LATER, 7).items() if any(counts)}


async def read_all(cache: TimelineCache, memory: mnemic.AsyncMemory, path: str = "", **filters: Any) -> Timeline:
    """Read until nothing is missing."""
    for _ in range(100):
        timeline = await cache.read(memory._store, ScopePath(path), **filters)
        if timeline.missing != "more":
            break
    assert timeline.missing == "nothing"
    return timeline


@pytest.mark.parametrize("most_read", [50, 20_000])
@on_loop
async def test_timeline_counts_and_orders_every_record(most_read: int) -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock, audit=True) as memory:
        await fill(memory, clock, records=600)
        cache = TimelineCache(most_read)
        for path in ("", "acme", "acme/alice", "globex/dan/visit-01"):
            records = await truth(memory, path)
            timeline = await read_all(cache, memory, path)
            assert counted(timeline) == Counter(record.kind for record in records), path
            assert (timeline.read, timeline.total) == (len(records), len(records))
            refs: list[Ref] = []
            place = None
            while True:
                some, place = timeline.newest(17, place)
                refs += some
                if place is None:
                    break
            assert refs == [record.ref for record in records], path


@on_loop
async def test_timeline_follows_every_change() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        await fill(memory, clock)
        cache, alice = TimelineCache(), memory.scope("acme", "alice")
        await read_all(cache, memory)
        chat = alice.session("new")
        clock.advance(minutes=1)
        said = [await chat.add("user", f"text {n}") for n in range(5)]
        await alice.remember("short-lived", ttl=timedelta(hours=1))

        async def same() -> None:
            records = await truth(memory)
            timeline = await read_all(cache, memory)
            assert counted(timeline) == Counter(record.kind for record in records)
            assert timeline.newest(1000)[0] == [record.ref for record in records][:1000]

        await same()
        await chat.delete(said[1])
        await same()
        await chat.delete(said[2])
        await chat.add("user", "another")
        await same()
        await alice.sessions.delete("new")
        await same()
        await alice.session("new").add("user", "with a new numbering")
        await same()
        clock.advance(hours=2)  # a memory expires
        await same()
        await memory.scope("globex").erase()
        await same()
        assert not [name for name in cache._known if name[0].startswith("globex")]


@on_loop
async def test_timeline_filters_by_kind_role_importance_and_time() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        await fill(memory, clock)
        cache = TimelineCache()
        records = await truth(memory)
        for roles in (["user"], ["tool", "assistant"], list(ROLES)):
            timeline = await read_all(cache, memory, roles=roles)
            wanted = [r for r in records if isinstance(r.data, dict) and r.data.get("role") in roles]
            assert timeline.newest(5000)[0] == [record.ref for record in wanted]
        assert (await cache.read(memory._store, ScopePath(), ["memory"], ["user"])).read == 0

        timeline = await read_all(cache, memory, kinds=("memory", "fact"))
        since, until = NOW - timedelta(days=90), NOW - timedelta(days=9)
        timeline.keep(since, until, min_importance=3, max_importance=8)
        wanted = [r for r in records if r.kind == "memory" and r.created is not None and since <= r.created < until]
        wanted = [r for r in wanted if r.importance is not None and 3 <= r.importance <= 8]
        assert timeline.newest(5000)[0] == [record.ref for record in wanted]
        first, last = timeline.extent or (0, 0)
        assert (from_microseconds(first), from_microseconds(last)) == (wanted[-1].created, wanted[0].created)


@on_loop
async def test_a_timeline_that_is_too_long_to_cache_keeps_what_changed_last() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        for n in range(30):
            clock.advance(days=1)
            said = [{"role": "user", "content": f"{n} {k}"} for k in range(10)]
            await memory.scope("acme").session(f"chat-{n}").add_many(said)
        cache = TimelineCache(most_read=40, most_cached=100)
        for _ in range(6):
            timeline = await cache.read(memory._store, ScopePath())
        assert timeline.missing == "old"
        assert timeline.total == 300
        assert 100 <= timeline.read <= 180
        assert timeline.newest(1)[0][0].scope.name == "chat-29"


@on_loop
async def test_a_restricted_store_shares_the_cache_but_sees_only_its_scope() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        await fill(memory, clock)
        cache = TimelineCache()
        await read_all(cache, memory)
        known = set(cache._known)
        part = memory.restricted("acme", rights=["read"])
        for path in ("", "acme", "globex"):
            timeline = await cache.read(part._store, ScopePath(path), visible=ScopePath("acme"))
            assert {ref.scope.segments[0] for ref in timeline.newest(5000)[0]} <= {"acme"}
            assert timeline.total == timeline.read
        assert set(cache._known) == known


@on_loop
async def test_forecast_agrees_with_what_forget_takes() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        await fill(memory, clock)
        root = memory.scope()
        forecast = await read_forecast(memory._store, ScopePath(), 0.5)
        assert forecast.pinned == 3
        assert len(forecast) == (await memory.stats()).memories - 3
        fading = forecast.next_below(100)
        assert len(fading) == len(forecast)
        assert forecast.next_below(100, "gone") + forecast.next_below(100, "next") == fading
        now, parts, later = forecast.schedule(NOW + timedelta(days=200), 20)
        assert now == (await root.forget(faded_below=0.5, dry_run=True)).matched > 0
        assert now + sum(parts) + later == len(forecast)
        for day in range(1, 21):
            clock.now = NOW + timedelta(days=10 * day)
            taken = (await root.forget(faded_below=0.5, dry_run=True)).matched
            assert taken == now + sum(parts[:day]), day
        for one in fading:
            assert one.below_at is not None
            (before, at) = forecast.curve(one, [one.since - timedelta(days=1), one.below_at])
            assert before is None
            assert at == pytest.approx(min(0.5, one.importance), rel=1e-6)


@on_loop
async def test_forecast_of_one_memory_and_of_other_half_lives() -> None:
    clock = DemoClock()
    async with mnemic.open_async("memory://", clock=clock) as memory:
        await fill(memory, clock)
        (one,) = (await read_forecast(memory._store, ScopePath("acme"), 0.1, id="alice-1")).next_below(5)
        (slow,) = (
            await read_forecast(memory._store, ScopePath("acme"), 0.1, timedelta(days=90), id="alice-1")
        ).next_below(5)
        assert one.ref == Ref(ScopePath("acme/alice"), "memory", "alice-1")
        assert one.uses > 0
        assert one.below_at is not None
        assert slow.below_at is not None
        assert (slow.below_at - slow.since) / (one.below_at - one.since) == pytest.approx(3)
        await memory.scope("acme").remember(
            "worthless", id="zero", importance=0, created=datetime(2026, 1, 1, tzinfo=UTC)
        )
        (zero,) = (await read_forecast(memory._store, ScopePath("acme"), 0.1, id="zero")).next_below(5)
        assert zero.below_at == zero.since
        (far,) = (
            await read_forecast(memory._store, ScopePath("acme"), 1e-300, timedelta(days=300_000), id="alice-1")
        ).next_below(1)
        assert far.below_at is None
        with pytest.raises(InvalidValueError, match="above 0"):
            await read_forecast(memory._store, ScopePath(), 0)
        part = await read_forecast(memory._store, ScopePath(), 0.1, most=3)
        assert (len(part), part.complete) == (0, False)
