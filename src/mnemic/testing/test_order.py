"""Order, identity, values and scopes: what is stored is read back unchanged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ..checks import MAX_PATH
from ..errors import InvalidValueError
from ..records import Ref, ScopePath
from ..store.protocol import Capability
from ..store.query import Condition, Delete, Purge, Put, StreamScan
from .harness import KIND, OTHER_KIND, SCOPE, Harness, moment, needs, record


def test_order_is_that_of_the_writes(harness: Harness) -> None:
    outcomes = [harness.put(f"k{n}") for n in range(20)]
    assert [outcome.seq for outcome in outcomes] == list(range(1, 21))
    assert harness.keys() == [f"k{n}" for n in range(20)]
    assert harness.keys(reverse=True) == [f"k{n}" for n in reversed(range(20))]


def test_order_is_not_that_of_the_times(harness: Harness) -> None:
    same = moment("2026-01-01T00:00:00")
    for n in range(5):
        harness.put(f"k{n}", created=same - timedelta(days=n))
    harness.write(*(Put(record(f"same{n}", created=same)) for n in range(5)))
    assert harness.keys() == [f"k{n}" for n in range(5)] + [f"same{n}" for n in range(5)]


def test_a_new_version_keeps_its_place_and_its_time_of_creation(harness: Harness) -> None:
    first = harness.put("a", text="old")
    harness.put("b")
    second = harness.put("a", text="new")
    assert second.seq == first.seq
    assert second.version > first.version
    assert second.created == first.created
    found = harness.read("a")
    assert (found.text, found.seq, found.version) == ("new", first.seq, second.version)
    assert harness.keys() == ["a", "b"]


def test_versions_grow_with_every_change_of_a_stream(harness: Harness) -> None:
    versions = [harness.put("a").version, harness.put("b").version, harness.put("a").version]
    assert versions == sorted(set(versions))
    changed = [found.key for found in harness.scan(after_version=versions[1])]
    assert changed == ["a"]


def test_what_one_write_removes_and_puts_again_goes_to_the_end(harness: Harness) -> None:
    for key in "abc":
        harness.put(key, text=key)
    ops = [Delete(Ref(SCOPE, KIND, key)) for key in "abc"] + [Put(record(key, text=key)) for key in "cba"]
    harness.write(*ops)
    assert harness.keys() == ["c", "b", "a"]
    assert [found.text for found in harness.scan()] == ["c", "b", "a"]


def test_a_seq_is_never_used_again(harness: Harness) -> None:
    harness.put("a")
    last = harness.put("b").seq
    harness.write(Delete(Ref(SCOPE, KIND, "b")))
    assert harness.put("c").seq > last
    again = harness.put("b").seq
    assert again > last + 1
    harness.write(Purge(SCOPE, KIND))
    assert harness.put("d").seq > again


def test_streams_count_on_their_own(harness: Harness) -> None:
    other = ScopePath("acme/bob")
    assert [harness.put("a").seq, harness.put("a", scope=other).seq, harness.put("a", kind=OTHER_KIND).seq] == [1, 1, 1]
    assert harness.keys() == harness.keys(scope=other) == harness.keys(kinds=(OTHER_KIND,)) == ["a"]


VALUES: list[dict[str, Any]] = [
    {"text": ""},
    {"text": None},
    {"text": "a\nb\tc 'quoted' \"twice\" %_*?[x] -- ; /* */ \\ \u2028 \U0001f600 é e\u0301 漢字"},
    {"title": "", "data": ""},
    {"data": None},
    {"data": []},
    {"data": {}},
    {"data": 0},
    {"data": False},
    {"data": {"a": [1, 2.5, None, True, {"b": ""}], "": "empty key", "a.b": 1, '"': 2, "$": 3}},
    {"data": [2**70, -(2**70), 1e308, 5e-324, 0.1, -0.0, 1.0, 10**15]},
    {"meta": {"a": 1, "b": "x", "c": None, "d": [1], "e": {"f": 1.5}, "g": True}},
    {"labels": {"a": "x", "b c": "é '%_"}},
    {"importance": 0.0},
    {"importance": 3.25},
    {"weight": 2**40},
    {"pinned": True},
    {"created": moment("1969-07-20T20:17:40.000001")},
    {"created": moment("2500-01-01T00:00:00.999999")},
    {"expires": moment("2999-12-31T23:59:59.999999")},
    {"valid_from": moment("2020-02-29T12:00:00.123456"), "valid_to": moment("2021-01-01T00:00:00")},
]


def test_values_come_back_as_they_were(harness: Harness) -> None:
    for n, fields in enumerate(VALUES):
        harness.put(f"k{n}", **fields)
    for n, (fields, scanned) in enumerate(zip(VALUES, harness.scan(), strict=True)):
        for found in (harness.read(f"k{n}"), scanned):
            for name, value in fields.items():
                read = getattr(found, name)
                assert read == value
                assert repr(read) == repr(value)


NAMES = ["a b", "%", "_", "*?[a]", "{x}", "'", '"', "\\", "a:b", "#", "é", "💡", ".."]


def test_names_are_only_names(harness: Harness) -> None:
    for name in NAMES:
        harness.put(name, scope=ScopePath.of("acme", name), labels={name: name})
    for name in NAMES:
        scope = ScopePath.of("acme", name)
        assert harness.keys(scope=scope) == [name]
        assert harness.read(name, scope=scope).labels == {name: name}
        assert harness.keys(scope=scope, where=(Condition(f"labels.{name}", "eq", name),)) == [name]
    assert harness.keys(scope=ScopePath("acme"), below=True, kinds=()) == sorted(NAMES)


def test_what_is_given_and_what_is_got_are_copies(harness: Harness) -> None:
    data: dict[str, Any] = {"list": [1]}
    meta: dict[str, Any] = {"tags": ["a"]}
    labels = {"a": "b"}
    harness.put("k", data=data, meta=meta, labels=labels)
    data["list"].append(2)
    meta["tags"].append("b")
    labels["a"] = "c"
    for _ in range(2):
        for found in (harness.get("k"), harness.scan()[0]):
            assert found is not None
            assert (found.data, found.meta, found.labels) == ({"list": [1]}, {"tags": ["a"]}, {"a": "b"})
            assert isinstance(found.data, dict)
            found.data["list"].append(3)
            found.meta["tags"].append("c")
            found.labels["a"] = "d"


def test_a_scan_without_bodies_leaves_out_text_and_data(harness: Harness) -> None:
    harness.put("k", text="long", data={"long": 1}, title="short", meta={"a": 1}, weight=7)
    (found,) = harness.scan(bodies=False)
    assert (found.text, found.data) == (None, None)
    assert (found.title, found.meta, found.weight) == ("short", {"a": 1}, 7)


def test_a_large_record_comes_back_whole(harness: Harness) -> None:
    text = "ab\U0001f600" * 400_000
    harness.put("k", text=text, data={"text": text[:500_000]})
    found = harness.read("k")
    assert found.text == text
    assert found.data == {"text": text[:500_000]}


def test_scopes_match_by_whole_segments(harness: Harness) -> None:
    for path in ("a", "a/sess1", "a/sess10", "a/sess1/x", "a/sess1-b", "a/sess1.b", "ab", "b/sess1"):
        harness.put(path, scope=ScopePath(path))
    assert harness.keys(scope=ScopePath("a/sess1")) == ["a/sess1"]
    assert harness.keys(scope=ScopePath("a/sess1"), below=True) == ["a/sess1", "a/sess1/x"]
    assert harness.keys(scope=ScopePath("a"), below=True) == [
        "a", "a/sess1", "a/sess1-b", "a/sess1.b", "a/sess1/x", "a/sess10",
    ]  # fmt: skip
    assert harness.keys(scope=ScopePath(), below=True)[-2:] == ["ab", "b/sess1"]
    assert harness.keys(scope=ScopePath()) == []
    assert harness.get("a/sess1", scope=ScopePath("a/sess10")) is None


def test_the_root_is_a_scope_too(harness: Harness) -> None:
    harness.put("k", scope=ScopePath())
    harness.put("l", scope=ScopePath("a"))
    assert harness.keys(scope=ScopePath()) == ["k"]
    assert harness.keys(scope=ScopePath(), below=True) == ["k", "l"]


EXTREME = [
    "\U0010ffff", "\U0010ffff\U0010ffff", "\U0010ffff" * 200, "\U0010fffe", "\U00010000", "\uffff", "\ufffd",
    "\ue000", "\ud7ff", "\x80", " ", "!", "~", "%", "%2F", ".", "..", "*", "?", "[a]", "{a}", "\\", "'", '"',
    "a", "a-b", "a.b", "a0", "A", "\u00e9", "e\u0301", "\u2028", "mnemic", "s", "x" * 200, "\u4e00" * 200,
]  # fmt: skip
"""First segments at both ends of the sort order, and with special characters of patterns, paths and queries."""


def test_a_scan_of_the_root_finds_every_tenant_in_order(harness: Harness) -> None:
    scopes = [ScopePath(name) for name in EXTREME] + [ScopePath(f"{name}/{name}") for name in EXTREME[:12]]
    for scope in scopes:
        harness.put("k", scope=scope)
    wanted = sorted(scopes)
    for limit in (1, 7, 1000):
        listed: list[ScopePath] = []
        fields: dict[str, Any] = {"scope": ScopePath(), "limit": limit}
        while "cursor" not in fields or fields["cursor"] is not None:
            page = harness.run(harness.store.streams(StreamScan(**fields)))
            listed += [stream.scope for stream in page.items]
            fields["cursor"] = page.cursor
        assert listed == wanted
        for reverse in (False, True) if limit > 1 else (True,):
            found = harness.scan(scope=ScopePath(), below=True, kinds=(), limit=limit, reverse=reverse)
            assert [one.scope for one in found] == (wanted[::-1] if reverse else wanted)
        for scope in (wanted[0], wanted[-1]):
            below = harness.scan(scope=scope, below=True, kinds=(), limit=limit)
            assert [one.scope for one in below] == [one for one in wanted if scope.contains(one)]


@needs(Capability.RECORDS)
def test_the_longest_scope_path_is_the_same_in_every_store(harness: Harness) -> None:
    path = "/".join("".join(chr(0x4E00 + (97 * n + 31 * part) % 20_000) for n in range(200)) for part in range(5))
    path = path.encode()[:MAX_PATH].decode(errors="ignore")
    path += "x" * (MAX_PATH - len(path.encode()))
    longest = ScopePath(path)
    harness.put("k", scope=longest, kind="k" * 32)
    harness.put("other", scope=ScopePath(path[:-1]), kind="k" * 32)
    assert harness.keys(scope=longest, kinds=()) == ["k"]
    assert harness.keys(scope=ScopePath(), below=True, kinds=()) == ["other", "k"]
    with pytest.raises(InvalidValueError, match=r"2,501 bytes, more than 2,500"):
        ScopePath(path + "x")
