"""Settings: a text of a stream that a write can check atomically."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from ..errors import SettingsChangedError
from ..records import Stream
from ..store.protocol import Capability
from ..store.query import Expect, Limit, Purge, Put, Touch, Write
from .capabilities import needs
from .lab import HOME, KIND, Lab, record


def there(lab: Lab) -> Stream:
    (stream,) = lab.streams(scope=HOME, kinds=(KIND,), below=False, empty=True)
    return stream


def test_a_stream_keeps_its_settings_until_they_are_changed(lab: Lab) -> None:
    lab.put("a")
    assert there(lab).settings is None
    lab.write(Put(record("b")), Touch(HOME, KIND, timedelta(hours=1), "{}"))
    lab.put("c")
    lab.write(Purge(HOME, KIND))
    assert (there(lab).settings, there(lab).ttl) == ("{}", timedelta(hours=1))
    lab.write(Touch(HOME, KIND))
    assert (there(lab).settings, there(lab).ttl) == (None, None)


def test_an_append_by_one_who_knows_other_settings_is_refused(lab: Lab) -> None:
    for known in (None, "1"):
        for key in (f"{known}-a", f"{known}-b"):
            lab.write(Put(record(key), 0), Expect(HOME, KIND, settings=known))
        for other in {None, "1", ""} - {known}:
            with pytest.raises(SettingsChangedError) as caught:
                lab.write(Put(record("x"), 0), Expect(HOME, KIND, settings=other), Limit(HOME, KIND, 9, None))
            assert caught.value.settings == known
        lab.write(Touch(HOME, KIND, None, "1"))
    assert lab.keys() == ["None-a", "None-b", "1-a", "1-b"]


def test_settings_are_expected_and_changed_in_one_write(lab: Lab) -> None:
    change = (Expect(HOME, KIND, settings=None), Touch(HOME, KIND, None, "new"), Limit(HOME, KIND, 9, None))
    lab.write(Put(record("a"), 0), *change)
    with pytest.raises(SettingsChangedError) as caught:
        lab.write(Put(record("b"), 0), *change)
    assert caught.value.settings == "new"
    assert (lab.keys(), there(lab).settings) == (["a"], "new")


def test_a_stream_that_is_dropped_or_expired_has_none(lab: Lab) -> None:
    lab.write(Put(record("a")), Touch(HOME, KIND, None, "old"))
    lab.write(Purge(HOME, KIND, drop=True))
    lab.write(Put(record("b"), 0), Expect(HOME, KIND, settings=None))
    lab.write(Touch(HOME, KIND, timedelta(seconds=0.3), "old"))
    time.sleep(0.4)
    lab.write(Put(record("c"), 0), Expect(HOME, KIND, settings=None))
    assert there(lab).settings is None


@needs(Capability.ATOMIC)
def test_another_handle_that_has_written_before_notices_a_change(lab: Lab) -> None:
    other = lab.open()
    lab.run(other.write(Write((Put(record("a"), 0), Expect(HOME, KIND, settings=None)))))
    lab.write(Touch(HOME, KIND, None, "new"))
    with pytest.raises(SettingsChangedError):
        lab.run(other.write(Write((Put(record("b"), 0), Expect(HOME, KIND, settings=None)))))
    lab.run(other.write(Write((Put(record("b"), 0), Expect(HOME, KIND, settings="new")))))
