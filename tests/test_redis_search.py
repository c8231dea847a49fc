"""Recall by Redis itself, where it has vector sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import mnemic
from mnemic.store.registry import StoreURL
from servers import redis as servers
from servers import valkey


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with servers.empty_keyspace(tmp_path, server=servers.server8) as empty:
        yield f"{empty}&recall=server"


def texts(hits: list[mnemic.Hit]) -> list[str | None]:
    return [hit.record.text for hit in hits]


def test_memories_and_messages_are_found(url: str) -> None:
    with mnemic.open(url) as memory:
        alice = memory.scope("acme", 'ali"ce')
        alice.remember("Alice loves green tea")
        alice.remember("Bob plays chess on Sundays")
        alice.session("monday").add("user", "I moved to Oslo in March")
        memory.scope("acme", 'ali"ce2').remember("Alice loves coffee")
        assert texts(alice.recall("who plays chess?"))[0] == "Bob plays chess on Sundays"
        assert texts(alice.recall("where did I move to?"))[0] == "I moved to Oslo in March"
        assert "Alice loves coffee" not in texts(alice.recall("what does Alice love?"))
        assert texts(memory.scope().recall("coffee"))[0] == "Alice loves coffee"
        assert texts(alice.recall("Oslo", kinds=["memory"])) == []


def test_the_nearest_within_a_scope_are_found(url: str) -> None:
    animals = ["cat", "dog", "horse", "cow", "sheep", "goat", "hen", "duck", "goose", "pig"]
    with mnemic.open(url) as there, mnemic.open(url.replace("server", "memory")) as here:
        for user in ("one", "two"):
            there.scope("farm", user).remember_many(
                [f"The {animal} {n} of {user} lives in barn {n}" for n in range(20) for animal in animals]
            )
        for animal in animals:
            question = f"where does the {animal} live?"
            found = texts(there.scope("farm", "two").recall(question))
            assert found[0] in texts(here.scope("farm", "two").recall(question, k=20))
            assert all(" two " in str(text) for text in found)


def test_changes_and_deletions_are_seen_at_once(url: str) -> None:
    with mnemic.open(url) as memory, mnemic.open(url) as other:
        alice = memory.scope("alice")
        kept, gone = alice.remember("Alice has a red car"), alice.remember("Alice has a blue boat")
        assert len(alice.recall("what does Alice have?")) == 2
        other.scope("alice").forget(gone.id)
        assert texts(alice.recall("what does Alice have?")) == ["Alice has a red car"]
        other.scope("alice").memories.update(kept.id, text="Alice has a green car")
        assert texts(alice.recall("what does Alice have?")) == ["Alice has a green car"]
        alice.erase()
        assert other.scope("alice").recall("Alice") == []
        parsed = StoreURL.parse(url)
        raw: Any = redis.Redis(port=parsed.split.port or 0)
        sets = [key for key in raw.scan_iter(f"{parsed.options['prefix']}*") if b":set:" in key]
        assert [raw.execute_command("VCARD", key) for key in sets if raw.exists(key)] == []
        raw.close()


def test_a_server_without_vector_sets_is_searched_in_memory(tmp_path: Path) -> None:
    with valkey.empty_keyspace(tmp_path) as plain, mnemic.open(f"{plain}&recall=server") as memory:
        memory.scope("alice").remember("Alice loves green tea")
        assert texts(memory.scope("alice").recall("tea")) == ["Alice loves green tea"]


def test_another_embedder(url: str) -> None:
    class Other(mnemic.StaticEmbedder):
        id = "other"

    with mnemic.open(url) as memory:
        home = memory.scope("home")
        home.remember("The spare key is under the blue pot.")
        assert home.recall("where is the spare key?")
        memory.reembed(Other())
        assert texts(home.recall("where is the spare key?"))[0] == "The spare key is under the blue pot."
