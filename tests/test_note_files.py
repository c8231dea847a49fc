"""Notes as files: every command answers as Anthropic's own memory tool does, and no path leads outside."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

import mnemic
from mnemic.features.note_files import AsyncNoteFiles

Command = dict[str, Any]


def oracle(folder: Path, commands: Iterator[Command]) -> Iterator[tuple[Command, str]]:
    """Yield each command with the answer or error of Anthropic's tool."""
    tool = BetaLocalFilesystemMemoryTool(str(folder))
    for command in commands:
        try:
            yield command, str(tool.call(command))
        except ToolError as error:
            yield command, f"error: {error}"


async def answer(files: AsyncNoteFiles, command: Command) -> str:
    try:
        return await files.run(command)
    except mnemic.MnemicError as error:
        return f"error: {error}"


def without_folder_sizes(text: str) -> str:
    """Leave out what a folder occupies, which depends on the file system."""
    return re.sub(r"(?<=items:\n)\S+\t|^\S+\t(?=/memories/.*/$)", "", text, flags=re.M)


def check(folder: Path, commands: Iterator[Command]) -> None:
    async def compare() -> None:
        async with mnemic.open_async("memory://") as memory:
            files = AsyncNoteFiles(memory.scope("acme").notes)
            for command, expected in oracle(folder, commands):
                got = await answer(files, command)
                assert without_folder_sizes(got) == without_folder_sizes(expected), command

    asyncio.run(compare())


def script() -> Iterator[Command]:
    def on(command: str, path: str, **more: Any) -> Command:
        return {"command": command, "path": path, **more}

    yield on("view", "/memories")
    yield on("create", "/memories/a.md", file_text="one\ntwo\nthree\nfour\nfive\nsix\n")
    yield on("create", "/memories/a.md", file_text="again")
    yield on("create", "/memories/d/e/deep.md", file_text="é" * 700)
    yield on("create", "/memories/d/.hidden", file_text="x")
    yield on("create", "/memories/d/e/f/deeper.md", file_text="x" * 2048)
    yield on("create", "/memories/d.md", file_text="")
    yield on("view", "/memories")
    yield on("view", "/memories/d")
    yield on("view", "/memories/a.md")
    yield on("view", "/memories/a.md", view_range=[2, 3])
    yield on("view", "/memories/a.md", view_range=[5, -1])
    yield on("view", "/memories/a.md", view_range=[0, 1])
    yield on("view", "/memories/a.md", view_range=[9, 12])
    yield on("view", "/memories/none.md")
    yield on("str_replace", "/memories/a.md", old_str="three\n", new_str="3\nIII\n")
    yield on("str_replace", "/memories/a.md", old_str="one", new_str="1")
    yield on("str_replace", "/memories/a.md", old_str="I", new_str="")
    yield on("str_replace", "/memories/a.md", old_str="absent", new_str="")
    yield on("str_replace", "/memories/none.md", old_str="a", new_str="")
    yield on("str_replace", "/memories/d", old_str="a", new_str="")
    yield on("insert", "/memories/a.md", insert_line=0, insert_text="zero\n")
    yield on("insert", "/memories/a.md", insert_line=3, insert_text="between\nlines")
    yield on("insert", "/memories/a.md", insert_line=99, insert_text="x")
    yield on("insert", "/memories/d.md", insert_line=0, insert_text="first")
    yield on("insert", "/memories/none.md", insert_line=0, insert_text="first")
    yield on("view", "/memories/a.md")
    yield {"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/d.md"}
    yield {"command": "rename", "old_path": "/memories/none.md", "new_path": "/memories/x.md"}
    yield {"command": "rename", "old_path": "/memories", "new_path": "/memories/x"}
    yield {"command": "rename", "old_path": "/memories/a.md", "new_path": "/memories/new/b.md"}
    yield {"command": "rename", "old_path": "/memories/d", "new_path": "/memories/moved"}
    yield on("view", "/memories")
    yield on("view", "/memories/moved/e")
    yield on("delete", "/memories/none")
    yield on("delete", "/memories")
    yield on("delete", "/memories/moved")
    yield on("delete", "/memories/new/b.md")
    yield on("view", "/etc/passwd")
    yield on("view", "/memories/../../etc/passwd")
    yield on("create", "/memories/../outside.md", file_text="x")


