"""Export and import as JSON lines: nothing lost, nothing half done."""

from __future__ import annotations

import io
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import mnemic
from mnemic.recall.index_entry import USE
from mnemic.records import EMBEDDER_KIND, Record, ScopePath, digest
from mnemic.store.protocol import all_streams, scan_all
from mnemic.store.query import Delete, Derive, Op, Put, Scan, StreamScan, Touch, Write

MAY = datetime(2026, 5, 1, tzinfo=UTC)


def filled(url: str = "memory://") -> mnemic.Memory:
    memory = mnemic.open(url)
    alice = memory.scope("acme", "alice")
    chat = alice.session("monday", ttl=timedelta(days=9))
    chat.set_system("Be brief.")
    chat.add_many(
        [
            mnemic.Message("user", "Where is it?", metadata={"channel": "mail", "n": [1, None, 2.5]}),
            mnemic.Message("assistant", tool_calls=[mnemic.ToolCall("c1", "look", '{"a": 1}')]),
            mnemic.Message("tool", "here", tool_call_id="c1"),
            mnemic.Message("assistant", [{"type": "text", "text": "Here."}]),
        ]
    )
    alice.remember("Alice likes tea", importance=2, source="monday", metadata={"topic": "tea"}, created=MAY)
    alice.notes.configure(max_notes=9)
    alice.notes.write("plan", {"steps": ["a", "b"]}, description="What to do")
    alice.facts.add("Alice", "works_at", "Initech", single=True, valid_from=MAY)
    alice.facts.add("Alice", "works_at", "Globex", single=True)
    memory.scope("acme", "bob").remember("Bob likes coffee")
    return memory


def contents(memory: mnemic.Memory, scope: str = "") -> list[tuple[str, str, bytes, object]]:
    async def read() -> list[tuple[str, str, bytes, object]]:
        found = scan_all(memory._async._store, Scan(scope=ScopePath(scope), below=True, derived=(USE,)))
        return [
            (record.scope.path, record.kind, digest(record), (record.updated, record.derived.get(USE)))
            async for record in found
            if record.kind != EMBEDDER_KIND
        ]

    return sorted(memory._driver.run(read()))


def streams(memory: mnemic.Memory) -> list[tuple[object, ...]]:
    async def read() -> list[tuple[object, ...]]:
        return [
            (s.scope.path, s.kind, s.count, s.weight, s.created, s.updated, s.ttl, s.settings)
            async for s in all_streams(memory._async._store, StreamScan(scope=ScopePath(), empty=True))
            if s.kind != EMBEDDER_KIND and (s.count or s.settings is not None)
        ]

    return memory._driver.run(read())


def test_a_round_trip_loses_nothing(tmp_path: Path) -> None:
    source, target = filled(), mnemic.open(f"sqlite:///{tmp_path}/target.db")
    exported = source.export_to(tmp_path / "all.jsonl")
    imported = target.import_from(tmp_path / "all.jsonl")
    assert imported.records == imported.written == exported.records == len(contents(source))
    assert contents(target) == contents(source)
    assert streams(target) == streams(source)
    alice, there = source.scope("acme", "alice"), target.scope("acme", "alice")
    assert there.session("monday").messages() == alice.session("monday").messages()
    assert there.notes.settings() == alice.notes.settings()
    assert there.facts.ask(history=True) == alice.facts.ask(history=True)
    assert there.recall("what does Alice like?")[0].record.text == "Alice likes tea"


def test_progress_tells_how_many_of_how_many_are_done(tmp_path: Path) -> None:
    source, told = filled(), list[tuple[int, int]]()
    exported = source.export_to(tmp_path / "all.jsonl", progress=lambda *at: told.append(at))
    assert told[0] == (0, exported.records)
    assert told[-1] == (exported.records, exported.records)
    assert told == sorted(told)
    told.clear()
    mnemic.open("memory://").import_from(tmp_path / "all.jsonl", progress=lambda *at: told.append(at))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]  # it is read twice: to check it, and to write it


def test_an_import_can_be_sent_again_and_changes_nothing(tmp_path: Path) -> None:
    source = filled()
    source.export_to(tmp_path / "all.jsonl")
    assert source.import_from(tmp_path / "all.jsonl").written == 0


