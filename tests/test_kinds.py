"""The kinds of records: every kind that is stored is in the table, and internal ones are treated as such."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mnemic
from mnemic import kinds
from mnemic.event_loop import step
from mnemic.kinds import KINDS, NOT_WRITTEN
from mnemic.layers import hold
from mnemic.layers.restricted import UNWRITTEN
from mnemic.records import Record, ScopePath
from mnemic.store.query import Put, Write
from test_redaction import CONFIGS, EMAIL, fill

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def test_every_kind_is_in_the_table() -> None:
    named = {value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)}
    assert named == set(KINDS)


def test_every_kind_that_is_stored_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "FRESH", 0.0)
    url, key = f"sqlite:///{tmp_path}/m.db", bytes(range(32))
    with mnemic.open(url, encryption_key=key, audit=True, history=True, redact=CONFIGS["vault"]) as memory:
        fill(memory.scope("acme"), tmp_path)
        memory.scope("acme").hold("case 4711")
    database = sqlite3.connect(tmp_path / "m.db")
    stored = {kind for (kind,) in database.execute("SELECT DISTINCT kind FROM mnemic_streams")}
    database.close()
    assert stored <= set(KINDS)
    assert stored >= UNWRITTEN - {kinds.API_KEY_KIND}


def test_internal_records_are_neither_redacted_nor_forgotten() -> None:
    with mnemic.open("memory://", redact=True) as memory:
        scope, store = ScopePath("acme"), memory._async._backend
        records = [Record(scope, kind, "k", data={"mail": EMAIL}, created=NOW) for kind in (*NOT_WRITTEN, "note")]
        step(memory._async._store.write(Write(tuple(map(Put, records)))))
        memory.scope("acme").forget(since=NOW - timedelta(days=1))
        left = [one for one in step(store.read([record.ref for record in records])) if one is not None]
        assert {one.kind for one in left} == NOT_WRITTEN
        assert all(one.data == {"mail": EMAIL} for one in left)


def test_what_only_layers_write_is_neither_written_by_users_nor_exported() -> None:
    assert UNWRITTEN <= NOT_WRITTEN
    assert {name for name in UNWRITTEN if KINDS[name].exported} == {kinds.VAULT}
