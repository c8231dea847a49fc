"""A clock that goes back, on every durable back-end: order, limits, times to live and ids of writes hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import mnemic
from clock import Clock
from faults import DURABLE, said
from http_server import serving
from mnemic.records import LEASE, Record
from mnemic.store.query import Put, Write
from servers.stores import empty_store


@contextmanager
def opened(name: str, folder: Path, clock: Clock) -> Iterator[mnemic.Memory]:
    """Open a store by a clock; that of a Mnemic server is the server's."""
    with empty_store("sqlite" if name == "http" else name, folder) as url:
        if name == "http":
            with serving(url, clock=clock) as client, mnemic.open(str(client.base_url), embedder=None) as memory:
                yield memory
        else:
            with mnemic.open(url, clock=clock, embedder=None) as memory:
                yield memory


@pytest.mark.parametrize("name", ["sqlite", *DURABLE])
def test_a_clock_that_goes_back(name: str, tmp_path: Path) -> None:
    clock = Clock()
    with opened(name, tmp_path, clock) as memory:
        home = memory.scope("acme", "alice")
        chat, short = home.session("long"), home.session("short", ttl=timedelta(hours=1))
        for n in range(6):
            chat.add("user", f"m{n}", once=f"m{n}")
            short.add("user", f"s{n}")
            home.remember(f"r{n}", id=f"r{n}")
            clock.advance(minutes=-20)
        # What the clock says is no order, and no reason to forget, to repeat or to refuse anything.
        assert said(chat) == [f"m{n}" for n in range(6)]
        assert said(short) == [f"s{n}" for n in range(6)]
        assert [message.text for message in chat.messages(limit=2)] == ["m4", "m5"]
        assert sorted(one.id for one in home.memories.list()) == [f"r{n}" for n in range(6)]
        assert chat.add("user", "m5", once="m5").id == chat.messages()[-1].id
        assert home.memories.update("r0", text="changed").text == "changed"
        clock.advance(hours=3)
        assert said(chat) == [f"m{n}" for n in range(6)]
        if name not in ("valkey", "valkey-cluster"):  # whose own clock did not move
            assert said(short) == []


@pytest.mark.parametrize("name", ["sqlite", *(name for name in DURABLE if name != "agentcore")])
def test_versions_and_limits_hold_when_the_clock_goes_back(name: str, tmp_path: Path) -> None:
    clock = Clock()
    with opened(name, tmp_path, clock) as memory:
        home = memory.scope("acme")
        chat = home.session("s", max_messages=3)
        note = home.notes.write("plan", "0")
        for n in range(1, 6):
            clock.advance(hours=-7)
            note = home.notes.write("plan", str(n), if_version=note.version)
            chat.add("user", f"m{n}")
        assert home.notes.get("plan").value == "5"
        assert said(chat) == ["m3", "m4", "m5"]
        with pytest.raises(mnemic.ConflictError):
            home.notes.write("plan", "late", if_version=1)


def test_what_was_said_last_is_true_when_the_clock_goes_back(memory: mnemic.Memory, clock: Clock) -> None:
    facts = memory.scope("acme").facts
    clock.advance(hours=1)
    for city in ("Oslo", "Paris", "Bergen", "Bergen"):
        facts.add("Alice", "lives in", city, single=True)
        assert [fact.object for fact in facts.ask("Alice", "lives in")] == [city]
        clock.advance(minutes=-20)
    clock.advance(hours=2)
    assert [fact.object for fact in facts.ask("Alice", "lives in")] == ["Bergen"]
    known = [fact.object for fact in facts.ask("Alice", "lives in", history=True)]
    assert sorted(known) == ["Bergen", "Oslo", "Paris"]


def test_a_fact_that_is_to_begin_later_still_begins_then(memory: mnemic.Memory, clock: Clock) -> None:
    facts = memory.scope("acme").facts
    facts.add("Alice", "lives in", "Paris", single=True, valid_from=clock() + timedelta(hours=1))
    facts.add("Alice", "lives in", "Oslo", single=True)
    assert [fact.object for fact in facts.ask("Alice", "lives in")] == ["Oslo"]
    clock.advance(hours=2)
    assert [fact.object for fact in facts.ask("Alice", "lives in")] == ["Paris"]


def test_a_lease_of_a_clock_that_was_ahead_is_taken_over(memory: mnemic.Memory, clock: Clock) -> None:
    """A process whose clock is a day ahead dies while it shrinks a session."""
    handed: list[mnemic.Message] = []
    chat = memory.scope("acme").session("s", max_messages=3, overflow=handed.extend)
    lease = Record(chat.scope, LEASE, "room", expires=clock() + timedelta(days=1))
    memory._driver.run(memory._async._store.write(Write((Put(lease),))))
    for n in range(6):
        chat.add("user", f"m{n}")
    assert [message.text for message in handed] + said(chat) == [f"m{n}" for n in range(6)]
    assert len(said(chat)) <= 3


def test_a_lease_of_a_clock_that_is_a_little_ahead_is_not_taken_over(memory: mnemic.Memory, clock: Clock) -> None:
    """While messages are handed over, a writer whose clock is behind adds more: each is handed over once."""
    handed: list[str | None] = []

    def hand_over(messages: list[mnemic.Message]) -> None:
        handed.extend(message.text for message in messages)
        if len(added) < 20:
            clock.advance(milliseconds=-20)
            add()

    added: list[str] = []

    def add() -> None:
        added.append(f"m{len(added)}")
        memory.scope("acme").session("s", max_messages=3, overflow=hand_over).add("user", added[-1])

    for _ in range(8):
        add()
    assert handed + said(memory.scope("acme").session("s")) == added
