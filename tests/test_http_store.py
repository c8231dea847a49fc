"""Stores on a Mnemic server: recall, errors, keys, encryption, and what a lost server does to an agent."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from pydantic_ai.models.test import TestModel

import mnemic
from clock import Clock
from faulty_proxy import Cut, FaultyProxy, Garbage, Mode, Pass, Stall, proxy_for
from http_server import serving
from layered import KEY
from mnemic import telemetry
from mnemic.agents import Agent
from mnemic.backends.http import client as client_module
from mnemic.backends.http.client import COOLDOWN, CircuitBreaker
from mnemic.backends.http.on_failure import ADDS, READS
from mnemic.backends.http.store import HttpStore
from mnemic.cli import main
from mnemic.doctor import examine
from mnemic.errors import (
    AccessDeniedError,
    ConflictError,
    DecryptionError,
    InvalidValueError,
    LimitError,
    SettingsChangedError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from mnemic.features.facts import AsyncFacts
from mnemic.features.listing import AsyncSessions
from mnemic.features.memories import AsyncMemories
from mnemic.features.sessions import AsyncSession
from mnemic.layers.server_search import ServerSearchLayer
from mnemic.records import MESSAGE, Record, ScopePath
from mnemic.scope import AsyncScope
from mnemic.server import idempotency
from mnemic.server.api import paging as served_pages
from mnemic.server.api_keys import ApiKeys
from mnemic.server.idempotency import RecentWrites, server_id
from mnemic.server.problems import RequestError
from mnemic.store import registry
from mnemic.store.protocol import scan_all
from mnemic.store.query import Expect, Limit, Outcome, Put, Scan, Touch, Write
from servers import mnemic_server

Reply = tuple[int, dict[str, str], bytes]
ALICE = ScopePath("acme/alice")
TEXTS = ["Ana moved to Lisbon", "Ben is allergic to peanuts", "The train leaves at noon"]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store on a server."""
    with mnemic_server.empty_served_store(tmp_path) as given:
        yield given


@pytest.fixture
def proxied(url: str) -> Iterator[tuple[FaultyProxy, str]]:
    """A proxy in front of the server, and the URL of an empty store behind it, with the circuit breaker."""
    mnemic.open(url).close()  # so that the server has opened it
    with proxy_for(url) as proxy:
        yield proxy, f"{proxy.url(url).partition('?')[0]}?timeout=2"


def on_store(url: str, work: Callable[[HttpStore], Any]) -> Any:
    """Return what a coroutine function returns for the store at a URL."""

    async def run() -> Any:
        parsed, backend = registry.find(url)
        store: Any = await backend.open(parsed)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


# ---------------------------------------------------------------- recall


def test_recall_runs_on_the_server() -> None:
    with serving() as client, mnemic.open(str(client.base_url)) as memory:
        assert isinstance(memory._async._index, ServerSearchLayer)
        alice = memory.scope("acme", "alice")
        alice.remember_many(TEXTS)
        alice.session("monday").add("user", "I drink tea in Lisbon")
        hits = alice.recall("Who lives in Lisbon?", neighbors=1)
        asked = client.post(
            "/api/v1/recall",
            params={"scope": "acme/alice"},
            json={"query": "Who lives in Lisbon?", "neighbors": 1, "uses": False},
        ).json()
        assert [hit.text for hit in hits] == [hit["text"] for hit in asked["hits"]]
        assert {hit.text for hit in hits[:2]} == {TEXTS[0], "I drink tea in Lisbon"}
        assert alice.used(hits[0]) == 1
        assert (memory.metrics().recalls, memory.metrics().used) == (2, 1)
        assert memory.warm("acme") == 4
        assert "Lisbon" in alice.context("Lisbon").text


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda memory: memory.reembed("static"), "run mnemic reembed there"),
        (lambda memory: memory.reindex(), "run mnemic reindex on the server"),
        (lambda memory: memory.audit_trail(), "GET /api/v1/audit, with a key that has the right 'admin'"),
        (lambda memory: memory.scope("a").recall("x", k=10_001), "at most 10,000"),
    ],
)
def test_the_server_does_the_rest(url: str, call: Callable[[mnemic.Memory], object], match: str) -> None:
    with mnemic.open(url) as memory, pytest.raises(InvalidValueError, match=match):
        call(memory)


