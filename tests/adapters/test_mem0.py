"""mem0's Python API over ours behaves as mem0's own classes do, with the differences that are listed here.

- An expired memory is deleted: `show_expired` and `get` do not show it.
- A deleted memory's history has its events without texts; `delete_all` deletes the history too.
- `get_all` returns the newest first; mem0's order depends on its vector store.
- A blank text is not added; `timestamp`, which mem0's own class refuses, is when a memory was said.
- The name of a message whose content is a list is kept, as is metadata named as mem0 names its own ("hash", "id" …).
- The filters `ne`, `nin` and "*" see that a field is missing; qdrant, below mem0, does not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

os.environ["MEM0_TELEMETRY"] = "False"
os.environ.setdefault("MEM0_DIR", tempfile.mkdtemp())

import mem0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from mem0.exceptions import LLMError, ValidationError

import mnemic
from mnemic.adapters.mem0 import AsyncMemory, Memory

ALICE = {"user_id": "alice"}
METHODS = (
    "add",
    "search",
    "get_all",
    "get",
    "update",
    "delete",
    "delete_all",
    "history",
    "reset",
    "close",
    "from_config",
)


class OneVector(Embeddings):
    """An embedder for which all texts are alike, so that mem0 finds every memory that passes the filters."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]


def configuration(folder: Path, answers: list[str] | None = None) -> dict[str, Any]:
    """Return a configuration of mem0 that needs no network."""
    model = GenericFakeChatModel(messages=iter(answers or []))
    path = {"path": str(folder / "qdrant"), "on_disk": True}
    return {
        "embedder": {"provider": "langchain", "config": {"model": OneVector(), "embedding_dims": 2}},
        "vector_store": {"provider": "qdrant", "config": {**path, "embedding_model_dims": 2}},
        "llm": {"provider": "langchain", "config": {"model": model}},
        "history_db_path": str(folder / "history.db"),
    }


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mem0.Memory]:
    oracle = mem0.Memory.from_config(configuration(tmp_path_factory.mktemp("mem0")))
    yield oracle
    oracle.close()
    oracle.vector_store.client.close()


@pytest.fixture
def ours() -> Iterator[Memory]:
    with Memory(memory="memory://") as memory:
        yield memory


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("here", "there"), [(Memory, mem0.Memory), (AsyncMemory, mem0.AsyncMemory)])
def test_signatures_are_those_of_mem0(here: type, there: type, name: str) -> None:
    def parameters(cls: type) -> list[tuple[str, Any]]:
        found = inspect.signature(getattr(cls, name)).parameters.values()
        # `llm` is a parameter of AsyncMemory alone there, and of both here.
        return [
            (one.name, one.kind) for one in found if one.name != "self" and (one.name != "llm" or here is AsyncMemory)
        ]

    assert parameters(here) == parameters(there)
    assert inspect.iscoroutinefunction(getattr(here, name)) == inspect.iscoroutinefunction(getattr(there, name))


# ---------------------------------------------------------------- the same operations on both