def test_a_scope_is_exported_alone_and_imported_elsewhere(tmp_path: Path) -> None:
    source, target = filled(), mnemic.open("memory://")
    source.scope("acme", "alice").export_to(tmp_path / "alice.jsonl")
    eve = target.scope("globex", "eve")
    eve.import_from(tmp_path / "alice.jsonl")
    assert [info.name for info in eve.sessions.list()] == ["monday"]
    assert [stats.scope.path for stats in target.scopes()] == ["globex/eve"]
    assert eve.notes.read("plan") == {"steps": ["a", "b"]}


def test_another_content_is_a_conflict_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    source = filled()
    source.export_to(tmp_path / "all.jsonl")
    alice = source.scope("acme", "alice")
    alice.notes.write("plan", "another")
    with pytest.raises(mnemic.ConflictError, match="'plan' of scope 'acme/alice' exists with different content"):
        source.import_from(tmp_path / "all.jsonl")
    assert alice.notes.read("plan") == "another"
    assert source.import_from(tmp_path / "all.jsonl", overwrite=True).written == 1
    assert alice.notes.read("plan") == {"steps": ["a", "b"]}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lines: lines[:-1], "the count, is missing"),
        (lambda lines: [*lines[:3], *lines[4:]], "records were exported"),
        (lambda lines: [*lines, lines[3]], "here it goes on"),
        (lambda lines: lines[1:], "format of bad.jsonl is not known"),
        (lambda lines: [lines[0].replace("export/1", "export/9"), *lines[1:]], "format is 'mnemic.export/9'"),
        (lambda lines: [*lines[:2], "[" * 100_000, *lines[2:]], "line 3 "),
        (lambda lines: [*lines[:2], '{"scope":"../x","kind":"K!","key":"a"}', *lines[2:]], "line 3"),
        (lambda lines: [*lines[:2], '{"scope":"a","kind":"note","key":"a","weight":-1}', *lines[2:]], "line 3"),
        (lambda lines: [*lines[:2], '{"scope":"a","kind":"note","key":"a","more":1}', *lines[2:]], "line 3"),
        (lambda lines: [*lines[:2], "\udcff", *lines[2:]], "line 3"),
    ],
)
def test_a_file_that_is_not_a_whole_export_is_refused_and_nothing_is_imported(
    tmp_path: Path, spoil: Any, said: str
) -> None:
    filled().export_to(tmp_path / "all.jsonl")
    lines = spoil((tmp_path / "all.jsonl").read_text().splitlines())
    (tmp_path / "bad.jsonl").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    target = mnemic.open("memory://")
    with pytest.raises(mnemic.InvalidValueError, match=said):
        target.import_from(tmp_path / "bad.jsonl")
    assert target.scopes() == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"kind":"message"', "its data must be an object: None"),
        ('"kind":"message","data":[1,2]', "must be an object"),
        ('"kind":"archived","data":"str"', "must be an object: 'str'"),
        ('"kind":"message","data":{"role":"robot"}', "role must be one of"),
        ('"kind":"message","data":{"role":"user","tool_calls":[[]]}', "Missing required argument"),
        ('"kind":"fact","text":"a b c"', "subject"),
        ('"kind":"fact","labels":{"subject":"a","predicate":"b","object":"c"},"data":{"confidence":7}', "from 0 to 1"),
        ('"kind":"memory","text":"x","importance":-1e308', "importance must be at least 0"),
        ('"kind":"memory"', "text must be a string"),
        ('"kind":"summary"', "text must be a string"),
        ('"kind":"title"', "title must be a string"),
        ('"kind":"pruned","data":{"created":"soon"}', "created"),
        ('"kind":"memory-history","data":{}', "memory"),
        ('"kind":"journal"', "must have data"),
    ],
)
def test_a_record_that_does_not_hold_what_its_kind_says_is_refused(line: str, said: str) -> None:
    buffer = io.BytesIO()
    filled().export_to(buffer)
    lines = buffer.getvalue().decode().splitlines()
    lines = [*lines[:-1], f'{{"scope":"a","key":"k",{line}}}', f'{{"records":{json.loads(lines[-1])["records"] + 1}}}']
    target = mnemic.open("memory://")
    with pytest.raises(mnemic.InvalidValueError, match=f"line {len(lines) - 1}: .*{said}"):
        target.import_from(io.BytesIO("\n".join(lines).encode()))
    assert target.scopes() == []