def test_an_embedder_of_the_callers_searches_in_this_process(url: str) -> None:
    with mnemic.open(url, embedder="static") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember_many(TEXTS)
        assert not isinstance(memory._async._index, ServerSearchLayer)
        assert alice.recall("peanuts")[0].text == TEXTS[1]
        assert memory.reembed("static") == 0
    with mnemic.open(url) as memory:
        assert memory.scope("acme", "alice").recall("peanuts")[0].text == TEXTS[1]
        assert [stats.scope.path for stats in memory.scopes()] == ["acme/alice"]


def test_the_server_sees_only_ciphertext_of_an_encrypted_memory(tmp_path: Path) -> None:
    file = tmp_path / "memory.db"
    with serving(f"sqlite:///{file}") as client:
        url = str(client.base_url)
        with mnemic.open(url, encryption_key=KEY) as memory:
            alice = memory.scope("acme", "alice")
            alice.remember_many(TEXTS, once="one")
            alice.session("monday").add("user", "I drink tea in Lisbon")
            assert alice.recall("Lisbon")[0].text in (TEXTS[0], "I drink tea in Lisbon")
            assert memory.rotate() == 0
        with mnemic.open(url, encryption_key=KEY) as memory:
            assert memory.scope("acme", "alice").recall("allergic")[0].text == TEXTS[1]
        with pytest.raises(DecryptionError, match="is encrypted"):
            mnemic.open(url)
        with pytest.raises(DecryptionError, match="not given"):
            mnemic.open(url, encryption_key=bytes(32))
        found = client.post("/api/v1/recall", params={"scope": "acme"}, json={"query": "Lisbon"}).json()
        assert found["hits"] == []
    content = b"".join(path.read_bytes() for path in tmp_path.glob("memory.db*"))
    assert b"acme/alice" in content
    assert not any(text.encode() in content for text in (*TEXTS, "tea in Lisbon"))


def test_plain_records_are_not_mixed_with_encrypted_ones(url: str) -> None:
    with mnemic.open(url) as memory:
        memory.scope("acme").remember("plain")
    with pytest.raises(DecryptionError, match="not encrypted"):
        mnemic.open(url, encryption_key=KEY)


def test_the_audit_log_is_the_servers(url: str, file_url: str) -> None:
    with pytest.raises(InvalidValueError, match="kept by the server"):
        mnemic.open(url, audit=True)
    with mnemic.open(url, audit=file_url) as memory:
        memory.scope("acme").remember("tea")
        assert [entry.operation for entry in memory.audit_trail()] == ["put"]


def test_a_store_is_copied_to_a_server_and_back(url: str, file_url: str, tmp_path: Path) -> None:
    with mnemic.open(file_url, history=True) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember_many(TEXTS)
        alice.remember("an earlier text", id="changed")
        alice.memories.update("changed", text="another text")
        alice.session("monday", max_messages=5).add_many([mnemic.Message("user", f"tea {n}") for n in range(8)])
    there = mnemic.copy(file_url, url)
    back = mnemic.copy(url, f"sqlite:///{tmp_path / 'back.db'}")
    assert (there.digest, there.records) == (back.digest, 12)
    with mnemic.open(url) as memory:
        assert memory.scope("acme", "alice").recall("peanuts")[0].text == TEXTS[1]
    with mnemic.open(url, embedder=None) as memory:
        assert memory.scope("acme", "alice").recall("peanuts")[0].text == TEXTS[1]


def test_doctor_tells_what_the_key_may_do(url: str) -> None:
    found = asyncio.run(examine(url))
    assert (found.engine, found.durable, found.embedder) == (f"Mnemic {version('mnemic')}", True, "the server's")
    assert found.facts["rights"] == "admin, erase, read, write"
    assert found.problems == []
    with serving() as client:
        assert [problem.code for problem in asyncio.run(examine(str(client.base_url))).problems] == ["not_persistent"]
    lost = asyncio.run(examine("http://127.0.0.1:1/?timeout=1"))
    assert [problem.code for problem in lost.problems] == ["unavailable"]


# ---------------------------------------------------------------- errors


