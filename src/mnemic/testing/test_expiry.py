"""Expiry, and the totals of streams."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from ..errors import ConflictError
from ..records import Ref, ScopePath, now
from ..store.protocol import all_streams
from ..store.query import Condition, Delete, Expect, Limit, Purge, Put, StreamScan, Touch
from .lab import HOME, KIND, Lab, record


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
    lab.write(Put(record("a", weight=3)), Touch(HOME, KIND, timedelta(seconds=0.4)))
    assert lab.keys() == ["a"]
    time.sleep(0.5)
    assert lab.keys() == []
    assert lab.get("a") is None
    assert lab.keys(scope=ScopePath(), below=True) == []
    assert lab.stream() is None
    assert lab.put("b").seq == 2
    assert lab.keys() == ["b"]
    stream = lab.stream()
    assert stream is not None
    assert (stream.count, stream.weight, stream.expires) == (1, 0, None)


def test_a_stream_that_is_touched_lives_on(lab: Lab) -> None:
    lab.write(Put(record("a")), Touch(HOME, KIND, timedelta(seconds=0.3)))
    lab.write(Put(record("b")), Touch(HOME, KIND, timedelta(hours=1)))
    time.sleep(0.4)
    assert lab.keys() == ["a", "b"]
    lab.write(Touch(HOME, KIND, None))
    stream = lab.stream()
    assert stream is not None
    assert stream.expires is None


def test_a_slow_clock_does_not_let_a_stream_expire_sooner(lab: Lab) -> None:
    hour = timedelta(hours=1)
    lab.write(Put(record("a"), 0), Touch(HOME, KIND, hour))
    before = lab.stream()
    assert before is not None
    with lab.clock_off_by(-2 * hour):
        lab.put("b", if_version=0)
        lab.write(Put(record("c"), 0), Touch(HOME, KIND, hour))
        lab.write(Delete(Ref(HOME, KIND, "b")))
    after = lab.stream()
    assert after is not None
    assert after.expires == before.expires
    assert lab.keys() == ["a", "c"]


def test_another_time_to_live_may_be_shorter(lab: Lab) -> None:
    lab.write(Put(record("a")), Touch(HOME, KIND, timedelta(hours=2)))
    lab.write(Put(record("b")), Touch(HOME, KIND, timedelta(hours=1)))
    stream = lab.stream()
    assert stream is not None
    assert stream.expires == stream.updated + timedelta(hours=1)


def test_purge_may_remove_only_what_has_expired(lab: Lab) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    lab.write(Put(record("a", expires=past)), Put(record("b")))
    assert lab.write(Purge(HOME, KIND, expired_only=True))[0].count == 1
    assert lab.write(Purge(HOME, KIND, expired_only=True))[0].count == 0
    assert lab.keys() == ["b"]


def test_streams_are_counted(lab: Lab) -> None:
    for n in range(4):
        lab.put(f"k{n}", weight=10 + n, scope=ScopePath(f"u/s{n % 2}"))
    lab.put("e", scope=ScopePath("u"), kind="note")
    lab.write(Delete(Ref(ScopePath("u/s1"), KIND, "k1")))
    found = lab.streams(scope=ScopePath("u"))
    assert [(s.scope.path, s.kind, s.count, s.weight, s.last_seq) for s in found] == [
        ("u", "note", 1, 0, 1),
        ("u/s0", KIND, 2, 22, 2),
        ("u/s1", KIND, 1, 13, 2),
    ]
    assert [s.scope.path for s in lab.streams(scope=ScopePath("u"), kinds=(KIND,))] == ["u/s0", "u/s1"]
    assert [s.kind for s in lab.streams(scope=ScopePath("u"), below=False)] == ["note"]
    assert all(s.created <= s.updated for s in found)


def test_empty_streams_are_listed_only_on_request(lab: Lab) -> None:
    lab.put("a")
    lab.write(Delete(Ref(HOME, KIND, "a")))
    assert lab.streams() == []
    (empty,) = lab.streams(empty=True)
    assert (empty.count, empty.last_seq) == (0, 1)


def test_streams_are_listed_to_the_end(lab: Lab) -> None:
    lab.write(*(Put(record("k", scope=ScopePath.of("u", f"s{n:04}"))) for n in range(603)))

    async def listed(limit: int) -> list[str]:
        return [s.scope.name async for s in all_streams(lab.store, StreamScan(scope=ScopePath("u"), limit=limit))]

    for limit in (10, 500, 5000):
        assert lab.run(listed(limit)) == [f"s{n:04}" for n in range(603)]
    assert len(lab.keys(scope=ScopePath("u"), below=True, limit=77)) == 603


def test_what_expires_is_no_change_of_the_version_that_a_writer_expects(lab: Lab) -> None:
    lab.put("short", expires=now() + timedelta(hours=1))
    lab.put("kept")
    before = lab.stream()
    assert before is not None
    with lab.clock_off_by(timedelta(hours=2)):
        seen = lab.stream()
        assert seen is not None
        assert seen.version == before.version
        lab.write(Expect(HOME, KIND, before.version), Put(record("new")))
        assert lab.keys() == ["kept", "new"]
        with pytest.raises(ConflictError):
            lab.write(Expect(HOME, KIND, before.version), Put(record("newer")))


def test_a_stream_that_has_expired_is_at_the_version_that_it_had(lab: Lab) -> None:
    lab.write(Put(record("a")), Touch(HOME, KIND, timedelta(hours=1)))
    before = lab.stream()
    assert before is not None
    with lab.clock_off_by(timedelta(hours=2)):
        (seen,) = lab.streams(scope=HOME, empty=True)
        lab.write(Expect(HOME, KIND, seen.version), Put(record("b")))
        assert seen.version == before.version
        assert lab.keys() == ["b"]
