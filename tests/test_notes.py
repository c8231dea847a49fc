"""The catalogue: notes that an agent lists, reads, writes and deletes."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mnemic
from clock import Clock


@pytest.fixture
def notes(alice: mnemic.Scope) -> mnemic.Notes:
    return alice.notes


@pytest.mark.parametrize("value", [None, "", "text", 0, 1.5, True, [], {}, {"a": [1, {"b": None}]}, "x" * 100_000])
def test_any_json_is_kept(notes: mnemic.Notes, value: Any) -> None:
    notes.write("k", value)
    assert notes.read("k") == value
    assert notes.read_all() == {"k": value}


def test_the_list_tells_all_but_the_values(notes: mnemic.Notes) -> None:
    notes.write("prefs", {"unit": "celsius"}, description="What she likes", metadata={"topic": "weather"})
    notes.write("tasks", ["secret"])
    first, second = notes.list()
    assert (first.key, first.description, first.size, first.metadata) == (
        "prefs", "What she likes", len('{"unit":"celsius"}'), {"topic": "weather"},
    )  # fmt: skip
    assert (second.key, second.description, second.metadata) == ("tasks", None, {})
    assert "secret" not in repr(notes.list())
    assert [entry.key for entry in notes.list(metadata={"topic": "weather"})] == ["prefs"]


def test_some_or_all_are_read(notes: mnemic.Notes) -> None:
    for key in "abc":
        notes.write(key, key.upper())
    assert notes.read_many(["c", "a", "no"]) == {"c": "C", "a": "A"}
    assert notes.read_many([]) == {}
    assert notes.read_all() == {"a": "A", "b": "B", "c": "C"}
    with pytest.raises(mnemic.NotFoundError, match="'no'"):
        notes.read("no")
    with pytest.raises(LookupError):
        notes.get("no")


def test_a_new_value_keeps_what_is_not_said_anew(notes: mnemic.Notes) -> None:
    notes.write("k", 1, description="one", metadata={"a": 1})
    notes.write("k", 2)
    entry = notes.get("k")
    assert (entry.value, entry.description, entry.metadata) == (2, "one", {"a": 1})
    notes.write("k", 3, description="", metadata={})
    entry = notes.get("k")
    assert (entry.value, entry.description, entry.metadata) == (3, "", {})


def test_delete_and_clear(notes: mnemic.Notes) -> None:
    notes.write("a", 1)
    assert notes.delete("a")
    assert not notes.delete("a")
    notes.write("b", 1)
    notes.clear()
    assert notes.list() == []
    assert notes.usage() == (0, 0)


def test_delete_at_a_version_and_the_source_of_the_last_write(alice: mnemic.Scope) -> None:
    first = alice.notes.write("k", 1, source="agent", metadata={"topic": "x"})
    assert (first.source, alice.notes.get("k").source) == ("agent", "agent")
    second = alice.notes.write("k", 2)
    assert (second.source, second.metadata) == (None, {"topic": "x"})
    assert alice.forget(source="agent").deleted == 0
    with pytest.raises(mnemic.ConflictError):
        alice.notes.delete("k", if_version=first.version)
    assert alice.notes.read("k") == 2
    assert alice.notes.delete("k", if_version=second.version)
    alice.notes.write("k", 3, source="agent")
    assert alice.forget(source="agent").deleted == 1
    with pytest.raises(mnemic.InvalidValueError):
        alice.notes.delete("k", if_version=-1)


def test_rename_keeps_all_else(notes: mnemic.Notes) -> None:
    before = notes.write("old", {"x": 1}, description="d", metadata={"m": 1})
    notes.write("taken", 2)
    renamed = notes.rename("old", "new")
    assert (renamed.key, renamed.description, renamed.metadata) == ("new", "d", {"m": 1})
    assert renamed.created == before.created
    assert notes.read_all() == {"taken": 2, "new": {"x": 1}}
    with pytest.raises(mnemic.ConflictError):
        notes.rename("new", "taken")
    with pytest.raises(mnemic.NotFoundError):
        notes.rename("old", "x")
    assert notes.rename("new", "new").key == "new"


def test_limits_refuse_with_a_clear_error_and_lose_nothing(alice: mnemic.Scope) -> None:
    notes = alice.notes
    notes.configure(max_notes=2, max_bytes=40)
    notes.write("a", "x" * 10)
    notes.write("b", "x" * 10)
    with pytest.raises(mnemic.LimitError, match="would hold 3 notes of 25 bytes; allowed are 2 notes"):
        notes.write("c", 1)
    with pytest.raises(mnemic.LimitError, match="44 bytes; allowed are 2 notes of 40 bytes"):
        notes.write("b", "x" * 30)
    assert notes.read_all() == {"a": "x" * 10, "b": "x" * 10}
    notes.write("b", "x" * 20)
    assert notes.usage() == (2, 34)
    notes.configure(max_notes=1, max_bytes=10)
    notes.rename("a", "c")
    notes.write("b", "x")
    for bad in ({"max_notes": 0}, {"max_bytes": -1}):
        with pytest.raises(mnemic.InvalidValueError):
            notes.configure(**bad)


def test_limits_belong_to_the_notes_and_hold_for_every_handle(alice: mnemic.Scope) -> None:
    other = alice.scope().notes
    other.write("a", 1)
    alice.notes.configure(max_notes=1)
    assert other.settings() == mnemic.NoteSettings(max_notes=1)
    with pytest.raises(mnemic.LimitError):
        other.write("b", 2)
    with pytest.raises(mnemic.ConflictError):
        other.write("a", 2, if_version=0)
    alice.notes.clear()
    other.write("b", 2)
    with pytest.raises(mnemic.LimitError):
        alice.notes.write("c", 3)
    alice.notes.configure(max_notes=None)
    other.write("c", 3)
    assert other.usage() == (2, 2)


def test_configure_changes_what_is_given_and_keeps_the_rest(alice: mnemic.Scope) -> None:
    other = alice.scope().notes
    assert alice.notes.configure(max_notes=5) == mnemic.NoteSettings(max_notes=5)
    assert other.configure(max_bytes=100) == mnemic.NoteSettings(max_notes=5, max_bytes=100)
    assert alice.notes.configure() == alice.notes.settings() == other.settings()
    assert alice.notes.configure(max_notes=None) == mnemic.NoteSettings(max_bytes=100)
    assert other.configure(max_bytes=None) == mnemic.NoteSettings()


def test_stale_notes_are_found(notes: mnemic.Notes, clock: Clock) -> None:
    notes.write("old", 1)
    notes.write("renewed", 1)
    clock.advance(hours=2)
    notes.write("renewed", 2)
    notes.write("new", 3)
    age = timedelta(hours=1)
    assert [entry.key for entry in notes.stale(age)] == ["old"]
    assert notes.stale(timedelta(days=1)) == []
    with pytest.raises(mnemic.InvalidValueError):
        notes.stale(timedelta(days=-1))


def test_two_writers_of_one_key_notice_each_other(notes: mnemic.Notes) -> None:
    first = notes.write("plan", ["a"], if_version=0)
    with pytest.raises(mnemic.ConflictError) as caught:
        notes.write("plan", ["b"], if_version=0)
    assert caught.value.current == first.version
    second = notes.write("plan", ["a", "b"], if_version=first.version)
    with pytest.raises(mnemic.ConflictError):
        notes.write("plan", ["c"], if_version=first.version)
    assert notes.get("plan").version == second.version
    assert notes.read("plan") == ["a", "b"]


def test_compare_and_set_counts_right_with_many_writers(memory: mnemic.Memory) -> None:
    notes = memory.scope("team").notes
    notes.write("counter", 0)

    def count() -> None:
        for _ in range(20):
            while True:
                entry = notes.get("counter")
                assert isinstance(entry.value, int)
                try:
                    notes.write("counter", entry.value + 1, if_version=entry.version)
                    break
                except mnemic.ConflictError:
                    continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes.read("counter") == 80


def test_scopes_have_their_own_notes(memory: mnemic.Memory) -> None:
    memory.scope("a").notes.write("k", 1)
    memory.scope("a", "b").notes.write("k", 2)
    assert memory.scope("a").notes.read_all() == {"k": 1}


@pytest.mark.parametrize("key", ["", "\x00", "a\nb", "x" * 501, "\ud800", None, 3])
def test_a_key_that_is_none_is_refused(notes: mnemic.Notes, key: Any) -> None:
    for use in (lambda: notes.write(key, 1), lambda: notes.read(key), lambda: notes.delete(key)):
        with pytest.raises(mnemic.InvalidValueError, match="key"):
            use()


@pytest.mark.parametrize("key", ["../../etc/passwd", "C:\\x", "a/b", "user preferences", "%", "ключ"])
def test_a_key_is_never_a_path(notes: mnemic.Notes, key: str) -> None:
    notes.write(key, 1)
    assert notes.read_all() == {key: 1}


def test_a_deleted_note_can_be_restored_with_its_time(notes: mnemic.Notes) -> None:
    made = datetime(2020, 2, 3, tzinfo=UTC)
    assert notes.write("k", 1, created=made).created == made
    assert notes.write("k", 2).created == made
    assert notes.delete("k")
    assert notes.write("k", 2, created=made, if_version=0).created == made


def test_notes_are_listed_by_a_prefix_of_their_keys(alice: mnemic.Scope) -> None:
    for key in ("plan", "plan/a", "plan/b", "planet", "Plan/a", "pla", "plan/\uffff"):
        alice.notes.write(key, 1)
    assert [note.key for note in alice.notes.list(prefix="plan/")] == ["plan/a", "plan/b", "plan/\uffff"]
    assert [note.key for note in alice.notes.list(prefix="planets")] == []
    assert len(alice.notes.list(prefix="")) == 7
