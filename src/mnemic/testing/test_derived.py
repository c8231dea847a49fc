"""Derived values are stored beside their record and deleted with it."""

from __future__ import annotations

import pytest

from ..errors import ConflictError
from ..records import Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import CountUse, Delete, Derive, Limit, Purge, Put
from .harness import HOME, KIND, Harness, record
from .targets import needs

pytestmark: pytest.MarkDecorator = needs(Capability.RECORDS)

A = Ref(HOME, KIND, "a")


def derived(harness: Harness, *names: str) -> dict[str, dict[str, bytes]]:
    return {found.key: found.derived for found in harness.scan(derived=names)}


def test_a_value_comes_along_only_where_a_scan_names_it(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1", "y": b"\0\xff"})
    harness.put("b")
    assert derived(harness) == {"a": {}, "b": {}}
    assert derived(harness, "y") == {"a": {"y": b"\0\xff"}, "b": {}}
    assert derived(harness, "y", "x") == {"a": {"x": b"1", "y": b"\0\xff"}, "b": {}}
    found = harness.get("a")
    assert found is not None
    assert found.derived == {}


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


def test_deriving_changes_neither_the_record_nor_its_stream(harness: Harness) -> None:
    harness.put("a", text="1")
    before = harness.scan(), harness.stream()
    harness.write(Derive(A, "x", b"1"), Derive(Ref(HOME, KIND, "gone"), "x", b"1"))
    harness.write(Derive(Ref(ScopePath("nowhere"), KIND, "gone"), "x", b"1"))
    assert (harness.scan(), harness.stream()) == before
    assert harness.stream(ScopePath("nowhere")) is None


def test_a_scan_finds_what_lacks_a_value(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1"})
    harness.put("b", derived={"y": b"1"})
    harness.put("c")
    harness.put("a")
    assert harness.keys(lacking="x", limit=2) == ["a", "b", "c"]
    assert harness.keys(scope=ScopePath("acme"), below=True, kinds=(), lacking="y") == ["a", "c"]


def test_limits_purges_and_new_streams_leave_no_values_behind(harness: Harness) -> None:
    for key in "abc":
        harness.put(key, derived={"x": b"1"})
    harness.write(Limit(HOME, KIND, max_count=2, evict=(("a",),)))
    harness.write(Purge(HOME, KIND, keep=("c",)))
    assert derived(harness, "x") == {"c": {"x": b"1"}}
    harness.write(Purge(HOME, KIND, drop=True))
    for key in "abc":
        harness.put(key)
    assert derived(harness, "x") == {"a": {}, "b": {}, "c": {}}


def test_a_failed_write_leaves_the_values_as_they_were(harness: Harness) -> None:
    harness.put("a", derived={"x": b"1"})
    with pytest.raises(ConflictError):
        harness.write(
            Derive(A, "x", b"2"), Put(record("a", derived={"x": b"3"})), Delete(A), Put(record("b"), if_version=7)
        )
    assert derived(harness, "x") == {"a": {"x": b"1"}}


def test_a_use_changes_nothing_in_a_store(harness: Harness) -> None:
    harness.put("a", text="1")
    before, stream = harness.get("a"), harness.stream()
    harness.write(CountUse(A), CountUse(Ref(HOME, KIND, "gone")))
    assert harness.get("a") == before
    assert harness.stream() == stream
