"""CrewAI's memory over ours: crews run on it, and it does what CrewAI's own memory does, but for what is listed.

- `/a` is not a prefix of `/ab`, and forgetting a scope leaves the memories of "/" alone.
- `forget(scope=…, record_ids=…)` deletes no record outside the scope.
- A text that a scope has already, from the same source, is not stored again.
- Recall returns what answers the question, not the nearest vectors, with a score of Mnemic's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Memory, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.flow import Flow, start
from crewai.llms.base_llm import BaseLLM
from crewai.memory.storage.backend import StorageBackend
from crewai.memory.types import MemoryRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

import mnemic
from mnemic.adapters import crewai as adapter
from mnemic.adapters.crewai import MnemicMemory, MnemicStorage


class Scripted(BaseLLM):
    """A model that answers from a script, and keeps what it was asked."""

    answers: list[str] = Field(default_factory=list)
    asked: list[str] = Field(default_factory=list)

    def call(self, messages: Any, *arguments: Any, **named: Any) -> str:
        self.asked.append(str(messages))
        return self.answers.pop(0) if self.answers else "Final Answer: done"

    def supports_function_calling(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000


@pytest.fixture
def ours() -> Iterator[MnemicMemory]:
    memory = MnemicMemory("memory://")
    yield memory
    memory.close()


def crew_of(memory: Any, llm: Scripted, task: str) -> Crew:
    agent = Agent(role="Cook", goal="Cook well", backstory="You cook.", llm=llm)
    return Crew(agents=[agent], tasks=[Task(description=task, expected_output="A menu", agent=agent)], memory=memory)


# ---------------------------------------------------------------- real crews


def test_a_crew_remembers_what_another_crew_did(file_url: str) -> None:
    first = MnemicMemory(file_url, root_scope="/acme")
    said = Scripted(model="scripted", answers=["Final Answer: Ines is allergic to shellfish, so there was soup."])
    crew_of(first, said, "Plan a dinner").kickoff()
    first.close()

    second = MnemicMemory(file_url, root_scope="/acme")
    asked = Scripted(model="scripted")
    crew_of(second, asked, "Is anyone allergic to shellfish?").kickoff()
    assert "Ines is allergic to shellfish" in asked.asked[0]
    assert second.list_scopes("/agent") == ["/acme/agent/cook"]
    second.close()
    with mnemic.open(file_url) as store:
        assert any("Ines" in hit.text for hit in store.scope("acme").recall("who is allergic?"))


def test_an_agent_uses_its_memory_as_tools(ours: MnemicMemory) -> None:
    save = 'Thought: keep it\nAction: save_to_memory\nAction Input: {"contents": ["The oven is broken"]}'
    search = 'Thought: look\nAction: search_memory\nAction Input: {"queries": ["what is broken?"]}'
    llm = Scripted(model="scripted", answers=[save, search, "Thought: done\nFinal Answer: The oven."])
    assert str(crew_of(ours, llm, "Check the kitchen").kickoff()) == "The oven."
    assert "The oven is broken" in llm.asked[2]
    assert "The oven is broken" in [record.content for record in ours.list_records()]


def test_a_scope_and_a_slice_of_the_memory_serve_a_crew(ours: MnemicMemory) -> None:
    crew_of(ours.scope("/kitchen"), Scripted(model="scripted", answers=["Final Answer: Soup"]), "Cook").kickoff()
    ours.drain_writes()
    assert ours.info("/kitchen").record_count == 1
    view = ours.slice(["/kitchen", "/other"])
    assert [match.record.scope for match in view.recall("soup")] == ["/kitchen"]
    assert view.remember("x", scope="/kitchen") is None


def test_a_flow_remembers(ours: MnemicMemory) -> None:
    class Diary(Flow[Any]):
        @start()
        def write(self) -> str:
            self.remember("Alice moved to Lyon", scope="/alice")
            return str(self.recall("where does Alice live?")[0].record.content)

    assert Diary(memory=ours).kickoff() == "Alice moved to Lyon"


def test_an_llm_infers_and_extracts() -> None:
    analysis = '{"suggested_scope": "/people", "categories": ["health"], "importance": 0.9, "extracted_metadata": {}}'
    llm = Scripted(model="scripted", answers=['{"memories": ["Ines is allergic"]}', analysis])
    memory = MnemicMemory("memory://", llm=llm, root_scope="/acme")
    assert memory.extract_memories("Task: … Result: Ines is allergic") == ["Ines is allergic"]
    record = memory.remember("Ines is allergic")
    assert record is not None
    assert (record.scope, record.categories, record.importance) == ("/acme/people", ["health"], 0.9)
    memory.close()
    without = MnemicMemory("memory://")
    assert (without.extract_memories("As it is"), without.extract_memories(" ")) == (["As it is"], [])
    without.close()


def test_an_llm_is_asked_for_what_is_not_given_alone() -> None:
    found = {"entities": ["Ines"], "dates": [], "topics": []}
    inferred = {"suggested_scope": "/people", "categories": ["health"], "importance": 0.9, "extracted_metadata": found}
    llm = Scripted(model="scripted", answers=[json.dumps(inferred)] * 3)
    memory = MnemicMemory("memory://", llm=llm)
    given: dict[str, Any] = {"scope": "/own", "categories": ["own"], "importance": 0.2}
    whole = memory.remember("All is given", **given)
    assert (whole is not None, llm.asked) == (True, [])
    for n, name in enumerate(given):
        record = memory.remember(f"Ines number {n}", metadata={"n": n}, **{name: given[name]})
        assert record is not None
        wanted = {"scope": "/people", "categories": ["health"], "importance": 0.9} | {name: given[name]}
        assert {key: getattr(record, key) for key in wanted} == wanted
        assert record.metadata == {"entities": ["Ines"], "n": n}
    assert "/own" in llm.asked[0]
    assert "health" in llm.asked[2]
    memory.close()


# ---------------------------------------------------------------- CrewAI's own memory as the oracle


def vectors(texts: list[str]) -> list[list[float]]:
    """Return different vectors for different texts."""
    return [[byte - 127.5 for byte in sha256(text.encode()).digest()] for text in texts]


class Theirs(Memory):
    """CrewAI's memory; what is given with all its fields is saved as it is, without its slow flow around that."""

    def _encode_batch(self, contents: list[str], *fields: Any) -> list[MemoryRecord]:
        names = ("scope", "categories", "metadata", "importance", "source", "private")
        given = dict(zip(names, fields, strict=False))
        records = [MemoryRecord(content=one, embedding=vectors([one])[0], **given) for one in contents]
        self._storage.save(records)
        return records


