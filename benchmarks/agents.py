"""What memory costs an agent's turn, beside the model's own time, against a recall and an append.

The model does nothing, so that the same agent without memory measures what pydantic-ai itself takes, which
is taken off. 10,000 messages of three sentences are stored, in 20 sessions of one user, one of which the
agent is in; it is shown what fits the default budget of it, about 60 messages. What pydantic-ai takes for a
history of that length, which an agent without memory has none of, counts as the memory's.
"""

from __future__ import annotations

import gc
import statistics
from pathlib import Path

import pydantic_ai
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import mnemic
from mnemic.agents import Agent

from .measuring import Result, Work, per_call, time_ratio
from .recalling import Texts

MESSAGES = 10_000
SESSIONS = 20
ROUNDS = 15
CALLS = 10
MOST_MS = 8.0


async def no_work(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer at once."""
    return ModelResponse([TextPart("Noted.")], usage=RequestUsage(input_tokens=1))


def run(folder: Path) -> list[Result]:
    """Return what was measured."""
    with mnemic.open(f"sqlite:///{folder / 'agents.db'}") as memory:
        space = memory.scope("acme", "alice")
        said = _texts(MESSAGES)
        each = MESSAGES // SESSIONS
        for n in range(SESSIONS):
            some = said[n * each : (n + 1) * each]
            messages = [mnemic.Message(("user", "assistant")[m % 2], text) for m, text in enumerate(some)]
            space.session(f"s{n}").add_many(messages)
        space.notes.write("plan", ["one", "two"], description="What to do next")
        space.recall("warm up")
        bare = pydantic_ai.Agent(FunctionModel(no_work), instructions="Help.")
        chat = space.session("beside")
        asked = iter(Texts(7).some(3 * ROUNDS * (CALLS + 2)))

        def recall_and_append() -> None:
            query = next(asked)
            space.recall(query, 8)
            chat.add("user", query)

        with Agent("Bot", "Help.", model=FunctionModel(no_work), memory=space, session="s0") as agent:
            turns, bares, both = _in_turns(
                lambda: agent.run_sync(next(asked)), lambda: agent.drive(bare.run("Hello")), recall_and_append
            )
    ours = turns - bares
    reached = f"{ours * 1000:.1f} ms ({turns * 1000:.1f} with, {bares * 1000:.1f} without)"
    return [
        Result(
            f"an agent's turn among {MESSAGES:,} messages, less the same without memory, p50",
            f"at most {MOST_MS:g} ms",
            reached,
            ours * 1000 <= MOST_MS,
        ),
        time_ratio("the same, against a recall and an append", 3, ours, both),
    ]


def _texts(count: int, seed: int = 0) -> list[str]:
    sentences = Texts(seed).some(3 * count)
    return [". ".join(sentences[n : n + 3]) for n in range(0, 3 * count, 3)]


def _in_turns(*works: Work) -> list[float]:
    """Return the median seconds of single calls of several things, measured in turns."""
    for work in works:
        per_call(work, 2)
    gc.collect()
    gc.disable()
    times: list[list[float]] = [[] for _ in works]
    try:
        for _ in range(ROUNDS):
            for work, taken in zip(works, times, strict=True):
                taken += [per_call(work, 1) for _ in range(CALLS)]
    finally:
        gc.enable()
    return [statistics.median(taken) for taken in times]