def test_errors_come_back_with_their_fields(url: str) -> None:
    def put(key: str, version: int | None = None, **fields: Any) -> Put:
        return Put(Record(ALICE, MESSAGE, key, **fields), version)

    async def work(store: HttpStore) -> None:
        await store.write(Write((put("a"), Touch(ALICE, MESSAGE, settings="new"))))
        with pytest.raises(ConflictError) as conflict:
            await store.write(Write((put("a", 7),)))
        assert (type(conflict.value), conflict.value.key, conflict.value.current) == (ConflictError, "a", 1)
        with pytest.raises(SettingsChangedError) as changed:
            await store.write(Write((Expect(ALICE, MESSAGE, settings=None), put("b"))))
        assert changed.value.settings == "new"
        with pytest.raises(LimitError) as limit:
            await store.write(Write((put("b", weight=5), Limit(ALICE, MESSAGE, max_count=1))))
        assert (limit.value.count, limit.value.weight) == (2, 5)
        with pytest.raises(InvalidValueError, match="cursor"):
            await store.scan(Scan(scope=ALICE, cursor="x"))
        with pytest.raises(InvalidValueError, match="cannot be sent"):
            await store.scan(Scan(scope=ALICE, cursor="\ud800"))

    on_store(url, work)


@contextmanager
def scripted(*answers: Reply) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run a server that gives these answers, the last of them again and again; yield its URL and the headers it got."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(dict(self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


STORE: Reply = (
    200,
    {},
    b'{"version":"0.1.0","server":"s","scope":"","rights":["read"],"capabilities":["atomic","durable","records"]}',
)
EMPTY: Reply = (200, {}, b'{"records":[null]}')


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), StoreError, "redirects to 'http://127.0.0.1:1/'"),
        ((200, {}, b"<html>"), UnreadableStoreError, "not of a Mnemic server"),
        ((200, {}, b"\xff\xfe"), UnreadableStoreError, "not of a Mnemic server"),
        ((404, {}, b"<html>"), UnreadableStoreError, "not the address of a Mnemic server"),
        ((401, {}, b'{"type":"#unauthorized","detail":"no key"}'), StorePermissionError, r"MNEMIC_API_KEY.*\(no key\)"),
        ((403, {}, b'{"type":"#forbidden"}'), AccessDeniedError, "does not allow"),
        ((413, {}, b"{}"), TooLargeError, "write less at once"),
        ((429, {"Retry-After": "60"}, b"{}"), StoreBusyError, "too many requests"),
        ((503, {"Retry-After": "60"}, b"{}"), StoreBusyError, "busy"),
        ((503, {}, b'{"type":"#closed","detail":"stopping"}'), StoreUnavailableError, "stopping"),
        ((502, {}, b"bad gateway"), StoreUnavailableError, "a proxy"),
        ((500, {}, b"\xff"), StoreError, "status 500"),
        ((200, {"Content-Length": str(2**30)}, b""), TooLargeError, "more than"),
    ],
)  # fmt: skip
def test_answers_that_are_no_results_become_errors(answer: Reply, error: type[Exception], match: str) -> None:
    with scripted(answer) as (url, _), pytest.raises(error, match=match) as caught:
        mnemic.open(f"{url}/?timeout=30")
    assert type(caught.value) is error


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LARGEST", 1000)
    answer = (200, {"Transfer-Encoding": "chunked", "Content-Length": ""}, b"7d0\r\n" + b" " * 2000 + b"\r\n")
    with scripted(answer) as (url, _), pytest.raises(StoreError, match=r"more than 1,000 bytes|connection broke"):
        mnemic.open(f"{url}/?timeout=30")


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    busy = (503, {"Retry-After": "0"}, b'{"type":"#service-unavailable"}')
    with scripted(STORE, EMPTY, busy, (429, {"Retry-After": "0"}, b""), EMPTY) as (url, asked):
        with mnemic.open(url) as memory:
            memory.ping()
        assert len(asked) == 5


