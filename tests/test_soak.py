"""Mixed load from several processes: counts, order, memory and handles at the end.

Some seconds in every run of the tests; `make soak` takes minutes for each durable back-end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import mnemic
from server_process import served
from servers.stores import empty_file, empty_store
from soak_process import COUNTERS, LIMIT, SESSION_SIZE, WARM, used

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
STORES = os.environ.get("SOAK_STORES", "sqlite postgresql").split()
PROCESSES = 3
GROWTH = 1.25
"""Maximum growth of a process's memory after it is warm, and `SPARE` more."""
SPARE = 32 * 2**20


@contextmanager
def store(name: str, folder: Path) -> Iterator[str]:
    """Provide an empty store; a Mnemic server is a process of its own, as users start it."""
    if name != "http":
        with empty_store(name, folder) as url:
            yield url
        return
    with empty_file(folder) as url, served(url, "--rate", "0") as server:
        pid = server.process.pid
        assert pid is not None
        early: dict[str, int] = {}
        timer = threading.Timer(WARM * SECONDS + 5, lambda: early.update(used(pid)))
        timer.start()
        yield f"http://127.0.0.1:{server.port}/?breaker=0&timeout=30"
        timer.join()
        check_growth(early, used(pid))
        server.process.stop()
        assert "Traceback" not in server.log


def connections_of(name: str, url: str) -> Callable[[], int]:
    """Return a function that counts the connections to a server, past its own; always 0 if that cannot be asked."""
    if name == "postgresql":
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

        def ask() -> int:
            with closing(psycopg.connect(url)) as connection:
                row = connection.execute(count).fetchone()
                return 0 if row is None else int(row[0])

        return ask
    if name == "valkey":
        return lambda: len(redis.Redis.from_url(url.partition("?")[0]).client_list()) - 1
    return lambda: 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory and handles are read from /proc")
@pytest.mark.parametrize("name", STORES)
def test_counts_order_memory_and_handles_after_mixed_load(name: str, tmp_path: Path) -> None:
    with store(name, tmp_path) as url:
        mnemic.open(url).close()
        connected = connections_of(name, url)
        before = connected()
        done = load(url, tmp_path)
        assert connected() == before, "connections are left"
        with mnemic.open(url) as memory:
            check_content(memory, done)
    for one in done.values():
        check_resources(one)
    sys.stdout.write(f"\n{name}: {summary(done)}\n")


def load(url: str, folder: Path) -> dict[str, Any]:
    """Run all processes to their end; return what each did."""
    names = [f"p{n}" for n in range(PROCESSES)]
    script = str(Path(__file__).with_name("soak_process.py"))
    running = {
        name: subprocess.Popen(
            [sys.executable, script, url, name, str(SECONDS), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    try:
        told = {name: process.communicate(timeout=3 * SECONDS + 120) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    for name, process in running.items():
        assert process.returncode == 0, f"{name} ended with {process.returncode}: {told[name][1][-3000:]}"
    return {name: json.loads(output) for name, (output, _) in told.items()}


def check_content(memory: mnemic.Memory, done: dict[str, Any]) -> None:
    """Compare what is stored with what the processes were told."""
    shared = memory.scope("soak", "shared")
    sessions = max(one["said"] for one in done.values()) // SESSION_SIZE + 1
    found: dict[str, list[int]] = {name: [] for name in done}
    for number in range(sessions):
        chat = shared.session(f"s{number}")
        messages, info = chat.messages(), chat.info()
        assert len(messages) == (0 if info is None else info.messages)
        for message in messages:
            writer, _, n = (message.text or "").rpartition("-")
            found[writer].append(int(n))
    for name, one in done.items():
        assert found[name] == list(range(one["said"])), f"{name}: lost, twice or out of order"
        kept = {item.id for item in memory.scope("soak", name).memories.list()}
        assert kept == set(one["kept"])
    for number in range(COUNTERS):
        total = sum(one["increments"][number] for one in done.values())
        if total:
            assert int(shared.notes.get(f"counter-{number}").value) == total
    limited = shared.session("limited").messages()
    assert len(limited) == min(LIMIT, sum(one["limited"] for one in done.values()))


def check_resources(one: dict[str, Any]) -> None:
    """Compare memory, handles and threads at the end with those of the warm process."""
    closed = one["closed"]
    check_growth(one["early"], one["late"])
    assert closed["handles"] <= 8, closed
    assert closed["threads"] == 1, closed


def check_growth(early: dict[str, int], late: dict[str, int]) -> None:
    """Compare what a process uses with what it used when it was warm."""
    assert late["rss"] < GROWTH * early["rss"] + SPARE, (early, late)
    assert late["handles"] <= early["handles"] + 10, (early, late)
    assert late["threads"] <= early["threads"] + 8, (early, late)  # pools grow


def summary(done: dict[str, Any]) -> str:
    """Return what all processes did, and the most that one used, in one line."""
    calls = sum(sum(one["counts"].values()) for one in done.values())
    most = {
        what: [max(one[when][what] for one in done.values()) for when in ("early", "late", "closed")]
        for what in ("rss", "handles", "threads")
    }
    most["rss"] = [size // 2**20 for size in most["rss"]]
    said = sum(one["said"] for one in done.values())
    shown = ", ".join(f"{what} {early} → {late}, {end} closed" for what, (early, late, end) in most.items())
    return f"{calls:,} calls of {len(done)} processes in {SECONDS:g} s, {said:,} messages; {shown} (rss in MB)"
