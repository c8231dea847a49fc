"""The clients that `mnemic install` knows: where each keeps its configuration, and the form of an entry."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import check_choice

SERVER = "mnemic"
"""The name of our entry."""
STORE_VARIABLE = "MNEMIC_STORE"
"""The environment variable that names a store."""
"""Names of the variables in an entry."""
HOOK_SECONDS = 15
"""After how long a client ends a hook, which ends itself before."""
BEFORE_TURN = ("UserPromptSubmit", "BeforeAgent")
"""Events whose answer is added to the prompt."""
AT_START = ("SessionStart",)
AFTER_TURN = ("Stop", "PreCompact", "SessionEnd", "AfterAgent")
"""Events after a turn, or before the client forgets one."""
EVENTS = (*AT_START, *BEFORE_TURN, *AFTER_TURN)


class Command(NamedTuple):
    """A program with its arguments and environment variables."""

    program: str
    arguments: list[str]
    variables: Mapping[str, str] = {}


class HookSupport(NamedTuple):
    """How a client runs hooks: its files, its names of the events, and the unit of its timeouts."""

    user: str
    project: str
    events: tuple[str, ...]
    second: int = 1
    """How many of the client's units of time are a second."""


class Client(NamedTuple):
    """A client: its files for a user and for a project, and where in them its MCP servers are."""

    title: str
    user: str = ""
    project: str = ""
    macos: str = ""
    windows: str = ""
    home: tuple[str, str] = ("", "")
    """An environment variable that replaces the first folder of `user`."""
    servers: tuple[str, ...] = ("mcpServers",)
    fields: Mapping[str, Any] = {}
    """Further fields of an entry."""
    terminal: bool = False
    """Whether it runs in a terminal: it then inherits PATH, and starts servers in the project's folder."""
    hooks: HookSupport | None = None

    @property
    def is_opencode(self) -> bool:
        """Whether it is opencode, whose entries have another form."""
        return self.servers == ("mcp",)

    @property
    def variables(self) -> str:
        """The name of the environment variables in an entry."""
        return "environment" if self.is_opencode else "env"

    def entry(self, command: Command) -> dict[str, Any]:
        """Return the entry that starts a server."""
        if self.is_opencode:
            found = {"type": "local", "command": [command.program, *command.arguments], "enabled": True}
        else:
            found = {**self.fields, "command": command.program, "args": command.arguments}
        return found | ({self.variables: dict(command.variables)} if command.variables else {})


_CODE = "Code/User/globalStorage/{}/settings/{}"
_CLINE = _CODE.format("saoudrizwan.claude-dev", "cline_mcp_settings.json")
_ROO = _CODE.format("rooveterinaryinc.roo-cline", "mcp_settings.json")
_EVENTS = ("SessionStart", "UserPromptSubmit", "PreCompact", "Stop")

