"""Scans: complete pages, and conditions that mean the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from ..errors import InvalidValueError
from ..records import Ref, ScopePath
from ..store.matching import matches
from ..store.query import Condition, Delete, Put
from .harness import KIND, SCOPE, Harness, moment, record


def test_pages_are_complete(harness: Harness) -> None:
    for session in range(5):
        puts = [Put(record(f"{session}-{n}", scope=ScopePath.of("u", f"s{session}"))) for n in range(43)]
        harness.write(*puts)
    keys = [f"{session}-{n}" for session in range(5) for n in range(43)]
    for reverse in (False, True):
        expected = keys[::-1] if reverse else keys
        one = [key for key in expected if key.startswith("2-")]
        for limit in (1, 7, 100, 1000):
            assert harness.keys(scope=ScopePath("u/s2"), limit=limit, reverse=reverse) == one
            if limit > 1:
                assert harness.keys(scope=ScopePath("u"), below=True, limit=limit, reverse=reverse) == expected


def test_many_records_are_read_to_the_end(harness: Harness) -> None:
    for start in (0, 600):
        harness.write(*(Put(record(f"k{n}", text="x" * 1200)) for n in range(start, start + 600)))
    assert harness.keys() == [f"k{n}" for n in range(1200)]
    assert harness.keys(limit=10_000) == [f"k{n}" for n in range(1200)]


def test_skip_and_limit_count_from_where_the_scan_begins(harness: Harness) -> None:
    for n in range(10):
        harness.put(f"k{n}", meta={"even": n % 2 == 0})
    assert [r.key for r in harness.page(reverse=True, limit=3).items] == ["k9", "k8", "k7"]
    assert [r.key for r in harness.page(reverse=True, limit=3, skip=2).items] == ["k7", "k6", "k5"]
    even = (Condition("meta.even", "eq", True),)
    assert [r.key for r in harness.page(reverse=True, limit=2, skip=1, where=even).items] == ["k6", "k4"]
    assert harness.keys(skip=8) == ["k8", "k9"]
    assert harness.keys(skip=99) == []
    assert harness.keys(scope=ScopePath("acme"), below=True, skip=8, limit=1) == ["k8", "k9"]


def test_a_cursor_goes_on_where_the_page_ended(harness: Harness) -> None:
    for n in range(6):
        harness.put(f"k{n}")
    page = harness.page(limit=3)
    assert page.cursor is not None
    harness.write(Delete(Ref(SCOPE, KIND, "k2")), Delete(Ref(SCOPE, KIND, "k4")), Put(record("k6")))
    rest = harness.page(limit=9, cursor=page.cursor)
    assert [found.key for found in rest.items] == ["k3", "k5", "k6"]
    assert rest.cursor is None


def test_a_cursor_that_is_not_ours_is_refused(harness: Harness) -> None:
    for cursor in ("", "x", "AAAA", "bm90IGpzb24=", "W10="):
        with pytest.raises(InvalidValueError):
            harness.page(cursor=cursor)


def test_a_cursor_of_another_scope_shows_nothing_of_it(harness: Harness) -> None:
    scopes = [ScopePath(path) for path in ("u/a", "u/a b", "u/a/x", "u/b")]
    for scope in scopes:
        harness.write(*(Put(record(f"{scope}-{n}", scope=scope)) for n in range(3)))
    for named in scopes:
        for reverse in (False, True):
            cursor = harness.page(scope=named, limit=2, reverse=reverse).cursor
            assert cursor is not None
            for below, kinds in ((True, ()), (True, (KIND,)), (False, ()), (False, (KIND,))):
                reach = [one for one in scopes if ScopePath("u/a").contains(one) and (below or one.path == "u/a")]
                left = {one: (one > named) != reverse for one in reach if one != named}
                expected = [
                    f"{one}-{n}" for one in reach for n in range(3) if left.get(one, n == (0 if reverse else 2))
                ]
                found = harness.keys(scope=ScopePath("u/a"), below=below, kinds=kinds, cursor=cursor, reverse=reverse)
                assert found == (expected[::-1] if reverse else expected), (named, below, kinds, reverse)


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


def test_conditions_mean_the_same_everywhere(harness: Harness) -> None:
    harness.write(*(Put(record(f"k{n}", **fields)) for n, fields in enumerate(TESTED)))
    everything = harness.scan()
    assert len(everything) == len(TESTED)
    for question in QUESTIONS:
        expected = [found.key for found in everything if matches(found, (question,))]
        assert harness.keys(where=(question,)) == expected, question
        if question.op in ("eq", "ne", "in"):  # the others compare alike in one scope and below one
            assert harness.keys(scope=ScopePath("acme"), below=True, where=(question,)) == expected, question


def test_all_conditions_must_hold(harness: Harness) -> None:
    for n in range(12):
        harness.put(f"k{n}", meta={"a": n % 2, "b": n % 3}, labels={"c": str(n % 4)})
    where = (Condition("labels.c", "eq", "0"), Condition("meta.b", "ne", 1), Condition("meta.a", "eq", 0))
    assert harness.keys(where=where) == ["k0", "k8"]
    assert harness.keys(where=(Condition("labels.c", "in", ("0", "3")), *where[1:]), reverse=True) == ["k8", "k0"]
    assert harness.keys(where=where, limit=1) == ["k0", "k8"]


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


def test_as_of_keeps_what_was_true_then(harness: Harness) -> None:
    year = {n: moment(f"{n}-01-01T00:00:00") for n in (2019, 2020, 2021, 2022)}
    harness.put("always")
    harness.put("from", valid_from=year[2020])
    harness.put("until", valid_to=year[2021])
    harness.put("between", valid_from=year[2020], valid_to=year[2021])
    assert harness.keys(as_of=year[2019]) == ["always", "until"]
    assert harness.keys(as_of=year[2020]) == ["always", "from", "until", "between"]
    assert harness.keys(as_of=year[2021]) == ["always", "from"]
    assert harness.keys() == ["always", "from", "until", "between"]
