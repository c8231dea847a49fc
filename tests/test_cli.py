"""The command line: what each command prints for people and programs, exit codes, and the page that documents it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import click
import pytest
from click.testing import CliRunner, Result

import mnemic
from mnemic.cli import main
from mnemic.server.api_keys import ApiKeys

DOCUMENT = Path(__file__).parent.parent / "docs" / "cli.md"
KEY = bytes(range(32))
SAID = {"uuid": "m1", "sender": "human", "text": "hello", "created_at": "2026-01-01T00:00:00Z"}

Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fill an SQLite file in the working folder, and name it in MNEMIC_STORE."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MNEMIC_STORE", "agent.db")
    with mnemic.open("sqlite:///agent.db") as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("Alice drinks green tea", id="tea", metadata={"tier": 3}, source="chat")
        alice.remember("Alice paints teapots", id="paint", created=datetime(2020, 1, 1, tzinfo=UTC))
        alice.notes.write("plan", {"steps": [1, 2]}, description="what comes next")
        alice.facts.add("Alice", "lives in", "Oxford")
        chat = alice.session("monday", ttl=timedelta(days=900))
        chat.add("user", "Which \x1b[31mteapot\x1b[0m do I like?")
        call = mnemic.ToolCall("c1", "search", '{"q": "teapot"}')
        chat.add(mnemic.Message("assistant", tool_calls=[call]))
        chat.add(mnemic.Message("tool", "the blue one", tool_call_id="c1"))
        memory.scope("acme").remember("Acme sells tea", id="acme")
    return "sqlite:///agent.db"


@pytest.fixture
def run(store: str) -> Run:
    def invoke(*arguments: str, code: int = 0, input: str | bytes | None = None) -> Result:
        shown = CliRunner().invoke(main, arguments, input=input)
        assert shown.exit_code == code, shown.output
        return shown

    return invoke


def parsed(shown: Result) -> Any:
    return json.loads(shown.stdout)


# Looking


def test_ls_lists_the_scopes(run: Run) -> None:
    head, *rows = (re.split(r"\s{2,}", line) for line in run("ls").stdout.splitlines())
    assert head == ["scope", "sessions", "messages", "notes", "memories", "facts", "last activity"]
    assert [row[:6] for row in rows] == [["acme", "0", "0", "0", "1", "0"], ["acme/alice", "1", "3", "1", "2", "1"]]
    assert [one["scope"] for one in parsed(run("ls", "--json"))] == ["acme", "acme/alice"]
    limited = run("ls", "--limit", "1", "--json")
    assert [one["scope"] for one in parsed(limited)] == ["acme"]
    assert "the first 1 of 2 scopes" in limited.stderr


def test_ls_of_a_scope_lists_what_is_in_it(run: Run) -> None:
    shown = run("ls", "acme/alice").stdout
    assert shown.startswith("acme/alice: 1 session, 3 messages, 1 note, 2 memories, 1 fact\n")
    for part in ("sessions", "monday", "notes", "what comes next", "memories", "tea ", "facts", "lives in"):
        assert part in shown
    found = parsed(run("ls", "acme/alice", "--json"))
    assert [one["name"] for one in found["sessions"]] == ["monday"]
    assert [one["key"] for one in found["notes"]] == ["plan"]
    assert [one["id"] for one in found["memories"]] == ["tea", "paint"]
    assert [one["object"] for one in found["facts"]] == ["Oxford"]
    limited = run("ls", "acme/alice", "--limit", "1").stdout
    assert "memories, the newest 1 of 2" in limited
    assert "paint" in limited
    assert "drinks" not in limited
    assert [one["scope"] for one in parsed(run("ls", "acme", "--json"))["scopes"]] == ["acme/alice"]


def test_show_prints_a_session_as_a_chat_and_no_control_characters(run: Run) -> None:
    shown = run("show", "acme/alice", "monday").stdout
    assert shown.startswith("acme/alice/monday: 3 messages")
    assert r"  Which \x1b[31mteapot\x1b[0m do I like?" in shown
    assert '  → search({"q": "teapot"})' in shown
    assert "  the blue one" in shown
    assert "\x1b" not in shown
    newest = run("show", "acme/alice", "monday", "--limit", "1").stdout
    assert "… 2 earlier messages" in newest
    assert "Which" not in newest
    messages = parsed(run("show", "acme/alice", "monday", "--json"))["session"]["messages"]
    assert messages[0]["content"] == "Which \x1b[31mteapot\x1b[0m do I like?"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]


def test_ls_and_show_print_the_title_of_a_session(run: Run) -> None:
    chats = [{"uuid": "c1", "name": "Trip\x1b to\nLisbon", "chat_messages": [SAID]}]
    Path("conversations.json").write_text(json.dumps(chats))
    run("import", "conversations.json", "--scope", "me")
    assert run("ls", "me").stdout.splitlines()[4].endswith(r"  Trip\x1b to Lisbon")
    assert run("show", "me", "c1").stdout.splitlines()[1] == r"title: Trip\x1b to Lisbon"
    assert parsed(run("ls", "me", "--json"))["sessions"][0]["title"] == "Trip\x1b to\nLisbon"


def test_show_prints_archived_messages_only_if_asked(run: Run, store: str) -> None:
    with mnemic.open(store) as memory:
        memory.scope("acme", "alice").session("monday", max_messages=1).add("user", "the newest")
    shown = run("show", "acme/alice", "monday").stdout
    assert "in the archive; --archived shows them" in shown
    assert "blue one" not in shown
    assert "the blue one" in run("show", "acme/alice", "monday", "--archived").stdout


def test_show_has_turns_in_order_and_each_call_once(run: Run, store: str) -> None:
    with mnemic.open(store) as memory:
        chat = memory.scope("acme", "alice").session("limited", max_messages=2)
        chat.set_system("Be brief.")
        for text in ("one", "two", "three"):
            chat.add("user", text)
        calls = [mnemic.ToolCall("c1", "lookup", '{"a": 1}'), mnemic.ToolCall("c2", "x")]
        memory.scope("acme", "alice").session("calls").add("assistant", tool_calls=calls)
        memory.scope("acme", "alice").session("calls").add("assistant", "both", tool_calls=calls)
    lines = run("show", "acme/alice", "limited", "--archived").stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")] == ["Be brief.", "one", "two", "three"]
    marks = [line.partition("  ")[0] for line in lines if re.match("(system|user)", line)]
    assert marks == ["system", "user (archived)", "user (archived)", "user"]
    short = run("show", "acme/alice", "limited", "--archived", "--limit", "1").stdout
    assert short.index("  two") < short.index("… 1 earlier message;") < short.index("  three")
    lines = run("show", "acme/alice", "calls").stdout.splitlines()
    shown = ['  → lookup({"a": 1})', "  → x({})"]
    assert [line for line in lines if line.startswith("  ")] == [*shown, "  both", *shown]


def test_show_names_the_scopes_of_messages_with_one_id(run: Run, store: str) -> None:
    with mnemic.open(store) as memory:
        for name in ("c1", "c1.b2"):
            memory.scope("acme").session(name).add("user", f"in {name}", id="a1")
    shown = run("show", "acme", "a1", code=2).stderr
    assert "(message in 'acme/c1', message in 'acme/c1.b2'): give the scope of one as SCOPE." in shown
    assert "  in c1.b2" in run("show", "acme/c1.b2", "a1").stdout


def test_show_finds_a_note_a_memory_a_fact_and_a_message(run: Run) -> None:
    assert '"steps"' in run("show", "acme/alice", "plan").stdout
    memory = run("show", "acme/alice", "tea").stdout
    assert "source      chat" in memory
    assert memory.endswith("\nAlice drinks green tea\n")
    assert parsed(run("show", "acme", "tea", "--json"))["memory"]["metadata"] == {"tier": 3}
    by_thing = parsed(run("show", "acme/alice", "Oxford", "--json"))["facts"]
    assert parsed(run("show", "acme/alice", by_thing[0]["id"], "--json"))["facts"] == by_thing
    id = parsed(run("show", "acme/alice", "monday", "--json"))["session"]["messages"][2]["id"]
    assert "the blue one" in run("show", "acme", id).stdout


def test_show_asks_which_is_meant(run: Run, store: str) -> None:
    with mnemic.open(store) as memory:
        memory.scope("acme", "alice").notes.write("monday", "a note of the same name")
    shown = run("show", "acme/alice", "monday", code=2)
    assert "'monday' is a session and a note: say which with --kind" in shown.stderr
    assert "a note of the same name" in run("show", "acme/alice", "monday", "--kind", "note").stdout
    shown = run("show", "acme/alice", "nobody", code=1)
    assert "acme/alice has no session, note, memory, fact or message 'nobody'" in shown.stderr


def test_stats(run: Run) -> None:
    whole, part = parsed(run("stats", "--json")), parsed(run("stats", "acme/alice", "--json"))
    assert (whole["memories"], part["memories"], whole["sessions"]) == (3, 2, 1)
    rows = dict(re.split(r"\s{2,}", line) for line in run("stats").stdout.splitlines())
    assert (rows["scope"], rows["messages"], rows["memories"]) == ("/", "3", "3")


def test_recall_shows_why_and_counts_as_no_use(run: Run, store: str) -> None:
    first = run("recall", "acme", "What does Alice drink?", "-k", "1").stdout.splitlines()
    assert first[0].split("  ")[1].startswith("memory tea in acme/alice")
    assert first[1] == "  Alice drinks green tea"
    assert re.match(r"  why: dense \+0\.\d\d, ", first[2])
    (hit,) = parsed(run("recall", "/", "drink", "--metadata", "tier=3", "--json"))
    assert (hit["id"], hit["kind"]) == ("tea", "memory")
    assert abs(sum(hit["why"].values()) - hit["score"]) < 1e-6
    assert parsed(run("recall", "acme", "Alice", "--until", "2020-06-01", "--json"))[0]["id"] == "paint"
    kinds = parsed(run("recall", "acme", "Alice", "--kind", "fact", "--kind", "note", "--json"))
    assert {one["kind"] for one in kinds} <= {"fact", "note"}
    (plain,), (weighed,) = (
        parsed(run("recall", "acme", "What does Alice drink?", "-k", "1", *options, "--json"))
        for options in ((), ("--weight", "dense=0.5", "--weight", "recency=0"))
    )
    assert set(plain["why"]) - set(weighed["why"]) == {"recency"}
    assert run("recall", "acme", "Alice", "--min-score", "9").stdout == "nothing was found\n"
    with mnemic.open(store) as memory:
        fading = memory.scope("acme", "alice").memories.fading()
    assert all(one.uses == 0 for one in fading)


def test_ping(run: Run) -> None:
    assert re.fullmatch(r"sqlite:///agent.db answered in \d+\.\d ms\n", run("ping").stdout)
    assert parsed(run("ping", "--json"))["seconds"] > 0
    shown = run("ping", "--store", "redis://user:secret@127.0.0.1:1?timeout=1", code=1)
    assert shown.stderr.startswith("mnemic: redis://***@127.0.0.1:1?timeout=1: ")
    assert len(shown.stderr.splitlines()) == 1


# Changing


def test_remember_prints_the_id(run: Run, store: str) -> None:
    shown = run("remember", "acme/bob", "Bob likes tea", "--metadata", "n=2", "--metadata", "s=x", "--ttl", "2w")
    with mnemic.open(store) as memory:
        item = memory.scope("acme", "bob").memories.get(shown.stdout.strip())
    assert (item.text, item.metadata) == ("Bob likes tea", {"n": 2, "s": "x"})
    assert item.expires is not None
    assert item.created is not None
    assert timedelta(days=13) < item.expires - item.created < timedelta(days=15)
    assert parsed(run("remember", "acme/bob", "-", "--json", input="from a pipe\n"))["text"] == "from a pipe"
    assert "there is no text to remember" in run("remember", "acme/bob", "-", code=1, input="").stderr


def test_forget_by_id_and_by_filter(run: Run) -> None:
    assert run("forget", "acme", "tea", "--dry-run").stdout == "1 record would be forgotten\n"
    missing = run("forget", "acme", "tea", "nothing", code=1)
    assert "'acme' has nothing with the id 'nothing'" in missing.stderr
    assert run("forget", "acme", "tea").stdout == "1 record forgotten\n"
    assert "has nothing" in run("forget", "acme", "tea", code=1).stderr
    assert parsed(run("forget", "acme", "--older-than", "52w", "--dry-run", "--json"))["matched"] == 1
    assert run("forget", "acme", "--older-than", "52w", "--archive", "old.db").stdout == (
        "1 record forgotten, 1 archived\n"
    )
    assert [one["id"] for one in parsed(run("ls", "acme/alice", "-s", "old.db", "--json"))["memories"]] == ["paint"]
    assert "Say what to forget" in run("forget", "acme", code=2).stderr
    assert "is not a duration" in run("forget", "acme", "--older-than", "soon", code=2).stderr
    assert "is not a time" in run("forget", "acme", "--since", "soon", code=2).stderr


def test_an_erasure_that_was_interrupted_late_is_finished_on_the_command_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def dies(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, mnemic.open("sqlite:///agent.db", audit=True) as memory:
        memory.scope("acme", "alice").remember("more")
        patch.setattr("mnemic.features.erasure.drop_names", dies)
        with pytest.raises(KeyboardInterrupt):
            memory.scope("acme", "alice").erase()
    assert parsed(run("erase", "acme/alice", "--dry-run", "--json"))["records"] == 0
    run("erase", "acme/alice", "--yes", "--certificate", "c.json")
    made = mnemic.ErasureCertificate.load(tmp_path / "c.json")
    assert [one.records for one in made.interrupted] == [8]
    assert made.complete
    assert b"acme/alice" not in (tmp_path / "agent.db").read_bytes()
    run("erase", "acme/alice", "--yes", code=1)


@pytest.mark.parametrize("path", [".", "missing/c.json", "agent.db"])
def test_nothing_is_erased_if_the_certificate_cannot_be_written(run: Run, path: str) -> None:
    run("erase", "acme/alice", "--yes", "--certificate", path, code=1)
    assert parsed(run("erase", "acme/alice", "--dry-run", "--json"))["records"] == 7


@pytest.mark.parametrize("option", [["--dry-run"], ["--archive", "old.db"], ["--pseudonym", "request 4711"]])
def test_finishing_an_erasure_takes_no_option_of_a_new_one(run: Run, option: list[str], tmp_path: Path) -> None:
    run("erase", "acme/alice", "--yes", "--certificate", "c.json")
    refused = run("erase", "--finish", "c.json", "--certificate", "finished.json", *option, code=2)
    assert "it takes no --dry-run, --archive or --pseudonym" in " ".join(refused.stderr.split())
    assert not (tmp_path / "finished.json").exists()


@pytest.mark.parametrize("option", [["--at", "2020-01-01"], ["--format", "csv"]])
def test_the_export_of_a_subject_takes_neither_a_time_nor_a_format(run: Run, option: list[str]) -> None:
    refused = run("export", "alice.zip", "--subject", "--scope", "acme/alice", *option, code=2)
    assert "it takes neither --at nor --format" in refused.stderr
    assert not Path("alice.zip").exists()


def test_erase_counts_asks_and_erases(run: Run) -> None:
    counted = parsed(run("erase", "acme/alice", "--dry-run", "--json"))
    assert (counted["scope"], counted["records"], counted["dry_run"]) == ("acme/alice", 7, True)
    refused = run("erase", "acme/alice", input="n\n", code=1)
    assert "Erase 7 records in acme/alice of sqlite:///agent.db? [y/N]" in refused.stderr
    run("erase", "acme/alice", input="", code=1)
    assert parsed(run("stats", "--json"))["memories"] == 3
    assert run("erase", "acme/alice", input="y\n").stdout == "7 records erased\n"
    assert [one["scope"] for one in parsed(run("ls", "--json"))] == ["acme"]
    assert run("erase", "/", "--yes").stdout == "1 record erased\n"
    assert run("ls").stdout == "the store is empty\n"
    assert "there is nothing to export" in run("export", "-", code=1).stderr


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "acme/alcie"],
        ["show", "acme/alcie", "tea"],
        ["stats", "acme/alcie"],
        ["recall", "acme/alcie", "tea"],
        ["forget", "acme/alcie", "tea"],
        ["erase", "acme/alcie", "--yes"],
        ["export", "out.jsonl", "--scope", "acme/alcie"],
    ],
    ids=lambda command: command[0],
)
def test_a_scope_that_holds_nothing_is_an_error(run: Run, command: list[str]) -> None:
    shown = run(*command, code=1)
    assert shown.stderr == "mnemic: nothing is stored in the scope 'acme/alcie'\n"
    assert not Path("out.jsonl").exists()


def test_a_bad_scope_is_an_error_of_usage(run: Run) -> None:
    assert "segment of scope 'acme//x'" in run("ls", "acme//x", code=2).stderr


# Moving


def test_a_round_trip_as_a_user_makes_it(store: str) -> None:
    def pipe(line: str) -> str:
        shell = f'mnemic() {{ "{sys.executable}" -m mnemic "$@"; }}; set -o pipefail; {line}'
        ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        return ran.stdout

    pipe("mnemic export backup.jsonl")
    pipe("mnemic import backup.jsonl --store second.db")
    pipe("mnemic export - --store second.db | mnemic import - --store third.db")
    counts = [json.loads(pipe(f"mnemic stats --json --store {name}")) for name in ("agent.db", "third.db")]
    assert counts[0] == counts[1]
    lines = [pipe(f"mnemic export - --store {name}").splitlines()[1:] for name in ("agent.db", "third.db")]
    assert sorted(lines[0]) == sorted(lines[1])


def test_export_takes_the_format_from_the_name_and_replaces_no_file_unasked(run: Run) -> None:
    assert run("export", "all.csv").stdout == "8 records exported\n"
    assert Path("all.csv").read_text().startswith("scope,kind,id,")
    assert "there is a file all.csv already: --overwrite replaces it" in run("export", "all.csv", code=1).stderr
    run("export", "all.csv", "--overwrite", "--format", "jsonl")
    assert Path("all.csv").read_text().startswith('{"format":"mnemic.export/1"')
    assert "backup ends in neither .jsonl nor .csv: give the format" in run("export", "backup", code=1).stderr
    run("export", "backup", "--format", "markdown")
    assert "not an empty folder" in run("export", "backup", "--format", "markdown", "--overwrite", code=1).stderr
    assert run("export", "-", "--format", "csv").stdout.startswith("scope,kind,id,")
    assert run("export", "-").stdout.startswith('{"format":"mnemic.export/1"')


def test_import_leaves_alone_what_is_there_unless_it_may_overwrite(run: Run) -> None:
    run("export", "all.jsonl", "--scope", "acme/alice")
    assert run("import", "all.jsonl").stdout == "7 records read, 0 of them written\n"
    Path("all.jsonl").write_text(Path("all.jsonl").read_text().replace("green tea", "coffee"))
    assert "exists with different content" in run("import", "all.jsonl", code=1).stderr
    assert parsed(run("import", "all.jsonl", "--overwrite", "--json")) == {
        "records": 7,
        "written": 1,
        "format": "mnemic",
        "skipped": [],
    }
    assert run("import", "all.jsonl", "--scope", "b", "-s", "new.db").stderr == "new store: sqlite:///new.db\n"
    assert [one["scope"] for one in parsed(run("ls", "-s", "new.db", "--json"))] == ["b"]
    Path("all.jsonl").write_text("half")
    assert "line 1: invalid JSON" in run("import", "all.jsonl", code=1).stderr


# Stores and keys


def test_a_store_is_given_by_url_by_path_or_by_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run("ls").stdout
    monkeypatch.delenv("MNEMIC_STORE")
    for given in ("agent.db", "./agent.db", str(Path("agent.db").resolve()), "sqlite:///agent.db"):
        assert run("ls", "-s", given).stdout == expected
    Path("agent.db").rename("odd %41 #1.db")
    assert run("ls", "--store", "odd %41 #1.db").stdout == expected
    assert "--store" in run("ls", code=2).stderr


def test_a_secret_in_a_mistyped_store_is_not_shown(run: Run) -> None:
    for given in ("user:secret@host/db", "postgresql:/user:secret@host/db", "host/db?password=secret"):
        assert "secret" not in run("ls", "-s", given, code=1).output


@pytest.mark.parametrize("content", [KEY, b64encode(KEY), b64encode(KEY) + b"\n"], ids=["raw", "base64", "line"])
def test_a_key_is_read_from_a_file_or_the_environment(
    run: Run, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("key").write_bytes(content)
    monkeypatch.setenv("KEY", b64encode(KEY).decode())
    run("remember", "a", "a secret text", "-s", "sealed.db", "--key-file", "key")
    assert b"a secret text" not in Path("sealed.db").read_bytes()
    assert "a secret text" in run("ls", "a", "-s", "sealed.db", "--key-env", "KEY").stdout
    assert "encrypted" in run("ls", "-s", "sealed.db", code=1).stderr
    Path("wrong").write_bytes(bytes(32))
    assert "key" in run("ls", "-s", "sealed.db", "--key-file", "wrong", code=1).stderr
    for bad in (b"", b"\xff" * 40, b"x" * 5000):
        Path("bad").write_bytes(bad)
        assert len(run("ls", "-s", "sealed.db", "--key-file", "bad", code=1).stderr.splitlines()) == 1
    assert "UNSET is not set" in run("ls", "-s", "sealed.db", "--key-env", "UNSET", code=1).stderr
    assert "No such file" in run("ls", "-s", "sealed.db", "--key-file", "nowhere", code=2).stderr


def test_the_first_key_encrypts_whichever_option_names_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("new").write_bytes(bytes(32))
    monkeypatch.setenv("OLD", b64encode(KEY).decode())
    run("remember", "a", "tea", "-s", "sealed.db", "--key-env", "OLD")
    assert "rotate needs keys" in run("rotate", "-s", "sealed.db", code=2).stderr
    run("rotate", "-s", "sealed.db", "--key-file", "new", "--key-env", "OLD")
    assert "tea" in run("ls", "a", "-s", "sealed.db", "--key-file", "new").stdout
    run("ls", "a", "-s", "sealed.db", "--key-env", "OLD", code=1)


def test_debug_shows_where_an_error_came_from(run: Run) -> None:
    shown = CliRunner().invoke(main, ["ls", "acme/alcie", "--debug"])
    assert isinstance(shown.exception, mnemic.NotFoundError)


def test_the_help_loads_nothing_heavy() -> None:
    heavy = ["msgspec", "sqlalchemy", "numpy", "asyncio", "sqlite3", "mnemic.api", "mnemic.records"]
    program = (
        "import sys; from mnemic.cli import main; main(['--help'], standalone_mode=False);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


# The page

COMMANDS = {
    f"{name} {inner}".strip(): found
    for name, command in main.commands.items()
    for inner, found in (command.commands if isinstance(command, click.Group) else {"": command}).items()
}
"""All commands, by what is typed."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    command = COMMANDS[name]
    text = DOCUMENT.read_text()
    page, _, sections = text.partition("\n## Look")
    section = next(part for part in sections.split("\n### ") if f"`mnemic {name}" in part.partition("\n")[0])
    coded = " ".join(re.findall(r"`[^`\n]+`", page + section))
    for option in command.params:  # the flags of settings are on another page
        for flag in option.opts if isinstance(option, click.Option) else ():
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", coded), f"{name} {flag}"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_has_the_options_that_all_share(command: click.Command) -> None:
    options = {name for option in command.get_params(click.Context(command)) for name in option.opts}
    # The output of an MCP server and of a hook is JSON in any case, a server has none, and the demo's is for people.
    assert ({"--debug"} if command.name in ("mcp", "hook", "serve", "demo") else {"--json", "--debug"}) <= options
    if command.name == "demo":
        assert not {"--store", "--key-file"} & options  # it makes a store of its own
    elif command.name == "copy":
        assert {"--source-key-file", "--source-key-env", "--target-key-file", "--target-key-env"} <= options
    else:
        assert {"--store", "-s"} <= options
        if command.name != "eval":
            assert {"--key-file", "--key-env"} <= options


