"""The memory stores of TFrameX, its messages, its agent and its app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakSet

from msgspec.structs import replace

import mnemic

from ..checks import check_name, shown
from ..event_loop import call, running_loop
from ..layers.master_key import EncryptionKeys
from ..messages import decode
from ..records import now
from .embedding import embedder_from, embedding_here
from .prompting import PromptAgent
from .tframex_stores import (
    BaseMemoryStore,
    InMemoryMemoryStore,
    Message,
    PostgresMemoryStore,
    RedisMemoryStore,
    S3MemoryStore,
    UrlMemoryStore,
    from_core,
)

__all__ = [
    "AuditMemoryStore",
    "AutoCleanupMemory",
    "BaseMemoryStore",
    "EncryptedMemoryStore",
    "FilterableMemoryStore",
    "InMemoryMemoryStore",
    "LLMAgent",
    "Message",
    "PostgresMemoryStore",
    "RedisMemoryStore",
    "S3MemoryStore",
    "SafeMemoryStore",
    "ScopedMemoryStore",
    "SemanticMemoryStore",
    "SlidingWindowMemory",
    "SummaryMemory",
    "TFrameXApp",
    "TokenLimitedMemoryStore",
    "UrlMemoryStore",
]

SUMMARY = "Previous conversation summary: "
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


class ScopedMemoryStore(BaseMemoryStore):
    """A store for each scope."""

    def __init__(self, make: Callable[[], BaseMemoryStore] = InMemoryMemoryStore) -> None:
        self.scopes: dict[str, BaseMemoryStore] = {}
        self._make = make
        self._adding: set[asyncio.Task[None]] = set()

    def get_scope(self, scope_name: str) -> BaseMemoryStore:
        if scope_name not in self.scopes:
            self.scopes[scope_name] = self._make()
        return self.scopes[scope_name]

    def add_message(self, message: Message, scope: str = "default") -> Any:
        """Add a message, at once if no event loop is running; on one, awaiting it is optional."""
        work = self.get_scope(scope).add_message(message)
        if running_loop() is None:
            return asyncio.run(work)
        task = asyncio.ensure_future(work)
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)
        return task

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None, scope: str = "default"
    ) -> list[Message]:
        await self._settled()
        return await self.get_scope(scope).get_history(limit, offset, roles)

    async def clear(self, scope: str = "default") -> None:
        await self._settled()
        await self.get_scope(scope).clear()

    async def _settled(self) -> None:
        """Wait for messages that were added without await."""
        if self._adding:
            await asyncio.wait(self._adding)


class TokenLimitedMemoryStore(InMemoryMemoryStore):
    """Messages up to a number of tokens, counted exactly and once."""

    def __init__(self, max_tokens: int = 4000, **options: Any) -> None:
        super().__init__(max_tokens=max_tokens, **options)
        self.max_tokens = max_tokens


class SlidingWindowMemory(InMemoryMemoryStore):
    """Only the newest messages."""

    def __init__(self, window_size: int = 10, **options: Any) -> None:
        super().__init__(max_messages=window_size, **options)
        self.window_size = window_size


class SummaryMemory(InMemoryMemoryStore):
    """Summarizes messages when there are too many; what is summarized is archived."""

    def __init__(
        self, summarizer_agent: str | Callable[[str], Any], threshold: int = 50, keep: int = 10, **options: Any
    ) -> None:
        """`summarizer_agent` is the name of an agent, or a function from a text to its summary."""
        self.summarizer_agent: str | Callable[[str], Any] = summarizer_agent
        self.threshold: int = threshold
        super().__init__(
            max_messages=threshold, overflow=mnemic.Summarize(self._summarize), keep=keep / threshold, **options
        )

    async def get_summaries(self) -> list[Message]:
        summary = await (await self.session()).summary()
        return [] if summary is None else [Message("system", SUMMARY + summary)]

    async def _summarize(self, messages: list[mnemic.Message]) -> str:
        text = "\n".join(f"{message.role}: {message.text}" for message in messages)
        asked = f"Summarize this conversation:\n{text}"
        if callable(self.summarizer_agent):
            return str(await call(self.summarizer_agent, asked))
        return str(await find_agent(self.summarizer_agent).ask(asked))


class SemanticMemoryStore(InMemoryMemoryStore):
    """Messages searched by meaning."""

    def __init__(self, embedding_model: Any = "auto", **options: Any) -> None:
        """`embedding_model` is an Embedder, its name, or an object with `embed` for one text, sync or async.

        An async one is called on the event loop of the search.
        """
        model = "auto" if embedding_model is None else embedding_model
        super().__init__(embedder=model if isinstance(model, str) else embedder_from(model), **options)

    async def search(self, query: str, top_k: int = 5) -> list[Message]:
        assert self._scope is not None
        with embedding_here():
            hits = await self._scope.recall(query, top_k, kinds="message")
        return [from_core(decode(hit.record)) for hit in hits]


class FilterableMemoryStore(InMemoryMemoryStore):
    """Messages filtered by metadata and date."""

    async def get_messages_by_metadata(self, **metadata_filters: Any) -> list[Message]:
        found = await (await self.session()).messages(metadata=metadata_filters)
        return [from_core(message) for message in found]

    async def get_messages_by_date_range(self, start_date: datetime, end_date: datetime) -> list[Message]:
        since, until = start_date.astimezone(), end_date.astimezone()
        found = await (await self.session()).messages(since=since, until=until)
        return [from_core(message) for message in found]


class AutoCleanupMemory(FilterableMemoryStore):
    """Deletes old messages; those with the metadata `important` are archived first."""

    def __init__(self, max_age_days: float = 30, archive: BaseMemoryStore | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.max_age: timedelta = timedelta(days=max_age_days)
        self.archive_store: InMemoryMemoryStore | BaseMemoryStore = (
            InMemoryMemoryStore() if archive is None else archive
        )

    async def cleanup(self) -> int:
        session = await self.session()
        old = await session.messages(until=now() - self.max_age)
        await self.archive([from_core(message) for message in old if message.metadata.get("important", False)])
        return await session.delete(*old)

    async def archive(self, messages: list[Message]) -> None:
        for message in messages:
            await self.archive_store.add_message(message)


class SafeMemoryStore(InMemoryMemoryStore):
    """Messages up to a limit; a handler receives those that leave, a fifth at a time."""

    def __init__(self, max_size: int, overflow_handler: Callable[[list[Message]], Any], **options: Any) -> None:
        super().__init__(max_messages=max_size, overflow=self._overflow, keep=0.8, **options)
        self.max_size: int = max_size
        self.overflow_handler: Callable[[list[Message]], Any] = overflow_handler

    async def _overflow(self, messages: list[mnemic.Message]) -> None:
        await call(self.overflow_handler, [from_core(message) for message in messages])


class AuditMemoryStore(BaseMemoryStore):
    """A store with an audit store, which records who added each message, from where, and its flags."""

    def __init__(
        self,
        operational_store: BaseMemoryStore | None = None,
        audit_store: BaseMemoryStore | None = None,
        *,
        current_user_id: str | None = None,
        session_id: str | None = None,
        request_ip: str | None = None,
        check_compliance: Callable[[Message], Any] | None = None,
    ) -> None:
        """`check_compliance` returns flags for a message; a subclass may override it instead."""
        self.operational_store: InMemoryMemoryStore | BaseMemoryStore = (
            InMemoryMemoryStore() if operational_store is None else operational_store
        )
        self.audit_store: InMemoryMemoryStore | BaseMemoryStore = (
            InMemoryMemoryStore() if audit_store is None else audit_store
        )
        self.current_user_id: str | None = current_user_id
        self.request_ip: str | None = request_ip
        self.session_id: str = str(session_id or getattr(self.operational_store, "session_id", "default"))
        self._check_compliance = check_compliance

    def check_compliance(self, message: Message) -> Any:
        """Return the `compliance_flags` of a message."""
        return [] if self._check_compliance is None else self._check_compliance(message)

    async def add_message(self, message: Message) -> None:
        audit = {
            "timestamp": now().isoformat(),
            "user_id": self.current_user_id,
            "session_id": self.session_id,
            "ip_address": self.request_ip,
            "compliance_flags": self.check_compliance(message),
        }
        await self.audit_store.add_message(replace(message, metadata={**message.metadata, **audit}))
        await self.operational_store.add_message(message)

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        return await self.operational_store.get_history(limit, offset, roles)

    async def clear(self) -> None:
        await self.operational_store.clear()

    async def get_context_window(self, max_tokens: int = 4000) -> list[Message]:
        return await self.operational_store.get_context_window(max_tokens)


class EncryptedMemoryStore(UrlMemoryStore):
    """Encrypted messages; filters, limits and search work as usual."""

    def __init__(
        self, encryption_key: EncryptionKeys, url: str = "memory://", session_id: str = "default", **options: Any
    ) -> None:
        """Take a Fernet key, or 32 bytes."""
        super().__init__(url, session_id, encryption_key=encryption_key, **options)
