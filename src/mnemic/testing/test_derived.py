"""Derived values are stored beside their record and deleted with it."""

from __future__ import annotations

import pytest

from ..errors import ConflictError
from ..records import Ref, ScopePath
from ..store.query import Delete, Derive, Limit, Purge, Put
from .lab import HOME, KIND, Lab, record

A = Ref(HOME, KIND, "a")


def derived(lab: Lab, *names: str) -> dict[str, dict[str, bytes]]:
    return {found.key: found.derived for found in lab.scan(derived=names)}


def test_a_value_comes_along_only_where_a_scan_names_it(lab: Lab) -> None:
    lab.put("a", derived={"x": b"1", "y": b"\0\xff"})
    lab.put("b")
    assert derived(lab) == {"a": {}, "b": {}}
    assert derived(lab, "y") == {"a": {"y": b"\0\xff"}, "b": {}}
    assert derived(lab, "y", "x") == {"a": {"x": b"1", "y": b"\0\xff"}, "b": {}}
    found = lab.get("a")
    assert found is not None
    assert found.derived == {}


def test_a_value_of_a_version_goes_with_that_version(lab: Lab) -> None:
    lab.put("a", derived={"x": b"old"})
    version = lab.put("a", text="new").version
    assert derived(lab, "x") == {"a": {}}
    assert lab.write(Derive(A, "x", b"late", version - 1))[0].count == 0
    assert derived(lab, "x") == {"a": {}}
    assert lab.write(Derive(A, "x", b"new", version))[0].count == 1
    assert derived(lab, "x") == {"a": {"x": b"new"}}
    lab.put("a", derived={"x": b"newer"})
    assert derived(lab, "x") == {"a": {"x": b"newer"}}


def test_a_value_of_no_version_stays_until_the_record_goes(lab: Lab) -> None:
    lab.write(Put(record("a")), Derive(A, "use", b"1"))
    lab.put("a", text="new")
    assert derived(lab, "use") == {"a": {"use": b"1"}}
    lab.write(Derive(A, "use", b"2"), Derive(A, "use", b"3"))
    assert derived(lab, "use") == {"a": {"use": b"3"}}
    lab.write(Derive(A, "use", None))
    assert derived(lab, "use") == {"a": {}}
    lab.write(Derive(A, "use", b"4"), Delete(A))
    lab.put("a")
    assert derived(lab, "use") == {"a": {}}


def test_deriving_changes_neither_the_record_nor_its_stream(lab: Lab) -> None:
    lab.put("a", text="1")
    before = lab.scan(), lab.stream()
    lab.write(Derive(A, "x", b"1"), Derive(Ref(HOME, KIND, "gone"), "x", b"1"))
    lab.write(Derive(Ref(ScopePath("nowhere"), KIND, "gone"), "x", b"1"))
    assert (lab.scan(), lab.stream()) == before
    assert lab.stream(ScopePath("nowhere")) is None


def test_a_scan_finds_what_lacks_a_value(lab: Lab) -> None:
    lab.put("a", derived={"x": b"1"})
    lab.put("b", derived={"y": b"1"})
    lab.put("c")
    lab.put("a")
    assert lab.keys(lacking="x", limit=2) == ["a", "b", "c"]
    assert lab.keys(scope=ScopePath("acme"), below=True, kinds=(), lacking="y") == ["a", "c"]


def test_limits_purges_and_new_streams_leave_no_values_behind(lab: Lab) -> None:
    for key in "abc":
        lab.put(key, derived={"x": b"1"})
    lab.write(Limit(HOME, KIND, max_count=2, evict=(("a",),)))
    lab.write(Purge(HOME, KIND, keep=("c",)))
    assert derived(lab, "x") == {"c": {"x": b"1"}}
    lab.write(Purge(HOME, KIND, drop=True))
    for key in "abc":
        lab.put(key)
    assert derived(lab, "x") == {"a": {}, "b": {}, "c": {}}


def test_a_failed_write_leaves_the_values_as_they_were(lab: Lab) -> None:
    lab.put("a", derived={"x": b"1"})
    with pytest.raises(ConflictError):
        lab.write(
            Derive(A, "x", b"2"), Put(record("a", derived={"x": b"3"})), Delete(A), Put(record("b"), if_version=7)
        )
    assert derived(lab, "x") == {"a": {"x": b"1"}}
