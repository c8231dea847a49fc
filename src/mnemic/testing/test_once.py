"""Writes with an id: done once in their scope, in conflict with others of the same id, erased with the scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ..errors import ConflictError
from ..records import ONCE_KIND, Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import ONCE_LASTS, Delete, Expect, Limit, Purge, Put, Touch
from .capabilities import needs
from .lab import HOME, KIND, Lab, record


def test_a_write_with_an_id_is_done_once(lab: Lab) -> None:
    first = lab.write(Put(record("a", text="1")), Delete(Ref(HOME, KIND, "z")), id="w1")
    lab.put("a", text="2")
    assert lab.write(Put(record("a", text="1")), Delete(Ref(HOME, KIND, "z")), id="w1") == first
    found = lab.get("a")
    assert found is not None
    assert found.text == "2"
    assert lab.write(Put(record("a", text="3")), id="w2") != first


def test_a_write_is_done_once_even_if_what_it_wrote_is_gone(lab: Lab) -> None:
    first = lab.write(Put(record("a", text="1"), 0), id="w")
    lab.write(Purge(HOME, KIND))
    assert lab.write(Put(record("a", text="1"), 0), id="w") == first
    assert lab.keys() == []


def test_a_failed_write_with_an_id_may_be_tried_again(lab: Lab) -> None:
    lab.put("a")
    with pytest.raises(ConflictError):
        lab.write(Put(record("a"), 0), id="w1")
    lab.write(Delete(Ref(HOME, KIND, "a")))
    assert lab.write(Put(record("a"), 0), id="w1")[0].seq > 1


@pytest.mark.parametrize(
    "other", [ScopePath("acme/bob/monday"), ScopePath("other/alice/monday"), ScopePath("acme/alice"), HOME / "b"]
)
def test_an_id_belongs_to_its_scope(lab: Lab, other: ScopePath) -> None:
    lab.write(Put(record("a", text="1"), 0), id="welcome")
    lab.write(Put(record("a", text="2", scope=other), 0), id="welcome")
    assert [found.text for found in lab.scan(scope=ScopePath(), below=True)].count("2") == 1
    assert lab.keys() == lab.keys(scope=other) == ["a"]


def test_a_write_belongs_to_the_scope_of_its_first_operation(lab: Lab) -> None:
    other = ScopePath("acme/bob")
    lab.write(Put(record("a"), 0), Put(record("b", scope=other), 0), id="w")
    lab.write(Put(record("c", scope=other), 0), id="w")
    assert lab.keys(scope=other) == ["b", "c"]
    with pytest.raises(ConflictError):
        lab.write(Put(record("d", kind="note", text="more"), 0), id="w")


@pytest.mark.parametrize("more", [{"text": "2"}, {"meta": {"a": 1}}, {"labels": {"a": "b"}}, {"pinned": True}])
def test_another_content_under_the_same_id_is_a_conflict(lab: Lab, more: dict[str, Any]) -> None:
    lab.write(Put(record("a", text="1"), 0), id="w")
    with pytest.raises(ConflictError, match="'w'") as caught:
        lab.write(Put(record("b", **{"text": "1", **more}), 0), id="w")
    assert caught.value.key == "w"
    with pytest.raises(ConflictError):
        lab.write(Put(record("a", text="1"), 0), Put(record("b", text="1"), 0), id="w")
    assert lab.keys() == ["a"]


def test_what_a_caller_makes_anew_for_each_try_does_not_count(lab: Lab) -> None:
    first = lab.write(Put(record("a", text="1"), 0), id="w")
    again = lab.write(
        Put(record("made-anew", text="1"), 0),
        Expect(HOME, KIND, key="a"),
        Touch(HOME, KIND, timedelta(hours=1)),
        Limit(HOME, KIND, 10, None, (("a",),)),
        id="w",
    )
    assert again[0] == first[0]
    assert again[0].key == "a"
    assert lab.keys() == ["a"]


def test_the_ids_of_writes_are_not_seen(lab: Lab) -> None:
    lab.write(Put(record("a", text="1"), 0), id="w")
    assert lab.keys(scope=ScopePath(), kinds=(), below=True) == ["a"]
    assert lab.keys(kinds=()) == ["a"]
    assert [stream.kind for stream in lab.streams(empty=True)] == [KIND]


def test_an_id_goes_when_the_scope_is_erased(lab: Lab) -> None:
    below = HOME / "below"
    for scope in (HOME, below):
        lab.write(Put(record("a", text="old", scope=scope), 0), id="w")
    ids = lab.streams(scope=HOME, kinds=(ONCE_KIND,), empty=True)
    assert [stream.scope for stream in ids] == [HOME, below]
    for stream in [*ids, *lab.streams(scope=HOME, empty=True)]:
        lab.write(Purge(stream.scope, stream.kind, drop=True))
    assert lab.streams(kinds=(ONCE_KIND,), empty=True) == []
    for scope in (HOME, below):
        lab.write(Put(record("b", text="new", scope=scope), 0), id="w")
        assert lab.keys(scope=scope) == ["b"]


def test_an_id_is_remembered_for_a_day(lab: Lab) -> None:
    lab.write(Put(record("a", text="1"), 0), id="w")
    with lab.clock_off_by(ONCE_LASTS - timedelta(minutes=1)):
        lab.write(Put(record("b", text="2"), 0), id="v")
        with pytest.raises(ConflictError):
            lab.write(Put(record("c", text="3"), 0), id="w")
    with lab.clock_off_by(ONCE_LASTS + timedelta(minutes=1)):
        lab.write(Put(record("c", text="3"), 0), id="w")
        with pytest.raises(ConflictError):
            lab.write(Put(record("d", text="4"), 0), id="v")
    assert lab.keys() == ["a", "b", "c"]


def test_ids_do_not_pile_up(lab: Lab) -> None:
    for day in range(6):
        with lab.clock_off_by(day * ONCE_LASTS):
            lab.write(Put(record(f"k{day}"), 0), id=f"w{day}")
    with lab.clock_off_by(5 * ONCE_LASTS):
        (stream,) = lab.streams(kinds=(ONCE_KIND,))
    assert stream.count <= 3


@needs(Capability.SHARED)
def test_another_handle_knows_the_ids(lab: Lab) -> None:
    first = lab.write(Put(record("a", text="1"), 0), id="w")
    lab.store = lab.open()
    assert lab.write(Put(record("b", text="1"), 0), id="w") == first
    with pytest.raises(ConflictError):
        lab.write(Put(record("b", text="2"), 0), id="w")
    assert lab.keys() == ["a"]
