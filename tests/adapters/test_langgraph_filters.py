"""Filters of LangGraph's store on Mnemic: what passes, and how much is read for it."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import Item
from langgraph.store.memory import InMemoryStore

import mnemic
from mnemic.adapters.langgraph import MnemicStore
from mnemic.records import Record
from mnemic.store.protocol import Page
from mnemic.store.query import Scan

NAMES = ("name", "text", "a.b", "$eq", 'q"', " ")


def shown(item: Item) -> tuple[Any, ...]:
    return (item.namespace, item.key, item.value)


@pytest.fixture
def store(memory: mnemic.Memory) -> MnemicStore:
    return MnemicStore(memory)


def test_a_filter_applies_before_the_limit(store: MnemicStore) -> None:
    for n in range(30):
        store.put(("a",), f"{n}", {"memory": f"green tea number {n}", "n": n, "kind": "odd" if n % 2 else "even"})
    assert {item.value["n"] for item in store.search(("a",), query="green tea", filter={"n": {"$gte": 27}})} == {
        27,
        28,
        29,
    }
    odd = store.search(("a",), query="green tea", filter={"kind": "odd"}, limit=15)
    assert sorted(item.value["n"] for item in odd) == list(range(1, 30, 2))
    pages = [store.search(("a",), query="green tea", limit=8, offset=start) for start in range(0, 30, 8)]
    assert sorted(item.value["n"] for page in pages for item in page) == list(range(30))


@pytest.fixture
def read(memory: mnemic.Memory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the memories that the back-end has read in scans."""
    backend, keys = memory._async._backend, list[str]()
    scan = backend.scan

    async def scanning(asked: Scan) -> Page[Record]:
        page = await scan(asked)
        keys.extend(record.key for record in page.items if record.kind == "memory")
        return page

    monkeypatch.setattr(backend, "scan", scanning)
    return keys


def test_a_search_without_a_query_reads_no_more_items_than_it_returns(store: MnemicStore, read: list[str]) -> None:
    for n in range(30):
        store.put(("users", f"u{n % 2}"), str(n), {"n": n})
    assert [item.key for item in store.search(("users",), limit=3, offset=1)] == ["2", "4", "6"]
    assert read == ["0", "2", "4", "6"]
    assert store.search(("users",), limit=0) == []
    assert len(read) == 4


@pytest.mark.parametrize(
    "filter",
    [
        {"kind": "tea"},
        {"kind": {"$eq": "tea"}, "n": {"$gte": 0}},
        {"n % 5": 0, "nothing": None},
        {"odd.": 1, "n % 5": 0.0},
        {"odd.": True, "kind": "tea"},
    ],
)
def test_a_filter_is_applied_by_the_store(store: MnemicStore, read: list[str], filter: dict[str, Any]) -> None:
    oracle = InMemoryStore()
    for n in range(200):
        value = {"n": n, "kind": "coffee" if n % 5 else "tea", "n % 5": n % 5, "odd.": n % 2 == 1, "of": "a b"}
        for one in (store, oracle):
            one.put(("drinks", f"{n // 100}"), str(n), value)
    for limit, offset in ((2, 0), (3, 3), (3, 17)):
        del read[:]
        found = store.search(("drinks",), filter=filter, limit=limit, offset=offset)
        assert [*map(shown, found)] == [
            *map(shown, oracle.search(("drinks",), filter=filter, limit=limit, offset=offset))
        ]
        assert len(found) == len(read) - offset == limit


@pytest.mark.parametrize("filter", [{"n": {"$gte": 30}}, {"tags": ["x", "y"]}, {"of": "a sentence"}, {"in": {"n": 1}}])
def test_what_only_python_compares_is_read_until_enough_passes(
    store: MnemicStore, read: list[str], filter: dict[str, Any]
) -> None:
    for n in range(1000):
        passing = {"tags": ["x", "y"], "of": "a sentence", "in": {"n": 1}} if n >= 30 else {}
        store.put(("many",), str(n), {"n": n, **passing}, index=["of"])
    for limit in (3, 2):
        del read[:]
        found = [item.key for item in store.search(("many",), filter=filter, limit=limit, offset=2)]
        assert found == ["32", "33", "34"][:limit]
        assert 32 + limit <= len(read) <= 2 * (32 + limit)
    assert len(store.search(("many",), filter=filter, limit=2000)) == 970


def test_a_word_that_is_all_of_the_text_is_found_by_a_filter(store: MnemicStore) -> None:
    for n, text in enumerate(("tea", "green tea", "")):
        store.put(("a",), str(n), {"memory": text})
        for query in (None, text):
            found = store.search(("a",), filter={"memory": text}, query=query)
            assert [item.value for item in found] == [{"memory": text}]


def test_a_filter_compares_as_the_own_store_of_langgraph_does(store: MnemicStore) -> None:
    values: list[Any] = [
        None, True, False, 0, 1, 1.0, -0.0, 0.1, 2**53, 2**53 + 1, 2.0**53, 2**62, "", "1", "a", "a b", [1], [], {},
    ]  # fmt: skip
    others = [*values, 2**70, float("inf"), float("nan"), "\0", "\ud800", "x" * 9_000_000]
    oracle = InMemoryStore()
    for n, value in enumerate(values):
        for one in (store, oracle):
            one.put(("n",), str(n), dict.fromkeys(NAMES, value))
    for name in NAMES:
        for other in others:
            for wanted in (other, {"$eq": other}, {"$ne": other}):
                found, expected = (one.search(("n",), filter={name: wanted}, limit=50) for one in (store, oracle))
                assert [*map(shown, found)] == [*map(shown, expected)]
