"""Calls to a Mnemic server: safe retries, a circuit breaker, and the mapping of errors."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4
from weakref import finalize

import aiohttp
from msgspec import DecodeError, ValidationError, json

from ...errors import (
    InvalidValueError,
    MnemicError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from ...store.availability import cause_name
from ...store.wire import DEADLINE_HEADER, PATH, SERVER_HEADER, WRITE_HEADER
from ...telemetry.calls import count
from ..calls import Calls
from .problems import error_of

ATTEMPTS = 5
"""How often a call is tried."""
REPEATED_FOR = 30.0
"""How many seconds a write is repeated; the server remembers it longer."""
LARGEST = 256 * 1024 * 1024
"""Maximum size of an answer, in bytes."""
LARGE_BODY = 2**20
BUSY = (429, 503)
"""Statuses of a server that has done nothing, and can be asked again."""
GATEWAY = (502, 504)
"""Statuses of a proxy that got no answer from the server."""

log: logging.Logger = logging.getLogger("mnemic.store")

Result = TypeVar("Result")


_encoder = json.Encoder()
COOLDOWN = 5.0
"""How many seconds calls fail at once, before one tries whether the server answers again."""


class ConnectionOptions(NamedTuple):
    """Where the server is, and how to connect."""

    url: str
    """The URL without secrets, for messages."""
    address: str
    headers: dict[str, str]
    timeout: float
    connect_timeout: float
    connections: int
    failures: int
    """How many failures in a row open the circuit breaker."""
    ssl: Any = True


class _RetryError(Exception):
    """An attempt that failed, and may succeed later; `wait` seconds from now, if the server said so."""

    def __init__(self, error: MnemicError, *, sent: bool, wait: float | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.sent = sent
        self.wait = wait


class _Connector(aiohttp.TCPConnector):
    """Connections that end with the program, or with what used them, without a complaint if nobody closed them."""

    @property
    def closed(self) -> bool:
        return super().closed or sys.is_finalizing()

    def __del__(self, *arguments: Any) -> None:
        """Do nothing: the sockets are closed with their transports."""


class HttpClient:
    """Sends calls to a server."""

    def __init__(self, connecting: ConnectionOptions) -> None:
        self.url: str = connecting.url
        self._connecting = connecting
        self._calls = Calls(connecting.url, connecting.timeout, self._connect, _disconnect)
        self._breaker = CircuitBreaker(connecting.url, connecting.failures)
        self._server: tuple[str, float] | None = None
        """Id of the server's process, and how far its clock is ahead of the one here, as far as is known."""

    async def get(self, path: str, decode: Callable[[bytes], Result]) -> Result:
        """Return the decoded answer to a GET of a path."""
        return await self._run("GET", path, None, decode, {}, repeatable=True)

    async def send(self, method: str, path: str, asked: Any, decode: Callable[[bytes], Result]) -> Result:
        """Make a change by the HTTP API, and return the decoded answer; repeated and raises as `write` without an id.

        The endpoint must recognize a repetition.
        """
        return await self._change(method, path, asked, decode, {}, has_id=False)

    async def read(
        self, call: str, asked: Any, decode: Callable[[bytes], Result], headers: dict[str, str] | None = None
    ) -> Result:
        """Make a call that changes nothing, and return its decoded answer."""
        return await self._run("POST", f"{PATH}/{call}", _encode(asked), decode, headers or {}, repeatable=True)

    async def write(
        self, call: str, asked: Any, decode: Callable[[bytes], Result], headers: dict[str, str], *, has_id: bool
    ) -> Result:
        """Make a call that changes something, and return its decoded answer.

        It is repeated if it certainly was not done, or if the server recognizes the repetition. Raises
        StoreUnavailableError if it is unknown whether it was done.
        """
        return await self._change("POST", f"{PATH}/{call}", asked, decode, headers, has_id=has_id)

    async def _change(
        self,
        method: str,
        path: str,
        asked: Any,
        decode: Callable[[bytes], Result],
        headers: dict[str, str],
        *,
        has_id: bool,
    ) -> Result:
        own = {**headers, WRITE_HEADER: uuid4().hex}
        if self._server is not None:
            process, ahead = self._server
            own[DEADLINE_HEADER] = f"{process} {time.monotonic() + self._connecting.timeout + ahead:.3f}"
        body = None if asked is None else _encode(asked)
        return await self._run(method, path, body, decode, own, repeatable=has_id)

    async def close(self) -> None:
        await self._calls.close()

    async def _run(
        self,
        method: str,
        path: str,
        body: bytes | None,
        decode: Callable[[bytes], Result],
        headers: dict[str, str],
        *,
        repeatable: bool,
    ) -> Result:
        address = f"{self._connecting.address}{path}"
        start = time.monotonic()
        asked = self._server

        changes = WRITE_HEADER in headers

        async def work(session: aiohttp.ClientSession) -> Result:
            lost = False
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return self._decoded(decode, await self._send(session, method, address, body, headers))
                except MnemicError as error:
                    error.unsure = changes and (lost or error.unsure)
                    raise
                except _RetryError as again:
                    lost |= again.sent
                    again.error.unsure = changes and (lost or again.error.unsure)
                    passed = time.monotonic() - start
                    backoff = random.uniform(0.5, 1) * min(1.0, 0.05 * 2**attempt)  # noqa: S311
                    wait = backoff if again.wait is None else again.wait
                    late = passed + wait > self._connecting.timeout
                    if again.sent and not repeatable:
                        # Only the process that got the first attempt knows whether it was done.
                        late |= asked is None or passed > REPEATED_FOR
                        headers[SERVER_HEADER] = "" if asked is None else asked[0]
                    if late or attempt == ATTEMPTS:
                        raise again.error from again.__cause__
                    count("retries", "connection")
                    log.debug("%s: failed attempt %d (%s)", self.url, attempt, cause_name(again))
                    await asyncio.sleep(wait)
            raise AssertionError("unreachable: the last attempt returns or raises")

        with self._breaker.watch():
            return await self._calls.run(work, changes=changes)

    async def _send(
        self, session: aiohttp.ClientSession, method: str, address: str, body: bytes | None, headers: dict[str, str]
    ) -> bytes:
        """Send a request once; raises _AgainError if it can be sent again, or the error of the answer."""
        try:
            # aiohttp sends large bytes in parts only if they come as a file.
            data = BytesIO(body) if body is not None and len(body) > LARGE_BODY else body
            async with session.request(
                method, address, data=data, headers=headers, allow_redirects=False, ssl=self._connecting.ssl
            ) as response:
                self._learn(response.headers.get(SERVER_HEADER, ""))
                content = await self._content(response)
                if response.status in (200, 201):
                    return content
                error = error_of(self.url, response.status, response.headers.get("Location"), content)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            # The server was not reached, so nothing was done.
            unreachable = _unreachable(self.url, failure)
            if isinstance(unreachable, StoreUnavailableError):
                raise _RetryError(unreachable, sent=False) from failure
            raise unreachable from failure
        except MnemicError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            hint = "the connection broke, or the answer is not HTTP"
            if WRITE_HEADER in headers:
                hint += "; the write may or may not have been done: with an id it can safely be sent again"
            lost = StoreUnavailableError(f"{self.url}: {hint} ({_brief(failure)})")
            raise _RetryError(lost, sent=True) from failure
        if response.status in BUSY and not isinstance(error, StoreUnavailableError):
            raise _RetryError(error, sent=False, wait=_seconds(response.headers.get("Retry-After")))
        if response.status in GATEWAY:
            raise _RetryError(error, sent=True)
        raise error

    def _learn(self, stamp: str) -> None:
        """Learn from an answer which process gave it, and its clock."""
        process, _, clock = stamp.partition(" ")
        if clock.replace(".", "", 1).isdecimal():
            ahead = float(clock) - time.monotonic()
            if self._server is not None and self._server[0] == process:
                ahead = max(ahead, self._server[1])  # the answer that took the shortest time tells best
            self._server = (process, ahead)

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], response.content_length or 0
        if size <= LARGEST:
            size = 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > LARGEST:
                    break
                parts.append(part)
        if size > LARGEST:
            response.close()
            error = TooLargeError(f"{self.url}: an answer has more than {LARGEST:,} bytes; ask for less at once")
            error.unsure = True
            raise error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _decoded(self, decode: Callable[[bytes], Result], content: bytes) -> Result:
        try:
            return decode(content)
        except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableStoreError(
                f"{self.url}: the answer is not of a Mnemic server of this version ({error})", unsure=True
            ) from error

    async def _connect(self) -> aiohttp.ClientSession:
        how = self._connecting
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=how.connect_timeout)
        session = aiohttp.ClientSession(
            connector=_Connector(limit=how.connections),
            headers=how.headers,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        finalize(self, session.detach).atexit = False
        return session


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"the call has a value that cannot be sent: {error}") from error


