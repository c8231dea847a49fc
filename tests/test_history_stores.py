"""History on every back-end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mnemic
from clock import Steps
from mnemic.layers import history
from servers.stores import STORES

MONTH = timedelta(days=30)
BACKENDS = ("memory", "sqlite", "postgresql", "redis7", "valkey-cluster", "dynamodb", "s3")


@pytest.mark.parametrize("name", BACKENDS)
def test_versions_are_kept_restored_and_read_as_of_a_moment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Steps(datetime.now(UTC))
    monkeypatch.setattr(history, "COPIED_AT_ONCE", 5)
    with STORES[name].empty(tmp_path) as url, mnemic.open(url, history=MONTH, clock=clock, embedder=None) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday", max_messages=12, overflow="drop")
        chat.add_many([{"role": "user", "content": f"message {n}"} for n in range(12)])
        alice.notes.write("plan", "first")
        alice.facts.add("Alice", "lives in", "Oslo", single=True)
        said = chat.messages()
        moment = clock.time
        clock.time += timedelta(seconds=1)

        chat.edit({"id": said[7].id, "role": "user", "content": "edited"})
        chat.add("user", "one more")
        alice.notes.write("plan", "second")
        alice.notes.delete("plan")
        alice.facts.add("Alice", "lives in", "Rome", single=True)
        alice.sessions.delete("monday")

        assert [version.deleted for version in alice.history("plan")] == [True, False]
        assert len(alice.session("monday").history()) == 14
        past = alice.as_of(moment)
        assert past.session("monday").messages() == said
        assert past.notes.read("plan") == "first"
        assert [fact.object for fact in past.facts.ask("Alice")] == ["Oslo"]
        assert past.stats().messages == 12
        assert alice.session("monday").restore() == 12
        assert alice.session("monday").messages()[6].text == "edited"
        assert alice.session("monday").settings().max_messages == 12
        assert alice.restore("plan") == alice.notes.get("plan")
        assert memory.stats().items == 15
        alice.erase()
        assert alice.session("monday").history() == []
        with pytest.raises(mnemic.NotFoundError):
            alice.history("plan")
