"""LangChain agents: middleware that recalls for each turn and stores the conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypeAlias, Unpack

from ..errors import InvalidValueError
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..records import MESSAGE, Ref
from ..scope import AsyncScope
from .foreign import require, segments_of
from .langchain import from_langchain, stored_id, to_langchain

require("langchain", "1.4", "2")

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.channels import UntrackedValue
from langgraph.config import get_config
from langgraph.runtime import Runtime

__all__ = ["MnemicMiddleware"]

Named: TypeAlias = str | Sequence[str] | Callable[[Runtime[Any]], str | Sequence[str]] | None
"""An id, ids from tenant to user, a function of the runtime that returns these, or None."""
NEWEST = 200
"""How many of the newest messages of a session are compared with those of the agent."""


def user_of(runtime: Runtime[Any]) -> str:
    """Return `user_id` of the runtime's context, or of the config's configurable values."""
    return _named(runtime, "user_id")


def session_of(runtime: Runtime[Any]) -> str:
    """Return `session_id` or `thread_id` of the runtime's context, or of the config's configurable values."""
    return _named(runtime, "session_id", "thread_id")


def _named(runtime: Runtime[Any], *names: str) -> str:
    context = runtime.context
    for name in names:
        value = context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)
        value = get_config().get("configurable", {}).get(name) if value is None else value
        if value is not None:
            return str(value)
    raise InvalidValueError(
        f"the run has no {' or '.join(names)}: pass it in context=… or in the config's configurable values, or tell "
        f"MnemicMiddleware {'user=None for a single user' if 'user_id' in names else 'session=…'}"
    )


class MemoryState(AgentState[Any]):
    """The state of an agent, with what was recalled for the turn, which no checkpoint has."""

    mnemic_history: NotRequired[Annotated[list[AnyMessage], UntrackedValue, PrivateStateAttr]]
    mnemic_recalled: NotRequired[Annotated[str, UntrackedValue, PrivateStateAttr]]


class MnemicMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Recalls what bears on the user's message, shows it to the model, and stores every message of the conversation.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    The user is a scope in it and the conversation a session: by default `user_id`, and `session_id` or `thread_id`, of
    the runtime's context or the config. With `user=None` there is one user. Recalled are up to `k` texts of at most
    `max_tokens` with at least `min_score`. With `history_tokens`, the model also sees the session's earlier turns, for
    an agent without a checkpointer.
    """

    state_schema = MemoryState

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        user: Named = user_of,
        session: Named = session_of,
        max_tokens: int = 1_000,
        k: int = 8,
        min_score: float | None = 0.1,
        kinds: Sequence[str] | str | None = None,
        history_tokens: int = 0,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Raise InvalidValueError for anything that is not a memory."""
        super().__init__()
        self.tools = []
        self._memory = MemoryAccess(memory, options=options)
        self._user, self._session = user, session
        self._recall: dict[str, Any] = {"max_tokens": max_tokens, "k": k, "min_score": min_score, "kinds": kinds}
        self._history_tokens = history_tokens

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        where = self._where(runtime)
        return self._memory.call_sync(lambda scope: self._begin(*_at(scope, where), state["messages"]))

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        where = self._where(runtime)
        return await self._memory.call(lambda scope: self._begin(*_at(scope, where), state["messages"]))

    def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        where, new = self._where(runtime), _of_step(state["messages"])
        self._memory.call_sync(lambda scope: _store(_at(scope, where)[1], new))

    async def aafter_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        where, new = self._where(runtime), _of_step(state["messages"])
        await self._memory.call(lambda scope: _store(_at(scope, where)[1], new))

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        if rest := _since_answer(state["messages"]):  # results of tools that end a run
            where = self._where(runtime)
            self._memory.call_sync(lambda scope: _store(_at(scope, where)[1], rest))

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        if rest := _since_answer(state["messages"]):
            where = self._where(runtime)
            await self._memory.call(lambda scope: _store(_at(scope, where)[1], rest))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        resumed = "mnemic_recalled" not in request.state
        return handler(_with_memory(request, self.before_agent(request.state, request.runtime) if resumed else {}))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        resumed = "mnemic_recalled" not in request.state
        recalled = await self.abefore_agent(request.state, request.runtime) if resumed else {}
        return await handler(_with_memory(request, recalled))

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()

    def _where(self, runtime: Runtime[Any]) -> tuple[list[str], str]:
        """Return the segments of the user's scope, and the name of the session."""
        user = _ids(self._user, runtime, "user")
        session = _ids(self._session, runtime, "session")
        if len(session) != 1:
            raise InvalidValueError(f"a session has one name, not {len(session)}")
        return user, session[0]

    async def _begin(self, scope: AsyncScope, session: AsyncSession, messages: list[AnyMessage]) -> dict[str, Any]:
        """Recall for the last message of the user, and store the messages that are new."""
        known = {message.id for message in await session.messages(NEWEST)}
        ids = [stored_id(message) for message in messages]
        start = 1 + max((n for n, id in enumerate(ids) if id in known), default=-1)
        if known and not start:
            # A conversation that was stored before, and whose earlier messages have left the session since.
            start = len(messages) - len(_since_answer(messages))
        asked = messages[last - 1].text if (last := _after(messages, HumanMessage)) else ""
        history = []
        if self._history_tokens:
            window = await session.window(self._history_tokens, partial=True)
            history = [one for one in window if one.role != "system" and one.id not in ids]
        present = [*ids, *(one.id for one in history)]
        recalled = ""
        if asked.strip():
            exclude = [Ref(session.scope, MESSAGE, id) for id in present]
            recalled = (await scope.context(asked, exclude=exclude, **self._recall)).text
        await _store(session, messages[start:])
        earlier = [made for one in history for made in to_langchain(one)]
        return {"mnemic_history": earlier, "mnemic_recalled": recalled}


