"""Erasing a subject: every kind of record, what was derived from it elsewhere, and the certificate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from shutil import copyfile
from signal import SIGKILL
from subprocess import PIPE, Popen, run
from uuid import uuid4
from zipfile import ZipFile

import psycopg
import pytest
from msgspec import json
from msgspec.structs import replace

import mnemic
from layered import HOSTILE, KEY
from mnemic import ErasureCertificate, Message
from mnemic.errors import InvalidValueError, NotFoundError, SignatureError
from mnemic.features.session_settings import known_session
from mnemic.records import Record, ScopePath
from mnemic.store.query import Scan
from servers import postgres
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
        assert len(erased.verify()) == 64
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
    from mnemic.features import erasure, purging

    alice = memory.scope("acme", "alice")
    fill(alice)
    purge, calls = purging.purge, []

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


def test_a_copy_from_before_cannot_be_read_once_the_key_is_destroyed(tmp_path: Path) -> None:
    url, keys = f"sqlite:///{tmp_path}/memory.db", f"sqlite:///{tmp_path}/keys.db"
    encryption = mnemic.Encryption(KEY, key_store=keys)
    with mnemic.open(url, encryption_key=encryption) as memory:
        for name in ("alice", "bob"):
            memory.scope("acme", name).remember(f"{name} plays the {SECRET}", id=name)
    backup = tmp_path / "backup.db"
    copyfile(tmp_path / "memory.db", backup)
    with mnemic.open(url, encryption_key=encryption) as memory:
        done = memory.scope("acme", "alice").erase()
        assert (done.removed["data keys"], done.complete) == (1, True)
        memory.scope("acme", "alice").remember("new", id="new")
        assert [one.text for one in memory.scope("acme", "alice").memories.list()] == ["new"]
    with mnemic.open(f"sqlite:///{backup}", encryption_key=encryption) as old:
        assert old.scope("acme", "alice").memories.list() == []
        assert old.scope("acme", "bob").memories.get("bob").text == f"bob plays the {SECRET}"


def test_no_version_of_what_was_erased_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, history=timedelta(days=30), audit=True) as memory:
        team, alice = memory.scope("acme"), memory.scope("acme", "alice")
        for text in (SECRET, f"{SECRET} again"):
            alice.remember(text, id="a")
            alice.session("monday").add("user", text)
            team.remember(text, id="t", source="acme/alice")
        team.remember(SECRET, id="gone", source="acme/alice")
        team.forget("gone")
        team.remember("of another", id="other")
        team.forget("other")
        done = alice.erase()
        assert done.removed["entries of the audit log that had names"] > 0
        assert team.history("other")
        assert memory.audit_verify().intact
        assert memory.audit_trail("acme/alice") == []
    assert [file.name for file in tmp_path.iterdir() if SECRET.encode() in file.read_bytes()] == []


def test_what_an_erasure_leaves_on_postgresql_is_finished(tmp_path: Path) -> None:
    with STORES["postgresql"].empty(tmp_path) as url, mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember(SECRET)
        done = alice.erase()
        assert [one.finishable for one in done.unreached] == [True, False]
        before = table_files(url)
        finished = memory.finish_erasure(done)
        after = table_files(url)
        assert (finished.finishes, finished.removed) == (done.id, {"tables rewritten": len(before)})
        assert before.keys() == after.keys() >= {"mnemic_records", "mnemic_streams"}
        assert not before.items() & after.items()
        assert [one.what for one in finished.unreached] == [done.unreached[1].what]
        assert finished.verify() == done.verify()
        with pytest.raises(InvalidValueError, match="of an erasure in"):
            memory.finish_erasure(replace(done, store="sqlite:///another.db"))
        with pytest.raises(SignatureError, match="was changed"):
            memory.finish_erasure(replace(done, records=0))


def table_files(url: str) -> dict[str, int]:
    """Return the file of each table of the store."""
    tables = "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname LIKE 'mnemic%' AND relkind = 'r'"
    with closing(psycopg.connect(url)) as connection:
        return dict(connection.execute(tables).fetchall())


def test_tables_of_another_role_are_not_said_to_be_rewritten(tmp_path: Path) -> None:
    with STORES["postgresql"].empty(tmp_path) as url:
        with mnemic.open(url) as memory:
            memory.scope("acme", "alice").remember(SECRET)
            done = memory.scope("acme", "alice").erase()
        role = f"guest_{uuid4().hex[:12]}"
        postgres.execute(url, f"CREATE ROLE {role} LOGIN")
        try:
            postgres.execute(url, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
            postgres.execute(url, f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
            postgres.execute(url, f"REVOKE MAINTAIN ON mnemic_records FROM {role}")
            before = table_files(url)
            with mnemic.open(postgres.as_role(url, role)) as memory:
                finished = memory.finish_erasure(done)
            after = table_files(url)
        finally:
            postgres.execute(url, f"DROP OWNED BY {role}")
            postgres.execute(url, f"DROP ROLE {role}")
    assert before.items() & after.items() == {("mnemic_records", before["mnemic_records"])}
    assert finished.removed == {"tables rewritten": len(before) - 1}
    (left,) = [one for one in finished.unreached if one.finishable]
    assert left.what == "dead rows in the files of public.mnemic_records"


def test_rewriting_tables_has_no_deadline(tmp_path: Path) -> None:
    with STORES["postgresql"].empty(tmp_path) as url, closing(psycopg.connect(url)) as other:
        mnemic.open(url).close()
        with mnemic.open(f"{url}?timeout=2&statement_timeout=2") as memory, ThreadPoolExecutor() as threads:
            alice = memory.scope("acme", "alice")
            alice.remember(SECRET)
            done = alice.erase()
            other.execute("LOCK TABLE mnemic_records IN ACCESS SHARE MODE")
            finished = threads.submit(memory.finish_erasure, done)
            other.execute("SELECT pg_sleep(3)")
            other.rollback()
            assert finished.result().removed["tables rewritten"] > 3


WRITER = """
import sys, mnemic
with mnemic.open(sys.argv[1]) as memory:
    alice = memory.scope("acme", "alice")
    print("ready", flush=True)
    for n in range(10_000):
        alice.session("busy").add("user", f"message {n}", once=f"write {n}")
        alice.remember(f"memory {n}", id=f"{n}")
