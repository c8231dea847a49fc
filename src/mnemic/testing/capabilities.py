"""Pinned capabilities of the built-in back-ends: losing one, or skipping a test, is a failure.

A test declares its requirements with `needs`. For a pinned configuration, tests that need more are not collected,
and no test may skip itself. For others, such tests are skipped.
"""

from __future__ import annotations

import pytest

from ..store.protocol import Capability

NEEDS = "needs"
"""Name of the marker that `needs` creates."""

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
"""Capabilities by configuration name."""


def needs(*capabilities: Capability, loop: bool = False) -> pytest.MarkDecorator:
    """Mark a test that needs these capabilities, or concurrent writers on one event `loop`."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, NEEDS)
    return mark(*capabilities, loop=loop)


def lacking(definition: pytest.Item | pytest.Function, bench: str, has: frozenset[Capability] | None) -> str:
    """Return which requirements of a test a configuration with these capabilities lacks; empty if none."""
    for mark in definition.iter_markers(NEEDS):
        if mark.kwargs["loop"] and not bench.endswith("-loop"):
            return "writers that are under way at the same time"
        for capability in mark.args:
            if has is not None and capability not in has:
                return f"a store that is {capability.value}"
    return ""


def pinned(bench: str) -> frozenset[Capability] | None:
    """Return the pinned capabilities of a configuration; None for a third-party back-end."""
    return PINNED.get(bench.rpartition("-")[0])
