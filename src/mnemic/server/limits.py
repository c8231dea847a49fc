"""Limits, as an ASGI application around another: rate, body, requests at a time, open streams.

A request passes them in this order. Its body is complete before it takes one of the places, so that slow clients take
none. An answer to a GET that has no length is a stream, which gives its place back and is counted apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable
from math import ceil
from time import monotonic
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import ACCESS
from .problems import problem_response
from .request_metrics import RequestMetrics
from .settings import Settings

__all__ = ["Limiter", "Limits"]

UNLIMITED = ("/live", "/ready")
IMPORT = "/api/v1/import"
"""The path whose body is read as a stream."""
LEAST_RATE = 16_384
"""Bytes of a body for which a client gets another second."""
MAX_BUCKETS = 10_000
"""How many keys and addresses have their rates counted; the ones that were idle for longest are forgotten."""
DETAILS = {
    "rate": (429, "There were too many requests with this key."),
    "queue": (503, "The server has too many requests; this one was not begun."),
    "buffer": (503, "The bodies of all requests take too much memory; this one was not begun."),
    "streams": (503, "The server has too many open streams."),
    "streams_per_key": (429, "There are too many open streams with this key."),
    "body_size": (413, "The body is larger than {:,} bytes."),
    "body_time": (408, "The body did not arrive in time."),
    "stopping": (503, "The server is stopping."),
}


class RefusedError(Exception):
    """A request that a limit refuses."""

    def __init__(self, reason: str, retry_after: float = 1.0, most: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        status, detail = DETAILS[reason]
        self.status: int = status
        self.detail: str = detail.format(most)
        self.headers: dict[str, str] | None = None
        if status in (429, 503):
            self.headers = {"Retry-After": str(max(1, ceil(retry_after)))}


class Slots:
    """A bounded number of places, for which a bounded number may wait in turn for a bounded time."""

    def __init__(self, most: int, most_waiting: int, seconds: float, figures: RequestMetrics) -> None:
        self._free = most
        self._most_waiting = most_waiting
        self._seconds = seconds
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._figures = figures

    def take(self) -> Awaitable[bool] | None:
        """Take a place; None if one was free, else what waits for one and tells whether it got it."""
        if self._free and not self._waiting:
            self._free -= 1
            return None
        return self._wait()

    async def _wait(self) -> bool:
        if len(self._waiting) >= self._most_waiting:
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        self._figures.waiting = len(self._waiting)
        timer = loop.call_later(self._seconds, _give_up, turn)
        try:
            got = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()
            raise
        finally:
            timer.cancel()
            if turn in self._waiting:
                self._waiting.remove(turn)
            self._figures.waiting = len(self._waiting)
        return got

    def leave(self) -> None:
        """Give a place to the next that waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


