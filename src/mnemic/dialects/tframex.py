"""The memory stores of TFrameX, its agent and its app; each store is a small composition of the core's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

import mnemic
from mnemic import AsyncScope, AsyncSession
from mnemic import Message as Message

from ..driving import call, running_loop
from ..features.messages import decode
from ..records import now
from .live import Live, blocking
from .talking import Talker

SUMMARY = "Previous conversation summary: "


class BaseMemoryStore:
    """What a store of messages does; one's own needs `add_message`, `get_history` and `clear`."""

    async def add_message(self, message: Message) -> None:
        raise NotImplementedError

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        raise NotImplementedError

    async def clear(self) -> None:
        raise NotImplementedError

    async def get_context_window(self, max_tokens: int = 4000) -> list[Message]:
        history = await self.get_history()
        session = (await mnemic.open_async("memory://")).scope("window").session("messages")
        await session.add_many([replace(message, id=str(n)) for n, message in enumerate(history)])
        return [history[int(message.id)] for message in await session.window(max_tokens)]


class UrlMemoryStore(BaseMemoryStore):
    """Messages of one session at any URL of Mnemic's, with the limits that a session can have."""

    def __init__(
        self,
        url: str = "memory://",
        session_id: str = "default",
        *,
        key: Any = None,
        embedder: Any = "auto",
        **limits: Any,
    ) -> None:
        self.url, self.session_id = url, session_id
        self._opening = {"embedder": embedder, **({"encryption_key": key} if key is not None else {})}
        self._limits = limits
        self._space: AsyncScope | None = None
        self._memory: mnemic.AsyncMemory | None = None
        # What lies in this process can be used on any event loop, and before there is one.
        if url == "memory://":
            self._sync = blocking(lambda: mnemic.open(url, **self._opening)).scope("tframex")
            self._space = self._sync._twin

    async def initialize(self) -> None:
        if self._space is None:
            self._memory = await mnemic.open_async(self.url, **self._opening)
            self._space = self._memory.scope("tframex")

    async def session(self) -> AsyncSession:
        await self.initialize()
        assert self._space is not None
        return self._space.session(self.session_id, **self._limits)

    async def add_message(self, message: Message) -> None:
        await (await self.session()).add(message)

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        return await (await self.session()).messages(limit, offset, roles=roles)

    async def clear(self) -> None:
        await (await self.session()).clear()

    async def get_context_window(self, max_tokens: int = 4000) -> list[Message]:
        return await (await self.session()).window(max_tokens)

    async def close(self) -> None:
        if self._memory is not None:
            await self._memory.close()


class InMemoryMemoryStore(UrlMemoryStore):
    """Messages in this process; past a limit the oldest go."""

    def __init__(
        self,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        eviction_strategy: str = "fifo",
        **limits: Any,
    ) -> None:
        if eviction_strategy not in ("fifo", "archive"):
            raise mnemic.InvalidValueError(f"eviction_strategy is fifo or archive, not {eviction_strategy!r}")
        overflow = {} if eviction_strategy == "fifo" else {"overflow": eviction_strategy}
        super().__init__(max_messages=max_messages, max_tokens=max_tokens, **(overflow | limits))

    @property
    def messages(self) -> Live[Message]:
        session = self._sync.session(self.session_id, **self._limits)
        return Live(session, lambda message: message, lambda message: message)

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        self.messages.replace(messages)


class PostgresMemoryStore(UrlMemoryStore):
    """Messages in PostgreSQL."""

    def __init__(self, connection_string: str, session_id: str = "default", **limits: Any) -> None:
        super().__init__(connection_string, session_id, **limits)


class RedisMemoryStore(UrlMemoryStore):
    """Messages on Redis or Valkey: append, limit and expiry are one step."""

    def __init__(
        self, redis_url: str, ttl_hours: float = 24, max_messages: int = 1000, session_id: str = "default"
    ) -> None:
        ttl = timedelta(hours=ttl_hours)
        super().__init__(redis_url, session_id, ttl=ttl, max_messages=max_messages)


