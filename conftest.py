"""Gives the contract suite the stores of this repository, and stores under layers."""

import pytest

import layered
import waiting
from mnemic.testing import Target
from servers.stores import INDEXES, STORES

layered.register()
waiting.register()


@pytest.hookimpl(optionalhook=True)
def pytest_mnemic_stores() -> list[Target]:
    """Return the stores to test."""
    return [*STORES.values(), *layered.targets()]


@pytest.hookimpl(optionalhook=True)
def pytest_mnemic_indexes() -> list[Target]:
    """Return the companion indexes to test."""
    return list(INDEXES.values())
