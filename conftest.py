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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the test of the longest scope for stores that put every scope below another one."""
    items[:] = [item for item in items if not ("longest_scope_path" in item.name and "confined+" in item.name)]


@pytest.hookimpl(optionalhook=True)
def pytest_mnemic_indexes() -> list[Target]:
    """Return the companion indexes to test."""
    return list(INDEXES.values())
