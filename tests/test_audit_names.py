"""Names in the audit log: pseudonyms, content by choice, and erasure of names that leaves the chains intact."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import mnemic
from layered import KEY, with_audit
from mnemic.backends.memory import MemoryStore
from mnemic.errors import StoreUnavailableError
from mnemic.layers.audit_names import DroppedNames, drop_names
from mnemic.layers.audit_verify import AuditVerifier
from mnemic.layers.layer import Layer
from mnemic.records import Record, ScopePath
from mnemic.store.query import Outcome, Put, Write

ALICE = ScopePath("acme/alice@example.com")


def dropped(memory: mnemic.Memory, scope: ScopePath = ALICE, *names: str) -> int:
    done: DroppedNames = memory._driver.run(drop_names(memory._async._store, scope, names, certificate="certificate-1"))
    return done.entries


@pytest.mark.parametrize("mode", ["same", "separate", "encrypted"])
def test_names_are_erased_and_the_chains_verify(mode: str, tmp_path: Path) -> None:
    data, trail = tmp_path / "data.db", tmp_path / "trail.db"
    options: dict[str, Any] = {"audit": f"sqlite:///{trail}" if mode == "separate" else True}
    if mode == "encrypted":
        options["encryption_key"] = KEY
    with mnemic.open(f"sqlite:///{data}", **options) as memory:
        alice, bob = memory.scope("acme", "alice@example.com"), memory.scope("acme", "bob")
        with memory.acting(actor="alice-login", address="10.0.0.7"):
            alice.session("monday").add("user", "hello")
            alice.notes.write("passport number", 1)
            bob.notes.write("from alice", 1)
        with memory.acting(actor="bob-login"):
            bob.notes.write("own", 2)
        checkpoint = memory.audit_checkpoint()
        alice.erase(keep_audit_names=True)
        before = len(memory.audit_trail())
        with memory.acting(actor="privacy officer"):
            assert dropped(memory, ALICE, "alice-login") == before - 1
        verified = memory.audit_verify(checkpoint=checkpoint)
        assert (verified.problems, verified.notes) == ([], [])
        trail_now = memory.audit_trail()
        added = [entry for entry in trail_now if entry.kind == "audit"]
        assert {(entry.operation, entry.actor, entry.key) for entry in added} == {
            ("purge", "privacy officer", "certificate-1")
        }
        assert len(trail_now) - len(added) == before
        assert memory.audit_trail("acme/alice@example.com") == []
        assert {entry.scope.segments[0] for entry in trail_now} == {"acme"}
        assert [entry.key for entry in memory.audit_trail("acme/bob")] == [None, "own"]
        assert [entry.operation for entry in trail_now if entry.kind != "erasure"].count("put") == 4
        assert dropped(memory, ALICE, "alice-login") == 0
        alice.notes.write("new", 1)
        alice.notes.write("newer", 1)
        assert memory.audit_verify().intact
        assert len(memory.audit_trail("acme/alice@example.com")) == 2
        alice.erase(keep_audit_names=True)
        dropped(memory)
        memory._driver.run(memory._async._store.scrub())  # type: ignore[attr-defined]
    for path in (data, trail):
        content = path.read_bytes() if path.exists() else b""
        for name in (b"alice@example.com", b"passport", b"alice-login", b"10.0.0.7"):
            assert name not in content, name


@pytest.mark.parametrize("failing", range(1, 9))
def test_an_interrupted_erasure_of_names_is_explained_and_finished(failing: int) -> None:
    class Interrupted(Layer):
        writes = 0

        async def write(self, write: Write) -> list[Outcome]:
            self.writes += 1
            if self.writes == failing:
                raise StoreUnavailableError("interrupted")
            return await super().write(write)

    async def main() -> None:
        store = Interrupted(MemoryStore())
        store.writes = 1000
        layer = with_audit(store)
        for scope in (ALICE, ALICE / "monday"):
            for key in "ab":
                await layer.write(Write((Put(Record(scope, "note", key)),)))
        store.writes = 0
        with pytest.raises(StoreUnavailableError):
            await drop_names(layer, ALICE)
        assert (await AuditVerifier(layer.chain, ScopePath()).run()).problems == []
        store.writes = 1000
        await drop_names(layer, ALICE)
        verified = await AuditVerifier(layer.chain, ScopePath()).run()
        assert (verified.problems, verified.notes, verified.entries) == ([], [], 4)
        assert await layer.trail(ALICE) == []

    asyncio.run(main())


def test_pseudonyms_hide_names_and_are_found_by_them() -> None:
    with mnemic.open("memory://", audit=mnemic.Audit(pseudonyms=True)) as memory:
        notes = memory.scope("acme").notes
        with memory.acting(actor="alice", address="10.0.0.7", session="web"):
            notes.write("plan", 1)
        with memory.acting(actor="bob"):
            notes.write("plan", 2)
        first, second = memory.audit_trail(operation="put")
        assert memory.audit_trail(actor="alice", key="plan") == [first]
        assert first.key == second.key != "plan"
        assert first.actor is not None
        assert first.actor.startswith("~")
        assert not {"alice", "bob", "plan", "10.0.0.7", "web"} & {
            str(value) for entry in memory.audit_trail() for value in entry.to_dict().values()
        }
        assert memory.audit_verify().intact
        assert dropped(memory, ScopePath("other"), "bob") == 1
        assert memory.audit_trail(actor="bob") == []
        assert memory.audit_verify().intact


def test_pseudonyms_of_an_older_key_are_found_and_erased(tmp_path: Path) -> None:
    old, new = mnemic.SigningKey(KEY), mnemic.SigningKey(KEY[::-1])
    for keys in ([old], [new, old]):
        audit = mnemic.Audit(pseudonyms=True)
        with mnemic.open(f"sqlite:///{tmp_path}/m.db", audit=audit, signing_key=keys, embedder=None) as memory:
            with memory.acting(actor="ann"):
                memory.scope("acme").notes.write("plan", len(keys))
            assert len(memory.audit_trail(actor="ann", key="plan")) == len(keys)
            if len(keys) == 2:
                assert dropped(memory, ScopePath("other"), "ann") == 2
                assert memory.audit_verify().intact


@pytest.mark.parametrize("redaction", [{"kinds": ["memory"]}, {"scopes": ["acme/alice"]}])
def test_a_logged_question_is_redacted_wherever_records_are(redaction: dict[str, Any]) -> None:
    audit = mnemic.Audit(content=True, reads=True)
    with mnemic.open("memory://", audit=audit, redact=mnemic.Redaction(**redaction)) as memory:
        memory.scope("acme").recall("who is ann@example.com")
        assert [entry.content for entry in memory.audit_trail(operation="recall")] == ["who is [EMAIL]"]


def test_content_is_kept_only_if_asked_for_and_redacted() -> None:
    for content in (False, True):
        audit = mnemic.Audit(content=content, reads=True)
        with mnemic.open("memory://", audit=audit, redact=True) as memory:
            space = memory.scope("acme")
            space.remember("Write to alice@example.com", id="m")
            space.recall("Where does bob@example.com live?")
            kept = [entry.content for entry in memory.audit_trail() if entry.operation in ("put", "recall")]
            text = " ".join(filter(None, kept))
            assert ("Write to" in text, "Where does" in text) == (content, content)
            assert "@example.com" not in text
            assert memory.audit_verify().intact


def test_reads_are_logged_with_count_and_actor() -> None:
    with mnemic.open("memory://", audit=mnemic.Audit(reads=True)) as memory:
        space = memory.scope("acme")
        space.remember("Alice likes tea", id="tea")
        chat = space.session("s")
        chat.add("user", "hello")
        with memory.acting(actor="bob", address="10.0.0.9"):
            space.recall("What does Alice like?")
            chat.messages()
            space.memories.get("tea")
        reads = memory.audit_trail(actor="bob")
        told = {(e.operation, e.scope.path, e.count, tuple(e.keys)) for e in reads}
        assert ("read", "acme", 1, ("tea",)) in told
        assert any(e.operation == "recall" and "tea" in e.keys and e.count == len(e.keys) for e in reads)
        assert any(e.operation == "scan" and e.scope.path == "acme/s" and e.count == 1 for e in reads)
        assert {e.address for e in reads} == {"10.0.0.9"}
        assert memory.audit_verify().intact


def test_a_read_that_cannot_be_logged_returns_nothing() -> None:
    class Failing(Layer):
        failing = False

        async def write(self, write: Write) -> list[Outcome]:
            if self.failing:
                raise StoreUnavailableError("away")
            return await super().write(write)

    async def main() -> None:
        log = Failing(MemoryStore())
        layer = with_audit(MemoryStore(), mnemic.Audit(reads=True), log)
        record = Record(ALICE, "note", "a")
        await layer.write(Write((Put(record),)))
        log.failing = True
        with pytest.raises(mnemic.AuditError, match="nothing was returned"):
            await layer.read([record.ref])

    asyncio.run(main())
