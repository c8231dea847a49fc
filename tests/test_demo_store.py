"""The store that tests of pages and pictures share: the same clock gives the same content."""

from __future__ import annotations

from pathlib import Path

import demo_store
import mnemic


def exported(folder: Path) -> tuple[mnemic.Stats, list[str]]:
    folder.mkdir()
    url = f"sqlite:///{folder / 'demo.db'}?synchronous=normal"
    demo_store.build(url, hostile=True)
    with mnemic.open(url, clock=demo_store.DemoClock(), audit=True) as memory:
        memory.export_to(folder / "demo.jsonl")
        assert len(memory.audit_trail()) > 500
        return memory.stats(), (folder / "demo.jsonl").read_text().splitlines()


def test_demo_is_the_same_each_time_and_has_every_kind(tmp_path: Path) -> None:
    stats, lines = exported(tmp_path / "first")
    assert stats == exported(tmp_path / "second")[0]
    assert stats.sessions == 45
    for kind in ("messages", "archived", "summaries", "memories", "notes", "facts"):
        assert getattr(stats, kind) > 4, kind
    assert any('"kind":"title"' in line for line in lines)
    assert any("tool_calls" in line for line in lines)


def test_bulk_adds_about_so_many_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bulk.db'}?synchronous=normal"
    demo_store.build(url, records=2_000, audit=False)
    with mnemic.open(url) as memory:
        assert memory.scope("bulk").stats().items == 2_000
