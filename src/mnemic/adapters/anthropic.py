"""The memory tool of the Anthropic SDK, over the notes of a scope."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Unpack

from ..checks import shown
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.note_files import AsyncNoteFiles
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..scope import AsyncScope
from .foreign import require

require("anthropic", "2.8", "3", "anthropic")

from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
from anthropic.types.beta import BetaCacheControlEphemeralParam

__all__ = ["MnemicAsyncMemoryTool", "MnemicMemoryTool"]

SOURCE = "anthropic"
"""Stored with every note as its source."""


class MnemicMemoryTool(BetaAbstractMemoryTool):
    """The memory tool for `Anthropic`: pass it in `client.beta.messages.tool_runner(tools=[…])`.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    Commands raise ToolError, whose text is for the model, for whatever the model can correct.
    """

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Raise InvalidValueError for an invalid memory."""
        super().__init__(cache_control=cache_control)
        self._memory = MemoryAccess(memory, options=options)

    def execute(self, command: Any) -> str:
        """Run a command, as the model gives it or as an object of the SDK."""
        return self._memory.call_sync(_command(command))

    view = create = str_replace = insert = delete = rename = execute

    def call(self, input: object) -> str:
        return str(super().call(input)) if _has_numbers(input) else self.execute(input)

    def clear_all_memory(self) -> str:
        """Delete all files."""
        return self._memory.call_sync(_clear)

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()


class MnemicAsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool for `AsyncAnthropic`, with the same files as `MnemicMemoryTool` of the same memory."""

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Raise InvalidValueError for an invalid memory."""
        super().__init__(cache_control=cache_control)
        self._memory = MemoryAccess(memory, options=options)

    async def execute(self, command: Any) -> str:
        """Run a command, as the model gives it or as an object of the SDK."""
        return await self._memory.call(_command(command))

    view = create = str_replace = insert = delete = rename = execute

    async def call(self, input: object) -> str:
        return str(await super().call(input)) if _has_numbers(input) else await self.execute(input)

    async def clear_all_memory(self) -> str:
        """Delete all files."""
        return await self._memory.call(_clear)

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


def _has_numbers(command: object) -> bool:
    """Return whether a command has numbers, which the SDK also takes as text."""
    return isinstance(command, Mapping) and not command.keys().isdisjoint(("insert_line", "view_range"))


def _command(command: Any) -> Callable[[AsyncScope], Coroutine[Any, Any, str]]:
    given = command.to_dict(warnings=False) if hasattr(command, "to_dict") else command
    if not isinstance(given, Mapping) or not given:
        raise ToolError(f"a command is an object with its name as 'command': {shown(given)}")

    async def run(scope: AsyncScope) -> str:
        try:
            return await AsyncNoteFiles(scope.notes, SOURCE).run(given)
        except (NotFoundError, ConflictError, InvalidValueError) as error:
            raise ToolError(str(error)) from error

    return run


async def _clear(scope: AsyncScope) -> str:
    await AsyncNoteFiles(scope.notes, SOURCE).clear()
    return "All memory cleared"
