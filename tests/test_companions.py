"""Indexes beside a store in vector databases: recall through them, their places, processes and errors."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import mnemic
from companion_contract import IndexTests, Words, companion_of, texts
from mnemic.errors import (
    InvalidValueError,
    MnemicError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from mnemic.indexes import lancedb as lance
from mnemic.indexes import milvus, qdrant
from mnemic.indexes.companion_index import LAST, MARK, CompanionIndex, MissingTableError, Point, PointFilter
from mnemic.indexes.location import STATUSES, Location, parse_location
from mnemic.records import ScopePath
from mnemic.store.protocol import Mark
from mnemic.store.registry import StoreURL
from servers.stores import INDEXES, REMOTE, STORES

SCHEMES = ["lancedb", "milvus", "qdrant"]


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def index_url(scheme: str, tmp_path: Path) -> Iterator[str]:
    """The URL of an index that is not there yet."""
    with INDEXES[scheme].empty(tmp_path) as url:
        yield url


class TestIndexes(IndexTests):
    @pytest.fixture
    def index(self, index_url: str) -> str:
        return index_url

    def held(self, memory: mnemic.Memory) -> list[Point]:
        return held(memory)


def held(memory: mnemic.Memory) -> list[Point]:
    """Return every point that the index holds, of whatever kind."""
    companion = companion_of(memory)
    assert isinstance(companion, CompanionIndex)
    engine = companion._database

    async def read() -> list[Point]:
        everything = PointFilter(below=True, chunks=(MARK, LAST))
        return [point for table in await engine.tables() for point in await engine.read(table, everything)]

    return memory._driver.run(read())


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("qdrant://s3cret@127.0.0.1:1/notes", "qdrant://***@127.0.0.1:1/notes"),
        ("milvus://root:s3cret@127.0.0.1:1/notes", "milvus://***@127.0.0.1:1/notes"),
    ],
)
@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_an_unreachable_index_is_one_clear_error(file_url: str, url: str, shown: str) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as raised:
        mnemic.open(file_url, index=url)
    assert str(raised.value).startswith(shown)
    assert "s3cret" not in str(raised.value)


def test_an_invalid_location_is_refused(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "file.db").write_text("hello")
    suffix = ".db" if scheme == "milvus" else ""
    bad: list[tuple[str, type[MnemicError]]] = [
        (f"{scheme}://", InvalidValueError),
        (f"{scheme}:///", InvalidValueError),
        (f"{scheme}:///{tmp_path}/no/where{suffix}", InvalidValueError),
        (f"{scheme}:///{tmp_path}/file.db", UnreadableStoreError),
        (f"{scheme}:///{tmp_path}/x{suffix}?tls=1", InvalidValueError),
    ]
    if scheme == "lancedb":
        bad.append(("lancedb://host/x", InvalidValueError))
    else:
        bad += [
            (f"{scheme}://s3cret@host/no-such/name", InvalidValueError),
            (f"{scheme}://s3cret@host:port/x", InvalidValueError),
            (f"{scheme}://s3cret@host/x?colour=blue", InvalidValueError),
            (f"{scheme}://s3cret@host/x?tls=perhaps", InvalidValueError),
        ]
    for url, kind in bad:
        with pytest.raises(kind) as raised:
            mnemic.open("memory://", index=url)
        assert "s3cret" not in str(raised.value)
    if scheme == "milvus":
        with pytest.raises(InvalidValueError, match=r"index\.db"):
            mnemic.open("memory://", index=f"milvus:///{tmp_path}/folder")


def test_the_url_of_a_server_is_parsed() -> None:
    place = parse_location(StoreURL.parse("qdrant://k%40y@db.example:99/notes?tls=1"), 6334)
    assert (place.host, place.port, place.key, place.tls) == ("db.example", 99, "k@y", True)
    assert (place.prefix, place.user, place.url) == ("notes_", None, "qdrant://***@db.example:99/notes?tls=1")
    place = parse_location(StoreURL.parse("milvus://root:pa%3Ass@db"), 19530)
    assert (place.port, place.user, place.key, place.prefix) == (19530, "root", "pa:ss", "mnemic_")


@pytest.mark.parametrize("scheme", ["milvus", "qdrant"])
# The local mode of Qdrant leaves the file open that it could not lock.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_folder_that_another_process_has_open_is_busy(index_url: str) -> None:
    holding = f"""
        import asyncio, sys
        from mnemic.store import registry
        async def main():
            url, maker = registry.found_in(registry.INDEX_GROUP, {index_url!r})
            index = await maker.open(url)
            print("open", flush=True)
            sys.stdin.read()
            await index.close()
        asyncio.run(main())
    """
    other = start(holding)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    try:
        with pytest.raises(StoreBusyError):
            mnemic.open("memory://", index=index_url)
        gc.collect()
    finally:
        _, errors = other.communicate(timeout=240)
    assert other.returncode == 0, errors
    mnemic.open("memory://", index=index_url).close()


def test_a_closed_index_releases_its_folder(file_url: str, index_url: str) -> None:
    def once() -> None:
        with mnemic.open(file_url, index=index_url) as memory:
            memory.scope("alice").remember("tea in the garden")
            assert memory.scope("alice").recall("tea")

    once()
    before = {thread.name for thread in threading.enumerate()}
    once()
    after = {thread.name for thread in threading.enumerate()}
    # gRPC's pools end in their own time.
    assert {name for name in after - before if "Executor" not in name} == set()


# ---------------------------------------------------------------- several processes, and killed ones


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-c", textwrap.dedent(program), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


WRITING = """
    import sys
    import mnemic
    url, index, writer, count = *sys.argv[1:4], int(sys.argv[4])
    with mnemic.open(url, index=index) as memory:
        alice = memory.scope("alice")
        for n in range(count):
            alice.session("shared").add("user", f"writer {writer} says {n} about rivers")
            assert alice.recall(f"what does {writer} say about rivers", k=1)
            print(n, flush=True)
