"""`mnemic install`: entries in the configuration files of clients, and nothing else in them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemic import InvalidValueError
from mnemic.cli import main
from mnemic.clients.config_edit import JsonText
from mnemic.clients.install import find_program
from mnemic.clients.project import project_scope
from mnemic.clients.supported_clients import CLIENTS, config_path, hooks_path

VSCODE = """\
{
\t// Servers of the team
\t"servers": {
\t\t"files": { "command": "npx", "args": ["-y", "files"] }, // keep this one
\t\t/* "old": {}, */
\t},
\t"inputs": [],
}
"""
ZED = """\
// Zed settings
{
  "theme": "One Dark", // the best
  "context_servers": {
    "docs": {
      "source": "custom",
      "command": "docs",
      "args": []
    }
  },
  "vim_mode": true
}
"""
CLAUDE = '{"numStartups": 3, "mcpServers": {"files": {"command": "npx"}}, "projects": {"/x": {"history": ["{ü"]}}}'
WINDOWS = '{\r\n    "mcpServers": {\r\n        "a": {\r\n            "command": "a"\r\n        }\r\n    }\r\n}\r\n'
CODEX = """\
# my settings
model = "gpt-5" # fast
instructions = '''
[mcp_servers.not_a_table]
'''

[mcp_servers.docs]
command = "docs" # needed

# trusted folders
[projects."/work"]
trust_level = "trusted"
"""
SETTINGS = """\
{
  "hooks": {
    // format what was edited
    "PostToolUse": [{"matcher": "Edit", "hooks": [{"type": "command", "command": "ruff format"}]}],
    "Stop": [
      {
        "hooks": [
          { "type": "command", "command": "notify-send done" } // noisy
        ]
      }
    ]
  }
}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, which is the user's."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "XDG_CONFIG_HOME", "MNEMIC_STORE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def install(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["install", *arguments], input=given)


def done(*arguments: str) -> str:
    result = install(*arguments, "--yes")
    assert result.exit_code == 0, result.output
    return result.stdout


def configuration(name: str) -> Path:
    path = config_path(CLIENTS[name], None)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def value_of(path: Path) -> Any:
    text = path.read_text()
    return tomllib.loads(text) if path.suffix == ".toml" else JsonText(text).root.value


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_gets_an_entry_in_a_new_file(name: str) -> None:
    client = CLIENTS[name]
    path = configuration(name)
    done(name, "--scope", "acme", "--profile", "graph", "--store", "sqlite:////data/m.db")
    servers = value_of(path)
    for key in client.servers:
        servers = servers[key]
    entry = servers["mnemic"]
    command = entry["command"] if isinstance(entry["command"], list) else [entry["command"], *entry["args"]]
    assert command[1:] == ["mcp", "--store", "sqlite:////data/m.db", "--scope", "acme", "--profile", "graph"]
    assert Path(command[0]).name == "mnemic"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", CLIENTS)
def test_what_an_install_added_is_taken_back(name: str) -> None:
    path = configuration(name)
    content = CODEX if path.suffix == ".toml" else ZED
    path.write_text(content)
    done(name)
    assert path.read_text() != content
    done(name, "--remove")
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("name", "content", "after"),
    [
        ("vscode", VSCODE, '\t\t"files": { "command": "npx", "args": ["-y", "files"] }, // keep this one\n'),
        ("zed", ZED, '      "args": []\n    },\n'),
        ("claude-code", CLAUDE, '{"command": "npx"}, '),
        ("cursor", WINDOWS, "        },\r\n"),
        ("codex", CODEX, 'trust_level = "trusted"\n\n'),
    ],
)
def test_all_other_bytes_stay(name: str, content: str, after: str) -> None:
    path = configuration(name)
    path.write_bytes(content.encode())
    done(name)
    written = path.read_bytes().decode()
    before, _, rest = written.partition(after)
    assert rest, "the entry is after this text"
    assert content.startswith(before)
    done(name, "--remove")
    assert path.read_bytes().decode() == content


