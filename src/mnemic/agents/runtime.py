"""A team of agents that call one another by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any

import pydantic_ai
from pydantic_ai import RunContext
from pydantic_ai.messages import UserContent
from pydantic_ai.toolsets import FunctionToolset

from ..checks import check_count, shown
from ..errors import InvalidValueError, NotFoundError
from ..event_loop import Portal, off_loop
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, AnySession, MemoryAccess
from ..messages import AgentCall, ToolCall
from .agent import Agent, AnyModel, model_of
from .conversion import text_of
from .run_memory import CallContext
from .tools import refuse

CALL_AGENT = "call_agent"
"""Name of the tool with which an agent calls another."""


class Runtime:
    """A registry of agents that can call each other with a tool.

    Calls are stored as AgentCalls. Agents without their own memory share `memory` and `session` and see each
    other's messages; with `private`, each has its own scope in it. Agents without a model use the runtime's.
    `max_depth` limits nested calls.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        memory: AnyMemory = OWN,
        session: AnySession = "main",
        model: AnyModel | None = None,
        private: bool = False,
        max_depth: int = 5,
        name: str = "team",
        memory_options: OpenOptions | None = None,
    ) -> None:
        """Raise InvalidValueError for an invalid memory, or two agents of one name."""
        self.session = session
        self.memory: MemoryAccess = MemoryAccess(memory, name, memory_options)
        self._model = None if model is None else model_of(model)
        self._private = private
        self._max_depth = check_count(max_depth, "max_depth", least=1)
        self._agents: dict[str, Agent] = {}
        self._portal: Portal | None = None
        for agent in agents:
            self.add(agent)

    def __repr__(self) -> str:
        return f"<Runtime of {', '.join(self._agents) or 'no agents'}>"

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents, by name."""
        return dict(self._agents)

    def agent(
        self,
        name: str,
        instructions: str | None = None,
        tools: Sequence[Callable[..., Any] | pydantic_ai.Tool[Any]] = (),
        **options: Any,
    ) -> Agent:
        """Create an agent, as `Agent` does, and add it."""
        return self.add(Agent(name, instructions, tools, **options))

    def add(self, agent: Agent, *, calls: Collection[str] | None = None) -> Agent:
        """Add an agent, which may call all others, or only those in `calls`.

        Raises InvalidValueError if the name is taken, or the agent has already run.
        """
        if agent.name in self._agents:
            raise InvalidValueError(f"there is an agent {shown(agent.name)} already")
        memory = self.memory.below(agent.name) if self._private else self.memory
        agent._join(_tools(self, agent, calls), _agent_call, self._model, memory, self.session)
        self._agents[agent.name] = agent
        return agent

    async def call(
        self,
        name: str,
        request: str | Sequence[UserContent],
        *,
        session: AnySession | None = None,
        speaker: str | None = None,
        **options: Any,
    ) -> Any:
        """Call an agent and return its answer; raises NotFoundError for an unknown name."""
        agent = self._find(name)
        caller = CallContext(session=session, speaker=speaker, call=AgentCall(name, text_of(request)))
        return (await agent._ask(request, caller, options)).output

    def call_sync(
        self, name: str, request: str | Sequence[UserContent], *, session: AnySession | None = None, **options: Any
    ) -> Any:
        """Call an agent synchronously, like `call`; a running event loop is blocked meanwhile."""
        if self._portal is None:
            self._portal = Portal()
        return self._portal.run(self.call(name, request, session=session, **options))

    async def stream(
        self, name: str, request: str | Sequence[UserContent], *, session: AnySession | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """Call an agent, yielding its answer as it is written; raises NotFoundError as `call` does."""
        async for text in self._find(name).run_stream(request, session=session, **options):
            yield text

    async def close(self) -> None:
        """Close the agents and the memory, if they were opened here."""
        for agent in self._agents.values():
            await agent.close()
        await off_loop(self.close_sync)

    def close_sync(self) -> None:
        """Close synchronously, like `close`."""
        for agent in self._agents.values():
            if self._portal is not None and agent.learner is not None:
                self._portal.run(agent.learner.drain())
            agent.close_sync()
        self.memory.close_sync()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_sync()

    def __getitem__(self, name: str) -> Agent:
        return self._find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def others(self, agent: Agent, calls: Collection[str] | None) -> list[Agent]:
        """Return the agents that an agent may call."""
        return [
            other for other in self._agents.values() if other is not agent and (calls is None or other.name in calls)
        ]

    async def pass_on(
        self, ctx: RunContext[Any], caller: Agent, name: str, request: str, calls: Collection[str] | None
    ) -> Any:
        """Call another agent in the middle of an agent's run."""
        known = [other.name for other in self.others(caller, calls)]
        if name not in known:
            return refuse(f"There is no agent {name!r} to call. There are: {', '.join(known) or 'none'}.")
        turn = caller.capability._turn_of(ctx)
        above = turn.caller
        if above.depth + 1 >= self._max_depth:
            return refuse(f"Calls go no deeper than {self._max_depth}: answer with what you have.")
        agent = self._agents[name]
        # All of them use the caller's session.
        deeper = CallContext(
            session=above.session,
            speaker=caller.name,
            call=AgentCall(name, request),
            depth=above.depth + 1,
            within=turn.current,
        )
        return (await agent._ask(request, deeper, {"usage": ctx.usage})).output

    def _find(self, name: str) -> Agent:
        found = self._agents.get(name)
        if found is None:
            raise NotFoundError(f"there is no agent {shown(name)}; there are {', '.join(self._agents) or 'none'}")
        return found


def _tools(runtime: Runtime, caller: Agent, calls: Collection[str] | None) -> FunctionToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset(id="agents")

    async def call_agent(ctx: RunContext[Any], name: str, request: str) -> Any:
        """Ask another agent, who knows only what you write, and get its answer.

        Args:
            name: The agent's name.
            request: What you want of it, with all that it needs to know.
        """
        return await runtime.pass_on(ctx, caller, name, request, calls)

    async def offered(ctx: RunContext[Any], tool: Any) -> Any:
        return tool if runtime.others(caller, calls) else None

    toolset.add_function(call_agent, takes_ctx=True, name=CALL_AGENT, prepare=offered)

    @toolset.instructions
    def agents() -> str | None:
        others = runtime.others(caller, calls)
        lines = [f"- {other.name}" + (f": {other.about}" if other.about else "") for other in others]
        return "\n".join(["Agents that you can call:", *lines]) if lines else None

    return toolset


def _agent_call(call: ToolCall) -> AgentCall | None:
    """Return the agent call in a tool call, if it is one."""
    if call.name != CALL_AGENT:
        return None
    try:
        given = json.loads(call.arguments)
        return AgentCall(given["name"], given.get("request"))
    except (ValueError, KeyError, TypeError):
        return None  # the model wrote something else, which the tool rejects
