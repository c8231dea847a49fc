"""The profile graph, compared with the reference memory server from npm, and its file under attack."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

import mnemic
from mcp_clients import connected, data, error, reference_server, run
from mnemic.mcp import build_server
from mnemic.mcp.graph_file import GraphFile

Call = tuple[str, dict[str, Any]]


@asynccontextmanager
async def ours(file: Path | None) -> AsyncIterator[Client]:
    """Yield a client of a server in this process, on a file or a scope."""
    async with mnemic.open_async("memory://") as memory:
        scope = memory.scope("acme", "alice")
        async with Client(build_server(lambda ctx: scope, ["graph"], graph_file=file)) as client:
            yield client


def script() -> Iterator[Call]:
    """Yield calls at random: of few names, so that many meet."""
    chance = random.Random(5)
    names = ["Alice", "Bob", "Ünal", "acme corp"]
    texts = ["likes tea", "LIKES coffee", "é", 'says "hi"\n', ""]

    def some(values: list[str]) -> list[str]:
        return chance.sample(values, chance.randrange(1, 3))

    def relation() -> dict[str, str]:
        return {
            "from": chance.choice(names),
            "to": chance.choice(names),
            "relationType": chance.choice(["knows", "is"]),
        }

    for _ in range(150):
        yield (
            (
                "create_entities",
                {"entities": [{"name": n, "entityType": "Person", "observations": some(texts)} for n in some(names)]},
            ),
            ("create_relations", {"relations": [relation()]}),
            ("add_observations", {"observations": [{"entityName": n, "contents": some(texts)} for n in some(names)]}),
            ("delete_entities", {"entityNames": some(names)[:1]}),
            (
                "delete_observations",
                {"deletions": [{"entityName": n, "observations": some(texts)} for n in some(names)]},
            ),
            ("delete_relations", {"relations": [relation(), relation()]}),
            ("search_nodes", {"query": chance.choice(["tea", "likes", "person", "ünal", "nothing at all"])}),
            ("open_nodes", {"names": some(names)}),
            ("read_graph", {}),
        )[chance.randrange(9)]


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "scope"])
def test_the_tools_do_what_the_reference_server_does(tmp_path: Path, in_file: bool) -> None:
    async def test() -> None:
        async with (
            reference_server(tmp_path / "reference.jsonl") as reference,
            ours(tmp_path / "memory.jsonl" if in_file else None) as client,
        ):
            expected, got = (await reference.list_tools()).tools, (await client.list_tools()).tools
            for theirs, tool in zip(expected, got, strict=True):
                for schema in (theirs.input_schema, theirs.output_schema or {}):
                    del schema["$schema"]
                theirs.execution = None
                assert tool == theirs
            for name, arguments in script():
                theirs_result = await reference.call_tool(name, arguments)
                result = await client.call_tool(name, arguments)
                assert (result.is_error, result.content, result.structured_content) == (
                    theirs_result.is_error,
                    theirs_result.content,
                    theirs_result.structured_content,
                ), (name, arguments)
        if in_file:
            assert (tmp_path / "memory.jsonl").read_bytes() == (tmp_path / "reference.jsonl").read_bytes()

    run(test)


def test_a_name_is_stored_once_and_an_argument_too_many_is_ignored(tmp_path: Path) -> None:
    twice = {"name": "Alice", "entityType": "person", "observations": [], "age": 9}

    async def test() -> None:
        for file in (tmp_path / "memory.jsonl", None):
            async with ours(file) as client:
                created = await data(client, "create_entities", entities=[twice, twice], more=1)
                assert created == {"entities": [{"name": "Alice", "entityType": "person", "observations": []}]}
                assert (await data(client, "read_graph"))["entities"] == created["entities"]

    run(test)


def test_an_entity_is_a_note_and_a_relation_a_fact() -> None:
    async def test() -> None:
        async with mnemic.open_async("memory://") as memory:
            scope = memory.scope("acme")
            await scope.notes.write("plan", "book a train")
            await scope.facts.add("Alice", "lives_in", "Oslo")
            async with Client(build_server(lambda ctx: scope, ["graph", "default"])) as client:
                await data(
                    client,
                    "create_entities",
                    entities=[{"name": "Alice", "entityType": "person", "observations": ["drinks tea"]}],
                )
                graph = await data(client, "read_graph")
                assert [entity["name"] for entity in graph["entities"]] == ["Alice"]
                assert graph["relations"] == [{"from": "Alice", "to": "Oslo", "relationType": "lives_in"}]
                hits = await data(client, "recall", query="Who drinks tea?")
                assert hits["hits"][0]["kind"] == "note"
                plan = {"name": "plan", "entityType": "x", "observations": []}
                assert await error(client, "create_entities", entities=[plan]) == (
                    "'plan' is the key of a note that is not an entity"
                )
                link = {"from": "Alice", "to": "", "relationType": "likes"}
                assert (await error(client, "create_relations", relations=[link])).startswith("to ")
                await data(client, "delete_entities", entityNames=["plan", "Alice"])
                assert await scope.notes.read("plan") == "book a train"

    run(test)


def test_two_servers_and_the_file_of_one_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"

    async def write(client: Client, who: str) -> None:
        for n in range(20):
            entity = {"name": f"{who}{n}", "entityType": "x", "observations": [f"of {who}"]}
            await data(client, "create_entities", entities=[entity])
            await data(client, "add_observations", observations=[{"entityName": "all", "contents": [f"{who}{n}"]}])

    async def test() -> None:
        options = ("--profile", "graph")
        async with (
            connected(*options, MEMORY_FILE_PATH=str(file)) as one,
            connected(*options, "--file", str(file)) as two,
        ):
            await data(one, "create_entities", entities=[{"name": "all", "entityType": "x", "observations": []}])
            await asyncio.gather(write(one, "a"), write(two, "b"))
        async with reference_server(file) as reference:
            entities = (await data(reference, "read_graph"))["entities"]
        expected = {f"{who}{n}" for who in "ab" for n in range(20)}
        assert {entity["name"] for entity in entities} == expected | {"all"}
        assert set(entities[0]["observations"]) == expected

    run(test)


WRITER = """
import asyncio, sys
from pathlib import Path
from mnemic.mcp.graph_file import GraphFile

