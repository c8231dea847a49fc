"""Gives the contract suite the stores of this repository, and stores under layers."""

import pytest

import layered
import waiting
from attack import ROUNDS
from mnemic.testing import Target
from servers.stores import INDEXES, STORES

layered.register()
waiting.register()


@pytest.hookimpl(optionalhook=True)
def pytest_mnemic_stores() -> list[Target]:
    """Return the stores to test."""
    return [*STORES.values(), *layered.targets()]


READS = ("test_order.py", "test_scans.py", "test_streams.py")
"""Modules that ask for what is stored; the second emulator of a service is there for conditional writes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a store cannot do by its nature, and what would test an emulator."""
    items[:] = [
        item
        for item in items
        if not ("longest_scope_path" in item.name and "confined+" in item.name)
        and not ("-moto-" in item.name and item.path.name in READS)
        and not (ROUNDS == 1 and item.get_closest_marker("soak"))
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_mnemic_indexes() -> list[Target]:
    """Return the companion indexes to test."""
    return list(INDEXES.values())
