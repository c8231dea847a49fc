"""Writes with an id: done once in their scope, in conflict with others of the same id, erased with the scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ..errors import ConflictError
from ..records import ONCE_KIND, Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import ONCE_LASTS, Delete, Expect, Limit, Op, Purge, Put, Touch
from .harness import KIND, OTHER_KIND, SCOPE, Harness, needs, record


def test_a_write_with_an_id_is_done_once(harness: Harness) -> None:
    first = harness.write(Put(record("a", text="1")), Delete(Ref(SCOPE, KIND, "z")), id="w1")
    harness.put("a", text="2")
    assert harness.write(Put(record("a", text="1")), Delete(Ref(SCOPE, KIND, "z")), id="w1") == first
    found = harness.read("a")
    assert found.text == "2"
    assert harness.write(Put(record("a", text="3")), id="w2") != first


def test_a_write_is_done_once_even_if_what_it_wrote_is_gone(harness: Harness) -> None:
    first = harness.write(Put(record("a", text="1"), 0), id="w")
    harness.write(Purge(SCOPE, KIND))
    assert harness.write(Put(record("a", text="1"), 0), id="w") == first
    assert harness.keys() == []


def test_what_removed_records_answers_the_same_once_they_are_gone(harness: Harness) -> None:
    harness.write(Put(record("a")), Put(record("b")), Touch(SCOPE, KIND, None, "{}"))
    writes: list[tuple[Op, ...]] = [
        (Delete(Ref(SCOPE, KIND, "a")),),
        (Purge(SCOPE, KIND, keep=("z",)), Touch(SCOPE, KIND, None, "{}")),
        (Purge(SCOPE, KIND, drop=True),),
    ]
    for n, ops in enumerate(writes):
        first = harness.write(*ops, id=f"w{n}")
        assert harness.write(*ops, id=f"w{n}") == first
    new = ScopePath("acme/new")
    first = harness.write(Purge(new, KIND), id="w")
    harness.put("a", scope=new)
    assert harness.write(Purge(new, KIND), id="w") == first
    assert harness.keys(scope=new) == ["a"]


def test_a_failed_write_with_an_id_may_be_tried_again(harness: Harness) -> None:
    harness.put("a")
    with pytest.raises(ConflictError):
        harness.write(Put(record("a"), 0), id="w1")
    harness.write(Delete(Ref(SCOPE, KIND, "a")))
    assert harness.write(Put(record("a"), 0), id="w1")[0].seq > 1


def test_an_id_belongs_to_its_scope(harness: Harness) -> None:
    others = [ScopePath(path) for path in ("acme/bob/monday", "other/alice/monday", "acme/alice")] + [SCOPE / "b"]
    for n, scope in enumerate([SCOPE, *others]):
        harness.write(Put(record("a", text=str(n), scope=scope), 0), id="welcome")
    for n, scope in enumerate([SCOPE, *others]):
        assert [found.text for found in harness.scan(scope=scope)] == [str(n)]


def test_an_id_belongs_to_the_scope_of_its_write(harness: Harness) -> None:
    other = ScopePath("acme/bob")
    harness.write(Put(record("a"), 0), id="w")
    harness.write(Put(record("c", scope=other), 0), id="w")
    assert harness.keys(scope=other) == ["c"]
    with pytest.raises(ConflictError):
        harness.write(Put(record("d", kind=OTHER_KIND, text="more"), 0), id="w")


def test_another_content_under_the_same_id_is_a_conflict(harness: Harness) -> None:
    harness.write(Put(record("a", text="1"), 0), id="w")
    more: list[dict[str, Any]] = [{"text": "2"}, {"meta": {"a": 1}}, {"labels": {"a": "b"}}, {"pinned": True}]
    for fields in more:
        with pytest.raises(ConflictError, match="'w'") as caught:
            harness.write(Put(record("b", **{"text": "1", **fields}), 0), id="w")
        assert caught.value.key == "w"
    with pytest.raises(ConflictError):
        harness.write(Put(record("a", text="1"), 0), Put(record("b", text="1"), 0), id="w")
    assert harness.keys() == ["a"]


def test_what_a_caller_makes_anew_for_each_try_does_not_count(harness: Harness) -> None:
    first = harness.write(Put(record("a", text="1"), 0), id="w")
    again = harness.write(
        Put(record("made-anew", text="1"), 0),
        Expect(SCOPE, KIND, key="a"),
        Touch(SCOPE, KIND, timedelta(hours=1)),
        Limit(SCOPE, KIND, 10, None, (("a",),)),
        id="w",
    )
    assert again[0] == first[0]
    assert again[0].key == "a"
    assert harness.keys() == ["a"]


def test_the_ids_of_writes_are_not_seen(harness: Harness) -> None:
    harness.write(Put(record("a", text="1"), 0), id="w")
    assert harness.keys(scope=ScopePath(), kinds=(), below=True) == ["a"]
    assert harness.keys(kinds=()) == ["a"]
    assert [stream.kind for stream in harness.streams(empty=True)] == [KIND]


def test_an_id_goes_when_the_scope_is_erased(harness: Harness) -> None:
    below = SCOPE / "below"
    for scope in (SCOPE, below):
        harness.write(Put(record("a", text="old", scope=scope), 0), id="w")
    ids = harness.streams(scope=SCOPE, kinds=(ONCE_KIND,), empty=True)
    assert [stream.scope for stream in ids] == [SCOPE, below]
    for stream in [*ids, *harness.streams(scope=SCOPE, empty=True)]:
        harness.write(Purge(stream.scope, stream.kind, drop=True))
    assert harness.streams(kinds=(ONCE_KIND,), empty=True) == []
    for scope in (SCOPE, below):
        harness.write(Put(record("b", text="new", scope=scope), 0), id="w")
        assert harness.keys(scope=scope) == ["b"]


def test_an_id_is_remembered_for_a_day(harness: Harness) -> None:
    harness.write(Put(record("a", text="1"), 0), id="w")
    with harness.clock_off_by(ONCE_LASTS - timedelta(minutes=1)):
        harness.write(Put(record("b", text="2"), 0), id="v")
        with pytest.raises(ConflictError):
            harness.write(Put(record("c", text="3"), 0), id="w")
    with harness.clock_off_by(ONCE_LASTS + timedelta(minutes=1)):
        harness.write(Put(record("c", text="3"), 0), id="w")
        with pytest.raises(ConflictError):
            harness.write(Put(record("d", text="4"), 0), id="v")
    assert harness.keys() == ["a", "b", "c"]


def test_ids_do_not_pile_up(harness: Harness) -> None:
    for day in range(6):
        with harness.clock_off_by(day * ONCE_LASTS):
            harness.write(Put(record(f"k{day}"), 0), id=f"w{day}")
    with harness.clock_off_by(5 * ONCE_LASTS):
        (stream,) = harness.streams(kinds=(ONCE_KIND,))
    assert stream.count <= 3


@needs(Capability.SHARED)
def test_another_handle_knows_the_ids(harness: Harness) -> None:
    first = harness.write(Put(record("a", text="1"), 0), id="w")
    harness.store = harness.open()
    assert harness.write(Put(record("b", text="1"), 0), id="w") == first
    with pytest.raises(ConflictError):
        harness.write(Put(record("b", text="2"), 0), id="w")
    assert harness.keys() == ["a"]
