"""Shared by the dialects' agents: answering with a session, with a custom memory, or without memory."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pydantic_ai

import mnemic

from ..agents.agent import Agent, model_of
from ..agents.conversion import from_pydantic_ai, to_pydantic_ai
from ..agents.run_memory import Budget
from ..checks import check_count
from ..event_loop import Portal

MODEL = "MNEMIC_MODEL"
"""Environment variable with the model of agents that have none."""
WINDOW = 16_000
"""Default limit of the conversation in the prompt, in tokens."""

History = Callable[[], Awaitable[list[mnemic.Message]]]
Keep = Callable[[mnemic.Message], Awaitable[object]]


class PromptAgent:
    """An agent that answers prompts.

    With a `session`, or its name, the prompt contains up to `max_tokens` of that conversation, and the turn is
    added to it. Otherwise it contains what `history` returns, and each new message is passed to `keep`; without
    these, calls share nothing.
    """

    default_model: Any = None
    """Model of agents that have none; precedes the environment variable."""

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
        toolsets: Sequence[Any] = (),
    ) -> None:
        """Raise InvalidValueError for an invalid name or model, or a window below 1."""
        self.max_tokens: int = WINDOW if max_tokens is None else check_count(max_tokens, "max_tokens", least=1)
        self._history, self._keep = history, keep
        self._portal: Portal | None = None
        given = (model, PromptAgent.default_model, os.environ.get(MODEL) or None)
        chosen = next((one for one in given if one is not None), None)
        self._name, self._has_model = name, chosen is not None
        self._with_session: Agent | None = None
        if session is not None:
            # These frameworks put only the conversation into the prompt.
            budget = Budget(max_tokens=self.max_tokens, share=0.0, recall=0, notes=False)
            self._with_session = Agent(
                name,
                instructions,
                tools,
                model=chosen,
                session=session,
                budget=budget,
                memory_tools=False,
                toolsets=toolsets,
            )
            return
        self._plain: pydantic_ai.Agent[Any, Any] = pydantic_ai.Agent(
            None if chosen is None else model_of(chosen),
            name=name,
            instructions=instructions,
            tools=tools,
            toolsets=toolsets,
        )

    async def say(self, prompt: str) -> Any:
        """Answer a prompt; raises InvalidValueError without a model, and the model's errors."""
        if not self._has_model:
            raise mnemic.InvalidValueError(f"agent {self._name!r} has no model: give it one, or name one in {MODEL}")
        if self._with_session is not None:
            return (await self._with_session.run(prompt)).output
        before = [] if self._history is None else await self._history()
        if self._keep is not None:
            await self._keep(mnemic.Message("user", prompt))
        done = await self._plain.run(prompt, message_history=to_pydantic_ai(before))
        if self._keep is not None:
            for message in from_pydantic_ai(done.new_messages()):
                if message.role not in ("user", "system"):
                    await self._keep(message)
        return done.output

    def drive(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the agent's own event loop, in any context."""
        portal = self._portal = self._portal or Portal()
        return portal.run(work)