"""


@pytest.mark.parametrize("scheme", ["lancedb"])
def test_several_processes_share_a_folder(file_url: str, index_url: str) -> None:
    writers = [start(WRITING, file_url, index_url, name, 10) for name in ("anna", "bert")]
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    with mnemic.open(file_url, index=index_url) as memory:
        alice = memory.scope("alice")
        hits = alice.recall("rivers", k=100)
        assert len({hit.record.key for hit in hits}) == len(hits) == 20
        assert len({point.key for point in held(memory) if point.chunk >= 0}) == 20
        alice.erase()
        assert not [point for point in held(memory) if point.chunk >= 0]


def test_a_killed_process_leaves_an_index_that_works(file_url: str, index_url: str) -> None:
    writer = start(WRITING, file_url, index_url, "anna", 100_000)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 3:
            break
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with mnemic.open(file_url, index=index_url) as memory:
        hits = memory.scope("alice").recall("rivers", k=1000)
        said = memory.scope("alice").session("shared").messages(limit=None)
        assert len(hits) == len(said) >= 4


# ---------------------------------------------------------------- what errors mean


class Refusal(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: Any) -> None:
        self._code = code

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return "details"


@pytest.mark.parametrize("explained", [qdrant.mapped_errors, milvus.mapped_errors])
def test_every_grpc_status_is_mapped(explained: Callable[[str], Any]) -> None:
    for code in grpc.StatusCode:
        with pytest.raises(StoreError, match=r"^qdrant://host:") as raised, explained("qdrant://host"):
            raise Refusal(code)
        if code.name in STATUSES:
            assert type(raised.value) is STATUSES[code.name][0]


def test_every_driver_error_is_mapped() -> None:
    from pymilvus import exceptions
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse

    for kind in vars(exceptions).values():
        if isinstance(kind, type) and issubclass(kind, exceptions.MilvusException):
            with pytest.raises(MnemicError, match=r"^milvus://host:"), milvus.mapped_errors("milvus://host"):
                raise kind(message="what happened")
    cases: list[tuple[Callable[[str], Any], Exception, type[StoreError]]] = [
        (milvus.mapped_errors, exceptions.MilvusException(100, "gone"), MissingTableError),
        (milvus.mapped_errors, exceptions.MilvusException(2, "no answer"), StoreUnavailableError),
        (milvus.mapped_errors, exceptions.MilvusException(8, "slow down"), StoreBusyError),
        (milvus.mapped_errors, exceptions.MilvusException(9, "full"), StoreFullError),
        (milvus.mapped_errors, exceptions.MilvusException(65535, "auth check failure"), StorePermissionError),
        (qdrant.mapped_errors, ResourceExhaustedResponse("slow down", 1), StoreBusyError),
        (qdrant.mapped_errors, ValueError("Collection x not found"), MissingTableError),
        (qdrant.mapped_errors, RuntimeError("already accessed by another"), StoreBusyError),
        (lance.mapped_errors, OSError("write: No space left on device (os error 28)"), StoreFullError),
        (lance.mapped_errors, OSError("Permission denied (os error 13)"), StorePermissionError),
        (lance.mapped_errors, RuntimeError("Retryable commit conflict for version 8"), StoreBusyError),
        (lance.mapped_errors, ValueError("Table 'x' was not found"), MissingTableError),
        (lance.mapped_errors, RuntimeError("something else"), StoreError),
    ]
    for explained, error, wanted in cases:
        with pytest.raises(wanted, match=r"^x://host: ") as raised, explained("x://host"):
            raise error
        assert type(raised.value) is wanted


# ---------------------------------------------------------------- Milvus, as a server

SERVING = """
    import sys
    from milvus_lite.adapter.grpc.server import run_server
    run_server(sys.argv[1], "127.0.0.1", int(sys.argv[2]))
