"""The settings of a session belong to it: every handle obeys the newest, and nothing is lost by default."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mnemic
from clock import Clock
from mnemic import Message, Summarize
from mnemic.backends.memory import MemoryStore
from mnemic.layers.layer import Layer
from mnemic.records import Record
from mnemic.store.protocol import Page
from mnemic.store.query import Outcome, Scan, Write
from servers.stores import empty_store

BACKENDS = ("memory", "sqlite", "postgresql", "redis8", "dynamodb", "s3", "agentcore")


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


@pytest.fixture(params=BACKENDS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[mnemic.Memory]:
    """An empty memory on each back-end."""
    with empty_store(request.param, tmp_path) as url, mnemic.open(url) as memory:
        yield memory


def test_settings_are_the_sessions_on_every_back_end(anywhere: mnemic.Memory) -> None:
    alice = anywhere.scope("acme", "alice")
    early = alice.session("x")
    early.add("user", "before there were limits")
    alice.session("x", max_messages=3).add("user", "tea with lemon")
    for n in range(5):
        early.add("user", f"early {n}")
        alice.session("x").add("user", f"late {n}")
        assert len(early.messages()) <= 3
    assert alice.session("x").settings().max_messages == 3
    assert len(alice.session("x").archived()) == 9
    assert "tea with lemon" in [hit.record.text for hit in alice.recall("tea with lemon")]
    (info,) = alice.sessions.list()
    assert (info.name, info.messages) == ("x", 3)
    alice.session("x").clear()
    assert (early.messages(), early.archived()) == ([], [])
    assert alice.session("x").settings().max_messages == 3
    alice.session("x", retention="single_run", ttl=timedelta(hours=1)).add("user", "y")
    with alice.session("x").run() as run:
        assert run.messages() == []
    assert alice.sessions.list() == []
    alice.erase()
    assert alice.session("x").settings() == mnemic.SessionSettings()


def test_the_newest_settings_hold_for_handles_that_gave_others(alice: mnemic.Scope) -> None:
    old = alice.session("x", max_messages=10)
    old.add_many([Message("user", str(n)) for n in range(10)])
    alice.session("x", max_messages=4).add("user", "10")
    old.add("user", "11")
    assert texts(old.messages()) == ["8", "9", "10", "11"]
    assert old.settings().max_messages == 4
    old.configure(max_messages=6)
    assert alice.session("x").settings().max_messages == 6


def test_settings_that_are_not_given_stay_and_none_removes_one(alice: mnemic.Scope) -> None:
    alice.session("x", max_messages=3, overflow="drop").add("user", "a")
    chat = alice.session("x", max_tokens=1000)
    chat.add("user", "b")
    found = alice.session("x").settings()
    assert (found.max_messages, found.max_tokens, found.overflow) == (3, 1000, "drop")
    alice.session("x", max_messages=None).add("user", "c")
    found = chat.settings()
    assert (found.max_messages, found.max_tokens, found.overflow) == (None, 1000, "drop")


def test_limits_that_were_removed_are_not_brought_back_by_older_handles(alice: mnemic.Scope) -> None:
    limited = alice.session("x", max_messages=2)
    limited.add("user", "a")
    assert alice.session("x").configure(max_messages=None) == mnemic.SessionSettings()
    for n in range(5):
        limited.add("user", str(n))
    assert len(limited.messages()) == 6


def test_a_handle_gives_its_settings_again_to_a_session_that_began_anew(alice: mnemic.Scope, clock: Clock) -> None:
    chat = alice.session("x", max_messages=2, ttl=timedelta(hours=1))
    chat.add("user", "a")
    clock.advance(hours=1)
    assert alice.session("x").settings() == mnemic.SessionSettings()
    for text in "bcde":
        chat.add("user", text)
    assert texts(chat.messages()) == ["d", "e"]
    assert chat.settings().ttl == timedelta(hours=1)
    alice.erase()
    chat.add("user", "f")
    assert alice.session("x").settings().max_messages == 2


def test_a_fork_and_a_copy_have_the_settings_too(alice: mnemic.Scope, tmp_path: Path) -> None:
    chat = alice.session("x", max_messages=2, keep=0.5, ttl=timedelta(hours=1), retention="session")
    chat.add_many([Message("user", str(n)) for n in range(4)])
    chat.fork("y")
    assert alice.session("y").settings() == chat.settings()
    copy = alice.session("y")
    copy.add("user", "4")
    assert (texts(copy.messages()), texts(copy.archived())) == (["3", "4"], ["0", "1", "2"])
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("from.db", "to.db"))
    with mnemic.open(source) as memory:
        memory.scope("a").session("x", max_messages=2).add("user", "hello")
    mnemic.copy(source, target)
    with mnemic.open(target) as memory:
        assert memory.scope("a").session("x").settings().max_messages == 2


@pytest.mark.parametrize("kind", ["function", "summarize"])
def test_a_handle_without_the_function_archives(alice: mnemic.Scope, kind: str) -> None:
    seen: list[Message] = []

    def model(messages: list[Message]) -> str:
        seen.extend(messages)
        return "summary"

    chat = alice.session("x", max_messages=2, overflow=model if kind == "function" else Summarize(model))
    added = [chat.add("user", str(n)) for n in range(2)]
    other = alice.session("x")
    assert other.settings().overflow == kind
    added += [other.add("user", str(n)) for n in range(2, 5)]
    assert (seen, other.archived() + other.messages()) == ([], added)
    added.append(chat.add("user", "5"))
    assert seen[0] == added[3]


def test_what_overflows_is_archived_and_found_unless_it_is_to_be_dropped(alice: mnemic.Scope) -> None:
    chat = alice.session("x", max_messages=5)
    added = [chat.add("user", "My passport number is 7731."), *(chat.add("user", f"hm {n}") for n in range(30))]
    assert chat.messages() == added[-5:]
    assert chat.archived() == added[:-5]
    hits = alice.recall("passport number")
    assert hits[0].record.text == "My passport number is 7731."
    dropping = alice.session("y", max_messages=5, overflow="drop")
    for n in range(9):
        dropping.add("user", str(n))
    assert (len(dropping.messages()), dropping.archived()) == (5, [])


def test_a_call_that_is_sent_again_makes_no_room_again(alice: mnemic.Scope) -> None:
    for n in range(8):
        alice.session("x", max_messages=3).add("user", str(n), once=str(n))
    for n in range(8):
        alice.session("x", max_messages=3).add("user", str(n), once=str(n))
    chat = alice.session("x")
    assert texts(chat.archived() + chat.messages()) == list("01234567")
    assert chat.settings().max_messages == 3


class CountingStore(Layer):
    """Counts calls that would each be a round trip to a server."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.calls = 0

    async def write(self, write: Write) -> list[Outcome]:
        self.calls += 1
        return await super().write(write)

    async def scan(self, scan: Scan) -> Page[Record]:
        self.calls += 1
        return await super().scan(scan)


