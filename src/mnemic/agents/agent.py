"""A ready-made agent with memory, built on a pydantic-ai agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pydantic_ai
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserContent,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from ..checks import check_name, shown
from ..errors import InvalidValueError, NotFoundError
from ..event_loop import Portal, call, off_loop
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, AnySession, MemoryAccess
from ..messages import Message
from ..sync import Session
from .capability import MemoryCapability
from .conversion import from_pydantic_ai
from .journal import Act, AsyncJournal
from .learning import AsyncLearner, Lesson
from .model_requests import as_prompt, wants_text
from .run_memory import AgentCalls, Budget, CallContext

if TYPE_CHECKING:
    from pydantic_ai.run import AgentRunResult

Result = TypeVar("Result")
_TAKES_RUN_ID = "run_id" in signature(pydantic_ai.Agent.run).parameters  # only some versions of pydantic-ai do

TextModel: TypeAlias = Callable[..., str | ModelResponse | Awaitable[str | ModelResponse]]
"""A function, sync or async, from messages, or from a prompt, to text."""
AnyModel: TypeAlias = Model[Any] | str | TextModel
"""Accepted as a model: a pydantic-ai model, its name, or a function."""


class Agent:
    """An agent with a name, instructions, tools, a model and a memory.

    `model` is a pydantic-ai model or its name, or a function from messages, or a prompt, to text. `memory` is a
    scope, a memory, a URL, or None for one in this process only; `memory_options` are those of `mnemic.open`, for a
    URL, such as `{"encryption_key": key}`. `session` is a session or its name. The prompt contains at most
    `max_tokens` of memory. `memory_tools` selects the memory tools: all, none or a list of names. With `learn`,
    sessions are summarized and titled in the background and, with a model in `learn_with`, facts are extracted; a list
    selects some of these. Other options are passed to pydantic-ai's Agent. `close` it, or use it with `async with`, if
    it opened its memory or learns.
    """

    name: str

    def __init__(
        self,
        name: str,
        instructions: str | None = None,
        tools: Sequence[Callable[..., Any] | pydantic_ai.Tool[Any]] = (),
        *,
        model: AnyModel | None = None,
        memory: AnyMemory | MemoryAccess | None = None,
        memory_options: OpenOptions | None = None,
        session: AnySession = "main",
        max_tokens: int | None = None,
        budget: Budget | None = None,
        memory_tools: bool | Collection[str] = True,
        thinking: bool = False,
        learn: bool | Sequence[Lesson] = False,
        learn_with: Any = None,
        description: str | None = None,
        **options: Any,
    ) -> None:
        """Raise InvalidValueError for an invalid name, memory, model or budget."""
        self.name = check_name(name, "agent name")
        self.instructions = instructions
        self.description = description
        self.session = session
        self.budget: Budget = budget or (Budget() if max_tokens is None else Budget(max_tokens=max_tokens))
        self._model = None if model is None else model_of(model)
        self._tools = list(tools)
        self._memory_tools = memory_tools
        self._thinking = thinking
        self._learn: tuple[Lesson, ...] | None = (() if learn is True else tuple(learn)) if learn else None
        self._learn_with = learn_with
        self.learner: AsyncLearner | None = None
        self._options = options
        self._capabilities = list(options.pop("capabilities", None) or ())
        self._toolsets = list(options.pop("toolsets", None) or ())
        self._agent_calls: AgentCalls | None = None
        self._capability: MemoryCapability | None = None
        self._inner: pydantic_ai.Agent[Any, Any] | None = None
        self._portal: Portal | None = None
        if memory is None and isinstance(session, Session | AsyncSession):
            self.memory: MemoryAccess = MemoryAccess.around(session)
        else:
            self.memory = MemoryAccess.of(OWN if memory is None else memory, name, memory_options)
        self._owns = not isinstance(memory, MemoryAccess)
        self._has_memory = memory is not None or not isinstance(session, str)

    @property
    def about(self) -> str | None:
        """Description for other agents: its own, or the first line of its instructions."""
        return self.description or (self.instructions or "").strip().partition("\n")[0] or None

    @property
    def inner(self) -> pydantic_ai.Agent[Any, Any]:
        """The underlying pydantic-ai agent; raises InvalidValueError if it has no model."""
        if self._inner is None:
            if self._model is None:
                raise InvalidValueError(f"agent {self.name!r} has no model: give it one, or its runtime")
            self._inner = pydantic_ai.Agent(
                self._model,
                name=self.name,
                instructions=self.instructions,
                description=self.description,
                tools=self._tools,
                toolsets=self._toolsets,
                capabilities=[self.capability, *self._capabilities],
                **self._options,
            )
        return self._inner

    @property
    def capability(self) -> MemoryCapability:
        """The memory as a capability, usable with any pydantic-ai agent."""
        if self._capability is None:
            if self._learn is not None:
                self.learner = AsyncLearner(self.memory, self._learn_with, name=self.name)
            self._capability = MemoryCapability(
                self.memory,
                self.session,
                budget=self.budget,
                tools=self._memory_tools,
                thinking=self._thinking,
                name=self.name,
                agent_calls=self._agent_calls,
                learner=self.learner,
                learn=self._learn or (),
            )
        return self._capability

    async def run(
        self, prompt: str | Sequence[UserContent] | None, *, session: AnySession | None = None, **options: Any
    ) -> AgentRunResult[Any]:
        """Answer a prompt, in the agent's session or another; the result's `output` is the answer.

        `options` are those of pydantic-ai's `Agent.run`. Messages are stored as they arise, also if the run fails
        or is cancelled. Raises errors of the model, a tool or the store.
        """
        caller = CallContext(session=session, run_id=options.get("run_id"))
        return await self._ask(prompt, caller, _run_options(options))

    def run_sync(
        self, prompt: str | Sequence[UserContent] | None, *, session: AnySession | None = None, **options: Any
    ) -> AgentRunResult[Any]:
        """Run synchronously, like `run`; a running event loop is blocked meanwhile."""
        return self.drive(self.run(prompt, session=session, **options))

    async def run_stream(
        self, prompt: str | Sequence[UserContent] | None, *, session: AnySession | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """Answer a prompt, yielding the text as the model writes it.

        Stopping early cancels the run; what was said until then is stored.
        """
        inner = self.inner
        async with AsyncExitStack() as stack:
            with self.capability._expecting(CallContext(session=session, run_id=options.get("run_id"))):
                events = inner.run_stream_events(prompt, **_run_options(options))
                stream = await stack.enter_async_context(events)
                event = await anext(stream, None)  # which begins the run
            while event is not None:
                match event:
                    case PartStartEvent(part=TextPart(content=text)) if text:
                        yield text
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                        yield text
                event = await anext(stream, None)

    async def history(self, key: str | None = None, *, limit: int | None = None) -> list[Act]:
        """Return this agent's writes, or those to a key, as `AsyncJournal.history` does."""
        journal = AsyncJournal(await self.memory.open())
        return await self.memory.run(journal.history(key, agent=self.name, limit=limit))

    async def undo(self, act: Act | str | None = None, *, by: str = "user", force: bool = False) -> Act:
        """Undo an act of the agent, by default its last, as `AsyncJournal.undo` does.

        Raises NotFoundError and ConflictError as that does.
        """
        journal = AsyncJournal(await self.memory.open())
        if act is None:
            known = [one for one in await self.history() if not one.undone]
            if not known:
                raise NotFoundError(f"agent {self.name!r} has written nothing that could be undone")
            act = known[-1]
        return await self.memory.run(journal.undo(act, by=by, force=force))

    async def _ask(
        self, prompt: str | Sequence[UserContent] | None, caller: CallContext, options: dict[str, Any]
    ) -> AgentRunResult[Any]:
        """Answer a prompt like `run`, with information about the caller."""
        inner = self.inner
        with self.capability._expecting(caller):
            return await inner.run(prompt, **options)

    def drive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the agent's own event loop, and wait for it."""
        if self._portal is None:
            self._portal = Portal()
        return self._portal.run(work)

    def _join(
        self,
        tools: FunctionToolset[Any],
        calls: AgentCalls,
        model: Model[Any] | str | None,
        memory: MemoryAccess,
        session: AnySession,
    ) -> None:
        """Add tools for calling other agents, and a model and a memory if it has none; before its first run."""
        if self._inner is not None or self._capability is not None:
            raise InvalidValueError(f"agent {self.name!r} has run already: add it to a runtime before that")
        self._toolsets.append(tools)
        self._agent_calls = calls
        self._model = model if self._model is None else self._model
        if not self._has_memory:
            self.memory, self.session = memory, session
            self._owns, self._has_memory = False, True

    async def close(self) -> None:
        """Finish learning; close the memory, if the agent opened it, and the event loop."""
        if self.learner is not None:
            await self.learner.drain()
        await off_loop(self.close_sync)

    def close_sync(self) -> None:
        """Close synchronously, like `close`."""
        if self.learner is not None and (self._portal is not None or self.learner.waiting):
            self.drive(self.learner.drain())
        if self._owns:
            self.memory.close_sync()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_sync()

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"


