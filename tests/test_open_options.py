"""Options of `mnemic.open` through every dialect and agent: one line turns encryption or redaction on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from pydantic_ai.models.test import TestModel

import mnemic
from mnemic import agents
from mnemic.dialects import enhanced, fence, marsys, opper, tframex

KEY = bytes(range(32))
WORD = "peanuts@example.com"
OPTIONS: dict[str, mnemic.OpenOptions] = {"encryption": {"encryption_key": KEY}, "redaction": {"redact": True}}
Use: TypeAlias = Callable[[str, Path, mnemic.OpenOptions], None]


def _fence(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    fence.SQLiteMemory(path, "monday", **options).add_message("user", WORD)


def _opper(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    async def run() -> None:
        memory = opper.UrlMemory(url, **options)
        await memory.write("food", WORD)
        await memory.close()

    asyncio.run(run())


def _marsys(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    memory = marsys.MemoryManager("persistent", store=url, **options).get_memory("a")
    memory.messages.append(marsys.Message(role="user", content=WORD))


def _enhanced(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    enhanced.EnhancedAgentMemory(persistent=True, path=path, **options).add_experience(WORD)


def _tframex(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    async def run() -> None:
        store = tframex.UrlMemoryStore(url, **options)
        await store.add_message(tframex.Message(role="user", content=WORD))
        await store.close()

    asyncio.run(run())


def _agent(url: str, path: Path, options: mnemic.OpenOptions) -> None:
    async def run() -> None:
        model = TestModel(call_tools=[], custom_output_text="Noted.")
        async with agents.Agent("a", model=model, memory=url, memory_options=options) as agent:
            await agent.run(WORD)

    asyncio.run(run())


@pytest.mark.parametrize("use", [_fence, _opper, _marsys, _enhanced, _tframex, _agent])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_reach_the_store(use: Use, options: mnemic.OpenOptions, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    use(f"sqlite:///{path}", path, options)
    with mnemic.open(f"sqlite:///{path}", **options) as memory:
        assert memory.stats().messages + memory.stats().memories + memory.stats().notes
    assert WORD.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("memory.db*"))


def test_an_open_memory_takes_no_options() -> None:
    with mnemic.open("memory://") as memory, pytest.raises(mnemic.InvalidValueError, match="is open already"):
        agents.MemoryAccess(memory, "a", {"encryption_key": KEY})


def test_the_same_options_share_one_memory(tmp_path: Path) -> None:
    from mnemic.dialects.opening import shared

    url = f"sqlite:///{tmp_path / 'm.db'}"
    assert shared(url, encryption_key=[KEY]) is shared(url, encryption_key=[bytes(KEY)])
