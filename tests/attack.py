"""How long the attacks of the tests go on, and with which seeds: `make soak` tries more than every run does."""

from __future__ import annotations

import os

import pytest

ROUNDS = int(os.environ.get("MNEMIC_ATTACK_ROUNDS", "1"))
"""How many times as much is tried as in every run of the tests."""
soak_only = pytest.mark.soak
"""Marks tests that compare times, which depend on what else runs: they are part of `make soak` alone."""
FIRST_SEED = int(os.environ.get("MNEMIC_ATTACK_SEED", "0"))
"""The first seed: a failure names its own, with which it is tried again."""


def seeds(count: int = 1) -> list[int]:
    """Return the seeds of a test that has so many of them in every run."""
    return list(range(FIRST_SEED, FIRST_SEED + count * ROUNDS))
