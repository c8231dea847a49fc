"""Draw the pictures of the documentation: the forgetting curve, and a terminal with an MCP client."""

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

from mnemic.recall.index_entry import HALF_LIFE, strength

DOCS = Path(__file__).parent.parent / "docs"
LEFT, TOP, WIDTH, HEIGHT = 56, 24, 540, 220
DAYS = 180
USES = {0: "#c0392b", 1: "#d68910", 3: "#1e8449", 10: "#2471a3"}


def _place(days: float, share: float) -> str:
    """Return where a point of the curve lies in the picture."""
    return f"{LEFT + WIDTH * days / DAYS:.1f},{TOP + HEIGHT * (1 - share):.1f}"


def forgetting_curve() -> str:
    """Return the forgetting curve, from the function that recall uses."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 24} {TOP + HEIGHT + 56}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for percent in (0, 25, 50, 75, 100):
        start, end = _place(0, percent / 100), _place(DAYS, percent / 100)
        lines.append(f'<polyline points="{start} {end}" stroke="#ddd" fill="none"/>')
        height = TOP + HEIGHT * (1 - percent / 100) + 4
        lines.append(f'<text x="{LEFT - 8}" y="{height:.1f}" text-anchor="end" fill="#555">{percent}%</text>')
    for days in range(0, DAYS + 1, int(HALF_LIFE)):
        across = LEFT + WIDTH * days / DAYS
        lines.append(f'<text x="{across:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle" fill="#555">{days}</text>')
    lines.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 42}" text-anchor="middle" fill="#333">'
        "days since the last use</text>"
    )
    for row, (uses, color) in enumerate(USES.items()):
        curve = " ".join(_place(days, float(strength(1.0, days, uses))) for days in range(DAYS + 1))
        lines.append(f'<polyline points="{curve}" stroke="{color}" stroke-width="2" fill="none"/>')
        label = "never used" if not uses else "used once" if uses == 1 else f"used {uses} times"
        # The curves end close together, so their names stand above, in the order of the curves.
        height = TOP + 20 + 20 * (len(USES) - row)
        lines.append(f'<text x="{LEFT + WIDTH - 120}" y="{height}" fill="{color}">{label}</text>')
    return "\n".join([*lines, "</svg>", ""])


LINE, MARGIN, FIRST_ROW, SCREEN_WIDTH = 20, 18, 56, 860
COLORS = {"$": "#8be9fd", "+": "#50fa7b", ">": "#f1fa8c", "": "#f8f8f2"}
"""Colors of a line by its first character: a command, an added line of a diff, a call of a tool, anything else."""
BUTTONS = ("#ff5f56", "#ffbd2e", "#27c93f")
MONDAY = {"text": "Staging deploys need PostgreSQL 16 on port 5433", "importance": 2}
TUESDAY = {"query": "which port does the staging database use?", "k": 1}


def _installed(folder: Path) -> tuple[list[str], list[str]]:
    """Install into a client's configuration, and return the command that it wrote and what was printed."""
    command = [sys.executable, "-m", "mnemic", "install", "claude-code", "--yes", "--scope", "demo"]
    home = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    home.pop("CLAUDE_CONFIG_DIR", None)
    printed = subprocess.run(command, env=home, capture_output=True, text=True, check=True).stdout  # noqa: S603
    entry = json.loads((folder / ".claude.json").read_text())["mcpServers"]["mnemic"]
    own = [sys.executable, "-m", "mnemic"] if Path(entry["command"]).stem == "mnemic" else [entry["command"]]
    shown = printed.replace(str(folder), "~").replace(entry["command"], "mnemic")
    return [*own, *entry["args"]], shown.splitlines()


async def _called(command: list[str], folder: Path, log: TextIO, tool: str, arguments: dict[str, Any]) -> str:
    """Start the server as the client would, call one tool, and return the text of its answer."""
    home = {**os.environ, "XDG_DATA_HOME": str(folder)}
    settings = StdioServerParameters(command=command[0], args=command[1:], env=home)
    async with Client(stdio_client(settings, errlog=log)) as client:
        answer = await client.call_tool(tool, arguments)
    text = "\n".join(part.text for part in answer.content if part.type == "text")
    # What differs from run to run: ids and the day.
    return re.sub(r"\d{4}-\d\d-\d\d", "2026-11-16", re.sub(r"[0-9a-f]{32}", "01a1e2e2", text))


def _session() -> list[str]:
    """Return the lines of the session."""
    with tempfile.TemporaryDirectory() as name, Path(os.devnull).open("w") as log:
        folder = Path(name)
        command, diff = _installed(folder)
        lines = ["$ pip install 'mnemic[mcp]'", "$ mnemic install claude-code --scope demo --yes", *diff]
        for day, tool, arguments in (("Monday", "remember", MONDAY), ("Tuesday", "recall", TUESDAY)):
            answer = asyncio.run(_called(command, folder, log, tool, arguments))
            lines += [
                "",
                f"# {day}, in the client: a new process on the same file",
                f"> {tool} {json.dumps(arguments)}",
                *answer.splitlines(),
            ]
    return lines


def terminal() -> str:
    """Return a terminal in which a client is given a memory and uses it, as it really happens."""
    lines = _session()
    height = FIRST_ROW + LINE * len(lines) + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SCREEN_WIDTH} {height}" font-size="14" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
        f'<rect width="{SCREEN_WIDTH}" height="{height}" rx="10" fill="#1e1f29"/>',
        *(f'<circle cx="{22 + 20 * n}" cy="22" r="6" fill="{color}"/>' for n, color in enumerate(BUTTONS)),
    ]
    for row, line in enumerate(lines):
        color = "#8a8fa8" if line.startswith(("#", "---", "+++", "@@")) else COLORS.get(line[:1], COLORS[""])
        drawn.append(
            f'<text x="{MARGIN}" y="{FIRST_ROW + LINE * row}" fill="{color}" xml:space="preserve">{escape(line)}</text>'
        )
    return "\n".join([*drawn, "</svg>", ""])


PICTURES = {DOCS / "forgetting.svg": forgetting_curve, DOCS / "terminal.svg": terminal}


def main() -> int:
    """Draw, or with --check tell whether the pictures are up to date."""
    for path, picture in PICTURES.items():
        if "--check" not in sys.argv:
            path.write_text(picture(), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != picture():
            print(f"{path} is not what tools/draw_pictures.py draws: run it", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
