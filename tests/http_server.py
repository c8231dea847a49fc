"""A real server on a free port of this machine, in a thread, and a client of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx
import uvicorn

import mnemic
from mnemic.server.api_keys import ApiKeys
from mnemic.server.app import build_app
from mnemic.server.settings import Settings


def make_key(url: str, scope: str, *rights: str) -> str:
    """Create a key in the store at a URL; return its secret."""
    with mnemic.open(url) as memory:
        return memory._driver.run(ApiKeys(memory._async).create("test", scope, rights)).secret


@contextmanager
def serving(url: str = "memory://", *, settings: Settings | None = None, **options: Any) -> Iterator[httpx.Client]:
    """Serve the memory at a URL, opened with these options; give a client of it."""
    started: Future[uvicorn.Server] = Future()
    listening = socket.create_server(("127.0.0.1", 0))
    # asyncio sets it only for a socket whose protocol is named, and this one's is not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def serve() -> None:
        async with mnemic.open_async(url, **options) as memory:
            app = build_app(memory, settings or Settings())
            # A connection that is idle for long is not closed just when the next request comes.
            config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_keep_alive=600)
            server = uvicorn.Server(config)
            started.set_result(server)
            await server.serve([listening])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = Thread(target=run)
    thread.start()
    server = started.result(120)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=120) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