def test_pages_end_before_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_pages, "MOST_BYTES", 20_000)
    records = [Record(ALICE, MESSAGE, f"k{n}", text=f"{n} " + "x" * 3000) for n in range(80)]

    async def work(store: HttpStore) -> None:
        await store.write(Write(tuple(map(Put, records)), lazy=True))
        page = await store.scan(Scan(scope=ALICE, kinds=(MESSAGE,), skip=2))
        assert 7 <= len(page.items) <= 32
        read = await store.read([record.ref for record in records])
        assert [record and record.text for record in read] == [record.text for record in records]
        assert [r.key async for r in scan_all(store, Scan(scope=ALICE, skip=2))] == [r.key for r in records[2:]]

    with serving() as client:
        on_store(str(client.base_url), work)


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        ("scan", {"after_version": 10**30}),
        ("scan", {"after_version": -1}),
        ("scan", {"derived": ["a"] * 3000}),
        ("scan", {"skip": 2**63}),
        ("streams", {"limit": -1}),
        ("search", {"query": "x", "neighbors": 2**70}),
        ("search", {"query": "x", "limit": 10_001}),
        ("write", {"ops": [{"op": "put", "record": {"scope": {"path": "a"}, "kind": "Bad", "key": "k"}}]}),
        ("write", {"ops": [{"op": "delete", "ref": {"scope": {"path": "a"}, "kind": "audit", "key": "k"}}]}),
        ("write", {"ops": [{"op": "no such"}]}),
    ],
)  # fmt: skip
def test_hostile_calls_are_refused(call: str, asked: dict[str, Any]) -> None:
    with serving() as client:
        body = asked if call == "write" else {"scope": {"path": "a"}, **asked}
        answer = client.post(f"/api/v1/store/{call}", json=body)
        assert 400 <= answer.status_code < 500, answer.text


def test_the_clock_is_the_servers() -> None:
    with serving() as client, pytest.raises(InvalidValueError, match="clock of a memory on a server"):
        mnemic.open(str(client.base_url), clock=Clock())


# ---------------------------------------------------------------- keys


def test_the_key_comes_from_the_url_or_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MNEMIC_API_KEY", "mk_default")
    monkeypatch.setenv("TEAM_KEY", "mk_team")
    with scripted(STORE, EMPTY) as (url, asked), caplog.at_level(logging.DEBUG):
        for given, sent in {
            url: "mk_default",
            f"{url}/?api_key_env=TEAM_KEY": "mk_team",
            url.replace("//", "//:mk_ur%2Fl@"): "mk_ur/l",
        }.items():
            asked.clear()
            with mnemic.open(given) as memory:
                assert {headers["Authorization"] for headers in asked} == {f"Bearer {sent}"}
                assert "mk_" not in repr(memory)
    assert "mk_" not in caplog.text
    for options, match in (("api_key_env=NO_SUCH_VARIABLE", "is not set"), ("key=mk_x", "unknown option")):
        with pytest.raises(InvalidValueError, match=match) as caught:
            mnemic.open(f"http://127.0.0.1:1/?{options}")
        assert "mk_x" not in str(caught.value)
    with pytest.raises(InvalidValueError, match="its password") as wrong:
        mnemic.open("http://mk_x@127.0.0.1:1/")
    assert "mk_x" not in str(wrong.value)


def new_key(url: str, scope: str, *rights: str) -> str:
    async def create() -> str:
        async with mnemic.open_async(url) as memory:
            return (await ApiKeys(memory).create("test", scope, rights)).secret

    return asyncio.run(create())


def test_a_key_shows_and_changes_only_its_scope(file_url: str) -> None:
    admin = new_key(file_url, "", "read", "write", "erase", "admin")
    alice = new_key(file_url, "acme/alice", "read", "write")
    reader = new_key(file_url, "acme", "read")
    with serving(file_url) as client:

        def opened(key: str, **options: Any) -> mnemic.Memory:
            return mnemic.open(str(client.base_url).replace("//", f"//:{key}@"), **options)

        with opened(admin) as memory:
            memory.scope("acme", "bob").remember("Bob drinks tea")
        with opened(alice) as memory:
            own, other = memory.scope("acme", "alice"), memory.scope("acme", "bob")
            own.remember("Alice drinks tea")
            assert [hit.text for hit in memory.scope("acme").recall("tea")] == ["Alice drinks tea"]
            assert [stats.scope.path for stats in memory.scopes()] == ["acme/alice"]
            assert (other.recall("tea"), other.memories.list(), other.stats().memories) == ([], [], 0)
            for refused in (lambda: other.remember("mine"), own.erase, lambda: memory.metrics()):
                with pytest.raises(AccessDeniedError):
                    refused()
        with opened(reader) as memory:
            assert {hit.scope.path for hit in memory.scope("acme").recall("tea")} == {"acme/alice", "acme/bob"}
            with pytest.raises(AccessDeniedError):
                memory.scope("acme", "bob").session("s").add("user", "hello")
        with opened(new_key(file_url, "sealed", "read", "write"), encryption_key=KEY) as memory:
            memory.scope("sealed", "carol").remember("Carol drinks tea")
            assert memory.scope("sealed").recall("tea")[0].text == "Carol drinks tea"
        with opened(admin) as memory:
            assert len(memory.scope("acme").recall("tea")) == 2
            assert memory.scope("acme").erase().records == 2
        for key in ("", f"{admin[:-1]}x"):
            with pytest.raises(StorePermissionError, match="the API key is missing, wrong or expired"):
                opened(key)