ids = st.sampled_from([None, "alice", "bob", "org/c", " trimmed ", 7])
names = st.fixed_dictionaries({"user_id": ids, "agent_id": ids, "run_id": ids})
texts = st.builds("tea {}".format, st.sampled_from(["with milk", "in Oslo", "🍵 \n hot", "x" * 300]))
roles = st.sampled_from(["user", "assistant", "system", "tool", None])
message = st.one_of(
    st.fixed_dictionaries(
        {"role": roles, "content": texts | st.none()}, optional={"name": st.sampled_from(["ann", ""])}
    ),
    st.fixed_dictionaries({"role": roles, "content": texts.map(lambda text: [{"type": "text", "text": text}])}),
)
metadata = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "topic": st.sampled_from(["food", "travel"]),
            "n": st.integers(0, 3),
            "done": st.booleans(),
            "nested": st.just({"a": [1, None, "ü"]}),
            "user_id": st.just("mallory"),
            "categories": st.just(["food"]),
            "app_id": st.just("app"),
            "attributed_to": st.just("user"),
        },
    ),
)
expiries = st.sampled_from([None, "2999-12-31"])
operators = st.sampled_from(["gt", "gte", "lt", "lte", "eq"])
topics = st.sampled_from(["food", "travel"])
condition = st.one_of(
    st.fixed_dictionaries({}, optional={"topic": st.sampled_from(["food", "travel", {"in": ["food", "other"]}])}),
    st.just({"topic": ["food", "other"]}),
    st.builds(
        lambda operator, n: {"n": {operator: n}}, st.sampled_from(["gt", "gte", "lt", "lte", "eq"]), st.integers(0, 3)
    ),
    st.builds(lambda done: {"done": done}, st.booleans()),
    st.just({"topic": {"contains": "oo"}}),
)
logic = st.one_of(
    condition,
    st.builds(lambda several: {"OR": several}, st.lists(condition.filter(bool), min_size=1, max_size=3)),
    st.builds(lambda several: {"NOT": several}, st.lists(condition.filter(bool), min_size=1, max_size=2)),
    st.builds(
        lambda a, n: {"AND": [{"topic": a}, {"n": {"gte": n}}]}, st.sampled_from(["food", "travel"]), st.integers(0, 2)
    ),
)
which = st.integers(0, 8)
operation = st.one_of(
    st.tuples(st.just("add"), st.one_of(texts, message, st.lists(message, max_size=3)), names, metadata, expiries),
    st.tuples(st.just("list"), names, logic),
    st.tuples(st.just("search"), names, logic),
    st.tuples(st.just("get"), which),
    st.tuples(
        st.just("update"), which, st.one_of(st.none(), texts), metadata, st.sampled_from([..., None, "2998-01-01"])
    ),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("delete_all"), names),
    st.tuples(st.just("history"), which),
)


def comparable(result: Any, known: list[str]) -> Any:
    """Return a result with the order of creation instead of ids, and without times."""
    if isinstance(result, list):
        return [comparable(one, known) for one in result]
    if not isinstance(result, dict):
        return result
    out: dict[str, Any] = {}
    for name, value in result.items():
        if name in ("id", "memory_id") and value in known:
            out[name] = known.index(value)
        elif name in ("created_at", "updated_at") or name == "id":
            out[name] = isinstance(value, str)
        elif name == "score":
            out[name] = type(value)
        else:
            out[name] = comparable(value, known)
    return out