def test_the_examples_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(), re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert sum(line.startswith("$ mnemic") for line in lines) >= 8
    environment = {**os.environ}
    environment.pop("MNEMIC_STORE", None)
    commands: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    for command, expected in commands:
        if variable := re.fullmatch(r"export (\w+)=(\S+)", command):
            environment[variable[1]] = variable[2]
            continue
        shell = f'mnemic() {{ "{sys.executable}" -m mnemic "$@"; }}; {command}'
        ran = subprocess.run(
            ["bash", "-c", shell],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        shown = "\n".join(expected).strip()
        pattern = ".*?".join(re.escape(part) for part in shown.split("…"))
        assert re.fullmatch(pattern, ran.stdout.strip()), (command, ran.stdout)


def test_the_help_shows_what_each_command_does_in_full() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in shown.partition("\n")[2]
    assert all(f"\n  {name} " in shown for name in main.commands)


# Keys


def test_keys_are_created_listed_expired_and_revoked(store: str, run: Run) -> None:
    created = json.loads(run("keys", "create", "bot", "--scope", "acme", "--right", "read", "--json").stdout)
    assert re.fullmatch(r"mnk_[0-9a-f]{16}_[0-9a-f]{64}", created["secret"])
    assert (created["scope"], created["rights"], created["expires"]) == ("acme", ["read"], None)
    plain = run("keys", "create", "ops", "--scope", "/", "--right", "admin", "--expires", "2099-01-01")
    assert plain.stdout.startswith("mnk_")
    assert "ops: admin in /, expires 2099-01-01 00:00" in plain.stderr
    listed = run("keys", "list").stdout
    assert "valid until 2099-01-01" in listed
    assert "mnk_" not in listed
    assert "expired" in run("keys", "expire", created["id"], "now").stdout
    assert "valid" in run("keys", "expire", created["id"], "30d").stdout
    assert "revoked" in run("keys", "revoke", created["id"]).stdout
    assert [key["name"] for key in json.loads(run("keys", "list", "--json").stdout)] == ["ops"]
    assert [key["name"] for key in json.loads(run("keys", "list", "--all", "--json").stdout)] == ["bot", "ops"]
    with mnemic.open(store, audit=True) as memory:
        changes = memory.audit_trail(kind="api-key", actor="mnemic keys")
    assert [entry.operation for entry in changes] == ["put"] * 5


def test_keys_are_those_of_the_store_that_the_settings_name(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNEMIC_STORE", raising=False)
    secret = b64encode(bytes(32)).decode()
    monkeypatch.setenv("SEALED_KEY", secret)
    Path("mnemic.toml").write_text('store = "s.db"\n')
    Path("other.toml").write_text('store = "o.db"\nkey_env = ["SEALED_KEY"]\n')
    create = ("keys", "create", "bot", "--scope", "/", "--json")
    made = run(*create)
    assert "new store: sqlite:///s.db" in made.stderr
    id = json.loads(made.stdout)["id"]
    assert run("keys", "expire", id, "1d").stderr == run("keys", "revoke", id).stderr == "store: sqlite:///s.db\n"
    assert "new store: sqlite:///o.db" in run(*create, "--config", "other.toml").stderr
    with mnemic.open("sqlite:///o.db", encryption_key=secret) as memory:
        assert memory._driver.run(ApiKeys(memory._async).count()) == 1
    assert "new store: sqlite:///f.db" in run(*create, "--store", "f.db").stderr
    monkeypatch.setenv("MNEMIC_STORE", "v.db")
    assert "new store: sqlite:///v.db" in run(*create).stderr


@pytest.mark.usefixtures("store")
def test_the_record_of_a_revoked_key_can_be_deleted(run: Run) -> None:
    first, second = (
        json.loads(run("keys", "create", name, "--scope", "/", "--json").stdout)["id"] for name in ("a", "b")
    )
    assert "revoke it first" in run("keys", "delete", first, code=1).stderr
    run("keys", "revoke", first, second)
    assert "no key any more" not in run("keys", "delete", first).stderr
    assert "no key any more" in run("keys", "delete", second).stderr
    assert json.loads(run("keys", "list", "--all", "--json").stdout) == []
    assert "there is no key" in run("keys", "delete", second, code=1).stderr


@pytest.mark.usefixtures("store")
def test_keys_with_bad_values_are_refused(run: Run) -> None:
    for arguments, complaint in (
        (["create", "", "--scope", "a"], "name of a key"),
        (["create", "a", "--scope", "a", "--expires", "2020-01-01"], "in the future"),
        (["expire", "0" * 16, "never"], "there is no key"),
        (["revoke", "nope"], "there is no key"),
    ):
        failed = run("keys", *arguments, code=1)
        assert complaint in failed.stderr
    for arguments in (
        ["create", "a"],
        ["create", "a", "--scope", "a//b"],
        ["create", "a", "--scope", "a", "--right", "x"],
    ):
        run("keys", *arguments, code=2)