def test_an_entry_of_an_earlier_install_is_replaced_in_its_place() -> None:
    path = configuration("zed")
    path.write_text(ZED)
    done("zed", "--scope", "acme")
    first = path.read_text()
    done("zed", "--scope", "globex")
    assert path.read_text() == first.replace('"acme"', '"globex"')
    assert "nothing to change" in done("zed", "--scope", "globex")


def test_hooks_are_added_beside_those_of_others_and_taken_back() -> None:
    path = hooks_path(CLIENTS["claude-code"], None)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(SETTINGS)
    done("claude-code", "--hooks", "--scope", "acme")
    hooks = value_of(path)["hooks"]
    assert list(hooks) == ["PostToolUse", "Stop", "SessionStart", "UserPromptSubmit", "PreCompact", "SessionEnd"]
    assert hooks["Stop"][0]["hooks"][0]["command"] == "notify-send done"
    assert hooks["Stop"][1]["hooks"][0]["command"].endswith("mnemic hook Stop --scope acme")
    assert "nothing to change" in done("claude-code", "--hooks", "--scope", "acme")
    done("claude-code", "--hooks", "--scope", "globex")
    assert [len(groups) for groups in value_of(path)["hooks"].values()] == [1, 2, 1, 1, 1, 1]
    done("claude-code", "--remove")
    assert path.read_text() == SETTINGS


def test_a_hook_that_was_moved_into_a_group_of_others_is_removed_alone() -> None:
    path = hooks_path(CLIENTS["claude-code"], None)
    assert path is not None
    path.parent.mkdir(parents=True)
    entries = [{"type": "command", "command": command} for command in ("a", "/opt/mnemic hook Stop", "b")]
    path.write_text(json.dumps({"hooks": {"Stop": [{"matcher": "", "hooks": entries}]}}))
    done("claude-code", "--remove")
    assert value_of(path) == {"hooks": {"Stop": [{"matcher": "", "hooks": [entries[0], entries[2]]}]}}


def test_gemini_has_its_hooks_and_servers_in_one_file() -> None:
    path = configuration("gemini-cli")
    done("gemini-cli", "--hooks")
    found = value_of(path)
    assert found["mcpServers"]["mnemic"]["args"] == ["mcp", "--project"]
    assert found["hooks"]["AfterAgent"][0]["hooks"][0]["timeout"] == 15_000
    done("gemini-cli", "--remove")
    assert value_of(path) == {}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cursor", '{"mcpServers": {', "line 1"),
        ("cursor", "[]", "not an object"),
        ("cursor", '{"mcpServers": []}', "mcpServers is not an object"),
        ("cursor", "{\n  mcpServers: {}\n}", "line 2: a name in double quotes"),
        ("cursor", '{"a": 1, "a": 2}', "'a' appears twice"),
        ("cursor", "[" * 5000, "nested too deep"),
        ("codex", "a = 1\nb = [", "left as it is"),
        ("codex", 'mcp_servers = { docs = { command = "docs" } }', "cannot be added to it without changing more"),
    ],
)
def test_a_file_that_cannot_be_read_is_left_as_it_is(name: str, content: str, reason: str) -> None:
    path = configuration(name)
    path.write_text(content)
    result = install(name, "--yes")
    assert result.exit_code == 1
    assert reason in result.stderr
    assert path.read_text() == content


def test_a_file_in_another_encoding_is_left_as_it_is() -> None:
    path = configuration("cursor")
    path.write_bytes('{"ü": 1}'.encode("utf-16"))
    assert install("cursor", "--yes").exit_code == 1
    assert path.read_bytes() == '{"ü": 1}'.encode("utf-16")


def test_it_shows_the_change_and_asks_first() -> None:
    path = configuration("cursor")
    path.write_text('{\n  "mcpServers": {}\n}\n')
    before = path.read_text()
    refused = install("cursor", given="n\n")
    assert refused.exit_code == 1
    assert '+    "mnemic": {' in refused.stdout
    assert path.read_text() == before
    assert install("cursor", "--dry-run").exit_code == 0
    assert path.read_text() == before
    assert install("cursor", given="y\n").exit_code == 0
    assert value_of(path)["mcpServers"]["mnemic"]["args"] == ["mcp"]


