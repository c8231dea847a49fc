"""Scanning what is stored already for personal data and secrets, and redacting it in place."""

import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import mnemic
from mnemic import Redaction, Vault
from mnemic.layers import hold as hold_layer
from mnemic.layers.redact import RedactLayer
from mnemic.records import ScopePath, fact_key
from mnemic.redaction.redactor import Redacted
from test_redaction import CONFIGS, EMAIL, KEY, OTHER, SECRETS, fill


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("m.db*")))


def test_a_scan_counts_by_kind_and_recognizer_and_changes_nothing(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path}/m.db") as memory:
        fill(memory.scope("acme"), tmp_path)
        memory.scope("other").remember(EMAIL)
        before = [hit.to_dict() for hit in memory.scope("acme").recall("mail", 20)]
        found = memory.scope("acme").scan()
        assert {(one.kind, one.recognizer) for one in found.found} >= {
            ("memory", "EMAIL"),
            ("note", "SECRET"),
            ("fact", "PAYMENT_CARD"),
            ("message", "PAYMENT_CARD"),
            ("archived", "PHONE"),
        }
        assert (found.mended, found.left) == (0, 0)
        assert memory.scan().matched == found.matched + 1
        assert [hit.to_dict() for hit in memory.scope("acme").recall("mail", 20)] == before
        text = str(found.to_dict())
        assert not any(secret in text for secret in SECRETS)


@pytest.mark.parametrize("name", ["mask", "hash", "vault"])
def test_mending_leaves_nothing_in_the_file(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url) as memory:
        fill(memory.scope("acme"), tmp_path)
        facts = [fact.id for fact in memory.scope("acme").facts.ask(history=True)]
        memory.scope("acme").recall("mail")
    assert EMAIL.encode() in stored_bytes(tmp_path)
    with mnemic.open(url, redact=CONFIGS[name]) as memory:
        assert memory.scope("acme").recall(f"who is {EMAIL}?")
        steps: list[tuple[int, int]] = []
        found = memory.scan(mend=True, progress=lambda done, total: steps.append((done, total)))
        assert found.mended == found.matched > 5
        assert steps[-1][0] == found.records
        assert memory.scan().matched == 0
        scope = memory.scope("acme")
        hits = scope.recall(f"how to reach {EMAIL}?")
        assert hits
        assert not any(secret in hit.text for hit in hits for secret in SECRETS)
        assert [fact.predicate for fact in scope.facts.ask("the user", history=True)] == ["mail", "mail"]
        assert scope.facts.ask(EMAIL, "pays_with")
        assert scope.facts.delete(EMAIL, "pays_with") == 1
        assert scope.notes.read("contact")["password"] != "hunter2hunter2"
        if name == "vault":
            assert EMAIL in memory.reveal(hits[0].text + hits[1].text + hits[2].text)
    held = stored_bytes(tmp_path)
    for secret in SECRETS:
        assert secret.encode() not in held
    for words in ((EMAIL, "pays_with"), ("the user", "mail", EMAIL)):
        assert fact_key(*words).encode() not in held
    assert not any(id.encode() in held for id in facts)


def test_versions_that_a_history_keeps_are_mended_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url, history=timedelta(days=30)) as memory:
        scope = memory.scope("acme")
        item = scope.remember(f"Reach her at {EMAIL}")
        scope.memories.update(item.id, text=f"Reach her at {EMAIL} or elsewhere")
        scope.facts.add(EMAIL, "likes", "tea")
        scope.facts.delete(EMAIL, "likes")
    with mnemic.open(url, history=timedelta(days=30), redact=True, audit=True) as memory:
        found = memory.scan(mend=True)
        assert {(one.kind, one.recognizer) for one in found.found} == {("memory", "EMAIL"), ("version", "EMAIL")}
        assert memory.scan().matched == 0
        texts = [str(version.to_dict()) for version in memory.scope("acme").history(item.id)]
        assert texts
        assert not any(EMAIL in text for text in texts)
        assert [entry.kind for entry in memory.audit_trail(kind="memory")] == ["memory"]
    assert EMAIL.encode() not in stored_bytes(tmp_path)
    assert fact_key(EMAIL, "likes", "tea").encode() not in stored_bytes(tmp_path)


def test_a_mend_can_be_broken_off_and_resumed(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path}/m.db") as memory:
        scope = memory.scope("acme")
        scope.memories.add_many(f"{n}: mail p{n}@example.com" for n in range(450))

        def stop(done: int, total: int) -> None:
            if done >= 200:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            scope.scan(mend=True, progress=stop)
        assert 0 < scope.scan().matched < 450
        assert scope.scan(mend=True).left == 0
        assert scope.scan().matched == 0
        assert len(scope.memories.list()) == 450


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url) as memory, mnemic.open(url, redact=True) as other:
        scope = memory.scope("acme")
        items = scope.memories.add_many([mnemic.MemoryItem(f"mail p{n}@example.com") for n in range(300)])

        def write() -> None:
            for item in items[::3]:
                other.scope("acme").memories.update(item.id, text=f"now q@example.com {item.id}")

        writer = threading.Thread(target=write)
        writer.start()
        found = scope.scan(mend=True)
        writer.join()
        assert found.left == 0
        assert scope.scan().matched == 0
        texts = {item.id: item.text for item in scope.memories.list()}
        assert len(texts) == 300
        for item in items[::3]:
            assert texts[item.id] == f"now [EMAIL] {item.id}"