# ---------------------------------------------------------------- lost answers


def test_a_write_whose_answer_is_lost_is_repeated_and_done_once(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    with mnemic.open(f"{url}0") as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "0")
        for n in range(1, 5):
            proxy.mode = Cut(after=10 * n, times=1)
            chat.add("user", str(n))
        assert [message.text for message in chat.messages()] == ["0", "1", "2", "3", "4"]


def test_a_hold_and_an_erasure_whose_answer_is_lost_are_repeated_and_done_once(
    proxied: tuple[FaultyProxy, str],
) -> None:
    proxy, url = proxied
    with mnemic.open(f"{url}0") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        proxy.mode = Cut(times=1)
        held = alice.hold("case 4711")
        assert [hold.id for hold in alice.holds()] == [held.id]
        proxy.mode = Cut(times=1)
        assert alice.release(held.id).id == held.id
        proxy.mode = Cut(times=1)
        backend: Any = memory._async._backend
        assert memory._driver.run(backend.erase(alice.path, dry_run=False))["records"] == 1
        proxy.mode = Cut()
        with pytest.raises(StoreUnavailableError) as caught:
            alice.hold("case 4712")
        assert caught.value.unsure


def test_a_server_that_was_restarted_does_not_repeat_a_write() -> None:
    lost = (200, {"Content-Length": "100"}, b"{")
    moved: Reply = (412, {}, b'{"type":"#precondition-failed","detail":"another process"}')

    async def work(store: HttpStore) -> None:
        with pytest.raises(StoreUnavailableError, match="may or may not have been done"):
            await store.write(Write((Put(Record(ALICE, MESSAGE, "a")),)))

    with scripted((200, {"Mnemic-Server": "first 12.5"}, STORE[2]), lost, moved) as (url, asked):
        on_store(url, work)
    _, first, second = asked
    assert first["Mnemic-Write"] == second["Mnemic-Write"]
    assert (first.get("Mnemic-Server"), second["Mnemic-Server"]) == (None, "first")


def test_a_write_that_arrives_after_its_deadline_is_not_done() -> None:
    body = {"ops": [{"op": "put", "record": {"scope": {"path": "acme"}, "kind": "note", "key": "a"}}]}
    with serving() as client:
        process, clock = client.get("/api/v1/store").headers["Mnemic-Server"].split()
        for late, status in ((600.0, 200), (-1.0, 408)):
            deadline = f"{process} {float(clock) + late:.3f}"
            answer = client.post("/api/v1/store/write", json=body, headers={"Mnemic-Deadline": deadline})
            assert answer.status_code == status
        elsewhere = client.post("/api/v1/store/write", json=body, headers={"Mnemic-Deadline": "another 0"})
        assert elsewhere.json()["outcomes"][0]["version"] == 2


def test_a_repeated_write_is_not_done_again() -> None:
    done: list[int] = []
    now = [0.0]

    async def work(fails: bool = False) -> list[Outcome]:
        done.append(1)
        await asyncio.sleep(0)
        if fails:
            raise ConflictError("once")
        return [Outcome(seq=len(done))]

    async def main() -> None:
        recent = RecentWrites(clock=lambda: now[0])
        first, second = await asyncio.gather(recent.run("a", work, None), recent.run("a", work, server_id()))
        assert first == second == [Outcome(seq=1)]
        for _ in range(2):
            with pytest.raises(ConflictError):
                await recent.run("b", lambda: work(True), server_id())
        assert len(done) == 2
        with pytest.raises(RequestError, match="another process"):
            await recent.run("c", work, "someone else")
        now[0] += idempotency.REMEMBERED_SECONDS + 1
        assert await recent.run("a", work, None) == [Outcome(seq=3)]

    asyncio.run(main())


