"""Settings: a text of a stream that a write can check atomically."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ..errors import SettingsChangedError
from ..records import Stream
from ..store.protocol import Capability
from ..store.query import Expect, Limit, Purge, Put, Touch, Write
from .harness import HOME, KIND, Harness, record
from .targets import needs


def there(harness: Harness) -> Stream:
    (stream,) = harness.streams(scope=HOME, kinds=(KIND,), below=False, empty=True)
    return stream


def test_a_stream_keeps_its_settings_until_they_are_changed(harness: Harness) -> None:
    harness.put("a")
    assert there(harness).settings is None
    harness.write(Put(record("b")), Touch(HOME, KIND, timedelta(hours=1), "{}"))
    harness.put("c")
    harness.write(Purge(HOME, KIND))
    assert (there(harness).settings, there(harness).ttl) == ("{}", timedelta(hours=1))
    harness.write(Touch(HOME, KIND))
    assert (there(harness).settings, there(harness).ttl) == (None, None)


def test_an_append_by_one_who_knows_other_settings_is_refused(harness: Harness) -> None:
    for known in (None, "1"):
        for key in (f"{known}-a", f"{known}-b"):
            harness.write(Put(record(key), 0), Expect(HOME, KIND, settings=known))
        for other in {None, "1", ""} - {known}:
            with pytest.raises(SettingsChangedError) as caught:
                harness.write(Put(record("x"), 0), Expect(HOME, KIND, settings=other), Limit(HOME, KIND, 9, None))
            assert caught.value.settings == known
        harness.write(Touch(HOME, KIND, None, "1"))
    assert harness.keys() == ["None-a", "None-b", "1-a", "1-b"]


def test_settings_are_expected_and_changed_in_one_write(harness: Harness) -> None:
    change = (Expect(HOME, KIND, settings=None), Touch(HOME, KIND, None, "new"), Limit(HOME, KIND, 9, None))
    harness.write(Put(record("a"), 0), *change)
    with pytest.raises(SettingsChangedError) as caught:
        harness.write(Put(record("b"), 0), *change)
    assert caught.value.settings == "new"
    assert (harness.keys(), there(harness).settings) == (["a"], "new")


def test_a_stream_that_is_dropped_or_expired_has_none(harness: Harness) -> None:
    harness.write(Put(record("a")), Touch(HOME, KIND, None, "old"))
    harness.write(Purge(HOME, KIND, drop=True))
    harness.write(Put(record("b"), 0), Expect(HOME, KIND, settings=None))
    harness.write(Touch(HOME, KIND, timedelta(minutes=1), "old"))
    with harness.clock_off_by(timedelta(minutes=2)):
        harness.write(Put(record("c"), 0), Expect(HOME, KIND, settings=None))
        assert there(harness).settings is None


@needs(Capability.ATOMIC)
def test_another_handle_that_has_written_before_notices_a_change(harness: Harness) -> None:
    other = harness.open()
    harness.run(other.write(Write((Put(record("a"), 0), Expect(HOME, KIND, settings=None)))))
    harness.write(Touch(HOME, KIND, None, "new"))
    with pytest.raises(SettingsChangedError):
        harness.run(other.write(Write((Put(record("b"), 0), Expect(HOME, KIND, settings=None)))))
    harness.run(other.write(Write((Put(record("b"), 0), Expect(HOME, KIND, settings="new")))))
