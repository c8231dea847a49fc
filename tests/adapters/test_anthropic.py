"""The memory tool of the Anthropic SDK over notes, beside its own tool over files."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaAsyncLocalFilesystemMemoryTool, BetaLocalFilesystemMemoryTool
from anthropic.types.beta import BetaMemoryTool20250818ViewCommand
from hypothesis import given
from hypothesis import strategies as st

import mnemic
from mnemic.adapters.anthropic import MnemicAsyncMemoryTool, MnemicMemoryTool

FILES = [
    "/memories/a.md",
    "/memories/b",
    "/memories/d/c.md",
    "/memories/d/e/f/g.md",
    "/memories/.hidden",
    "/memories/é",
]
FOLDERS = ["/memories", "/memories/d", "/memories/d/e"]
PATHS = st.sampled_from([*FILES, *FOLDERS, "/memories/../x", "/etc/passwd", "memories/a", "/memories/none"])
TEXTS = st.text("ab\né\r", max_size=6)
LINES = st.integers(-1, 5)
COMMANDS = st.one_of(
    st.fixed_dictionaries({"command": st.just("create"), "path": st.sampled_from(FILES), "file_text": TEXTS}),
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": PATHS},
        optional={"view_range": st.tuples(LINES, st.just(-1) | st.integers(1, 5)).map(list)},
    ),
    st.fixed_dictionaries(
        {"command": st.just("str_replace"), "path": PATHS, "old_str": TEXTS.filter(bool), "new_str": TEXTS}
    ),
    st.fixed_dictionaries({"command": st.just("insert"), "path": PATHS, "insert_line": LINES, "insert_text": TEXTS}),
    st.fixed_dictionaries({"command": st.just("delete"), "path": PATHS}),
    st.fixed_dictionaries(
        {"command": st.just("rename"), "old_path": PATHS, "new_path": st.sampled_from([*FILES, *FOLDERS])}
    ).filter(
        lambda given: given["new_path"] != given["old_path"] and not given["new_path"].startswith(given["old_path"])
    ),
)


def without_folder_sizes(text: str) -> str:
    """Leave out the size of a folder, which depends on the file system."""
    return re.sub(r"(?<=items:\n)\S+\t|^\S+\t(?=/memories/.*/$)", "", text, flags=re.M)


def without_empty_folders(root: Path) -> None:
    for folder in sorted(root.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def answers(tool: Any, commands: list[Any], root: Path | None = None) -> Iterator[str]:
    """Yield what a tool, sync or async, answers to commands."""
    for command in commands:
        try:
            found = tool.call(command)
            answer = asyncio.run(found) if asyncio.iscoroutine(found) else found
        except ToolError as error:
            answer = f"error: {error}"
        if root is not None:
            without_empty_folders(root)
        yield without_folder_sizes(str(answer))


@given(st.lists(COMMANDS, max_size=15), st.booleans())
def test_it_answers_as_the_tool_over_files(commands: list[Any], sync: bool) -> None:
    """Except that a folder exists only while there is a file in it."""
    with TemporaryDirectory() as folder:
        theirs: Any = (BetaLocalFilesystemMemoryTool if sync else BetaAsyncLocalFilesystemMemoryTool)(folder)
        ours: Any = (MnemicMemoryTool if sync else MnemicAsyncMemoryTool)()
        root = Path(folder) / "memories"
        assert list(answers(ours, commands)) == list(answers(theirs, commands, root))
        cleared = [theirs.clear_all_memory(), ours.clear_all_memory()]
        assert [asyncio.run(one) if asyncio.iscoroutine(one) else one for one in cleared] == ["All memory cleared"] * 2
        look = [{"command": "view", "path": "/memories"}]
        assert list(answers(ours, look)) == list(answers(theirs, look, root))


@pytest.mark.parametrize(
    "path",
    ["/memories/../../etc/passwd", "/memories/%2e%2e/a", "/memories/..\\a", "/memoriesx/a", "", "/", "a\0", 5, None],
)
def test_no_path_leads_outside(path: Any) -> None:
    for command in ("view", "create", "delete"):
        with pytest.raises(ToolError):
            MnemicMemoryTool().call({"command": command, "path": path, "file_text": "x"})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"command": "chmod"}, "command must be one of view, create"),
        ({"command": "create", "path": "/memories/a"}, "needs file_text"),
        ({}, "a command is an object"),
        ("view", "a command is an object"),
        (None, "a command is an object"),
        ({"command": "create", "path": "/memories/a", "file_text": "\0"}, "NUL"),
        ({"command": "view", "path": "/memories/a", "view_range": [1]}, "view_range must be two line numbers"),
    ],
)
def test_the_model_is_told_what_is_wrong(command: Any, said: str) -> None:
    tool = MnemicMemoryTool()
    tool.call({"command": "create", "path": "/memories/a", "file_text": "x"}) if "view_range" in str(command) else None
    with pytest.raises(ToolError, match=said):
        tool.call(command)


def test_numbers_that_the_model_writes_as_text_are_numbers() -> None:
    commands = [
        {"command": "create", "path": "/memories/a", "file_text": "one\nthree\n"},
        {"command": "insert", "path": "/memories/a", "insert_line": "1", "insert_text": "two"},
        {"command": "view", "path": "/memories/a", "view_range": ["2", 3.0]},
    ]
    with TemporaryDirectory() as folder:
        theirs = list(answers(BetaLocalFilesystemMemoryTool(folder), commands))
    assert list(answers(MnemicMemoryTool(), commands)) == list(answers(MnemicAsyncMemoryTool(), commands)) == theirs


def test_it_takes_the_objects_of_the_sdk() -> None:
    tool = MnemicMemoryTool(cache_control={"type": "ephemeral"})
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}}
    look = BetaMemoryTool20250818ViewCommand(command="view", path="/memories")
    assert tool.view(look) == tool.execute(look) == tool.call(look.to_dict())


MEMORY = {"type": "memory_20250818", "name": "memory"}


class FakeModel:
    """Stands in for the API: it asks for the given commands, and then says what it was shown last."""

    def __init__(self, *commands: Any) -> None:
        self._commands = list(commands)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        assert asked.get("tools", [MEMORY]) == [MEMORY]
        if self._commands:
            content = {
                "type": "tool_use",
                "id": f"t{len(self._commands)}",
                "name": "memory",
                "input": self._commands.pop(0),
            }
        else:
            result = asked["messages"][-1]["content"][0]
            content = {"type": "text", "text": f"{result.get('is_error', False)}: {result['content']}"}
        stop = "tool_use" if content["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": asked["model"], "content": [content]}
        return httpx2.Response(200, json={**message, "stop_reason": stop, "stop_sequence": None, "usage": usage})


def ask(tool: MnemicMemoryTool, *commands: Any) -> str:
    with httpx2.Client(transport=httpx2.MockTransport(FakeModel(*commands))) as http:
        client = Anthropic(api_key="none", http_client=http)
        message = client.beta.messages.tool_runner(
            model="claude-sonnet-5-5", max_tokens=100, tools=[tool], messages=[{"role": "user", "content": "Go."}]
        ).until_done()
    return str(message.content[0].text)  # type: ignore[union-attr]


async def ask_async(tool: MnemicAsyncMemoryTool, *commands: Any) -> str:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(FakeModel(*commands))) as http:
        client = AsyncAnthropic(api_key="none", http_client=http)
        message = await client.beta.messages.tool_runner(
            model="claude-sonnet-5-5", max_tokens=100, tools=[tool], messages=[{"role": "user", "content": "Go."}]
        ).until_done()
    return str(message.content[0].text)  # type: ignore[union-attr]


PLAN = "/memories/plan.md"


def test_the_tool_runner_of_the_sdk_remembers(file_url: str) -> None:
    tool = MnemicMemoryTool(file_url)
    create = {"command": "create", "path": PLAN, "file_text": "Book the train to Oslo."}
    assert ask(tool, create) == f"False: File created successfully at: {PLAN}"
    tool.close()
    tool = MnemicMemoryTool(file_url)
    assert "Book the train to Oslo." in ask(tool, {"command": "view", "path": PLAN})
    assert ask(tool, create) == f"True: File {PLAN} already exists"
    edit = {"command": "str_replace", "path": PLAN, "old_str": "Oslo", "new_str": "Bergen"}
    assert "Bergen" in asyncio.run(ask_async(MnemicAsyncMemoryTool(file_url), edit, {"command": "view", "path": PLAN}))
    with mnemic.open(file_url) as memory:
        hit = memory.scope().recall("which train?", k=1)[0]
        assert (hit.kind, hit.text) == ("note", f"{PLAN}\nBook the train to Bergen.")
        assert memory.scope().notes.get(PLAN).source == "anthropic"


def test_another_process_and_an_async_memory_see_the_files(file_url: str) -> None:
    MnemicMemoryTool(file_url).call({"command": "create", "path": PLAN, "file_text": "tea"})
    look = f"MnemicMemoryTool({file_url!r}).call({{'command': 'view', 'path': '{PLAN}'}})"
    code = f"from mnemic.adapters.anthropic import *; print({look})"
    assert "tea" in subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    async def use() -> str:
        async with await mnemic.open_async(file_url) as memory:
            tool = MnemicAsyncMemoryTool(memory.scope())
            return await tool.call({"command": "view", "path": PLAN})

    assert "tea" in asyncio.run(use())


def test_edits_at_once_are_all_made(file_url: str) -> None:
    tools = [MnemicMemoryTool(file_url), MnemicMemoryTool(file_url)]
    tools[0].call({"command": "create", "path": PLAN, "file_text": ""})

    def insert(n: int) -> str:
        return tools[n % 2].call({"command": "insert", "path": PLAN, "insert_line": 0, "insert_text": f"line {n}"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(insert, range(20)))
    assert all(f"line {n}\n" in tools[0].call({"command": "view", "path": PLAN}) + "\n" for n in range(20))


def test_users_do_not_see_each_other(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        MnemicMemoryTool(memory.scope("alice")).call({"command": "create", "path": PLAN, "file_text": "secret"})
        with pytest.raises(ToolError, match="does not exist"):
            MnemicMemoryTool(memory.scope("bob")).call({"command": "view", "path": PLAN})
        assert memory.scope("bob").recall("secret") == []
        memory.scope("alice").notes.write("other", {"not": "a file"})
        MnemicMemoryTool(memory.scope("alice")).clear_all_memory()
        assert [note.key for note in memory.scope("alice").notes.list()] == ["other"]


def test_errors_of_the_store_are_not_for_the_model(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        tool = MnemicMemoryTool(memory)
    with pytest.raises(mnemic.ClosedError):
        tool.call({"command": "view", "path": "/memories"})
    with pytest.raises(mnemic.InvalidValueError):
        MnemicMemoryTool(5)  # type: ignore[arg-type]
