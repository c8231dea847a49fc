"""Calls to a server or a cluster: reconnects, and safe retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio import Connection, Redis, RedisCluster, SSLConnection
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError

from ...errors import TooLargeError
from ...store.availability import name_of
from ..calls import Calls
from .failing import UnsentError, broken, explain, refused
from .scripts import SCRIPTS, Script

Result = TypeVar("Result")
Command = tuple[Any, ...]

RETRIES = 4
"""How often a call is retried if the server cannot be reached or is not ready."""
LARGEST = 256 * 1024 * 1024
"""Maximum size of a request; a server disconnects a client that sends a gigabyte."""

log: logging.Logger = logging.getLogger("mnemic.store")

_BACKOFF = ExponentialWithJitterBackoff(cap=1.0, base=0.05)


class Wire(Connection):
    """A connection that records whether a command was sent, and detects a disconnect."""

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        await _before_sending(super().connect_check_health(*args, **kwargs))

    async def check_health(self) -> None:
        await _before_sending(super().check_health())  # type: ignore[no-untyped-call]

    def should_reconnect(self) -> bool:
        marked = super().should_reconnect()  # type: ignore[no-untyped-call]
        return bool(marked) or (self._reader is not None and self._reader.at_eof())


class SecureWire(Wire, SSLConnection):
    """The same over TLS."""


async def _before_sending(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception as error:
        if broken(error):
            raise UnsentError(*error.args) from error
        raise


class Server:
    """A server or a cluster; maps every driver error to a Mnemic error."""

    def __init__(self, url: str, connect: Callable[[], Redis | RedisCluster], connections: int, timeout: float) -> None:
        """Take a client factory, the maximum number of concurrent calls, and their timeout in seconds."""

        async def connected() -> Line:
            return Line(connect(), asyncio.Semaphore(connections))

        self.url = url
        self.cluster: bool = "+cluster://" in url
        self._calls = Calls(url, timeout, connected, Line.close)

    async def read(self, *command: Any) -> Any:
        """Send a read-only command and return its answer; retried if the connection breaks."""
        return await self._patiently(lambda line: line.send(command), twice=True)

    async def read_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send read-only commands, one round trip per node; return their answers."""
        if len(commands) == 1:
            return [await self.read(*commands[0])]
        return await self._patiently(lambda line: line.send_all(commands), twice=True) if commands else []

    async def write(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any], *, twice: bool = False
    ) -> bool:
        """Run a write script, once unless it is repeatable; return False if an expectation fails.

        Raises StoreUnavailableError if it is unknown whether it ran.
        """
        size = sum(map(len, arguments))
        if size > LARGEST:
            raise TooLargeError(
                f"{self.url}: a write of {size:,} bytes is more than the {LARGEST:,} that are sent at once; "
                "make several of it"
            )
        command = evalsha(script, keys, arguments)
        return bool(await self._patiently(lambda line: line.send(command), twice=twice))

    async def close(self) -> None:
        """Cancel running calls, and close all connections."""
        await self._calls.close()

    async def _patiently(self, call: Callable[[Line], Awaitable[Result]], *, twice: bool) -> Result:
        async def insist(line: Line) -> Result:
            failures = 0
            while True:
                async with line.room:
                    if failures:
                        await line.look_round()
                    try:
                        return await call(line)
                    except Exception as error:  # anything that the driver raises
                        failures += 1
                        lost = broken(error) and not twice
                        if failures > RETRIES or lost or not (refused(error) or broken(error)):
                            raise explain(self.url, error, lost=lost) from error
                        log.debug("%s: retry %d (%s)", self.url, failures, name_of(error))
                await asyncio.sleep(_BACKOFF.compute(failures))

        return await self._calls.run(insist)


class Line:
    """A client, and a semaphore for calls."""

    def __init__(self, client: Redis | RedisCluster, room: asyncio.Semaphore) -> None:
        self.room = room
        self.cluster: bool = isinstance(client, RedisCluster)
        self._client: Any = client

    async def close(self) -> None:
        """Close all connections."""
        with suppress(Exception):  # a connection that fails to close is gone, too
            await self._client.aclose()

    async def look_round(self) -> None:
        """Refresh the cluster topology, after a node failed or refused to answer."""
        with suppress(Exception):  # then the next call reports why
            if self.cluster:
                await self._client.nodes_manager.initialize()
            else:
                # The name may resolve to another server by now.
                await self._client.connection_pool.disconnect(inuse_connections=False)

    async def send(self, command: Command) -> Any:
        """Send a command and return its answer."""
        try:
            return await self._client.execute_command(*command)
        except NoScriptError:
            # The server was restarted, or is another one.
            return await self._client.execute_command("EVAL", SCRIPTS[command[1]].text, *command[2:])

    async def send_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands, one round trip per node; return their answers."""
        try:
            return await self._pipe(commands)
        except NoScriptError:
            for sha in {command[1] for command in commands if command[0] == "EVALSHA"}:
                await self._client.script_load(SCRIPTS[sha].text)
            return await self._pipe(commands)

    async def _pipe(self, commands: Sequence[Command]) -> list[Any]:
        pipe = self._client.pipeline() if self.cluster else self._client.pipeline(transaction=False)
        async with pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())


def evalsha(script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> Command:
    """Return the command that runs a cached script."""
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)
