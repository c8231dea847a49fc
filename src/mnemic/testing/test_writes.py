"""Writes: atomic, with version checks, limits and derived values."""

from __future__ import annotations

import pytest

from ..errors import ConflictError, InvalidValueError, LimitError
from ..records import Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import Condition, CountUse, Delete, Derive, Expect, Limit, Purge, Put
from .harness import KIND, OTHER_KIND, SCOPE, Harness, needs, record


def test_read_answers_in_the_order_of_the_question(harness: Harness) -> None:
    harness.put("a", text="1")
    harness.put("b", text="2", scope=ScopePath("x"))
    refs = [Ref(ScopePath("x"), KIND, "b"), Ref(SCOPE, KIND, "no"), Ref(SCOPE, KIND, "a"), Ref(SCOPE, KIND, "a")]
    found = harness.run(harness.store.read(refs))
    assert [item and item.text for item in found] == ["2", None, "1", "1"]


def test_reading_nothing_returns_nothing(harness: Harness) -> None:
    harness.put("a")
    assert harness.run(harness.store.read([])) == []
    assert harness.scan(limit=0) == []
    assert harness.write() == []


def test_many_keys_are_read_at_once(harness: Harness) -> None:
    harness.write(*(Put(record(f"k{n}", text=str(n))) for n in range(634)))
    refs = [Ref(SCOPE, KIND, f"k{n}") for n in reversed(range(634))]
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
    found = harness.read("a")
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
        harness.write(Delete(Ref(SCOPE, KIND, "a"), version))
    assert harness.write(Delete(Ref(SCOPE, KIND, "a"), newer))[0].removed == ("a",)
    assert harness.write(Delete(Ref(SCOPE, KIND, "a")))[0].removed == ()


def test_operations_see_those_before_them(harness: Harness) -> None:
    outcomes = harness.write(
        Put(record("a", text="1", labels={"x": "1"}, weight=5), 0),
        Put(record("a", text="2", labels={"x": "2"}, weight=7)),
        Put(record("b", labels={"x": "2"}), 0),
        Delete(Ref(SCOPE, KIND, "b")),
        Put(record("b", text="3"), 0),
    )
    assert outcomes[0].seq == outcomes[1].seq == 1
    assert outcomes[4].seq > outcomes[2].seq
    assert [(found.key, found.text) for found in harness.scan()] == [("a", "2"), ("b", "3")]
    assert harness.keys(where=(Condition("labels.x", "eq", "1"),)) == []
    assert harness.keys(where=(Condition("labels.x", "eq", "2"),)) == ["a"]
    stream = harness.stream()
    assert (stream.count, stream.weight) == (2, 7)


def test_expect_guards_a_stream(harness: Harness) -> None:
    harness.write(Expect(SCOPE, KIND, 0), Put(record("a")))
    with pytest.raises(ConflictError) as caught:
        harness.write(Expect(SCOPE, KIND, 0), Put(record("b")))
    version = caught.value.current
    harness.write(Expect(SCOPE, KIND, version), Put(record("b")))
    assert harness.keys() == ["a", "b"]


def test_purge_empties_a_stream_but_for_some_keys(harness: Harness) -> None:
    for n in range(10):
        harness.put(f"k{n}", weight=n, labels={"n": str(n)})
    harness.put("other", kind=OTHER_KIND)
    assert harness.write(Purge(SCOPE, KIND, keep=("k3", "k7", "no")))[0].count == 8
    assert harness.keys() == ["k3", "k7"]
    stream = harness.stream()
    assert (stream.count, stream.weight, stream.last_seq) == (2, 10, 10)
    assert harness.keys(where=(Condition("labels.n", "eq", "5"),)) == []
    assert harness.keys(where=(Condition("labels.n", "eq", "7"),)) == ["k7"]
    assert harness.keys(kinds=(OTHER_KIND,)) == ["other"]
    assert harness.write(Purge(SCOPE, KIND))[0].count == 2
    assert harness.is_empty()


def test_a_limit_removes_groups_until_the_stream_fits(harness: Harness) -> None:
    for n in range(6):
        harness.put(f"k{n}", weight=10)
    groups = (("k0",), ("k1", "k2"), ("gone",), ("k3",), ("k4",))
    outcomes = harness.write(Put(record("k6", weight=10)), Limit(SCOPE, KIND, 5, None, groups))
    assert outcomes[1].removed == ("k0", "k1", "k2")
    assert harness.keys() == ["k3", "k4", "k5", "k6"]
    outcomes = harness.write(Limit(SCOPE, KIND, None, 25, (("k3",), ("k4",), ("k5",))))
    assert outcomes[0].removed == ("k3", "k4")
    stream = harness.stream()
    assert (stream.count, stream.weight) == (2, 20)


def test_a_strict_limit_that_cannot_be_held_stores_nothing(harness: Harness) -> None:
    harness.put("a", weight=3)
    with pytest.raises(LimitError) as caught:
        harness.write(Put(record("b", weight=4)), Limit(SCOPE, KIND, None, 5, (("no",),)))
    assert (caught.value.count, caught.value.weight) == (2, 7)
    assert harness.keys() == ["a"]
    harness.write(Put(record("b", weight=4)), Limit(SCOPE, KIND, None, 5, (("no",),), strict=False))
    assert harness.keys() == ["a", "b"]