CLIENTS: dict[str, Client] = {
    "claude-code": Client(
        "Claude Code",
        user="~/.claude.json",
        project=".mcp.json",
        home=("CLAUDE_CONFIG_DIR", "~"),
        fields={"type": "stdio"},
        terminal=True,
        hooks=HookSupport("~/.claude/settings.json", ".claude/settings.json", (*_EVENTS, "SessionEnd")),
    ),
    "claude-desktop": Client(
        "Claude Desktop",
        user="$CONFIG/Claude/claude_desktop_config.json",
        macos="$SUPPORT/Claude/claude_desktop_config.json",
        windows="$APPDATA/Claude/claude_desktop_config.json",
    ),
    "cline": Client("Cline", user=f"$CONFIG/{_CLINE}", macos=f"$SUPPORT/{_CLINE}", windows=f"$APPDATA/{_CLINE}"),
    "codex": Client(
        "Codex",
        user="~/.codex/config.toml",
        project=".codex/config.toml",
        home=("CODEX_HOME", "~/.codex"),
        servers=("mcp_servers",),
        terminal=True,
        hooks=HookSupport("~/.codex/hooks.json", ".codex/hooks.json", _EVENTS),
    ),
    "copilot-cli": Client(
        "GitHub Copilot CLI",
        user="~/.copilot/mcp-config.json",
        home=("COPILOT_HOME", "~/.copilot"),
        fields={"type": "local", "tools": ["*"]},
        terminal=True,
    ),
    "cursor": Client("Cursor", user="~/.cursor/mcp.json", project=".cursor/mcp.json"),
    "gemini-cli": Client(
        "Gemini CLI",
        user="~/.gemini/settings.json",
        project=".gemini/settings.json",
        terminal=True,
        hooks=HookSupport(
            "~/.gemini/settings.json",
            ".gemini/settings.json",
            ("SessionStart", "BeforeAgent", "AfterAgent"),
            second=1000,
        ),
    ),
    "kiro": Client("Kiro", user="~/.kiro/settings/mcp.json", project=".kiro/settings/mcp.json"),
    "lm-studio": Client("LM Studio", user="~/.lmstudio/mcp.json"),
    "opencode": Client(
        "opencode", user="~/.config/opencode/opencode.json", project="opencode.json", servers=("mcp",), terminal=True
    ),
    "qwen-code": Client("Qwen Code", user="~/.qwen/settings.json", project=".qwen/settings.json", terminal=True),
    "roo-code": Client(
        "Roo Code",
        user=f"$CONFIG/{_ROO}",
        macos=f"$SUPPORT/{_ROO}",
        windows=f"$APPDATA/{_ROO}",
        project=".roo/mcp.json",
    ),
    "vscode": Client(
        "VS Code",
        user="$CONFIG/Code/User/mcp.json",
        macos="$SUPPORT/Code/User/mcp.json",
        windows="$APPDATA/Code/User/mcp.json",
        project=".vscode/mcp.json",
        servers=("servers",),
        fields={"type": "stdio"},
    ),
    "windsurf": Client("Windsurf", user="~/.codeium/windsurf/mcp_config.json"),
    "zed": Client(
        "Zed",
        user="$CONFIG/zed/settings.json",
        macos="~/.config/zed/settings.json",
        windows="$APPDATA/Zed/settings.json",
        project=".zed/settings.json",
        servers=("context_servers",),
        fields={"source": "custom"},
    ),
}


def find_client(name: str) -> Client:
    """Return a client by its name; raises InvalidValueError, which lists the names."""
    return CLIENTS[check_choice(name, "client", tuple(CLIENTS))]


def config_path(client: Client, project: Path | None) -> Path | None:
    """Return a client's configuration file, for a project or the user; None if it has none."""
    if project is not None:
        return _existing(project / client.project) if client.project else None
    by_platform = {"darwin": client.macos, "win32": client.windows}
    return _existing(_located(by_platform.get(sys.platform) or client.user, client)) if client.user else None


def hooks_path(client: Client, project: Path | None) -> Path | None:
    """Return the file with a client's hooks, for a project or the user; None if it has none."""
    if client.hooks is None:
        return None
    return _located(client.hooks.user, client) if project is None else project / client.hooks.project


def _existing(path: Path) -> Path:
    """Return a path, or the one with comments beside it that some clients allow, if only that exists."""
    other = path.with_suffix(".jsonc")
    return other if path.name == "opencode.json" and not path.exists() and other.exists() else path


def _located(text: str, client: Client) -> Path:
    home = Path.home()
    variable, folder = client.home
    if variable and (chosen := os.environ.get(variable)):
        # Claude Code keeps ~/.claude/settings.json and ~/.claude.json both in the folder of the variable.
        text = text.replace("~/.claude/", "~/") if folder == "~" else text
        return Path(chosen) / text.removeprefix(f"{folder}/")
    folders = {
        "~": home,
        "$CONFIG": Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config"),
        "$SUPPORT": home / "Library" / "Application Support",
        "$APPDATA": Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming"),
    }
    start, _, rest = text.partition("/")
    return folders[start] / rest