class S3MemoryStore(UrlMemoryStore):
    """Messages in a bucket; `options` are those of an s3:// URL, such as the region."""

    def __init__(
        self, bucket_name: str, session_id: str = "default", prefix: str = "memory", **options: str
    ) -> None:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        super().__init__(f"s3://{bucket_name}/{prefix}" + (f"?{query}" if query else ""), session_id)


class ScopedMemoryStore(BaseMemoryStore):
    """A store for each scope."""

    def __init__(self, make: Callable[[], BaseMemoryStore] = InMemoryMemoryStore) -> None:
        self.scopes: dict[str, BaseMemoryStore] = {}
        self._make = make

    def get_scope(self, scope_name: str) -> BaseMemoryStore:
        return self.scopes.setdefault(scope_name, self._make())

    def add_message(self, message: Message, scope: str = "default") -> Any:
        work = self.get_scope(scope).add_message(message)
        return (
            blocking(lambda: asyncio.run(_whole(work)))
            if running_loop() is None
            else asyncio.ensure_future(work)
        )

    async def get_history(
        self,
        limit: int | None = None,
        offset: int = 0,
        roles: list[Any] | None = None,
        scope: str = "default",
    ) -> list[Message]:
        return await self.get_scope(scope).get_history(limit, offset, roles)

    async def clear(self, scope: str = "default") -> None:
        await self.get_scope(scope).clear()


async def _whole(work: Awaitable[Any]) -> Any:
    return await work


class TokenLimitedMemoryStore(InMemoryMemoryStore):
    """Messages up to a number of tokens, counted exactly and once."""

    def __init__(self, max_tokens: int = 4000) -> None:
        super().__init__(max_tokens=max_tokens)
        self.max_tokens = max_tokens


class SlidingWindowMemory(InMemoryMemoryStore):
    """The newest messages alone."""

    def __init__(self, window_size: int = 10) -> None:
        super().__init__(max_messages=window_size)
        self.window_size = window_size


class SummaryMemory(InMemoryMemoryStore):
    """Messages that become a running summary when there are too many; what is summarised is archived."""

    def __init__(
        self, summarizer_agent: str | Callable[[str], Any], threshold: int = 50, keep: int = 10
    ) -> None:
        """`summarizer_agent` is the name of an agent, or a function from a text to its summary."""
        self.summarizer_agent, self.threshold = summarizer_agent, threshold
        super().__init__(
            max_messages=threshold, overflow=mnemic.Summarize(self._summarize), keep=keep / threshold
        )

    async def get_summaries(self) -> list[Message]:
        summary = await (await self.session()).summary()
        return [] if summary is None else [Message("system", SUMMARY + summary)]

    async def _summarize(self, messages: list[Message]) -> str:
        text = "\n".join(f"{message.role}: {message.text}" for message in messages)
        asked = f"Summarize this conversation:\n{text}"
        if callable(self.summarizer_agent):
            return str(await call(self.summarizer_agent, asked))
        return str(await find_agent(self.summarizer_agent).ask(asked))


class SemanticMemoryStore(InMemoryMemoryStore):
    """Messages by what they mean."""

    def __init__(self, embedding_model: Any = None) -> None:
        """`embedding_model` is an embedder of ours, its name, or has an async `embed` of one text."""
        model = embedding_model or "auto"
        foreign = not isinstance(model, str) and not hasattr(model, "embed_query")
        super().__init__(embedder=_Embedding(model) if foreign else model)

    async def search(self, query: str, top_k: int = 5) -> list[Message]:
        assert self._space is not None
        return [decode(hit.record) for hit in await self._space.recall(query, top_k, kinds="message")]


class _Embedding:
    """Someone's embedding model, as an embedder of ours."""

    def __init__(self, model: Any) -> None:
        self.id = f"tframex:{type(model).__name__}"
        self._model = model

    def embed(self, texts: Sequence[str]) -> Any:
        import numpy as np

        async def all_of_them() -> list[Any]:
            return [await call(self._model.embed, text) for text in texts]

        return np.array(blocking(lambda: asyncio.run(all_of_them())), dtype=np.float32)

    def embed_query(self, text: str) -> Any:
        return self.embed([text])[0]


