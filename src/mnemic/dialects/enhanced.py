"""The advanced memory system: `MemoryStore`, its stores, and `EnhancedAgentMemory`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import entry_points
from os import PathLike
from types import MappingProxyType
from typing import Any, Generic, TypeVar, Unpack

import mnemic

from ..checks import shown
from ..features.summary import extractive
from ..memory import OpenOptions
from ..models.embedder import find_embedder
from ..store.registry import sqlite_url
from .embedding import embedder_from

__all__ = [
    "AgentMemory",
    "EnhancedAgentMemory",
    "InMemoryStore",
    "MemoryStore",
    "RedisStore",
    "SqliteStore",
    "UrlStore",
    "VectorMemoryStore",
    "open_store",
]

T = TypeVar("T")

PLUGINS = "mnemic.enhanced.stores"
"""Entry point group of custom stores: a name, and a MemoryStore or a factory of one."""
MODELS = {"all-MiniLM-L6-v2": "transformer"}
"""Other libraries' model names, mapped to Mnemic's."""


class MemoryStore(ABC, Generic[T]):
    """Interface of a memory store."""

    @abstractmethod
    def add(self, key: str, value: T, meta: dict[str, Any] | None = None) -> None:
        """Store a value under a key, replacing the previous one."""

    @abstractmethod
    def get(self, key: str) -> T | None:
        """Return the value under a key; None if there is none."""

    @abstractmethod
    def search(self, query: str, top_k: int = 5) -> list[tuple[str, T, float]]:
        """Return keys, values and scores of the best matches, best first."""

    @abstractmethod
    def forget(self, key: str) -> bool:
        """Delete a value; return whether it existed."""


class UrlStore(MemoryStore[str]):
    """A store at any Mnemic URL; the base of the other stores here."""

    signals: tuple[str, ...] | None = None

    def __init__(
        self, url: str, name: str = "memories", *, ttl: timedelta | None = None, **options: Unpack[OpenOptions]
    ) -> None:
        """`options` are those of `mnemic.open`, such as `encryption_key` and `embedder`."""
        self.ttl = ttl
        self.memory: mnemic.Memory = mnemic.open(url, **options)
        self.scope: mnemic.Scope = self.memory.scope("enhanced", name)

    def add(self, key: str, value: str, meta: dict[str, Any] | None = None) -> None:
        """Store a value under a key; without `meta`, keep that of the previous value."""
        known = meta or self._meta_of(key)
        weight = float(known.get("importance", 1))
        self.scope.remember(value, id=key, importance=weight, metadata=known, ttl=self.ttl)

    def _meta_of(self, key: str) -> dict[str, Any]:
        try:
            return dict(self.scope.memories.get(key).metadata)
        except mnemic.NotFoundError:
            return {}

    def get(self, key: str) -> str | None:
        try:
            return self.scope.memories.get(key).text
        except mnemic.NotFoundError:
            return None

    def search(self, query: str, top_k: int = 5) -> list[tuple[str, str, float]]:
        hits = self.scope.recall(query, top_k, kinds="memory", signals=self.signals)
        found = {hit.record.key: (hit.record.key, hit.record.text or "", hit.score) for hit in hits}
        if len(found) < top_k and self.signals is None:
            contained = {key: value for key, value in self.data.items() if query.lower() in value.lower()}
            found |= {key: (key, value, 1.0) for key, value in contained.items() if key not in found}
        return list(found.values())[:top_k]

    def forget(self, key: str) -> bool:
        return self.scope.memories.delete(key) > 0

    @property
    def data(self) -> Mapping[str, str]:
        """All values by key, read-only; use `add` and `forget` to change them."""
        return MappingProxyType({item.id: item.text for item in self.scope.memories.list()})

    @property
    def meta(self) -> Mapping[str, dict[str, Any]]:
        """Metadata of all values by key, read-only."""
        return MappingProxyType({item.id: dict(item.metadata) for item in self.scope.memories.list()})

    def close(self) -> None:
        self.memory.close()


class InMemoryStore(UrlStore):
    """Texts in this process."""

    def __init__(self, **options: Unpack[OpenOptions]) -> None:
        super().__init__("memory://", **options)


class SqliteStore(UrlStore):
    """Texts in a SQLite file, with automatic schema migration."""

    def __init__(
        self, path: str | PathLike[str] = "agent_memory.db", name: str = "memories", **options: Unpack[OpenOptions]
    ) -> None:
        super().__init__(sqlite_url(path), name, **options)


class RedisStore(UrlStore):
    """Texts on a Redis or Valkey server, each expiring `ttl` seconds after it was added."""

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        ttl: float | None = None,
        name: str = "memories",
        **options: Unpack[OpenOptions],
    ) -> None:
        super().__init__(url, name, ttl=None if ttl is None else timedelta(seconds=ttl), **options)


class VectorMemoryStore(UrlStore):
    """Texts searched by meaning, with the vectors of a model."""

    signals: tuple[str, ...] = ("dense",)

    def __init__(
        self, model_name: Any = "all-MiniLM-L6-v2", url: str = "memory://", name: str = "vectors", **options: Any
    ) -> None:
        """Take a model's name, or an object with `encode` or `embed`, or an Embedder.

        Raises MissingExtraError for a model that is not installed; the default one has a fallback.
        """
        super().__init__(url, name, embedder=_model(model_name), **options)


def _model(name: Any) -> mnemic.Embedder | None:
    if not isinstance(name, str):
        return embedder_from(name)
    if name in ("static", "transformer") or ":" in name:
        return find_embedder(name)
    try:
        return find_embedder(MODELS.get(name, f"sentence-transformers:{name}"))
    except mnemic.MissingExtraError:
        if name not in MODELS:
            raise
        # The default model need not be installed: the static one is the fallback.
        return find_embedder("static")


def open_store(name: str, **options: Any) -> MemoryStore[Any]:
    """Return a store that an installed package registers by entry point; raises UnknownSchemeError."""
    for entry in entry_points(group=PLUGINS, name=name):
        store: MemoryStore[Any] = entry.load()(**options)
        return store
    known = ", ".join(sorted({entry.name for entry in entry_points(group=PLUGINS)})) or "none"
    raise mnemic.UnknownSchemeError(f"no installed package adds the store {shown(name)}; there are: {known}")


class EnhancedAgentMemory:
    """Working, long-term and vector memory of an agent; also the API of the older `AgentMemory`."""

    def __init__(
        self,
        persistent: bool = False,
        vector: bool = True,
        *,
        path: str | PathLike[str] = "agent_memory.db",
        long_term: MemoryStore[str] | None = None,
        max_messages: int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """`long_term` is any store; the default is a file if `persistent`, otherwise this process.

        With `vector`, recall uses words and meaning; without, words only. `options` are those of `mnemic.open`, such
        as `encryption_key`.
        """
        url = sqlite_url(path) if persistent else "memory://"
        memory = mnemic.open(url, **(options | {"index": None}))  # which is of the long-term memory
        self.working: mnemic.Session = memory.scope("enhanced").session(
            "working", max_messages=max_messages, overflow="drop"
        )
        if long_term is None:
            if not vector:
                options["embedder"] = None
            long_term = SqliteStore(path, **options) if persistent else InMemoryStore(**options)
        self.long_term = long_term
        # One store compares words and meaning, so nothing is stored twice.
        self.vector: SqliteStore | InMemoryStore | MemoryStore[str] | None = self.long_term if vector else None
        self.tool_call_history: list[dict[str, Any]] = []

    def add_experience(self, text: str, importance: int = 1) -> str:
        key = mnemic.Message("user").id
        self.long_term.add(key, text, {"importance": importance})
        return key

    def recall(self, query: str, k: int = 5) -> list[tuple[str, str, float]]:
        return self.long_term.search(query, k)

    def forget(self, key: str) -> bool:
        return self.long_term.forget(key)

    def add_message(self, role: Any, content: str) -> None:
        self.working.add(role, content)

    def get_recent_messages(self, n: int = 10) -> str:
        return self.working.transcript(n)

    def summary(self) -> str:
        return extractive(self.working.messages())

    create_summary = summary

    def add_tool_call(self, name: str, arguments: Any = None, result: Any = None) -> None:
        self.tool_call_history.append({"name": name, "arguments": arguments, "result": result})


AgentMemory = EnhancedAgentMemory
"""The older name, for unchanged agents."""
