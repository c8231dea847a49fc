"""Figures for Prometheus, scraped over HTTP: what operators read, without users or scopes in labels."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

import mnemic
from mnemic import telemetry
from mnemic.backends.sqlite.store import CommitQueue
from mnemic.event_loop import step
from mnemic.store.query import Write
from mnemic.telemetry import calls
from servers import valkey
from servers.keyserver import KeyServer

Scrape = Callable[[], dict[str, float]]


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    monkeypatch.setattr(calls, "_listeners", [])
    return CollectorRegistry()


@pytest.fixture
def scrape(registry: CollectorRegistry) -> Iterator[Scrape]:
    """Give a function that scrapes the figures over HTTP."""
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def answer() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as page:
            return samples(page.read().decode())

    yield answer
    server.shutdown()
    thread.join()
    server.server_close()


def test_operations_latency_and_hits(registry: CollectorRegistry, scrape: Scrape) -> None:
    telemetry.register_prometheus(registry)
    telemetry.register_prometheus(registry)  # once is enough
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("Alice drinks green tea")
        alice.recall("What does Alice drink?")
        alice.recall("zzz qqq")
        with pytest.raises(mnemic.NotFoundError):
            alice.memories.get("nothing")
        found = scrape()
    recalls = 'call="scope.recall",operation="search_memory"'
    assert found[f'mnemic_operations_total{{{recalls},outcome="ok",store="memory"}}'] == 2
    assert found[f'mnemic_operation_duration_seconds_count{{{recalls},store="memory"}}'] == 2
    failed = 'call="memories.get",operation="search_memory",outcome="NotFoundError",store="memory"'
    assert found[f"mnemic_operations_total{{{failed}}}"] == 1
    assert found['mnemic_recalls_total{result="hit"}'] == 1
    assert found['mnemic_recalls_total{result="miss"}'] == 1
    assert found['mnemic_operations_in_progress{store="memory"}'] == 0
    assert found["mnemic_index_bytes"] > 0
    assert found["mnemic_write_queue_depth"] == 0


def test_no_label_names_a_scope_or_a_file(registry: CollectorRegistry, scrape: Scrape, tmp_path: Path) -> None:
    telemetry.register_prometheus(registry)
    with mnemic.open(f"sqlite:///{tmp_path}/of-alice.db") as memory:
        memory.scope("acme", "alice").session("alice-monday").add("user", "alice", name="alice")
    found = scrape()
    assert len(found) > 20
    assert "alice" not in "".join(found)


def test_the_application_names_its_stores(registry: CollectorRegistry, scrape: Scrape) -> None:
    telemetry.register_prometheus(registry, store=lambda url: {"memory://prod": "main"}.get(url, "other"))
    with mnemic.open("memory://prod") as memory:
        memory.scope("acme").notes.write("plan", "tea")
    written = 'call="notes.write",operation="upsert_memory",outcome="ok",store="main"'
    assert scrape()[f"mnemic_operations_total{{{written}}}"] == 1


def test_telemetry_that_fails_breaks_no_call(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_complaints", set())
    telemetry.register_prometheus(registry, store=lambda url: os.environ[f"NO {url}"])
    with mnemic.open("memory://") as memory:
        for n in range(3):
            memory.scope("acme").notes.write("plan", n)
        assert memory.scope("acme").notes.read("plan") == 2
    found = [record.getMessage() for record in caplog.records if record.name == "mnemic.calls"]
    assert found == ["telemetry failed, and is incomplete (KeyError)"]


def test_a_lost_server_and_retries(registry: CollectorRegistry, scrape: Scrape) -> None:
    telemetry.register_prometheus(registry)
    server = KeyServer(valkey.program())
    try:
        with mnemic.open(f"{server.url}?timeout=2") as memory:
            alice = memory.scope("acme", "alice")
            alice.remember("Alice drinks green tea")
            assert scrape()['mnemic_store_up{store="redis"}'] == 1
            server.process.kill()
            with pytest.raises(mnemic.StoreUnavailableError):
                alice.memories.get("tea")
            found = scrape()
            assert found['mnemic_store_up{store="redis"}'] == 0
            assert found['mnemic_retries_total{reason="connection"}'] >= 1
            server.process.start()
            alice.memories.list()
            assert scrape()['mnemic_store_up{store="redis"}'] == 1
    finally:
        server.process.kill()


def test_writes_that_wait_are_counted(registry: CollectorRegistry, scrape: Scrape) -> None:
    telemetry.register_prometheus(registry)
    running, finish = threading.Event(), threading.Event()

    def commit(writes: list[Write]) -> list[list[mnemic.Record]]:
        running.set()
        finish.wait()
        return [[] for _ in writes]

    queue = CommitQueue(commit)  # type: ignore[arg-type]
    threads = [threading.Thread(target=lambda: step(queue.write(Write(())))) for _ in range(3)]
    threads[0].start()
    running.wait()
    for thread in threads[1:]:
        thread.start()
    while len(queue._queue) < 2:
        pass
    with mnemic.open("memory://") as memory:
        memory.stats()
    assert scrape()["mnemic_write_queue_depth"] == 2
    finish.set()
    for thread in threads:
        thread.join()
    queue.close()


WORKER = """
    import sys
    import mnemic
    from mnemic import telemetry

    telemetry.register_prometheus()
    with mnemic.open(sys.argv[1]) as memory:
        for n in range(3):
            memory.scope("acme", sys.argv[2]).remember(f"text {n}")
        if sys.argv[2] == "last":
            from prometheus_client import CollectorRegistry, generate_latest, multiprocess

            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
            print(generate_latest(registry).decode())
"""


def test_several_processes_add_up(tmp_path: Path) -> None:
    shared = tmp_path / "figures"
    shared.mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(shared)}
    for name in ("first", "second", "last"):
        program = [sys.executable, "-c", textwrap.dedent(WORKER), f"sqlite:///{tmp_path}/memory.db", name]
        printed = subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout
    remembered = 'call="scope.remember",operation="create_memory",outcome="ok",store="sqlite"'
    assert samples(printed)[f"mnemic_operations_total{{{remembered}}}"] == 9