"""


def served(folder: Path, port: int) -> subprocess.Popen[str]:
    server = start(SERVING, folder, port)
    assert server.stdout is not None
    assert "listening" in server.stdout.readline()
    return server


def test_a_milvus_server_that_restarts_is_reconnected(
    tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mnemic.store")
    monkeypatch.setattr(milvus, "SECONDS", 5.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = served(tmp_path / "server", port)
    url = f"milvus://127.0.0.1:{port}/notes"
    try:
        with mnemic.open(file_url, index=url) as memory, mnemic.open(file_url, index=url) as other:
            alice = memory.scope("alice")
            alice.remember("tea in the garden")
            assert texts(alice.recall("tea")) == ["tea in the garden"]
            assert texts(other.scope("alice").recall("tea")) == ["tea in the garden"]
            server.kill()
            server.communicate()
            with pytest.raises(StoreUnavailableError, match=f"^{url}: the server cannot be reached"):
                alice.recall("tea")
            assert f"{url} is unavailable" in caplog.text
            server = served(tmp_path / "server", port)
            assert texts(alice.recall("tea")) == ["tea in the garden"]
            assert f"{url} is available again" in caplog.text
            alice.remember("a piano in winter")
            assert texts(other.scope("alice").recall("piano"))[0] == "a piano in winter"
            memory.scope().erase()
            assert held(memory) == []
    finally:
        server.kill()
        server.communicate()


# ---------------------------------------------------------------- LanceDB, and its files


def test_files_are_compacted(tmp_path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance, "COMPACTED_AFTER", 10)
    monkeypatch.setattr(lance, "RETENTION", timedelta(milliseconds=1))
    folder = tmp_path / "lance"
    with mnemic.open(file_url, index=f"lancedb:///{folder}") as memory:
        alice = memory.scope("alice")
        for n in range(15):
            alice.remember(f"note {n} about rivers", id=f"k{n % 5}")
            assert len(alice.recall("rivers", k=9)) == min(n + 1, 5)
        (table,) = folder.iterdir()
        assert len(list((table / "data").iterdir())) < 15
        assert len(list((table / "_versions").iterdir())) < 15
        assert texts(alice.recall("note 14", k=1)) == ["note 14 about rivers"]


# ---------------------------------------------------------------- Qdrant, as a server


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect", "ignore:Local mode performs exact")
def test_the_async_qdrant_client_works_like_the_local_one() -> None:
    from qdrant_client import AsyncQdrantClient

    from mnemic.store.protocol import Near
    from mnemic.testing.test_indexes import EAST, NORTH, NOTE, entered, words

    async def use() -> None:
        client = AsyncQdrantClient(":memory:")
        ours = CompanionIndex(qdrant.QdrantDatabase(Location(url="qdrant://host/a", prefix="a_"), client))
        theirs = CompanionIndex(qdrant.QdrantDatabase(Location(url="qdrant://host/a_b", prefix="a_b_"), client))
        await theirs.put(NOTE, [entered("theirs", [EAST])])
        await ours.put(NOTE, [entered("a", [EAST, NORTH], "zeppelin"), entered("b", [NORTH])])
        await ours.mark(NOTE, ("acme/alice/monday", "message"), Mark(1, 1, 1))
        near = Near(scope=ScopePath("acme"), name=NOTE, vector=EAST.tobytes(), terms=words("zeppelin"))
        assert {record.key for record in await ours.near(near)} == {"a", "b"}
        assert len(await ours.marks(NOTE, ScopePath())) == 1
        await ours.remove(("acme/alice/monday", "message"), ["a"])
        assert await ours.keys(NOTE, ("acme/alice/monday", "message")) == ["b"]
        await ours.reset()
        assert await ours.near(near) == []
        assert [record.key for record in await theirs.near(near)] == ["theirs"]
        # What another process drops is made again.
        await ours.put(NOTE, [entered("c", [EAST])])
        await CompanionIndex(qdrant.QdrantDatabase(Location(url="qdrant://host/a", prefix="a_"), client)).reset()
        assert await ours.near(near) == []
        await ours.put(NOTE, [entered("d", [EAST])])
        assert [record.key for record in await ours.near(near)] == ["d"]
        await client.close()

    asyncio.run(use())


def test_every_qdrant_request_can_be_encoded() -> None:
    from qdrant_client import AsyncQdrantClient

    from mnemic.testing.test_indexes import EAST

    point = Point("6f1f7e0a-6a3c-5d0e-9b57-3f6f1b0c2d11", "a/b", "message", "k", 0, b"{}", EAST, [2**32 - 1, 7])
    where = PointFilter(scope="a", below=True, kinds=("message",), keys=("k",))

    async def use() -> None:
        # Nobody listens there: whatever cannot be put into a request fails otherwise, and earlier.
        client = AsyncQdrantClient(host="127.0.0.1", grpc_port=1, prefer_grpc=True, check_compatibility=False)
        engine = qdrant.QdrantDatabase(Location(url="qdrant://127.0.0.1:1", prefix="x_"), client)
        for call in (
            engine.tables(),
            engine.create("t", 32),
            engine.create("t", 0),
            engine.put("t", [point]),
            engine.delete("t", where),
            engine.read("t", where, bodies=False),
            engine.read("t", PointFilter(below=True, ids=(point.id,))),
            engine.by_vector("t", where, EAST, 5),
            engine.by_terms("t", where, [1, 2**32 - 1], 5),
            engine._call("create_payload_index", "t", "scope", field_schema=qdrant._INDEXES["scope"]),
            engine.drop("t"),
        ):
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                await call
        await engine.close()

    asyncio.run(use())


def test_drivers_are_imported_on_first_use() -> None:
    program = """
        import sys
        import mnemic
        with mnemic.open("memory://") as memory:
            memory.scope("a").remember("x")
        heavy = {"lancedb", "pyarrow", "pymilvus", "qdrant_client", "grpc", "mnemic.indexes"}
        print(sorted(heavy & set(sys.modules)))
    """
    out, errors = start(program).communicate(timeout=240)
    assert (out, errors) == ("[]\n", "")


# ---------------------------------------------------------------- a vector store of LangChain, beside every back-end


class Vectors:
    """The methods of a LangChain vector store that an index uses, and nothing else."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[Any, Document]] = {}

    def add_texts(self, texts: Any, metadatas: Any = None, **options: Any) -> None:
        for text, metadata, id in zip(texts, metadatas, options["ids"], strict=True):
            self.documents[id] = (Words().embed_query(text), Document(metadata))

    def delete(self, ids: Any = None, **options: Any) -> None:
        for id in ids:
            self.documents.pop(id, None)

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        asked = Words().embed_query(query)
        ranked = sorted(self.documents.values(), key=lambda one: -float(one[0] @ asked))
        return [document for _, document in ranked[:k]]


