"""`mnemic demo`: a store to look at, and the dashboard on it, from a terminal and without one."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import mnemic

DEMO = (sys.executable, "-m", "mnemic", "demo")
PRINTED = re.compile(r"See it in a browser: mnemic serve --open --store (.+)")


def test_without_a_terminal_it_tells_and_prints_the_command(tmp_path: Path) -> None:
    path = tmp_path / "the demo.db"
    told = subprocess.run([*DEMO, str(path)], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert "my sister is allergic to shellfish.  message" in told.stdout
    assert "Alice lives_in Oslo; before that Rome" in told.stdout
    assert "3 of 4 messages fit 60 tokens" in told.stdout
    assert "\x1b" not in told.stdout
    printed = PRINTED.search(told.stdout)
    assert printed is not None
    assert shlex.split(printed[1]) == [str(path)]
    with mnemic.open(f"sqlite:///{tmp_path}/the%20demo.db", audit=True) as memory:
        stats = memory.stats()
        assert (stats.sessions, stats.notes, stats.memories, stats.facts) == (6, 5, 9, 15)
        assert memory.scope("acme", "alice").facts.ask("Alice", "works_for")[0].object == "Globex"
        assert {entry.actor for entry in memory.audit_trail()} == {"assistant"}

    again = subprocess.run([*DEMO, str(path)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == f"mnemic: {path} is there already: name a new file for the demo\n"


def run_in_terminal(
    command: list[str], environment: dict[str, str], answer: str
) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **environment})
    os.close(theirs)
    read_until(ours, "Open the dashboard on this file?")
    os.write(ours, f"{answer}\n".encode())
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """Return what a terminal has printed, as soon as it has printed a text."""
    printed = b""
    while text.encode() not in printed:
        try:
            printed += os.read(terminal, 4096)
        except OSError:
            pytest.fail(f"{text!r} is not in {printed!r}")
    return printed.decode(errors="replace")


def test_in_a_terminal_it_offers_to_open_the_dashboard(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    os.mkfifo(opened)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    # A server that is set up for others: the demo is for this machine alone.
    environment = {"BROWSER": str(browser), "PATH": str(tmp_path), "MNEMIC_HOST": "0.0.0.0"}
    process, terminal = run_in_terminal([*DEMO, str(tmp_path / "demo.db")], environment, "")
    try:
        address = opened.read_text()
        server, _, fragment = address.partition("/dashboard/#/recall?")
        assert fragment == "scope=acme%2Falice&q=What+is+her+sister+allergic+to%3F"
        query = {"scope": "acme/alice", "query": "What is her sister allergic to?", "k": "1"}
        found = httpx.get(f"{server}/api/v1/recall", params=query, timeout=60).json()
        assert "shellfish" in str(found)
        assert httpx.get(f"{server}/dashboard/", timeout=60).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_in_a_terminal_one_can_decline(tmp_path: Path) -> None:
    process, terminal = run_in_terminal([*DEMO, str(tmp_path / "demo.db")], {}, "n")
    read_until(terminal, "mnemic serve --open --store")
    assert process.wait(240) == 0
    os.close(terminal)
