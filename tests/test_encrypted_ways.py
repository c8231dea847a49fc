"""Every way in takes a key: dialects, agents, the command line, hooks, MCP and the server; none writes plain text."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import mnemic
from agent_script import Script
from layered import KEY
from mnemic.agents import Agent
from mnemic.dialects import enhanced, fence, marsys, opper, tframex, tframex_stores
from server_process import served
from test_cli import COMMANDS
from test_encrypted_bytes import found_in

SECRET = "The teapot is velvet"


def ways_in(folder: Path, url: str) -> dict[str, Callable[[], object]]:
    """Return what stores SECRET through each dialect, agent and process, encrypted."""

    def agent() -> None:
        encrypted: mnemic.OpenOptions = {"encryption_key": KEY}
        with Agent("Bot", "Help.", model=Script("Noted."), memory=url, memory_options=encrypted) as bot:
            bot.run_sync(SECRET)

    def managed() -> None:
        manager = marsys.MemoryManager("persistent", store=url, encryption_key=KEY)
        manager.get_memory("Analyzer").add_message(marsys.Message("user", SECRET))

    async def entries() -> None:
        memory = opper.UrlMemory(url, encryption_key=KEY)
        await memory.write("place", SECRET)
        await memory.close()

    async def history(store: Any) -> None:
        await store.add_message(tframex_stores.Message(role="user", content=SECRET))
        await store.close()

    key_file = folder / "key"
    key_file.write_bytes(b64encode(KEY))
    command = [sys.executable, "-m", "mnemic"]
    options = ["--store", url, "--key-file", str(key_file)]
    environment = {**os.environ, "MEMORY_KEY": b64encode(KEY).decode(), "HOME": str(folder)}

    def ran(*arguments: str, given: str = "") -> None:
        subprocess.run(
            [*command, *arguments], input=given, env=environment, cwd=folder, text=True, check=True, capture_output=True
        )

    def hook() -> None:
        transcript = folder.parent / "transcript.jsonl"
        message = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": SECRET}}
        transcript.write_text(json.dumps({**message, "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z"}) + "\n")
        asked = {"session_id": "s", "transcript_path": str(transcript), "cwd": str(folder), "hook_event_name": "Stop"}
        ran("hook", "Stop", *options, given=json.dumps(asked))

    def mcp() -> None:
        call = {"name": "remember", "arguments": {"text": SECRET}}
        first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        lines: list[dict[str, Any]] = [
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": first},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        ]
        with subprocess.Popen(
            [*command, "mcp", *options, "--scope", "acme"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            for line in lines:
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
                if "id" in line:
                    answer = json.loads(process.stdout.readline())
            assert not answer["result"].get("isError"), answer
            process.stdin.close()

    def serve() -> None:
        with served(url, "--key-env", "MEMORY_KEY", environment={"MEMORY_KEY": environment["MEMORY_KEY"]}) as server:
            assert server.ask("PUT", "/api/v1/notes/plan?scope=acme", {"value": SECRET})[0] in (200, 201)

    path = url.removeprefix("sqlite:///")
    return {
        "enhanced": lambda: enhanced.EnhancedAgentMemory(persistent=True, path=path, encryption_key=KEY).add_message(
            "user", SECRET
        ),
        "enhanced store": lambda: enhanced.SqliteStore(path, encryption_key=KEY).add("k", SECRET),
        "fence": lambda: fence.SQLiteMemory(path, "s", encryption_key=KEY).add_message("user", SECRET),
        "marsys": managed,
        "opper": lambda: asyncio.run(entries()),
        "tframex": lambda: asyncio.run(history(tframex.EncryptedMemoryStore(KEY, url))),
        "tframex store": lambda: asyncio.run(history(tframex_stores.UrlMemoryStore(url, encryption_key=KEY))),
        "agent": agent,
        "command line": lambda: ran("remember", "acme", SECRET, *options),
        "hook": hook,
        "mcp": mcp,
        "server": serve,
    }


WAYS = [
    "enhanced", "enhanced store", "fence", "marsys", "opper", "tframex", "tframex store", "agent", "command line",
    "hook", "mcp", "server",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_takes_a_key(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    ways = ways_in(folder, f"sqlite:///{folder}/memory.db")
    assert list(ways) == WAYS
    ways[way]()
    files = [path for path in folder.iterdir() if path.name.startswith("memory.db")]
    assert files
    assert [path.name for path in files if found_in(path.read_bytes())] == []
    with mnemic.open(f"sqlite:///{folder}/memory.db", encryption_key=KEY) as memory:
        memory.export_to(tmp_path / "all.jsonl")
    assert SECRET in (tmp_path / "all.jsonl").read_text()


def test_every_command_that_opens_a_store_takes_its_key_from_a_file_or_a_variable() -> None:
    keyless = []
    for name, command in COMMANDS.items():
        options = {flag for option in command.get_params(click.Context(command)) for flag in option.opts}
        assert not options & {"--encryption-key", "--password"}, name
        if "--store" in options and not {"--key-file", "--key-env", "--key-store"} <= options:
            keyless.append(name)
    assert keyless == []
