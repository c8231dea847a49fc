"""The examples with agents run, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
MODELS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MNEMIC_MODEL")


def printed(name: str) -> str:
    """Return what an example prints where no model can be had."""
    environment = {key: value for key, value in os.environ.items() if key not in MODELS}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_an_agent_remembers_over_processes() -> None:
    shown = printed("agent.py")
    assert "assistant  Lisbon has 18 degrees Celsius." in shown
    assert "assistant  Your sister is allergic to shellfish." in shown
    assert "write_note by Assistant in monday: preferences" in shown
    assert "undo       by user" in shown


def test_a_team_shares_its_work() -> None:
    shown = printed("team.py")
    assert "Editor     Here it is: Seven hills, and a tram up each of them: that is Lisbon." in shown
    assert "Editor     Researcher: What is special about Lisbon?" in shown
    assert "a fact     Lisbon has seven hills" in shown