def test_links_are_followed_and_the_mode_stays(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    real.chmod(0o644)
    link = configuration("cursor")
    link.symlink_to(real)
    done("cursor")
    assert link.is_symlink()
    assert "mnemic" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644


def test_a_change_by_another_program_meanwhile_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    path = configuration("cursor")
    path.write_text("{}")
    monkeypatch.setattr("click.confirm", lambda *_, **__: path.write_text('{"theirs": 1}'))
    result = install("cursor")
    assert result.exit_code == 1
    assert "changed by another program" in result.stderr
    assert path.read_text() == '{"theirs": 1}'


def test_a_password_is_a_variable_and_never_an_argument() -> None:
    path = configuration("cursor")
    done("cursor", "--store", "postgresql://me:s3cret@db/memory")
    entry = value_of(path)["mcpServers"]["mnemic"]
    assert entry["env"] == {"MNEMIC_STORE": "postgresql://me:s3cret@db/memory"}
    assert "s3cret" not in str(entry["args"])


def test_a_password_is_never_in_a_file_of_a_project_or_in_a_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:s3cret@db/memory"
    refused = install("claude-code", "--project", "--store", url, "--yes")
    assert refused.exit_code == 1
    assert "set MNEMIC_STORE in the environment" in refused.stderr
    assert not (tmp_path / ".mcp.json").exists()
    shown = install("cursor", "--store", url, "--dry-run").output + install("cursor", "--store", url, "--json").output
    assert "s3cret" not in shown
    assert "postgresql://***@db/memory" in shown
    monkeypatch.setenv("MNEMIC_STORE", url)
    accepted = install("claude-code", "--project", "--hooks", "--yes")
    assert "MNEMIC_STORE must be set in the environment that Claude Code is started in" in accepted.stderr
    assert "s3cret" not in (tmp_path / ".mcp.json").read_text() + (tmp_path / ".claude" / "settings.json").read_text()


def test_hooks_never_use_another_store_than_the_server() -> None:
    url = "postgresql://me:s3cret@db/memory"
    refused = install("claude-code", "--hooks", "--store", url, "--yes")
    assert (refused.exit_code, configuration("claude-code").exists()) == (1, False)
    assert "which hooks cannot carry: set MNEMIC_STORE" in refused.stderr
    done("claude-code", "--hooks", "--store", "/data/a.db", "--scope", "acme")
    done("claude-code", "--store", "/data/b.db")
    path = hooks_path(CLIENTS["claude-code"], None)
    assert path is not None
    lines = [group["hooks"][0]["command"] for (group,) in value_of(path)["hooks"].values()]
    assert all(line.endswith(" --store sqlite:////data/b.db") for line in lines)
    assert install("claude-code", "--store", url, "--yes").exit_code == 1


def test_what_others_added_to_an_entry_or_a_hook_stays() -> None:
    path = configuration("cline")
    entry = {"command": "old", "args": ["mcp", "--scope", "a"], "autoApprove": ["recall"], "disabled": True}
    entry["env"] = {"KEY": "k", "MNEMIC_STORE": "postgresql://me:old@db/m"}
    path.write_text(json.dumps({"mcpServers": {"mnemic": entry, "z": {}}}, indent=2))
    done("cline", "--scope", "b")
    found = value_of(path)["mcpServers"]["mnemic"]
    assert found == {**entry, "command": found["command"], "args": ["mcp", "--scope", "b"], "env": {"KEY": "k"}}
    done("cline", "--store", "postgresql://me:new@db/m")
    assert value_of(path)["mcpServers"]["mnemic"]["env"] == {"KEY": "k", "MNEMIC_STORE": "postgresql://me:new@db/m"}
    hooks = hooks_path(CLIENTS["claude-code"], None)
    assert hooks is not None
    hooks.parent.mkdir(parents=True)
    own = {"type": "command", "command": "mnemic hook Stop --timeout 3 --scope a", "timeout": 99}
    script = {"type": "command", "command": "cd / && mnemic hook Stop"}
    hooks.write_text(json.dumps({"hooks": {"Stop": [{"matcher": "x", "hooks": [own, script]}]}}))
    done("claude-code", "--scope", "b")
    (group,) = value_of(hooks)["hooks"]["Stop"]
    assert group["hooks"][0]["command"].endswith("mnemic hook Stop --scope b --timeout 3")
    assert [group["matcher"], group["hooks"][0]["timeout"], group["hooks"][1]] == ["x", 99, script]
    assert "nothing to change" in done("claude-code", "--scope", "b")


def test_a_broken_file_of_hooks_matters_only_if_there_are_hooks() -> None:
    path = hooks_path(CLIENTS["claude-code"], None)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done("claude-code")
    assert install("claude-code", "--hooks", "--yes").exit_code == 1


def test_a_table_of_codex_may_have_tables_within_it() -> None:
    path = configuration("codex")
    done("codex")
    entry = path.read_text() + 'startup_timeout_sec = 30\n\n[mcp_servers.mnemic.env]\nKEY = "k"\n'
    other = '\n[mcp_servers.z]\ncommand = "z"\n'
    path.write_text(entry + other)
    assert "nothing to change" in done("codex")
    done("codex", "--scope", "acme")
    found = value_of(path)["mcp_servers"]["mnemic"]
    assert found["args"] == ["mcp", "--scope", "acme"]
    assert [found["startup_timeout_sec"], found["env"]] == [30, {"KEY": "k"}]
    done("codex", "--remove")
    assert path.read_text() == other


def test_an_install_on_one_line_changes_nothing_the_second_time() -> None:
    path = configuration("cursor")
    path.write_text('{"mcpServers":{"o":{"command":"x"}}}')
    done("cursor")
    first = path.read_text()
    assert "nothing to change" in done("cursor")
    done("cursor", "--scope", "acme")
    assert path.read_text() == first.replace('["mcp"]', '["mcp", "--scope", "acme"]')


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--profile", "default,bogus"], "profile must be one of"),
        (["--store", "foo://x"], "no installed back-end serves foo://"),
        (["--key-file", "nosuch.key"], "there is no file"),
        (["--key-file", "-"], "there is no file"),
    ],
)
def test_what_cannot_work_is_not_installed(options: list[str], reason: str) -> None:
    result = install("cursor", *options, "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr


def test_a_project_is_the_repository_that_the_folder_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    done("cursor", "--project")
    assert (tmp_path / ".cursor" / "mcp.json").exists()


def test_a_tilde_is_the_home_folder(home: Path) -> None:
    path = configuration("cursor")
    for store in ("~/my memory.db", "sqlite:///~/my%20memory.db"):
        done("cursor", "--store", store)
        assert value_of(path)["mcpServers"]["mnemic"]["args"] == ["mcp", "--store", f"sqlite:///{home}/my%20memory.db"]
    run = CliRunner().invoke(main, ["remember", "acme", "x", "--store", "~/m.db"])
    assert (run.exit_code, (home / "m.db").exists()) == (0, True), run.output


def test_the_file_of_a_store_is_absolute_since_clients_start_elsewhere(tmp_path: Path) -> None:
    path = configuration("cursor")
    done("cursor", "--store", "my memory.db")
    assert value_of(path)["mcpServers"]["mnemic"]["args"] == ["mcp", "--store", f"sqlite:///{tmp_path}/my%20memory.db"]


def test_a_project_has_a_file_and_a_scope_of_its_own(tmp_path: Path) -> None:
    done("vscode", "--project")
    entry = value_of(tmp_path / ".vscode" / "mcp.json")["servers"]["mnemic"]
    assert entry["args"][:2] == ["mcp", "--scope"]
    assert entry["args"][2].startswith(f"projects/{tmp_path.name}-")
    assert install("windsurf", "--project", "--yes").exit_code == 1
    assert install("vscode", "--hooks", "--yes").exit_code == 1


def test_clients_can_move_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    done("codex")
    done("claude-code", "--hooks")
    assert (tmp_path / "codex" / "config.toml").exists()
    assert {path.name for path in (tmp_path / "claude").iterdir()} == {".claude.json", "settings.json"}


def test_opencode_keeps_the_file_and_the_form_that_it_has(home: Path) -> None:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.jsonc").write_text('{\n  "mcp": {\n    "servers": {} // version 2\n  }\n}\n')
    done("opencode")
    found = JsonText((folder / "opencode.jsonc").read_text()).root.value
    assert found["mcp"]["servers"]["mnemic"]["command"][1:] == ["mcp", "--project"]


def test_the_program_is_this_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "mnemic").write_text("")
    monkeypatch.setattr(sys, "executable", str(bin / "python"))
    (bin / "mnemic").chmod(0o755)
    monkeypatch.setenv("PATH", "")
    assert find_program(portable=True) == [str(bin / "mnemic")]
    monkeypatch.setenv("PATH", str(bin))
    assert find_program(portable=True) == ["mnemic"]
    assert find_program(portable=False) == [str(bin / "mnemic")]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_program(portable=True) == [str(tmp_path / "python"), "-m", "mnemic"]


