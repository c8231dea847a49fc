"""The public names of mnemic.agents, what importing it loads, and its sync API."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mnemic
import mnemic.agents
from mnemic.agents import Provenance, open_journal, open_learner

NAMES = """
    Act Agent AgentCalls AnyMemory AnyModel AnySession AsyncJournal AsyncLearner Budget Change Extracted MemoryAccess
    INTERRUPTED Journal Learner Lesson MemoryCapability Provenance Runtime Summary TOOLS WhichSession extractive
    from_pydantic_ai open_journal open_learner to_pydantic_ai
"""


def test_the_public_names_are_these() -> None:
    assert sorted(mnemic.agents.__all__) == sorted(NAMES.split())
    assert sorted(name for names in mnemic.agents._MODULES.values() for name in names) == sorted(NAMES.split())
    for name in mnemic.agents.__all__:
        assert getattr(mnemic.agents, name) is not None
    assert not hasattr(mnemic.agents, "nothing")


def imported(program: str) -> list[str]:
    """Return which modules a program loads, of those that are not to be loaded unasked."""
    heavy = ["pydantic_ai", "pydantic", "anyio", "asyncio"]
    shown = f"{program}; import sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_nothing_loads_pydantic_ai_unasked() -> None:
    assert imported("import mnemic") == []
    assert imported("import mnemic.agents") == []
    assert "pydantic_ai" not in imported("from mnemic.agents import open_journal, AsyncLearner, extractive")


def test_without_pydantic_ai_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['pydantic_ai'] = None; import mnemic.agents, mnemic\n"
        "try: mnemic.agents.Agent\n"
        "except mnemic.MissingExtraError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "Agent needs pydantic-ai: pip install 'mnemic[agents]'"


def test_sync_callers_have_twins(alice: mnemic.Scope) -> None:
    journal = open_journal(alice)
    journal.writer("write_note", Provenance(agent="Bot")).notes.write("plan", 1)
    (act,) = journal.history("plan")
    assert journal.undo(act).undoes == act.id
    assert alice.notes.list() == []
    chat = alice.session("monday")
    for n in range(40):
        chat.add("user", f"Turn {n} about the trip to Lisbon")
    with open_learner(alice) as learner:
        assert learner.title("monday") == "Turn 0 about the trip to Lisbon"
        learner.later("monday")
        with pytest.raises(mnemic.InvalidValueError, match="needs a model"):
            learner.extract("monday")
    assert chat.summary() is not None, "closing waits for what is learned"
