"""Agents with memory, on pydantic-ai; names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from ..memory_access import AnyMemory, AnySession, MemoryAccess
    from .agent import Agent, AnyModel
    from .capability import MemoryCapability, WhichSession
    from .conversion import from_pydantic_ai, to_pydantic_ai
    from .journal import Act, AsyncJournal, Change, Provenance
    from .learning import AsyncLearner, Extracted, Lesson, Summary, extractive
    from .run_memory import INTERRUPTED, AgentCalls, Budget
    from .runtime import Runtime
    from .sync import Journal, Learner, open_journal, open_learner
    from .tools import TOOLS

_MODULES = {
    "agent": ("Agent", "AnyModel"),
    "capability": ("MemoryCapability", "WhichSession"),
    "conversion": ("from_pydantic_ai", "to_pydantic_ai"),
    "journal": ("Act", "AsyncJournal", "Change", "Provenance"),
    "learning": ("AsyncLearner", "Extracted", "Lesson", "Summary", "extractive"),
    ".memory_access": ("AnyMemory", "AnySession", "MemoryAccess"),
    "runtime": ("Runtime",),
    "sync": ("Journal", "Learner", "open_journal", "open_learner"),
    "tools": ("TOOLS",),
    "run_memory": ("INTERRUPTED", "AgentCalls", "Budget"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pydantic_ai", "pydantic", "anyio"):
            raise
        raise MissingExtraError(f"{name} needs pydantic-ai: pip install 'mnemic[agents]'") from error


__all__ = [
    "INTERRUPTED",
    "TOOLS",
    "Act",
    "Agent",
    "AgentCalls",
    "AnyMemory",
    "AnyModel",
    "AnySession",
    "AsyncJournal",
    "AsyncLearner",
    "Budget",
    "Change",
    "Extracted",
    "Journal",
    "Learner",
    "Lesson",
    "MemoryAccess",
    "MemoryCapability",
    "Provenance",
    "Runtime",
    "Summary",
    "WhichSession",
    "extractive",
    "from_pydantic_ai",
    "open_journal",
    "open_learner",
    "to_pydantic_ai",
]
