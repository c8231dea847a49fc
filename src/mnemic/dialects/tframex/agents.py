"""TFrameX's agent and app: a registry of agents by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import mnemic

from ...checks import check_name, shown
from ..prompting import PromptAgent
from .stores import BaseMemoryStore, InMemoryMemoryStore, from_core

_unregistered: dict[str, LLMAgent] = {}
"""Agents that belong to no app, by name; every app finds them."""
_apps: WeakSet[TFrameXApp] = WeakSet()
_running: ContextVar[TFrameXApp | None] = ContextVar("running", default=None)


class LLMAgent:
    """An agent that remembers its conversation in any store.

    Every app finds it by its name until one registers it.
    """

    def __init__(
        self,
        name: str,
        llm: Any = None,
        memory_store: BaseMemoryStore | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Any] = (),
        max_context_tokens: int = 4000,
    ) -> None:
        self.name: str = check_name(name, "agent name")
        self.memory_store: InMemoryMemoryStore | BaseMemoryStore = (
            InMemoryMemoryStore() if memory_store is None else memory_store
        )
        self.max_context_tokens = max_context_tokens
        self._agent = PromptAgent(name, system_prompt, llm, tools, history=self._history, keep=self._keep)
        _unregistered[name] = self

    async def ask(self, message: str) -> Any:
        return await self._agent.say(message)

    async def _history(self) -> list[mnemic.Message]:
        return [*await self.memory_store.get_context_window(self.max_context_tokens)]

    async def _keep(self, message: mnemic.Message) -> None:
        await self.memory_store.add_message(from_core(message))


class TFrameXApp:
    """Agents by name: those registered here, and those registered nowhere."""

    def __init__(self) -> None:
        self._agents: dict[str, LLMAgent] = {}
        _apps.add(self)

    @property
    def agents(self) -> dict[str, LLMAgent]:
        """Agents that this app finds, by name."""
        return {**_unregistered, **self._agents}

    def register_agent(self, agent: LLMAgent) -> LLMAgent:
        """Register an agent with this app, replacing one of the same name; the app keeps it alive."""
        self._agents[agent.name] = agent
        if _unregistered.get(agent.name) is agent:
            del _unregistered[agent.name]
        return agent

    @asynccontextmanager
    async def run_context(self) -> AsyncIterator[TFrameXApp]:
        yield self

    async def call_agent(self, name: str, message: str) -> Any:
        """Call an agent, and return its answer; raises NotFoundError."""
        token = _running.set(self)
        try:
            return await self._find(name).ask(message)
        finally:
            _running.reset(token)

    def _find(self, name: str) -> LLMAgent:
        found = self.agents
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise mnemic.NotFoundError(f"there is no agent {shown(name)} in this app; there are: {known}")
        return found[name]


def find_agent(name: str) -> LLMAgent:
    """Return an agent by name from the current app, or else from any; raises NotFoundError.

    Raises InvalidValueError if no app is current and several have different agents of that name.
    """
    if (running := _running.get()) is not None:
        return running._find(name)
    if name in _unregistered:
        return _unregistered[name]
    found = [agent for app in list(_apps) if (agent := app._agents.get(name)) is not None]
    if not found:
        raise mnemic.NotFoundError(f"there is no agent {shown(name)}")
    if len(found) > 1:
        raise mnemic.InvalidValueError(f"{len(found)} apps have an agent {shown(name)}: ask it through one of them")
    return found[0]