async def _disconnect(session: aiohttp.ClientSession) -> None:
    with suppress(Exception):  # a connection that fails to close is gone, too
        await session.close()


def _unreachable(url: str, failure: Exception) -> StoreError:
    """Return the error for a connection that could not be made."""
    if isinstance(failure, aiohttp.ClientConnectorCertificateError):
        hint = "the server's certificate is not trusted; name who signed it with ssl_ca_certs"
        return StorePermissionError(f"{url}: {hint} ({_brief(failure)})")
    return StoreUnavailableError(f"{url}: the server cannot be reached ({_brief(failure)})", unsure=False)


def _brief(failure: Exception) -> str:
    return " ".join(str(failure).split())[:300] or type(failure).__name__


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After; None for a date, or nothing."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None


class CircuitBreaker:
    """Counts failures in a row; for the calls of one event loop."""

    def __init__(self, url: str, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take how many failures in a row open it; 0 for never."""
        self._url = url
        self._most = failures
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a call, and count it if it fails; raises StoreUnavailableError at once while the breaker is open."""
        is_open = 0 < self._most <= self._failures
        if is_open and (self._trying or self._clock() < self._until):
            raise StoreUnavailableError(
                f"{self._url} was unavailable {self._failures} times in a row, and is not asked for "
                f"{COOLDOWN:g} seconds; nothing was sent",
                unsure=False,
            )
        self._trying = is_open
        try:
            yield
        except StoreUnavailableError:
            self._failures += 1
            self._until = self._clock() + COOLDOWN
            raise
        else:
            self._failures = 0
        finally:
            if is_open:
                self._trying = False
