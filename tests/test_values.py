"""Every public value has a short repr and a dict that JSON, pandas and web frameworks take."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import mnemic
import mnemic.agents
import mnemic.api
from mnemic import (
    AgentCall,
    AuditEntry,
    Copied,
    ImageInfo,
    Message,
    NoteSettings,
    Record,
    Ref,
    ScopePath,
    SessionSettings,
    ToolCall,
)

GIVEN = {"Audit", "Encryption", "LangChainIndex", "MasterKey", "Redaction", "Summarize", "Vault"}
"""What callers give and nobody is given back: they hold functions, keys and stores."""
LONG = "tea " * 5_000


def public_values() -> dict[str, type[Any]]:
    """Return the public classes of values, by name."""
    return {
        name: value
        for module in (mnemic.api, mnemic.agents)
        for name in module.__all__
        if inspect.isclass(value := getattr(module, name)) and issubclass(value, Struct) and name not in GIVEN
    }


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return one of every public value, most of them as the library returns them."""
    folder: Path = tmp_path_factory.mktemp("values")
    told = Message(
        "assistant",
        [{"type": "text", "text": LONG}],
        tool_calls=[ToolCall("c1", "look")],
        agent_calls=[AgentCall("other", {"n": 1})],
        metadata={"n": 1},
    )
    made: list[Any] = [told, told.tool_calls[0], told.agent_calls[0], ScopePath("acme"), ImageInfo(width=1)]
    made += [Record(ScopePath("acme"), "memory", "k", derived={"recall": b"\xff"}, created=datetime.now(UTC))]
    made += [Ref(ScopePath("acme"), "memory", "k"), Copied(1, 2, 3, "digest")]
    by = mnemic.agents.Provenance(agent="Ann")
    change = mnemic.agents.Change(kind="note", key="plan", before={"data": 1})
    made += [by, change, mnemic.agents.Budget()]
    made += [mnemic.agents.Act(id="1", what="write", at=datetime.now(UTC), by=by, changes=[change])]
    made += [mnemic.agents.Summary(text=LONG, first_seq=1, last_seq=2, messages=2)]
    with mnemic.open(f"sqlite:///{folder}/memory.db", audit=True) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday", max_messages=100, ttl=timedelta(days=1))
        chat.add(told)
        chat.add("user", f"green tea, please: {LONG}")
        item = alice.remember("Ann likes green tea", metadata={"tags": ["a"]}, source="chat")
        fact = alice.facts.add("ann", "likes", "tea", valid_from=datetime(2026, 1, 1, tzinfo=UTC))
        made += [item, fact, mnemic.agents.Extracted(facts=[item], links=[fact])]
        made += [
            alice.notes.write("plan", {"text": LONG}),
            alice.notes.get("plan"),
            alice.state.set("k", {"text": LONG}),
        ]
        made += [chat.settings(), alice.notes.configure(max_notes=3), *alice.sessions.list()]
        made += alice.recall("green tea", neighbors=1)
        made += [alice.context("green tea", session="monday", max_tokens=30_000), alice.stats()]
        made += [
            alice.facts.neighbors("ann"),
            alice.facts.graph(),
            memory.audit_page(),
            memory.metrics(),
            *memory.metrics().periods,
        ]
        made += [memory.audit_verify(), mnemic.AuditProblem(scope=ScopePath("acme"), message="is missing", number=3)]
        made += alice.memories.fading()
        made += [*memory.audit_trail(), alice.export_to(folder / "all.jsonl")]
        made += [
            alice.import_from(folder / "all.jsonl"),
            alice.forget(item),
            mnemic.Skipped("an empty file", 2, "a.md"),
        ]
    made += erasure_values(folder)
    return {type(value).__name__: value for value in made}