def test_a_killed_install_leaves_the_old_file_or_the_new_one(home: Path) -> None:
    path = configuration("claude-code")
    path.write_text(json.dumps({"projects": {str(n): "x" * 100 for n in range(2000)}}))
    before = path.read_bytes()
    command = [sys.executable, "-m", "mnemic", "install", "claude-code", "--yes"]
    running = subprocess.Popen(command, env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()  # the diff, which comes before the write
    running.kill()
    running.communicate()
    now = path.read_bytes()
    assert (now == before) is ("mnemic" not in JsonText(now.decode()).root.value.get("mcpServers", {}))


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """JSON with comments, in some style."""

    def written(value: Any, pad: str) -> str:
        comment = draw(st.sampled_from(["", " ", " // c,}]", "/* { */"]))
        line = "\n" + pad if draw(st.booleans()) or "//" in comment else ""
        if isinstance(value, dict | list) and value:
            pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
            inner = [
                (f"{json.dumps(name)}: " if name is not None else "") + written(item, pad + "  ")
                for name, item in pairs
            ]
            start, end = "{}" if isinstance(value, dict) else "[]"
            comma = draw(st.sampled_from(["", ","]))
            return f"{start}{comment}{line}{f', {comment}{line}'.join(inner)}{comma}{comment}{line}{end}"
        return json.dumps(value)

    return written(draw(st.dictionaries(names, values, max_size=4)), "")


@settings(max_examples=150, deadline=None)
@given(documents(), values)
def test_an_edit_changes_one_value_of_any_document(text: str, value: Any) -> None:
    document = JsonText(text)
    path = ("mcpServers", "mnemic")
    if not isinstance(document.root.value.get("mcpServers", {}), dict):
        with pytest.raises(InvalidValueError):
            document.set(path, value)
        return
    edited = document.set(path, value)
    expected = {**document.root.value}
    expected["mcpServers"] = {**expected.get("mcpServers", {}), "mnemic": value}
    assert edited.root.value == expected
    again = edited.remove(path)
    assert again.root.value == document.root.value


def test_the_server_of_a_project_has_its_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []

    async def serve(_memory: object, scope: object, *_: object, **__: object) -> None:
        served.append(str(scope))

    monkeypatch.setattr("mnemic.mcp.serve_stdio", serve)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    assert CliRunner().invoke(main, ["mcp", "--project", "--store", "memory://"]).exit_code == 0
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(tmp_path / "elsewhere"))
    assert CliRunner().invoke(main, ["mcp", "--project", "--store", "memory://"]).exit_code == 0
    assert CliRunner().invoke(main, ["mcp", "--project", "--scope", "x", "--store", "memory://"]).exit_code == 2
    assert served == [str(project_scope(tmp_path)), str(project_scope(tmp_path / "elsewhere"))]
