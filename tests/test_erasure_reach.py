"""Erasing where something is in the way: damaged records, other stores, interruptions, archives and holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from zipfile import ZipFile

import pytest

import mnemic
from http_server import serving
from layered import KEY
from mnemic import OpenOptions
from mnemic.errors import AccessDeniedError, HeldError, InvalidValueError, NotFoundError, UnreadableStoreError
from mnemic.features import erasure
from mnemic.records import SIGNING_KIND, Record, ScopePath
from mnemic.redaction.config import Redaction, Vault
from mnemic.server.api_keys import ApiKeys
from mnemic.store.protocol import scrub
from mnemic.store.query import Put, Write
from servers.stores import STORES

EMAIL = "alice@example.com"


def damage(path: Path, scope: str) -> str:
    """Make the first memory of a scope unreadable; return its key."""
    stream = f"(SELECT id FROM mnemic_streams WHERE scope = '{scope}' AND kind = 'memory')"
    with sqlite3.connect(path) as database:
        change = f"UPDATE mnemic_records SET meta = 'y', data = '{{', text = 'x' WHERE stream_id = {stream} AND seq = 1"
        ((key,),) = database.execute(f"{change} RETURNING key").fetchall()
    database.close()
    return str(key)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("history", [None, True], ids=["", "history"])
def test_a_damaged_record_does_not_stop_an_erasure(tmp_path: Path, key: bytes | None, history: bool | None) -> None:
    path = tmp_path / "memory.db"
    options: OpenOptions = {"encryption_key": key, "history": timedelta(days=1) if history else None}
    with mnemic.open(f"sqlite:///{path}", **options) as memory:
        for name in ("alice", "bob"):
            memory.scope("acme", name).remember("tea", id=f"{name} 1", metadata={"a": 1})
            memory.scope("acme", name).remember("more tea", id=f"{name} 2", metadata={"a": 1})
        memory.scope("acme").remember("they drink tea", source="acme/alice")
    damage(path, "acme/alice")
    damaged = damage(path, "acme/bob")
    with mnemic.open(f"sqlite:///{path}", **options) as memory:
        alice, bob = memory.scope("acme", "alice"), memory.scope("acme", "bob")
        done = alice.erase()
        assert (done.records, [one.dropped for one in done.derived], done.complete) == (2, [1], False)
        (left,) = done.unreached
        assert all(part in left.what for part in ("memory", "acme/bob", damaged))
        if history is None:  # which cannot keep a version of it
            assert bob.memories.delete("bob 1") == 1
            assert [one.id for one in bob.memories.list()] == ["bob 2"]
            assert alice.erase().complete


def test_a_damaged_record_elsewhere_does_not_stop_an_export(tmp_path: Path) -> None:
    path, target = tmp_path / "memory.db", tmp_path / "alice.zip"
    with mnemic.open(f"sqlite:///{path}") as memory:
        for name in ("alice", "bob"):
            memory.scope("acme", name).remember("tea", id=f"{name} 1", metadata={"a": 1})
    damaged = damage(path, "acme/bob")
    with mnemic.open(f"sqlite:///{path}") as memory:
        done = memory.scope("acme", "alice").subject_export(target)
        assert (done.records, len(done.unreadable)) == (1, 1)
        assert damaged in done.unreadable[0]
    with ZipFile(target) as archive:
        about = archive.read("README.txt").decode()
    assert "1 damaged records in other places" in about
    assert "bob" not in about


def test_the_values_in_a_vault_of_another_store_are_erased(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/vault.db"
    redaction = Redaction(action="hash", key=KEY, vault=Vault(KEY, store=url))
    with mnemic.open(f"sqlite:///{tmp_path}/memory.db", redact=redaction) as memory:
        alice, bob = memory.scope("acme", "alice"), memory.scope("acme", "bob")
        monday = memory.scope("acme", "alice", "monday")
        for space in (alice, bob):
            space.remember(f"write to {EMAIL}")
        alice.session("monday").add("user", f"I am {EMAIL}")
        hashed = alice.session("monday").messages()[0].text or ""
        assert monday.reveal(hashed) == f"I am {EMAIL}"
        assert alice.sessions.delete("monday")
        assert monday.reveal(hashed) == hashed
        assert EMAIL in alice.reveal(hashed)
        done = alice.erase()
        assert done.removed["values in the vault"] == 1
        assert [(one.place, one.records) for one in done.verified][2:] == [("vault", 0)]
        assert done.complete
        assert alice.reveal(hashed) == hashed
        assert EMAIL in bob.reveal(hashed)


@pytest.mark.parametrize("beside", [False, True])
def test_the_value_behind_a_hash_of_a_derived_record_goes_with_it(tmp_path: Path, beside: bool) -> None:
    url = f"sqlite:///{tmp_path}/vault.db" if beside else None
    with mnemic.open("memory://", redact=Redaction(action="hash", key=KEY, vault=Vault(KEY, store=url))) as memory:
        team, alice = memory.scope("acme"), memory.scope("acme", "alice")
        team.remember(f"{EMAIL} and bob@example.com drink tea", id="both", source="acme/alice/monday")
        team.remember("bob@example.com drinks tea", id="bob")
        hashed = team.memories.get("both").text
        alice.session("monday").add("user", "tea")
        assert alice.erase().complete
        assert team.reveal(hashed).endswith("] and bob@example.com drink tea")


def test_an_encrypted_erasure_that_was_interrupted_late_is_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def dies(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with mnemic.open(f"sqlite:///{tmp_path}/m.db", audit=True, encryption_key=KEY) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        with monkeypatch.context() as patch:
            patch.setattr(erasure, "drop_names", dies)
            with pytest.raises(KeyboardInterrupt):
                alice.erase()
        done = alice.erase()
        assert [one.records for one in done.interrupted] == [1]
        assert done.complete


def test_nothing_is_erased_if_an_archive_cannot_be_opened(tmp_path: Path) -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        calls: list[Callable[[], object]] = [
            lambda: alice.erase(archives=[f"sqlite:///{tmp_path}/typo.db"]),
            lambda: alice.erase(archives=[f"sqlite:///{tmp_path}/typo.db"], dry_run=True),
        ]
        for call in calls:
            with pytest.raises(NotFoundError, match="there is no store at"):
                call()
        assert not (tmp_path / "typo.db").exists()
        with mnemic.open(f"sqlite:///{tmp_path}/other.db", encryption_key=KEY) as other:
            other.scope("acme", "alice").remember("tea")
        with pytest.raises(mnemic.StoreError):
            alice.erase(archives=[f"sqlite:///{tmp_path}/other.db"])
        assert len(alice.memories.list()) == 1


def test_a_refused_erasure_on_a_server_leaves_nothing(tmp_path: Path) -> None:
    with STORES["http"].empty(tmp_path) as url, mnemic.open(url) as memory:
        alice, team = memory.scope("acme", "alice"), memory.scope("acme")
        alice.remember("tea")
        team.remember("they drink tea", source="acme/alice")
        hold = alice.hold("case 4711")
        calls: list[Callable[[], object]] = [
            alice.erase,
            lambda: alice.erase(dry_run=True),
            lambda: alice.erase(rebuild=lambda messages: "x"),
        ]
        for call in calls:
            with pytest.raises(HeldError, match="case 4711"):
                call()
        assert len(team.memories.list()) == 1
        alice.release(hold)
        done = alice.erase()
        assert (done.records, [one.dropped for one in done.derived], done.interrupted) == (1, [1], [])
        with pytest.raises(InvalidValueError, match="run mnemic erase --finish there"):
            memory.finish_erasure(done)


def test_a_dry_run_under_a_hold_is_refused(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember("tea")
    alice.hold("case 4711")
    with pytest.raises(HeldError, match="case 4711"):
        alice.erase(dry_run=True)


@pytest.mark.parametrize(
    "sources", [["acme/alice/s", "acme/bob/s"], ["/acme/alice/s", "/acme/bob/s"], ["acme/alice", "acme/bob", "a//b"]]
)
def test_a_record_is_rebuilt_from_sources_that_are_paths(memory: mnemic.Memory, sources: list[str]) -> None:
    team, alice = memory.scope("acme"), memory.scope("acme", "alice")
    alice.session("s").add("user", "one")
    memory.scope("acme", "bob").session("s").add("user", "two")
    team.remember("both", id="both", metadata={"sources": sources})
    rebuilt = [(one.dropped, one.rebuilt) for one in alice.erase(rebuild=str, dry_run=True).derived]
    done = alice.erase(rebuild=lambda messages: "of " + " ".join(str(one.text) for one in messages))
    assert [(one.dropped, one.rebuilt) for one in done.derived] == rebuilt == [(0, 1)]
    assert team.memories.get("both").text == "of two"
    assert team.memories.get("both").metadata["sources"] == [sources[1].strip("/")]


@pytest.mark.parametrize(
    "metadata", [{"sources": "acme/alice/s"}, {"sources": ["/acme/alice"]}, {"session": "/acme/alice"}]
)
def test_sources_may_be_one_path_and_begin_with_a_slash(memory: mnemic.Memory, metadata: dict[str, object]) -> None:
    memory.scope("acme").remember("derived", metadata=metadata)
    memory.scope("acme", "alice").remember("tea")
    assert [one.dropped for one in memory.scope("acme", "alice").erase().derived] == [1]


def test_the_certificate_of_a_restricted_memory_does_not_name_the_store(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        memory.scope("acme", "alice").remember("tea")
        tenant = memory.restricted("acme", ("read", "write", "erase"))
        done = tenant.scope("acme", "alice").erase()
        assert (done.records, done.store) == (1, "")
        assert memory.finish_erasure(done).finishes == done.id


def test_no_key_on_a_server_can_have_other_data_destroyed_than_by_erasing_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, encryption_key=KEY) as memory:
        key = memory._driver.run(ApiKeys(memory._async).create("test", "acme", ["erase"])).secret
        memory.scope("acme", "alice").remember("tea", id="tea")
        memory.scope("acme").hold("case 4711")
    with serving(url, encryption_key=KEY) as client:
        asked = {"scope": "acme/alice", "finish": True}
        answer = client.post("/api/v1/store/scrub", json=asked, headers={"Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.json()["removed"]) == (200, {})
    with mnemic.open(url, encryption_key=KEY) as memory:
        assert memory.scope("acme", "alice").memories.get("tea").text == "tea"


def test_only_a_memory_of_the_whole_store_can_finish_what_takes_long() -> None:
    with mnemic.open("memory://") as memory:
        tenant = memory.restricted("acme", "erase")._async._store
        with pytest.raises(AccessDeniedError, match="finish concerns the whole store"):
            memory._driver.run(scrub(tenant, finish=True))
        assert memory._driver.run(scrub(tenant)).removed == {}


def test_a_tenant_removes_names_from_the_logs_of_its_own_scopes_only() -> None:
    with mnemic.open("memory://", audit=True) as memory:
        for name in ("acme/alice", "acme/bob", "other/carol"):
            with memory.acting(actor="root-admin"):
                memory.scope(*name.split("/")).remember("tea")
        tenant = memory.restricted("acme", ("read", "write", "erase", "admin"))
        assert tenant.scope("acme", "alice").erase(names=["root-admin"]).removed
        actors = [entry.actor for name in ("acme/bob", "other") for entry in memory.audit_trail(name)]
        assert actors == [None, "root-admin"]


@pytest.mark.parametrize("rights", [None, ("read", "write", "erase", "admin")], ids=["whole", "restricted"])
def test_no_entry_of_the_audit_log_names_an_erased_scope(rights: tuple[mnemic.Right, ...] | None) -> None:
    with mnemic.open("memory://", audit=mnemic.Audit(actor="officer")) as memory:
        memory.scope("acme", "alice").remember("tea")
        used = memory if rights is None else memory.restricted(ScopePath(), rights)
        assert used.scope("acme", "alice").erase().complete
        assert [entry for entry in memory.audit_trail() if "alice" in entry.scope.path] == []


@pytest.mark.parametrize("history", [timedelta(days=1), None], ids=["history", "opened without"])
def test_versions_under_a_hold_elsewhere_are_left_and_named(file_url: str, history: timedelta | None) -> None:
    with mnemic.open(file_url, history=timedelta(days=1)) as memory:
        for text in ("one", "two"):
            memory.scope("acme", "team").remember(text, id="t", source="acme/alice")
        memory.scope("acme", "team").forget("t")
        memory.scope("acme", "alice").remember("tea")
        memory.scope("acme", "team").hold("case 4711")
    with mnemic.open(file_url, history=history) as memory:
        done = memory.scope("acme", "alice").erase()
        assert (done.records, done.complete) == (1, False)
        (left,) = done.unreached
        assert "earlier versions in 'acme/team'" in left.what
        assert "case 4711" in left.what
        assert [one.item.text for one in memory.scope("acme", "team").history("t")] == ["two", "one"]  # type: ignore[union-attr]


def test_what_is_rebuilt_no_longer_names_the_erased_scope(memory: mnemic.Memory) -> None:
    team, alice, bob = memory.scope("acme"), memory.scope("acme", "alice"), memory.scope("acme", "bob")
    alice.remember("Alice plays", id="a")
    bob.remember("Bob plays", id="b")
    sources = [["acme/alice", "memory", "a"], ["acme/bob", "memory", "b"]]
    metadata = {"sources": sources, "session": "acme/alice/monday", "tone": "calm"}
    team.remember("both play", id="both", source="acme/alice", metadata=metadata)
    team.notes.write("band", {"players": ["Alice", "Bob"]}, description="Alice and Bob", metadata={"sources": sources})
    done = alice.erase(rebuild=lambda messages: " ".join(str(one.text) for one in messages))
    assert {(one.kind, one.dropped, one.rebuilt) for one in done.derived} == {("memory", 0, 1), ("note", 1, 0)}
    both = team.memories.get("both")
    assert (both.text, both.source, both.metadata) == ("Bob plays", None, {"sources": [sources[1]], "tone": "calm"})
    assert alice.erase(dry_run=True).derived == []


def test_a_server_keeps_the_names_that_a_client_wants_to_keep(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with serving(url, audit=True) as client, mnemic.open(str(client.base_url)) as memory:
        for name in ("alice", "bob"):
            with memory.acting(actor=name):
                memory.scope("acme", name).remember("tea")
        memory.scope("acme", "alice").erase(keep_audit_names=True)
        memory.scope("acme", "bob").erase(names=["nobody"])
    with mnemic.open(url, audit=True) as memory:
        assert memory.audit_trail("acme/alice")
        assert memory.audit_trail("acme/bob") == []


def test_a_client_certifies_the_data_keys_that_it_has_destroyed() -> None:
    with serving() as client, mnemic.open(str(client.base_url), encryption_key=KEY) as memory:
        memory.scope("acme", "alice").remember("tea")
        assert memory.scope("acme", "alice").erase().removed == {"data keys": 1}
    with serving() as client, mnemic.open(str(client.base_url), embedder=None) as memory:
        memory.scope("acme", "alice").remember("tea")
        memory.scope("acme", "alice").recall("tea")
        assert memory.scope("acme", "alice").erase().verify()  # it has the signature of the server


def test_a_dry_run_with_archives_on_a_server_is_refused_under_its_hold(tmp_path: Path) -> None:
    archive = f"sqlite:///{tmp_path}/archive.db"
    with mnemic.open(archive) as other:
        other.scope("acme", "alice").remember("tea")
    with serving() as client, mnemic.open(str(client.base_url)) as memory:
        memory.scope("acme", "alice").hold("case 4711")
        with pytest.raises(HeldError, match="case 4711"):
            memory.scope("acme", "alice").erase(dry_run=True, archives=[archive])


def test_a_certificate_counts_the_records_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("tea", id="0")

        async def late(store: object, **options: object) -> object:
            for n in range(50):
                await memory._async.scope("acme", "alice").remember(f"cup {n}", id=f"{n}")
            return await scrub(store, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(erasure, "scrub", late)
        done = alice.erase()
        assert [one.records for one in done.verified] == [50, 50]
        assert [one.what for one in done.unreached] == ["records that others wrote during the erasure"]
        assert not done.complete


def test_nothing_is_erased_if_the_signing_key_is_damaged() -> None:
    damaged = Record(ScopePath(), SIGNING_KIND, "first", data={"secret": "too short"})
    with mnemic.open("memory://") as memory:
        memory._driver.run(memory._async._backend.write(Write((Put(damaged),))))
        alice = memory.scope("acme", "alice")
        alice.remember("tea")
        with pytest.raises(UnreadableStoreError, match="signing-key 'first'"):
            alice.erase()
        assert len(alice.memories.list()) == 1
