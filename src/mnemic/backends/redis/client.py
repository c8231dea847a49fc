"""Calls to a Redis server or cluster: reconnects, safe retries, and the mapping of the driver's errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis import asyncio as driver
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from ...errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from ...store.availability import cause_name
from ...telemetry.calls import count
from ..calls import Calls
from .codec import FREE, SCRIPTS, WRITE, Script, WriteArguments

Command = tuple[Any, ...]

RETRIES = 4
"""How often a call is retried if the server cannot be reached or is not ready."""
GREETING_SECONDS = 0.1
"""How long to wait for what a server says to a connection that it closes."""
LARGEST = 256 * 1024 * 1024
"""Maximum size of a request; a server disconnects a client that sends a gigabyte."""

log: logging.Logger = logging.getLogger("mnemic.store")


class NotSentError(exceptions.ConnectionError):
    """The connection failed before the command was sent, so it was certainly not run."""


class RedisConnection(driver.Connection):
    """A connection that reconnects if the server has closed it, and tells whether a command was sent."""

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        with _before_sending():
            try:
                await super().connect_check_health(check_health=False, retry_socket_connect=retry_socket_connect)
            except exceptions.ConnectionError as error:
                if reason := await self._reason():
                    raise exceptions.ConnectionError(reason) from error
                raise

    async def _reason(self) -> str:
        """Return why a server closes new connections: it says so at once, but that is lost if a command was sent."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                try:
                    line = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return ""
        return line[1:].decode(errors="replace").strip() if line.startswith(b"-") else ""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if check_health:  # the commands of the handshake are sent without
            with _before_sending():
                if self.is_connected and await self.can_read():  # then the server has closed it
                    await self.disconnect(nowait=True)
                if not self.is_connected:
                    await self.connect_check_health()
                await self.check_health()  # type: ignore[no-untyped-call]
        await super().send_packed_command(command, check_health=False)


class SecureRedisConnection(RedisConnection, driver.SSLConnection):
    """The same over TLS."""


@contextmanager
def _before_sending() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_broken(error):
            raise NotSentError(*error.args) from error
        raise


class RedisClient:
    """Sends commands to a server or a cluster; maps every driver error to a Mnemic error."""

    def __init__(
        self, url: str, connect: Callable[[], driver.Redis | driver.RedisCluster], connections: int, timeout: float
    ) -> None:
        """Take a client factory, the maximum number of concurrent calls, and their timeout in seconds."""

        async def connected() -> Any:
            self._semaphore: asyncio.Semaphore = asyncio.Semaphore(connections)
            return connect()

        self.url = url
        self.cluster: bool = "+cluster://" in url
        self._calls = Calls(url, timeout, connected, _disconnect)

    async def read(self, *command: Any) -> Any:
        """Send a read-only command and return its answer; retried if the connection breaks."""
        return (await self._send([command], repeatable=True, changes=False))[0]

    async def read_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send read-only or idempotent commands, one round trip per node; return their answers."""
        return await self._send(commands, repeatable=True, changes=False) if commands else []

    async def write(self, call: WriteArguments, *, repeatable: bool = False) -> bool:
        """Run the write script, once unless it is repeatable; return False if an expectation fails.

        Raises StoreUnavailableError if it is unknown whether it ran.
        """
        argument = call.encode()
        if len(argument) > LARGEST:
            raise TooLargeError(
                f"{self.url}: a write of {len(argument):,} bytes is more than the {LARGEST:,} that are sent at once; "
                "make several of it"
            )
        command = evalsha(FREE if call.frees else WRITE, call.keys, argument)
        (answer,) = await self._send([command], repeatable=repeatable)
        if answer not in (0, 1):
            raise UnreadableStoreError(f"{self.url}: the server does not speak the Redis protocol", unsure=True)
        return bool(answer)

    async def close(self) -> None:
        await self._calls.close()

    async def _send(self, commands: Sequence[Command], *, repeatable: bool, changes: bool = True) -> list[Any]:
        async def with_retries(client: Any) -> list[Any]:
            failed = broken = False

            async def attempt() -> list[Any]:
                async with self._semaphore:
                    if failed:
                        await _rediscover(client)
                    return await _execute(client, commands)

            async def note_failure(error: Exception, failures: int) -> None:
                nonlocal failed, broken
                failed = True
                broken |= is_broken(error)
                count("retries", "connection")
                log.debug("%s: failed attempt %d (%s)", self.url, failures, cause_name(error))

            def retryable(error: Exception) -> bool:
                return is_refused(error) or (repeatable and is_broken(error))

            retry = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), RETRIES, (Exception,))  # type: ignore[arg-type]
            try:
                return await retry.call_with_retry(attempt, note_failure, retryable, with_failure_count=True)
            except Exception as error:  # anything that the driver raises
                broken |= is_broken(error) or isinstance(error, exceptions.InvalidResponse)
                raise explain(self.url, error, lost=changes and broken) from error

        return await self._calls.run(with_retries, changes=changes)


def evalsha(script: Script, keys: Sequence[bytes], argument: bytes) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, argument)


async def _disconnect(client: Any) -> None:
    with suppress(Exception):  # a connection that fails to close is gone, too
        await client.aclose()


async def _rediscover(client: Any) -> None:
    """Refresh the cluster topology, or resolve the server's name again, after a failure."""
    with suppress(Exception):  # then the next call reports why
        if isinstance(client, driver.RedisCluster):
            await client.nodes_manager.initialize()
        else:
            await client.connection_pool.disconnect(inuse_connections=False)


