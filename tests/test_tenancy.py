"""Tenants with hostile names on every back-end: none sees, touches or notices another, by any call."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import mnemic
from attack import ROUNDS
from layered import KEY
from servers.stores import empty_store
from tenancy import Stage
from tenancy_machine import Tenants

CALLS = {
    "memory": 400, "sqlite": 400, "encrypted": 400, "audited": 400, "postgresql": 300,
    "postgresql-confined": 300, "valkey": 300, "valkey-cluster": 300, "dynamodb": 300, "s3": 300, "http": 300,
    "agentcore": 100,
}  # fmt: skip
"""How many calls the tenants make on each back-end at least."""
LAYERS: dict[str, dict[str, Any]] = {
    "encrypted": {"encryption_key": KEY},
    "audited": {"audit": True, "history": timedelta(days=9)},
}
BELOW = {"encrypted": "sqlite", "audited": "memory"}
STEPS = 15


@pytest.mark.parametrize("name", CALLS)
def test_tenants_do_not_notice_one_another(name: str, tmp_path: Path) -> None:
    stage, least = Stage(all_kinds=name != "agentcore", layers=LAYERS.get(name, {})), CALLS[name] * ROUNDS
    stage.own_order = name == "s3"
    with empty_store(BELOW.get(name, name), tmp_path) as url, mnemic.open(url, **stage.options) as stage.memory:
        run_state_machine_as_test(
            partial(Tenants, stage),  # type: ignore[arg-type]
            settings=settings(
                max_examples=2 + least // STEPS // 3,
                stateful_step_count=STEPS,
                derandomize=ROUNDS == 1,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert stage.calls >= least
