"""`mnemic serve` under load: 50 clients that append and recall, against the same calls in process, on equal files.

`python -m benchmarks.serving --minutes 10` shows instead how much memory the server takes as time passes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile

from msgspec import Struct, field, json

import mnemic

from .measuring import Result
from .recalling import QUESTIONS, Texts

CLIENTS = 50
SECONDS = 60.0
"""How long the clients of the server work, in all rounds together."""
CALLS = 20
"""Calls that each client makes in a round, half of them appends."""
MEMORIES = 100
"""Memories of each user before it begins."""
REBUILT, BATCH = 1500, 50
"""Messages of each user, in batches, before the growth of memory is measured."""
LEAST_SHARE = 0.40
MOST_GROWTH = 0.10
PAGE = os.sysconf("SC_PAGE_SIZE")


class Measured(Struct):
    """What the clients have seen."""

    calls: int = 0
    seconds: float = 0.0
    errors: int = 0
    latencies: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection, which sends requests as they are and reads no more of the answers than it must."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""
        self.answered: asyncio.Future[tuple[int, bytes]] | None = None

    def data_received(self, data: bytes) -> None:
        """Take the answer when it is complete."""
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self.buffer.find(b"content-length: ") + 16
        whole = end + 4 + int(self.buffer[start : self.buffer.index(b"\r", start)])
        if len(self.buffer) >= whole and self.answered is not None:
            answered, self.answered = self.answered, None
            answered.set_result((int(self.buffer[9:12]), self.buffer[end + 4 : whole]))
            self.buffer = self.buffer[whole:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits for an answer."""
        if self.answered is not None:
            self.answered.set_exception(exc or ConnectionResetError())

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a request."""
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.answered


def post(path: str, body: object) -> bytes:
    """Return a request as it is sent."""
    content = json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return f"{head}\r\n\r\n".encode() + content


@contextmanager
def served(url: str) -> Iterator[tuple[int, int]]:
    """Serve a store in a process of its own; give its port and its process id."""
    command = [sys.executable, "-m", "mnemic", "serve", "--store", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(found[1] for line in process.stdout if (found := re.search(r"^API .*:(\d+)/", line)))
            yield int(port), process.pid
        finally:
            process.terminate()


TEXTS = Texts()


def said(count: int) -> list[list[str]]:
    """Return so many sentences for each user."""
    return [TEXTS.some(count) for _ in range(CLIENTS)]


async def fill(url: str) -> None:
    """Give each user some memories."""
    async with mnemic.open_async(url, audit=True) as memory:
        for user, texts in enumerate(said(MEMORIES)):
            await memory.scope("acme", f"user{user}").remember_many(texts)


class InProcess:
    """The calls in this process."""

    def __init__(self, memory: mnemic.AsyncMemory) -> None:
        self._scopes = [memory.scope("acme", f"user{user}") for user in range(CLIENTS)]
        self._chats = [scope.session("chat") for scope in self._scopes]

    async def call(self, user: int, n: int, text: str) -> bool:
        """Append or recall; return whether the answer is as it should be."""
        if n % 2:
            return bool(await self._scopes[user].recall(QUESTIONS[n % len(QUESTIONS)]))
        return (await self._chats[user].add("user", text)).text == text


class OverHTTP:
    """The same calls of a server."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    async def call(self, user: int, n: int, text: str) -> bool:
        """Append or recall; return whether the answer is as it should be."""
        scope = f"acme%2Fuser{user}"
        if n % 2:
            request = post(f"/api/v1/recall?scope={scope}", {"query": QUESTIONS[n % len(QUESTIONS)]})
            status, body = await self._clients[user].ask(request)
            return status == 200 and b'"score"' in body
        request = post(f"/api/v1/sessions/chat/messages?scope={scope}", {"role": "user", "content": text})
        status, _ = await self._clients[user].ask(request)
        return status == 201