class FilterableMemoryStore(InMemoryMemoryStore):
    """Messages by their metadata and dates."""

    async def get_messages_by_metadata(self, **metadata_filters: Any) -> list[Message]:
        return await (await self.session()).messages(metadata=metadata_filters)

    async def get_messages_by_date_range(self, start_date: datetime, end_date: datetime) -> list[Message]:
        since, until = start_date.astimezone(), end_date.astimezone()
        return await (await self.session()).messages(since=since, until=until)


class AutoCleanupMemory(FilterableMemoryStore):
    """Messages that go when they are old; those with the metadata `important` are archived first."""

    def __init__(self, max_age_days: float = 30, archive: BaseMemoryStore | None = None) -> None:
        super().__init__()
        self.max_age = timedelta(days=max_age_days)
        self.archive_store = archive or InMemoryMemoryStore()

    async def cleanup(self) -> int:
        session = await self.session()
        old = await session.messages(until=now() - self.max_age)
        await self.archive([message for message in old if message.metadata.get("important", False)])
        return await session.remove([message.id for message in old])

    async def archive(self, messages: list[Message]) -> None:
        for message in messages:
            await self.archive_store.add_message(message)


class SafeMemoryStore(InMemoryMemoryStore):
    """Messages up to a number; a handler is given those that leave before they go, a fifth at a time."""

    def __init__(self, max_size: int, overflow_handler: Callable[[list[Message]], Any]) -> None:
        super().__init__(max_messages=max_size, overflow=overflow_handler, keep=0.8)
        self.max_size = max_size


class AuditMemoryStore(BaseMemoryStore):
    """A store, and beside it another that says of each message who added it, from where, and what it is."""

    def __init__(
        self,
        operational_store: BaseMemoryStore | None = None,
        audit_store: BaseMemoryStore | None = None,
        *,
        current_user_id: str | None = None,
        session_id: str | None = None,
        request_ip: str | None = None,
        check_compliance: Callable[[Message], Any] = lambda message: [],
    ) -> None:
        self.operational_store = operational_store or InMemoryMemoryStore()
        self.audit_store = audit_store or InMemoryMemoryStore()
        self.current_user_id, self.session_id, self.request_ip = current_user_id, session_id, request_ip
        self.check_compliance = check_compliance
        self.get_history, self.clear = self.operational_store.get_history, self.operational_store.clear  # type: ignore[method-assign]

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


class EncryptedMemoryStore(UrlMemoryStore):
    """Messages that are encrypted where they lie; filters, limits and search work as without."""

    def __init__(
        self, encryption_key: bytes | str, url: str = "memory://", session_id: str = "default"
    ) -> None:
        """Take a Fernet key, or 32 bytes."""
        super().__init__(url, session_id, key=encryption_key)


_agents: WeakValueDictionary[str, LLMAgent] = WeakValueDictionary()


def find_agent(name: str) -> LLMAgent:
    """Return the agent of a name; raises NotFoundError."""
    if (agent := _agents.get(name)) is None:
        raise mnemic.NotFoundError(f"there is no agent {name!r}; there are {', '.join(_agents) or 'none'}")
    return agent


class LLMAgent:
    """An agent that remembers its conversation in any store; it is found by its name."""

    def __init__(
        self,
        name: str,
        llm: Any = None,
        memory_store: BaseMemoryStore | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Any] = (),
        max_context_tokens: int = 4000,
    ) -> None:
        self.name = name
        self.memory_store = InMemoryMemoryStore() if memory_store is None else memory_store
        self._talker = Talker(
            name,
            system_prompt,
            llm,
            tools,
            history=lambda: self.memory_store.get_context_window(max_context_tokens),
            keep=lambda message: self.memory_store.add_message(message),
        )
        _agents[name] = self

    async def ask(self, message: str) -> Any:
        return await self._talker.say(message)


class TFrameXApp:
    """All agents, by name."""

    def register_agent(self, agent: LLMAgent) -> LLMAgent:
        _agents[agent.name] = agent
        return agent

    @asynccontextmanager
    async def run_context(self) -> AsyncIterator[TFrameXApp]:
        yield self

    async def call_agent(self, name: str, message: str) -> Any:
        """Ask an agent, and return its answer; raises NotFoundError."""
        return await find_agent(name).ask(message)