def _run_options(options: dict[str, Any]) -> dict[str, Any]:
    return options if _TAKES_RUN_ID else {name: value for name, value in options.items() if name != "run_id"}


def model_of(model: AnyModel) -> Model[Any] | str:
    """Return a model for pydantic-ai; raises InvalidValueError for anything else."""
    if isinstance(model, Model | str):
        return model
    if callable(model):
        return _FunctionModel(model)
    raise InvalidValueError(f"a model is one of pydantic-ai's, its name, or a function: {shown(model)}")


class _FunctionModel(FunctionModel):
    """A plain function as a model; it returns text, or a response that calls tools."""

    def __init__(self, function: TextModel) -> None:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            instructions = [Message("system", info.instructions)] if info.instructions else []
            history = [*instructions, *from_pydantic_ai(messages, system=True)]
            answered = await call(function, as_prompt(history) if wants_text(function) else history)
            if isinstance(answered, ModelResponse):
                return answered
            if not isinstance(answered, str):
                raise InvalidValueError(f"a model returns text, not {shown(answered)}")
            return ModelResponse([TextPart(answered)])

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            response = await answer(messages, info)
            yield response.text or ""

        name = getattr(function, "__name__", type(function).__name__)
        super().__init__(answer, stream_function=stream, model_name=name)