async def _execute(client: Any, commands: Sequence[Command]) -> list[Any]:
    try:
        if len(commands) == 1:
            return [await client.execute_command(*commands[0])]
        async with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute())
    except exceptions.NoScriptError:
        # The server was restarted, or is another one.
        return await _execute(client, [_with_text(command) for command in commands])


def _with_text(command: Command) -> Command:
    return ("EVAL", SCRIPTS[command[1]].text, *command[2:]) if command[0] == "EVALSHA" else command


_REFUSALS = (
    NotSentError,
    exceptions.BusyLoadingError,
    exceptions.ClusterError,
    exceptions.TryAgainError,
    exceptions.ReadOnlyError,
    exceptions.SlotNotCoveredError,
)
"""Temporary refusals: nothing was done, and a retry may succeed."""

_BY_TEXT: tuple[tuple[str, type[StoreError], str], ...] = (
    ("MISCONF", StoreFullError, "the server cannot save to its disk, and takes no writes"),
    ("NOREPLICAS", StoreUnavailableError, "the server has too few replicas, and takes no writes"),
    ("ACL failure in script", StorePermissionError, "the user may not do this"),
    ("WRONGTYPE", UnreadableStoreError, "the keys with this prefix are not Mnemic's; choose another prefix"),
    ("BUSY", StoreBusyError, "the server is busy with another client's script"),
    ("max number of clients", StoreBusyError, "the server has too many clients"),
    ("cluster support disabled", UnreadableStoreError, "this is not a cluster: use redis:// instead"),
    ("compiling script", UnreadableStoreError, "the server is too old: Redis 7.0 or newer, or Valkey, is needed"),
    (
        "certificate verify failed",
        StorePermissionError,
        "the server's certificate is not trusted; name who signed it with ssl_ca_certs",
    ),
    ("DB index", UnreadableStoreError, "the server has no database of this number"),
    ("All slots are not covered", StoreUnavailableError, "parts of the cluster are down"),
)

_BY_CLASS: tuple[tuple[type[BaseException], type[StoreError], str], ...] = (
    (exceptions.AuthenticationError, StorePermissionError, "the user name or the password is wrong or missing"),
    (exceptions.AuthenticationWrongNumberOfArgsError, StorePermissionError, "the server takes no user name"),
    (exceptions.AuthorizationError, StorePermissionError, "access is denied"),
    (exceptions.NoPermissionError, StorePermissionError, "the user may not do this"),
    (exceptions.OutOfMemoryError, StoreFullError, "the server's memory is full"),
    (exceptions.MaxConnectionsError, StoreBusyError, "all connections are in use"),
    (exceptions.BusyLoadingError, StoreUnavailableError, "the server is still loading its data"),
    (exceptions.ReadOnlyError, StoreUnavailableError, "this is a replica, which cannot be written; name the primary"),
    (exceptions.AskError, UnreadableStoreError, "this is part of a cluster: use redis+cluster:// instead"),
    (exceptions.ClusterDownError, StoreUnavailableError, "the cluster, or a part of it, is down"),
    (exceptions.TryAgainError, StoreUnavailableError, "a part of the cluster is being moved"),
    (exceptions.ClusterError, StoreUnavailableError, "the cluster redirects from node to node"),
    (exceptions.SlotNotCoveredError, StoreUnavailableError, "a part of the cluster is down"),
    (exceptions.TimeoutError, StoreUnavailableError, "the server did not answer in time"),
    (exceptions.InvalidResponse, UnreadableStoreError, "the server does not speak the Redis protocol"),
    (exceptions.ConnectionError, StoreUnavailableError, "the server cannot be reached"),
    (exceptions.RedisClusterException, StoreUnavailableError, "the cluster cannot be reached"),
    (OSError, StoreUnavailableError, "the server cannot be reached"),
)


def explain(url: str, error: BaseException, *, lost: bool = False) -> StoreError:
    """Return the Mnemic error for a driver error; `lost` means that a write may or may not have run."""
    cause = _driver_cause(error)
    if cause is not None:
        return explain(url, cause, lost=lost)
    message = " ".join(str(error).split())
    kind, hint = _meaning(error)
    if lost:
        hint += "; the write may or may not have been done: with an id it can safely be sent again"
    return kind(f"{url}: {hint} ({message[:300]})" if message else f"{url}: {hint}", unsure=lost)


def _driver_cause(error: BaseException) -> Exception | None:
    """Return why something failed, for errors that only say that it failed.

    Any error that a node answers to the first question of a client of a cluster, be it that it still loads its data
    or that the user lacks the right, is told by the driver as "Cluster mode is not enabled", without a cause.
    """
    if not isinstance(error, NotSentError | exceptions.RedisClusterException):
        return None
    if isinstance(error.__cause__, Exception):
        return error.__cause__
    return error.__context__ if isinstance(error.__context__, exceptions.RedisError) else None


def is_refused(error: BaseException) -> bool:
    """Return whether a command was certainly not run, so that it can be retried."""
    if isinstance(error, _REFUSALS):
        return True
    cause = _driver_cause(error)
    return cause is not None and (is_refused(cause) or is_broken(cause))  # no node could tell which node to ask


def is_broken(error: BaseException) -> bool:
    """Return whether the connection broke during a command, which may have run."""
    if type(error) in (exceptions.ConnectionError, exceptions.TimeoutError):
        return True
    return not isinstance(error, exceptions.RedisError | exceptions.RedisClusterException)


def _meaning(error: BaseException) -> tuple[type[StoreError], str]:
    message = str(error)
    for text, kind, hint in _BY_TEXT:
        if text in message:
            return kind, hint
    for cls, kind, hint in _BY_CLASS:
        if isinstance(error, cls):
            return kind, hint
    return StoreError, "the server failed"