def test_writes_that_cannot_be_remembered_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "REMEMBERED", 2)

    async def work() -> list[Outcome]:
        return []

    async def main() -> None:
        recent = RecentWrites()
        for id in "abc":
            await recent.run(id, work, None)
        with pytest.raises(RequestError):
            await recent.run("a", work, server_id())
        await recent.run("c", work, server_id())

    asyncio.run(main())


# ---------------------------------------------------------------- circuit breaker


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_call_try() -> None:
    now = [100.0]
    breaker = CircuitBreaker("http://x", 2, clock=lambda: now[0])

    def call(fails: bool) -> None:
        with breaker.watch():
            if fails:
                raise StoreUnavailableError("lost")

    def fail(match: str) -> None:
        with pytest.raises(StoreUnavailableError, match=match):
            call(True)

    fail("lost")
    call(False)
    for _ in range(2):
        fail("lost")
    fail("2 times in a row")
    now[0] += COOLDOWN
    with breaker.watch():
        fail("2 times in a row")  # while another tries
    call(False)
    for _ in range(2):
        fail("lost")
    now[0] += COOLDOWN
    fail("lost")
    fail("3 times in a row")
    with pytest.raises(KeyError), CircuitBreaker("http://x", 1).watch():
        raise KeyError


def test_calls_to_a_lost_server_fail_at_once(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    registry = CollectorRegistry()
    telemetry.register_prometheus(registry)
    with mnemic.open(url.replace("timeout=2", "timeout=1")) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "before")
        proxy.mode = Stall()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="no answer"):
                chat.messages()
        accepted = proxy.accepted
        for _ in range(20):
            with pytest.raises(StoreUnavailableError, match="3 times in a row"):
                chat.messages()
        assert proxy.accepted == accepted
        assert registry.get_sample_value("mnemic_store_up", {"store": "http"}) == 0


