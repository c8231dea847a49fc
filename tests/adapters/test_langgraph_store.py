"""LangGraph's store on Mnemic, with its own `InMemoryStore` as the oracle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import GetOp, InvalidNamespaceError, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

import mnemic
from mnemic.adapters.langgraph import MnemicStore
from mnemic.checks import to_segment
from mnemic.store.query import Search

MANY = 10_000
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-2, 2, allow_nan=False),
    TEXT,
    st.sampled_from(["tea", "likes green tea", "Is allergic to shellfish."]),
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=4
)
FIELDS = st.sampled_from(["memory", "topic", "n", "a b", "nested", "text", "$gt"])
VALUES = st.dictionaries(FIELDS, JSON, max_size=4)
LABELS = st.sampled_from(["users", "alice", "al/ice", "50%", "a-b", "tab\there", "é"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PREFIXES = st.lists(LABELS, max_size=2).map(tuple)
KEYS = st.sampled_from(["a", "b", "c/d", "e f", "%2F"])
INDEXES = st.sampled_from([None, False, [], ["memory"], ["$"], ["nested.topic", "nested[*]"]])
COMPARED = st.one_of(
    LEAVES,
    st.lists(LEAVES, max_size=2),
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), LEAVES, min_size=1),
    st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(-3, 3), min_size=1),
)
FILTERS = st.none() | st.dictionaries(FIELDS, COMPARED, max_size=2)
PATTERNS = st.lists(LABELS | st.just("*"), max_size=2).map(tuple)
CONDITIONS = st.lists(st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), PATTERNS), max_size=2).map(tuple)
QUERIES = (None, None, "green tea", "topic")
PUTS = st.builds(PutOp, NAMESPACES, KEYS, st.none() | VALUES, INDEXES, st.none())
OPS = st.one_of(
    PUTS,
    PUTS,
    st.builds(GetOp, NAMESPACES, KEYS, st.just(True)),
    st.builds(
        SearchOp, PREFIXES, FILTERS, st.integers(0, 4), st.integers(0, 3), st.sampled_from(QUERIES), st.just(True)
    ),
    st.builds(ListNamespacesOp, CONDITIONS, st.none() | st.integers(1, 3), st.integers(0, 5), st.integers(0, 3)),
)
BATCHES = st.lists(st.lists(OPS, max_size=4), max_size=8)


def shown(item: Item) -> tuple[Any, ...]:
    return (item.namespace, item.key, item.value)


def expected(oracle: InMemoryStore, op: Any) -> Any:
    """What the oracle says, but for the differences that the page of the adapter lists."""
    if isinstance(op, PutOp):
        return None
    if isinstance(op, GetOp):
        item = oracle.get(op.namespace, op.key)
        return item and shown(item)
    if isinstance(op, ListNamespacesOp):
        # A namespace is one that has items; the oracle also lists those that had some, or were only read.
        filled = InMemoryStore()
        filled.batch([PutOp(item.namespace, item.key, item.value) for item in oracle.search((), limit=MANY)])
        return filled.batch([op])[0]
    # By namespace, and not by when the namespace was first used.
    by_namespace = sorted(
        oracle.search(op.namespace_prefix, limit=MANY), key=lambda item: "/".join(map(to_segment, item.namespace))
    )
    return [shown(item) for item in by_namespace if passes(item, op)]


def passes(item: Item, op: SearchOp) -> bool:
    """Whether the oracle lets an item pass; it fails where something else than a number is compared with one."""
    alone = InMemoryStore()
    alone.put(("one",), "key", item.value)
    try:
        return bool(alone.search(("one",), filter=op.filter))
    except (TypeError, ValueError):
        return False


@pytest.fixture
def store(memory: mnemic.Memory) -> MnemicStore:
    return MnemicStore(memory)


@given(BATCHES)
def test_it_does_what_the_own_store_of_langgraph_does(batches: Sequence[Sequence[Any]]) -> None:
    oracle, store = InMemoryStore(), MnemicStore()
    for ops in batches:
        for op, result, wanted in zip(ops, store.batch(ops), [expected(oracle, op) for op in ops], strict=True):
            if isinstance(op, SearchOp) and op.query:
                # Which of them answer a question, and how well, is up to recall.
                assert isinstance(result, list)
                assert len(result) <= op.limit
                assert all(shown(item) in wanted for item in result if isinstance(item, Item))
            elif isinstance(op, SearchOp):
                assert isinstance(result, list)
                got = [shown(item) for item in result if isinstance(item, Item)]
                assert got == wanted[op.offset : op.offset + op.limit]
            else:
                assert (shown(result) if isinstance(result, Item) else result) == wanted
        oracle.batch([op for op in ops if isinstance(op, PutOp)])  # it fails on some of the filters
    store.close()


def test_an_item_is_a_memory_that_recall_finds(memory: mnemic.Memory, store: MnemicStore) -> None:
    store.put(("users", "alice"), "food", {"memory": "Alice is allergic to shellfish", "topic": "health"})
    store.put(("users", "alice"), "color", {"favorite_color": "dark blue", "shades": ["navy", 3]})
    items = {item.id: item for item in memory.scope("users", "alice").memories.list()}
    assert items["food"].text == "Alice is allergic to shellfish\ntopic: health"
    assert items["color"].text == "favorite_color: dark blue\nshades: navy\nshades: 3"
    assert items["food"].metadata["topic"] == "health"
    assert items["food"].source == "langgraph"
    hit = memory.scope().recall("what can she not eat?")[0]
    assert (hit.id, hit.scope.path) == ("food", "users/alice")
    found = store.search(("users",), query="which colour does she like best?")[0]
    assert found.key == "color"
    assert found.score is not None
    assert 0.3 < found.score <= 1


def test_memories_of_other_origin_are_items_too(memory: mnemic.Memory, store: MnemicStore) -> None:
    memory.scope("users", "alice").remember("Alice moved to Lyon", id="home", metadata={"year": 2026})
    item = store.get(("users", "alice"), "home")
    assert item is not None
    assert item.value == {"text": "Alice moved to Lyon", "year": 2026}
    assert [found.key for found in store.search(("users",), query="where did she move to?")] == ["home"]
    assert store.search((), filter={"year": 2026})[0].namespace == ("users", "alice")
    memory.scope("users", "alice").remember("Lyon", id="word", metadata={"text": "is the text of the memory"})
    memory.scope("users", "bob").session("monday").add("user", "Hello")
    assert store.list_namespaces() == [("users", "alice")]
    word = store.get(("users", "alice"), "word")
    assert word is not None
    assert word.value == {"text": "Lyon"}
    assert [found.key for found in store.search((), query="Lyon", filter={"text": "Lyon"})] == ["word"]


def test_a_text_that_is_edited_elsewhere_is_edited_in_the_item(memory: mnemic.Memory) -> None:
    store = MnemicStore(memory, fields=["content.text"])
    store.put(("a",), "k", {"content": {"text": "Alice drinks tea"}, "n": 1})
    memory.scope("a").memories.update("k", text="Alice drinks coffee")
    item = store.get(("a",), "k")
    assert item is not None
    assert item.value == {"content": {"text": "Alice drinks coffee"}, "n": 1}
    assert item.created_at < item.updated_at


def test_namespaces_match_by_their_begin_and_end(store: MnemicStore) -> None:
    oracle = InMemoryStore()
    for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("b", "a"), ("c", "b")):
        for one in (store, oracle):
            one.put(namespace, "k", {"n": 1})
    paths: tuple[tuple[str, ...], ...] = (("a",), ("b",), ("a", "b"), ("*", "b"), ("b", "*"), ("a", "b", "c", "d"))
    for path in paths:
        assert store.list_namespaces(prefix=path) == oracle.list_namespaces(prefix=path)
        assert store.list_namespaces(suffix=path) == oracle.list_namespaces(suffix=path)
        for other in paths:
            found, expected = (one.list_namespaces(prefix=path, suffix=other, max_depth=2) for one in (store, oracle))
            assert found == expected
    assert store.list_namespaces(suffix=("b",)) == [("a", "b"), ("c", "b")]
    assert store.list_namespaces(limit=2, offset=1) == oracle.list_namespaces(limit=2, offset=1)
    with pytest.raises(ValueError, match="by its prefix or suffix: 'middle'"):
        store.batch([ListNamespacesOp((MatchCondition("middle", ("a",)),))])  # type: ignore[arg-type]


def test_only_the_named_fields_are_indexed(store: MnemicStore) -> None:
    value = {"title": "the tram to the harbour", "body": {"parts": [{"text": "boiled eggs"}, {"text": "four minutes"}]}}
    store.put(("a",), "parts", value, index=["body.parts[*].text"])
    store.put(("a",), "none", value, index=False)
    store.put(("a",), "none either", value, index=[])
    store.put(("a",), "all", value)
    assert store.search((), query="tram to the harbour")[0].key == "all"
    assert {item.key for item in store.search((), query="how long are eggs boiled?")} == {"all", "parts"}
    assert len(store.search(())) == 4


def test_items_that_say_the_same_are_all_found_and_a_filtered_search_counts_no_uses(
    memory: mnemic.Memory, store: MnemicStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, text in (
        ("1", "Alice drinks green tea"),
        ("2", "Alice drinks green tea."),
        ("3", "alice drinks green tea"),
    ):
        store.put(("a",), key, {"memory": text, "kind": "drink"})
    search, uses = memory._async._store.search, list[bool]()

    async def searching(asked: Search) -> Any:
        uses.append(asked.uses)
        return await search(asked)

    monkeypatch.setattr(memory._async._store, "search", searching)
    assert {item.key for item in store.search((), query="green tea")} == {"1", "2", "3"}
    assert {item.key for item in store.search((), query="green tea", filter={"kind": "drink"})} == {"1", "2", "3"}
    assert uses == [True, False]  # those that the filter drops were not used


class Clock:
    """A clock that a test moves on."""

    ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def move(self, minutes: float) -> None:
        self.ahead += timedelta(minutes=minutes)


def test_items_expire_after_their_last_access() -> None:
    clock = Clock()
    store = MnemicStore("memory://", clock=clock, ttl={"default_ttl": 10})
    store.put(("a",), "read", {"text": "is read now and then"})
    store.put(("a",), "searched", {"text": "is found now and then"})
    store.put(("a",), "unread", {"text": "nobody asks for this"})
    store.put(("a",), "peeked", {"text": "is only looked at"})
    store.put(("a",), "kept", {"text": "stays for good"}, ttl=None)
    store.put(("a",), "short", {"text": "is gone soon"}, ttl=0.5)
    for _ in range(3):
        clock.move(6)
        assert store.get(("a",), "short") is None
        assert store.get(("a",), "read") is not None
        store.get(("a",), "peeked", refresh_ttl=False)
        assert [item.key for item in store.search(("a",), query="found now and then")][:1] == ["searched"]
    assert {item.key for item in store.search(("a",), refresh_ttl=False)} == {"read", "searched", "kept"}
    clock.move(60)
    assert [item.key for item in store.search(("a",))] == ["kept"]
    store.put(("b",), "k", {"n": 1})
    clock.move(11)
    assert store.list_namespaces() == [("a",)]
    store.close()


def test_reads_do_not_refresh_if_the_store_is_told_so() -> None:
    clock = Clock()
    store = MnemicStore("memory://", clock=clock, ttl={"default_ttl": 10, "refresh_on_read": False})
    store.put(("a",), "k", {"n": 1})
    clock.move(6)
    assert store.get(("a",), "k") is not None
    clock.move(6)
    assert store.get(("a",), "k") is None
    store.close()


def test_a_search_refreshes_unless_it_is_told_not_to() -> None:
    for refresh in (True, False):
        clock = Clock()
        with MnemicStore("memory://", clock=clock) as store:
            store.put(("a",), "k", {"n": 1}, ttl=10)
            for _ in range(2):
                clock.move(6)
                found = store.search(("a",), refresh_ttl=refresh)
            assert [item.key for item in found] == (["k"] if refresh else [])


def test_a_read_is_a_write_only_if_a_tenth_of_the_time_has_passed() -> None:
    clock = Clock()
    with MnemicStore("memory://", clock=clock) as store:
        store.put(("a",), "k", {"n": 1}, ttl=100)
        first = store.get(("a",), "k")
        clock.move(9)
        again = store.get(("a",), "k")
        clock.move(2)
        store.get(("a",), "k")
        refreshed = store.get(("a",), "k")
        assert first is not None
        assert again is not None
        assert refreshed is not None
        assert first.updated_at == again.updated_at < refreshed.updated_at


def test_a_refresh_does_not_undo_another_write(file_url: str) -> None:
    clock = Clock()
    with mnemic.open(file_url, clock=clock) as memory, MnemicStore(file_url, clock=clock) as theirs:
        ours = MnemicStore(memory)
        ours.put(("a",), "k", {"n": 1}, ttl=10)
        clock.move(5)
        backend: Any = memory._async._store
        read, reads = backend.read, 0

        async def reading(refs: Any) -> Any:
            nonlocal reads
            reads += 1
            found = await read(refs)
            if reads == 1:
                theirs.put(("a",), "k", {"n": 2}, ttl=100)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "read", reading)
            assert ours.get(("a",), "k") is not None
        clock.move(50)
        item = ours.get(("a",), "k")
        assert item is not None
        assert item.value == {"n": 2}


@pytest.mark.asyncio
async def test_async_calls_are_the_same(file_url: str) -> None:
    async with MnemicStore(file_url) as store:
        await store.aput(("users", "alice"), "k", {"memory": "Alice drinks green tea"}, ttl=5)
        item = await store.aget(("users", "alice"), "k")
        assert item is not None
        assert item == store.get(("users", "alice"), "k")
        assert [found.key for found in await store.asearch(("users",), query="what does she drink?")] == ["k"]
        assert await store.alist_namespaces(max_depth=1) == [("users",)]
        await store.adelete(("users", "alice"), "k")
        assert await store.aget(("users", "alice"), "k") is None
    async with mnemic.open_async(file_url) as memory:
        inside = MnemicStore(memory.scope("acme"))
        await inside.aput(("bob",), "k", {"n": 1})
        assert await memory.scope("acme", "bob").memories.list()
        with pytest.raises(mnemic.EventLoopError, match="open_async"):
            inside.get(("bob",), "k")


def test_a_store_sees_only_its_own_scope(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        alice, bob = (MnemicStore(memory.scope(user)) for user in ("alice", "bob"))
        alice.put(("notes",), "k", {"text": "a secret of Alice"})
        assert bob.get(("notes",), "k") is None
        assert bob.search((), query="secret") == bob.search(()) == bob.list_namespaces() == []
        assert alice.get(("notes",), "k") is not None
        assert MnemicStore(memory).list_namespaces() == [("alice", "notes")]


def test_two_processes_share_items_and_lose_none(file_url: str) -> None:
    script = (
        "import sys; from mnemic.adapters.langgraph import MnemicStore\n"
        "store = MnemicStore(sys.argv[1])\n"
        "[store.put(('shared',), f'{sys.argv[2]}-{n}', {'by': sys.argv[2], 'n': n}) for n in range(20)]\n"
        "store.close()"
    )
    store = MnemicStore(file_url)
    assert store.search(()) == []
    both = [subprocess.Popen([sys.executable, "-c", script, file_url, name]) for name in ("one", "two")]
    assert [process.wait(240) for process in both] == [0, 0]
    found = store.search(("shared",), limit=100)
    store.close()
    assert sorted((item.value["by"], item.value["n"]) for item in found) == [
        (name, n) for name in ("one", "two") for n in range(20)
    ]


def test_bad_input_is_named() -> None:
    store = MnemicStore()
    with pytest.raises(mnemic.InvalidValueError, match="key is empty"):
        store.put(("a",), "", {})
    with pytest.raises(mnemic.InvalidValueError, match=r"metadata\.when cannot be kept as JSON"):
        store.put(("a",), "k", {"when": datetime.now(UTC)})
    with pytest.raises(mnemic.InvalidValueError, match="a dict: 'text'"):
        store.put(("a",), "k", "text")  # type: ignore[arg-type]
    store.put(("a",), "k", {"n": 1})
    with pytest.raises(ValueError, match=r"\$eq, \$ne, \$gt.*'\$in'"):
        store.search(("a",), filter={"n": {"$in": [1]}})
    with pytest.raises(mnemic.InvalidValueError, match="no dims and no embed to configure: give fields="):
        MnemicStore(index={"dims": 3, "embed": "openai:text-embedding-3-small"})  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match=r"a dict such as \{'default_ttl': 60\}, in minutes: 5"):
        MnemicStore(ttl=5)  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="fields are names"):
        MnemicStore(fields={"text": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidNamespaceError):
        store.put(("a.b",), "k", {})
    with pytest.raises(mnemic.InvalidValueError, match="more than 16"):
        store.put(("a",) * 17, "k", {})
    for ttl in (0, -1, 1e300, float("nan")):
        with pytest.raises(mnemic.InvalidValueError, match="ttl"):
            store.put(("a",), "k", {}, ttl=ttl)
    with pytest.raises(mnemic.InvalidValueError, match="limit must be"):
        store.search(("a",), limit=-1)
    with pytest.raises(mnemic.InvalidValueError, match="a scope, a memory or a URL"):
        MnemicStore(7)  # type: ignore[arg-type]
