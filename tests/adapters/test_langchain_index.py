"""LangChain vector stores as indexes beside a store."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import chromadb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_core.vectorstores import VectorStore as AnyVectorStore
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

import mnemic
from clock import Clock
from companion_contract import IndexTests, companion_of, texts
from mnemic.adapters.langchain import MnemicEmbeddings
from mnemic.errors import ClosedError, InvalidValueError, NotFoundError, StoreError, StoreUnavailableError
from mnemic.event_loop import step
from mnemic.indexes import langchain as index_module
from mnemic.indexes.companion_index import MARK, Point
from mnemic.indexes.langchain import KEY, KIND, SCOPE, Metadata, VectorStoreIndex
from mnemic.kinds import INDEX_POSITION, INDEXED
from mnemic.records import ScopePath
from mnemic.store.query import Scan

EMBEDDINGS = MnemicEmbeddings("static")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def chroma() -> Chroma:
    return Chroma(f"c{uuid4().hex}", EMBEDDINGS, client=chromadb.EphemeralClient())


def qdrant() -> QdrantVectorStore:
    client, width = QdrantClient(":memory:"), len(EMBEDDINGS.embed_query("x"))
    client.create_collection("m", models.VectorParams(size=width, distance=models.Distance.COSINE))
    return QdrantVectorStore(client, "m", EMBEDDINGS)


class Plain(AnyVectorStore):
    """A vector store of which nothing is known: it takes no filter, and returns documents without their ids."""

    def __init__(self) -> None:
        self.inner = InMemoryVectorStore(EMBEDDINGS)

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> list[str]:
        return self.inner.add_texts(texts, metadatas, **kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> None:
        self.inner.delete(ids)

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        assert not kwargs
        found = self.inner.similarity_search(query, k)
        return [Document(page_content=one.page_content, metadata=one.metadata) for one in found]

    @classmethod
    def from_texts(cls, *arguments: Any, **named: Any) -> Plain:
        raise NotImplementedError


MADE: dict[str, Callable[[], AnyVectorStore]] = {
    "chroma": chroma,
    "qdrant": qdrant,
    "memory": lambda: InMemoryVectorStore(EMBEDDINGS),
}


def documents(store: AnyVectorStore) -> list[dict[str, Any]]:
    """Return the metadata of all documents, but for the one that marks the index."""
    if isinstance(store, Chroma):
        found: list[Any] = store.get(include=["metadatas"])["metadatas"]
    elif isinstance(store, QdrantVectorStore):
        records, _ = store.client.scroll("m", limit=100_000)
        found = [record.payload["metadata"] for record in records if record.payload]
    else:
        assert isinstance(store, InMemoryVectorStore)
        found = [one["metadata"] for one in store.store.values()]
    return [one for one in found if KEY in one]


def rows(memory: mnemic.Memory, kind: str) -> list[mnemic.Record]:
    page = memory._driver.run(memory._async._backend.scan(Scan(scope=ScopePath(), kinds=(kind,), below=True)))
    return [one for one in page.items if one.key != "vector store"]


class TestVectorStores(IndexTests):
    @pytest.fixture(params=sorted(MADE))
    def index(self, request: pytest.FixtureRequest) -> AnyVectorStore:
        return MADE[request.param]()

    def held(self, memory: mnemic.Memory) -> list[Point]:
        companion = companion_of(memory)
        assert isinstance(companion, VectorStoreIndex)
        found = [Point("", one[SCOPE], one[KIND], one[KEY], 0) for one in documents(companion._vectors)]
        marks = [
            Point("", one.scope.path, one.key, "", MARK, json.dumps(one.data).encode())
            for one in rows(memory, INDEX_POSITION)
        ]
        # Each document is written down, and nothing else is.
        written = [one.data["key"] for one in rows(memory, INDEXED) if isinstance(one.data, dict)]
        assert set(written) == {one.key for one in found}
        return found + marks


# ---------------------------------------------------------------- any vector store


def test_a_vector_store_without_filters_finds_a_scope_among_many(file_url: str) -> None:
    index = Plain()
    with mnemic.open(file_url, index=index) as memory:
        for n in range(30):
            memory.scope("acme", f"user{n}").remember_many([f"dinner {m} of {n} was good" for m in range(10)])
        memory.scope("acme", "alice").remember("dinner of alice was very late")
        assert texts(memory.scope("acme", "alice").recall("good dinner")) == ["dinner of alice was very late"]
        assert len(memory.scope("acme").recall("good dinner", k=50)) == 50


def test_a_filter_of_your_own_gets_the_metadata_of_what_is_wanted(file_url: str) -> None:
    given: list[Any] = []

    def filter(where: Metadata) -> dict[str, Any]:
        given.append(dict(where))
        return {}

    with mnemic.open(file_url, index=mnemic.LangChainIndex(Plain(), filter)) as memory:
        memory.scope("acme", "alice").remember("tea in the garden")
        assert memory.scope("acme").recall("tea", kinds="memory")
        assert memory.scope().recall("tea")
    assert given == [{"mnemic_within_1": "acme", "mnemic_kind": ["memory"]}]


def test_a_vector_store_with_its_own_model_needs_no_embedder_here(file_url: str) -> None:
    index = InMemoryVectorStore(DeterministicFakeEmbedding(size=32))
    with mnemic.open(file_url, index=index, embedder=None) as memory:
        alice = memory.scope("alice")
        alice.remember_many([f"note {n} about rivers" for n in range(20)])
        assert texts(alice.recall("note 7 about rivers", k=1)) == ["note 7 about rivers"]


def test_documents_are_readable_by_other_chains(file_url: str) -> None:
    index = InMemoryVectorStore(EMBEDDINGS)
    with mnemic.open(file_url, index=index) as memory:
        alice = memory.scope("acme", "alice")
        id = alice.remember("tea in the garden").id
        memory.warm()
        (found,) = index.as_retriever(search_kwargs={"k": 1}).invoke("tea in the garden")
        assert found.page_content == "tea in the garden"
        assert found.metadata == {
            "mnemic_scope": "acme/alice", "mnemic_kind": "memory", "mnemic_key": id,
            "mnemic_within_1": "acme", "mnemic_within_2": "acme/alice",
        }  # fmt: skip


def test_documents_of_others_are_neither_found_nor_deleted(file_url: str) -> None:
    index = chroma()
    index.add_texts(["tea for someone else"], metadatas=[{"mine": 1}])
    with mnemic.open(file_url, index=index) as memory:
        alice = memory.scope("alice")
        alice.remember("tea in the garden")
        assert texts(alice.recall("tea")) == ["tea in the garden"]
        memory.reindex()
        memory.scope().erase()
    assert [one["mine"] for one in index.get()["metadatas"] if "mine" in one] == [1]


@pytest.mark.parametrize("name", sorted(MADE))
def test_another_vector_store_or_an_emptied_one_is_filled(file_url: str, name: str) -> None:
    for index in (MADE[name](), MADE[name]()):
        with mnemic.open(file_url, index=index) as memory:
            memory.scope("alice").remember("tea in the garden", id="tea")
            assert texts(memory.scope("alice").recall("tea")) == ["tea in the garden"]
            assert len(documents(index)) == len(rows(memory, INDEXED)) == 1
        # What is known of it is kept.
        with mnemic.open(file_url, index=index) as memory:
            assert memory.warm() == 0
            assert len(documents(index)) == 1


def test_a_shorter_text_leaves_no_documents_of_the_longer_one(file_url: str) -> None:
    index = chroma()
    with mnemic.open(file_url, index=index) as memory:
        alice = memory.scope("alice")
        id = alice.remember(" ".join(f"Sentence {n} is about the weather." for n in range(100))).id
        alice.recall("weather")
        assert len(documents(index)) > 3
        alice.memories.update(id, text="no weather at all")
        alice.recall("weather")
        assert len(documents(index)) == 1
        alice.forget(id)
        assert documents(index) == []


def test_what_is_erased_without_the_index_is_deleted_by_the_next_search(file_url: str) -> None:
    index = chroma()
    with mnemic.open(file_url, index=index) as memory:
        memory.scope("alice").remember("tea in the garden")
        memory.scope("bert").remember("tea at night")
        memory.warm()
    with mnemic.open(file_url) as memory:
        memory.scope("alice").erase()
    with mnemic.open(file_url, index=index) as memory:
        assert texts(memory.scope().recall("tea")) == ["tea at night"]
        assert {one[SCOPE] for one in documents(index)} == {"bert"}
        assert {one.scope.path for one in rows(memory, INDEXED)} == {"bert"}


def test_a_write_cut_short_leaves_nothing_that_is_not_written_down(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = InMemoryVectorStore(EMBEDDINGS)
    with mnemic.open(file_url, index=index) as memory:
        alice = memory.scope("alice")
        alice.remember("tea in the garden")

        def broken(*arguments: Any, **named: Any) -> None:
            InMemoryVectorStore.add_texts(index, *arguments, **named)
            raise ConnectionError("lost")

        monkeypatch.setattr(index, "add_texts", broken)
        with pytest.raises(StoreUnavailableError, match=r"^langchain:InMemoryVectorStore: the vector store cannot be"):
            alice.recall("tea")
        monkeypatch.undo()
        assert len(documents(index)) == 1
    with mnemic.open(file_url) as memory:
        memory.scope("alice").erase()
    with mnemic.open(file_url, index=index) as memory:
        memory.warm()
        assert documents(index) == []


def test_two_writers_at_once_lose_nothing(file_url: str) -> None:
    index = chroma()

    def write(name: str) -> None:
        with mnemic.open(file_url, index=index) as memory:
            alice = memory.scope("alice")
            for n in range(10):
                alice.session("s").add("user", f"{name} says {n} about rivers")
                assert f"{name} says {n} about rivers" in texts(alice.recall(f"what {name} says about rivers", k=100))

    with mnemic.open(file_url, index=index) as memory, ThreadPoolExecutor(2) as threads:
        list(threads.map(write, ("anna", "bert")))
        assert len(memory.scope("alice").recall("rivers", k=100)) == 20
        assert len(documents(index)) == 20


def test_the_async_api_and_async_methods(file_url: str) -> None:
    class OnlyAsync(InMemoryVectorStore):
        def add_texts(self, *arguments: Any, **named: Any) -> Any:
            raise AssertionError

        def similarity_search(self, *arguments: Any, **named: Any) -> Any:
            raise AssertionError

        def delete(self, *arguments: Any, **named: Any) -> None:
            raise AssertionError

        async def adelete(self, *arguments: Any, **named: Any) -> None:
            InMemoryVectorStore.delete(self, *arguments, **named)

    async def use(index: Any) -> None:
        async with mnemic.open_async(file_url, index=index) as memory:
            alice = memory.scope("alice")
            item = await alice.remember("tea in the garden")
            assert [hit.record.text for hit in await alice.recall("tea")] == ["tea in the garden"]
            await alice.forget(item.id)
            assert await alice.recall("tea") == []

    asyncio.run(use(mnemic.LangChainIndex(OnlyAsync(EMBEDDINGS), use_async=True)))
    asyncio.run(use(qdrant()))


def test_each_vector_store_gets_its_own_filter() -> None:
    where: Metadata = {"mnemic_within_1": "acme", "mnemic_kind": ["memory", "fact"]}
    tests = [{"mnemic_within_1": {"$eq": "acme"}}, {"mnemic_kind": {"$in": ["memory", "fact"]}}]
    for package in ("langchain_pinecone", "langchain_postgres", "langchain_chroma"):
        kind = type("Some", (InMemoryVectorStore,), {"__module__": f"{package}.vectorstores"})
        made = index_module._known_filter(kind)
        assert made is not None
        assert made(where) == {"filter": {"$and": tests}}
        assert made({"mnemic_within_1": "acme"}) == {"filter": tests[0]}
    assert index_module._known_filter(type("Some", (AnyVectorStore,), {"__module__": "some.where"})) is None


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["remember", "say", "fact", "lengthen", "forget", "clear", "erase", "search", "without", "reopen"]
        ),
        st.sampled_from(["alice", "bert"]),
        st.integers(0, 3),
    ),
    max_size=12,
)


@settings(max_examples=20)
@given(OPERATIONS)
def test_whatever_happens_the_documents_are_those_of_the_records(operations: list[tuple[str, str, int]]) -> None:
    index = InMemoryVectorStore(EMBEDDINGS)
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/memory.db?synchronous=normal"
        memory = mnemic.open(url, index=index)
        for name, user, n in operations:
            if name in ("without", "reopen"):  # the next operations are those of a process with, or without, the index
                memory.close()
                memory = mnemic.open(url) if name == "without" else mnemic.open(url, index=index)
            scope = memory.scope(user)
            match name:
                case "remember":
                    scope.remember(f"note {n} about lakes", id=f"m{n}")
                case "lengthen":
                    scope.remember(" ".join(f"Sentence {m} of note {n}." for m in range(60)), id=f"m{n}")
                case "say":
                    scope.session(f"s{n}").add("user", f"message {n} about rivers")
                case "fact":
                    scope.facts.add("Alice", "likes", f"thing {n}")
                case "forget":
                    with suppress(NotFoundError):
                        scope.forget(f"m{n}")
                case "clear":
                    scope.session(f"s{n}").clear()
                case "erase":
                    scope.erase()
                case "search":
                    memory.scope().recall("message")
        memory.close()
        with mnemic.open(url, index=index) as memory:
            memory.warm()
            page = memory._driver.run(memory._async._backend.scan(Scan(scope=ScopePath(), below=True)))
            wanted = {(one.scope.path, one.kind, one.key) for one in page.items if one.text or one.title}
            found = [(one[SCOPE], one[KIND], one[KEY]) for one in documents(index)]
            assert set(found) == wanted
            assert len(rows(memory, INDEXED)) == len(wanted)
            memory.scope().erase()
            assert documents(index) == []


# ---------------------------------------------------------------- bad input, errors, processes


def test_bad_input_is_one_clear_error(file_url: str, tmp_path: Path) -> None:
    for bad in (7, object(), InMemoryVectorStore, EMBEDDINGS, mnemic.LangChainIndex(7)):  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="an index is a URL such as 'qdrant://host', or a LangChain vector"):
            mnemic.open(file_url, index=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="the filter of a LangChainIndex must be a function"):
        mnemic.open(file_url, index=mnemic.LangChainIndex(chroma(), 7))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="index or encryption_key, not both"):
        mnemic.open(f"sqlite:///{tmp_path}/other.db", index=chroma(), encryption_key=bytes(32))


def test_errors_of_the_vector_store_are_those_of_a_store(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = InMemoryVectorStore(EMBEDDINGS)
    with mnemic.open(file_url, index=index) as memory:
        memory.scope("alice").remember("tea in the garden")

        def broken(*arguments: Any, **named: Any) -> None:
            raise ValueError("no such thing")

        monkeypatch.setattr(index, "similarity_search", broken)
        with pytest.raises(StoreError, match=r"^langchain:InMemoryVectorStore: .* failed \(ValueError: no such thing"):
            memory.scope("alice").recall("tea")
        companion = companion_of(memory)
    with pytest.raises(ClosedError):
        step(companion.marks("", ScopePath()))


WRITING = """
import sys
import mnemic
from langchain_chroma import Chroma
from mnemic.adapters.langchain import MnemicEmbeddings
url, folder = sys.argv[1:]
with mnemic.open(url, index=Chroma("memories", MnemicEmbeddings("static"), persist_directory=folder)) as memory:
    alice = memory.scope("alice")
    for n in range(100_000):
        alice.session("shared").add("user", f"message {n} about rivers")
        assert alice.recall("about rivers", k=1)
        print(n, flush=True)
"""


def test_a_killed_process_leaves_an_index_that_works(file_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WRITING, file_url, str(tmp_path / "chroma")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 3:
                break
        writer.send_signal(signal.SIGKILL)
    index = Chroma("memories", EMBEDDINGS, persist_directory=str(tmp_path / "chroma"))
    with mnemic.open(file_url, index=index) as memory:
        alice = memory.scope("alice")
        said = alice.session("shared").messages(limit=None)
        assert len(alice.recall("rivers", k=1000)) == len(said) >= 4
        assert len(documents(index)) == len(said)
        alice.erase()
        assert documents(index) == []
