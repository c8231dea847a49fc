"""An agent's process that is killed in the middle of a run loses nothing that was acknowledged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart

import mnemic
from agent_script import Script
from mnemic.agents import INTERRUPTED, Agent
from mnemic.agents.conversion import known_outcome

RUN = textwrap.dedent("""
    import asyncio, itertools, sys
    import mnemic
    from mnemic.agents import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    url, pause = sys.argv[1], float(sys.argv[2])
    numbers = itertools.count(1)

    async def model(messages, info):
        # What the model is shown is stored: this is what acknowledges it.
        for part in messages[-1].parts:
            if part.part_kind == "tool-return":
                print("tool", part.content, flush=True)
        if messages[-1].parts[-1].part_kind == "tool-return":
            return ModelResponse([TextPart("Done.")])
        asked = messages[-1].parts[-1].content
        print("user", asked, flush=True)
        calls = [ToolCallPart("work", {"n": next(numbers)}, f"{asked}-{n}") for n in range(3)]
        return ModelResponse([TextPart("Let me see."), *calls])

    async def work(n: int) -> str:
        print("call", n, flush=True)
        await asyncio.sleep(pause * (n % 3))
        return f"worked {n}"

    agent = Agent("Bot", "Help.", tools=[work], model=FunctionModel(model), memory=url)
    for n in range(1000):
        answer = agent.run_sync(f"{sys.argv[3]}/{n}").output
        print("assistant", n, flush=True)
""")


def run_and_kill(url: str, name: str, *, lines: int, after: float) -> list[str]:
    """Start an agent, kill it a moment after it printed so many lines, and return what it printed."""
    command = [sys.executable, "-c", RUN, url, "0.01", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line.strip())
        if len(printed) >= lines:
            break
    time.sleep(after)
    os.kill(process.pid, signal.SIGKILL)
    rest, errors = process.communicate(timeout=240)
    assert len(printed) >= lines, errors
    return printed + rest.split("\n")[:-1]


def is_whole(history: list[ModelMessage]) -> None:
    """Fail unless every call has its answer right behind it, and every answer its call."""
    for n, message in enumerate(history):
        if isinstance(message, ModelResponse):
            calls = [call.tool_call_id for call in message.tool_calls]
            behind = history[n + 1] if n + 1 < len(history) else None
            answered = []
            if isinstance(behind, ModelRequest):
                answered = [p.tool_call_id for p in behind.parts if isinstance(p, ToolReturnPart)]
            assert sorted(calls) == sorted(answered)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_and_no_call_stands_without_a_result(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    printed = run_and_kill(url, f"run{seed}", lines=chance.randint(2, 25), after=chance.random() * 0.02)
    with mnemic.open(url) as memory:
        chat = memory.scope("Bot").session("main")
        stored = chat.messages()
        users = [m.content for m in stored if m.role == "user"]
        tools = [m.content for m in stored if m.role == "tool"]
        answers = sum(m.role == "assistant" and m.content == "Done." for m in stored)
        for kind, _, said in (line.partition(" ") for line in printed):
            if kind == "user":
                assert said in users
            elif kind == "tool":
                assert said in tools
            elif kind == "assistant":
                assert answers > int(said)
            elif kind == "call":
                assert any(json.loads(c.arguments)["n"] == int(said) for m in stored for c in m.tool_calls)
        script = Script("Welcome back.")
        with Agent("Bot", model=script, memory=memory.scope("Bot")) as agent:
            assert agent.run_sync("Are you there?").output == "Welcome back."
        is_whole(script.seen[-1])
        # What the log holds is what happened: only the prompt says that a call was interrupted.
        assert not any(m.metadata.get("interrupted") for m in chat.messages())


def test_a_call_that_was_killed_is_shown_as_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    program = RUN.replace("await asyncio.sleep(pause * (n % 3))", "await asyncio.sleep(n if n > 1 else 0)")
    process = subprocess.Popen([sys.executable, "-c", program, url, "60", "x"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("call 3"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait(240)
    process.stdout.close()
    with mnemic.open(url) as memory:
        script = Script("I see.", "Yes.")
        with Agent("Bot", model=script, memory=memory.scope("Bot")) as agent:
            agent.run_sync("What happened?")
            returns = [p for m in script.seen[-1] for p in m.parts if isinstance(p, ToolReturnPart)]
            assert [(p.content, p.outcome) for p in returns] == [(INTERRUPTED, known_outcome("interrupted"))] * 3
            agent.run_sync("And now?")
            is_whole(script.seen[-1])
