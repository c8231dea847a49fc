"""The stream of changes: every write is told, also of other processes, and to readers that return; to many at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import mnemic
from http_server import make_key, serving
from mnemic.records import ScopePath
from mnemic.server import change_feed
from mnemic.server.settings import Settings

PATH = "/api/v1/changes"
OTHER_PROCESS = """
import sys, mnemic
with mnemic.open(sys.argv[1]) as memory:
    scope = memory.scope("acme", "alice")
    exec(sys.argv[2])
"""


class Event(NamedTuple):
    name: str
    id: str | None
    data: dict[str, Any]

    @property
    def about(self) -> tuple[Any, ...]:
        return self.name, *(self.data.get(field) for field in ("scope", "kind", "id"))


class Stream:
    """An open stream of changes."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8", response.read()
        self._lines = response.iter_lines()
        self.last = ""
        """Id of the last event that had one."""

    def next(self) -> Event | None:
        """Return the next event; None for a comment."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                break
            name, _, value = line.partition(": ")
            fields[name] = value
        if "event" not in fields:
            return None
        self.last = fields.get("id", self.last)
        return Event(fields["event"], fields.get("id"), json.loads(fields["data"]))

    def until(self, *names: str) -> list[Event]:
        """Return the events up to the first with one of these names."""
        found: list[Event] = []
        while not found or found[-1].name not in names:
            if (event := self.next()) is not None:
                found.append(event)
        return found

    def take(self, count: int) -> list[tuple[Any, ...]]:
        """Return the next events, without comments and ids."""
        found: list[tuple[Any, ...]] = []
        while len(found) < count:
            if (event := self.next()) is not None:
                found.append(event.about)
        return found


@contextmanager
def following(server: httpx.Client, scope: str, last: str | None = None, **query: Any) -> Iterator[Stream]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with server.stream("GET", PATH, params={"scope": scope, **query}, headers=headers) as response:
        stream = Stream(response)
        assert stream.until("ready")[-1].data == {"scope": scope}
        yield stream


def remember(server: httpx.Client, scope: str, *ids: str) -> None:
    for id in ids:
        body = {"text": f"text of {id}", "id": id}
        server.post("/api/v1/memories", params={"scope": scope}, json=body).raise_for_status()


def elsewhere(url: str, code: str) -> None:
    """Run code with `memory` and `scope` in another process."""
    subprocess.run([sys.executable, "-c", OTHER_PROCESS, url, code], check=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/memory.db"


def test_writes_and_deletions_are_told_at_once_to_those_above() -> None:
    with serving() as server, following(server, "acme") as acme, following(server, "acme/bob") as bob:
        remember(server, "acme/alice", "a")
        remember(server, "acmes", "other")
        server.put("/api/v1/notes/plan", params={"scope": "acme/bob"}, json={"value": 1}).raise_for_status()
        server.delete("/api/v1/memories/a", params={"scope": "acme/alice"}).raise_for_status()
        server.post("/api/v1/erase", params={"scope": "acme/bob"}, json={}).raise_for_status()
        assert acme.take(4) == [
            ("put", "acme/alice", "memory", "a"),
            ("put", "acme/bob", "note", "plan"),
            ("delete", "acme/alice", "memory", "a"),
            ("delete", "acme/bob", "note", None),
        ]
        assert bob.take(2) == [("put", "acme/bob", "note", "plan"), ("delete", "acme/bob", "note", None)]


def test_kinds_content_and_heartbeats() -> None:
    with serving() as server, following(server, "acme", kinds="note", content="true", heartbeat=1) as stream:
        assert stream.next() is None
        remember(server, "acme", "a")
        server.put("/api/v1/notes/plan", params={"scope": "acme"}, json={"value": [1]}).raise_for_status()
        (event,) = stream.until("put")
        assert (event.data["version"], event.data["record"]["data"]) == (1, [1])


def test_writes_of_another_process_are_told(url: str) -> None:
    with serving(url) as server:
        remember(server, "acme/alice", "a", "b")
        with following(server, "acme", heartbeat=1) as stream:
            elsewhere(url, "scope.remember('x', id='x'); scope.session('s').add('user', 'hello', id='m')")
            assert set(stream.take(2)) == {
                ("put", "acme/alice", "memory", "x"),
                ("put", "acme/alice/s", "message", "m"),
            }
            remember(server, "acme/alice", "c")
            elsewhere(url, "scope.memories.update('a', text='new'); scope.memories.delete('b', 'x')")
            assert stream.take(3) == [
                ("put", "acme/alice", "memory", "c"),
                ("put", "acme/alice", "memory", "a"),
                ("delete", "acme/alice", "memory", None),
            ]
            elsewhere(url, "scope.erase(); scope.remember('again', id='a')")
            found = stream.take(3)
            assert found.index(("delete", "acme/alice", "memory", None)) < found.index(
                ("put", "acme/alice", "memory", "a")
            )


def test_a_reader_that_returns_misses_nothing(url: str) -> None:
    with serving(url) as server:
        with following(server, "acme") as stream:
            remember(server, "acme/alice", "a", "b")
            stream.take(2)
        remember(server, "acme/alice", "c")
        elsewhere(url, "scope.remember('x', id='x')")
        server.delete("/api/v1/memories/b", params={"scope": "acme/alice"}).raise_for_status()
        with following(server, "acme", stream.last) as again:
            found = [event.about for event in again.until("ready")]
            assert found[0] == ("delete", "acme/alice", "memory", "b")
            assert {id for name, _, _, id in found if name == "put"} >= {"c", "x"}
            remember(server, "acme/alice", "d")
            assert again.until("put")[-1].data["id"] == "d"
    with serving(url) as server:  # another process, which does not know what was deleted
        remember(server, "acme/alice", "e")
        with following(server, "acme", again.last) as third:
            found = [event.about for event in third.until("ready")]
            assert found[0][0] == "gap"
            assert {id for name, _, _, id in found if name == "put"} >= {"d", "e"}


def test_a_reader_that_is_too_slow_is_dropped_and_can_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "QUEUE", 10)
    with serving() as server:
        with following(server, "acme") as stream:
            lines = [{"role": "user", "content": f"message {n}"} for n in range(30)]
            server.post("/api/v1/sessions/s/messages", params={"scope": "acme"}, json=lines).raise_for_status()
            events = stream.until("dropped")
            assert [event.name for event in events] == ["put"] * 10 + ["dropped"]
            assert stream.next() is None  # the end
        with following(server, "acme", stream.last) as again:
            assert sum(event.name == "put" for event in again.until("ready")) == 20


def test_a_reader_that_returns_is_told_nothing_twice(url: str) -> None:
    with serving(url) as server:
        with following(server, "acme") as stream:
            remember(server, "acme/alice", "a", "b")
            stream.take(2)
            elsewhere(url, "scope.remember('x', id='x')")
            stream.take(1)
        for _ in range(3):  # with the id of the last put, and nothing new
            with following(server, "acme", stream.last) as again:
                assert [event.name for event in again.until("ready")] == ["ready"]
        for id in ("c", "d"):
            remember(server, "acme/alice", id)
            with following(server, "acme", again.last) as again:
                assert [event.data.get("id") for event in again.until("ready")] == [id, None]


def test_deletions_are_not_known_while_a_scope_was_not_watched(url: str) -> None:
    async def returns() -> list[Any]:
        async with mnemic.open_async(url) as memory:
            feed = change_feed.ChangeFeed(memory._store)
            reader = await feed.join(ScopePath("acme"), ["memory"])
            position = reader.position()
            feed.leave(reader)
            known = [feed.deletions_since(await feed.join(reader.scope, ["memory"]), position)]
            feed._watches.clear()
            known.append(feed.deletions_since(await feed.join(reader.scope, ["memory"]), position))
            feed._watches.clear()
            return known

    assert asyncio.run(returns()) == [[], None]


def test_bad_requests() -> None:
    with serving() as server:
        for status, query, last in ((422, "", "7"), (422, "?kinds=audit", None), (400, "?heartbeat=0", None)):
            answer = server.get(PATH + query, headers={} if last is None else {"Last-Event-ID": last})
            assert answer.status_code == status
        head = server.head(PATH)
        assert (head.status_code, head.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")


def test_nothing_is_told_of_other_scopes(url: str) -> None:
    key = make_key(url, "acme/alice", "read", "write")
    whole = {"Authorization": f"Bearer {make_key(url, '', 'read', 'write')}"}
    with serving(url, settings=Settings(require_key=True)) as server:
        server.headers["Authorization"] = f"Bearer {key}"
        with following(server, "acme") as above, following(server, "acme/bob", heartbeat=1) as beside:
            for scope in ("acme", "acme/bob", "acme/alice/deep"):
                body = {"text": "x", "id": scope}
                server.post("/api/v1/memories", params={"scope": scope}, json=body, headers=whole).raise_for_status()
            assert above.take(1) == [("put", "acme/alice/deep", "memory", "acme/alice/deep")]
            assert [beside.next(), beside.next()] == [None, None]
        with following(server, "acme/bob", beside.last) as again:
            assert [event.name for event in again.until("ready")] == ["ready"]


def test_a_thousand_streams(url: str) -> None:
    async def opened(host: str, port: int, n: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {PATH}?scope=acme/{n % 10} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await reader.readuntil(b"event: ready\n")
        return reader, writer

    async def test(server: httpx.Client) -> None:
        host, port = server.base_url.host, server.base_url.port
        assert port is not None
        streams = [await opened(host, port, n) for n in range(1000)]
        await asyncio.to_thread(remember, server, "acme/3/deep", "a")
        await asyncio.to_thread(remember, server, "acme/4", "b")
        for n, (reader, _) in enumerate(streams):
            if n % 10 in (3, 4):
                await reader.readuntil(b"event: put\n")
                line = await reader.readuntil(b"\n")
                assert json.loads(line[5:])["id"] == {3: "a", 4: "b"}[n % 10]
        for _, writer in streams:
            writer.close()

    with serving(url) as server:
        asyncio.run(test(server))
        remember(server, "acme", "c")
