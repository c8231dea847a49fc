"""The MCP server over stdin and stdout; invalid lines are answered too."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.stdio import stdio_server

from ..errors import MnemicError
from ..memory import AsyncMemory
from ..records import ScopePath
from ..tokens import DEFAULT_ENCODING, encoding
from .server import build_server
from .tools import LOG


async def serve_stdio(
    memory: AsyncMemory, scope: ScopePath, profiles: Sequence[str], *, graph_file: Path | None = None
) -> None:
    """Serve one client over stdin and stdout until it closes them."""
    place = memory.scope(scope)
    server = build_server(lambda ctx: place, profiles, graph_file=graph_file)
    output = _Output()
    async with stdio_server(_lines(output), output) as (incoming, outgoing):  # type: ignore[arg-type]
        warming = asyncio.create_task(_warm(memory, scope))
        try:
            await server.run(incoming, outgoing, server.create_initialization_options())
        finally:
            warming.cancel()
            with suppress(asyncio.CancelledError):
                await warming


class _Output:
    """Standard output without the two changes of thread that the SDK takes for each line.

    Whatever else the process prints goes to stderr, so that it does not mix with the protocol.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    async def write(self, line: str) -> None:
        left = line.encode()
        # A client that is gone closes the input too, which ends the server.
        with suppress(BrokenPipeError):
            while left:
                left = left[os.write(self._descriptor, left) :]

    async def flush(self) -> None:
        """Nothing is buffered."""


async def _lines(output: _Output) -> AsyncIterator[str]:
    """Yield the lines of standard input that are messages; answer the others, which the SDK would drop."""
    # Not closed: at the end, a thread may still wait for a line.
    file = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    async for line in anyio.wrap_file(file):
        if not line.strip():
            continue
        try:
            types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if (error := _error(line)) is not None:
                await output.write(json.dumps(error) + "\n")
        else:
            yield line


def _error(line: str) -> dict[str, Any] | None:
    """Return the answer to a line that is no message; None if it asks for none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return _failed(None, types.PARSE_ERROR, "Parse error: the line is not JSON")
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        return _failed(None, types.INVALID_REQUEST, "Invalid request: the line is not a message of JSON-RPC 2.0")
    if "id" not in found:
        LOG.warning("a notification is not valid, and is ignored")
        return None
    id = found["id"] if isinstance(found["id"], str | int) and _is_text(found["id"]) else None
    if _is_text(found):
        return _failed(id, types.INVALID_REQUEST, "Invalid request: the line is not a message of JSON-RPC 2.0")
    return _failed(
        id,
        types.INVALID_PARAMS,
        "Invalid params: a text has half of a character (a lone surrogate such as \\ud83d), as when an emoji was "
        "cut in two; nothing was done, send the text without it",
    )


def _failed(id: str | int | None, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def _is_text(value: object) -> bool:
    """Return whether all texts in a value can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


async def _warm(memory: AsyncMemory, scope: ScopePath) -> None:
    """Load the index and the token counter while the client connects, so that its first calls are fast."""
    try:
        await memory.warm(scope)
        await asyncio.to_thread(encoding(DEFAULT_ENCODING).count, "")
    except MnemicError as error:
        LOG.warning("the index is not loaded yet (%s)", type(error).__name__)
