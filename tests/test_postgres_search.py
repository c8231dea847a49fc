"""Recall by PostgreSQL itself: pgvector and tsvector in one round trip, with the indexes that it needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import mnemic
from mnemic.backends.postgres.client import PostgresConnection
from mnemic.backends.postgres.store import PostgresStore
from mnemic.records import ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Capability, Near
from servers import postgres


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with postgres.empty_database(tmp_path) as empty:
        yield empty


@pytest.fixture
def server(url: str) -> str:
    return f"{url}?recall=server"


def in_store(url: str, work: Callable[[PostgresStore], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        parsed, backend = registry.find(url)
        store = await backend.open(parsed)
        assert isinstance(store, PostgresStore)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def texts(hits: list[mnemic.Hit]) -> list[str | None]:
    return [hit.record.text for hit in hits]


def test_it_finds_what_was_remembered_and_said(server: str) -> None:
    with mnemic.open(server) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("Alice loves green tea")
        alice.remember("Bob plays chess on Sundays")
        chat = alice.session("monday")
        chat.add("user", "I moved to Oslo in March")
        chat.add("assistant", "How do you like it there?")
        memory.scope("acme", "alice2").remember("Alice loves coffee")
        assert texts(alice.recall("chess"))[0] == "Bob plays chess on Sundays"
        assert texts(alice.recall("where did I move to?"))[0] == "I moved to Oslo in March"
        assert "Alice loves coffee" not in texts(alice.recall("what does Alice love?"))
        assert texts(alice.recall("tea", kinds=["message"])) == []
        hit = alice.recall("Oslo", neighbors=1)[0]
        assert [message.text for message in hit.after] == ["How do you like it there?"]


def test_it_finds_the_same_as_the_index_in_memory(server: str, url: str) -> None:
    animals = "cat dog horse cow sheep goat hen duck goose pig".split()  # noqa: SIM905
    with mnemic.open(server) as there, mnemic.open(f"{url}?recall=memory") as here:
        farm = there.scope("farm")
        farm.remember_many([f"The {a} number {n} lives in barn {n % 7}" for n, a in enumerate(animals * 20)])
        for animal in animals:
            question = f"where does the {animal} live?"
            assert texts(farm.recall(question, k=5))[0] in texts(here.scope("farm").recall(question))


def test_it_is_one_round_trip_when_nothing_is_new(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open(server) as memory:
        alice = memory.scope("alice")
        alice.remember("Alice loves green tea")
        assert alice.recall("tea")
        trips = []
        each = PostgresConnection.each

        async def counted(self: PostgresConnection, queries: Any) -> Any:
            trips.append([statement.text[:40] for statement, _ in queries])
            return await each(self, queries)

        monkeypatch.setattr(PostgresConnection, "each", counted)
        assert texts(alice.recall("tea")) == ["Alice loves green tea"]
        assert len(trips) == 1, trips


def test_changes_and_deletions_show_at_once(server: str) -> None:
    with mnemic.open(server) as memory, mnemic.open(server) as other:
        alice = memory.scope("alice")
        kept, gone = alice.remember("Alice has a red car"), alice.remember("Alice has a blue boat")
        assert len(alice.recall("what does Alice have?")) == 2
        other.scope("alice").forget(gone.id)
        assert texts(alice.recall("what does Alice have?")) == ["Alice has a red car"]
        other.scope("alice").memories.update(kept.id, text="Alice has a green car")
        other.scope("alice").remember("Alice has a bicycle")
        assert set(texts(alice.recall("what does Alice have?"))) == {"Alice has a green car", "Alice has a bicycle"}
        alice.erase()
        assert other.scope("alice").recall("Alice") == []
        with psycopg.connect(server.partition("?")[0]) as raw:
            assert raw.execute("SELECT count(*) FROM mnemic_index").fetchone() == (0,)
            # Only the note of whose vectors these are is known of.
            assert raw.execute("SELECT count(*) FROM mnemic_marks").fetchone() in ((0,), (1,))


def test_long_texts_and_another_embedder(server: str) -> None:
    class Other(mnemic.StaticEmbedder):
        id = "other"

    with mnemic.open(server) as memory:
        home = memory.scope("home")
        home.remember(" ".join(["The weather was mild."] * 60) + " The spare key is under the blue pot.")
        home.remember("Nothing else of note")
        assert texts(home.recall("where is the spare key?"))[0] != "Nothing else of note"
        memory.reembed(Other())
        assert texts(home.recall("where is the spare key?"))[0] != "Nothing else of note"


def test_a_scope_that_is_small_is_searched_in_memory(url: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope("alice").remember("Alice loves green tea")
        assert memory.scope("alice").recall("tea")
    with psycopg.connect(url) as raw:
        assert raw.execute("SELECT to_regclass('mnemic_index')").fetchone() == (None,)


def test_without_pgvector_it_searches_in_memory_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with postgres.empty_database(tmp_path, extensions=False) as plain:
        with caplog.at_level(logging.INFO, "mnemic"), mnemic.open(f"{plain}?recall=server") as memory:
            memory.scope("alice").remember("Alice loves green tea")
            assert texts(memory.scope("alice").recall("tea")) == ["Alice loves green tea"]
        assert "has no pgvector" in caplog.text

        async def capabilities(store: PostgresStore) -> frozenset[Capability]:
            return store.capabilities

        assert Capability.NEAREST not in in_store(plain, capabilities)


def test_its_tables_may_lie_in_a_schema_of_their_own(url: str) -> None:
    with mnemic.open(f"{url}?recall=server&schema=apart") as memory:
        memory.scope("alice").remember("Alice loves green tea")
        assert memory.scope("alice").recall("tea")


USERS, EACH, WIDTH = 400, 50, 8
NOTE = "recall1:test"


@pytest.fixture
def large(url: str) -> str:
    """Return a database with many users' records, whose vectors are random."""

    async def make(store: PostgresStore) -> None:
        await store.index.nearby(Near(scope=ScopePath("acme"), name=NOTE, vector=bytes(WIDTH)))

    in_store(url, make)
    with psycopg.connect(url, autocommit=True) as raw:
        # The graph is made when all vectors are there, which is much faster.
        graph = "FROM pg_indexes WHERE tablename = 'mnemic_index' AND indexdef LIKE '%hnsw%'"
        ((name, definition),) = raw.execute(f"SELECT indexname, indexdef {graph}").fetchall()
        raw.execute(f'DROP INDEX "{name}"')
        raw.execute(
            "INSERT INTO mnemic_streams (scope, kind, last_seq, version, count, weight, created, updated) "
            "SELECT 'acme/user' || n, 'experience', %s, %s, %s, 0, 1, 1 FROM generate_series(1, %s) n",
            (EACH, EACH, EACH, USERS),
        )
        raw.execute(
            "INSERT INTO mnemic_records "
            "(stream_id, seq, key, version, text, weight, pinned, created, updated) "
            "SELECT s.id, n, 'k' || n, n, 'text', 0, false, 1, 1 "
            "FROM mnemic_streams s, generate_series(1, %s) n WHERE s.kind = 'experience'",
            (EACH,),
        )
        numbers = " || ',' || ".join(["(random() - 0.5)"] * WIDTH)
        raw.execute(
            "INSERT INTO mnemic_index "
            "(stream_id, entry, key, piece, seq, version, scope, kind, words, vector) "
            "SELECT r.stream_id, %s, r.key, 0, r.seq, r.version, s.scope, s.kind, "
            "array_to_tsvector(ARRAY['t' || (r.seq %% 40), 't' || (r.stream_id %% 100)]), "
            f"('[' || {numbers} || ']')::halfvec "
            "FROM mnemic_records r JOIN mnemic_streams s ON s.id = r.stream_id WHERE s.kind = 'experience'",
            (NOTE,),
        )
        raw.execute("INSERT INTO mnemic_marks SELECT id, %s, version, last_seq, count FROM mnemic_streams", (NOTE,))
        raw.execute(definition)
        raw.execute("ANALYZE")
    return url