def test_settings_and_archiving_cost_an_add_next_to_nothing() -> None:
    async def main() -> None:
        store = CountingStore()
        alice = mnemic.AsyncMemory(store).scope("acme", "alice")
        for _ in range(10):
            await alice.session("plain").add("user", "hello")
        assert store.calls == 10
        chat = alice.session("limited", max_messages=20)
        for _ in range(30):
            await chat.add("user", "hello")
        store.calls = 0
        for _ in range(128):
            await chat.add("user", "hello")
        assert store.calls < 128 * 1.2

    asyncio.run(main())


ARCHIVE = textwrap.dedent("""
    import sys
    import mnemic
    with mnemic.open(sys.argv[1]) as memory:
        chat = memory.scope("acme").session("x", max_messages=5)
        for n in range(100_000):
            print(chat.add("user", f"{sys.argv[2]}-{n}").id, flush=True)
""")


def test_a_killed_writer_loses_no_message_on_its_way_to_the_archive(tmp_path: Path) -> None:
    """Two processes add to a full session as fast as they can and are killed at a random moment."""
    url = f"sqlite:///{tmp_path / 'a.db'}?synchronous=normal"
    rng = random.Random(5)
    acknowledged: list[str] = []
    for round_number in range(4):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", ARCHIVE, url, f"{round_number}-{n}"], stdout=subprocess.PIPE, text=True
            )
            for n in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.append(writer.stdout.readline().strip())
        time.sleep(0.05 + rng.random() * 0.1)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        for writer in writers:
            assert writer.stdout is not None
            acknowledged += writer.stdout.read().split("\n")[:-1]
            writer.stdout.close()
            writer.wait()
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("x")
        kept = [message.id for message in chat.archived() + chat.messages()]
        assert len(chat.messages()) == 5
    assert len(kept) == len(set(kept))
    assert set(acknowledged) <= set(kept)
    assert len(kept) - len(acknowledged) <= 8


@pytest.mark.parametrize("given", [{}, {"max_messages": 20}, {"max_tokens": 150, "overflow": "drop"}])
def test_a_new_handle_for_each_message_costs_one_write_each(given: dict[str, Any]) -> None:
    """A web service makes a handle for each request: what the last one learned is not learned again."""
    calls: list[str] = []

    class Counted(MemoryStore):
        async def write(self, write: Write) -> list[Outcome]:
            calls.append("write")
            return await super().write(write)

        async def scan(self, scan: Scan) -> Page[Record]:
            calls.append("scan")
            return await super().scan(scan)

    async def test() -> None:
        memory = mnemic.AsyncMemory(Counted())
        await memory.scope("acme").session("monday", **given).add("user", "hello")
        for n in range(40):
            await memory.scope("acme").session("monday").add("user", f"message {n}")
        calls.clear()
        for n in range(20):
            await memory.scope("acme").session("monday").add("user", f"message {n}")
        assert calls.count("write") <= 23
        assert calls.count("scan") <= 4
        kept = await memory.scope("acme").session("monday").messages()
        assert len(kept) <= given.get("max_messages", 61)

    asyncio.run(test())


def test_given_settings_apply_again_though_other_handles_changed_them() -> None:
    with mnemic.open("memory://") as memory:
        scope = memory.scope("acme")
        for limit in (5, 9, 5):
            scope.session("monday", max_messages=limit).add("user", "hello")
            assert scope.session("monday").settings().max_messages == limit
