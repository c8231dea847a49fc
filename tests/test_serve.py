"""`mnemic serve` as a process: what it says, how it stops, when it refuses to start, and what operators see."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import httpx

import mnemic
from http_server import serving
from mnemic.backends.memory import MemoryStore
from mnemic.layers.layer import Layer
from mnemic.memory import AsyncMemory
from mnemic.records import Record, Ref
from mnemic.server.app import build_app
from mnemic.server.settings import Settings
from server_process import ask, served

NOTE = "/api/v1/notes/plan?scope=acme"
SECRET = "the harbour project"


def run(*arguments: str, program: str = "-m mnemic", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program.split(maxsplit=1), "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=False)


# ------------------------------------------------------------ start and stop


def test_without_configuration_it_serves_the_default_store_and_says_where(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mnemic", "serve", "--port", "0"]
    environment = {"PATH": "", "XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [next(process.stdout).split(maxsplit=1) for _ in range(5)]
        said = {name: text.strip() for name, text in lines}
        assert list(said) == ["store", "access", "API", "MCP", "dashboard"]
        file = tmp_path / "mnemic" / "memory.db"
        assert said["store"] == f"sqlite:///{file} (new, durable: what is answered is stored)"
        address = said["API"].removesuffix("/api/v1")
        assert said["dashboard"] == f"{address}/dashboard/"
        assert said["access"] == "everyone on this machine, until there is a key"
        assert httpx.put(f"{address}{NOTE}", json={"value": 1}, timeout=60).status_code == 201
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0, "a stop that was asked for is no failure"
    assert [path.name for path in file.parent.iterdir()] == ["memory.db"], "the store was closed"


def test_a_stop_under_load_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    acknowledged: dict[int, list[int]] = {}
    statuses: set[int] = set()
    with served(url) as server:

        def write(writer: int) -> None:
            acknowledged[writer] = []
            with closing(server.connect()) as connection, suppress(OSError, HTTPException):
                for n in range(10_000):
                    status, _ = ask(connection, "PUT", f"/api/v1/notes/{writer}-{n}?scope=acme", {"value": n})
                    statuses.add(status)
                    acknowledged[writer].append(n)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 8 or any(len(done) < 5 for done in acknowledged.values()):
            assert any(thread.is_alive() for thread in threads)
        server.process.stop()
        for thread in threads:
            thread.join()
        assert statuses == {201}
        assert "Traceback" not in server.log
    with mnemic.open(url) as memory:
        stored = {note.key for note in memory.scope("acme").notes.list()}
    assert {f"{writer}-{n}" for writer, done in acknowledged.items() for n in done} <= stored


# ------------------------------------------------------------ refusals


def refused(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that says why it did not start."""
    assert ran.returncode == 1, ran
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    return line


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(run("--store", str(tmp_path / "a.db"), "--port", str(port)))
    assert said.startswith(f"mnemic: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert list(tmp_path.iterdir()) == [], "nothing is created by a server that does not start"


def test_an_unreadable_store_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database " * 1000)
    assert "a.db" in refused(run("--store", str(tmp_path / "a.db"), "--port", "0"))


def test_check_asks_the_server_of_the_settings_whether_it_is_alive(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path / 'a.db'}") as server:
        port = str(server.port)
        assert run("--check", "--host", "0.0.0.0", "--port", port).returncode == 0
    assert f"no server is alive at 127.0.0.1:{port}" in refused(run("--check", "--port", port))


def test_it_does_not_start_where_others_reach_it_without_keys(tmp_path: Path) -> None:
    said = refused(run("--store", str(tmp_path / "a.db"), "--port", "0", "--host", "0.0.0.0"))
    assert "mnemic keys create" in said
    assert not (tmp_path / "a.db").exists()


def test_a_missing_package_is_one_clear_line(tmp_path: Path) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from mnemic.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", "--store", str(tmp_path / "a.db")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert refused(ran) == "mnemic: a server needs uvicorn: pip install 'mnemic[server]'"


def test_a_misspelt_setting_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mnemic.toml").write_text("requires_key = true")
    assert refused(run("--port", "0", folder=tmp_path)).endswith("did you mean require_key?")


# ------------------------------------------------------------ operators


class Stuck(Layer):
    """A store that never answers."""

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return await asyncio.Event().wait()  # type: ignore[return-value]


def test_live_does_not_need_the_store_and_ready_does() -> None:
    async def statuses(store: Any) -> list[int]:
        async with AsyncMemory(store, embedder=None) as memory:
            transport = httpx.ASGITransport(app=build_app(memory, Settings(ready_seconds=0.5)))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return [(await client.get(path)).status_code for path in ("/live", "/ready", "/ready", "/live")]

    async def check() -> None:
        async with asyncio.timeout(120):
            assert await statuses(MemoryStore()) == [200, 200, 200, 200]
            assert await statuses(Stuck(MemoryStore())) == [200, 503, 503, 200]

    asyncio.run(check())


def test_figures_for_prometheus_count_requests_by_endpoint_and_refusals_by_reason() -> None:
    with serving(settings=Settings(max_body_bytes=1024)) as client:
        client.put(NOTE, json={"value": SECRET})
        client.put(NOTE, json={"value": "x" * 2000})
        client.get("/nothing/here")
        text = client.get("/metrics").text
    for line in (
        'mnemic_http_requests_total{endpoint="/api/v1/notes/{key:path}",method="PUT",status="201"} 1.0',
        'mnemic_http_requests_total{endpoint="other",method="GET",status="404"} 1.0',
        'mnemic_http_rejected_total{reason="body_size"} 1.0',
        "mnemic_http_requests_in_progress 1.0",
        'mnemic_http_request_duration_seconds_count{endpoint="/api/v1/notes/{key:path}"} 1.0',
        "process_resident_memory_bytes",
    ):
        assert line in text, text
    assert SECRET not in text
    assert "nothing" not in text


def test_the_access_log_has_neither_content_nor_names(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path / 'a.db'}", "--access-log", "--log-format", "json") as server:
        server.ask("PUT", NOTE, {"value": SECRET})
        server.ask("GET", f"/api/v1/recall?scope=acme&query={SECRET.replace(' ', '+')}")
        server.process.stop()
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    found = [(line["method"], line["endpoint"], line["status"], line["key"]) for line in lines]
    assert found == [("PUT", "/api/v1/notes/{key:path}", 201, "loopback"), ("GET", "/api/v1/recall", 200, "loopback")]
    for word in ("harbour", "acme", "plan"):
        assert word not in server.log.partition("access ")[2]


def test_the_access_log_as_text_has_the_same_fields(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path / 'a.db'}", "--access-log") as server:
        server.ask("PUT", NOTE, {"value": SECRET})
        server.process.stop()
    line = r"PUT /api/v1/notes/\{key:path\} 201 in [\d.]+ ms, [1-9]\d+ bytes, key 'loopback', address 127\.0\.0\.1$"
    assert re.search(line, server.log, re.M), server.log
