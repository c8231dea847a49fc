"""Texts that say what is remembered already: found, and merged only as the policy says."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mnemic
from mnemic import MemoryItem
from mnemic.features.memories import AsyncMemories
from mnemic.recall.text_analysis import NEAR, similarity

PLAN = "Anna will meet the new tenants at the old house near the harbour"


# ---------------------------------------------------------------- how alike two texts are


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna likes tea", "anna LIKES tea."),
        ("Anna doesn't like tea", "Anna doesn’t like tea"),
        ("  Anna   likes tea", "Anna likes\ntea!"),
        (PLAN, PLAN.replace("will", "shall")),
        (PLAN, f"{PLAN} too"),
        ("她住在北京", "她住在北京。"),
    ],
)
def test_alike(one: str, other: str) -> None:
    assert similarity(one, other) == similarity(other, one) >= NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna likes tea", "Bert plays chess"),
        (f"{PLAN} at 5", f"{PLAN} at 6"),
        (PLAN, PLAN.replace("will", "will not")),
        (PLAN, PLAN.replace("will", "won't")),
        (PLAN, PLAN.replace("will", "can never")),
        ("她住在北京", "她不住在北京"),
    ],
)
def test_not_alike(one: str, other: str) -> None:
    assert similarity(one, other) == similarity(other, one) < NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The budget is 3.5 million", "The budget is 5.3 million"),
        ("It was -5 degrees", "It was 5 degrees"),
        ("Room 12, floor 3", "Room 3, floor 12"),
        ("It starts at 12:30", "It starts at 30:12"),
    ],
)
def test_other_numbers_are_never_alike(one: str, other: str) -> None:
    assert similarity(one, other) < NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna likes Bert", "Bert likes Anna"),
        ("Globex has bought Initech", "Initech has bought Globex"),
        ("The dog bit the man", "The man bit the dog"),
    ],
)
def test_who_does_what_to_whom_matters(one: str, other: str) -> None:
    assert similarity(one, other) < NEAR


@pytest.mark.parametrize(("one", "other"), [("👍", "👎"), ("I like C++", "I like C#"), ("?", "🎉")])
def test_what_is_not_written_in_letters_matters(one: str, other: str) -> None:
    assert similarity(one, other) < NEAR
    assert similarity(one, one) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Anna mag den Kaffee am frühen Morgen im Büro sehr gern",
            "Anna mag den Kaffee am frühen Morgen im Büro nicht sehr gern",
        ),
        (
            "Anna hat für die Reise nach Rom schon eine Karte im Haus",
            "Anna hat für die Reise nach Rom schon keine Karte im Haus",
        ),
        (
            "Anna aime le café du matin dans le bureau de la rue",
            "Anna n'aime pas le café du matin dans le bureau de la rue",
        ),
        (
            "Анна любит пить чёрный кофе рано утром дома на кухне",
            "Анна не любит пить чёрный кофе рано утром дома на кухне",
        ),
    ],
    ids=["nicht", "kein", "pas", "не"],
)
def test_other_languages_deny_as_well(one: str, other: str) -> None:
    assert similarity(one, other) < NEAR


@pytest.mark.parametrize(
    ("one", "other"), [("Monday", "Tuesday"), ("May", "June"), ("tomorrow", "yesterday"), ("Rome", "Oslo")]
)
def test_another_day_or_name_is_another_plan(one: str, other: str) -> None:
    first, second = (f"{PLAN} in {word}" for word in (one, other))
    assert similarity(first, second) < NEAR


def test_texts_without_end_are_compared_in_no_time() -> None:
    assert similarity("tea " * 100_000, "tea " * 100_000) == 1
    assert similarity("", "") == 1
    assert similarity("", "tea") == 0


# ---------------------------------------------------------------- found


def test_what_is_alike_is_found(alice: mnemic.Scope) -> None:
    alice.remember_many([PLAN, f"{PLAN} too", "Bert plays chess"])
    hits = alice.memories.similar(PLAN.upper())
    assert [(hit.record.text, hit.score == 1) for hit in hits] == [(PLAN, True), (f"{PLAN} too", False)]
    assert all(hit.why == {"similar": hit.score} for hit in hits)
    assert len(alice.memories.similar(PLAN, k=1)) == 1
    assert alice.memories.similar(PLAN, k=0) == []
    assert len(alice.memories.similar(PLAN, min_score=1)) == 1
    assert alice.memories.similar("") == []
    assert alice.memories.similar("the of and") == []


def test_only_what_is_remembered_here_is_alike(memory: mnemic.Memory) -> None:
    space = memory.scope("a")
    space.session("s").add("user", PLAN)
    space.notes.write("plan", PLAN)
    memory.scope("b").remember(PLAN)
    assert space.memories.similar(PLAN) == []
    for n in range(12):
        space.scope(f"below{n}").remember(PLAN)
    assert space.memories.similar(PLAN) == []
    space.remember(PLAN, id="here")
    for k in (1, 5):
        assert [hit.record.key for hit in space.memories.similar(PLAN, k=k)] == ["here"]
    assert space.remember(PLAN, duplicates="skip").id == "here"


@pytest.mark.parametrize("text", ["👍", "东京很大", "C++", "the of and", "x" * 3000])
def test_a_text_of_any_sort_is_its_own_duplicate(alice: mnemic.Scope, text: str) -> None:
    alice.remember("something else altogether")
    kept = alice.remember(text)
    assert alice.remember(text, duplicates="skip").id == kept.id
    assert len(alice.memories.list()) == 2


# ---------------------------------------------------------------- policies


def test_by_default_both_are_kept(alice: mnemic.Scope) -> None:
    alice.remember(PLAN)
    alice.remember(PLAN)
    assert len(alice.memories.list()) == 2
    with pytest.raises(mnemic.InvalidValueError, match="duplicates must be one of"):
        alice.remember(PLAN, duplicates="drop")  # type: ignore[arg-type]


def test_skipping_returns_what_is_there(alice: mnemic.Scope) -> None:
    kept = alice.remember(PLAN, metadata={"a": 1})
    assert alice.remember(f"{PLAN}!", metadata={"b": 2}, duplicates="skip") == kept
    assert alice.memories.list() == [kept]
    fresh = alice.remember("Bert plays chess", duplicates="skip")
    assert [record.id for record in alice.memories.list()] == [kept.id, fresh.id]


def test_refusing_names_what_is_there(alice: mnemic.Scope) -> None:
    alice.remember(PLAN, id="plan")
    with pytest.raises(mnemic.ConflictError, match="'plan' says the same") as caught:
        alice.remember_many(["Bert plays chess", f"{PLAN}!"], duplicates="refuse")
    assert caught.value.key == "plan"
    assert len(alice.memories.list()) == 1
    with pytest.raises(mnemic.ConflictError):
        alice.remember_many(["tea is green", "Tea is green!"], duplicates="refuse")
    assert len(alice.memories.list()) == 1


def test_merging_loses_nothing(alice: mnemic.Scope) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    alice.remember(
        PLAN,
        id="plan",
        metadata={"a": 1, "b": 1},
        importance=5,
        source="mail",
        pinned=True,
        valid_from=start,
        created=start,
    )
    new = alice.remember(f"{PLAN} too", metadata={"b": 2, "c": 3}, importance=2, duplicates="merge")
    assert alice.memories.list() == [new] == [alice.memories.get("plan")]
    assert (new.id, new.text, new.importance, new.pinned) == ("plan", f"{PLAN} too", 5, True)
    assert (new.metadata, new.source, new.valid_from) == ({"a": 1, "b": 2, "c": 3}, "mail", start)
    assert new.data == {"merged": [{"text": PLAN, "source": "mail"}]}
    assert new.created == start
    third = alice.remember(f"{PLAN} again", duplicates="merge")
    said = [{"text": PLAN, "source": "mail"}, {"text": f"{PLAN} too", "source": "mail"}]
    assert third.data == {"merged": said}
    assert [hit.record.key for hit in alice.recall("tenants")] == ["plan"]


def test_merging_keeps_every_source(alice: mnemic.Scope) -> None:
    alice.remember(PLAN, source="mail from Anna", duplicates="merge")
    new = alice.remember(f"{PLAN} too", source="web page", duplicates="merge")
    said = f"{new.source} {new.metadata} {new.data}"
    assert "mail from Anna" in said
    assert "web page" in said


def test_merging_two_of_no_importance_leaves_none(alice: mnemic.Scope) -> None:
    alice.remember(PLAN, importance=0)
    assert alice.remember(PLAN, importance=0, duplicates="merge").importance == 0


def test_a_merged_text_lives_as_long_as_either(alice: mnemic.Scope) -> None:
    alice.remember(PLAN, ttl=timedelta(hours=1))
    assert alice.remember(PLAN, duplicates="merge").expires is None
    assert alice.remember(PLAN, ttl=timedelta(hours=1), duplicates="merge").expires is None


def test_duplicates_within_one_call(alice: mnemic.Scope) -> None:
    skipped = alice.remember_many([PLAN, f"{PLAN}!", "Bert plays chess"], duplicates="skip")
    assert len(alice.memories.list()) == 2
    assert skipped[0].id == skipped[1].id != skipped[2].id
    merged = alice.remember_many([f"{PLAN} too", PLAN, "tea"], duplicates="merge")
    assert len(alice.memories.list()) == 3
    assert {record.id for record in merged[:2]} == {skipped[0].id}
    assert alice.remember_many([], duplicates="merge") == []


def test_two_texts_that_are_each_like_a_third(alice: mnemic.Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is like the other, and both are to be merged with the same record."""
    plan = "Anna will meet tenants"
    one, two = f"then {plan}", f"{plan} again"
    assert similarity(one, two) < NEAR <= min(similarity(one, plan), similarity(plan, two))
    alice.remember(plan, id="plan")
    plain = AsyncMemories._distinct
    calls: list[int] = []

    async def counted(self: AsyncMemories, *given: Any) -> Any:
        calls.append(1)
        assert len(calls) < 10, "it goes on for ever"
        return await plain(self, *given)

    monkeypatch.setattr(AsyncMemories, "_distinct", counted)
    alice.remember_many([one, two], duplicates="merge")
    said = " ".join(f"{record.text} {record.data}" for record in alice.memories.list())
    assert all(text in said for text in (plan, one, two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Alice prefers tea with milk in the evening", "Bob prefers tea with milk in the evening"),
        ("the colour of her new car is red", "the colour of her new car is blue"),
        ("she likes the old house by the harbour", "she dislikes the old house by the harbour"),
        ("zij wil de afspraak van morgen houden", "zij wil de afspraak van morgen niet houden"),
    ],
)
def test_one_word_for_another_is_another_fact(alice: mnemic.Scope, one: str, two: str) -> None:
    alice.remember(one, duplicates="skip")
    alice.remember(two, duplicates="skip")
    assert [record.text for record in alice.memories.list()] == [one, two]


