"""Erasing a subject: every kind of record, what was derived from it elsewhere, and the certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import mnemic
from layered import HOSTILE
from mnemic import ErasureCertificate, Message
from mnemic.errors import InvalidValueError, SignatureError
from mnemic.features.settings import known_session
from mnemic.records import ScopePath
from servers.stores import REMOTE, STORES

SECRET = "xylophone"
RECORDS = 13
"""How many records `fill` makes, without idempotency ids."""


def fill(space: mnemic.Scope) -> None:
    """Store a record of every kind that can name someone."""
    chat = space.session("monday", max_messages=2, overflow=mnemic.Summarize(lambda messages: f"about {SECRET}"))
    chat.add_many([Message("user", f"I play the {SECRET}, part {n}") for n in range(4)], once="first")
    space.session("tuesday", max_messages=1, overflow="archive").add_many(
        [Message("user", f"{SECRET} {n}") for n in range(2)]
    )
    space.remember(f"plays the {SECRET}", id="plays")
    space.remember(f"played the {SECRET}", id="played", source="old")
    space.forget(source="old", archive=True)
    space.notes.write("instrument", SECRET)
    space.facts.add("she", "plays", SECRET, single=True)
    space.scope("home").remember(f"{SECRET} at home")
    space.recall(SECRET)


@pytest.fixture(params=["memory", "sqlite", *REMOTE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each back-end."""
    with STORES[request.param].empty(tmp_path) as url:
        yield url


def kinds(certificate: ErasureCertificate) -> set[str]:
    return {one.kind for one in certificate.erased if one.records}


def test_an_erasure_reaches_every_kind_and_says_so(store: str) -> None:
    with mnemic.open(store) as memory:
        alice, bob = memory.scope("acme", "alice"), memory.scope("acme", "bob")
        fill(alice)
        bob.remember("drinks tea")
        counted = alice.erase(dry_run=True)
        assert (counted.records, counted.dry_run, counted.signature) == (RECORDS, True, None)
        erased = alice.erase()
        assert erased.records == counted.records
        assert kinds(erased) == kinds(counted)
        assert {"message", "archived", "summary", "memory", "note", "fact", "fact-guard", "once"} <= kinds(erased)
        assert [one.records for one in erased.verified] == [0, 0]
        assert (erased.scope, erased.dry_run, erased.finished >= erased.started) == ("acme/alice", False, True)
        assert "password" not in erased.store
        assert alice.recall(SECRET) == []
        assert alice.sessions.list() == []
        assert [hit.text for hit in bob.recall("tea")] == ["drinks tea"]
        assert alice.erase().records == 0


def test_the_caches_of_this_process_forget_a_subject() -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        fill(alice)
        session = ScopePath("acme/alice/tuesday")
        known = known_session(memory._async._store, session)
        memory.scope("acme").recall(SECRET)
        done = alice.erase()
        assert done.removed["cached indexes"] == 2
        assert known_session(memory._async._store, session) is not known


def test_what_was_derived_elsewhere_is_dropped(memory: mnemic.Memory) -> None:
    team, alice = memory.scope("acme"), memory.scope("acme", "alice")
    alice.session("monday").add("user", f"I play the {SECRET}")
    team.remember("by path", id="path", source="acme/alice")
    team.remember("by session", id="session", metadata={"session": "acme/alice/monday"})
    team.remember("by record", id="record", metadata={"sources": [["acme/alice", "memory", "m"]]})
    team.remember("by an agent", id="agent", metadata={"written_by": {"agent": "a", "scope": "acme/alice/monday"}})
    team.remember("of a derived one", id="again", metadata={"sources": [["acme", "memory", "record"]]})
    team.remember("about another", id="stays", source="acme/alice2", metadata={"sources": ["acme/bob"]})
    team.facts.add("she", "plays", SECRET, source="acme/alice/monday")
    team.facts.add("team", "likes", "tea", source="stays")
    counted, done = alice.erase(dry_run=True), alice.erase()
    assert counted.derived == done.derived
    assert {(one.kind, one.dropped, one.rebuilt) for one in done.derived} == {("memory", 5, 0), ("fact", 1, 0)}
    assert [one.id for one in team.memories.list()] == ["stays"]
    assert [one.object for one in team.facts.ask(history=True)] == ["tea"]