def test_settings_that_cannot_be_read_are_refused() -> None:
    for kind in ("message", "note"):
        lines = [
            '{"format":"mnemic.export/1","scope":"","exported":"2026-01-01T00:00:00Z"}',
            f'{{"scope":"a","kind":"{kind}","settings":"[]"}}',
            '{"records":0}',
        ]
        with pytest.raises(mnemic.InvalidValueError, match=r"line 2: .*settings that cannot be read"):
            mnemic.open("memory://").import_from(io.BytesIO("\n".join(lines).encode()))


def test_files_that_are_not_there_and_pipes() -> None:
    memory = filled()
    with pytest.raises(mnemic.NotFoundError):
        memory.import_from("nowhere.jsonl")
    buffer = io.BytesIO()
    memory.export_to(buffer)
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(buffer.getvalue())

    feeder = threading.Thread(target=feed)
    feeder.start()
    target = mnemic.open("memory://")
    with os.fdopen(reading, "rb") as pipe:
        assert target.import_from(pipe).written == len(contents(memory))
    feeder.join()


def test_each_line_is_json_that_others_can_read(tmp_path: Path) -> None:
    filled().export_to(tmp_path / "all.jsonl")
    header, *lines, end = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert header["format"] == "mnemic.export/1"
    assert end == {"records": len([line for line in lines if "key" in line])}
    assert {"scope", "kind", "key", "text"} <= next(
        one for one in lines if one["kind"] == "memory" and "key" in one
    ).keys()


TIMES = st.integers(1, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.builds(
    Record,
    scope=st.sampled_from([ScopePath("a"), ScopePath("a/b"), ScopePath("c")]),
    kind=st.sampled_from(["memory", "note", "message", "other"]),
    key=st.text("abcdé/ .", min_size=1, max_size=5).filter(lambda key: key == key.strip()),
    text=st.none() | TEXTS,
    title=st.none() | TEXTS,
    data=JSONS,
    meta=st.dictionaries(st.text("abc", min_size=1, max_size=3), JSONS, max_size=2),
    labels=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.text("xyz", min_size=1, max_size=3), max_size=2),
    importance=st.none() | st.floats(0, 10),
    weight=st.integers(0, 1000),
    pinned=st.booleans(),
    created=TIMES,
    expires=st.none() | TIMES.map(lambda time: time + timedelta(days=100_000)),
    valid_from=st.none() | TIMES,
    valid_to=st.none() | TIMES,
).map(
    lambda record: (
        replace(record, text=record.text or "", data={"role": "user"})
        if record.kind == "message"
        else replace(record, text=record.text or "")
    )
)


STREAMS = {"scope": RECORDS.map(lambda record: record.scope), "kind": RECORDS.map(lambda record: record.kind)}
OPERATIONS = st.lists(
    st.builds(Put, RECORDS, updated=st.none() | TIMES)
    | st.builds(
        Touch,
        ttl=st.none() | st.integers(1, 1000).map(lambda days: timedelta(days=days)),
        settings=st.sampled_from([None, '{"keep":0.5}', "{}"]),
        created=st.none() | TIMES,
        updated=st.none() | TIMES,
        **STREAMS,
    )
    | st.builds(lambda record, uses: Derive(record.ref, USE, uses), RECORDS, st.binary(min_size=1, max_size=20))
    | st.builds(lambda record: Delete(record.ref), RECORDS),
    max_size=10,
)


FUTURE = datetime(2500, 1, 1, tzinfo=UTC)
NOTE = Record(ScopePath("a"), "note", "a")


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@example([Put(NOTE, updated=FUTURE), Put(NOTE)])
@given(OPERATIONS)
def test_whatever_a_store_can_hold_comes_back(operations: list[Op]) -> None:
    source, target = mnemic.open("memory://", embedder=None), mnemic.open("memory://", embedder=None)
    for operation in operations:
        source._driver.run(source._async._store.write(Write((operation,), lazy=True)))
    buffer = io.BytesIO()
    source.export_to(buffer)
    for written in (True, False):  # the second time it is all there
        buffer.seek(0)
        assert bool(target.import_from(buffer).written) is (written and bool(contents(source)))
        assert contents(target) == contents(source)
        assert streams(target) == streams(source)
