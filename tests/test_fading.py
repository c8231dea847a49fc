"""Importance that fades with time and is renewed by use; what has faded is pruned only when asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mnemic
from clock import Clock
from mnemic import MemoryItem
from mnemic.backends.memory import MemoryStore
from mnemic.recall.index_entry import HALF_LIFE, Use, pack_use, strength, unpack_use
from mnemic.store.query import Write

DAY = timedelta(days=1)


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def left(space: mnemic.Scope, **options: Any) -> dict[str, float]:
    return {faded.record.key: faded.strength for faded in space.memories.fading(**options)}


# ---------------------------------------------------------------- the curve


def test_half_is_left_after_a_half_life() -> None:
    assert strength(4.0, HALF_LIFE, 0) == pytest.approx(2.0)
    assert strength(4.0, 0, 0) == 4.0
    assert strength(4.0, -5, 0) == 4.0
    assert strength(4.0, 10, 0, 10) == pytest.approx(2.0)


@given(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e4))
def test_time_weakens_and_use_strengthens(importance: float, days: float, uses: float) -> None:
    now = strength(importance, days, uses)
    assert 0 <= now <= importance
    assert strength(importance, days + 1, uses) <= now <= strength(importance, days, uses + 1)


@given(st.integers(0, 253_402_300_799_999_999), st.floats(0, 1e12))
def test_uses_are_kept_as_they_are(last: int, uses: float) -> None:
    assert unpack_use(pack_use(Use(last, uses, last))) == Use(last, uses, last)


def test_what_fades_is_listed_weakest_first(alice: mnemic.Scope) -> None:
    alice.remember("new", id="new")
    alice.remember("old", id="old", created=ago(60))
    alice.remember("old but weighty", id="weighty", created=ago(60), importance=8)
    alice.remember("old and pinned", id="pinned", created=ago(600), pinned=True)
    found = left(alice)
    assert list(found) == ["old", "new", "weighty"]
    assert found == pytest.approx({"old": 0.25, "new": 1.0, "weighty": 2.0}, rel=1e-3)
    assert list(left(alice, below=0.5)) == ["old"]
    assert list(left(alice, limit=1)) == ["old"]
    assert left(alice, limit=0) == {}
    assert left(alice, half_life=60 * DAY)["old"] == pytest.approx(0.5, rel=1e-3)
    assert {faded.used for faded in alice.memories.fading()} == {None}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fading", {"limit": -1}),
        ("fading", {"below": float("nan")}),
        ("fading", {"half_life": timedelta(0)}),
        ("decay", {"half_life": -DAY}),
        ("decay", {"half_life": 30}),
        ("forget", {"faded_below": "weak"}),
        ("forget", {"faded_below": 1, "half_life": timedelta(0)}),
        ("forget", {"older_than": timedelta(1), "half_life": timedelta(1)}),
        ("restore", {"id": ""}),
    ],
)
def test_bad_options_are_refused(alice: mnemic.Scope, method: str, options: dict[str, Any]) -> None:
    alice.remember("tea", created=ago(900))
    with pytest.raises(mnemic.InvalidValueError):
        getattr(alice if method == "forget" else alice.memories, method)(**options)
    assert len(alice.memories.list()) == 1


def test_nothing_fades_in_an_empty_scope(alice: mnemic.Scope) -> None:
    assert (
        alice.memories.fading(),
        alice.memories.decay(),
        alice.forget(faded_below=9),
        alice.memories.archived(),
        alice.used(),
    ) == ([], 0, mnemic.Forgotten(matched=0), [], 0)


# ---------------------------------------------------------------- use


def test_use_renews(alice: mnemic.Scope) -> None:
    kept = alice.remember("green tea", id="k", created=ago(90))
    assert left(alice)["k"] == pytest.approx(0.125, rel=1e-3)
    assert alice.used(kept) == 1
    (faded,) = alice.memories.fading()
    assert faded.strength == pytest.approx(1.0, rel=1e-3)
    assert faded.uses == 1
    assert faded.used is not None
    assert datetime.now(UTC) - faded.used < timedelta(minutes=1)
    alice.forget("k")
    assert alice.used(kept) == 0


def test_use_is_told_by_hit_record_or_ref(alice: mnemic.Scope) -> None:
    kept = alice.remember("green tea")
    (hit,) = alice.recall("tea", kinds="memory")
    before = alice.memories.fading()[0].uses
    assert alice.used(hit, kept) == 1
    assert alice.used(kept) == 1
    assert alice.memories.fading()[0].uses == before + 2


def test_recall_counts_as_use_but_is_no_write_for_each_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as memory:
        space = memory.scope("a")
        space.remember_many([MemoryItem(text=f"tea {n}", id=f"k{n}", created=ago(60)) for n in range(20)])
        space.recall("tea")
        writes: list[Write] = []
        plain = MemoryStore.write

        async def counted(self: MemoryStore, write: Write) -> Any:
            writes.append(write)
            return await plain(self, write)

        monkeypatch.setattr(MemoryStore, "write", counted)
        for _ in range(30):
            assert len(space.recall("tea", k=20)) == 20
        assert writes == []
        assert {faded.uses for faded in space.memories.fading()} <= {30.0, 31.0}
        assert len(writes) == 1
        assert min(left(space).values()) == pytest.approx(1.0, rel=1e-3)


def test_uses_are_kept_over_closing(file_url: str) -> None:
    for n in range(1, 4):
        with mnemic.open(file_url) as memory:
            space = memory.scope("a")
            if n == 1:
                space.remember("green tea", created=ago(90))
            space.recall("tea")
        with mnemic.open(file_url) as memory:
            assert memory.scope("a").memories.fading()[0].uses == n


def test_two_handles_count_together(file_url: str) -> None:
    with mnemic.open(file_url) as one, mnemic.open(file_url) as two:
        one.scope("a").remember("green tea", created=ago(90))
        for handle in (one, two, one):
            handle.scope("a").recall("tea")
        one.scope("a").memories.fading()
        assert two.scope("a").memories.fading()[0].uses == 3


def test_looking_for_duplicates_is_no_use(alice: mnemic.Scope) -> None:
    alice.remember("Anna likes green tea", created=ago(90))
    alice.memories.similar("Bert likes black tea")
    alice.remember("Bert likes black tea", duplicates="skip")
    assert {faded.uses for faded in alice.memories.fading()} == {0.0}


def test_only_what_stands_in_a_context_is_used(alice: mnemic.Scope) -> None:
    alice.remember_many([MemoryItem(text=f"tea of the kind {n}", created=ago(9)) for n in range(30)])
    context = alice.context("which tea", max_tokens=120)
    assert 0 < len(context.hits) < 20
    used = {faded.record.key for faded in alice.memories.fading() if faded.uses}
    assert used == {hit.record.key for hit in context.hits}


def test_recall_weighs_what_is_left(alice: mnemic.Scope) -> None:
    alice.remember("the door code of house a", created=ago(300), importance=3)
    alice.remember("the door code of house b", created=ago(1), importance=3)
    hits = alice.recall("door code", k=2, signals=["lexical", "importance"])
    assert [str(hit.record.text)[-1] for hit in hits] == ["b", "a"]
    assert hits[1].why["importance"] < 0 < hits[0].why["importance"]


def test_recall_sees_that_something_was_used(alice: mnemic.Scope) -> None:
    old = alice.remember("the door code of house a", created=ago(300), importance=3)
    alice.remember("the door code of house b", created=ago(1), importance=3)

    def share() -> float:
        hits = alice.recall("door code", k=2, signals=["lexical", "importance"])
        return next(hit.why["importance"] for hit in hits if hit.id == old.id)

    before = share()
    alice.used(old)
    assert share() > before


def test_what_is_pinned_weighs_the_same_for_ever(alice: mnemic.Scope) -> None:
    alice.remember("the door code of house a", created=ago(3000), importance=3, pinned=True)
    alice.remember("the door code of house b", importance=3)
    hits = alice.recall("door code", k=2, signals=["lexical", "importance"])
    assert hits[0].why["importance"] == pytest.approx(hits[1].why["importance"], rel=1e-3)


# ---------------------------------------------------------------- decay


def test_decay_writes_down_what_is_left(alice: mnemic.Scope) -> None:
    alice.remember("old", id="old", created=ago(30), importance=4, metadata={"a": 1}, source="chat")
    alice.remember("pinned", id="pinned", created=ago(30), pinned=True)
    alice.remember("new", id="new")
    before = alice.memories.get("old")
    assert alice.memories.decay() == 1
    after = alice.memories.get("old")
    assert after.importance == pytest.approx(2.0, rel=1e-3)
    assert (after.text, after.metadata, after.source, after.created) == (
        before.text, before.metadata, before.source, before.created,
    )  # fmt: skip
    assert alice.memories.get("pinned").importance == 1.0
    assert alice.memories.decay() == 0
    assert left(alice)["old"] == pytest.approx(2.0, rel=1e-3)
    assert len(alice.recall("old", min_importance=3)) == 0
    assert [hit.record.text for hit in alice.recall("old", kinds="memory")][:1] == ["old"]


def test_decay_is_no_use(alice: mnemic.Scope) -> None:
    alice.remember("old", created=ago(30), importance=4)
    alice.memories.decay()
    (faded,) = alice.memories.fading()
    assert (faded.used, faded.uses) == (None, 0)


def test_it_makes_no_difference_how_often_it_decays(clock: Clock) -> None:
    for uses in (0, 3):
        with mnemic.open("memory://", clock=clock) as memory:
            often, once = memory.scope("often"), memory.scope("once")
            for space in (often, once):
                kept = space.remember("tea", importance=10)
                for _ in range(uses):
                    space.used(kept)
            for _ in range(20):
                clock.advance(days=5)
                often.memories.decay()
            assert often.memories.fading()[0].strength == pytest.approx(once.memories.fading()[0].strength, rel=1e-3)


def test_many_decay_in_several_writes(alice: mnemic.Scope) -> None:
    alice.remember_many([MemoryItem(text=f"tea {n}", created=ago(30)) for n in range(1203)])
    assert alice.memories.decay() == 1203
    assert alice.memories.decay() == 0
    assert alice.forget(faded_below=0.9).deleted == 1203
    assert alice.memories.list() == []


# ---------------------------------------------------------------- pruning


def test_what_is_weak_is_pruned_and_nothing_else(alice: mnemic.Scope) -> None:
    alice.remember("weak tea", id="weak", created=ago(100))
    alice.remember("strong tea", id="strong", created=ago(100), importance=100)
    alice.remember("pinned tea", id="pinned", created=ago(1000), pinned=True)
    alice.remember("new tea", id="new")
    alice.scope("below").remember("weak tea below", created=ago(100))
    alice.session("s").add("user", "weak tea message", timestamp=ago(1000))
    assert alice.forget(faded_below=0.0).deleted == 0
    assert alice.forget(faded_below=0.5, dry_run=True).matched == 2
    assert alice.forget(faded_below=0.5).deleted == 2
    assert [record.id for record in alice.memories.list()] == ["strong", "pinned", "new"]
    assert alice.scope("below").memories.list() == []
    assert "weak tea" not in [hit.record.text for hit in alice.recall("weak tea", k=99)]
    assert alice.memories.archived() == []


def test_only_memories_move_to_the_archive_of_their_scope(alice: mnemic.Scope) -> None:
    alice.remember("old tea", id="old", created=ago(100))
    alice.session("s").add("user", "old message", timestamp=ago(100))
    for kinds in ("message", ["memory", "message"]):
        with pytest.raises(mnemic.InvalidValueError, match="for memories alone"):
            alice.forget(older_than=timedelta(days=30), kinds=kinds, archive=True)
    assert [item.id for item in alice.memories.list()] == ["old"]
    assert alice.forget(older_than=timedelta(days=30), archive=True).archived == 1
    assert [item.id for item in alice.memories.archived()] == ["old"]
    assert len(alice.session("s").messages()) == 1


def test_what_is_pruned_can_be_kept_and_brought_back(alice: mnemic.Scope) -> None:
    alice.remember(
        "weak tea",
        id="weak",
        created=ago(100),
        metadata={"a": [1, None]},
        source="chat",
        importance=0.5,
        valid_from=ago(200),
        valid_to=ago(-200),
    )
    alice.remember("other tea", id="other")
    before = alice.memories.get("weak")
    assert alice.forget(faded_below=0.4, archive=True).deleted == 1
    with pytest.raises(mnemic.NotFoundError):
        alice.memories.get("weak")
    assert [hit.record.key for hit in alice.recall("weak tea", k=99)] == ["other"]
    (kept,) = alice.memories.archived()
    fields = ("text", "metadata", "source", "importance", "created", "valid_from", "valid_to", "data", "scope", "id")
    assert [getattr(kept, name) for name in fields] == [getattr(before, name) for name in fields]
    back = alice.memories.restore("weak")
    assert back == alice.memories.get("weak")
    assert [getattr(back, name) for name in fields] == [getattr(before, name) for name in fields]
    assert alice.memories.archived() == []
    assert left(alice)["weak"] == pytest.approx(0.5, rel=1e-3)
    assert alice.recall("weak", k=1)[0].record.key == "weak"
    with pytest.raises(mnemic.NotFoundError):
        alice.memories.restore("weak")


@pytest.mark.parametrize("how", [{"faded_below": 0.5}, {"older_than": timedelta(days=30)}])
def test_what_is_restored_without_a_use_fades_on_as_before(
    alice: mnemic.Scope, clock: Clock, how: dict[str, Any]
) -> None:
    alice.remember("used once", id="used", created=ago(300))
    alice.remember("never used", id="never", created=ago(100))
    alice.used("used")
    clock.advance(days=100)
    before = {one.memory.id: one for one in alice.memories.fading()}
    assert before["used"].uses == 1
    assert alice.forget(**how, archive=True).deleted == 2
    for id in before:
        alice.memories.restore(id, used=False)
    for one in alice.memories.fading():
        was = before[one.memory.id]
        assert (one.uses, one.used, one.memory.importance) == (was.uses, was.used, was.memory.importance)
        assert one.strength == pytest.approx(was.strength, rel=1e-6)


def test_nothing_is_restored_over_what_has_its_key(alice: mnemic.Scope) -> None:
    alice.remember("weak tea", id="k", created=ago(100))
    alice.forget(faded_below=0.5, archive=True)
    alice.remember("other", id="k")
    with pytest.raises(mnemic.ConflictError):
        alice.memories.restore("k")
    assert alice.memories.get("k").text == "other"
    assert [record.text for record in alice.memories.archived()] == ["weak tea"]


def test_no_importance_at_all_comes_back_as_such(alice: mnemic.Scope) -> None:
    alice.remember("idle", id="k", importance=0)
    assert alice.forget(faded_below=0.5, archive=True).deleted == 1
    assert alice.memories.restore("k").importance == 0


def test_what_is_kept_still_ends_when_it_was_to_end(alice: mnemic.Scope, clock: Clock) -> None:
    alice.remember("the code is 1234", id="k", created=ago(300), ttl=timedelta(hours=1))
    assert alice.forget(faded_below=0.5, archive=True).deleted == 1
    assert len(alice.memories.archived()) == 1
    clock.advance(hours=1)
    assert alice.memories.archived() == []
    with pytest.raises(mnemic.NotFoundError):
        alice.memories.restore("k")


def test_what_was_written_today_is_not_pruned_for_its_old_key(alice: mnemic.Scope) -> None:
    alice.remember("likes tea", id="drink", created=ago(300))
    alice.remember("likes coffee", id="drink")
    assert alice.forget(faded_below=0.5).deleted == 0
    assert alice.memories.get("drink").text == "likes coffee"


def test_what_is_said_again_is_not_pruned(alice: mnemic.Scope) -> None:
    alice.remember("Anna likes green tea", id="k", created=ago(300))
    alice.remember("Anna likes green tea", duplicates="merge")
    assert alice.forget(faded_below=0.5).deleted == 0


def test_erasing_takes_what_was_pruned_along(memory: mnemic.Memory) -> None:
    space = memory.scope("a")
    space.remember("weak tea", created=ago(300))
    space.forget(faded_below=0.5, archive=True)
    assert space.erase().records == 1
    assert space.memories.archived() == []


def test_what_changes_while_it_is_pruned_stays(alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic.features import forgetting
    from mnemic.features.memories import AsyncMemories
    from mnemic.store import retry

    alice.remember_many([MemoryItem(text=f"tea {n}", id=f"k{n}", created=ago(300)) for n in range(9)])
    plain = retry.write_each
    done: list[int] = []

    async def changed(store: Any, batch: Any) -> list[bool]:
        if not done:
            done.append(1)
            await AsyncMemories(store, alice.path).update("k4", text="tea that is new")
        return await plain(store, batch)

    monkeypatch.setattr(forgetting, "write_each", changed)
    assert alice.forget(faded_below=0.5, archive=True).deleted == 8
    assert [record.text for record in alice.memories.list()] == ["tea that is new"]
    assert len(alice.memories.archived()) == 8