PROGRAMS = {
    "sync": "memory = mnemic.open(url); memory.ping()",
    "async": """
async def main():
    memory = await mnemic.open_async(url)
    await memory.ping()

asyncio.run(main())""",
    "async, kept": """
async def main():
    memory = await mnemic.open_async(url)
    await memory.ping()
    return memory

memory = asyncio.run(main())""",
    "async, dropped": """
async def main():
    memory = await mnemic.open_async(url)
    await memory.ping()
    del memory
    gc.collect()
    await asyncio.sleep(0)

asyncio.run(main())""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_forgets_to_close_ends_without_a_complaint(url: str, program: str) -> None:
    code = f"import asyncio, gc, mnemic\nurl = {url!r}\n{PROGRAMS[program]}\nprint('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert (done.stdout, done.stderr) == ("done\n", "")


# ---------------------------------------------------------------- on_failure=empty

FAULTS: dict[str, Mode] = {
    "hangs": Stall(),
    "swallows": Stall(requests=True),
    "dies": Cut(0),
    "dies in the middle": Cut(120),
    "garbage": Garbage(b"\x00\xff\xfe garbage \r\n\r\n" * 5),
    "another answer": Garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "half an answer": Garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"),
}


def take_a_turn(memory: mnemic.Memory) -> None:
    """Use a memory as an agent does; nothing of it is there."""
    alice = memory.scope("acme", "alice")
    with alice.session("monday", max_messages=10) as chat:
        assert chat.add("user", "lost").text == "lost"
        assert (chat.messages(), chat.window(max_tokens=100), chat.recent(), chat.archived()) == ([], [], [], [])
        assert (chat.transcript(), chat.summary(), chat.settings().max_messages) == ("", None, 10)
    assert (alice.sessions.list(), alice.memories.list()) == ([], [])
    assert alice.remember("lost").text == "lost"
    assert len(alice.remember_many(["lost", "too"], duplicates="merge")) == 2
    assert alice.recall("lost") == []
    alice.facts.add("ana", "lives in", "Lisbon", single=True)
    assert (alice.facts.ask(), alice.facts.path("ana", "Lisbon")) == ([], None)
    assert alice.facts.neighbors("ana").facts == []
    context = alice.context("lost?", session="monday")
    assert "lost" not in context.text.replace("lost?", "")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_server_looks_empty_if_that_is_wanted(
    fault: str, proxied: tuple[FaultyProxy, str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy, url = proxied
    registry = CollectorRegistry()
    telemetry.register_prometheus(registry)
    with mnemic.open(f"{url}&breaker=1&on_failure=empty") as memory:
        memory.scope("acme", "alice").session("monday").add("user", "before")
        proxy.mode = FAULTS[fault]
        proxy.drop()
        caplog.clear()
        take_a_turn(memory)
        dropped = [record for record in caplog.records if "is dropped" in record.getMessage()]
        assert len(dropped) == 1
    counted = sum(
        sample.value for metric in registry.collect() for sample in metric.samples
        if sample.name == "mnemic_dropped_writes_total"
    )  # fmt: skip
    assert counted == 4
    proxy.mode = Pass()
    with mnemic.open(url) as memory:
        found = [message.text for message in memory.scope("acme", "alice").session("monday").messages()]
        # What reached the server is done though its answer was lost: the first write, which opens the circuit. An
        # answer that is none of Mnemic's does not open it.
        assert found == ["before"] if fault == "swallows" else ["before", "lost"]


def test_an_agent_answers_while_the_server_is_lost(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    model = TestModel(call_tools=[], custom_output_text="Hello!")
    with mnemic.open(f"{url}&breaker=1&on_failure=empty") as memory:
        proxy.mode = Cut(0)
        proxy.drop()
        with Agent("Bot", model=model, memory=memory.scope("acme")) as agent:
            assert agent.run_sync("Hi!", session="monday").output == "Hello!"


DELIBERATE: dict[str, Callable[[mnemic.Memory, Path], object]] = {
    "ping": lambda memory, path: memory.ping(),
    "stats": lambda memory, path: memory.stats(),
    "scopes": lambda memory, path: memory.scopes(),
    "export": lambda memory, path: memory.export_to(path / "old.jsonl"),
    "import": lambda memory, path: memory.import_from(path / "good.jsonl"),
    "compact": lambda memory, path: memory.compact(),
    "erase": lambda memory, path: memory.scope("acme").erase(),
    "forget": lambda memory, path: memory.scope("acme").forget(metadata={"a": 1}),
    "replace": lambda memory, path: memory.scope("acme").remember("other", id="m1"),
    "refuse": lambda memory, path: memory.scope("acme").remember("other", duplicates="refuse"),
    "memory": lambda memory, path: memory.scope("acme").memories.get("m1"),
    "update": lambda memory, path: memory.scope("acme").memories.update("m1", text="other"),
    "delete": lambda memory, path: memory.scope("acme").memories.delete("m1"),
    "note": lambda memory, path: memory.scope("acme").notes.read("plan"),
    "notes": lambda memory, path: memory.scope("acme").notes.read_many(["plan"]),
    "all notes": lambda memory, path: memory.scope("acme").notes.read_all(),
    "list notes": lambda memory, path: memory.scope("acme").notes.list(),
    "write note": lambda memory, path: memory.scope("acme").notes.write("plan", 2),
    "at a version": lambda memory, path: memory.scope("acme").notes.write("plan", 2, if_version=5),
    "save facts": lambda memory, path: memory.scope("acme").facts.save_graphml(path / "facts.graphml"),
    "end fact": lambda memory, path: memory.scope("acme").facts.update("ana", "lives in"),
    "delete session": lambda memory, path: memory.scope("acme").sessions.delete("monday"),
    "message": lambda memory, path: memory.scope("acme").session("monday").get("1"),
    "system": lambda memory, path: memory.scope("acme").session("monday").set_system("Be brief."),
    "edit": lambda memory, path: memory.scope("acme").session("monday").edit({"id": "1", "role": "user"}),
    "clear": lambda memory, path: memory.scope("acme").session("monday").clear(),
    "fork": lambda memory, path: memory.scope("acme").session("monday").fork("tuesday"),
    "prefill": lambda memory, path: memory.scope("acme").session("monday").prefill([]),
    "configure": lambda memory, path: memory.scope("acme").session("monday").configure(max_messages=5),
    "save": lambda memory, path: memory.scope("acme").session("monday").save(path / "old.jsonl"),
    "load": lambda memory, path: memory.scope("acme").session("monday").load(path / "good.json"),
}


def test_what_is_not_part_of_a_turn_fails_with_the_server(proxied: tuple[FaultyProxy, str], tmp_path: Path) -> None:
    proxy, url = proxied
    (tmp_path / "old.jsonl").write_text("kept")
    with mnemic.open("memory://") as memory:
        chat = memory.scope("acme").session("monday")
        chat.add("user", "hello", id="1")
        chat.save(tmp_path / "good.json")
        memory.export_to(tmp_path / "good.jsonl")
    with mnemic.open(f"{url}&breaker=1&on_failure=empty") as memory:
        proxy.mode = Cut(0)
        proxy.drop()
        raised = {}
        for name, call in DELIBERATE.items():
            try:
                raised[name] = call(memory, tmp_path)
            except StoreUnavailableError:
                raised[name] = StoreUnavailableError
        assert raised == dict.fromkeys(DELIBERATE, StoreUnavailableError)
    assert (tmp_path / "old.jsonl").read_text() == "kept"
    assert not (tmp_path / "facts.graphml").exists()


def test_an_add_that_could_not_read_is_dropped_though_the_server_is_back(url: str) -> None:
    with mnemic.open(url) as memory:
        facts = memory.scope("acme").facts
        facts.add("ana", "lives in", "Lisbon", single=True)
    with mnemic.open(f"{url}&on_failure=empty") as memory:
        store: Any = memory._async._backend
        works, failures = store._client.read, iter([True])

        async def fails_once(*call: Any) -> Any:
            if call[0] == "scan" and next(failures, False):
                raise StoreUnavailableError("lost")
            return await works(*call)

        store._client.read = fails_once
        memory.scope("acme").facts.add("ana", "lives in", "Porto", single=True)
        assert [fact.object for fact in memory.scope("acme").facts.ask()] == ["Lisbon"]


def test_every_call_that_goes_on_is_one_of_the_api() -> None:
    classes = {
        "scope": AsyncScope, "session": AsyncSession, "sessions": AsyncSessions, "memories": AsyncMemories,
        "facts": AsyncFacts,
    }  # fmt: skip
    for name in READS | ADDS:
        group, _, method = name.partition(".")
        assert callable(getattr(classes[group], method)), name


@pytest.mark.parametrize(
    "command", [["ping"], ["remember", "acme", "text"], ["ls"], ["export", "-"], ["migrate"], ["stats"]], ids=" ".join
)
def test_commands_ignore_that_failures_should_look_empty(command: list[str]) -> None:
    done = CliRunner().invoke(main, [*command, "--store", "http://127.0.0.1:9/?timeout=5&on_failure=empty"])
    assert done.exit_code == 1
    assert "on_failure" not in done.output
    assert "cannot be reached" in done.output


def test_keys_of_a_server_are_not_managed_by_its_clients(url: str) -> None:
    done = CliRunner().invoke(main, ["keys", "list", "--store", url])
    assert done.exit_code == 1
    assert "run mnemic keys on its machine" in done.output
    assert "/api/v1/keys" in done.output


def test_a_server_that_is_down_at_the_start_looks_empty_until_it_is_there(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_for(url) as proxy:
        proxy.mode = Cut(0)
        monkeypatch.setattr(client_module, "ATTEMPTS", 1)
        with mnemic.open(f"{proxy.url(url)}&on_failure=empty") as memory:
            take_a_turn(memory)
            proxy.mode = Pass()
            chat = memory.scope("acme", "alice").session("monday")
            chat.add("user", "kept")
            assert [message.text for message in chat.messages()] == ["kept"]
            assert "can be used again" in caplog.text


def test_what_is_no_failure_of_the_server_is_raised_all_the_same(url: str) -> None:
    with mnemic.open(f"{url}&on_failure=empty") as memory:
        notes = memory.scope("acme").notes
        notes.write("plan", 1)
        with pytest.raises(ConflictError):
            notes.write("plan", 2, if_version=7)
    with scripted((401, {}, b"{}")) as (refusing, _), pytest.raises(StorePermissionError):
        mnemic.open(f"{refusing}/?on_failure=empty")


def test_an_encryption_key_is_never_dropped(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    with mnemic.open(f"{url}&on_failure=empty", encryption_key=KEY) as memory:
        proxy.mode = Cut(0)
        with pytest.raises(StoreUnavailableError):
            memory.scope("acme").remember("lost")
        proxy.mode = Pass()
