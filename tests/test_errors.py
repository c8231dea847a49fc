"""Errors say whether to retry and whether the change may have been made, also after they were sent or pickled."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mnemic import errors
from mnemic.backends.http.problems import error_of
from mnemic.errors import ClosedError, MnemicError, StoreBusyError, StoreError, StoreUnavailableError
from mnemic.server.problems import problem_of

CLASSES: list[type[MnemicError]] = [getattr(errors, name) for name in errors.__all__]
FIELDS: dict[type[MnemicError], dict[str, Any]] = {
    errors.LimitError: {"count": 1, "weight": 2},
    errors.SettingsChangedError: {"settings": None},
}


def made(kind: type[MnemicError], *, retry: bool, unsure: bool) -> MnemicError:
    error = kind("why", **FIELDS.get(kind, {}))
    error.retry, error.unsure = retry, unsure
    return error


def test_what_is_busy_or_lost_can_be_retried_and_only_what_is_lost_is_unsure() -> None:
    told = {kind: (kind.retry, kind.unsure) for kind in CLASSES if kind.retry or kind.unsure}
    assert told == {StoreBusyError: (True, False), StoreUnavailableError: (True, True)}
    assert StoreError("why", retry=True).retry
    assert not StoreUnavailableError("why", unsure=False).unsure
    assert ClosedError("why", unsure=True).unsure


@pytest.mark.parametrize("told", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_and_a_server(kind: type[MnemicError], told: tuple[bool, bool]) -> None:
    error = made(kind, retry=told[0], unsure=told[1])
    again = pickle.loads(pickle.dumps(error)) if kind not in FIELDS else error
    assert (type(again), again.retry, again.unsure) == (kind, *told)
    response = problem_of(error)
    sent = error_of("http://host", response.status_code, None, bytes(response.body))
    assert sent.retry == (told[0] or response.status_code == 503)
    assert sent.unsure == told[1]