def _give_up(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


class RateBuckets:
    """A token bucket for each key or address, in a table of bounded size."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str, now: float) -> float:
        """Take a token; return 0, or else the seconds until there is one."""
        if not self._rate:
            return 0.0
        tokens, then = self._buckets.pop(who, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._rate)
        self._buckets[who] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if tokens >= 1 else (1 - tokens) / self._rate


class Limiter:
    """Counts of one server that its limits compare."""

    def __init__(self, settings: Settings, figures: RequestMetrics) -> None:
        self.settings = settings
        self.figures = figures
        self.places: Slots = Slots(settings.max_requests, settings.max_queued, settings.queue_seconds, figures)
        self.rates: RateBuckets = RateBuckets(settings.rate, settings.rate_burst)
        self.streams_of: Counter[str | None] = Counter()
        self.ended_at_stop: set[asyncio.Task[Any]] = set()
        self.stopping: bool = False

    def stop(self) -> None:
        """End all streams, and refuse new ones."""
        self.stopping = True
        for task in self.ended_at_stop:
            task.cancel()

    def open_stream(self, who: str | None) -> None:
        """Count a stream of a key or address; raises RefusedError if there are too many."""
        if self.stopping:
            raise RefusedError("stopping")
        if self.figures.streams >= self.settings.max_streams:
            raise RefusedError("streams")
        if who is not None and self.streams_of[who] >= self.settings.max_streams_per_key:
            raise RefusedError("streams_per_key")
        self.figures.streams += 1
        self.streams_of[who] += 1

    def close_stream(self, who: str | None) -> None:
        """Count a stream no longer."""
        self.figures.streams -= 1
        self.streams_of[who] -= 1
        if not self.streams_of[who]:
            del self.streams_of[who]


class Limits:
    """Serves the requests that are within the limits, and refuses the others."""

    def __init__(self, app: ASGIApp, limiter: Limiter) -> None:
        self._app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http" or scope["path"] in UNLIMITED:
            await self._app(scope, receive, send)
        else:
            await _LimitedRequest(self._app, self._limiter, scope, receive, send).pass_limits()


class _LimitedRequest:
    """A request on its way through the limits."""

    __slots__ = (
        "_app", "_body", "_buffered", "_ended", "_has_place", "_is_stream", "_limiter", "_receive", "_refused",
        "_scope", "_seconds", "_send", "_size", "_started", "_task", "_who",
    )  # fmt: skip

    def __init__(self, app: ASGIApp, limiter: Limiter, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._limiter, self._scope, self._receive, self._send = app, limiter, scope, receive, send
        self._who = _who(scope)
        self._task = asyncio.current_task()
        self._has_place = self._is_stream = self._started = self._ended = self._refused = False
        self._body: bytes | None = None
        self._buffered = self._size = 0
        self._seconds = limiter.settings.body_seconds

    async def pass_limits(self) -> None:
        """Serve the request within the limits."""
        try:
            await self._serve()
        except RefusedError as error:
            await self._refuse(error)
        except asyncio.CancelledError:
            if self._task not in self._limiter.ended_at_stop or not self._limiter.stopping:
                raise
            assert self._task is not None
            self._task.uncancel()
            if self._started and not self._ended:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception:
            # What was refused while the application worked on it ends there with any error.
            if not self._refused:
                raise
        finally:
            self._limiter.figures.buffered -= self._buffered
            if self._has_place:
                self._limiter.places.leave()
            if self._is_stream:
                self._limiter.close_stream(self._who)
                self._limiter.ended_at_stop.discard(self._task)

    async def _serve(self) -> None:
        scope, limiter = self._scope, self._limiter
        settings = limiter.settings
        if self._who is not None and (seconds := limiter.rates.take(self._who, monotonic())):
            raise RefusedError("rate", seconds)
        streamed = scope["path"] == IMPORT
        most = settings.max_import_bytes if streamed else settings.max_body_bytes
        length = _body_length(scope)
        if length is not None and length > most:
            raise RefusedError("body_size", most=most)
        if streamed:
            limiter.open_stream(self._who)
            self._is_stream = True
            await self._app(scope, self._next_part, self._watched)
            return
        if length != 0 and not await self._read_body(most):
            return
        turn = limiter.places.take()
        if turn is not None and not await turn:
            raise RefusedError("queue")
        self._has_place = True
        await self._app(scope, self._replay, self._watched if scope["method"] in ("GET", "HEAD") else self._send)

    async def _read_body(self, most: int) -> bool:
        """Read the whole body; return False if the client is gone. Raises RefusedError."""
        parts, more = [], True
        figures = self._limiter.figures
        while more:
            message = await self._part_in_time(most)
            if message["type"] != "http.request":
                return False
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            self._buffered += len(parts[-1])
            figures.buffered += len(parts[-1])
            if figures.buffered > self._limiter.settings.max_buffered_bytes:
                raise RefusedError("buffer")
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        return True

    async def _part_in_time(self, most: int) -> Message:
        """Return the next part of the body; raises RefusedError if it comes too late, or is too much."""
        began = monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise RefusedError("body_time") from None
        size = len(message.get("body", b""))
        # Only the time in which the server waits counts: it may be slower than the client.
        self._seconds += size / LEAST_RATE - (monotonic() - began)
        self._size += size
        if self._size > most:
            raise RefusedError("body_size", most=most)
        return message

    async def _replay(self) -> Message:
        """Return the body that was read, and then what the client does."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _next_part(self) -> Message:
        """Return the next part of an import; one that is refused is answered, and looks like a client that is gone."""
        if self._refused:
            return {"type": "http.disconnect"}
        if self._body is not None:
            return await self._receive()
        try:
            message = await self._part_in_time(self._limiter.settings.max_import_bytes)
        except RefusedError as error:
            await self._refuse(error)
            return {"type": "http.disconnect"}
        if not message.get("more_body", False):
            self._body = b""
        return message

    async def _watched(self, message: Message) -> None:
        """Send a part of the answer; one to a GET that has no length becomes a stream."""
        if self._refused:
            return
        if message["type"] == "http.response.start":
            if self._has_place and not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                await self._become_stream()
            self._started = True
        elif not message.get("more_body", False):
            self._ended = True
        await self._send(message)
        if self._is_stream:
            # A stream that never waits would keep others from being served, and from learning that its client is gone.
            await asyncio.sleep(0)

    async def _become_stream(self) -> None:
        try:
            self._limiter.open_stream(self._who)
        except RefusedError as error:
            await self._refuse(error)
            raise ConnectionError("the stream was refused") from None
        self._is_stream = True
        self._has_place = False
        self._limiter.places.leave()
        assert self._task is not None
        self._limiter.ended_at_stop.add(self._task)

    async def _refuse(self, error: RefusedError) -> None:
        self._refused = True
        self._limiter.figures.reject(error.reason)
        if not self._started:
            response = problem_response(error.status, error.detail, headers=error.headers)
            await response(self._scope, self._receive, self._send)


def _who(scope: Scope) -> str | None:
    """Return who is limited: a key, or an address without one; None is no one, on a server without keys."""
    access = scope.get(ACCESS)
    if access is None:
        client = scope.get("client")
        return f"address {client[0]}" if client else "address"
    return f"key {access.key}" if getattr(access, "key", None) is not None else None


def _body_length(scope: Scope) -> int | None:
    """Return the length of the body; 0 if there is none, None if it is not known."""
    chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            chunked = True
    return None if chunked else 0
