"""Agents with memory, on pydantic-ai; names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from .agent import Agent
    from .capability import MemoryCapability, WhichSession
    from .conversion import from_pydantic_ai, to_pydantic_ai
    from .journal import Act, AsyncJournal, Change, Provenance
    from .learning import AsyncLearner, Extracted, Lesson, Summary, extractive
    from .memory_access import AnyMemory, AnySession, MemoryAccess
    from .models import AnyModel
    from .prompts import INTERRUPTED, Budget
    from .runtime import Runtime
    from .sync import Journal, Learner, open_journal, open_learner
    from .tools import TOOLS
    from .turn import AgentCalls

_ROOMS = {
    "AgentCalls": "turn",
    "WhichSession": "capability",
    "Lesson": "learning",
    "AnySession": "memory_access",
    "AnyModel": "models",
    "AnyMemory": "memory_access",
    "Act": "journal",
    "Agent": "agent",
    "AsyncJournal": "journal",
    "AsyncLearner": "learning",
    "Budget": "prompts",
    "Change": "journal",
    "Extracted": "learning",
    "MemoryAccess": "memory_access",
    "INTERRUPTED": "prompts",
    "Journal": "sync",
    "Learner": "sync",
    "MemoryCapability": "capability",
    "Provenance": "journal",
    "Runtime": "runtime",
    "Summary": "learning",
    "TOOLS": "tools",
    "extractive": "learning",
    "from_pydantic_ai": "conversion",
    "open_journal": "sync",
    "open_learner": "sync",
    "to_pydantic_ai": "conversion",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
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
