"""All test configurations of all installed back-ends, by name: `sqlite-inline`, `postgresql-plain-loop`."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..errors import MissingExtraError
from ..store import registry
from ..store.registry import Backend, Trial
from .lab import Lab

ALL = "MNEMIC_TEST_ALL"
"""If this variable is set, a configuration whose package is missing fails instead of being skipped."""


def benches() -> list[str]:
    """Return the configurations of the installed back-ends, each inline and on an event loop where possible."""
    backends = _installed()
    return [
        f"{name}-{drive}"
        for name, trial in _trials().items()
        for drive in (("inline", "loop") if backends[trial.scheme].inline else ("loop",))
    ]


@contextmanager
def lend(bench: str, folder: Path) -> Iterator[Lab]:
    """Provide an empty store and a runner of its coroutines; skips the test if its server is not installed."""
    name, _, drive = bench.rpartition("-")
    trial = _trials()[name]
    with ExitStack() as stack:
        try:
            url = stack.enter_context(trial.open(folder))
        except MissingExtraError as error:
            if ALL in os.environ:
                raise
            pytest.skip(str(error))
        yield stack.enter_context(Lab(url, on_loop=drive == "loop"))


@functools.cache
def _installed() -> dict[str, Backend]:
    """Return the back-ends whose dependencies are installed, by scheme."""
    found = {}
    for scheme in registry.schemes():
        try:
            found[scheme] = registry.find(f"{scheme}://")[1]
        except MissingExtraError:
            if ALL in os.environ:
                raise
    return found


@functools.cache
def _trials() -> dict[str, Trial]:
    """Return the back-ends' own trials and the additional ones for installed schemes, by name."""
    backends = _installed()
    own = {scheme: Trial(scheme, backend.trial) for scheme, backend in backends.items() if backend.trial}
    return own | {name: trial for name, trial in registry.trials().items() if trial.scheme in backends}
