"""The memory of Opper agents: notes that an agent lists, reads, writes and deletes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from pydantic_ai.toolsets import FunctionToolset

import mnemic
from mnemic import AsyncMemory, AsyncNotes

from ..memory import OpenOptions
from .prompting import PromptAgent

__all__ = ["Agent", "MemoryBackend", "RedisMemory", "UrlMemory"]


class MemoryBackend:
    """Interface of a memory back-end."""

    async def list_keys(self) -> list[str]:
        raise NotImplementedError

    async def read(self, key: str) -> str | None:
        raise NotImplementedError

    async def write(self, key: str, value: str) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError


class UrlMemory(MemoryBackend):
    """Notes at any Mnemic URL; `prefix` separates agents."""

    def __init__(self, url: str = "memory://", prefix: str = "agent_memory", **options: Unpack[OpenOptions]) -> None:
        """`options` are those of `mnemic.open`, such as `encryption_key`."""
        self.url = url
        self.prefix = prefix
        self._options = options
        self._memory: AsyncMemory | None = None

    async def list_keys(self) -> list[str]:
        return [entry.key for entry in await (await self._notes()).list()]

    async def read(self, key: str) -> str | None:
        try:
            value = await (await self._notes()).read(key)
        except mnemic.NotFoundError:
            return None
        return value if isinstance(value, str) else str(value)

    async def write(self, key: str, value: str) -> None:
        await (await self._notes()).write(key, value)

    async def delete(self, key: str) -> None:
        await (await self._notes()).delete(key)

    async def close(self) -> None:
        if self._memory is not None:
            await self._memory.close()

    async def _notes(self) -> AsyncNotes:
        if self._memory is None:
            self._memory = await mnemic.open_async(self.url, **self._options)
        return self._memory.scope(self.prefix).notes


class RedisMemory(UrlMemory):
    """Notes on a Redis or Valkey server."""

    def __init__(self, redis_url: str, prefix: str = "agent_memory", **options: Unpack[OpenOptions]) -> None:
        super().__init__(redis_url, prefix, **options)


class Agent:
    """An agent that sees the keys of its notes before each step, and has tools for them."""

    def __init__(
        self,
        name: str,
        instructions: str | None = None,
        tools: Sequence[Any] | None = None,
        enable_memory: bool = False,
        *,
        model: Any = None,
        memory: MemoryBackend | None = None,
        max_context_tokens: int | None = None,
    ) -> None:
        """`memory` is any back-end; with `enable_memory` alone, one in this process.

        With either, the prompt also contains earlier turns, up to `max_context_tokens`; without, calls of
        `process` share nothing.
        """
        self.name = name
        self.memory: UrlMemory | MemoryBackend | None = UrlMemory() if memory is None and enable_memory else memory
        given = [tool for one in tools or () for tool in (one if isinstance(one, list | tuple) else [one])]
        toolset: FunctionToolset[Any] = FunctionToolset(id="memory")
        if self.memory is not None:
            for own in (self.list_memories, self.read_memory, self.write_memory, self.delete_memory):
                toolset.add_function(own)
            toolset.instructions(self._note_list)
        self._agent = PromptAgent(
            name,
            instructions,
            model,
            given,
            session=None if self.memory is None else "main",
            max_tokens=max_context_tokens,
            toolsets=[toolset],
        )

    async def process(self, input: str) -> Any:
        return await self._agent.say(input)

    async def list_memories(self) -> list[str]:
        """List the keys of your memories."""
        return await self._backend.list_keys()

    async def read_memory(self, key: str) -> str:
        """Read the memory under a key."""
        found = await self._backend.read(key)
        return f"There is no memory {key!r}." if found is None else found

    async def write_memory(self, key: str, value: str) -> str:
        """Write a memory under a key, in place of the one before."""
        await self._backend.write(key, value)
        return f"Written under {key!r}."

    async def delete_memory(self, key: str) -> str:
        """Delete the memory under a key."""
        await self._backend.delete(key)
        return f"Deleted {key!r}."

    @property
    def _backend(self) -> MemoryBackend:
        assert self.memory is not None
        return self.memory

    async def _note_list(self) -> str:
        keys = await self._backend.list_keys()
        listed = "\n".join(f"- {key}" for key in keys) or "(none yet)"
        return f"You have a memory that lasts. Its entries, by key:\n{listed}"
