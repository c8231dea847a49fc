"""Limits of the server: slow, endless, dead and too many clients are refused or closed, and others are still served."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from mnemic.server.access import ACCESS, OPEN
from mnemic.server.connection import ClientConnection
from mnemic.server.limits import MAX_BUCKETS, Limiter, Limits, RateBuckets
from mnemic.server.request_metrics import RequestMetrics, RequestObserver
from mnemic.server.serving import Server, uvicorn_config
from mnemic.server.settings import Settings

HOST = "127.0.0.1"
PATIENCE = 100


class Application:
    """Paths that wait, stream, flood and read bodies; it tells what happens in it."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.bodies: list[int] = []
        self.access: Any = OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/wait":
            self.begun.release()
            await self.release.wait()
        elif path in ("/stream", "/flood"):
            await StreamingResponse(self._chunks(path))(scope, receive, send)
            return
        elif scope["method"] == "POST":
            self.bodies.append(await self._read(receive))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _chunks(self, path: str) -> AsyncIterator[bytes]:
        yield b"first"
        while path == "/flood":
            yield bytes(65_536)
        await asyncio.Event().wait()

    async def _read(self, receive: Receive) -> int:
        size, more = 0, True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            size += len(message["body"])
            more = message["more_body"]
        return size


class Client:
    """A connection that sends bytes as they are given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_forever(self, data: bytes) -> None:
        """Send until the server closes the connection, which raises ConnectionError."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await self.send(data)
                await asyncio.sleep(0.001)

    async def head(self) -> str:
        """Return the head of an answer."""
        async with asyncio.timeout(PATIENCE):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def status(self) -> int:
        """Return the status of an answer, whose body is read."""
        head = await self.head()
        if length := re.search(r"content-length: (\d+)", head):
            await self.reader.readexactly(int(length[1]))
        return int(head.split()[1])

    async def ends(self) -> bytes:
        """Return the rest, when the server has closed the connection."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()


class Site:
    """A server with the application, in this event loop."""

    def __init__(self, app: Application, settings: Settings) -> None:
        self.app = app
        self.figures = RequestMetrics()
        self.limiter = Limiter(settings, self.figures)
        self._clients = AsyncExitStack()

        async def accessed(scope: Scope, receive: Receive, send: Send) -> None:
            scope[ACCESS] = app.access
            await Limits(app, self.limiter)(scope, receive, send)

        self._socket = socket.create_server((HOST, 0))
        self._port = self._socket.getsockname()[1]
        config = uvicorn_config(RequestObserver(accessed, self.figures, False), settings, self.figures)
        config.lifespan = "off"
        self.server = Server(config, self.limiter, lambda: None)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(HOST, self._port))
        self._clients.callback(client.writer.close)
        return client

    async def get(self, path: str = "/") -> Client:
        client = await self.connect()
        await client.send(request("GET", path))
        return client

    async def works(self) -> None:
        """Check that others are served."""
        assert await (await self.get("/")).status() == 200

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.serving

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        self.serving = asyncio.create_task(self.server._serve([self._socket]))  # signals are those of the tests
        try:
            yield self
        finally:
            self.app.release.set()
            await self._clients.aclose()
            await self.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode() + body


def on_a_site(**settings: Any) -> Callable[[Callable[[Site], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test with a server that has these settings."""

    def decorate(test: Callable[[Site], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                async with asyncio.timeout(2 * PATIENCE), Site(Application(), Settings(**settings)).running() as site:
                    await test(site)

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


# ------------------------------------------------------------ requests at a time


@on_a_site(max_requests=1, max_queued=1)
async def test_some_requests_wait_and_more_are_refused(site: Site) -> None:
    first = await site.get("/wait")
    await site.app.begun.acquire()
    second = await site.get("/")
    await until(lambda: site.figures.waiting > 0)
    third = await site.get("/")
    head = await third.head()
    assert head.startswith("HTTP/1.1 503 ")
    assert "retry-after: 1" in head
    assert await (await site.get("/live")).status() == 200
    site.app.release.set()
    assert [await first.status(), await second.status()] == [200, 200]
    assert site.figures.rejected == {"queue": 1}


@on_a_site(max_requests=1, queue_seconds=0.05)
async def test_a_request_does_not_wait_forever(site: Site) -> None:
    first = await site.get("/wait")
    await site.app.begun.acquire()
    assert await (await site.get("/")).status() == 503
    site.app.release.set()
    assert await first.status() == 200
    await site.works()


@on_a_site(max_requests=1)
async def test_a_client_that_leaves_the_queue_takes_no_place(site: Site) -> None:
    first = await site.get("/wait")
    await site.app.begun.acquire()
    gone = [await site.get("/wait") for _ in range(3)]
    for client in gone:
        client.writer.transport.abort()
    site.app.release.set()
    assert await first.status() == 200
    await site.works()


# ------------------------------------------------------------ rates


@on_a_site(rate=0.01, rate_burst=2)
async def test_too_many_requests_of_one_key_are_refused(site: Site) -> None:
    site.app.access = None
    client = await site.connect()
    for expected in (200, 200, 429):
        await client.send(request("GET", "/"))
        if expected == 429:
            assert "retry-after: 100" in await client.head()
        else:
            assert await client.status() == expected
    site.app.access = OPEN
    await site.works()


def test_a_bucket_fills_again_and_the_table_stays_small() -> None:
    rates = RateBuckets(10, 2)
    assert [rates.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 0.1]
    assert [rates.take("a", 0.1), rates.take("a", 0.1)] == [0.0, 0.1]
    assert [rates.take("a", 9.0) for _ in range(3)] == [0.0, 0.0, 0.1]
    for n in range(2 * MAX_BUCKETS):
        rates.take(str(n), 9.0)
    assert len(rates._buckets) == MAX_BUCKETS
    assert RateBuckets(0, 1).take("a", 0.0) == 0.0


# ------------------------------------------------------------ bodies


@on_a_site(max_body_bytes=1024)
async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/", "Content-Length: 1025", "Expect: 100-continue"))
    assert await client.status() == 413
    await client.send(bytes(1025) + request("POST", "/", "Content-Length: 3", body=b"abc"))
    assert await client.status() == 200, "the connection can be used again when the body was sent after all"
    assert site.app.bodies == [3]


@on_a_site(max_body_bytes=100_000)
async def test_an_endless_body_is_refused_and_ended(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/", "Transfer-Encoding: chunked"))
    with pytest.raises(ConnectionError):
        await client.send_forever(b"2000\r\n" + bytes(0x2000) + b"\r\n")
    assert site.figures.rejected["body_size"] == 1
    assert site.app.bodies == []
    assert site.figures.buffered == 0
    await site.works()


@on_a_site(max_body_bytes=100_000)
async def test_the_client_sees_why_an_endless_body_was_refused(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/", "Transfer-Encoding: chunked"))
    for _ in range(20):
        await client.send(b"2000\r\n" + bytes(0x2000) + b"\r\n")
    assert await client.status() == 413


@on_a_site(body_seconds=0.1, max_requests=1)
async def test_a_body_that_does_not_arrive_is_refused_and_takes_no_place(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/", "Content-Length: 10", body=b"abc"))
    await site.works()
    assert await client.status() == 408
    assert site.app.bodies == []


@on_a_site(max_requests=1)
async def test_a_client_that_dies_in_the_middle_of_a_body_is_forgotten(site: Site) -> None:
    for _ in range(5):
        client = await site.connect()
        await client.send(request("POST", "/", "Content-Length: 100000", body=bytes(50_000)))
        await site.works()
        client.writer.transport.abort()
    await until(lambda: not site.figures.running and not site.figures.buffered)
    assert site.app.bodies == []


@on_a_site(max_buffered_bytes=100_000)
async def test_the_bodies_of_all_requests_together_are_limited(site: Site) -> None:
    first = await site.connect()
    await first.send(request("POST", "/", "Content-Length: 90000", body=bytes(60_000)))
    await until(lambda: site.figures.buffered >= 60_000)
    second = await site.connect()
    await second.send(request("POST", "/", "Content-Length: 50000", body=bytes(50_000)))
    assert await second.status() == 503
    await first.send(bytes(30_000))
    assert await first.status() == 200
    assert site.app.bodies == [90_000]


@on_a_site(max_import_bytes=100_000, max_body_bytes=1024, max_streams_per_key=1, max_requests=1)
async def test_an_import_is_read_as_a_stream_with_its_own_limits(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/api/v1/import", "Transfer-Encoding: chunked", body=b"4\r\nabcd\r\n"))
    await until(lambda: site.figures.streams > 0)
    await site.works()
    await client.send(b"8\r\nabcdefgh\r\n0\r\n\r\n")
    assert await client.status() == 200
    assert site.app.bodies == [12]
    await client.send(request("POST", "/api/v1/import", "Transfer-Encoding: chunked"))
    for _ in range(20):
        await client.send(b"2000\r\n" + bytes(0x2000) + b"\r\n")
    assert await client.status() == 413
    await until(lambda: not site.figures.streams)


# ------------------------------------------------------------ streams


@on_a_site(max_requests=1, max_streams=3, max_streams_per_key=3)
async def test_streams_take_no_places_and_are_limited(site: Site) -> None:
    streams = [await site.get("/stream") for _ in range(3)]
    for stream in streams:
        assert (await stream.head()).startswith("HTTP/1.1 200 ")
    await site.works()
    assert await (await site.get("/stream")).status() == 503
    streams[0].writer.close()
    await until(lambda: site.figures.streams < 3)
    assert (await (await site.get("/stream")).head()).startswith("HTTP/1.1 200 ")
    assert site.figures.rejected == {"streams": 1}


@on_a_site(max_streams_per_key=1)
async def test_the_streams_of_one_key_are_limited(site: Site) -> None:
    site.app.access = None
    assert (await (await site.get("/stream")).head()).startswith("HTTP/1.1 200 ")
    assert await (await site.get("/stream")).status() == 429


@on_a_site(max_requests=1)
async def test_a_thousand_open_streams_leave_others_served(site: Site) -> None:
    streams = [await site.get("/stream") for _ in range(1000)]
    for stream in streams:
        assert (await stream.head()).startswith("HTTP/1.1 200 ")
    await site.works()
    assert site.figures.streams == 1000


@on_a_site(write_seconds=0.1)
async def test_a_client_that_does_not_read_is_closed(site: Site) -> None:
    client = await site.get("/flood")
    await client.head()
    await site.works()
    await until(lambda: not site.figures.streams)
    assert site.figures.rejected == {"unread": 1}
    await site.works()


# ------------------------------------------------------------ connections and headers


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("GET", "/", f"X: {'a' * 2000}"), 431),
        (request("GET", f"/{'a' * 2000}"), 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 500, 431),
        (b"GET / HTTP/1.1\r\nX: a", 408),
        (b"\r\n", 408),
        (b"", 408),
        (b"hello\r\n\r\n", 400),
    ],
)
def test_a_bad_head_is_refused(sent: bytes, status: int) -> None:
    @on_a_site(max_header_bytes=1024, header_seconds=0.5 if status == 408 else 60)
    async def check(site: Site) -> None:
        client = await site.connect()
        await client.send(sent)
        assert await client.status() == status
        assert await client.ends() == b""
        await site.works()

    check()


@on_a_site(max_header_bytes=1024)
async def test_a_long_body_beside_a_short_head_is_no_long_head(site: Site) -> None:
    client = await site.connect()
    await client.send(request("POST", "/", "Content-Length: 20000", body=bytes(20_000)))
    assert await client.status() == 200


@on_a_site()
async def test_a_connection_may_be_idle_between_requests_for_longer_than_a_head_takes(site: Site) -> None:
    client = await site.connect()
    for sent in (b"", b"\r\n"):
        await client.send(sent + request("POST", "/", "Content-Length: 3", body=b"abc"))
        assert await client.status() == 200
        (connection,) = site.server.server_state.connections
        assert isinstance(connection, ClientConnection)
        assert connection._head_timer is None
        assert connection.timeout_keep_alive_task is not None
    await client.send(b"\r\n")
    assert isinstance(connection, ClientConnection)
    timed = connection
    await until(lambda: timed._head_timer is not None)


@on_a_site(max_connections=3)
async def test_too_many_connections_are_refused(site: Site) -> None:
    some = [await site.get("/wait") for _ in range(3)]
    for _ in some:
        await site.app.begun.acquire()
    assert await (await site.connect()).status() == 503
    site.app.release.set()
    assert [await client.status() for client in some] == [200, 200, 200]


# ------------------------------------------------------------ stopping


@on_a_site()
async def test_a_stop_finishes_requests_and_ends_streams(site: Site) -> None:
    waiting, stream, idle = await site.get("/wait"), await site.get("/stream"), await site.get("/")
    await site.app.begun.acquire()
    assert (await stream.head()).startswith("HTTP/1.1 200 ")
    assert await idle.status() == 200
    stopping = asyncio.create_task(site.stop())
    assert await stream.ends() == b"5\r\nfirst\r\n0\r\n\r\n", "the stream ends as if it were complete"
    assert await idle.ends() == b""
    with pytest.raises(ConnectionError):
        await site.connect()
    site.app.release.set()
    assert await waiting.status() == 200
    await stopping
