"""`mnemic serve` as a process of its own, which a test can stop and kill, and a small client of it."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from servers.processes import HOST, Process, answers, free_port, new_folder


class Served:
    """A server on a port of this machine."""

    def __init__(self, url: str, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "mnemic", "serve", "--store", url, "--port", str(self.port), *flags]
        folder = new_folder("serve")
        self.process = Process(
            command,
            folder=folder,
            ready=lambda: answers(self.port),
            environment={"HOME": str(folder), **(environment or {})},
        )

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection(HOST, self.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status of an answer, and its JSON or text."""
        connection = self.connect()
        try:
            return ask(connection, method, path, body, **headers)
        finally:
            connection.close()

    @property
    def log(self) -> str:
        """Its output."""
        return self.process.log.read_text()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """Send a request; return the status of the answer, and its JSON or text. Raises OSError or HTTPException."""
    content = None if body is None else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, content, {"Content-Type": "application/json", **named})
    answer = connection.getresponse()
    text = answer.read().decode()
    return answer.status, json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text


@contextmanager
def served(url: str, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serve a store."""
    server = Served(url, *flags, environment=environment)
    server.process.start()
    try:
        yield server
    finally:
        server.process.kill()