def test_vectors_and_index_entries_are_those_of_the_redacted_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url) as memory:
        memory.scope("a").remember("The harbour office is kitty.hawk@example.com")
        memory.warm("a")
        memory.scope("a").scan(mend=True)
        assert memory.scope("a").recall("kitty hawk", min_score=0.2) == []
        memory.warm("a")
    with mnemic.open("memory://") as other:
        other.scope("a").remember("The harbour office is [EMAIL]")
        wanted = [hit.score for hit in other.scope("a").recall("harbour office")]
    with mnemic.open(url) as memory:
        assert [hit.score for hit in memory.scope("a").recall("harbour office")] == pytest.approx(wanted, abs=1e-3)


def test_a_scan_takes_a_redaction_only_if_the_memory_has_none() -> None:
    with mnemic.open("memory://") as memory:
        memory.scope("a").remember(f"TCK-123456 {EMAIL}")
        tickets = Redaction(recognizers=[], patterns={"TICKET": r"TCK-\d+"})
        assert [one.recognizer for one in memory.scan(redact=tickets).found] == ["TICKET"]
        with pytest.raises(mnemic.InvalidValueError, match="vault"):
            memory.scan(redact=Redaction(action="hash", key=KEY, vault=Vault(KEY)))
    with mnemic.open("memory://", redact=True) as memory, pytest.raises(mnemic.InvalidValueError, match="own"):
        memory.scan(redact=Redaction())


def test_a_restricted_memory_scans_and_mends_its_scope_alone() -> None:
    with mnemic.open("memory://") as memory:
        memory.scope("acme").remember(EMAIL)
        memory.scope("globex").remember(EMAIL)
        own = memory.restricted("acme")
        assert own.scan().matched == 1
        assert own.scan(mend=True).mended == 1
        assert memory.scan().matched == 1
        with pytest.raises(mnemic.AccessDeniedError):
            memory.restricted("globex", ["read"]).scan(mend=True)
        assert memory.restricted("globex", ["read"]).scan().matched == 1


def test_versions_are_scanned_and_mended_within_the_scope_and_rights(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path}/m.db", history=True) as memory:
        for name in ("alice", "bob"):
            item = memory.scope("acme", name).remember(EMAIL)
            memory.scope("acme", name).memories.update(item.id, text="tea")
        alice = memory.restricted("acme/alice", ["read", "write"])
        reader = memory.restricted("acme/alice", ["read"])
        assert reader.scope("acme").scan().matched == 1
        with pytest.raises(mnemic.AccessDeniedError, match="write"):
            reader.scope("acme").scan(mend=True)
        with pytest.raises(mnemic.AccessDeniedError, match="read"):
            memory.restricted("acme/alice", ["write"]).scan()
        assert alice.scope("acme", "bob").scan(mend=True).records == 0
        assert alice.scope("acme").scan(mend=True).mended == 1
        assert memory.scope("acme", "bob").scan().matched == memory.scan().matched == 1


def test_what_is_under_a_hold_is_not_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_layer, "FRESH", 0.0)
    with mnemic.open(f"sqlite:///{tmp_path}/m.db", history=True) as memory:
        for name in ("alice", "bob"):
            item = memory.scope("acme", name).remember(EMAIL)
            memory.scope("acme", name).memories.update(item.id, text=f"mail {EMAIL}")
        hold = memory.scope("acme", "alice").hold("case 4711")
        found = memory.scan(mend=True)
        assert (found.mended, found.left) == (2, 2)
        assert memory.scan().matched == memory.scope("acme", "alice").scan().matched == 2
        memory.scope("acme", "alice").release(hold)
        assert memory.scan(mend=True).mended == 2


def test_the_vault_has_the_values_of_records_that_changed_during_a_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    with mnemic.open(url) as clear, mnemic.open(url, redact=CONFIGS["vault"]) as memory:
        item = clear.scope("acme").remember(EMAIL)
        keep = RedactLayer.keep

        async def overtaken(layer: RedactLayer, scope: ScopePath, found: Redacted) -> None:
            await keep(layer, scope, found)
            monkeypatch.setattr(RedactLayer, "keep", keep)
            clear.scope("acme").memories.update(item.id, text=OTHER)

        monkeypatch.setattr(RedactLayer, "keep", overtaken)
        assert memory.scan(mend=True).mended == 1
        assert memory.reveal(memory.scope("acme").memories.get(item.id).text) == OTHER


def test_a_store_without_findings_is_not_written(tmp_path: Path) -> None:
    with mnemic.open(f"sqlite:///{tmp_path}/m.db") as memory:
        memory.scope("a").remember("tea")
        with closing(sqlite3.connect(tmp_path / "m.db")) as watching:
            # Changes with every commit of another connection.
            before = watching.execute("PRAGMA data_version").fetchone()
            assert memory.scan(mend=True).matched == 0
            assert watching.execute("PRAGMA data_version").fetchone() == before
            memory.scope("a").remember("milk")
            assert watching.execute("PRAGMA data_version").fetchone() != before