def test_a_limit_may_remove_what_the_same_write_added(harness: Harness) -> None:
    puts = [Put(record(f"k{n}")) for n in range(5)]
    harness.write(*puts, Limit(SCOPE, KIND, 2, None, (("k0",), ("k1",), ("k2",))))
    assert harness.keys() == ["k3", "k4"]


def test_a_key_to_keep_may_be_named_twice(harness: Harness) -> None:
    harness.write(Put(record("a", weight=3)), Put(record("b", weight=5)))
    assert harness.write(Purge(SCOPE, KIND, ("b", "b", "gone")))[0].count == 1
    stream = harness.stream()
    assert (stream.count, stream.weight) == (1, 5)
    assert harness.keys() == ["b"]


# derived values


A = Ref(SCOPE, KIND, "a")


def derived(harness: Harness, *names: str) -> dict[str, dict[str, bytes]]:
    return {found.key: found.derived for found in harness.scan(derived=names)}


@needs(Capability.RECORDS)
def test_a_value_comes_along_only_where_a_scan_names_it(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1", "y": b"\0\xff"})
    harness.put("b")
    assert derived(harness) == {"a": {}, "b": {}}
    assert derived(harness, "y") == {"a": {"y": b"\0\xff"}, "b": {}}
    assert derived(harness, "y", "x") == {"a": {"x": b"1", "y": b"\0\xff"}, "b": {}}
    found = harness.read("a")
    assert found.derived == {}


@needs(Capability.RECORDS)
def test_a_value_of_a_version_goes_with_that_version(harness: Harness) -> None:
    harness.put("a", derived={"x": b"old"})
    version = harness.put("a", text="new").version
    assert derived(harness, "x") == {"a": {}}
    assert harness.write(Derive(A, "x", b"late", version - 1))[0].count == 0
    assert derived(harness, "x") == {"a": {}}
    assert harness.write(Derive(A, "x", b"new", version))[0].count == 1
    assert derived(harness, "x") == {"a": {"x": b"new"}}
    harness.put("a", derived={"x": b"newer"})
    assert derived(harness, "x") == {"a": {"x": b"newer"}}


@needs(Capability.RECORDS)
def test_a_value_of_no_version_stays_until_the_record_goes(harness: Harness) -> None:
    harness.write(Put(record("a")), Derive(A, "use", b"1"))
    harness.put("a", text="new")
    assert derived(harness, "use") == {"a": {"use": b"1"}}
    harness.write(Derive(A, "use", b"2"), Derive(A, "use", b"3"))
    assert derived(harness, "use") == {"a": {"use": b"3"}}
    harness.write(Derive(A, "use", None))
    assert derived(harness, "use") == {"a": {}}
    harness.write(Derive(A, "use", b"4"), Delete(A))
    harness.put("a")
    assert derived(harness, "use") == {"a": {}}


@needs(Capability.RECORDS)
def test_deriving_changes_neither_the_record_nor_its_stream(harness: Harness) -> None:
    harness.put("a", text="1")
    before = harness.scan(), harness.stream()
    harness.write(Derive(A, "x", b"1"), Derive(Ref(SCOPE, KIND, "gone"), "x", b"1"))
    harness.write(Derive(Ref(ScopePath("nowhere"), KIND, "gone"), "x", b"1"))
    assert (harness.scan(), harness.stream()) == before
    assert harness.is_empty(ScopePath("nowhere"))


@needs(Capability.RECORDS)
def test_a_scan_finds_what_lacks_a_value(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1"})
    harness.put("b", derived={"y": b"1"})
    harness.put("c")
    harness.put("a")
    assert harness.keys(lacking="x", limit=2) == ["a", "b", "c"]
    assert harness.keys(scope=ScopePath("acme"), below=True, kinds=(), lacking="y") == ["a", "c"]


@needs(Capability.RECORDS)
def test_limits_purges_and_new_streams_leave_no_values_behind(harness: Harness) -> None:
    for key in "abc":
        harness.put(key, derived={"x": b"1"})
    harness.write(Limit(SCOPE, KIND, max_count=2, evict=(("a",),)))
    harness.write(Purge(SCOPE, KIND, keep=("c",)))
    assert derived(harness, "x") == {"c": {"x": b"1"}}
    harness.write(Purge(SCOPE, KIND, drop=True))
    for key in "abc":
        harness.put(key)
    assert derived(harness, "x") == {"a": {}, "b": {}, "c": {}}


@needs(Capability.RECORDS)
def test_a_failed_write_leaves_the_values_as_they_were(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1"})
    with pytest.raises(ConflictError):
        harness.write(
            Derive(A, "x", b"2"), Put(record("a", derived={"x": b"3"})), Delete(A), Put(record("b"), if_version=7)
        )
    assert derived(harness, "x") == {"a": {"x": b"1"}}


@needs(Capability.RECORDS)
def test_a_use_changes_nothing_in_a_store(harness: Harness) -> None:
    harness.put("a", text="1")
    before, stream = harness.get("a"), harness.stream()
    harness.write(CountUse(A), CountUse(Ref(SCOPE, KIND, "gone")))
    assert harness.get("a") == before
    assert harness.stream() == stream