def _at(scope: AsyncScope, where: tuple[list[str], str]) -> tuple[AsyncScope, AsyncSession]:
    user, session = where
    scope = scope.scope(*user) if user else scope
    return scope, scope.session(session)


async def _store(session: AsyncSession, messages: Sequence[BaseMessage]) -> None:
    await session.add_many([from_langchain(message) for message in messages], open_images=False)


def _after(messages: Sequence[AnyMessage], *kinds: type[BaseMessage]) -> int:
    """Return the place after the last message of these kinds."""
    return next((n for n in range(len(messages), 0, -1) if isinstance(messages[n - 1], kinds)), 0)


def _since_answer(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Return the messages after the last one of the model."""
    return messages[_after(messages, AIMessage) :]


def _of_step(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Return the last message of the model, the results of tools before it, and what follows it."""
    answer = max(_after(messages, AIMessage) - 1, 0)
    return messages[_after(messages[:answer], AIMessage, HumanMessage) :]


def _with_memory(request: ModelRequest[Any], again: Mapping[str, Any]) -> ModelRequest[Any]:
    """Return a request with the earlier turns first, and what was recalled before the user's last message.

    It is in the state, or was recalled `again` in a run that goes on from a checkpoint.
    """
    state = {**request.state, **again}
    history, recalled, messages = state.get("mnemic_history"), state.get("mnemic_recalled"), request.messages
    if not history and not recalled:
        return request
    last = max(_after(messages, HumanMessage) - 1, 0)
    block: list[AnyMessage] = [HumanMessage(recalled)] if recalled else []
    return request.override(messages=[*(history or ()), *messages[:last], *block, *messages[last:]])


def _ids(named: Named, runtime: Runtime[Any], what: str) -> list[str]:
    found = named(runtime) if callable(named) else named
    if found is None and not callable(named):
        return []
    return segments_of(found, f"the {what} of the run")