"""

ERASER = """
import os, sys, mnemic
from mnemic.features import erasure
purge = erasure.purge
async def dying(*given, **options):
    done = await purge(*given, **options)
    os.kill(os.getpid(), 9)
erasure.purge = dying
with mnemic.open(sys.argv[1]) as memory:
    memory.scope("acme", "alice").erase()
"""


def test_what_another_process_writes_meanwhile_is_kept_or_erased_as_a_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db?synchronous=normal"
    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        writer = Popen([sys.executable, "-c", WRITER, url], stdout=PIPE)
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            for _ in range(5):
                alice.erase()
        finally:
            writer.kill()
            writer.communicate()
        left = [int(str(message.text).split()[1]) for message in alice.session("busy").messages()]
        kept = {record.key for record in records(memory, "once")}
        assert left == list(range(min(left, default=0), max(left, default=-1) + 1))
        assert {f"write {n}" for n in left} == kept
        assert alice.erase().complete


def test_an_erasure_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url) as memory:
        fill(memory.scope("acme", "alice"))
    assert run([sys.executable, "-c", ERASER, url], check=False).returncode == -SIGKILL
    with mnemic.open(url) as memory:
        done = memory.scope("acme", "alice").erase()
        assert [one.records for one in done.interrupted] == [RECORDS]
        assert done.complete
    assert SECRET.encode() not in (tmp_path / "memory.db").read_bytes()


def records(memory: mnemic.Memory, kind: str) -> list[Record]:
    """Return all records of a kind."""
    page = memory._driver.run(memory._async._backend.scan(Scan(scope=ScopePath("acme"), kinds=(kind,), below=True)))
    return list(page.items)


def test_a_subject_gets_everything_about_them(tmp_path: Path) -> None:
    with mnemic.open("memory://", audit=True) as memory:
        alice, team = memory.scope("acme", "alice"), memory.scope("acme")
        fill(alice)
        team.remember("of the team", source="acme/alice/monday")
        path = tmp_path / "alice.zip"
        done = alice.subject_export(path)
        assert (done.elsewhere, done.records, done.audit > 5) == (1, RECORDS, True)
        assert memory.restricted("acme/alice").scope("acme", "alice").subject_export(path).audit == 0
        with pytest.raises(NotFoundError, match="nothing is stored about the scope 'acme/alice'"):
            memory.restricted("acme/bob").scope("acme", "alice").subject_export(tmp_path / "x.zip")
        assert not (tmp_path / "x.zip").exists()
        assert alice.subject_export(path) == done
    with ZipFile(path) as archive:
        names = archive.namelist()
        assert "acme/alice" in archive.read("README.txt").decode()
        assert b"of the team" in archive.read("elsewhere.jsonl")
        readable = "".join(archive.read(name).decode() for name in names if name.startswith("readable/"))
        assert f"plays the {SECRET}" in readable
        (tmp_path / "records.jsonl").write_bytes(archive.read("records.jsonl"))
    assert path.stat().st_mode & 0o777 == 0o600
    with mnemic.open("memory://") as other:
        assert other.import_from(tmp_path / "records.jsonl").records == RECORDS


def test_a_subject_gets_the_earlier_versions_as_well(tmp_path: Path) -> None:
    with mnemic.open("memory://", history=timedelta(days=1)) as memory:
        alice, team = memory.scope("acme", "alice"), memory.scope("acme")
        for text in ("first", "second"):
            alice.remember(text, id="a")
            team.remember(f"{text} of the team", id="t", source="acme/alice")
            team.remember(f"{text} of others", id="o")
        alice.forget("a")
        team.forget("t")
        done = alice.subject_export(tmp_path / "alice.zip")
        assert (done.records, done.elsewhere, done.versions, done.unreadable) == (0, 0, 4, [])
    with ZipFile(tmp_path / "alice.zip") as archive:
        kept = [json.decode(line) for line in archive.read("versions.jsonl").splitlines()]
    assert [(one["scope"], one["text"], one["removed"]) for one in kept] == [
        ("acme/alice", "first", False),
        ("acme/alice", "second", True),
        ("acme", "first of the team", False),
        ("acme", "second of the team", True),
    ]


def test_a_memory_without_the_audit_log_says_that_names_are_left_in_it(file_url: str) -> None:
    with mnemic.open(file_url, audit=True) as memory:
        memory.scope("acme", "alice").remember(SECRET)
    with mnemic.open(file_url) as memory:
        done = memory.scope("acme", "alice").erase()
        assert [(one.what, one.finish) for one in done.unreached] == [
            ("names in the audit log", "erase with a memory that is opened with audit")
        ]
    with mnemic.open(file_url, audit=True) as memory:
        assert memory.scope("acme", "alice").erase().complete
