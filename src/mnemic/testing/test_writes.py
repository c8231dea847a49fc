"""Writes: atomic, with version checks and limits."""

from __future__ import annotations

import pytest

from ..errors import ConflictError, InvalidValueError, LimitError
from ..records import Ref, ScopePath
from ..store.query import Condition, Delete, Expect, Limit, Purge, Put
from .harness import HOME, KIND, OTHER_KIND, Harness, record


def test_read_answers_in_the_order_of_the_question(harness: Harness) -> None:
    harness.put("a", text="1")
    harness.put("b", text="2", scope=ScopePath("x"))
    refs = [Ref(ScopePath("x"), KIND, "b"), Ref(HOME, KIND, "no"), Ref(HOME, KIND, "a"), Ref(HOME, KIND, "a")]
    found = harness.run(harness.store.read(refs))
    assert [item and item.text for item in found] == ["2", None, "1", "1"]


def test_reading_nothing_returns_nothing(harness: Harness) -> None:
    harness.put("a")
    assert harness.run(harness.store.read([])) == []
    assert harness.scan(limit=0) == []
    assert harness.write() == []


def test_many_keys_are_read_at_once(harness: Harness) -> None:
    harness.write(*(Put(record(f"k{n}", text=str(n))) for n in range(634)))
    refs = [Ref(HOME, KIND, f"k{n}") for n in reversed(range(634))]
    found = harness.run(harness.store.read(refs))
    assert [item and item.text for item in found] == [str(n) for n in reversed(range(634))]


def test_a_write_is_all_or_nothing(harness: Harness) -> None:
    harness.put("a", text="old")
    before = harness.stream()
    with pytest.raises(ConflictError):
        harness.write(
            Put(record("b")),
            Put(record("a", text="new")),
            Put(record("c", kind=OTHER_KIND)),
            Put(record("a"), if_version=999),
        )
    assert harness.keys() == ["a"]
    assert harness.keys(kinds=(OTHER_KIND,)) == []
    found = harness.get("a")
    assert found is not None
    assert found.text == "old"
    assert harness.stream() == before


def test_a_write_concerns_one_scope(harness: Harness) -> None:
    with pytest.raises(InvalidValueError, match="one scope"):
        harness.write(Put(record("a")), Put(record("b", scope=ScopePath("elsewhere"))))
    assert harness.keys(scope=ScopePath(), below=True) == []


def test_versions_guard_writes(harness: Harness) -> None:
    version = harness.put("a", if_version=0).version
    with pytest.raises(ConflictError) as caught:
        harness.put("a", if_version=0)
    assert (caught.value.key, caught.value.current) == ("a", version)
    with pytest.raises(ConflictError) as caught:
        harness.put("b", if_version=7)
    assert caught.value.current == 0
    newer = harness.put("a", if_version=version).version
    with pytest.raises(ConflictError):
        harness.write(Delete(Ref(HOME, KIND, "a"), version))
    assert harness.write(Delete(Ref(HOME, KIND, "a"), newer))[0].removed == ("a",)
    assert harness.write(Delete(Ref(HOME, KIND, "a")))[0].removed == ()


def test_operations_see_those_before_them(harness: Harness) -> None:
    outcomes = harness.write(
        Put(record("a", text="1", labels={"x": "1"}, weight=5), 0),
        Put(record("a", text="2", labels={"x": "2"}, weight=7)),
        Put(record("b", labels={"x": "2"}), 0),
        Delete(Ref(HOME, KIND, "b")),
        Put(record("b", text="3"), 0),
    )
    assert outcomes[0].seq == outcomes[1].seq == 1
    assert outcomes[4].seq > outcomes[2].seq
    assert [(found.key, found.text) for found in harness.scan()] == [("a", "2"), ("b", "3")]
    assert harness.keys(where=(Condition("labels.x", "eq", "1"),)) == []
    assert harness.keys(where=(Condition("labels.x", "eq", "2"),)) == ["a"]
    stream = harness.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (2, 7)


def test_expect_guards_a_stream(harness: Harness) -> None:
    harness.write(Expect(HOME, KIND, 0), Put(record("a")))
    with pytest.raises(ConflictError) as caught:
        harness.write(Expect(HOME, KIND, 0), Put(record("b")))
    version = caught.value.current
    harness.write(Expect(HOME, KIND, version), Put(record("b")))
    assert harness.keys() == ["a", "b"]


def test_purge_empties_a_stream_but_for_some_keys(harness: Harness) -> None:
    for n in range(10):
        harness.put(f"k{n}", weight=n, labels={"n": str(n)})
    harness.put("other", kind=OTHER_KIND)
    assert harness.write(Purge(HOME, KIND, keep=("k3", "k7", "no")))[0].count == 8
    assert harness.keys() == ["k3", "k7"]
    stream = harness.stream()
    assert stream is not None
    assert (stream.count, stream.weight, stream.last_seq) == (2, 10, 10)
    assert harness.keys(where=(Condition("labels.n", "eq", "5"),)) == []
    assert harness.keys(where=(Condition("labels.n", "eq", "7"),)) == ["k7"]
    assert harness.keys(kinds=(OTHER_KIND,)) == ["other"]
    assert harness.write(Purge(HOME, KIND))[0].count == 2
    assert harness.stream() is None


def test_a_limit_removes_groups_until_the_stream_fits(harness: Harness) -> None:
    for n in range(6):
        harness.put(f"k{n}", weight=10)
    groups = (("k0",), ("k1", "k2"), ("gone",), ("k3",), ("k4",))
    outcomes = harness.write(Put(record("k6", weight=10)), Limit(HOME, KIND, 5, None, groups))
    assert outcomes[1].removed == ("k0", "k1", "k2")
    assert harness.keys() == ["k3", "k4", "k5", "k6"]
    outcomes = harness.write(Limit(HOME, KIND, None, 25, (("k3",), ("k4",), ("k5",))))
    assert outcomes[0].removed == ("k3", "k4")
    stream = harness.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (2, 20)


def test_a_strict_limit_that_cannot_be_held_stores_nothing(harness: Harness) -> None:
    harness.put("a", weight=3)
    with pytest.raises(LimitError) as caught:
        harness.write(Put(record("b", weight=4)), Limit(HOME, KIND, None, 5, (("no",),)))
    assert (caught.value.count, caught.value.weight) == (2, 7)
    assert harness.keys() == ["a"]
    harness.write(Put(record("b", weight=4)), Limit(HOME, KIND, None, 5, (("no",),), strict=False))
    assert harness.keys() == ["a", "b"]


def test_a_limit_may_remove_what_the_same_write_added(harness: Harness) -> None:
    puts = [Put(record(f"k{n}")) for n in range(5)]
    harness.write(*puts, Limit(HOME, KIND, 2, None, (("k0",), ("k1",), ("k2",))))
    assert harness.keys() == ["k3", "k4"]


def test_a_key_to_keep_may_be_named_twice(harness: Harness) -> None:
    harness.write(Put(record("a", weight=3)), Put(record("b", weight=5)))
    assert harness.write(Purge(HOME, KIND, ("b", "b", "gone")))[0].count == 1
    stream = harness.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (1, 5)
    assert harness.keys() == ["b"]
