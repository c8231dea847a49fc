"""What the agents of dialects share: one of `mnemic.agents`, over a session or a memory of one's own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import mnemic

from ..agents.agent import Agent
from ..agents.conversion import from_pydantic_ai, to_pydantic_ai
from ..agents.prompts import Budget

MODEL = "MNEMIC_MODEL"
"""The environment variable that names the model of agents that were given none."""

History = Callable[[], Awaitable[list[mnemic.Message]]]
Keep = Callable[[mnemic.Message], Awaitable[object]]


class Talker:
    """An agent that answers: with one of our sessions, or with what `history` and `keep` lead to."""

    default_model: Any = None
    """The model of agents that were given none, before that of the environment."""

    def __init__(
        self,
        name: str,
        instructions: str | None,
        model: Any,
        tools: Sequence[Any] = (),
        *,
        session: Any = None,
        history: History | None = None,
        keep: Keep | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ) -> None:
        self._history, self._keep = history, keep
        # These frameworks show an agent its conversation, and nothing else.
        budget = Budget(max_tokens=max_tokens or 1_000_000, share=0.0, recall=0, notes=False)
        self.agent = Agent(
            name,
            instructions,
            tools,
            model=model or Talker.default_model or os.environ.get(MODEL),
            session="main" if session is None else session,
            budget=budget,
            memory_tools=False,
            **options,
        )

    async def say(self, prompt: str) -> Any:
        if self._history is None or self._keep is None:
            return (await self.agent.run(prompt)).output
        before = await self._history()
        await self._keep(mnemic.Message("user", prompt))
        done = await self.agent.run(prompt, message_history=to_pydantic_ai(before))
        for message in from_pydantic_ai(done.new_messages()):
            if message.role not in ("user", "system"):
                await self._keep(message)
        return done.output