def test_a_script_of_commands_is_answered_as_by_anthropic(tmp_path: Path) -> None:
    check(tmp_path, script())


def test_random_commands_are_answered_as_by_anthropic(tmp_path: Path) -> None:
    chance = random.Random(7)
    paths = ["/memories/a.md", "/memories/b.md", "/memories/c.txt"]

    def commands() -> Iterator[Command]:
        for _ in range(300):
            path = chance.choice(paths)
            text = "".join(chance.choice("ab\n") for _ in range(chance.randrange(6)))
            line = chance.randrange(-1, 6)
            yield from (
                [{"command": "create", "path": path, "file_text": text}],
                [{"command": "str_replace", "path": path, "old_str": text or "a", "new_str": "a\nb"}],
                [{"command": "insert", "path": path, "insert_line": line, "insert_text": text}],
                [{"command": "rename", "old_path": path, "new_path": chance.choice(paths)}],
                [{"command": "delete", "path": path}],
                [{"command": "view", "path": path, "view_range": [max(1, line), chance.choice([-1, 2, 4])]}],
                [{"command": "view", "path": "/memories"}],
            )[chance.randrange(7)]

    check(tmp_path, commands())


@pytest.mark.parametrize(
    "path",
    [
        "/memoriesx/a",
        "memories/a",
        "/memories/../a",
        "/memories/..",
        "/memories/a/../../b",
        "/memories/%2e%2e/a",
        "/memories/%2E%2E%2Fa",
        "/memories/..\\..\\a",
        "/memories/a\0b",
        "/memories/" + "x" * 600,
        "/memories/a\nb",
        "",
        "/",
        5,
    ],
)
def test_a_hostile_path_is_refused(path: Any) -> None:
    async def test() -> None:
        async with mnemic.open_async("memory://") as memory:
            files = AsyncNoteFiles(memory.scope("acme").notes)
            with pytest.raises(mnemic.InvalidValueError):
                await files.run({"command": "create", "path": path, "file_text": "x"})
            assert await memory.scope("acme").notes.list() == []

    asyncio.run(test())


def test_a_bad_command_says_what_is_missing() -> None:
    async def test() -> None:
        async with mnemic.open_async("memory://") as memory:
            files = AsyncNoteFiles(memory.scope("acme").notes)
            assert await answer(files, {"command": "chmod"}) == (
                "error: command must be one of view, create, str_replace, insert, delete, rename: 'chmod'"
            )
            assert await answer(files, {"command": "create", "path": "/memories/a"}) == (
                "error: the command create needs file_text"
            )
            await files.run({"command": "create", "path": "/memories/a", "file_text": "x"})
            for path in ("/memories/a/b", "/memories/a/b/c"):
                got = await answer(files, {"command": "create", "path": path, "file_text": "x"})
                assert got == "error: The path /memories/a is not a directory"
            at = {"command": "insert", "path": "/memories/a", "insert_line": "abc", "insert_text": "y"}
            assert await answer(files, at) == "error: insert_line must be an integer: 'abc'"
            replaced = {"command": "str_replace", "path": "/memories/a", "old_str": 5}
            assert await answer(files, replaced) == "error: old_str must be a string, not int: 5"
            viewed = {"command": "view", "path": "/memories/a", "view_range": 5}
            assert await answer(files, viewed) == "error: view_range must be two line numbers: 5"
            moved = {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/a/b"}
            assert await answer(files, moved) == "error: The path /memories/a is not a directory"

    asyncio.run(test())


def test_edits_at_once_are_all_made(tmp_path: Path) -> None:
    async def test() -> None:
        async with mnemic.open_async(f"sqlite:///{tmp_path / 'agent.db'}") as memory:
            notes = memory.scope("acme").notes
            await AsyncNoteFiles(notes).create("/memories/log", "")
            edits = [AsyncNoteFiles(notes).insert("/memories/log", 0, f"line {n}") for n in range(10)]
            await asyncio.gather(*edits)
            text = await notes.read("/memories/log")
            assert sorted(text.split()) == sorted(["line", *map(str, range(10))] + ["line"] * 9)

    asyncio.run(test())
