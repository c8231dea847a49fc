"""What each of our own trials does by itself, pinned: one that loses a capability, or a test, fails.

A test says what it needs with `needs`. For a trial that is pinned, tests that need more than it has are not
collected, and no test may skip itself. For others, such tests are skipped.
"""

from __future__ import annotations

import pytest

from ..store.protocol import Capability

NEEDS = "needs"
"""The name of the mark that `needs` makes."""

_SERVER = frozenset({Capability.DURABLE, Capability.SHARED, Capability.ATOMIC})

PINNED: dict[str, frozenset[Capability]] = {
    "memory": frozenset({Capability.ATOMIC}),
    "sqlite": _SERVER,
    "postgresql": _SERVER | {Capability.NEAREST},
    "postgresql-plain": _SERVER,
    "redis7": _SERVER,
    "redis8": _SERVER | {Capability.NEAREST},
    "valkey": _SERVER,
    "valkey-cluster": _SERVER,
    "dynamodb": _SERVER,
    "dynamodb-hash": _SERVER,
    "dynamodb-moto": _SERVER,
    "s3": _SERVER,
    "s3-moto": _SERVER,
    "agentcore": frozenset({Capability.DURABLE, Capability.SHARED}),
}
"""By the name of a trial, what its store says that it can do."""


def needs(*capabilities: Capability, loop: bool = False) -> pytest.MarkDecorator:
    """Mark a test that needs a store with these capabilities, or writers at the same time on one `loop`."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, NEEDS)
    return mark(*capabilities, loop=loop)


def lacking(definition: pytest.Item | pytest.Function, bench: str, has: frozenset[Capability] | None) -> str:
    """Return what a test needs that a bench, whose store `has` these, lacks; empty if there is nothing."""
    for mark in definition.iter_markers(NEEDS):
        if mark.kwargs["loop"] and not bench.endswith("-loop"):
            return "writers that are under way at the same time"
        for capability in mark.args:
            if has is not None and capability not in has:
                return f"a store that is {capability.value}"
    return ""


def pinned(bench: str) -> frozenset[Capability] | None:
    """Return what the store of a bench must be able to do; None if that is not for us to say."""
    return PINNED.get(bench.rpartition("-")[0])