def test_the_plans_use_the_indexes(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = bytes(range(1, WIDTH + 1))
    sent: list[Any] = []
    each = PostgresConnection.each

    async def noted(self: PostgresConnection, queries: Any) -> Any:
        sent.append([(statement.text, statement.arguments(values)) for statement, values in queries])
        return await each(self, queries)

    async def search(store: PostgresStore) -> None:
        one = Near(scope=ScopePath("acme/user7"), name=NOTE, vector=vector, terms=(1, 2), limit=10)
        everyone = Near(scope=ScopePath("acme"), name=NOTE, vector=vector, limit=10)
        words = Near(scope=ScopePath("acme"), name=NOTE, terms=(0x77,), limit=10)
        await store.index.nearby(one)
        monkeypatch.setattr(PostgresConnection, "each", noted)
        for near in (one, everyone, words):
            await store.index.nearby(near)

    in_store(large, search)
    plans = []
    with psycopg.connect(large, cursor_factory=psycopg.RawCursor) as raw:
        for _, tune, _, (query, values), _ in sent:
            raw.execute(*tune)
            plans.append("\n".join(line for (line,) in raw.execute(f"EXPLAIN {query}", values)))
            raw.rollback()
    one, everyone, words = plans
    assert "mnemic_index_scope" in one, one
    assert "mnemic_records_pkey" in one, one
    assert f"mnemic_index_recall1_test_{WIDTH}" in everyone, everyone
    assert "mnemic_index_words" in words, words
    for plan in (one, everyone, words):
        assert "Seq Scan on mnemic_index" not in plan, plan
        assert "Seq Scan on mnemic_records" not in plan, plan


def test_filters_by_scope_cost_no_recall(large: str) -> None:
    """Compare what the graph finds, within a scope, with all vectors of that scope in order."""
    with psycopg.connect(large) as raw:
        for scope in ("acme", "acme/user7"):
            for vector in ("[1,2,3,4,5,6,7,8]", "[-3,1,0,0,2,-1,5,-8]"):
                near = f"vector::halfvec({WIDTH}) <=> '{vector}'"
                below = f"(scope = '{scope}' OR (scope >= '{scope}/' AND scope < '{scope}0'))"
                query = (
                    f"SELECT stream_id, seq FROM mnemic_index WHERE entry = '{NOTE}' AND {below} "
                    f"ORDER BY {near} LIMIT 10"
                )
                raw.execute("SET LOCAL hnsw.iterative_scan = 'relaxed_order'; SET LOCAL hnsw.ef_search = 400")
                found = set(raw.execute(query).fetchall())
                raw.execute("SET LOCAL enable_indexscan = off")
                exact = set(raw.execute(query).fetchall())
                raw.rollback()
                assert len(found & exact) >= 9