async def connect(port: int) -> list[Client]:
    """Connect all clients."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(CLIENTS)]


async def work(side: InProcess | OverHTTP, texts: list[list[str]], measured: Measured) -> None:
    """Let all clients make the calls of a round."""

    async def one(user: int) -> None:
        for n in range(CALLS):
            began = time.perf_counter()
            measured.errors += not await side.call(user, n, texts[user][n])
            measured.latencies.append(time.perf_counter() - began)

    start = time.perf_counter()
    await asyncio.gather(*map(one, range(CLIENTS)))
    measured.seconds += time.perf_counter() - start
    measured.calls += CLIENTS * CALLS


async def _in_turns(folder: Path, seconds: float) -> tuple[Measured, Measured]:
    urls = [f"sqlite:///{folder / name}.db" for name in ("http", "inside")]
    await fill(urls[0])
    copyfile(folder / "http.db", folder / "inside.db")
    http, inside = Measured(), Measured()
    with served(urls[0]) as (port, _):
        async with mnemic.open_async(urls[1], audit=True) as memory:
            sides = ((OverHTTP(await connect(port)), http), (InProcess(memory), inside))
            for side, _ in sides:  # what is loaded at the first call
                await work(side, said(CALLS), Measured())
            while http.seconds < seconds:
                texts = said(CALLS)
                for side, measured in sides:
                    await work(side, texts, measured)
    return http, inside


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values is, in milliseconds."""
    return 1000 * sorted(values)[int(share * (len(values) - 1))]


def run(folder: Path, seconds: float = SECONDS) -> list[Result]:
    """Return what was measured."""
    http, inside = asyncio.run(_in_turns(folder, seconds))
    rates = [measured.calls / measured.seconds for measured in (http, inside)]
    share = rates[0] / rates[1]
    what = f"{CLIENTS} clients append and recall through `mnemic serve` on SQLite, {http.seconds:.0f} s"
    p50, p99 = (percentile(http.latencies, at) for at in (0.5, 0.99))
    own = [percentile(inside.latencies, at) for at in (0.5, 0.99)]
    return [
        Result(f"{what}: errors", "none", f"{http.errors} of {http.calls:,} calls", not http.errors + inside.errors),
        Result(
            f"{what}: calls a second, against the same calls in process",
            f"at least {LEAST_SHARE:.0%}",
            f"{share:.0%} ({rates[0]:,.0f} against {rates[1]:,.0f})",
            share >= LEAST_SHARE,
        ),
        Result(f"{what}: latency, p50 and p99", "(to compare)", f"{p50:.0f} and {p99:.0f} ms", True),
        Result(f"{what}: the same in process", "(to compare)", f"{own[0]:.0f} and {own[1]:.0f} ms", True),
    ]


def resident(pid: int) -> int:
    """Return how many bytes of memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


async def warm(client: Client, user: int) -> None:
    """Let a user say so much that the index of the scope, which keeps what is gone for a while, is rebuilt."""
    scope = f"acme%2Fuser{user}"
    for _ in range(REBUILT // BATCH):
        said = [{"role": "user", "content": text} for text in TEXTS.some(BATCH)]
        await client.ask(post(f"/api/v1/sessions/chat/messages?scope={scope}", said))
        await client.ask(post(f"/api/v1/recall?scope={scope}", {"query": QUESTIONS[0]}))


async def _growth(folder: Path, minutes: float) -> list[int]:
    url = f"sqlite:///{folder / 'memory.db'}"
    await fill(url)
    async with mnemic.open_async(url) as memory:
        for user in range(CLIENTS):  # what is stored stays of one size, so that only a leak grows
            await memory.scope("acme", f"user{user}").session("chat").configure(max_messages=50, overflow="drop")
    found: list[int] = []
    with served(url) as (port, pid):
        clients = await connect(port)
        await asyncio.gather(*(warm(client, user) for user, client in enumerate(clients)))
        side = OverHTTP(clients)
        measured = Measured()
        until = time.monotonic() + 60 * minutes
        began = time.monotonic()
        while (now := time.monotonic()) < until:
            await work(side, said(CALLS), measured)
            if now - began >= 15 * len(found):
                found.append(resident(pid))
                print(f"{now - began:5.0f} s  {found[-1] / 2**20:7.1f} MiB  {measured.calls:,} calls", flush=True)
        assert not measured.errors
    return found


def main() -> int:
    """Show how much memory the server takes as time passes; return 1 if it grows too much."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_growth(Path(folder), parser.parse_args().minutes))
    growth = found[-1] / found[0] - 1
    print(f"from {found[0] / 2**20:.1f} MiB to {found[-1] / 2**20:.1f} MiB: {growth:+.1%}")
    return int(growth >= MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
