"""What every store must do, whatever it is made of."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ..errors import ClosedError, ConflictError, InvalidValueError, LimitError
from ..records import Ref, Scope
from ..store.matching import matches
from ..store.protocol import Capability, Store
from ..store.query import Condition, Delete, Expect, Limit, Purge, Put, Scan, Touch, Write
from .lab import HOME, KIND, Lab, moment, record

# ---------------------------------------------------------------- order and identity


def test_order_is_that_of_the_writes(lab: Lab) -> None:
    outcomes = [lab.put(f"k{n}") for n in range(20)]
    assert [outcome.seq for outcome in outcomes] == list(range(1, 21))
    assert lab.keys() == [f"k{n}" for n in range(20)]
    assert lab.keys(reverse=True) == [f"k{n}" for n in reversed(range(20))]


def test_order_is_not_that_of_the_times(lab: Lab) -> None:
    same = moment("2026-01-01T00:00:00")
    for n in range(5):
        lab.put(f"k{n}", created=same - timedelta(days=n))
    lab.write(*(Put(record(f"same{n}", created=same)) for n in range(5)))
    assert lab.keys() == [f"k{n}" for n in range(5)] + [f"same{n}" for n in range(5)]


def test_a_new_version_keeps_its_place_and_its_time_of_creation(lab: Lab) -> None:
    first = lab.put("a", text="old")
    lab.put("b")
    second = lab.put("a", text="new")
    assert second.seq == first.seq
    assert second.version > first.version
    assert second.created == first.created
    found = lab.get("a")
    assert found is not None
    assert (found.text, found.seq, found.version) == ("new", first.seq, second.version)
    assert lab.keys() == ["a", "b"]


def test_versions_grow_with_every_change_of_a_stream(lab: Lab) -> None:
    versions = [lab.put("a").version, lab.put("b").version, lab.put("a").version]
    assert versions == sorted(set(versions))
    changed = [found.key for found in lab.scan(after_version=versions[1])]
    assert changed == ["a"]


def test_a_seq_is_never_used_again(lab: Lab) -> None:
    lab.put("a")
    last = lab.put("b").seq
    lab.write(Delete(Ref(HOME, KIND, "b")))
    assert lab.put("c").seq > last
    again = lab.put("b").seq
    assert again > last + 1
    lab.write(Purge(HOME, KIND))
    assert lab.put("d").seq > again


def test_streams_count_on_their_own(lab: Lab) -> None:
    other = Scope("acme/bob")
    assert [lab.put("a").seq, lab.put("a", scope=other).seq, lab.put("a", kind="entry").seq] == [1, 1, 1]
    assert lab.keys() == lab.keys(scope=other) == lab.keys(kinds=("entry",)) == ["a"]


# ---------------------------------------------------------------- values

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


@pytest.mark.parametrize("fields", VALUES, ids=str)
def test_values_come_back_as_they_were(lab: Lab, fields: dict[str, Any]) -> None:
    lab.put("k", **fields)
    for found in (lab.get("k"), lab.scan()[0]):
        assert found is not None
        for name, value in fields.items():
            read = getattr(found, name)
            assert read == value
            assert repr(read) == repr(value)


@pytest.mark.parametrize(
    "name", ["a b", "%", "_", "*?[a]", "{x}", "'", '"', "\\", "a:b", "#", "é", "💡", ".."]
)
def test_names_are_only_names(lab: Lab, name: str) -> None:
    scope = Scope.of("acme", name)
    lab.put(name, scope=scope, labels={name: name})
    lab.put("other", scope=Scope.of("acme", "other"))
    assert lab.keys(scope=scope) == [name]
    found = lab.get(name, scope=scope)
    assert found is not None
    assert found.labels == {name: name}
    assert lab.keys(scope=scope, where=(Condition(f"labels.{name}", "eq", name),)) == [name]
    assert lab.keys(scope=Scope("acme"), below=True, kinds=()) == sorted([name, "other"], key=lambda k: k)


def test_what_is_given_and_what_is_got_are_copies(lab: Lab) -> None:
    data: dict[str, Any] = {"list": [1]}
    meta: dict[str, Any] = {"tags": ["a"]}
    labels = {"a": "b"}
    lab.put("k", data=data, meta=meta, labels=labels)
    data["list"].append(2)
    meta["tags"].append("b")
    labels["a"] = "c"
    for _ in range(2):
        for found in (lab.get("k"), lab.scan()[0]):
            assert found is not None
            assert (found.data, found.meta, found.labels) == ({"list": [1]}, {"tags": ["a"]}, {"a": "b"})
            assert isinstance(found.data, dict)
            found.data["list"].append(3)
            found.meta["tags"].append("c")
            found.labels["a"] = "d"


def test_a_scan_without_bodies_leaves_out_text_and_data(lab: Lab) -> None:
    lab.put("k", text="long", data={"long": 1}, title="short", meta={"a": 1}, weight=7)
    (found,) = lab.scan(bodies=False)
    assert (found.text, found.data) == (None, None)
    assert (found.title, found.meta, found.weight) == ("short", {"a": 1}, 7)


def test_a_large_record_comes_back_whole(lab: Lab) -> None:
    text = "ab\U0001f600" * 400_000
    lab.put("k", text=text, data={"text": text[:500_000]})
    found = lab.get("k")
    assert found is not None
    assert found.text == text
    assert found.data == {"text": text[:500_000]}


# ---------------------------------------------------------------- scopes


def test_scopes_match_by_whole_segments(lab: Lab) -> None:
    for path in ("a", "a/sess1", "a/sess10", "a/sess1/x", "a/sess1-b", "a/sess1.b", "ab", "b/sess1"):
        lab.put(path, scope=Scope(path))
    assert lab.keys(scope=Scope("a/sess1")) == ["a/sess1"]
    assert lab.keys(scope=Scope("a/sess1"), below=True) == ["a/sess1", "a/sess1/x"]
    assert lab.keys(scope=Scope("a"), below=True) == [
        "a", "a/sess1", "a/sess1-b", "a/sess1.b", "a/sess1/x", "a/sess10",
    ]  # fmt: skip
    assert lab.keys(scope=Scope(), below=True)[-2:] == ["ab", "b/sess1"]
    assert lab.keys(scope=Scope()) == []
    assert lab.get("a/sess1", scope=Scope("a/sess10")) is None


def test_the_root_is_a_scope_too(lab: Lab) -> None:
    lab.put("k", scope=Scope())
    lab.put("l", scope=Scope("a"))
    assert lab.keys(scope=Scope()) == ["k"]
    assert lab.keys(scope=Scope(), below=True) == ["k", "l"]


# ---------------------------------------------------------------- writes


def test_read_answers_in_the_order_of_the_question(lab: Lab) -> None:
    lab.put("a", text="1")
    lab.put("b", text="2", scope=Scope("x"))
    refs = [Ref(Scope("x"), KIND, "b"), Ref(HOME, KIND, "no"), Ref(HOME, KIND, "a"), Ref(HOME, KIND, "a")]
    found = lab.run(lab.store.read(refs))
    assert [item and item.text for item in found] == ["2", None, "1", "1"]


def test_reading_nothing_returns_nothing(lab: Lab) -> None:
    lab.put("a")
    assert lab.run(lab.store.read([])) == []
    assert lab.scan(limit=0) == []
    assert lab.write() == []


def test_many_keys_are_read_at_once(lab: Lab) -> None:
    lab.write(*(Put(record(f"k{n}", text=str(n))) for n in range(1234)))
    refs = [Ref(HOME, KIND, f"k{n}") for n in reversed(range(1234))]
    found = lab.run(lab.store.read(refs))
    assert [item and item.text for item in found] == [str(n) for n in reversed(range(1234))]


def test_a_write_is_all_or_nothing(lab: Lab) -> None:
    lab.put("a", text="old")
    before = lab.stream()
    with pytest.raises(ConflictError):
        lab.write(
            Put(record("b")),
            Put(record("a", text="new")),
            Put(record("c", scope=Scope("elsewhere"))),
            Put(record("a"), if_version=999),
        )
    assert lab.keys() == ["a"]
    assert lab.keys(scope=Scope("elsewhere")) == []
    found = lab.get("a")
    assert found is not None
    assert found.text == "old"
    assert lab.stream() == before


def test_versions_guard_writes(lab: Lab) -> None:
    version = lab.put("a", if_version=0).version
    with pytest.raises(ConflictError) as caught:
        lab.put("a", if_version=0)
    assert (caught.value.key, caught.value.current) == ("a", version)
    with pytest.raises(ConflictError) as caught:
        lab.put("b", if_version=7)
    assert caught.value.current == 0
    newer = lab.put("a", if_version=version).version
    with pytest.raises(ConflictError):
        lab.write(Delete(Ref(HOME, KIND, "a"), version))
    assert lab.write(Delete(Ref(HOME, KIND, "a"), newer))[0].removed == ("a",)
    assert lab.write(Delete(Ref(HOME, KIND, "a")))[0].removed == ()


def test_operations_see_those_before_them(lab: Lab) -> None:
    outcomes = lab.write(
        Put(record("a", text="1", labels={"x": "1"}, weight=5), 0),
        Put(record("a", text="2", labels={"x": "2"}, weight=7)),
        Put(record("b", labels={"x": "2"}), 0),
        Delete(Ref(HOME, KIND, "b")),
        Put(record("b", text="3"), 0),
    )
    assert outcomes[0].seq == outcomes[1].seq == 1
    assert outcomes[4].seq > outcomes[2].seq
    assert [(found.key, found.text) for found in lab.scan()] == [("a", "2"), ("b", "3")]
    assert lab.keys(where=(Condition("labels.x", "eq", "1"),)) == []
    assert lab.keys(where=(Condition("labels.x", "eq", "2"),)) == ["a"]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (2, 7)


def test_a_write_with_an_id_is_done_once(lab: Lab) -> None:
    first = lab.write(Put(record("a", text="1")), Delete(Ref(HOME, KIND, "z")), id="w1")
    lab.put("a", text="2")
    assert lab.write(Put(record("a", text="1")), Delete(Ref(HOME, KIND, "z")), id="w1") == first
    found = lab.get("a")
    assert found is not None
    assert found.text == "2"
    assert lab.write(Put(record("a", text="3")), id="w2") != first


def test_a_failed_write_with_an_id_may_be_tried_again(lab: Lab) -> None:
    lab.put("a")
    with pytest.raises(ConflictError):
        lab.write(Put(record("a"), 0), id="w1")
    lab.write(Delete(Ref(HOME, KIND, "a")))
    assert lab.write(Put(record("a"), 0), id="w1")[0].seq > 1


def test_expect_guards_a_stream(lab: Lab) -> None:
    lab.write(Expect(HOME, KIND, 0), Put(record("a")))
    with pytest.raises(ConflictError) as caught:
        lab.write(Expect(HOME, KIND, 0), Put(record("b")))
    version = caught.value.current
    lab.write(Expect(HOME, KIND, version), Put(record("b")))
    assert lab.keys() == ["a", "b"]


def test_purge_empties_a_stream_but_for_some_keys(lab: Lab) -> None:
    for n in range(10):
        lab.put(f"k{n}", weight=n, labels={"n": str(n)})
    lab.put("other", kind="entry")
    assert lab.write(Purge(HOME, KIND, keep=("k3", "k7", "no")))[0].count == 8
    assert lab.keys() == ["k3", "k7"]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight, stream.last_seq) == (2, 10, 10)
    assert lab.keys(where=(Condition("labels.n", "eq", "5"),)) == []
    assert lab.keys(where=(Condition("labels.n", "eq", "7"),)) == ["k7"]
    assert lab.keys(kinds=("entry",)) == ["other"]
    assert lab.write(Purge(HOME, KIND))[0].count == 2
    assert lab.stream() is None


# ---------------------------------------------------------------- limits


def test_a_limit_removes_groups_until_the_stream_fits(lab: Lab) -> None:
    for n in range(6):
        lab.put(f"k{n}", weight=10)
    groups = (("k0",), ("k1", "k2"), ("gone",), ("k3",), ("k4",))
    outcomes = lab.write(Put(record("k6", weight=10)), Limit(HOME, KIND, 5, None, groups))
    assert outcomes[1].removed == ("k0", "k1", "k2")
    assert lab.keys() == ["k3", "k4", "k5", "k6"]
    outcomes = lab.write(Limit(HOME, KIND, None, 25, (("k3",), ("k4",), ("k5",))))
    assert outcomes[0].removed == ("k3", "k4")
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (2, 20)


def test_a_strict_limit_that_cannot_be_held_stores_nothing(lab: Lab) -> None:
    lab.put("a", weight=3)
    with pytest.raises(LimitError) as caught:
        lab.write(Put(record("b", weight=4)), Limit(HOME, KIND, None, 5, (("no",),)))
    assert (caught.value.count, caught.value.weight) == (2, 7)
    assert lab.keys() == ["a"]
    lab.write(Put(record("b", weight=4)), Limit(HOME, KIND, None, 5, (("no",),), strict=False))
    assert lab.keys() == ["a", "b"]


def test_a_limit_may_remove_what_the_same_write_added(lab: Lab) -> None:
    puts = [Put(record(f"k{n}")) for n in range(5)]
    lab.write(*puts, Limit(HOME, KIND, 2, None, (("k0",), ("k1",), ("k2",))))
    assert lab.keys() == ["k3", "k4"]


# ---------------------------------------------------------------- scans


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
def test_pages_are_complete(lab: Lab, limit: int, reverse: bool) -> None:
    for session in range(5):
        puts = [Put(record(f"{session}-{n}", scope=Scope.of("u", f"s{session}"))) for n in range(43)]
        lab.write(*puts)
    expected = [f"{session}-{n}" for session in range(5) for n in range(43)]
    expected = expected[::-1] if reverse else expected
    if limit > 1:
        assert lab.keys(scope=Scope("u"), below=True, limit=limit, reverse=reverse) == expected
    one = [key for key in expected if key.startswith("2-")]
    assert lab.keys(scope=Scope("u/s2"), limit=limit, reverse=reverse) == one


def test_many_records_are_read_to_the_end(lab: Lab) -> None:
    for start in range(0, 2500, 500):
        lab.write(*(Put(record(f"k{n}", text="x" * 600)) for n in range(start, start + 500)))
    assert lab.keys() == [f"k{n}" for n in range(2500)]
    assert lab.keys(limit=10_000) == [f"k{n}" for n in range(2500)]


def test_skip_and_limit_count_from_where_the_scan_begins(lab: Lab) -> None:
    for n in range(10):
        lab.put(f"k{n}", meta={"even": n % 2 == 0})
    assert [r.key for r in lab.page(reverse=True, limit=3).items] == ["k9", "k8", "k7"]
    assert [r.key for r in lab.page(reverse=True, limit=3, skip=2).items] == ["k7", "k6", "k5"]
    even = (Condition("meta.even", "eq", True),)
    assert [r.key for r in lab.page(reverse=True, limit=2, skip=1, where=even).items] == ["k6", "k4"]
    assert lab.keys(skip=8) == ["k8", "k9"]
    assert lab.keys(skip=99) == []
    assert lab.keys(scope=Scope("acme"), below=True, skip=8, limit=1) == ["k8", "k9"]


def test_a_cursor_goes_on_where_the_page_ended(lab: Lab) -> None:
    for n in range(6):
        lab.put(f"k{n}")
    page = lab.page(limit=3)
    assert page.cursor is not None
    lab.write(Delete(Ref(HOME, KIND, "k2")), Delete(Ref(HOME, KIND, "k4")), Put(record("k6")))
    rest = lab.page(limit=9, cursor=page.cursor)
    assert [found.key for found in rest.items] == ["k3", "k5", "k6"]
    assert rest.cursor is None


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "bm90IGpzb24=", "W10="])
def test_a_cursor_that_is_not_ours_is_refused(lab: Lab, cursor: str) -> None:
    with pytest.raises(InvalidValueError):
        lab.page(cursor=cursor)


TESTED: list[dict[str, Any]] = [
    {},
    {"meta": {"a": 1}},
    {"meta": {"a": 1.0}},
    {"meta": {"a": True}},
    {"meta": {"a": "1"}},
    {"meta": {"a": None}},
    {"meta": {"a": [1]}},
    {"meta": {"a": {"b": 1}}},
    {"meta": {"a": 2**60}},
    {"meta": {"a": "é"}, "importance": 1.0},
    {"meta": {"A": 1, 'q"': 1, "a.b": 1}, "importance": 0.5, "pinned": True},
    {"data": {"a": 1, "role": "user"}, "labels": {"a": "1", "b": "2"}, "weight": 3},
    {"data": ["a"], "labels": {"a": "é"}},
    {"data": "a", "created": moment("2020-01-01T00:00:00")},
    {"valid_from": moment("2020-01-01T00:00:00"), "valid_to": moment("2021-01-01T00:00:00")},
    {"valid_from": moment("2021-01-01T00:00:00")},
]
QUESTIONS = [
    Condition(field, op, value)
    for field, values in {
        "meta.a": (1, 1.0, True, False, "1", "", None, 2**60, "é"),
        "meta.q\"": (1,),
        "meta.a.b": (1,),
        "meta.no": (None, 1),
        "data.a": (1, None),
        "data.role": ("user",),
        "labels.a": ("1", "é", None, 1),
        "importance": (1, 0.5, None, "1", True),
        "pinned": (True, False, 1, None),
        "weight": (3, 0, 2.5),
        "key": ("k3", "k", 3),
        "created": (moment("2020-01-01T00:00:00"), moment("2024-01-01T00:00:00"), 1),
        "valid_to": (None, moment("2021-01-01T00:00:00")),
    }.items()
    for value in values
    for op in ("eq", "ne", "lt", "le", "gt", "ge")
] + [
    Condition("meta.a", "in", (1, "1", None)),
    Condition("meta.a", "in", ()),
    Condition("labels.a", "in", ("1", "é")),
    Condition("labels.a", "in", ("1", None)),
    Condition("labels.a", "in", ()),
    Condition("key", "in", ("k1", "k2")),
]  # fmt: skip


def test_conditions_mean_the_same_everywhere(lab: Lab) -> None:
    lab.write(*(Put(record(f"k{n}", **fields)) for n, fields in enumerate(TESTED)))
    everything = lab.scan()
    assert len(everything) == len(TESTED)
    for question in QUESTIONS:
        expected = [found.key for found in everything if matches(found, (question,))]
        assert lab.keys(where=(question,)) == expected, question
        assert lab.keys(scope=Scope("acme"), below=True, where=(question,)) == expected, question


def test_all_conditions_must_hold(lab: Lab) -> None:
    for n in range(12):
        lab.put(f"k{n}", meta={"a": n % 2, "b": n % 3}, labels={"c": str(n % 4)})
    where = (Condition("labels.c", "eq", "0"), Condition("meta.b", "ne", 1), Condition("meta.a", "eq", 0))
    assert lab.keys(where=where) == ["k0", "k8"]
    assert lab.keys(where=(Condition("labels.c", "in", ("0", "3")), *where[1:]), reverse=True) == ["k8", "k0"]
    assert lab.keys(where=where, limit=1) == ["k0", "k8"]


@pytest.mark.parametrize(
    ("field", "op", "value"),
    [
        ("text", "eq", "x"),
        ("meta", "eq", 1),
        ("meta.", "eq", 1),
        ("other.a", "eq", 1),
        ("meta.a", "eq", float("nan")),
        ("meta.a", "eq", [1]),
        ("meta.a", "in", 1),
        ("meta.a", "eq", "\x00"),
    ],
)
def test_a_condition_that_no_store_could_answer_is_refused(field: str, op: Any, value: Any) -> None:
    with pytest.raises(InvalidValueError):
        Condition(field, op, value)


def test_as_of_keeps_what_was_true_then(lab: Lab) -> None:
    year = {n: moment(f"{n}-01-01T00:00:00") for n in (2019, 2020, 2021, 2022)}
    lab.put("always")
    lab.put("from", valid_from=year[2020])
    lab.put("until", valid_to=year[2021])
    lab.put("between", valid_from=year[2020], valid_to=year[2021])
    assert lab.keys(as_of=year[2019]) == ["always", "until"]
    assert lab.keys(as_of=year[2020]) == ["always", "from", "until", "between"]
    assert lab.keys(as_of=year[2021]) == ["always", "from"]
    assert lab.keys() == ["always", "from", "until", "between"]


# ---------------------------------------------------------------- expiry


def test_what_has_expired_is_not_seen(lab: Lab) -> None:
    past, future = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1)
    lab.put("gone", expires=past, weight=5, labels={"a": "x"})
    lab.put("here", expires=future, weight=7, labels={"a": "x"})
    assert lab.keys() == ["here"]
    assert lab.get("gone") is None
    assert lab.keys(where=(Condition("labels.a", "eq", "x"),)) == ["here"]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight) == (1, 7)
    lab.put("gone", if_version=0, text="new")
    assert lab.keys() == ["here", "gone"]
    assert lab.put("third").seq == 4


def test_records_expire_when_their_time_comes(lab: Lab) -> None:
    lab.put("soon", expires=datetime.now(UTC) + timedelta(seconds=0.4))
    lab.put("late", expires=datetime.now(UTC) + timedelta(hours=1))
    assert lab.keys() == ["soon", "late"]
    time.sleep(0.5)
    assert lab.keys() == ["late"]
    outcomes = lab.write(Limit(HOME, KIND, 1, None))
    assert outcomes[0].removed == ()


def test_a_stream_expires_as_a_whole_and_begins_anew(lab: Lab) -> None:
    lab.write(Put(record("a", weight=3)), Touch(HOME, KIND, datetime.now(UTC) + timedelta(seconds=0.4)))
    assert lab.keys() == ["a"]
    time.sleep(0.5)
    assert lab.keys() == []
    assert lab.get("a") is None
    assert lab.keys(scope=Scope(), below=True) == []
    assert lab.stream() is None
    assert lab.put("b").seq == 2
    assert lab.keys() == ["b"]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight, stream.expires) == (1, 0, None)


def test_a_stream_that_is_touched_lives_on(lab: Lab) -> None:
    lab.write(Put(record("a")), Touch(HOME, KIND, datetime.now(UTC) + timedelta(seconds=0.3)))
    lab.write(Put(record("b")), Touch(HOME, KIND, datetime.now(UTC) + timedelta(hours=1)))
    time.sleep(0.4)
    assert lab.keys() == ["a", "b"]
    lab.write(Touch(HOME, KIND, None))
    stream = lab.stream()
    assert stream is not None
    assert stream.expires is None


def test_purge_may_remove_only_what_has_expired(lab: Lab) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    lab.write(Put(record("a", expires=past)), Put(record("b")))
    assert lab.write(Purge(HOME, KIND, expired_only=True))[0].count == 1
    assert lab.write(Purge(HOME, KIND, expired_only=True))[0].count == 0
    assert lab.keys() == ["b"]


# ---------------------------------------------------------------- streams


def test_streams_are_counted(lab: Lab) -> None:
    for n in range(4):
        lab.put(f"k{n}", weight=10 + n, scope=Scope(f"u/s{n % 2}"))
    lab.put("e", scope=Scope("u"), kind="entry")
    lab.write(Delete(Ref(Scope("u/s1"), KIND, "k1")))
    found = lab.streams(scope=Scope("u"))
    assert [(s.scope.path, s.kind, s.count, s.weight, s.last_seq) for s in found] == [
        ("u", "entry", 1, 0, 1),
        ("u/s0", KIND, 2, 22, 2),
        ("u/s1", KIND, 1, 13, 2),
    ]
    assert [s.scope.path for s in lab.streams(scope=Scope("u"), kinds=(KIND,))] == ["u/s0", "u/s1"]
    assert [s.kind for s in lab.streams(scope=Scope("u"), below=False)] == ["entry"]
    assert all(s.created <= s.updated for s in found)


def test_empty_streams_are_listed_only_on_request(lab: Lab) -> None:
    lab.put("a")
    lab.write(Delete(Ref(HOME, KIND, "a")))
    assert lab.streams() == []
    (empty,) = lab.streams(empty=True)
    assert (empty.count, empty.last_seq) == (0, 1)


def test_streams_are_listed_to_the_end(lab: Lab) -> None:
    from ..store.protocol import all_streams
    from ..store.query import StreamScan

    lab.write(*(Put(record("k", scope=Scope.of("u", f"s{n:04}"))) for n in range(1203)))

    async def listed(limit: int) -> list[str]:
        return [s.scope.name async for s in all_streams(lab.store, StreamScan(scope=Scope("u"), limit=limit))]

    for limit in (10, 500, 5000):
        assert lab.run(listed(limit)) == [f"s{n:04}" for n in range(1203)]
    assert len(lab.keys(scope=Scope("u"), below=True, limit=77)) == 1203


# ---------------------------------------------------------------- many callers


def test_concurrent_writers_lose_nothing(lab: Lab) -> None:
    async def burst(store: Store, writer: int) -> None:
        for n in range(10):
            await store.write(Write((Put(record(f"{writer}-{n}", weight=1), 0),)))

    async def all_at_once() -> None:
        await asyncio.gather(*(burst(lab.store, writer) for writer in range(20)))

    if lab.on_loop:
        lab.run(all_at_once())
    else:
        threads = [threading.Thread(target=lab.run, args=(burst(lab.store, n),)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _check_burst(lab)


def _check_burst(lab: Lab) -> None:
    found = lab.scan()
    assert [item.seq for item in found] == list(range(1, 201))
    for writer in range(20):
        own = [item.key for item in found if item.key.startswith(f"{writer}-")]
        assert own == [f"{writer}-{n}" for n in range(10)]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight, stream.last_seq) == (200, 200, 200)


def test_a_writer_that_fails_does_not_disturb_the_others(lab: Lab) -> None:
    if not lab.on_loop:
        pytest.skip("needs writers that are under way at the same time")
    lab.put("taken")

    async def all_at_once() -> list[Any]:
        writes = [Write((Put(record("taken" if n % 3 == 0 else f"k{n}"), 0),)) for n in range(30)]
        return await asyncio.gather(*map(lab.store.write, writes), return_exceptions=True)

    results = lab.run(all_at_once())
    for n, result in enumerate(results):
        assert isinstance(result, ConflictError) if n % 3 == 0 else result[0].seq
    assert sorted(lab.keys()) == sorted(["taken"] + [f"k{n}" for n in range(30) if n % 3])
    assert [item.seq for item in lab.scan()] == list(range(1, 22))


def test_compare_and_set_lets_one_of_many_through(lab: Lab) -> None:
    version = lab.put("counter", data=0).version
    won = 0
    for n in range(10):
        try:
            lab.put("counter", if_version=version, data=n)
            won += 1
        except ConflictError:
            continue
    assert won == 1


def test_another_handle_sees_what_was_written(lab: Lab) -> None:
    if Capability.SHARED not in lab.store.capabilities:
        pytest.skip("not shared")
    other = lab.open()
    lab.put("a", text="mine")
    lab.run(other.write(Write((Put(record("b", text="theirs")),))))
    assert lab.keys() == ["a", "b"]
    page = lab.run(other.scan(Scan(scope=HOME, kinds=(KIND,))))
    assert [found.text for found in page.items] == ["mine", "theirs"]


def test_what_was_acknowledged_is_there_after_reopening(lab: Lab) -> None:
    if Capability.DURABLE not in lab.store.capabilities:
        pytest.skip("not durable")
    lab.write(Put(record("a", text="kept", labels={"x": "y"})), id="w")
    lab.run(lab.store.close())
    lab.store = lab.open()
    assert lab.keys(where=(Condition("labels.x", "eq", "y"),)) == ["a"]
    lab.write(Put(record("a", text="again")), id="w")
    found = lab.get("a")
    assert found is not None
    assert found.text == "kept"
    assert lab.put("b").seq == 2


# ---------------------------------------------------------------- the protocol


def test_a_closed_store_says_so(lab: Lab) -> None:
    lab.put("a")
    lab.run(lab.store.close())
    lab.run(lab.store.close())
    for call in (
        lambda: lab.put("b"),
        lambda: lab.get("a"),
        lambda: lab.scan(),
        lambda: lab.streams(),
    ):
        with pytest.raises(ClosedError):
            call()


def test_the_methods_have_the_signatures_of_the_protocol(lab: Lab) -> None:
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if not name.startswith("_"):
            own = inspect.signature(getattr(type(lab.store), name))
            assert list(own.parameters) == list(inspect.signature(method).parameters), name
    assert isinstance(lab.store.capabilities, frozenset)
