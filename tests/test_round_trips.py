"""What an add costs in round trips to a server, counted where they are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.backends.postgres import client as postgres_client
from mnemic.backends.redis.client import RedisConnection
from servers import postgres, valkey

ADDS = 150
SERVERS: dict[str, Any] = {
    "postgresql": partial(postgres.empty_database, extensions=False),
    "redis": valkey.empty_keyspace,
}


class Trips:
    """How many times something was sent to a server, and its answer awaited."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same, counting."""

        def sending(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return send(*args, **kwargs)

        return sending

    def of(self, call: Callable[[], object]) -> int:
        """Return how many a call makes."""
        before = self.count
        call()
        return self.count - before


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    found = Trips()
    for name in ("each", "insert"):
        method = getattr(postgres_client.PostgresConnection, name)
        monkeypatch.setattr(postgres_client.PostgresConnection, name, found.counted(method))
    monkeypatch.setattr(RedisConnection, "send_packed_command", found.counted(RedisConnection.send_packed_command))
    return found


@pytest.fixture(params=SERVERS)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[mnemic.Memory]:
    with SERVERS[request.param](tmp_path) as url, mnemic.open(url, embedder=None) as opened:
        yield opened


def adds(chat: Any, trips: Trips) -> list[int]:
    """Return what each of many adds costs, once those before have filled the session."""
    roles = ("user", "assistant")
    for n in range(60):
        chat.add(roles[n % 2], f"before {n}")
    return [trips.of(lambda n=n: chat.add(roles[n % 2], f"message {n}")) for n in range(ADDS)]  # type: ignore[misc]


@pytest.mark.parametrize("limits", [{"max_messages": 40}, {"max_tokens": 400}])
def test_a_full_session_costs_one_round_trip_more(memory: mnemic.Memory, trips: Trips, limits: dict[str, Any]) -> None:
    alice = memory.scope("acme", "alice")
    plain = adds(alice.session("plain"), trips)
    full = adds(alice.session("full", overflow="drop", **limits), trips)
    # Connections are looked after now and then, and the oldest messages listed anew once in sixty adds.
    assert Counter(plain)[1] >= 0.96 * ADDS, Counter(plain)
    assert Counter(full)[2] >= 0.93 * ADDS, Counter(full)
    assert sum(full) <= sum(plain) + 1.1 * ADDS, Counter(full)


def test_a_limited_session_that_is_not_full_costs_no_more(memory: mnemic.Memory, trips: Trips) -> None:
    chat = memory.scope("acme", "alice").session("wide", max_messages=1000, overflow="drop")
    assert Counter(adds(chat, trips))[1] >= 0.96 * ADDS


def test_an_add_with_a_name_costs_one_round_trip_more(memory: mnemic.Memory, trips: Trips) -> None:
    chat = memory.scope("acme", "alice").session("named")
    chat.add("user", "first", once="first")
    found = Counter(trips.of(partial(chat.add, "user", f"{n}", once=f"call-{n}")) for n in range(ADDS))
    assert found[1] + found[2] >= 0.95 * ADDS, found
