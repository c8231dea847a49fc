"""Opper's agent SDK: the memory that its agents list, read and write themselves, in any store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from .foreign import require

require("opper-agents", "0.4", "0.5", "opper")

from opper_agents.memory import Memory, MemoryEntry
from pydantic import PrivateAttr

from ..checks import JSON, check_names, shown, to_segment
from ..errors import EventLoopError, InvalidValueError, NotFoundError
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..scope import AsyncScope
from ..store.retry import retry_conflicts

__all__ = ["MnemicMemory"]


class MnemicMemory(Memory):
    """The memory of an Opper agent: the notes of a scope, each with a key, a description and metadata.

    `store` has the entries as they are now, for reading.
    """

    _memory: MemoryAccess = PrivateAttr()

    def __init__(self, memory: AnyMemory = OWN, *, scope: str | None = None, **options: Unpack[OpenOptions]) -> None:
        """Use the notes of a scope, a memory or a URL, with `scope`, such as a user's id, of that scope in it.

        `options` are those of `mnemic.open`, for a URL.
        """
        super().__init__()
        self._memory = MemoryAccess(memory, None if scope is None else to_segment(scope, "scope"), options)
        self.__dict__["store"] = _Entries(self._memory)  # a field, which takes a dict alone

    def has_entries(self) -> bool:
        """Return whether there are entries; of a memory of `open_async` True, since only a call can tell."""
        try:
            return len(self.store) > 0
        except EventLoopError:
            return True

    async def list_entries(self) -> list[dict[str, Any]]:
        """Return key, description and metadata of each entry, in order of creation."""
        notes = await self._memory.call(lambda scope: scope.notes.list())
        return [
            {"key": note.key, "description": note.description or note.key, "metadata": note.metadata} for note in notes
        ]

    async def read(self, keys: list[str] | None = None) -> dict[str, JSON]:
        """Return the values of those of these keys that exist; of all if there are none given."""
        if not keys:
            return await self._memory.call(lambda scope: scope.notes.read_all())
        asked = list(dict.fromkeys(check_names(keys, "keys")))
        return await self._memory.call(lambda scope: scope.notes.read_many(asked))

    async def write(
        self, key: str, value: JSON, description: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Write a value, any JSON, under a key; metadata is merged with what is there.

        Raises InvalidValueError for another value, ConflictError if concurrent writes win every attempt.
        """
        if not isinstance(metadata, Mapping | None):
            raise InvalidValueError(f"metadata must be an object: {shown(metadata)}")
        await self._memory.call(lambda scope: _write(scope, key, value, description, metadata))

    async def clear(self) -> None:
        await self._memory.call(lambda scope: scope.notes.clear())

    async def close(self) -> None:
        """Close the memory, if it was opened here."""
        await self._memory.close()


class _Entries(Mapping[str, MemoryEntry]):
    """The notes of a scope as entries."""

    def __init__(self, memory: MemoryAccess) -> None:
        self._memory = memory

    def __getitem__(self, key: str) -> MemoryEntry:
        try:
            note = self._memory.call_sync(lambda scope: scope.notes.get(key))
        except NotFoundError:
            raise KeyError(key) from None
        return MemoryEntry(
            key=key,
            description=note.description or key,
            value=note.value,
            metadata=note.metadata,
            last_accessed=note.updated.timestamp(),
        )

    def __iter__(self) -> Iterator[str]:
        return iter([note.key for note in self._memory.call_sync(lambda scope: scope.notes.list())])

    def __len__(self) -> int:
        return self._memory.call_sync(lambda scope: scope.notes.usage())[0]


async def _write(
    scope: AsyncScope, key: str, value: JSON, description: str | None, metadata: Mapping[str, Any] | None
) -> None:
    async def merge() -> None:
        try:
            old = await scope.notes.get(key)
        except NotFoundError:
            old = None
        await scope.notes.write(
            key,
            value,
            description=description or (key if old is None else None),
            metadata={**(old.metadata if old is not None else {}), **(metadata or {})},
            if_version=0 if old is None else old.version,
        )

    await retry_conflicts(merge, f"writing the note {key!r} of {scope.path.path!r}")
