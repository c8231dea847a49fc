"""The graph: facts with the time in which they were true."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest

import mnemic

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def graph(alice: mnemic.Scope) -> mnemic.Facts:
    return alice.facts


def triples(links: list[mnemic.Fact]) -> list[tuple[str, str, str]]:
    return [(link.subject, link.predicate, link.object) for link in links]


def test_facts_are_asked_for_by_any_part(graph: mnemic.Facts) -> None:
    facts = [("alice", "likes", "tea"), ("alice", "likes", "cake"), ("bob", "likes", "tea"), ("bob", "knows", "alice")]
    for fact in facts:
        graph.add(*fact)
    assert triples(graph.ask("alice")) == facts[:2]
    assert triples(graph.ask(object="tea")) == [facts[0], facts[2]]
    assert triples(graph.ask(predicate="likes")) == facts[:3]
    assert triples(graph.ask("bob", "likes")) == [facts[2]]
    assert triples(graph.ask("bob", "likes", "tea")) == [facts[2]]
    assert triples(graph.ask()) == facts
    assert graph.ask("carol") == []
    assert triples(graph.ask(limit=2)) == facts[:2]


def test_a_fact_keeps_source_confidence_and_metadata(graph: mnemic.Facts) -> None:
    kept = graph.add("a", "p", "b", source="chat", confidence=0.7, metadata={"x": [1]}, valid_from=DAY)
    assert graph.ask("a") == [kept]
    assert (kept.source, kept.confidence, kept.metadata, kept.valid_from) == ("chat", 0.7, {"x": [1]}, DAY)


def test_the_id_of_a_fact_is_the_one_of_its_hits_also_when_it_has_ended(alice: mnemic.Scope) -> None:
    alice.facts.add("Alice", "lives in", "Oxford", valid_from=DAY)
    for as_of in (None, DAY):
        (fact,) = alice.facts.ask("Alice", history=True)
        (hit,) = alice.recall("Where does Alice live?", as_of=as_of)
        assert hit.id == fact.id == fact.to_dict()["id"]
        alice.facts.update("Alice", "lives in", valid_to=DAY + timedelta(days=9))
    assert alice.forget(fact.id).deleted == 1


def test_a_fact_stated_again_is_kept_once(graph: mnemic.Facts) -> None:
    first = graph.add("a", "p", "b", confidence=0.5)
    graph.add("a", "p", "b", confidence=0.9, source="again")
    (kept,) = graph.ask("a")
    assert (kept.confidence, kept.source, kept.valid_from) == (0.9, "again", first.valid_from)


def test_a_single_predicate_has_one_object_at_a_time(graph: mnemic.Facts) -> None:
    for n, city in enumerate(["Paris", "Rome", "Oslo"]):
        graph.add("alice", "lives_in", city, single=True, valid_from=DAY + n * timedelta(days=10))
    assert triples(graph.ask("alice", "lives_in")) == [("alice", "lives_in", "Oslo")]
    past = graph.ask("alice", "lives_in", history=True)
    assert [(link.object, link.valid_from, link.valid_to) for link in past] == [
        ("Paris", DAY, DAY + timedelta(days=10)),
        ("Rome", DAY + timedelta(days=10), DAY + timedelta(days=20)),
        ("Oslo", DAY + timedelta(days=20), None),
    ]
    for days, city in ((0, "Paris"), (9, "Paris"), (10, "Rome"), (25, "Oslo")):
        assert [link.object for link in graph.ask("alice", as_of=DAY + timedelta(days=days))] == [city]
    assert graph.ask("alice", as_of=DAY - timedelta(days=1)) == []


def test_the_same_object_again_closes_nothing(graph: mnemic.Facts) -> None:
    graph.add("a", "p", "x", single=True, valid_from=DAY)
    graph.add("a", "p", "x", single=True, confidence=0.3)
    (kept,) = graph.ask("a", history=True)
    assert (kept.valid_from, kept.valid_to, kept.confidence) == (DAY, None, 0.3)


def test_news_from_the_past_goes_into_the_history(graph: mnemic.Facts) -> None:
    graph.add("a", "lives_in", "Rome", single=True, valid_from=DAY)
    graph.add("a", "lives_in", "Paris", single=True, valid_from=DAY - timedelta(days=10))
    assert [link.object for link in graph.ask("a")] == ["Rome"]
    assert [(link.object, link.valid_to) for link in graph.ask("a", history=True)] == [("Paris", DAY), ("Rome", None)]


@pytest.mark.parametrize("order", [("Rome", "Oslo", "Paris"), ("Paris", "Oslo", "Rome"), ("Oslo", "Rome", "Paris")])
def test_a_single_predicate_has_one_object_at_every_moment(graph: mnemic.Facts, order: tuple[str, ...]) -> None:
    year = {"Rome": 2020, "Paris": 2022, "Oslo": 2040}
    for city in order:
        graph.add("a", "lives_in", city, single=True, valid_from=datetime(year[city], 1, 1, tzinfo=UTC))
    for asked, expected in ((2019, []), (2021, ["Rome"]), (2030, ["Paris"]), (2041, ["Oslo"])):
        found = graph.ask("a", "lives_in", as_of=datetime(asked, 1, 1, tzinfo=UTC))
        assert [link.object for link in found] == expected
    assert [link.object for link in graph.ask("a", history=True)] == ["Rome", "Paris", "Oslo"]


def test_a_fact_for_a_time_replaces_what_was_open(graph: mnemic.Facts) -> None:
    graph.add("a", "is", "open", valid_from=DAY)
    graph.add("a", "is", "closed", single=True, valid_from=DAY + timedelta(days=1), valid_to=DAY + timedelta(days=9999))
    assert [link.object for link in graph.ask("a")] == ["closed"]
    assert graph.update("a", "is") == 1
    assert graph.ask("a") == []


def test_an_end_concerns_only_what_is_true_then(graph: mnemic.Facts) -> None:
    graph.add("a", "works_at", "X", valid_from=DAY)
    graph.add("a", "works_at", "Y", valid_from=DAY + timedelta(days=9999))
    assert graph.update("a", "works_at") == 1
    assert [link.object for link in graph.ask("a", as_of=DAY + timedelta(days=10_000))] == ["Y"]
    with pytest.raises(mnemic.InvalidValueError, match="not both"):
        graph.ask("a", as_of=DAY, history=True)


def test_a_predicate_that_becomes_single_closes_all_that_was_open(graph: mnemic.Facts) -> None:
    graph.add("a", "p", "x", valid_from=DAY)
    graph.add("a", "p", "y", valid_from=DAY)
    graph.add("a", "p", "z", single=True, valid_from=DAY + timedelta(days=1))
    assert [link.object for link in graph.ask("a")] == ["z"]
    graph.add("a", "p", "x", single=True)
    assert [link.object for link in graph.ask("a")] == ["x"]
    assert sorted(link.object for link in graph.ask("a", history=True)) == ["x", "x", "y", "z"]


def test_facts_end_and_are_removed(graph: mnemic.Facts) -> None:
    for thing in ("tea", "cake"):
        graph.add("alice", "likes", thing, valid_from=DAY)
    assert graph.update("alice", "likes", "tea", valid_to=DAY + timedelta(days=1)) == 1
    assert [link.object for link in graph.ask("alice")] == ["cake"]
    assert sorted(link.object for link in graph.ask("alice", as_of=DAY)) == ["cake", "tea"]
    assert graph.update("alice", "likes", "tea") == 0
    graph.add("alice", "likes", "tea")
    assert len(graph.ask("alice", "likes", "tea", history=True)) == 2
    assert graph.delete("alice", "likes", "tea") == 2
    assert [link.object for link in graph.ask("alice", history=True)] == ["cake"]


def test_two_writers_of_a_single_predicate_leave_one_fact(memory: mnemic.Memory) -> None:
    graph = memory.scope("team").facts

    def state(writer: int) -> None:
        for n in range(10):
            graph.add("door", "is", f"{writer}-{n}", single=True)

    threads = [threading.Thread(target=state, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graph.ask("door", "is")) == 1
    assert len(graph.ask("door", "is", history=True)) == 40


def test_neighbours_to_a_depth(graph: mnemic.Facts) -> None:
    for n in range(5):
        graph.add(f"n{n}", "next", f"n{n + 1}")
    graph.add("x", "likes", "n1")
    near = graph.neighbors("n1")
    assert near.distances == {"n1": 0, "n2": 1, "n0": 1, "x": 1}
    assert near.complete
    assert graph.neighbors("n1", 3).distances == {"n1": 0, "n2": 1, "n0": 1, "x": 1, "n3": 2, "n4": 3}
    assert graph.neighbors("n1", 9, predicates=["likes"]).distances == {"n1": 0, "x": 1}
    assert graph.neighbors("alone").distances == {"alone": 0}


def test_a_walk_is_bounded_and_says_so(graph: mnemic.Facts) -> None:
    for n in range(30):
        graph.add("hub", "to", f"n{n}")
    near = graph.neighbors("hub", 2, max_facts=10)
    assert not near.complete
    assert len(near.facts) == 10
    assert graph.neighbors("hub", 2, max_facts=30).complete


def test_a_path_is_the_shortest(graph: mnemic.Facts) -> None:
    for chain in (["a", "b", "c", "d", "e"], ["a", "x", "e"], ["lonely", "island"]):
        for start, end in pairwise(chain):
            graph.add(start, "to", end)
    path = graph.path("a", "e")
    assert path is not None
    assert triples(path) == [("a", "to", "x"), ("x", "to", "e")]
    back = graph.path("e", "a")
    assert back is not None
    assert triples(back) == [("x", "to", "e"), ("a", "to", "x")]
    assert graph.path("a", "a") == []
    assert graph.path("a", "island") is None
    assert graph.path("a", "d", max_depth=2) is None
    assert len(graph.path("a", "d") or []) == 3


def test_a_path_among_too_many_links_says_so(graph: mnemic.Facts) -> None:
    for n in range(20):
        graph.add("a", "to", f"n{n}")
        graph.add("b", "to", f"m{n}")
    with pytest.raises(mnemic.LimitError, match="first 5 links"):
        graph.path("a", "b", max_facts=5)
    found = graph.path("a", "n1", max_facts=5) or graph.path("n1", "a", max_facts=5)
    assert found is not None
    assert len(found) == 1


def test_walks_see_the_present_or_a_past_moment(graph: mnemic.Facts) -> None:
    graph.add("a", "to", "b", valid_from=DAY, valid_to=DAY + timedelta(days=1))
    graph.add("a", "to", "c", valid_from=DAY)
    assert graph.neighbors("a").distances == {"a": 0, "c": 1}
    assert graph.neighbors("a", as_of=DAY).distances == {"a": 0, "b": 1, "c": 1}
    assert graph.path("a", "b") is None
    assert graph.path("a", "b", as_of=DAY) is not None


def test_export_to_networkx_and_graphml(graph: mnemic.Facts, tmp_path: Path) -> None:
    graph.add("a", "likes", "b", source="s", confidence=0.5, metadata={"k": 1}, valid_from=DAY)
    graph.add("a", "knows", "b")
    graph.add("b", "is", "old", valid_from=DAY, valid_to=DAY + timedelta(days=1))
    built = graph.to_networkx()
    assert sorted(built.nodes) == ["a", "b"]
    assert {edge["predicate"] for *_, edge in built.edges(data=True)} == {"likes", "knows"}
    path = tmp_path / "facts.graphml"
    assert graph.save_graphml(path, history=True) == 3
    read = networkx.read_graphml(path)
    (edge,) = [data for *_, data in read.edges(data=True) if data["predicate"] == "likes"]
    assert edge == {
        "predicate": "likes", "source": "s", "confidence": 0.5, "metadata": '{"k":1}',
        "valid_from": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip


def test_export_without_networkx_names_the_extra(graph: mnemic.Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "networkx", None)
    with pytest.raises(mnemic.MissingExtraError, match=r"pip install 'mnemic\[graph\]'"):
        graph.to_networkx()


@pytest.mark.parametrize(
    "bad",
    [
        {"subject": ""},
        {"predicate": "\x00"},
        {"object": "x" * 501},
        {"confidence": float("nan")},
        {"confidence": -1},
        {"confidence": 1.5},
        {"metadata": [1]},
        {"valid_from": DAY, "valid_to": DAY},
        {"metadata": {"x": object()}},
        {"source": ""},
    ],
)
def test_a_fact_that_is_none_is_refused(graph: mnemic.Facts, bad: dict[str, Any]) -> None:
    with pytest.raises(mnemic.InvalidValueError):
        graph.add(**{"subject": "a", "predicate": "p", "object": "b", **bad})
    assert graph.ask() == []


def test_a_graph_has_the_history_and_keeps_the_newest(graph: mnemic.Facts) -> None:
    assert graph.graph() == mnemic.FactGraph(facts=[], total=0)
    graph.add("Alice", "lives_in", "Rome", single=True, valid_from=DAY)
    graph.add("Alice", "lives_in", "Oslo", single=True, valid_from=DAY + timedelta(days=1))
    graph.add("Oslo", "is_in", "Norway", valid_from=DAY - timedelta(days=1))
    whole = graph.graph()
    assert [(fact.object, fact.valid_to is None) for fact in whole.facts] == [
        ("Norway", True), ("Rome", False), ("Oslo", True),
    ]  # fmt: skip
    assert whole.total == 3
    newest = graph.graph(max_facts=1)
    assert ([fact.object for fact in newest.facts], newest.total) == (["Norway"], 3)
    with pytest.raises(mnemic.InvalidValueError, match="max_facts"):
        graph.graph(max_facts=0)


def test_the_same_fact_in_a_scope_below_is_another(alice: mnemic.Scope) -> None:
    fact = alice.facts.add("Oslo", "is_in", "Norway")
    work = alice.scope("work")
    work.facts.add("Oslo", "is_in", "Norway")
    assert alice.forget(fact.id).deleted == 1
    assert (len(alice.facts.ask()), len(work.facts.ask())) == (0, 1)
    assert alice.forget(fact.id).deleted == 1
    assert work.facts.ask() == []
