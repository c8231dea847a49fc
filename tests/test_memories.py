"""Long-term memory: remembering, changing, forgetting, and recall by words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from clock import Clock
from mnemic import MemoryItem, Message


def found(hits: list[mnemic.Hit]) -> list[str | None]:
    return [hit.record.text for hit in hits]


def test_what_is_remembered_comes_back(alice: mnemic.Scope) -> None:
    start, end = datetime(2025, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    kept = alice.remember(
        "Alice is allergic to peanuts",
        importance=2,
        metadata={"topic": "health"},
        source="intake form",
        valid_from=start,
        valid_to=end,
        pinned=True,
    )
    assert alice.memories.get(kept.id) == kept
    assert (kept.importance, kept.metadata, kept.source) == (2.0, {"topic": "health"}, "intake form")
    assert (kept.valid_from, kept.valid_to, kept.pinned) == (start, end, True)


def test_get_returns_anything_by_its_id_here_or_below(alice: mnemic.Scope) -> None:
    kept = alice.scope("work").remember("Alice paints teapots")
    said = alice.session("monday").add("user", "hello")
    alice.notes.write("plan", [1])
    fact = alice.facts.add("Alice", "likes", "tea")
    assert [alice.get(id) for id in (kept.id, said.id, "plan", fact.id)] == [kept, said, alice.notes.get("plan"), fact]
    with pytest.raises(mnemic.NotFoundError, match="has nothing with the id 'nothing'"):
        alice.get("nothing")


def test_many_are_remembered_at_once(alice: mnemic.Scope) -> None:
    kept = alice.remember_many(["one", MemoryItem(text="two", importance=3, id="second")])
    assert [record.text for record in alice.memories.list()] == ["one", "two"]
    assert kept[1].id == "second"
    with pytest.raises(mnemic.InvalidValueError):
        alice.remember_many(["three", MemoryItem(text="four", importance=float("nan"))])
    assert len(alice.memories.list()) == 2


def test_keys_are_not_used_again_after_forgetting(alice: mnemic.Scope) -> None:
    kept = [alice.remember(f"fact {n}") for n in range(3)]
    alice.forget(kept[1].id)
    fresh = alice.remember("fact 3")
    assert fresh.id not in {record.id for record in kept}
    assert [record.text for record in alice.memories.list()] == ["fact 0", "fact 2", "fact 3"]


def test_a_key_of_ones_own_is_replaced(alice: mnemic.Scope) -> None:
    alice.remember("likes tea", id="drink")
    alice.remember("hates broccoli", id="drink")
    assert [record.text for record in alice.memories.list()] == ["hates broccoli"]
    assert found(alice.recall("tea")) == []


def test_update_changes_what_is_given(alice: mnemic.Scope) -> None:
    kept = alice.remember("likes tea", metadata={"a": 1}, source="chat", importance=2)
    changed = alice.memories.update(kept.id, text="likes green tea", importance=5)
    assert (changed.text, changed.importance, changed.metadata, changed.source) == (
        "likes green tea", 5.0, {"a": 1}, "chat",
    )  # fmt: skip
    assert changed.created == kept.created
    assert changed.version > kept.version
    assert alice.memories.get(kept.id) == changed
    cleared = alice.memories.update(kept.id, source=None, metadata={})
    assert (cleared.source, cleared.metadata) == (None, {})
    with pytest.raises(mnemic.NotFoundError):
        alice.memories.update("no", text="x")


def test_what_is_returned_is_what_is_stored(alice: mnemic.Scope) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    kept = alice.remember("tea", metadata={"pair": (1, 2)}, valid_from=naive)
    assert kept == alice.memories.get(kept.id)
    assert alice.update(kept.id, importance=2) == alice.memories.get(kept.id)


def test_forget_by_key_or_filter(alice: mnemic.Scope) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(6):
        alice.remember(
            f"fact {n}", id=f"k{n}", metadata={"even": n % 2 == 0}, source=f"s{n % 3}", created=day + timedelta(days=n)
        )
    assert alice.forget("k0").deleted == 1
    assert alice.forget("k0").deleted == 0
    assert alice.forget(metadata={"even": True}, source="s2").deleted == 1
    assert alice.forget(until=day + timedelta(days=1)).deleted == 1
    assert [record.id for record in alice.memories.list()] == ["k3", "k4", "k5"]
    useless: list[dict[str, Any]] = [{}, {"metadata": {}}, {"kinds": "memory"}]
    for nothing in useless:
        with pytest.raises(mnemic.InvalidValueError, match="forget needs"):
            alice.forget(**nothing)
    with pytest.raises(mnemic.InvalidValueError, match="not both"):
        alice.forget("k3", source="s0")
    assert alice.forget(since=day).deleted == 3


def test_what_has_a_time_to_live_is_forgotten_by_itself(alice: mnemic.Scope, clock: Clock) -> None:
    alice.remember("the code is 1234", ttl=timedelta(hours=1))
    assert found(alice.recall("code")) == ["the code is 1234"]
    clock.advance(hours=1)
    assert alice.recall("code") == []
    assert alice.memories.list() == []


def test_the_expiry_of_a_memory_can_change(memory: mnemic.Memory, clock: Clock) -> None:
    alice = memory.scope("alice")
    for id in ("longer", "forever", "as it was"):
        alice.remember("the code is 1234", id=id, ttl=timedelta(hours=1))
    alice.remember("the code was 1234", id="shorter")
    clock.advance(minutes=50)
    start = alice.now
    assert start <= (alice.memories.update("longer", ttl=timedelta(hours=1)).expires or start) - timedelta(hours=1)
    assert alice.memories.update("forever", ttl=None).expires is None
    alice.memories.update("as it was", importance=2)
    alice.memories.update("shorter", ttl=timedelta(minutes=1))
    clock.advance(minutes=50)
    assert [item.id for item in alice.memories.list()] == ["longer", "forever"]
    with pytest.raises(mnemic.InvalidValueError, match="ttl must be positive"):
        alice.memories.update("longer", ttl=timedelta(0))


def test_recent_is_the_newest_oldest_first(alice: mnemic.Scope) -> None:
    alice.remember_many([f"fact {n}" for n in range(20)])
    assert [record.text for record in alice.memories.list(limit=3)] == ["fact 17", "fact 18", "fact 19"]
    assert [record.text for record in alice.memories.list(limit=2, newest=False)] == ["fact 0", "fact 1"]


# ---------------------------------------------------------------- recall


def test_recall_finds_words_in_any_form(alice: mnemic.Scope) -> None:
    alice.remember("Alice is allergic to peanuts")
    alice.remember("She went hiking in the mountains last summer")
    alice.remember("Her favourite colour is blue")
    assert found(alice.recall("which peanut is she allergic to?"))[:1] == ["Alice is allergic to peanuts"]
    assert found(alice.recall("hiked mountain"))[:1] == ["She went hiking in the mountains last summer"]
    assert alice.recall("quantum chromodynamics") == []
    assert alice.recall("") == []
    assert alice.recall("the of and") == []


def test_a_hit_says_why(alice: mnemic.Scope) -> None:
    alice.remember("peanuts")
    (hit,) = alice.recall("peanut")
    assert hit.score > 0
    assert sum(hit.why.values()) == pytest.approx(hit.score)


def test_recall_reaches_everything_below_the_scope(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    alice.session("monday").add("user", "The wedding is in Lisbon")
    alice.scope("work").remember("Lisbon office opens in May")
    alice.notes.write("trip_plan", {"city": "Lisbon"}, description="where we go")
    alice.facts.add("Alice", "travels_to", "Lisbon")
    memory.scope("acme", "alice2").remember("Lisbon is not hers")
    memory.scope("acme").remember("Lisbon of the tenant")
    kinds = {hit.record.kind for hit in alice.recall("Lisbon", k=10)}
    assert kinds == {"message", "memory", "note", "fact"}
    assert len(alice.recall("Lisbon", k=10)) == 4
    assert [hit.record.kind for hit in alice.recall("Lisbon", kinds=["fact"])] == ["fact"]
    assert len(memory.scope("acme").recall("Lisbon", k=10)) == 6


def test_rare_words_count_more_and_only_those_of_the_scope_are_counted(memory: mnemic.Memory) -> None:
    alice, bob = memory.scope("alice"), memory.scope("bob")
    alice.remember_many([f"meeting number {n}" for n in range(30)])
    alice.remember("zebra crossing")
    alice.remember("meeting with a zebra")
    bob.remember_many([f"zebra {n}" for n in range(100)])
    assert found(alice.recall("zebra meeting", k=2)) == ["meeting with a zebra", "zebra crossing"]


def test_filters_narrow_recall(alice: mnemic.Scope) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(200):
        alice.remember(
            f"tea number {n}", metadata={"n": n}, importance=n / 10, created=day + timedelta(days=n), source="x"
        )
    chat = alice.session("s")
    chat.add_many([Message("user", "tea please"), Message("assistant", "tea it is")])
    assert found(alice.recall("tea", metadata={"n": 150})) == ["tea number 150"]
    assert found(alice.recall("tea", min_importance=19.9)) == ["tea number 199"]
    assert found(alice.recall("tea", roles=["assistant"])) == ["tea it is"]
    until = alice.recall("tea", k=99, until=day + timedelta(days=4), kinds=["memory"])
    assert sorted(map(str, found(until))) == [f"tea number {n}" for n in range(5)]
    assert len(alice.recall("tea", k=0)) == 0
    for bad in (-1, 1.5):
        with pytest.raises(mnemic.InvalidValueError):
            alice.recall("tea", k=bad)  # type: ignore[arg-type]


def test_recall_as_of_a_date(alice: mnemic.Scope) -> None:
    year = {n: datetime(n, 1, 1, tzinfo=UTC) for n in (2020, 2022, 2024)}
    alice.remember("lives in Paris", valid_from=year[2020], valid_to=year[2022])
    alice.remember("lives in Rome", valid_from=year[2022])
    assert found(alice.recall("lives")) == ["lives in Rome"]
    assert found(alice.recall("lives", as_of=year[2020])) == ["lives in Paris"]


def test_recall_sees_changes_at_once(alice: mnemic.Scope) -> None:
    kept = alice.remember("green tea")
    assert found(alice.recall("tea")) == ["green tea"]
    alice.memories.update(kept.id, text="a red bicycle")
    assert alice.recall("tea") == []
    assert found(alice.recall("bicycle")) == ["a red bicycle"]
    chat = alice.session("s")
    chat.add("user", "another bicycle")
    assert len(alice.recall("bicycle")) == 2
    chat.clear()
    alice.forget(kept.id)
    alice.remember("no drinks")
    assert alice.recall("bicycle") == []


def test_erasing_leaves_nothing_in_the_file(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{path}", clock=clock) as memory:
        memory.scope("alice@example.org").remember("PASSPORT-1234")
        memory.scope("alice@example.org").session("s").add("user", "IBAN-5678", ttl=timedelta(hours=1))
        memory.scope("bob").remember("stays")
        clock.advance(hours=1)
        memory.scope("alice@example.org").erase()
    content = path.read_bytes()
    for secret in (b"PASSPORT-1234", b"IBAN-5678", b"alice@example.org"):
        assert secret not in content
    assert b"stays" in content


def test_recall_sees_what_another_handle_wrote(file_url: str) -> None:
    with mnemic.open(file_url) as mine, mnemic.open(file_url) as other:
        mine.scope("a").remember("tea")
        assert found(other.scope("a").recall("tea coffee")) == ["tea"]
        record = mine.scope("a").remember("coffee")
        assert sorted(map(str, found(other.scope("a").recall("tea coffee")))) == ["coffee", "tea"]
        mine.scope("a").forget(record.id)
        assert found(other.scope("a").recall("tea coffee")) == ["tea"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Sie wohnt in München", "munchen"),
        ("她住在北京大学附近", "北京"),
        ("東京タワーへ行きました", "タワー"),
        ("서울에서 만나요", "서울"),
        ("Она любит мороженое", "мороженое"),
        ("user_preferences: dark_mode", "dark mode preferences"),
        ("Don’t call before 9", "call"),
    ],
)
def test_recall_in_many_scripts(alice: mnemic.Scope, text: str, query: str) -> None:
    alice.remember(text)
    alice.remember("something else altogether 別のこと 另外")
    assert found(alice.recall(query))[:1] == [text]


def test_the_order_does_not_depend_on_what_is_gone(memory: mnemic.Memory) -> None:
    spaces = [memory.scope(name) for name in ("with-a-past", "without")]
    for n in range(50):
        spaces[0].remember(f"zebra number {n}", id="rewritten")
        spaces[0].recall("zebra")
    for space in spaces:
        space.forget("rewritten")
        space.remember_many(["a zebra", "pasta with pesto", "pasta with ragu", "more pasta"])
    found_in = [[(hit.record.text, round(hit.score, 4)) for hit in s.recall("zebra pasta")] for s in spaces]
    assert found_in[0] == found_in[1]


def test_a_scope_that_was_erased_begins_anew(memory: mnemic.Memory) -> None:
    space = memory.scope("a")
    space.remember_many([f"tea {n}" for n in range(5)])
    assert len(space.recall("tea", k=9)) == 5
    space.erase()
    space.remember_many([f"coffee {n}" for n in range(9)])
    assert all(str(text).startswith("coffee") for text in found(space.recall("tea")))
    assert len(space.recall("coffee", k=20)) == 9


def test_an_index_that_is_mostly_gone_is_built_anew(alice: mnemic.Scope) -> None:
    alice.remember_many([MemoryItem(text=f"tea {n}", id=f"k{n}") for n in range(1500)])
    assert len(alice.recall("tea", k=5000)) == 1500
    alice.forget(since=datetime(2000, 1, 1, tzinfo=UTC))
    alice.remember("tea again")
    assert found(alice.recall("tea")) == ["tea again"]
    assert found(alice.recall("tea")) == ["tea again"]


def test_erase_leaves_nothing_behind(memory: mnemic.Memory, clock: Clock) -> None:
    alice, bob = memory.scope("acme", "alice"), memory.scope("acme", "bob")
    for space in (alice, bob):
        space.session("s", max_messages=1, overflow="archive").add_many([Message("user", f"tea {n}") for n in range(4)])
        space.remember("tea")
        space.notes.write("k", "tea")
        space.facts.add("a", "likes", "tea")
    assert alice.erase().records == 7
    assert alice.recall("tea") == []
    assert alice.sessions.list() == []
    alice.remember("gone by then", ttl=timedelta(hours=1))
    clock.advance(hours=1)
    alice.erase()
    assert len(bob.recall("tea", k=99)) == 7


def everything(alice: mnemic.Scope) -> dict[str, mnemic.Hit]:
    """Store one record of each kind that recall finds, in a scope below, and return the hits by kind."""
    below = alice.scope("work")
    below.remember("The zebra has stripes", id="z")
    below.notes.write("stripes", "A zebra has many")
    below.facts.add("zebra", "lives_in", "Kenya")
    chat = below.session("s", max_messages=2, overflow=mnemic.Summarize(lambda messages: "a zebra was seen"))
    chat.add_many([Message("user", f"I saw zebra number {n}") for n in range(4)])
    hits = alice.recall("zebra", k=50)
    found = {hit.record.kind: hit for hit in hits}
    assert found.keys() >= {"memory", "note", "fact", "message"}
    return found


@pytest.mark.parametrize("named", ["hit", "record", "ref", "key"])
def test_what_recall_returns_can_be_used_updated_and_forgotten_wherever_it_lies(
    alice: mnemic.Scope, named: str
) -> None:
    for kind, hit in everything(alice).items():
        record = hit.record
        given: Any = {"hit": hit, "record": record, "ref": record.ref, "key": record.key}[named]
        assert alice.used(given) == 1
        alice.update(given, importance=7, metadata={"seen": True})
        (again,) = [one for one in alice.recall("zebra", k=50) if one.ref == hit.ref]
        assert (again.record.importance, again.metadata) == (7, {"seen": True})
        if kind == "memory":
            assert alice.memories.get(given).scope.path.endswith("work")
            assert alice.memories.update(given, text="The zebra sleeps").scope.path.endswith("work")
        else:
            with pytest.raises(mnemic.InvalidValueError, match="not a memory"):
                alice.memories.get(given)
            with pytest.raises(mnemic.InvalidValueError, match="not a memory"):
                alice.memories.update(given, text="other")
        assert alice.forget(given).deleted == 1
        assert alice.forget(given).deleted == 0
    assert "memory" not in {hit.record.kind for hit in alice.recall("zebra", k=50)}


def test_a_key_alone_is_this_scopes_own_before_one_below(alice: mnemic.Scope) -> None:
    alice.remember("mine", id="k")
    alice.scope("work").remember("of work", id="k")
    alice.scope("home").notes.write("k", "of home")
    assert alice.memories.get("k").text == "mine"
    assert alice.forget("k").deleted == 1
    for ask in (alice.memories.get, alice.forget, alice.used, lambda key: alice.update(key, importance=2)):
        with pytest.raises(mnemic.InvalidValueError, match=r"2 records have the key 'k'.*its hit"):
            ask("k")
    assert alice.scope("work").memories.get("k").text == "of work"
    assert alice.scope("home").forget("k").deleted == 1
    assert alice.forget("k").deleted == 1
    assert alice.forget("k").deleted == 0


def test_a_record_of_another_scope_is_refused(memory: mnemic.Memory) -> None:
    alice, bob = memory.scope("acme", "alice"), memory.scope("acme", "bob")
    kept = bob.remember("Bob's own", id="k")
    for ask in (alice.memories.get, alice.forget, alice.used, lambda which: alice.update(which, importance=2)):
        with pytest.raises(mnemic.InvalidValueError, match="'acme/bob'"):
            ask(kept)
    with pytest.raises(mnemic.NotFoundError):
        alice.memories.get("k")
    assert memory.scope("acme").memories.get(kept) == kept
    with pytest.raises(mnemic.InvalidValueError, match="kind"):
        alice.forget(mnemic.Ref(alice.path, "audit", "k"))
    with pytest.raises(mnemic.InvalidValueError, match="named by a hit"):
        alice.forget(5)  # type: ignore[arg-type]


def test_a_memory_is_changed_and_deleted_only_at_the_expected_version(memory: mnemic.Memory) -> None:
    memories = memory.scope("acme").memories
    item = memories.add("Alice has a cat.")
    changed = memories.update(item, importance=2.0, if_version=item.version)
    with pytest.raises(mnemic.ConflictError) as raised:
        memories.update(item, text="no", if_version=item.version)
    assert raised.value.current == changed.version
    with pytest.raises(mnemic.ConflictError):
        memories.delete(item, if_version=item.version)
    assert memories.get(item.id) == changed
    assert memories.delete(item, if_version=changed.version) == 1