@pytest.mark.parametrize("policy", ["keep", "merge", "skip", "refuse"])
def test_a_call_that_is_sent_again_is_done_once(alice: mnemic.Scope, policy: Any) -> None:
    first = alice.remember(PLAN, once="call-1", duplicates=policy)
    again = alice.remember(PLAN, once="call-1", duplicates=policy)
    assert again.text == first.text
    assert [record.id for record in alice.memories.list()] == [first.id]
    assert len(alice.memories.list()) == 1


@pytest.mark.parametrize("policy", ["keep", "merge", "refuse"])
def test_a_key_of_ones_own_may_be_written_again(alice: mnemic.Scope, policy: Any) -> None:
    alice.remember(PLAN, id="plan")
    alice.remember(PLAN, id="plan", metadata={"a": 1}, duplicates=policy)
    assert alice.memories.get("plan").metadata == {"a": 1}
    assert len(alice.memories.list()) == 1


def test_many_who_say_the_same_at_once_are_merged(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        space = memory.scope("a")
        space.remember(PLAN, id="plan")
        errors: list[BaseException] = []

        def say(number: int) -> None:
            try:
                for n in range(3):
                    space.remember(PLAN, metadata={f"{number}-{n}": True}, duplicates="merge")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=say, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        (record,) = space.memories.list()
        assert len(record.metadata) == 12


def test_what_is_no_longer_there_is_no_duplicate(alice: mnemic.Scope) -> None:
    alice.remember(PLAN, id="plan")
    alice.forget("plan")
    fresh = alice.remember(PLAN, duplicates="refuse")
    assert alice.memories.list() == [fresh]
    alice.memories.update(fresh.id, text="Bert plays chess")
    alice.remember_many([MemoryItem(text=PLAN)], duplicates="refuse")
    assert len(alice.memories.list()) == 2
