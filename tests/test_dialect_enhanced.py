"""The advanced memory system as its page shows it, with its imports changed, and what it promises."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import mnemic
from clock import Clock
from mnemic.dialects import enhanced
from mnemic.dialects.enhanced import (
    AgentMemory,
    EnhancedAgentMemory,
    InMemoryStore,
    MemoryStore,
    RedisStore,
    SqliteStore,
    VectorMemoryStore,
    open_store,
)
from mnemic.models.embedder import find_embedder
from servers import valkey


@pytest.fixture(params=["memory", "sqlite", "redis", "vector"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "redis":
        url = request.getfixturevalue("valkey_url")
        return RedisStore(url)
    if request.param == "sqlite":
        return SqliteStore(str(tmp_path / "agent.db"))
    return InMemoryStore() if request.param == "memory" else VectorMemoryStore()


@pytest.fixture
def valkey_url(tmp_path: Path) -> Any:
    with valkey.empty_keyspace(tmp_path) as url:
        yield url


def test_a_store_keeps_its_contract(store: MemoryStore[str]) -> None:
    store.add("tea", "Alice drinks green tea every morning", {"topic": "drinks"})
    store.add("chess", "Bob plays chess on Sundays")
    assert store.get("tea") == "Alice drinks green tea every morning"
    assert store.get("nothing") is None
    (best, *_) = store.search("who plays chess?", top_k=1)
    assert best[:2] == ("chess", "Bob plays chess on Sundays")
    assert isinstance(best[2], float)
    store.add("tea", "Alice drinks black tea now")
    assert store.get("tea") == "Alice drinks black tea now"
    assert store.forget("tea")
    assert not store.forget("tea")
    assert store.get("tea") is None
    assert [key for key, _, _ in store.search("tea", top_k=5) if key == "tea"] == []
    store.close()  # type: ignore[attr-defined]


def test_parts_of_words_are_found_in_memory() -> None:
    store = InMemoryStore()
    store.add("a", "The weathervane turns")
    assert [found[:2] for found in store.search("hervan")] == [("a", "The weathervane turns")]
    assert store.data == {"a": "The weathervane turns"}
    with pytest.raises(TypeError):
        store.data["b"] = "would be lost"  # type: ignore[index]


def test_redis_forgets_after_its_time(valkey_url: str, clock: Clock) -> None:
    store = RedisStore(valkey_url, ttl=60, clock=clock)
    store.add("a", "soon gone")
    assert store.get("a") == "soon gone"
    clock.advance(seconds=60)
    assert store.get("a") is None
    assert store.search("soon") == []
    store.close()


def test_experiences_are_recalled() -> None:
    memory = EnhancedAgentMemory()
    memory.add_experience("The user prefers metric units", importance=3)
    memory.add_experience("The deployment failed because the disk was full")
    key, text, score = memory.recall("why did the deployment fail?", k=1)[0]
    assert text == "The deployment failed because the disk was full"
    assert score > 0
    assert memory.forget(key)
    memory.add_experience("A new experience takes no other's place")
    assert {text for _, text, _ in memory.recall("metric units experience", k=5)} == {
        "The user prefers metric units",
        "A new experience takes no other's place",
    }


def test_messages_are_in_working_memory() -> None:
    memory = EnhancedAgentMemory(vector=False)
    for n in range(12):
        memory.add_message("user", f"message {n}")
    assert memory.get_recent_messages(2) == "user: message 10\nuser: message 11"
    assert len(memory.get_recent_messages().splitlines()) == 10
    memory.add_message("assistant", "The harbour of Lisbon is full of boats today.")
    assert "harbour of Lisbon" in memory.summary()
    assert memory.create_summary() == memory.summary()


def test_what_is_persistent_outlives_the_process(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.db")
    first = EnhancedAgentMemory(persistent=True, path=path)
    first.add_experience("The gate code is 4711")
    first.add_message("user", "hello")
    second = EnhancedAgentMemory(persistent=True, path=path)
    assert second.recall("gate code")[0][1] == "The gate code is 4711"
    assert second.get_recent_messages() == "user: hello"


def test_the_older_memory_still_works() -> None:
    memory = AgentMemory()
    memory.add_message("user", "hi")
    memory.add_tool_call("search", {"q": "x"}, "found")
    assert memory.tool_call_history == [{"name": "search", "arguments": {"q": "x"}, "result": "found"}]


class PluginStore(MemoryStore[str]):
    """A store that someone else wrote."""

    def __init__(self, greeting: str = "") -> None:
        self.held: dict[str, str] = {"greeting": greeting}

    def add(self, key: str, value: str, meta: dict[str, Any] | None = None) -> None:
        self.held[key] = value

    def get(self, key: str) -> str | None:
        return self.held.get(key)

    def search(self, query: str, top_k: int = 5) -> list[tuple[str, str, float]]:
        return [(key, value, 1.0) for key, value in self.held.items() if query in value][:top_k]

    def forget(self, key: str) -> bool:
        return self.held.pop(key, None) is not None


def test_an_installed_package_can_add_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "agents_mem_other-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: agents-mem-other\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{enhanced.PLUGINS}]\nother = agents_mem_other:Store\n")
    (tmp_path / "agents_mem_other.py").write_text(
        "from mnemic.dialects.enhanced import InMemoryStore\n"
        "class Store(InMemoryStore):\n"
        "    def __init__(self, greeting):\n"
        "        super().__init__()\n"
        "        self.add('greeting', greeting)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    store = open_store("other", greeting="good morning")
    assert store.get("greeting") == "good morning"
    with pytest.raises(mnemic.UnknownSchemeError, match="there are: other"):
        open_store("nothing")


def test_any_store_may_be_the_long_term_memory() -> None:
    memory = EnhancedAgentMemory(long_term=PluginStore("hello there"))
    memory.add_experience("a new thing")
    assert memory.recall("hello")[0][1] == "hello there"
    assert len(memory.recall("h")) == 2


def test_another_model_is_asked_for_by_its_name() -> None:
    assert isinstance(VectorMemoryStore("static").memory, mnemic.Memory)
    with pytest.raises(mnemic.MnemicError, match="sentence"):
        VectorMemoryStore("some/other-model")


class Letters:
    """A model as the page uses one: `encode` of one text."""

    model_name = "letters"

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, txt: str, normalize_embeddings: bool = True) -> list[float]:
        self.encoded.append(txt)
        return [float(txt.lower().count(letter)) + 0.01 for letter in "abcdefghijklmnopqrstuvwxyz"]


def test_a_model_may_be_given_itself() -> None:
    class Async:
        async def embed(self, text: str) -> list[float]:
            return Letters().encode(text)

    static = find_embedder("static")
    for model in (Letters(), Async(), lambda text: Letters().encode(text), static):
        store = VectorMemoryStore(model)
        store.add("a", "fish chief")
        store.add("b", "jig jag jog")
        assert store.search("jog jig jag", top_k=1)[0][0] == "b"
        store.close()
    with pytest.raises(mnemic.InvalidValueError, match="embedding model"):
        VectorMemoryStore(5)


def test_without_vectors_only_words_are_compared() -> None:
    asked = "what are the dinner plans?"
    for vector, found in ((True, ["Alice eats pasta in the evening"]), (False, [])):
        memory = EnhancedAgentMemory(vector=vector)
        memory.add_experience("Alice eats pasta in the evening")
        assert [text for _, text, _ in memory.recall(asked)] == found, vector
        assert memory.recall("pasta")[0][1] == "Alice eats pasta in the evening"


def test_an_own_store_that_is_empty_is_kept() -> None:
    class Sized(PluginStore):
        def __len__(self) -> int:
            return 0

    own = Sized()
    assert EnhancedAgentMemory(long_term=own).long_term is own


@pytest.mark.parametrize("name", ["c%20d.db", "c d.db", "a?b=c.db", "a#b.db", "ü.db"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = SqliteStore(tmp_path / name)
    store.add("a", "kept")
    store.close()
    EnhancedAgentMemory(persistent=True, path=tmp_path / name).add_message("user", "hi")
    assert {file.name.removesuffix("-wal").removesuffix("-shm") for file in tmp_path.iterdir()} == {name}


def test_adding_again_without_metadata_keeps_it(store: Any) -> None:
    store.add("tea", "green", {"topic": "drinks", "importance": 3})
    store.add("tea", "black")
    assert store.get("tea") == "black"
    assert store.meta["tea"] == {"topic": "drinks", "importance": 3}
    store.add("tea", "white", {"topic": "plants"})
    assert store.meta["tea"] == {"topic": "plants"}
    store.close()


def test_texts_are_encrypted(tmp_path: Path) -> None:
    path, key = tmp_path / "agent.db", bytes(range(32))
    memory = EnhancedAgentMemory(persistent=True, path=path, encryption_key=key)
    memory.add_experience("The treasure is under the sycamore")
    memory.add_message("user", "Dig at the sycamore")
    assert memory.recall("treasure")[0][1] == "The treasure is under the sycamore"
    with pytest.raises(mnemic.DecryptionError):
        SqliteStore(path)
    assert not [file for file in tmp_path.iterdir() if b"sycamore" in file.read_bytes()]


def test_a_companion_index_is_of_the_long_term_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str | None] = []
    real = mnemic.open

    def record(url: str, **options: Any) -> mnemic.Memory:
        opened.append(options.pop("index", None))
        return real(url, **options)

    monkeypatch.setattr(mnemic, "open", record)
    EnhancedAgentMemory(index="lancedb:///index")
    assert opened == [None, "lancedb:///index"]
