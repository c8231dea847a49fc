"""A server of many stores, each under the first segment of the path and created when it is first asked for."""

from __future__ import annotations

import asyncio
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import mnemic
from mnemic.records import now
from mnemic.server.app import build_app
from mnemic.server.settings import Settings
from mnemic.store.wire import CLOCK_HEADER
from servers.stores import empty_file

SETTINGS = Settings(rate=0, max_body_bytes=64 * 1024 * 1024)


class Stores:
    """An ASGI application over all stores; `DELETE /NAME` closes and deletes one.

    A request with the clock of its client is answered as if it were that time, for tests that move the clock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opening = asyncio.Lock()
        self._ahead = timedelta(0)
        self._apps: dict[str, tuple[mnemic.AsyncMemory, Starlette]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        name, _, rest = scope["path"].lstrip("/").partition("/")
        if not rest:
            if scope["method"] == "DELETE":
                await self._delete(name)
            await Response()(scope, receive, send)
            return
        headers = dict(scope["headers"])
        moment = headers.pop(CLOCK_HEADER.lower().encode(), None)
        self._ahead = timedelta(0) if moment is None else datetime.fromisoformat(moment.decode()) - now()
        app = await self._app(name)
        path = f"/{rest}"
        await app({**scope, "path": path, "raw_path": path.encode(), "headers": list(headers.items())}, receive, send)

    async def _app(self, name: str) -> Starlette:
        async with self._opening:
            if name in self._apps:
                return self._apps[name][1]
            folder = self._folder / name
            known = folder.exists()  # after a restart
            folder.mkdir(exist_ok=True)
            url = f"sqlite:///{folder / 'memory.db'}?synchronous=normal"
            if not known:
                empty_file(folder)
            memory = await mnemic.open_async(url, clock=lambda: now() + self._ahead)
            app = build_app(memory, SETTINGS)
            self._apps[name] = (memory, app)
            return app

    async def _delete(self, name: str) -> None:
        if name in self._apps:
            memory, _ = self._apps.pop(name)
            await memory.close()
            shutil.rmtree(self._folder / name)


if __name__ == "__main__":
    uvicorn.run(
        Stores(Path(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools",
        access_log=False, lifespan="off",
    )  # fmt: skip