def erasure_values(folder: Path) -> list[Any]:
    """Return what holds, the history, scans, and the export and erasure of a subject return."""
    archive = f"sqlite:///{folder}/archive.db"
    started = datetime.now(UTC)
    made: list[Any] = [mnemic.Finding(6, 21, "EMAIL")]
    made += [mnemic.InterruptedErasure(id="1", started=started, records=2)]
    with mnemic.open(f"sqlite:///{folder}/subjects.db", history=True) as memory:
        alice, team = memory.scope("acme", "alice"), memory.scope("acme", "team")
        alice.session("monday").add("user", f"Write to ann@example.com: {LONG}")
        team.remember("Ann drinks tea", source="acme/alice/monday")
        item = alice.remember("Ann likes green tea", source="chat")
        alice.memories.update(item.id, text=f"Ann likes black tea: {LONG}")
        alice.forget(source="chat", archive=archive)
        made += alice.history(item)
        hold = alice.hold("a lawsuit", until=started + timedelta(days=1))
        made += [hold, alice.release(hold)]
        scanned = alice.scan()
        made += [scanned, *scanned.found, alice.subject_export(folder / "alice.zip")]
        done = alice.erase(archives=[archive])
        made += [done, *done.erased, *done.derived, *done.archives, *done.verified]
        made += memory.restricted("acme").scope("acme", "team").erase().unreached
    return made


def test_there_is_a_sample_of_every_public_value(samples: dict[str, Any]) -> None:
    assert sorted(samples) == sorted(public_values())


@pytest.mark.parametrize("name", sorted(public_values()))
def test_a_value_becomes_a_dict_that_json_takes(samples: dict[str, Any], name: str) -> None:
    value = samples[name]
    fields = value.to_dict()
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert fields


@pytest.mark.parametrize("name", sorted(public_values()))
def test_a_value_has_a_short_repr(samples: dict[str, Any], name: str) -> None:
    assert name in repr(samples[name])
    assert len(repr(samples[name])) < 1_200


def test_pandas_takes_what_to_dict_gives(samples: dict[str, Any]) -> None:
    import pandas

    frame = pandas.DataFrame([samples["Hit"].to_dict(), samples["Hit"].to_dict()])
    assert list(frame["text"]) == [samples["Hit"].text] * 2
    frame = pandas.DataFrame([samples["SessionInfo"].to_dict()])
    assert pandas.to_datetime(frame["started"])[0] == samples["SessionInfo"].started


@pytest.mark.parametrize("name", sorted(public_values()))
def test_fastapi_takes_what_to_dict_gives(samples: dict[str, Any], name: str) -> None:
    fields = samples[name].to_dict()
    assert pytest.importorskip("fastapi.encoders").jsonable_encoder(fields) == fields


def test_a_dict_holds_paths_times_and_durations_as_plain_values(samples: dict[str, Any]) -> None:
    info = samples["SessionInfo"].to_dict()
    assert info["scope"] == "acme/alice/monday"
    assert datetime.fromisoformat(info["started"]) == samples["SessionInfo"].started
    assert SessionSettings(ttl=timedelta(minutes=1)).to_dict()["ttl"] == 60.0
    assert NoteSettings().to_dict() == {"max_notes": None, "max_bytes": None}
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    entry = AuditEntry(time=moment, operation="put", scope=ScopePath("acme"), kind="memory")
    assert entry.to_dict()["time"] == "2026-01-02T00:00:00+00:00"
    assert repr(entry) == ("AuditEntry(time=2026-01-02 00:00:00+00:00, operation='put', scope='acme', kind='memory')")
    assert "derived" not in samples["Record"].to_dict()
    assert samples["Context"].to_dict()["messages"][0]["role"] in ("user", "assistant")


def test_handles_say_what_they_are_of() -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        assert repr(memory) == "<Memory at memory://>"
        assert repr(alice) == "<Scope 'acme/alice'>"
        assert repr(alice.session("monday")) == "<Session 'acme/alice/monday'>"
        parts = [alice.sessions, alice.notes, alice.memories, alice.facts, alice.state]
        assert [repr(part) for part in parts] == [
            f"<{name} of 'acme/alice'>" for name in ("Sessions", "Notes", "Memories", "Facts", "State")
        ]
        assert repr(alice._async) == "<AsyncScope 'acme/alice'>"
        assert repr(mnemic.agents.open_journal(alice)) == "<Journal of 'acme/alice'>"
        with mnemic.agents.open_learner(alice, name="night") as learner:
            assert repr(learner) == "<Learner 'night'>"
    assert repr(mnemic.agents.Runtime()) == "<Runtime of no agents>"
