"""A Mnemic server in a process of its own, with a store on SQLite for each test."""

from __future__ import annotations

import functools
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from .processes import HOST, Process, answers, free_port, needed, new_folder


class HttpServer:
    """A server that keeps its port and its stores across restarts."""

    def __init__(self) -> None:
        for module in ("aiohttp", "starlette", "uvicorn"):
            needed(module)
        self.port: int = free_port()
        folder = new_folder("http")
        (folder / "stores").mkdir()
        argv: list[str | Path] = [sys.executable, "-m", "servers.mnemic_app", str(self.port), folder / "stores"]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process: Process = Process(argv, folder=folder, ready=lambda: answers(self.port), environment=environment)
        self.process.start()

    @property
    def address(self) -> str:
        """The address, without a store."""
        return f"http://{HOST}:{self.port}"


@functools.cache
def server() -> HttpServer:
    """Return the server that all tests share."""
    return HttpServer()


@contextmanager
def empty_served_store(_folder: Path | None = None) -> Iterator[str]:
    """Provide the URL of a new store, which is deleted afterwards; without the circuit breaker, and with patience."""
    place = f"{server().address}/trial-{uuid4().hex[:12]}"
    try:
        yield f"{place}/?breaker=0&timeout=60"
    finally:
        if server().process.pid is not None:
            request = urllib.request.Request(place, method="DELETE")
            urllib.request.urlopen(request).close()
