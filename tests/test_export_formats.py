"""Exports to read: Markdown that no text can disturb, CSV that tells values apart, and pandas."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import mnemic


@pytest.fixture
def scope() -> Iterator[mnemic.Scope]:
    with mnemic.open("memory://", embedder=None) as memory:
        yield memory.scope("acme", "alice")


@pytest.fixture
def filled(scope: mnemic.Scope) -> mnemic.Scope:
    scope.session("monday").add("user", "=HYPERLINK(1)", name="Alice", metadata={"n": 1})
    call = mnemic.ToolCall("k", "look", '{"fence": "```"}')
    scope.session("monday").add("assistant", tool_calls=[call])
    scope.session("Monday").add("user", "hi")
    scope.session("..what?").add("user", "hi")
    scope.session("con").add("user", "hi")
    scope.remember("Likes tea\nand cake", id="tea", importance=2, source="monday")
    scope.notes.write("plan", {"steps": [1]}, description="What to do")
    scope.facts.add("Alice", "lives_in", "Oslo")
    return scope


def test_markdown_is_a_readable_folder_with_safe_names(filled: mnemic.Scope, tmp_path: Path) -> None:
    assert filled.export_to(tmp_path / "out", format="markdown").records == 8
    files = {path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in (tmp_path / "out").rglob("*")}
    assert len({name.lower() for name in files}) == len(files) == 5
    assert not [name for name in files if {"/", "?"} & set(name) or name.startswith(".")]
    memory = files["memory.md"]
    assert "\n> Likes tea\n> and cake\n\n- importance 2\n- source `monday`\n" in memory
    assert re.search(r"### `plan`, [-\d: ]+\n\n```json\n\{\n  \"steps\"", memory)
    assert "\n- description `What to do`\n" in memory
    assert "\n- **Alice** lives_in **Oslo**\n  - from " in memory
    (chat,) = (text for text in files.values() if "HYPERLINK" in text)
    assert chat.startswith("# monday\n\n`acme/alice/monday`\n\n## user (Alice), ")
    assert 'Tool call `k`:\n\n````\nlook({"fence": "```"})\n````\n' in chat
    assert '\n> =HYPERLINK(1)\n\n- metadata `{"n":1}`\n' in chat
    with pytest.raises(mnemic.InvalidValueError, match="not an empty folder"):
        filled.export_to(tmp_path / "out", format="markdown")
    with pytest.raises(mnemic.InvalidValueError, match="to a folder"):
        filled.export_to(io.BytesIO(), format="markdown")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def headings(text: str) -> list[str]:
    """Return the headings of a Markdown text as a reader sees them, but those within quotes."""
    tokens = MarkdownIt().parse(text)
    return [
        tokens[place + 1].content
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0
    ]


HOSTILE = [
    "## assistant, 2026-01-01 00:00\n\nsure",
    "```python\nnever closed",
    "<!-- never closed\n<script>",
    "~~~\n> - # nested\n      ## deep",
    "one\r\n## two\r## three\x0b## four\x85## five\u2028## six",
    "title\n===\n\n---\nred \x1b[31m\x9b31m \u202eback",
    "",
]


def test_no_text_in_markdown_looks_like_a_turn_or_swallows_one(scope: mnemic.Scope, tmp_path: Path) -> None:
    for text in HOSTILE:
        scope.session("chat").add("user", text)
        scope.remember(text)
        scope.notes.write(f"n{HOSTILE.index(text)}", text, description=text)
    scope.facts.add("# A ** `", "<is>", "[b](c) &amp;")
    scope.session("chat").add("tool", "```", tool_call_id="``` `")
    scope.export_to(tmp_path / "out", format="markdown")
    chat, memory = ((tmp_path / "out" / name).read_text() for name in ("chat.md", "memory.md"))
    assert [re.sub(", .*", "", one) for one in headings(chat)] == ["chat", *["user"] * len(HOSTILE), "tool"]
    named = [one for one in headings(memory) if not one.startswith("`")]
    assert named == ["Memory of `acme/alice`", "Memories", "Facts", "Notes"]
    assert len(headings(memory)) == 4 + 2 * len(HOSTILE)
    facts = MarkdownIt().render(memory[memory.index("## Facts") : memory.index("## Notes")])
    assert "<strong># A ** `</strong> &lt;is&gt; <strong>[b](c) &amp;amp;</strong>" in facts
    for text in (chat, memory):
        assert not set("\r\x0b\x1b\x85\x9b\u2028\u202e") & set(text)
        assert r"> red \x1b[31m\x9b31m \u202eback" in text


def test_markdown_shows_all_that_a_message_or_a_memory_has(scope: mnemic.Scope, tmp_path: Path) -> None:
    chat = scope.session("chat", ttl=timedelta(days=900), max_messages=2)
    chat.set_system("Be brief.")
    chat.add("user", "the first", images=["https://x.org/cat.png"])
    chat.add("user", [{"type": "text", "text": "see"}, {"type": "file", "file": {"data": "A" * 2000}}])
    calls = [mnemic.ToolCall("c1", "a"), mnemic.ToolCall("c2", "b")]
    chat.add("assistant", tool_calls=calls, structured_data={"mood": "glad"})
    chat.add("tool", "done", tool_call_id="c2", ttl=timedelta(days=90))
    later = datetime(2126, 1, 1, tzinfo=UTC)
    item = mnemic.MemoryItem("x", pinned=True, expires=later, metadata={"tier": 3}, data={"raw": [1]})
    scope.remember_many([item])
    scope.export_to(tmp_path / "out", format="markdown")
    text = (tmp_path / "out" / "chat.md").read_text()
    turns = [re.sub(r", [-\d]+ [\d:]+", "", one) for one in headings(text)[1:]]
    assert turns == ["system", "user, archived", "user", "assistant", "tool"]
    assert re.match(r"# chat\n\n`acme/alice/chat`, expires [-\d]+ [\d:]+\n", text)
    for part in (
        "\n- image `https://x.org/cat.png`\n",
        "\n> see\n",
        f'"data": "{"A" * 40}… (2,000 characters)"',
        "\n- result of `c2`\n- expires 20",
        'Structured data:\n\n```json\n{\n  "mood": "glad"',
        "Tool call `c1`:\n\n```\na({})\n```\n\nTool call `c2`:\n",
    ):
        assert part in text
    memory = (tmp_path / "out" / "memory.md").read_text()
    assert 'Data:\n\n```json\n{\n  "raw": [' in memory
    assert re.search(r'\n- pinned\n- expires 2126-01-01 00:00\n- metadata `\{"tier":3\}`\n', memory)


def test_csv_tells_values_apart_and_has_the_fields_of_messages(scope: mnemic.Scope) -> None:
    values: dict[str, object] = {"a": None, "b": "", "c": {}, "d": "text", "e": "3", "f": 3, "g": [], "h": -1}
    for key, value in values.items():
        scope.notes.write(key, value)
    blocks = [{"type": "text", "text": "hi"}]
    call = mnemic.ToolCall("c1", "look", '{"a": 1}')
    scope.session("chat").add("assistant", tool_calls=[call], structured_data={"a": 1})
    scope.session("chat").add("tool", blocks, tool_call_id="=c1", images=["https://x.org/cat.png"])
    scope.session("chat").add("user", "'=1", metadata={"n": 1})
    scope.facts.add("Alice", "lives_in", "Oslo", confidence=0.5)
    file = io.BytesIO()
    scope.export_to(file, format="csv")
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    assert {row["id"]: json.loads(row["value"]) for row in rows if row["kind"] == "note"} == values
    assert {row["confidence"] for row in rows} == {"", "0.5"}
    asked, told, said = (row for row in rows if row["kind"] == "message")
    assert json.loads(asked["tool_calls"]) == [
        {"id": "c1", "name": "look", "arguments": '{"a": 1}', "type": "function"}
    ]
    assert (asked["value"], asked["structured_data"], asked["images"]) == ("null", '{"a":1}', "")
    assert (told["text"], json.loads(told["value"])) == ("hi", blocks)
    assert (told["tool_call_id"], told["images"], told["tool_calls"]) == ("'=c1", '["https://x.org/cat.png"]', "")
    assert (said["text"], said["value"], said["metadata"]) == ("''=1", "", '{"n":1}')


def test_the_format_is_told_by_the_name_of_the_file(filled: mnemic.Scope, tmp_path: Path) -> None:
    filled.export_to(tmp_path / "a.CSV")
    assert (tmp_path / "a.CSV").read_text().startswith("scope,kind,id,")
    filled.export_to(str(tmp_path / "a.jsonl"))
    assert (tmp_path / "a.jsonl").read_text().startswith('{"format":"mnemic.export/1"')
    filled.export_to(tmp_path / "b.csv", format="jsonl")
    assert (tmp_path / "b.csv").read_text().startswith('{"format":"mnemic.export/1"')
    for name in ("a", "a.txt", "a.jsonl.gz"):
        with pytest.raises(mnemic.InvalidValueError, match="give the format, jsonl, markdown, csv"):
            filled.export_to(tmp_path / "new" / name)


def test_csv_has_a_row_for_everything_and_no_formulas(filled: mnemic.Scope, tmp_path: Path) -> None:
    filled.export_to(tmp_path / "all.csv", format="csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text(), newline="")))
    assert len(rows) == 8
    chat = [row for row in rows if row["scope"] == "acme/alice/monday"]
    assert [chat[0][name] for name in ("role", "name", "text", "metadata")] == [
        "user",
        "Alice",
        "'=HYPERLINK(1)",
        '{"n":1}',
    ]
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
    (note,) = (row for row in rows if row["kind"] == "note")
    assert (note["id"], note["text"], note["value"]) == ("plan", "What to do", '{"steps":[1]}')


def test_pandas_has_the_same_rows_with_their_types(filled: mnemic.Scope) -> None:
    frame = filled.to_pandas()
    assert len(frame) == 8
    assert str(frame["created"].dtype).startswith("datetime64[")
    memories = filled.to_pandas("memory")
    assert memories[["id", "importance", "source"]].to_dict("records") == [
        {"id": "tea", "importance": 2.0, "source": "monday"}
    ]
    assert len(filled.to_pandas([])) == 0
    with pytest.raises(mnemic.InvalidValueError, match="kind must be one of"):
        filled.to_pandas("nothing")


def test_an_unknown_format_is_an_error(filled: mnemic.Scope, tmp_path: Path) -> None:
    with pytest.raises(mnemic.InvalidValueError, match="format must be one of jsonl, markdown, csv: 'word'"):
        filled.export_to(tmp_path / "x", format="word")