async def main():
    n = 0
    while True:
        entity = {"name": str(n), "entityType": "x", "observations": ["y" * 2000]}
        await GraphFile(Path(sys.argv[1])).change("create_entities", [entity])
        print(n, flush=True)
        n += 1

asyncio.run(main())
"""


def test_a_killed_writer_leaves_a_whole_file_and_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    for written in (1, 7, 19):
        file.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            done = [int(writer.stdout.readline()) for _ in range(written)]
            writer.send_signal(signal.SIGKILL)
        names = [json.loads(line)["name"] for line in file.read_text().split("\n")]
        assert names[: len(done)] == [str(n) for n in done]
        created = asyncio.run(
            GraphFile(file).change("create_entities", [{"name": "after", "entityType": "x", "observations": []}])
        )
        assert len(created) == 1


def test_what_cannot_be_read_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that two processes of the reference server have mixed up still work."""
    file = tmp_path / "memory.jsonl"
    alice = '{"type":"entity","name":"Alice","entityType":"person","observations":["tea"],"since":2024}'
    bob = '{"type":"entity","name":"Bob","entityType":"person","observations":[]}'
    odd = ['{"type":"entity","name":"Ca', '{"type":"entity","name":7}', '{"type":"comment"}', "[" * 100_000]
    file.write_bytes("\r\n".join([alice + bob, *odd]).encode() + b'\n{"bad":"\xff"')
    file.chmod(0o644)

    async def test() -> None:
        async with ours(file) as client:
            graph = await data(client, "read_graph")
            assert [entity["name"] for entity in graph["entities"]] == ["Alice", "Bob"]
            await data(client, "delete_entities", entityNames=["nobody"])
            assert file.read_bytes().startswith((alice + bob).encode())
            await data(client, "delete_entities", entityNames=["Bob"])

    run(test)
    assert file.read_bytes() == "\n".join([alice, *odd]).encode() + b'\n{"bad":"\xff"'
    assert file.stat().st_mode & 0o777 == 0o644
    assert "line 2: neither an entity nor a relation" in caplog.text
    assert caplog.text.count("neither an entity nor a relation") == len(odd) + 1


def test_a_file_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"SQLite format 3\0")
    entity = {"name": "Alice", "entityType": "x", "observations": []}

    async def test() -> None:
        for name, reason in (
            ("none/memory.jsonl", "cannot be locked"),
            ("store.db", "is an SQLite database"),
            (".", "Is a directory"),
        ):
            async with ours(tmp_path / name) as client:
                assert reason in await error(client, "create_entities", entities=[entity])

    run(test)
