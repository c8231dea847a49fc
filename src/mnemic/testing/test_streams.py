"""Streams: expiry, totals, and settings that a write can check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ..errors import ConflictError, SettingsChangedError
from ..records import Ref, ScopePath, Stream, now
from ..store.protocol import Capability, all_streams
from ..store.query import Condition, Delete, Expect, Limit, Purge, Put, StreamScan, Touch, Write
from .harness import KIND, OTHER_KIND, SCOPE, Harness, needs, record


def test_what_has_expired_is_not_seen(harness: Harness) -> None:
    past, future = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1)
    harness.put("gone", expires=past, weight=5, labels={"a": "x"})
    harness.put("here", expires=future, weight=7, labels={"a": "x"})
    assert harness.keys() == ["here"]
    assert harness.get("gone") is None
    assert harness.keys(where=(Condition("labels.a", "eq", "x"),)) == ["here"]
    stream = harness.stream()
    assert (stream.count, stream.weight) == (1, 7)
    harness.put("gone", if_version=0, text="new")
    assert harness.keys() == ["here", "gone"]
    assert harness.put("third").seq == 4


def test_records_expire_when_their_time_comes(harness: Harness) -> None:
    harness.put("soon", expires=now() + timedelta(minutes=1))
    harness.put("late", expires=now() + timedelta(hours=1))
    assert harness.keys() == ["soon", "late"]
    with harness.clock_off_by(timedelta(minutes=2)):
        assert harness.keys() == ["late"]
        outcomes = harness.write(Limit(SCOPE, KIND, 1, None))
        assert outcomes[0].removed == ()


def test_a_stream_expires_as_a_whole_and_begins_anew(harness: Harness) -> None:
    harness.write(Put(record("a", weight=3)), Touch(SCOPE, KIND, timedelta(seconds=0.3)))
    with harness.clock_off_by(timedelta(minutes=2)):
        # A server may expire streams by its own clock.
        harness.wait_until(lambda: harness.keys() == [])
        assert harness.get("a") is None
        assert harness.keys(scope=ScopePath(), below=True) == []
        assert harness.is_empty()
        assert harness.put("b").seq == 2
        assert harness.keys() == ["b"]
        stream = harness.stream()
        assert (stream.count, stream.weight, stream.expires) == (1, 0, None)


def test_a_stream_that_is_touched_lives_on(harness: Harness) -> None:
    harness.write(Put(record("a")), Touch(SCOPE, KIND, timedelta(minutes=1)))
    harness.write(Put(record("b")), Touch(SCOPE, KIND, timedelta(hours=1)))
    with harness.clock_off_by(timedelta(minutes=2)):
        assert harness.keys() == ["a", "b"]
        harness.write(Touch(SCOPE, KIND, None))
        stream = harness.stream()
        assert stream.expires is None


def test_a_slow_clock_does_not_let_a_stream_expire_sooner(harness: Harness) -> None:
    hour = timedelta(hours=1)
    harness.write(Put(record("a"), 0), Touch(SCOPE, KIND, hour))
    before = harness.stream()
    with harness.clock_off_by(-2 * hour):
        harness.put("b", if_version=0)
        harness.write(Put(record("c"), 0), Touch(SCOPE, KIND, hour))
        harness.write(Delete(Ref(SCOPE, KIND, "b")))
    after = harness.stream()
    assert after.expires == before.expires
    assert harness.keys() == ["a", "c"]


def test_a_stream_can_be_kept_beyond_its_time_to_live(harness: Harness) -> None:
    hour = timedelta(hours=1)
    harness.write(Put(record("a")))
    until = harness.stream().updated + 4 * hour
    harness.write(Touch(SCOPE, KIND, hour, until=until))
    assert (harness.stream().ttl, harness.stream().expires) == (hour, until)
    with harness.clock_off_by(2 * hour):
        harness.put("b")
        assert harness.keys() == ["a", "b"]
        assert harness.stream().expires == until
    harness.write(Touch(SCOPE, KIND, None), Touch(SCOPE, KIND, hour))
    assert harness.stream().expires == harness.stream().updated + hour


def test_another_time_to_live_may_be_shorter(harness: Harness) -> None:
    harness.write(Put(record("a")), Touch(SCOPE, KIND, timedelta(hours=2)))
    harness.write(Put(record("b")), Touch(SCOPE, KIND, timedelta(hours=1)))
    stream = harness.stream()
    assert stream.expires == stream.updated + timedelta(hours=1)


def test_a_copy_keeps_the_times_of_the_original(harness: Harness) -> None:
    made, changed, last = (datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3))
    harness.write(Put(record("a", created=made), 0, changed), Put(record("b", created=made), 0, last))
    harness.write(Touch(SCOPE, KIND, settings="{}", created=made, updated=changed))
    stream = harness.stream()
    assert stream is not None
    assert (stream.created, stream.updated) == (made, last)
    found = [harness.get("a"), harness.get("b")]
    assert [(one.created, one.updated) for one in found if one is not None] == [(made, changed), (made, last)]
    harness.put("a")
    after, stream = harness.get("a"), harness.stream()
    assert after is not None
    assert after.updated is not None
    assert stream is not None
    assert after.updated == stream.updated > last


def test_purge_may_remove_only_what_has_expired(harness: Harness) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    harness.write(Put(record("a", expires=past)), Put(record("b")))
    assert harness.write(Purge(SCOPE, KIND, expired_only=True))[0].count == 1
    assert harness.write(Purge(SCOPE, KIND, expired_only=True))[0].count == 0
    assert harness.keys() == ["b"]


def test_purge_counts_what_had_expired_once_though_other_operations_came_first(harness: Harness) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    harness.write(Put(record("a", expires=past)), Put(record("b")))
    only_expired = Purge(SCOPE, KIND, expired_only=True)
    outcomes = harness.write(Expect(SCOPE, KIND, settings=None), only_expired, only_expired, Purge(SCOPE, KIND))
    assert [outcome.count for outcome in outcomes] == [0, 1, 0, 1]


def test_streams_are_counted(harness: Harness) -> None:
    for n in range(4):
        harness.put(f"k{n}", weight=10 + n, scope=ScopePath(f"u/s{n % 2}"))
    harness.put("e", scope=ScopePath("u"), kind=OTHER_KIND)
    harness.write(Delete(Ref(ScopePath("u/s1"), KIND, "k1")))
    found = harness.streams(scope=ScopePath("u"))
    assert [(s.scope.path, s.kind, s.count, s.weight, s.last_seq) for s in found] == [
        ("u", OTHER_KIND, 1, 0, 1),
        ("u/s0", KIND, 2, 22, 2),
        ("u/s1", KIND, 1, 13, 2),
    ]
    assert [s.scope.path for s in harness.streams(scope=ScopePath("u"), kinds=(KIND,))] == ["u/s0", "u/s1"]
    assert [s.kind for s in harness.streams(scope=ScopePath("u"), below=False)] == [OTHER_KIND]
    assert all(s.created <= s.updated for s in found)


def test_empty_streams_are_listed_only_on_request(harness: Harness) -> None:
    harness.put("a")
    harness.write(Delete(Ref(SCOPE, KIND, "a")))
    assert harness.streams() == []
    (empty,) = harness.streams(empty=True)
    assert (empty.count, empty.last_seq) == (0, 1)


@needs(Capability.RECORDS)
def test_streams_are_listed_to_the_end(harness: Harness) -> None:
    streams = [(ScopePath.of("u", f"s{n:02}"), f"kind{kind:02}") for n in range(17) for kind in range(30)]
    for start in range(0, len(streams), 30):
        harness.write(*(Put(record("k", scope=scope, kind=kind)) for scope, kind in streams[start : start + 30]))

    async def listed(limit: int) -> list[tuple[ScopePath, str]]:
        asked = StreamScan(scope=ScopePath("u"), limit=limit)
        return [(s.scope, s.kind) async for s in all_streams(harness.store, asked)]

    for limit in (10, 500, 5000):
        assert harness.run(listed(limit)) == streams
    assert len(harness.keys(scope=ScopePath("u"), kinds=(), below=True, limit=77)) == len(streams)


def test_what_expires_is_no_change_of_the_version_that_a_writer_expects(harness: Harness) -> None:
    harness.put("short", expires=now() + timedelta(hours=1))
    harness.put("kept")
    before = harness.stream()
    with harness.clock_off_by(timedelta(hours=2)):
        seen = harness.stream()
        assert seen.version == before.version
        harness.write(Expect(SCOPE, KIND, before.version), Put(record("new")))
        assert harness.keys() == ["kept", "new"]
        with pytest.raises(ConflictError):
            harness.write(Expect(SCOPE, KIND, before.version), Put(record("newer")))


def test_a_stream_that_has_expired_is_at_the_version_that_it_had(harness: Harness) -> None:
    harness.write(Put(record("a")), Touch(SCOPE, KIND, timedelta(hours=1)))
    before = harness.stream()
    with harness.clock_off_by(timedelta(hours=2)):
        (seen,) = harness.streams(scope=SCOPE, empty=True)
        harness.write(Expect(SCOPE, KIND, seen.version), Put(record("b")))
        assert seen.version == before.version
        assert harness.keys() == ["b"]


# settings


def there(harness: Harness) -> Stream:
    (stream,) = harness.streams(scope=SCOPE, kinds=(KIND,), below=False, empty=True)
    return stream


def test_a_stream_keeps_its_settings_until_they_are_changed(harness: Harness) -> None:
    harness.put("a")
    assert there(harness).settings is None
    harness.write(Put(record("b")), Touch(SCOPE, KIND, timedelta(hours=1), "{}"))
    harness.put("c")
    harness.write(Purge(SCOPE, KIND))
    assert (there(harness).settings, there(harness).ttl) == ("{}", timedelta(hours=1))
    harness.write(Touch(SCOPE, KIND))
    assert (there(harness).settings, there(harness).ttl) == (None, None)


def test_an_append_by_one_who_knows_other_settings_is_refused(harness: Harness) -> None:
    for known in (None, "1"):
        for key in (f"{known}-a", f"{known}-b"):
            harness.write(Put(record(key), 0), Expect(SCOPE, KIND, settings=known))
        for other in {None, "1", ""} - {known}:
            with pytest.raises(SettingsChangedError) as caught:
                harness.write(Put(record("x"), 0), Expect(SCOPE, KIND, settings=other), Limit(SCOPE, KIND, 9, None))
            assert caught.value.settings == known
        harness.write(Touch(SCOPE, KIND, None, "1"))
    assert harness.keys() == ["None-a", "None-b", "1-a", "1-b"]


def test_settings_are_expected_and_changed_in_one_write(harness: Harness) -> None:
    change = (Expect(SCOPE, KIND, settings=None), Touch(SCOPE, KIND, None, "new"), Limit(SCOPE, KIND, 9, None))
    harness.write(Put(record("a"), 0), *change)
    with pytest.raises(SettingsChangedError) as caught:
        harness.write(Put(record("b"), 0), *change)
    assert caught.value.settings == "new"
    assert (harness.keys(), there(harness).settings) == (["a"], "new")


def test_a_stream_that_is_dropped_or_expired_has_none(harness: Harness) -> None:
    harness.write(Put(record("a")), Touch(SCOPE, KIND, None, "old"))
    harness.write(Purge(SCOPE, KIND, drop=True))
    harness.write(Put(record("b"), 0), Expect(SCOPE, KIND, settings=None))
    harness.write(Touch(SCOPE, KIND, timedelta(minutes=1), "old"))
    with harness.clock_off_by(timedelta(minutes=2)):
        harness.write(Put(record("c"), 0), Expect(SCOPE, KIND, settings=None))
        assert there(harness).settings is None


@needs(Capability.ATOMIC)
def test_another_handle_that_has_written_before_notices_a_change(harness: Harness) -> None:
    other = harness.open()
    harness.run(other.write(Write((Put(record("a"), 0), Expect(SCOPE, KIND, settings=None)))))
    harness.write(Touch(SCOPE, KIND, None, "new"))
    with pytest.raises(SettingsChangedError):
        harness.run(other.write(Write((Put(record("b"), 0), Expect(SCOPE, KIND, settings=None)))))
    harness.run(other.write(Write((Put(record("b"), 0), Expect(SCOPE, KIND, settings="new")))))