scopes = st.sampled_from(["/", "/a", "/a/b", "/c/d e", "/ü"])
categories = st.lists(st.sampled_from(["x", "y"]), unique=True, max_size=2)
metadata = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "list": st.just([1, None, {"ü": True}])})
importances = st.sampled_from([0.0, 0.5, 1.0])
which = st.integers(0, 5)
operation = st.one_of(
    st.tuples(
        st.just("remember"), scopes, categories, metadata, importances, st.sampled_from([None, "s", "t"]), st.booleans()
    ),
    st.tuples(st.just("look"), scopes),
    st.tuples(st.just("recall"), scopes, categories, st.sampled_from([None, "s"]), st.booleans()),
    st.tuples(
        st.just("update"), which, st.booleans(), st.none() | scopes, st.none() | categories, st.none() | metadata
    ),
    st.tuples(st.just("forget"), st.none() | scopes, categories, st.none() | st.integers(0, 2)),
    st.tuples(st.just("forget_ids"), which),
    st.tuples(st.just("forget_old"), st.booleans()),
    st.tuples(st.just("reset"), st.none() | scopes),
)


class Player:
    """Plays operations on one of the two."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.ids = memory, list[str]()

    def play(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self, name)(*arguments)
        except ValueError:
            return "ValueError"

    def shown(self, record: Any) -> Any:
        out = record.model_dump(exclude={"id", "created_at", "last_accessed"})
        assert isinstance(record.created_at, datetime)
        return {**out, "id": self.ids.index(record.id)}

    def id(self, number: int) -> str:
        return self.ids[number % len(self.ids)] if self.ids else "unknown"

    def remember(
        self, scope: str, categories: Any, metadata: Any, importance: float, source: Any, private: bool
    ) -> Any:
        content = f"tea number {len(self.ids)}"
        record = self.memory.remember(content, scope, categories, metadata, importance, source, private)
        assert record is not None
        self.ids.append(record.id)
        return self.shown(record)

    def look(self, scope: str) -> Any:
        info = self.memory.info(scope)
        listed = [self.shown(record) for record in self.memory.list_records(scope)]
        page = [self.shown(record) for record in self.memory.list_records(scope, limit=2, offset=1)]
        counts = (self.memory.list_scopes(scope), self.memory.list_categories(scope), self.memory.tree(scope))
        times = (info.oldest_record is None, info.newest_record is None)
        return listed, page, counts, info.path, info.record_count, info.categories, info.child_scopes, times

    def recall(self, scope: str, categories: Any, source: Any, private: bool) -> Any:
        named = {"categories": categories or None, "source": source, "include_private": private}
        found = self.memory.recall("tea number", scope, limit=100, depth="shallow", **named)
        return sorted((self.shown(match.record) for match in found), key=lambda record: int(record["id"]))

    def update(self, number: int, text: bool, scope: Any, categories: Any, metadata: Any) -> Any:
        id = self.id(number)
        content = f"tea number {number} again" if text else None
        return self.shown(self.memory.update(id, content, scope, categories, metadata, 0.25))

    def forget(self, scope: Any, categories: Any, n: Any) -> Any:
        wanted: dict[str, Any] = {"categories": categories, "metadata_filter": None if n is None else {"n": n}}
        return self.memory.forget(scope=scope if categories or n is not None else None, **wanted)

    def forget_ids(self, number: int) -> Any:
        return self.memory.forget(record_ids=[self.id(number)])

    def forget_old(self, all: bool) -> Any:
        return self.memory.forget(older_than=datetime.utcnow() + timedelta(days=1 if all else -1))  # noqa: DTZ003

    def reset(self, scope: Any) -> Any:
        return self.memory.reset(scope)


@settings(max_examples=25)
@given(st.lists(operation, min_size=4, max_size=10))
def test_the_same_operations_have_the_same_results(tmp_path_factory: pytest.TempPathFactory, played: list[Any]) -> None:
    from crewai.memory.storage.lancedb_storage import LanceDBStorage

    storage = LanceDBStorage(path=str(tmp_path_factory.mktemp("lance")), compact_every=0)
    theirs = Theirs(llm=Scripted(model="scripted"), embedder=vectors, storage=storage)
    with mnemic.open("memory://") as store:
        there, here = Player(theirs), Player(MnemicMemory(store.scope("crew")))
        for one in played:
            assert here.play(*one) == there.play(*one), one
    theirs._save_pool.shutdown()


# ---------------------------------------------------------------- as part of Mnemic


def test_the_storage_is_a_back_end_of_crewai_without_search_by_embedding() -> None:
    storage = MnemicStorage("memory://")
    assert isinstance(storage, StorageBackend)
    with pytest.raises(NotImplementedError, match="by text"):
        storage.search([1.0])
    storage.close()


def test_our_own_memories_are_recalled_and_private_ones_are_not(ours: MnemicMemory) -> None:
    with mnemic.open("memory://") as store:
        memory = MnemicMemory(store)
        store.scope("alice").remember("Alice plays the tuba", importance=7)
        match = memory.recall("tuba", scope="/alice")[0]
        assert (match.record.scope, match.record.importance) == ("/alice", 1.0)
        memory.remember("The tuba is dented", scope="/alice", source="ann", private=True)
        assert len(memory.recall("tuba", scope="/alice", source="bob")) == 1
        assert len(memory.recall("tuba", scope="/alice", source="ann")) == 2
        assert memory.recall("tuba", scope="/bob") == []
        assert memory.recall("tuba", limit=0) == []


def test_the_same_text_is_stored_once_and_a_read_only_memory_stores_nothing(ours: MnemicMemory) -> None:
    first, again = ours.remember("The oven is broken"), ours.remember("The oven is broken")
    assert first is not None
    assert again is not None
    assert first.id == again.id
    ours.remember("The oven is broken", source="ann", private=True)
    assert ours.info().record_count == 2
    assert [ours.remember("the \0 oven").content for _ in range(2)] == ["the \ufffd oven"] * 2  # type: ignore[union-attr]
    assert ours.info().record_count == 3
    ours.read_only = True
    assert ours.remember("x") is None


def test_a_text_is_the_same_in_its_scope_for_its_reader_until_it_is_changed(ours: MnemicMemory) -> None:
    first = ours.remember("The oven is broken", scope="/a")
    assert first is not None
    others = [ours.remember("The oven is broken", scope="/b"), ours.remember("The oven is broken", "/a", private=True)]
    assert first.id not in [one.id for one in others if one is not None]
    ours.update(first.id, content="The oven works")
    again = ours.remember("The oven is broken", scope="/a")
    assert again is not None
    assert sorted(one.content for one in ours.list_records("/a") if not one.private) == [
        "The oven is broken",
        "The oven works",
    ]


def test_every_field_of_a_record_is_updated_also_in_another_scope(ours: MnemicMemory) -> None:
    first = ours.remember("The oven is broken", "/a", ["kitchen"], {"n": 1}, 0.5, "ann")
    assert first is not None
    wanted: dict[str, Any] = {"content": "It works", "categories": ["x"], "metadata": {"n": 2}, "importance": 0.25}
    for scope, gone in (("/a", "/b"), ("/b", "/a")):
        wanted["importance"] += 0.25
        ours.update(first.id, scope=scope, **wanted)
        (found,) = ours.list_records(scope)
        assert {name: getattr(found, name) for name in wanted} == wanted
        assert (found.id, found.source, found.created_at) == (first.id, "ann", first.created_at)
        assert ours.list_records(gone) == []


def test_what_is_saved_in_the_background_is_recalled(ours: MnemicMemory) -> None:
    ours.remember_many([f"Tea number {n} is green" for n in range(40)])
    match = ours.recall("tea number 39")[0]
    assert match.record.content == "Tea number 39 is green"
    assert match.match_reasons
    with mnemic.open("memory://") as store:
        MnemicMemory(store).remember("Tea is green")
        hit = store.scope().recall("tea", uses=False)[0]
        found = MnemicMemory(store).recall("tea")[0]
        assert found.match_reasons == sorted(hit.why, key=lambda name: -hit.why[name])
        assert len(found.match_reasons) > 1


def test_many_memories_that_are_private_do_not_hide_the_others(ours: MnemicMemory) -> None:
    for n in range(60):
        ours.remember(f"The tuba of ann, number {n}", source="ann", private=True, categories=["brass"])
    ours.remember("A tuba is heavy, says everyone who has carried one up the stairs", categories=["brass"])
    assert len(ours.recall("tuba", limit=1, categories=["brass"])) == 1
    assert ours.recall("tuba", limit=3, categories=["wood"]) == []


def test_times_of_records_are_kept_and_compared_in_any_zone() -> None:
    with mnemic.open("memory://") as store:
        storage = MnemicStorage(store)
        east = timezone(timedelta(hours=9))
        times = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
        records = [
            MemoryRecord(id=f"{n}", content=f"tea {n}", created_at=time.astimezone(east), source="")
            for n, time in enumerate(times)
        ]
        storage.save([records[1], records[2], records[0]])
        assert [one.id for one in storage.list_records()] == ["2", "1", "0"]
        assert store.scope().memories.get("0").source is None
        info = storage.get_scope_info("/")
        assert (info.oldest_record, info.newest_record) == tuple(time.replace(tzinfo=None) for time in times[::2])
        assert storage.list_records(limit=0) == storage.list_records(offset=-1) == []
        assert storage.count() == 3
        assert storage.delete(older_than=times[1]) == 1
        assert storage.delete(older_than=times[1].astimezone(east).replace(microsecond=1)) == 1
        assert [one.id for one in storage.list_records()] == ["2"]
        assert storage.get_record("1") is None


def test_many_memories_are_deleted_in_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "DELETED", 3)
    with MnemicStorage("memory://") as storage:
        storage.save([MemoryRecord(content=f"tea {n}", scope=f"/{n % 2}", categories=["x"]) for n in range(10)])
        assert storage.list_categories() == {"x": 10}
        assert storage.delete(categories=["y"]) == 0
        assert storage.delete(scope_prefix="/1") == 5
        assert (storage.count("/0"), storage.count("/1"), storage.list_scopes()) == (5, 0, ["/0"])
        storage.reset()
        assert storage.count() == 0


@pytest.mark.asyncio
async def test_async_calls_of_the_storage(file_url: str) -> None:
    async with mnemic.open_async(file_url) as store:
        storage = MnemicStorage(store.scope("crew"))
        await storage.asave([MemoryRecord(id="1", content="tea"), MemoryRecord(id="2", content="coffee")])
        assert await storage.adelete(record_ids=["1"]) == 1
        assert [item.id for item in await store.scope("crew").memories.list()] == ["2"]


def test_a_recall_is_announced_and_so_is_its_failure(ours: MnemicMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(crewai_event_bus, "emit", lambda source, event: seen.append(event))
    ours.remember("Tea is green")
    del seen[:]
    found = ours.recall("tea", limit=3)
    assert [event.type for event in seen] == ["memory_query_started", "memory_query_completed"]
    assert (seen[1].query, seen[1].limit, seen[1].results) == ("tea", 3, found)
    with pytest.raises(mnemic.InvalidValueError):
        ours.recall("tea", scope="/" + "x" * 500)
    assert [event.type for event in seen[2:]] == ["memory_query_started", "memory_query_failed"]


def test_a_read_only_memory_counts_no_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as store:
        memory = MnemicMemory(store)
        memory.remember("Tea is green")
        asked: list[bool] = []
        search = store._async._store.search

        async def searching(given: Any) -> Any:
            asked.append(given.uses)
            return await search(given)

        monkeypatch.setattr(store._async._store, "search", searching)
        memory.recall("tea")
        memory.read_only = True
        memory.recall("tea")
        assert asked == [True, False]


def test_bad_input_has_a_clear_error(ours: MnemicMemory) -> None:
    with pytest.raises(ValueError, match="no parameter storage"):
        MnemicMemory("memory://", storage="lancedb")
    with pytest.raises(ValueError, match="scope, a memory or a URL"):
        MnemicMemory(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not found"):
        ours.update("unknown", content="x")
    with pytest.raises(ValueError, match="scope"):
        ours.remember("x", scope="/" + "x" * 500)


SCRIPT = """
import sys
from mnemic.adapters.crewai import MnemicMemory
memory = MnemicMemory(sys.argv[1])
memory.remember_many([f"tea {n} of {sys.argv[2]}" for n in range(10)], scope="/alice")
memory.close()
"""


def test_processes_and_threads_share_a_memory_and_lose_nothing(tmp_path: Path, file_url: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script, file_url, "another process"], stdout=subprocess.DEVNULL) as process:
        memory = MnemicMemory(file_url)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: memory.remember(f"coffee {n}", scope="/alice"), range(10)))
        assert process.wait(120) == 0
    assert memory.info("/alice").record_count == 20
    memory.close()


@pytest.mark.parametrize("own", ["mine", None, [1], {"categories": "x", "a": 1}, {"private": True}, {}])
def test_metadata_may_have_the_name_under_which_ours_is_kept(ours: MnemicMemory, own: Any) -> None:
    ours.remember("A tuba is heavy", categories=["brass"], metadata={"crewai": own, "n": 1})
    ours.remember("A flute is light", metadata={"crewai": own})
    assert [(one.content, one.metadata, one.categories, one.private) for one in ours.list_records()] == [
        ("A flute is light", {"crewai": own}, [], False),
        ("A tuba is heavy", {"crewai": own, "n": 1}, ["brass"], False),
    ]
    assert ours.recall("tuba", limit=1)[0].record.metadata == {"crewai": own, "n": 1}
    assert ours.forget(metadata_filter={"crewai": own}) == 2


@pytest.mark.parametrize("own", ["mine", [1], {"a": 1}])
def test_metadata_of_that_name_from_elsewhere_is_left_alone(own: Any) -> None:
    with mnemic.open("memory://") as store:
        store.scope("ana").remember("A tuba is heavy", metadata={"crewai": own})
        assert MnemicMemory(store.scope("ana")).list_records()[0].metadata == {"crewai": own}


def test_forgetting_no_records_deletes_none(ours: MnemicMemory) -> None:
    ours.remember("A tuba is heavy", scope="/a")
    assert ours.forget(record_ids=[]) == ours.forget(scope="/a", record_ids=[]) == 0
    for wrong in ({"record_ids": "x"}, {"categories": "brass"}):
        with pytest.raises(mnemic.InvalidValueError, match=f"{next(iter(wrong))} must be a list"):
            ours.forget(**wrong)  # type: ignore[arg-type]
    with pytest.raises(mnemic.InvalidValueError, match="categories must be a list"):
        ours.recall("tuba", categories="brass")  # type: ignore[arg-type]
    assert len(ours.list_records()) == 1