class Document(NamedTuple):
    metadata: dict[str, str]


@pytest.mark.parametrize("store", ["memory", "sqlite", *REMOTE])
def test_a_vector_store_of_langchain_follows_every_back_end(store: str, tmp_path: Path) -> None:
    index = Vectors()
    with STORES[store].empty(tmp_path) as url:
        with mnemic.open(url, index=index) as memory:
            alice = memory.scope("acme", "alice")
            alice.remember_many(["tea in the garden", "a piano in winter"])
            chat = alice.session("monday")
            chat.add("user", "my sister Tilda moved to Bergen")
            memory.scope("acme", "bert").remember("tea at night")
            assert set(texts(alice.recall("tea", kinds="memory", min_score=0.1))) == {"tea in the garden"}
            assert texts(alice.recall("where did Tilda move"))[0] == "my sister Tilda moved to Bergen"
            chat.clear()
            assert len([one for _, one in index.documents.values() if "mnemic_key" in one.metadata]) == 2
            memory.warm()
        if store != "memory":
            with mnemic.open(url) as memory:
                memory.scope("acme", "alice").erase()
            with mnemic.open(url, index=index) as memory:
                assert texts(memory.scope("acme").recall("tea")) == ["tea at night"]
                assert {one.metadata.get("mnemic_scope") for _, one in index.documents.values()} == {None, "acme/bert"}
