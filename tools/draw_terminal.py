"""Draw docs/terminal.svg: a terminal in which a client is given a memory and uses it, as it really happens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO
from xml.sax.saxutils import escape

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

TARGET = Path(__file__).parent.parent / "docs" / "terminal.svg"
LINE, LEFT, TOP, WIDTH = 20, 18, 56, 860
COLORS = {"$": "#8be9fd", "+": "#50fa7b", ">": "#f1fa8c", "": "#f8f8f2"}
"""Colors of a line by its first character: a command, an added line of a diff, a call of a tool, anything else."""
BUTTONS = ("#ff5f56", "#ffbd2e", "#27c93f")
MONDAY = {"text": "Staging deploys need PostgreSQL 16 on port 5433", "importance": 2}
TUESDAY = {"query": "which port does the staging database use?", "k": 1}


def installed(folder: Path) -> tuple[list[str], list[str]]:
    """Install into a client's configuration, and return the command that it wrote and what was printed."""
    command = [sys.executable, "-m", "mnemic", "install", "claude-code", "--yes", "--scope", "demo"]
    home = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    home.pop("CLAUDE_CONFIG_DIR", None)
    printed = subprocess.run(command, env=home, capture_output=True, text=True, check=True).stdout  # noqa: S603
    entry = json.loads((folder / ".claude.json").read_text())["mcpServers"]["mnemic"]
    own = [sys.executable, "-m", "mnemic"] if Path(entry["command"]).stem == "mnemic" else [entry["command"]]
    shown = printed.replace(str(folder), "~").replace(entry["command"], "mnemic")
    return [*own, *entry["args"]], shown.splitlines()


async def called(command: list[str], folder: Path, log: TextIO, tool: str, arguments: dict[str, Any]) -> str:
    """Start the server as the client would, call one tool, and return the text of its answer."""
    home = {**os.environ, "XDG_DATA_HOME": str(folder)}
    settings = StdioServerParameters(command=command[0], args=command[1:], env=home)
    async with Client(stdio_client(settings, errlog=log)) as client:
        answer = await client.call_tool(tool, arguments)
    text = "\n".join(part.text for part in answer.content if part.type == "text")
    # What differs from run to run: ids and the day.
    return re.sub(r"\d{4}-\d\d-\d\d", "2026-11-16", re.sub(r"[0-9a-f]{32}", "01a1e2e2", text))


def session() -> list[str]:
    """Return the lines of the session."""
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w") as log:
        folder = Path(name)
        command, diff = installed(folder)
        lines = ["$ pip install 'mnemic[mcp]'", "$ mnemic install claude-code --scope demo --yes", *diff]
        for day, tool, arguments in (("Monday", "remember", MONDAY), ("Tuesday", "recall", TUESDAY)):
            answer = asyncio.run(called(command, folder, log, tool, arguments))
            lines += [
                "",
                f"# {day}, in the client: a new process on the same file",
                f"> {tool} {json.dumps(arguments)}",
                *answer.splitlines(),
            ]
    return lines


def picture() -> str:
    """Return the session as a picture."""
    lines = session()
    height = TOP + LINE * len(lines) + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="14" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#1e1f29"/>',
        *(f'<circle cx="{22 + 20 * n}" cy="22" r="6" fill="{color}"/>' for n, color in enumerate(BUTTONS)),
    ]
    for row, line in enumerate(lines):
        color = "#8a8fa8" if line.startswith(("#", "---", "+++", "@@")) else COLORS.get(line[:1], COLORS[""])
        drawn.append(
            f'<text x="{LEFT}" y="{TOP + LINE * row}" fill="{color}" xml:space="preserve">{escape(line)}</text>'
        )
    return "\n".join([*drawn, "</svg>", ""])


def main() -> int:
    """Draw, or with --check tell whether the picture is up to date."""
    if "--check" in sys.argv:
        if TARGET.read_text(encoding="utf-8") == picture():
            return 0
        print(f"{TARGET} is not what tools/draw_terminal.py draws: run it", file=sys.stderr)
        return 1
    TARGET.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