def test_a_mixed_insight_is_made_anew_from_its_other_sources(memory: mnemic.Memory) -> None:
    team, alice, bob = memory.scope("acme"), memory.scope("acme", "alice"), memory.scope("acme", "bob")
    alice.remember(f"Alice plays the {SECRET}", id="a")
    bob.remember("Bob plays the drums", id="b")
    sources = [["acme/alice", "memory", "a"], ["acme/bob", "memory", "b"]]
    team.remember(f"They play {SECRET} and drums", id="band", metadata={"sources": sources})
    done = alice.erase(rebuild=lambda messages: "so: " + " ".join(message.text or "" for message in messages))
    assert [(one.dropped, one.rebuilt) for one in done.derived] == [(0, 1)]
    band = team.memories.get("band")
    assert band.text == "so: Bob plays the drums"
    assert band.metadata["sources"] == [["acme/bob", "memory", "b"]]
    assert SECRET not in str(team.recall("who plays what", k=50))


def test_archives_in_other_stores_are_erased_when_named(tmp_path: Path) -> None:
    archive = f"sqlite:///{tmp_path}/archive.db"
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        for space in (alice, memory.scope("acme", "bob")):
            space.remember(SECRET, metadata={"old": True})
        memory.scope("acme").forget(metadata={"old": True}, archive=archive)
        assert alice.erase(dry_run=True, archives=[archive]).archives[0].records == 1
        done = alice.erase(archives=[archive])
        assert [(one.store, one.records) for one in done.archives] == [(archive, 1)]
    with mnemic.open(archive) as old:
        assert [one.scope.path for one in old.scopes()] == ["acme/bob"]


def test_a_certificate_can_be_saved_and_read_and_hides_the_name(memory: mnemic.Memory, tmp_path: Path) -> None:
    alice = memory.scope("acme", "alice")
    fill(alice)
    with memory.acting(actor="officer", address="10.0.0.7"):
        done = alice.erase(pseudonym="case 4711")
    assert (done.actor, done.address, done.scope) == ("officer", "10.0.0.7", "case 4711")
    path = tmp_path / "certificate.json"
    done.save(path)
    assert "alice" not in path.read_text()
    assert ErasureCertificate.load(path) == done
    assert done.verify() == mnemic.verify_certificate(done.to_dict(), trusted=[done.verify()])
    changes: list[dict[str, object]] = [{"records": 1}, {"scope": "case 4712"}, {"actor": None}, {"erased": []}]
    for change in changes:
        with pytest.raises(SignatureError, match="was changed"):
            replace(done, **change).verify()
    with pytest.raises(SignatureError, match="not trusted"):
        done.verify(trusted=["another"])
    with pytest.raises(SignatureError, match="no signature"):
        alice.erase(dry_run=True).verify()
    path.write_text('{"format": "mnemic.erasure/1"}')
    with pytest.raises(InvalidValueError, match="is not a valid certificate"):
        ErasureCertificate.load(path)
    path.write_text("[]")
    with pytest.raises(InvalidValueError, match="not a certificate of the format"):
        ErasureCertificate.load(path)


def test_an_interrupted_erasure_is_finished_by_the_next(memory: mnemic.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic.features import erasure

    alice = memory.scope("acme", "alice")
    fill(alice)
    purge, calls = erasure.purge, []

    async def dies_later(*given: object, **options: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return await purge(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(erasure, "purge", dies_later)
    with pytest.raises(KeyboardInterrupt):
        alice.erase()
    left = alice.erase(dry_run=True).records
    assert 0 < left < RECORDS
    done = alice.erase()
    assert [one.records for one in done.interrupted] == [RECORDS]
    assert done.records == left
    assert done.complete
    assert alice.erase().interrupted == []


def test_a_scope_with_a_hostile_name_is_erased_alone(memory: mnemic.Memory) -> None:
    memory.scope(HOSTILE).remember("mine")
    memory.scope(HOSTILE.parent).remember("beside")
    assert memory.scope(HOSTILE).erase().complete
    assert [one.scope for one in memory.scopes()] == [HOSTILE.parent]