class Player:
    """Plays operations on one of the two."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.known, self.gone = memory, list[str](), set[str]()

    def play(self, name: str, *arguments: Any) -> Any:
        try:
            found = getattr(self, name)(*arguments)
        except (ValueError, ValidationError, AttributeError) as error:
            kind = "ValidationError" if isinstance(error, ValidationError) else "ValueError"
            return "error", kind
        return comparable(found, self.known)

    def id(self, number: int) -> str:
        return self.known[number % len(self.known)] if self.known else str(uuid4())

    def add(self, messages: Any, ids: Any, metadata: Any, expires: Any) -> Any:
        found = self.memory.add(messages, **ids, metadata=metadata, expiration_date=expires, infer=False)
        self.known += [one["id"] for one in found["results"]]
        return found

    def list(self, ids: Any, filters: Any) -> Any:
        wanted = {name: id for name, id in ids.items() if id is not None}
        found = self.memory.get_all(filters={**wanted, **filters}, top_k=1000)
        return sorted(found["results"], key=lambda one: self.known.index(one["id"]))

    def search(self, ids: Any, filters: Any) -> Any:
        wanted = {name: id for name, id in ids.items() if id is not None}
        found = self.memory.search("tea", filters={**wanted, **filters}, top_k=1000, threshold=0.0)
        return sorted(found["results"], key=lambda one: self.known.index(one["id"]))

    def get(self, number: int) -> Any:
        return self.memory.get(self.id(number))

    def update(self, number: int, text: Any, metadata: Any, expires: Any) -> Any:
        given = {} if expires is ... else {"expiration_date": expires}
        return self.memory.update(self.id(number), text, metadata, **given)

    def delete(self, number: int) -> Any:
        found = self.memory.delete(self.id(number))
        self.gone.add(self.id(number))
        return found

    def delete_all(self, ids: Any) -> Any:
        found = self.memory.delete_all(**ids)
        self.gone |= {id for id in self.known if self.memory.get(id) is None}
        return found

    def history(self, number: int) -> Any:
        return None if self.id(number) in self.gone else self.memory.history(self.id(number))


@settings(max_examples=50)
@given(st.lists(operation, min_size=3, max_size=14))
def test_the_same_operations_have_the_same_results(theirs: mem0.Memory, played: list[Any]) -> None:
    theirs.reset()
    with Memory(memory="memory://") as memory:
        there, here = Player(theirs), Player(memory)
        for one in played:
            assert here.play(*one) == there.play(*one), one


BAD: dict[str, Callable[[Any], object]] = {
    "no id": lambda m: m.add("tea", infer=False),
    "empty id": lambda m: m.add("tea", user_id=" ", infer=False),
    "space in id": lambda m: m.add("tea", user_id="a b", infer=False),
    "no messages": lambda m: m.add(7, user_id="alice", infer=False),
    "memory type": lambda m: m.add("tea", user_id="alice", memory_type="other", infer=False),
    "expiration": lambda m: m.add("tea", user_id="alice", expiration_date="soon", infer=False),
    "expiration type": lambda m: m.add("tea", user_id="alice", expiration_date=7, infer=False),
    "user beside filters": lambda m: m.search("tea", user_id="alice"),
    "list, user beside filters": lambda m: m.get_all(user_id="alice"),
    "no filters": lambda m: m.search("tea"),
    "list without filters": lambda m: m.get_all(filters={"topic": "food"}),
    "empty query": lambda m: m.search(" ", filters=ALICE),
    "query of another type": lambda m: m.search(None, filters=ALICE),
    "threshold": lambda m: m.search("tea", filters=ALICE, threshold=2),
    "threshold type": lambda m: m.search("tea", filters=ALICE, threshold="high"),
    "top_k": lambda m: m.search("tea", filters=ALICE, top_k=-1),
    "top_k type": lambda m: m.get_all(filters=ALICE, top_k=True),
    "reference date": lambda m: m.search("tea", filters=ALICE, reference_date="2026-01-01"),
    "operator": lambda m: m.search("tea", filters={**ALICE, "n": {"gt": 1, "like": 2}}),
    "update of nothing": lambda m: m.update(str(uuid4())),
    "update of an unknown id": lambda m: m.update(str(uuid4()), text="tea"),
    "deletion of an unknown id": lambda m: m.delete(str(uuid4())),
    "delete_all of nobody": lambda m: m.delete_all(),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_those_of_mem0(theirs: mem0.Memory, ours: Memory, name: str) -> None:
    kinds = []
    for memory in (theirs, ours):
        with pytest.raises((ValueError, ValidationError)) as raised:
            BAD[name](memory)
        kinds.append(ValidationError if isinstance(raised.value, ValidationError) else ValueError)
        code = getattr(raised.value, "error_code", None)
        kinds.append(code)
    assert kinds[:2] == kinds[2:]


# ---------------------------------------------------------------- a model

FOUND = json.dumps(
    {
        "facts": [{"text": "Alice drinks tea", "message": 1}],
        "memory": [{"text": "Alice drinks tea", "attributed_to": "user"}],
    }
)


def test_the_configured_llm_extracts_as_mem0_does(tmp_path: Path) -> None:
    results = []
    for cls, folder in ((mem0.Memory, tmp_path / "theirs"), (Memory, tmp_path / "ours")):
        folder.mkdir()
        with cls.from_config(configuration(folder, [FOUND] * 2)) as memory:
            added = memory.add("I drink tea, says Alice", user_id="alice", metadata={"topic": "food"})
            again = memory.add("Tea, again", user_id="alice", metadata={"topic": "food"})
            (one,) = memory.get_all(filters={"user_id": "alice"})["results"]
            results.append((comparable(added, [added["results"][0]["id"]]), again, one["memory"], one["metadata"]))
    assert results[0] == results[1]


def test_a_model_as_a_function_sync_or_async() -> None:
    asked = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return FOUND

    async def later(messages: list[mnemic.Message]) -> str:
        await asyncio.sleep(0)
        return FOUND

    with Memory(memory="memory://", model=model) as memory:
        found = memory.add([{"role": "user", "content": "I drink tea"}], user_id="alice", prompt="Only drinks.")
        assert [one["memory"] for one in found["results"]] == ["Alice drinks tea"]
        assert "Only drinks." in asked[0]
        verbatim = memory.add("I drink tea", user_id="alice", infer=False)
        assert (verbatim["results"][0]["memory"], len(asked)) == ("I drink tea", 1)
    with Memory(memory="memory://", model=later) as memory:
        assert memory.add("I drink tea", user_id="alice")["results"][0]["memory"] == "Alice drinks tea"

    async def run() -> Any:
        async with AsyncMemory(memory="memory://", model=later) as memory:
            return await memory.add("I drink tea", user_id="alice")

    assert asyncio.run(run())["results"][0]["memory"] == "Alice drinks tea"


def test_a_failing_model_raises_and_adds_nothing() -> None:
    def model(prompt: str) -> str:
        raise ConnectionError("offline")

    with Memory(memory="memory://", model=model) as memory:
        with pytest.raises(LLMError, match="offline"):
            memory.add("tea", user_id="alice")
        assert memory.get_all(filters=ALICE) == {"results": []}
    with Memory(memory="memory://", model=lambda prompt: "no JSON") as memory:
        with pytest.raises(ValueError, match="JSON"):
            memory.add("tea", user_id="alice")


def test_procedural_memory_is_written_by_the_model(ours: Memory) -> None:
    with pytest.raises(ValueError, match="needs a model"):
        ours.add("I clicked", agent_id="a", memory_type="procedural_memory")
    with Memory(memory="memory://", model=lambda prompt: "1. Click") as memory:
        added = memory.add([{"role": "user", "content": "I clicked"}], agent_id="a", memory_type="procedural_memory")
        assert added["results"][0]["memory"] == "1. Click"
        (one,) = memory.get_all(filters={"agent_id": "a"})["results"]
        assert one["metadata"] == {"memory_type": "procedural_memory"}
        again = memory.add("I clicked", agent_id="a", memory_type="procedural_memory")["results"]
        assert [event["event"] for event in again] == ["ADD"]  # done twice, though it was the same
    added = ours.add("I clicked", user_id="alice", memory_type="procedural_memory")  # without an agent, as any text
    assert added["results"][0]["memory"] == "I clicked"
    assert ours.get_all(filters=ALICE)["results"][0]["metadata"] is None


def test_an_update_keeps_metadata_that_it_does_not_name(ours: Memory) -> None:
    (added,) = ours.add("I drink tea", user_id="alice", metadata={"a": 1, "b": 1, "actor_id": "eve"})["results"]
    ours.update(added["id"], data="I drink coffee", metadata={"b": 2, "user_id": "eve", "actor_id": "eve"})
    found = ours.get(added["id"])
    assert found is not None
    assert (found["memory"], found["metadata"], found["user_id"]) == ("I drink coffee", {"a": 1, "b": 2}, "alice")
    assert "actor_id" not in found
    ours.update(added["id"], "I drink water", data="ignored")
    assert [one["memory"] for one in ours.get_all(filters=ALICE)["results"]] == ["I drink water"]


def test_instructions_of_the_configuration_or_the_call_reach_the_model() -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return '{"facts": []}'

    with Memory({"custom_instructions": "Only allergies."}, memory="memory://", model=model) as memory:
        memory.add("I drink tea", user_id="alice")
        memory.add("I drink tea", user_id="alice", prompt="Only drinks.")
    assert ["Only allergies." in one for one in asked] == [True, False]
    assert ["Only drinks." in one for one in asked] == [False, True]


def test_a_threshold_leaves_out_what_is_worse(ours: Memory) -> None:
    for text in ("Alice drinks green tea", "Alice has a teapot from Japan", "The tram to the harbour is line 28"):
        ours.add(text, user_id="alice")
    every = ours.search("Does Alice drink green tea?", filters=ALICE, threshold=0)["results"]
    middle = every[0]["score"] - 0.01
    best = ours.search("Does Alice drink green tea?", filters=ALICE, threshold=middle)["results"]
    assert [one["memory"] for one in best] == ["Alice drinks green tea"]
    assert len(every) > 1
    assert ours.search("quantum physics", filters=ALICE, threshold=1) == {"results": []}
    assert ours.search("tea", filters=ALICE, top_k=0) == {"results": []}


def test_procedural_memory_may_have_a_model_of_its_own() -> None:
    """Of the messages that it is given, the first has the instructions, and the others what was said."""

    class Model(GenericFakeChatModel):
        def _generate(self, messages: list[Any], *arguments: Any, **options: Any) -> Any:
            seen.append([(one.type, one.content) for one in messages])
            return super()._generate(messages, *arguments, **options)

    seen: list[list[tuple[str, str]]] = []
    llm = Model(messages=iter(["1. Click"]))
    said = [{"role": "user", "content": "I clicked"}]
    memory = AsyncMemory(memory="memory://", model=lambda prompt: "not this one")
    adding = memory.add(said, agent_id="a", memory_type="procedural_memory", prompt="Write it down", llm=llm)
    assert asyncio.run(adding)["results"][0]["memory"] == "1. Click"
    assert seen == [[("system", "Write it down"), ("human", "user: I clicked")]]


def test_without_a_model_messages_are_added_as_they_are_and_once(ours: Memory) -> None:
    said = [{"role": "user", "content": "I drink tea"}, {"role": "assistant", "content": "Noted"}]
    assert [one["memory"] for one in ours.add(said, user_id="alice")["results"]] == ["I drink tea", "Noted"]
    assert ours.add(said, user_id="alice") == {"results": []}


# ---------------------------------------------------------------- as part of Mnemic


def test_our_own_api_finds_what_was_added_and_the_other_way_round(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path}/memory.db") as store:
        memory = Memory(memory=store.scope("app"))
        memory.add("The sister of Alice is allergic to shellfish", user_id="alice", run_id="r1", infer=False)
        assert store.scope("app", "alice").recall("shellfish", k=1)[0].text.startswith("The sister")
        store.scope("app", "bob").remember("Bob plays the tuba")
        assert [one["memory"] for one in memory.search("tuba", filters={"user_id": "bob"})["results"]] == [
            "Bob plays the tuba"
        ]
        for query in ("tuba", "shellfish"):
            for user in ("alice", "bob"):
                several = memory.search(query, filters={"user_id": user}, threshold=0)["results"]
                assert {one["user_id"] for one in several} <= {user}
        memory.delete_all(user_id="alice")
        assert not store.scope("app", "alice").recall("shellfish")


def test_times_are_kept_and_expired_memories_are_deleted(ours: Memory) -> None:
    ours.add("tea", user_id="alice", timestamp=1_700_000_000, infer=False)
    assert ours.get_all(filters=ALICE)["results"][0]["created_at"].startswith("2023-11-14T22:13:20")
    ours.add("coffee", user_id="bob", metadata={"created_at": "2020-01-01T00:00:00+00:00"}, infer=False)
    assert ours.get_all(filters={"user_id": "bob"})["results"][0]["created_at"] == "2020-01-01T00:00:00+00:00"
    added = ours.add("milk", user_id="carol", expiration_date="2020-01-01", infer=False)["results"][0]
    assert ours.get_all(filters={"user_id": "carol"}, show_expired=True) == {"results": []}
    assert ours.get(added["id"]) is None


def test_the_store_of_a_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = {"vector_store": {"provider": "mnemic", "config": {"url": f"sqlite:///{tmp_path}/a.db"}}}
    with Memory.from_config(named) as memory:
        memory.add("tea", user_id="alice")
    with mnemic.open(f"sqlite:///{tmp_path}/a.db") as store:
        assert store.scope("alice").recall("tea")
    theirs = configuration(tmp_path / "new")
    del theirs["llm"]
    theirs["vector_store"]["config"]["collection_name"] = "support"
    with Memory.from_config(theirs) as memory:
        memory.add("tea", user_id="alice")
    assert "vector_store" in caplog.text
    with mnemic.open(f"sqlite:///{tmp_path}/new/mnemic.db") as store:
        assert store.scope("support", "alice").recall("tea")
    with pytest.raises(ValueError, match="dict"):
        Memory.from_config("sqlite:///a.db")  # type: ignore[arg-type]


def test_a_configured_store_has_a_url_and_the_options_of_open(tmp_path: Path) -> None:
    def configured(**config: Any) -> Memory:
        return Memory.from_config({"vector_store": {"provider": "mnemic", "config": config}})

    url = f"sqlite:///{tmp_path}/a.db"
    with configured(url=url, collection_name="a/b", redact=True) as memory:
        memory.add("write to alice@example.com", user_id="alice", infer=False)
    with mnemic.open(url) as store:
        (hit,) = store.scope("a%2Fb", "alice").recall("write")
        assert "example.com" not in hit.text
    for wrong in ({}, {"path": "a.db"}):
        with pytest.raises(ValueError, match="needs a url"):
            configured(**wrong)
    with pytest.raises(ValueError, match=r"not \['encryption'\]"):
        configured(url=url, encryption="key")


def test_a_list_in_the_metadata_matches_by_one_of_its_values(ours: Memory) -> None:
    for text, tags in {"green tea": ["drink", "hot"], "black tea": ["drink"], "iced tea": "hot"}.items():
        ours.add(text, user_id="alice", metadata={"tags": tags}, infer=False)
    for tests, expected in (
        ({"tags": "hot"}, {"green tea", "iced tea"}),
        ({"tags": {"in": ["drink"]}}, {"green tea", "black tea"}),
        ({"OR": [{"tags": "hot"}]}, {"green tea", "iced tea"}),
        ({"NOT": [{"tags": "hot"}]}, {"black tea"}),
    ):
        found = ours.get_all(filters={**ALICE, **tests})["results"]
        assert {one["memory"] for one in found} == expected
        found = ours.search("tea", filters={**ALICE, **tests}, threshold=0)["results"]
        assert {one["memory"] for one in found} == expected


def test_an_error_names_the_argument(ours: Memory) -> None:
    with pytest.raises(ValueError, match=r"metadata\.created_at is not a time: 'soon'"):
        ours.add("tea", user_id="alice", metadata={"created_at": "soon"}, infer=False)
    with pytest.raises(ValueError, match="timestamp is not a time: 'soon'"):
        ours.add("tea", user_id="alice", timestamp="soon", infer=False)
    with pytest.raises(ValueError, match=r"filters must be a dict such as \{'user_id': 'alice'\}: 'alice'"):
        ours.get_all(filters="alice")  # type: ignore[arg-type]


SCRIPT = """
import sys
from mnemic.adapters.mem0 import Memory
with Memory(memory=sys.argv[1]) as memory:
    for number in range(10):
        memory.add(f"tea {number} of {sys.argv[2]}", user_id="alice", infer=False)
    print(len(memory.get_all(filters={"user_id": "alice"}, top_k=1000)["results"]))
assert "mem0" not in sys.modules
"""


def test_processes_and_threads_share_a_store_and_lose_nothing(tmp_path: Path, file_url: str) -> None:
    url = file_url
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    processes = [subprocess.Popen([sys.executable, script, url, str(n)], stdout=subprocess.PIPE) for n in range(2)]
    assert [(process.communicate(timeout=240), process.returncode)[1] for process in processes] == [0, 0]
    with Memory(memory=url) as memory, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: memory.add(f"coffee {n}", user_id="alice", infer=False), range(10)))
        assert len(memory.get_all(filters=ALICE, top_k=1000)["results"]) == 30


def test_the_async_class_and_a_notebook() -> None:
    async def run() -> None:
        with mnemic.open("memory://") as store:
            memory = AsyncMemory(memory=store)
            added = await memory.add("I drink tea", user_id="alice", infer=False)
            id = added["results"][0]["id"]
            await memory.update(id, "I drink green tea", {"n": 1})
            found = await memory.search("tea", filters=ALICE, explain=True)
            assert (found["results"][0]["memory"], found["results"][0]["metadata"]) == ("I drink green tea", {"n": 1})
            assert found["results"][0]["score_details"]
            assert [one["event"] for one in await memory.history(id)] == ["ADD", "UPDATE"]
            inside = Memory(memory=store)  # the sync class, on a running event loop
            assert (inside.get(id) or {})["memory"] == "I drink green tea"
            await memory.delete(id)
            assert await memory.get(id) is None
            await memory.reset()

    asyncio.run(run())
